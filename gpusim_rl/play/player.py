"""Policies as play.py shows them: the policy of a run, or an exported file."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusim_rl.config import resume
from gpusim_rl.config.sections import Config
from gpusim_rl.core import errors
from gpusim_rl.core.files import read_whole
from gpusim_rl.play.rollouts import FileRollout, Rollout, RunRollout, engine_errors
from gpusim_rl.runs.run import Run, newest
from gpusim_rl.viewer.film import Frames
from gpusim_rl.viewer.target import check_command
from gpusim_rl.viewer.window import Command

if TYPE_CHECKING:
    from mujoco import MjModel

    from gpusim_rl.algorithms.iteration import Iteration
    from gpusim_rl.deploy.runtime import Policy
    from gpusim_rl.envs.task import Task

Settings = dict[str, Any]  # of conf/play.yaml, as a command line changes them
ENDLESS = ("Loop", "Scan", "SequenceMap")  # operators that may repeat others without end
MAX_STEPS = 1000  # timesteps of a control step
SHORTEST = 1e-5  # timestep [s]


def is_file(word: str) -> bool:
    """Whether a word names an exported policy, and no run."""
    path = Path(word)
    return path.is_file() or (path.suffix == ".onnx" and not path.is_dir())


def find_run(cfg: Settings) -> Run:
    """The run that run= names, else the newest."""
    return Run.open(Path(cfg["run"]) if cfg["run"] else newest())


def load_run(run: Run, cfg: Settings) -> tuple["Iteration", Config]:
    """Load the policy of a run on the CPU.

    Returns:
        An iteration of one world with the policy, and the run's configuration. checkpoint= names
        another checkpoint than the last.
    """
    from gpusim_rl.runs.checkpoints import load

    config = resume.load_config(run, cfg["task_code"]).replace({"episodes": cfg["episodes"]})
    if cfg["checkpoint"]:
        path = Path(cfg["checkpoint"])
        state, metadata = load(path)
    else:
        state, metadata, path = run.checkpoints.restore(errors.warn)
    edited = resume.edits(metadata, config.plain, path)
    from gpusim_rl.build.earlier_runs import for_playing  # loads torch, after mistakes
    from gpusim_rl.build.iteration import make_iteration  # loads torch, after mistakes

    iteration = make_iteration(for_playing(config), num_envs=1)
    iteration.policy.load(state, str(path))
    if edited:
        said = ", ".join(sorted(edited.values()))
        errors.warn(f"warning: {path} was not trained with {run.path}/config.yaml: {said}")
    iteration.iterations = iterations_of(state)
    if not cfg["checkpoint"]:
        calibrate(run, iteration)
    return iteration, config


def load_checkpoint(run: Run, iteration: "Iteration", name: str | None) -> None:
    """Load the policy of a checkpoint of a run into its iteration, the last one if name is None.

    ValueError or OSError, in one line, if it is not whole.
    """
    from gpusim_rl.runs.checkpoints import load

    if name is None:
        state, _, path = run.checkpoints.restore(errors.warn)
    else:
        path = run.checkpoints.path / f"{name}.safetensors"
        run.checkpoints.check(path, run.checkpoints.manifest())
        state, _ = load(path)
    iteration.policy.load(state, str(path))
    iteration.iterations = iterations_of(state)
    calibrate(run, iteration)


def calibrate(run: Run, iteration: "Iteration") -> None:
    """Give the policy of a run the calibration of its iteration, if there is one."""
    from gpusim_rl.evaluation import calibrate

    calibrate.read(run.path / calibrate.FILE, iteration.policy.actor, iteration.iterations)


def iterations_of(state: dict[str, Any]) -> int:
    """How many iterations a checkpoint was trained; 0 if it does not say."""
    done = state.get("iteration")
    return int(done) if done is not None and done.numel() == 1 else 0


def how_to_evaluate(config: Config, cfg: Settings) -> dict[str, Any]:
    """The keyword arguments of an evaluation, of a run's configuration and of play.py's."""
    task = {"weights": config.task.weights, "noise": config.task.noise}
    return task | dict(episodes=cfg["episodes"], progress=errors.warn)


def check_rough(run: Run, task: "Task", words: str) -> None:
    """ValueError, which begins with words of the command line, unless a task is on rough ground."""
    if not task.takes_terrain:
        raise ValueError(f"{words}: the task of {run.path} is on flat ground")


def task_on_ground(run: Run, task: "Task", kind: str | None, level: int | None) -> "Task":
    """The task of a run on one kind or level of its rough ground; None leaves it as it is.

    ValueError if there is none.
    """
    only: dict[str, Any] = {} if level is None else {"level": level}
    words = [f"level={level}"] * len(only)
    if kind is not None:
        only, words = only | {"kinds": (kind,)}, [*words, f"kind={kind}"]
    if not only:
        return task
    check_rough(run, task, " ".join(words))
    return replace(task, terrain=task.terrain | only)


def frames_of(rollout: Rollout, command: Command | None, several: bool = False) -> Frames:
    """Frames of the first world, or of several side by side; without a command, by the task's."""
    t = 0.0
    while True:
        rollout.step(command(t) if command else None)
        t += rollout.dt
        rollout.show_world(0)
        yield t, rollout.qpos() if several else rollout.qpos()[0]


def run_rollout(run: Run, iteration: "Iteration", config: Config, cfg: Settings) -> RunRollout:
    """Worlds of a run's task in which its policy acts: worlds= of them, or one."""
    task, n = task_on_ground(run, iteration.env.task, cfg["kind"], cfg["level"]), cfg["worlds"] or 1
    from gpusim_rl.build.models import (
        make_picture_model,  # loads torch, after mistakes are answered
    )

    how: dict[str, Any] = dict(
        weights=config.task.weights, noise=config.task.noise, seed=cfg["seed"]
    )
    return RunRollout(iteration.policy, task, n, **how, picture=make_picture_model(config))


def check_operators(path: Path) -> None:
    """ValueError unless a stranger's ONNX file ends, is ONNX's alone and holds its own weights."""
    import onnx
    from google.protobuf.message import DecodeError

    from gpusim_rl.deploy.runtime import MAX_BYTES

    try:
        model = onnx.load_model_from_string(read_whole(path, MAX_BYTES))
    except DecodeError:
        raise ValueError(f"{path} is not an ONNX file that onnxruntime can load") from None
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
    names = {"sensor": [model.sensor(i).name for i in range(model.nsensor)]}
    names["joint"] = [model.joint(i).name for i in range(model.njnt)]
    for name, width in policy.needs.items():
        if name in ("joint_pos", "joint_vel"):
            joints = policy.reads.get(name, [])
            fits = len(joints) == width and all(
                joint and joint in names["joint"] for joint in joints
            )
        else:
            is_sensor = name in names["sensor"] and name not in policy.reads
            fits = is_sensor and model.sensor(name).dim[0] == width
        source = [x.get("source") for x in policy.about["inputs"] if x.get("name") == name]
        if not fits and source == ["estimator"]:
            where = "play its run instead, or give it a sensor of this name"
            raise ValueError(f"{path}: {name!r} is a state estimator's, not its model's: {where}")
        if not fits:
            raise ValueError(f"{path}: its model has no reading {name!r} as the policy needs it")
    if model.nu != len(policy.joints):
        raise ValueError(f"{path}: {len(policy.joints)} targets for {model.nu} actuators")
    timestep = model.opt.timestep
    if not SHORTEST <= timestep <= 1.01 * policy.dt <= MAX_STEPS * timestep:
        raise ValueError(f"{path}: timesteps of {timestep} s in {policy.dt} s are not played")


def open_onnx(path: Path) -> tuple["Policy", "MjModel"]:
    """The policy of an exported file, and its model; ValueError if they do not fit together."""
    import mujoco

    from gpusim_rl.deploy import runtime
    from gpusim_rl.robots.model_files import check_confined
    from gpusim_rl.robots.models import compile_spec

    if path.is_file():
        check_operators(path)
    policy = runtime.Policy(path)
    check_confined(policy.mjcf, None, str(path))
    with engine_errors(path):
        model = compile_spec(mujoco.MjSpec.from_string(policy.mjcf))
    check_model(model, policy, path)
    check_command(policy.command, model, path)
    return policy, model


def file_rollout(path: Path) -> FileRollout:
    """A world in which a stranger's policy acts. ValueError, in one line, if it cannot."""
    return FileRollout(path, *open_onnx(path))
