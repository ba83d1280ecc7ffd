"""Exported files of strangers: what one may hold, and its policy beside its model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim_rl.core import errors
from gpusim_rl.core.files import read_whole
from gpusim_rl.core.paths import program
from gpusim_rl.envs.command_columns import check_command

if TYPE_CHECKING:
    from mujoco import MjModel

    from gpusim_rl.deploy.runtime import Policy

ENDLESS = ("Loop", "Scan", "SequenceMap")  # operators that may repeat others without end
MAX_STEPS = 1000  # timesteps of a control step
SHORTEST_TIMESTEP_S = 1e-5  # timestep [s]


def is_file(word: str) -> bool:
    """Whether a word names an exported policy, and no run."""
    path = Path(word)
    return path.is_file() or (path.suffix == ".onnx" and not path.is_dir())


def check_operators(path: Path) -> None:
    """ValueError unless a stranger's ONNX file ends, is ONNX's alone and holds its own weights."""
    from gpusim_rl.deploy.runtime import MAX_BYTES

    check_graph(parse_model(read_whole(path, MAX_BYTES), path), path)


def parse_onnx(data: bytes, path: Path) -> Any:
    """The ONNX model in the bytes of a file, with its numbers in NAME.data beside it.

    ValueError if it is none, its numbers lie elsewhere, or NAME.data is a link or has fewer.
    """
    from gpusim_rl.deploy.runtime import MAX_BYTES

    model = parse_model(data, path)
    outside = [x for x in tensors_of(model.graph) if x.data_location == x.EXTERNAL]
    beside, size = path.with_name(f"{path.name}.data"), 0
    if outside and beside.is_symlink():
        raise ValueError(f"{path}: {beside} is a link")
    numbers = read_whole(beside, MAX_BYTES) if outside and beside.is_file() else b""
    for tensor in outside:
        try:
            fill(tensor, beside, numbers)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        size += len(tensor.raw_data)
        if size > len(numbers):  # else a small file of many such tensors would fill the memory
            raise ValueError(f"{path}: its tensors have more numbers than {beside}")
    return model


def parse_model(data: bytes, path: Path) -> Any:
    """The ONNX model in the bytes of a file; ValueError if it is none."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load_model_from_string(data)
    except DecodeError:
        adopts = f"{program('play')} mode=adopt takes TorchScript of others"
        raise ValueError(
            f"{path} is not an ONNX file that onnxruntime can load; {adopts}"
        ) from None


def check_graph(model: Any, path: Path) -> None:
    """ValueError unless a model ends, is ONNX's alone and holds its own weights."""
    import onnx

    if model.functions:
        raise ValueError(f"{path}: functions of its own are not allowed")
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for tensor in tensors_of(graph):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                raise ValueError(f"{path}: the numbers of {tensor.name!r} are in another file")
        for node in graph.node:
            if node.domain not in ("", "ai.onnx") or node.op_type in ENDLESS:
                name = f"{node.domain}.{node.op_type}".strip(".")
                raise ValueError(f"{path}: the operator {name} is not allowed")
            for attribute in node.attribute:
                graphs += [attribute.g, *attribute.graphs]


def fill(tensor: Any, file: Path, numbers: bytes) -> None:
    """Copy a tensor's numbers out of the bytes of the file beside its model, in place.

    ValueError if they are in another file, or beyond its end.
    """
    place = {x.key: x.value for x in tensor.external_data}
    if place.get("location") != file.name:
        raise ValueError(f"the numbers of {tensor.name!r} are in {place.get('location')!r}")
    begin = int(place.get("offset", 0))
    size = int(place.get("length", len(numbers) - begin))
    if not 0 <= begin < begin + size <= len(numbers):
        raise ValueError(f"{file} lacks the numbers of {tensor.name!r}")
    tensor.raw_data = numbers[begin : begin + size]
    tensor.ClearField("external_data")
    tensor.data_location = tensor.DEFAULT


def tensors_of(graph: Any) -> Iterator[Any]:
    """All tensors of an ONNX graph, without those of its subgraphs."""
    sparse = [*graph.sparse_initializer]
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
            yield from (attribute.t, *attribute.tensors)
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def check_model(model: "MjModel", policy: "Policy", path: Path) -> None:
    """ValueError unless a stranger's model is a robot that the policy of its file can drive."""
    widths = {model.sensor(i).name: model.sensor_dim[i] for i in range(model.nsensor)}
    known = [model.joint(i).name for i in range(model.njnt)]
    for name, width in policy.needs.items():
        if name in ("joint_pos", "joint_vel"):
            joints = policy.reads.get(name, [])
            fits = len(joints) == width and all(x and x in known for x in joints)
        else:
            fits = name not in policy.reads and widths.get(name) == width
        source = [x.get("source") for x in policy.description["inputs"] if x.get("name") == name]
        if not fits and source == ["estimator"]:
            where = "play its run instead, or give it a sensor of this name"
            raise ValueError(f"{path}: {name!r} is a state estimator's, not its model's: {where}")
        if not fits:
            raise ValueError(f"{path}: its model has no reading {name!r} as the policy needs it")
    if model.nu != len(policy.joints):
        raise ValueError(f"{path}: {len(policy.joints)} targets for {model.nu} actuators")
    timestep = model.opt.timestep
    if not SHORTEST_TIMESTEP_S <= timestep <= 1.01 * policy.dt <= MAX_STEPS * timestep:
        raise ValueError(f"{path}: timesteps of {timestep} s in {policy.dt} s are not played")


def check_views(policy: "Policy", path: Path) -> None:
    """ValueError if a policy sees further views: its task computes them, not its file."""
    for name in policy.views:
        remedy = "use run= with mode=evaluate, video or web"
        raise ValueError(f"{path} sees the view {name!r}, which only its task computes: {remedy}")


def open_onnx(path: Path, views: bool = False) -> tuple["Policy", "MjModel"]:
    """The policy of an exported file, and its model; ValueError if they do not fit together.

    views: whether the policy is given the further views that it sees, or drives nothing.
    """
    import mujoco

    from gpusim_rl.deploy import runtime
    from gpusim_rl.robots.model_files import check_confined
    from gpusim_rl.robots.models import compile_spec

    if path.is_file():
        check_operators(path)
    policy = runtime.Policy(path)
    if not views:
        check_views(policy, path)
    check_confined(policy.mjcf, None, str(path))
    with file_errors(path):
        model = compile_spec(mujoco.MjSpec.from_string(policy.mjcf))
    check_model(model, policy, path)
    check_command(policy.command, model, path)
    return policy, model


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an error of a stranger's model or description into a ValueError that names the file."""
    import mujoco

    errors.silence_mujoco()
    try:
        yield
    except (mujoco.FatalError, ValueError) as error:
        where = "" if str(error).startswith(str(path)) else f"{path}: "
        raise ValueError(f"{where}{error}") from None
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ValueError(f"{path} has an invalid description: {reason}") from None
