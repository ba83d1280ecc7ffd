"""Policies that others trained, as files of ours: readings → their network → targets.

What a card says is traced by our own exporter, and the network lies in the middle as it is.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import onnx
import torch
from onnx import compose, version_converter

from gpusim_rl.core.files import Plain, part_of, read_whole, write_whole
from gpusim_rl.deploy import exported
from gpusim_rl.deploy.card import Card, read_card, schema
from gpusim_rl.deploy.card_controller import (
    DRAFT,
    NETWORK,
    OBSERVATION,
    RESULT,
    SOUND,
    Action,
    Observation,
)
from gpusim_rl.deploy.controller import COMMAND, FAULT, MEMORY, NEXT, RESTART, TARGETS
from gpusim_rl.deploy.describe import describe_joints, describe_memory, describe_sensor, whole
from gpusim_rl.deploy.export import TOLERANCE, session
from gpusim_rl.deploy.makers_files import READERS, lacks
from gpusim_rl.deploy.runtime import LANES, MAX_BYTES, Policy
from gpusim_rl.deploy.to_onnx import OPSET, finished, to_onnx
from gpusim_rl.deploy.torchscript import convert, is_script
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.robots.bare_model import driven_names, load_bare, make_model
from gpusim_rl.robots.models import compile_spec
from gpusim_rl.sim.actuator_spec import Actuator

STEPS, ROBOTS = 200, 3  # that are compared
LOOSE = 1e-4  # difference of an action by the rounding of another batch
Array = np.ndarray
UNITS = {"forward": "m/s", "left": "m/s", "turn": "rad/s"}


class Network(NamedTuple):
    """A network of others as ONNX: (B, width) → (B, joints), and what it remembers.

    memory (B, layers, width): input → output, and its start.
    """

    model: onnx.ModelProto
    entry: str
    exit: str
    memory: dict[str, tuple[str, torch.Tensor]]


class Parts(NamedTuple):
    """What an adopted file is made of; sha256: of the network's file."""

    card: Card
    sha256: str
    mjcf: str
    model: mujoco.MjModel
    before: Observation
    net: Network
    after: Action


def adopt(
    network: Path, card_file: Path | None, robot: Path, out: Path, trust: bool = False
) -> tuple[Card, float]:
    """Write a network of others as a controller of ours.

    Returns its card, and the largest difference of a target [rad] from card and network.

    ValueError or OSError in one line if card, network and robot do not fit together, or one of them
    cannot be taken in.
    """
    if card_file is None:
        raise ValueError(lacks(network, schema()["required"]))
    parts = load_parts(network, card_file, robot, trust)
    with onnx_errors(network):
        data = finished(join(parts), describe(parts), parts.mjcf)
    return parts.card, write_checked(data, out, parts)


def load_parts(network: Path, card_file: Path, robot: Path, trust: bool = False) -> Parts:
    """The parts of a file, before they are traced; errors as `adopt`."""
    spec = load_bare(robot)
    card = read_card(card_file, driven_names(spec), READERS)
    try:
        mjcf = make_model(spec, card.values, lambda names: check_joints(card, names))
        model = compile_spec(mujoco.MjSpec.from_string(mjcf))
    except ValueError as error:
        raise ValueError(f"{robot}: {' '.join(str(error).split())}") from None
    digest = check_source(card, network)
    net = load_network(network, card, trust)
    driven = [model.joint(j).name for j in model.actuator_trnid[:, 0]]
    order = [driven.index(name) for name in card.joints]
    places = [model.joint(name).qposadr[0] for name in card.joints]
    pose = card.vector("pose") if "pose" in card.values else model.key_qpos[0][places]
    before = Observation(card, order, pose, {name: x for name, (_, x) in net.memory.items()})
    return Parts(card, digest, mjcf, model, before, net, Action(before, order, pose))


def check_joints(card: Card, names: list[str]) -> None:
    """ValueError unless the card drives all joints that the robot's actuators drive."""
    if unknown := [x for x in card.joints if x not in names]:
        raise ValueError(f"no joint {unknown[0]!r} is driven: choose of {', '.join(names)}")
    if left := [x for x in names if x not in card.joints]:
        remedy = "remove their actuators and joints from a copy of the robot's file"
        what = f"the network drives {len(card.joints)} joints, not {', '.join(left)}"
        raise ValueError(f"{what}: {remedy}")


def check_source(card: Card, network: Path) -> str:
    """The network's SHA-256; ValueError unless it is the file that the card is of."""
    actual = hashlib.sha256(read_whole(network, MAX_BYTES)).hexdigest()
    expected = card.values["source"].get("sha256", actual)
    if expected != actual:
        raise ValueError(f"{network} has SHA-256 {actual}, but the card is of {expected}")
    return actual


# -- the network -----------------------------------------------------------------------------------


@contextmanager
def onnx_errors(path: Path) -> Iterator[None]:
    """Turn what ONNX and onnxruntime raise for a network into a ValueError in one line."""
    try:
        yield
    except (ValueError, OSError):
        raise
    except Exception as error:  # theirs have no common base class
        why = " ".join(str(error).split())
        raise ValueError(f"{path}: ONNX refuses the network: {why[:300]}") from None


def load_network(path: Path, card: Card, trust: bool) -> Network:
    """The network of a file, opened for any number of robots; ValueError if it does not fit."""
    width, count = card.steps * card.step_width, len(card.joints)
    model, names = read_network(path, width, trust)
    exported.check_graph(model, path)
    if opset(model) > (newest := onnx.defs.onnx_opset_version()):
        raise ValueError(f"{path} has opset {opset(model)}, this ONNX knows up to {newest}")
    with onnx_errors(path):
        model = version_converter.convert_version(model, opset(model))
    del model.graph.value_info[:]
    known = {x.name for x in model.graph.initializer}
    inputs = [x for x in model.graph.input if x.name not in {*known, *names}]
    memory = {
        x.name: (f"next.{x.name}", torch.zeros(1, *sizes(x)[1:]))
        for x in model.graph.input
        if x.name in names
    }
    results = [x for x in model.graph.output if x.name not in {y for y, _ in memory.values()}]
    outputs = [x for x in results if len(results) == 1 or sizes(x)[1:] == [count]]
    if len(inputs) != 1 or len(outputs) != 1:
        ends = (", ".join(f"{x.name} {sizes(x)}" for x in some) for some in (inputs, results))
        what = "inputs {}; outputs {}".format(*ends)
        raise ValueError(f"{path}: expected one observation and one action, not {what}")
    check_width(path, "sees", inputs[0], width, terms_in_words(card))
    check_width(path, "gives", outputs[0], count, "one for each of joints")
    for value in (*inputs, *outputs):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return Network(model, inputs[0].name, outputs[0].name, memory)


def sizes(value: onnx.ValueInfoProto) -> list[int]:
    """The sizes of an input or output; 0 of an axis that may have any."""
    return [x.dim_value for x in value.type.tensor_type.shape.dim]


def read_network(path: Path, width: int, trust: bool) -> tuple[onnx.ModelProto, list[str]]:
    """The ONNX model of a file, and the inputs (B, layers, n) that it remembers.

    Its numbers may lie in NAME.data beside it, and nowhere else. TorchScript is converted for an
    observation of this width, if it is trusted.
    """
    if is_script(path):
        if not trust:
            runs = "trust=true runs it once, without network and files: docs/security.md"
            raise ValueError(f"{path} is TorchScript, which is a program: {runs}")
        model = exported.parse_onnx(convert(path, width), path)
        notes = {x.key: x.value for x in model.metadata_props}
        return model, notes["memory"].split()
    if zipfile.is_zipfile(path):
        remedy = "export the network as ONNX or TorchScript"
        raise ValueError(f"{path} is a checkpoint, whose pickles are never read: {remedy}")
    return exported.parse_onnx(read_whole(path, MAX_BYTES), path), []


def check_width(path: Path, verb: str, value: onnx.ValueInfoProto, width: int, what: str) -> None:
    """ValueError unless an input or output is of float32, and its last axis has this width."""
    shape, kind = sizes(value), value.type.tensor_type.elem_type
    if len(shape) != 2 or shape[1] != width:
        found = shape[1] if len(shape) == 2 else f"shape {shape}"
        says = f"{found} numbers, the card says {width}: {what}"
        raise ValueError(f"{path}: the network {verb} {says}")
    if kind != onnx.TensorProto.FLOAT:
        name = onnx.TensorProto.DataType.Name(kind)
        raise ValueError(f"{path}: the network {verb} numbers of type {name}, expected FLOAT")


def terms_in_words(card: Card) -> str:
    """The widths of the terms in words: `5 steps of gyro 3, gravity 3`."""
    parts = ", ".join(f"{name} {card.width(name)}" for name, _ in card.terms)
    return f"{card.steps} steps of {parts}" if card.steps > 1 else parts


# -- the whole -------------------------------------------------------------------------------------


def trace(parts: Parts, version: int) -> list[onnx.ModelProto]:
    """What comes before and after the network, as ONNX whose inputs and outputs share names."""
    before, after = parts.before, parts.after
    widths = {name: (x,) for name, x in parts.card.readings.items()} | {COMMAND: (3,)}
    sample = {name: torch.zeros(2, *x) for name, x in widths.items()}
    sample |= {RESTART: torch.tensor([True, False]), SOUND: torch.tensor([True, False])}
    memory = {MEMORY + name: torch.cat([x, x]) for name, x in after.start.items()}
    # another tensor than the memory: torch would take both inputs for one
    draft = {x: memory[MEMORY + x.removeprefix(DRAFT)].clone() for x in after.draft}
    sample |= memory | draft | {RESULT: torch.zeros(2, len(parts.card.joints))}
    results = [TARGETS, FAULT, *(NEXT + x for x in after.start)]
    first = to_onnx(before, {x: sample[x] for x in before.inputs}, before.outputs)
    second = to_onnx(after, {x: sample[x] for x in after.inputs}, results)
    return [version_converter.convert_version(x, version) for x in (first, second)]


def join(parts: Parts) -> onnx.ModelProto:
    """One model of three: the network's ends get the names of its neighbours, all else a prefix."""
    net, version = parts.net, opset(parts.net.model)
    first, second = trace(parts, version)
    wires = {net.entry: OBSERVATION, net.exit: RESULT} | {x: NETWORK + x for x in net.memory}
    wires |= {result: f"{DRAFT}{NETWORK}{name}" for name, (result, _) in net.memory.items()}
    ends, keep = {f"network/{x}": y for x, y in wires.items()}, {"rename_outputs": False}
    middle = compose.add_prefix(net.model, "network/").graph
    for node in middle.node:
        node.input[:] = [ends.get(x, x) for x in node.input]
        node.output[:] = [ends.get(x, x) for x in node.output]
    start = compose.add_prefix(first, "before/", rename_inputs=False, **keep).graph
    end = compose.add_prefix(second, "after/", rename_inputs=False, **keep).graph
    graphs = (start, middle, end)
    inputs = {x.name: x for x in (*end.input, *start.input)}
    made = {x for graph in graphs for node in graph.node for x in node.output}
    graph = onnx.helper.make_graph(
        [node for one in graphs for node in one.node],
        "policy",
        [x for name, x in inputs.items() if name not in made],
        [*end.output],
        [x for one in graphs for x in one.initializer],
        sparse_initializer=[*middle.sparse_initializer],
    )
    opsets = [onnx.helper.make_opsetid("", version)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=first.ir_version)


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's operators that a model uses, at least ours."""
    return max([OPSET, *(x.version for x in model.opset_import if x.domain in ("", "ai.onnx"))])


def describe(parts: Parts) -> Plain:
    """The description of an adopted controller; its ranges were never recorded."""
    card, model = parts.card, parts.model
    inputs = []
    for name, width in card.readings.items():
        entry = {"name": name, "kind": "reading", "type": "float32", "shape": [width]}
        some = describe_joints if name in JOINTS else describe_sensor
        inputs.append(entry | some(model, name))
    ranges = card.values["command"]
    low, high = ([float(ranges[x][i]) for x in UNITS] for i in (0, 1))
    command = {"names": [*UNITS], "units": [*UNITS.values()], "trained": {"low": low, "high": high}}
    inputs.append({"name": COMMAND, "kind": COMMAND, "type": "float32", "shape": [3]} | command)
    memory = [describe_memory(key, x, "task") for key, x in parts.after.start.items()]
    source = card.values["source"]
    lineage = {
        "source": " ".join(source[x] for x in ("repository", "commit", "path") if x in source),
        "licence": source["licence"],
        "card": card.sha256,
        "network": source | {"sha256": parts.sha256},
        "reads_unmeasured": card.unmeasured,
    }
    about = card.values["name"], model, float(card.values["dt"])
    servos = Actuator(kind="position")
    return whole(*about, inputs, memory, servos, {"adopted": lineage})


# -- the check -------------------------------------------------------------------------------------


def write_checked(data: bytes, out: Path, parts: Parts) -> float:
    """Write the file's bytes if they do what card and network do; return the difference [rad]."""
    part = part_of(out)
    try:
        write_whole(part, data)
        with onnx_errors(out):
            error = difference(exported.open_onnx(part)[0], parts)
    except ValueError as wrong:
        raise ValueError(str(wrong).replace(str(part), str(out))) from None
    finally:
        part.unlink(missing_ok=True)
    if not error <= TOLERANCE:
        raise ValueError(f"{out} would differ from card and network by {error:.1e} rad")
    write_whole(out, data)
    return error


@torch.no_grad()
def difference(policy: Policy, parts: Parts) -> float:
    """Largest |file - parts| / max(1, |parts|) of a target [rad], over some random steps.

    Each step begins with what the file remembers, since a policy that answers its own last action
    strongly would enlarge the rounding of one step. ValueError if the memory differs by more than
    rounding, or the network gives a robot another action beside others than alone.
    """
    run = session(parts.net.model.SerializeToString()).run
    rng, worst = np.random.default_rng(0), 0.0
    policy.reset(ROBOTS)
    for t in range(STEPS):
        widths = policy.needs | {COMMAND: 3}
        seen = {k: rng.normal(0, 0.3, (ROBOTS, w)).astype(np.float32) for k, w in widths.items()}
        feed = seen | {MEMORY + k: x for k, x in policy.memory.items()}
        feed[RESTART] = np.full(ROBOTS, t == 0)
        rows = np.arange(LANES) % ROBOTS  # as many as the runtime runs: the rounding is the same
        expected = step({k: x[rows] for k, x in feed.items()}, parts, run)
        one = [t % ROBOTS]
        alone = step({k: x[one] for k, x in feed.items()}, parts, run)
        targets = policy.act(seen, seen[COMMAND])
        theirs = expected[TARGETS][:ROBOTS]
        error = np.abs(targets - theirs) / np.maximum(1, np.abs(theirs))
        worst = np.maximum(worst, error.max())  # keeps NaN
        for name, x in policy.memory.items():
            for ours, theirs in ((x, expected[name][:ROBOTS]), (x[one], alone[name])):
                if not np.allclose(ours, theirs, rtol=LOOSE, atol=LOOSE):
                    raise ValueError(f"the network does other things in a file: {name!r} differs")
    return float(worst)


def step(feed: dict[str, Array], parts: Parts, run: Callable[..., Any]) -> dict[str, Array]:
    """Observation, targets and next memory of a step of B robots, by card and network.

    Args:
        feed: readings, command, restart and memory, by the names of the file's inputs.
        run: of the network's session.
    """
    net, before, after = parts.net, parts.before, parts.after
    v = {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in feed.items()}
    v |= dict(zip(before.outputs, before(*(v[x] for x in before.inputs)), strict=True))
    inputs = {net.entry: v[OBSERVATION]} | {x: v[NETWORK + x] for x in net.memory}
    names = [net.exit, *(result for result, _ in net.memory.values())]
    results = run(names, {name: x.numpy() for name, x in inputs.items()})
    draft = [RESULT, *(f"{DRAFT}{NETWORK}{x}" for x in net.memory)]
    v |= {name: torch.from_numpy(np.asarray(x)) for name, x in zip(draft, results, strict=True)}
    _, _, *memory = after(*(v[x] for x in after.inputs))
    kept = {name: x.numpy() for name, x in zip(after.start, memory, strict=True)}
    return kept | {OBSERVATION: v[OBSERVATION].numpy()}
