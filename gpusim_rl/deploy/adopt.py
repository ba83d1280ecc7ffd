"""Policies that others trained, as files of ours: readings → their network → targets.

What a card says is traced by our own exporter, and the network lies in the middle as it is.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np
import onnx
import torch
from onnx import compose, version_converter

from gpusim_rl.core.files import Plain, part_of, read_whole, write_whole
from gpusim_rl.core.provenance import versions
from gpusim_rl.deploy import exported
from gpusim_rl.deploy.card import Card, read_card, schema
from gpusim_rl.deploy.card_controller import (
    NETWORK,
    OBSERVATION,
    RESULT,
    SOUND,
    STAGED,
    Action,
    Observation,
)
from gpusim_rl.deploy.controller import COMMAND, FAULT, MEMORY, NEXT, RESTART, TARGETS
from gpusim_rl.deploy.describe import FORMAT, describe_sensor, describe_targets
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
    """What an adopted file is made of."""

    card: Card
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
        script = zipfile.is_zipfile(network)
        model = None if script else exported.parse_onnx(read_whole(network, MAX_BYTES), network)
        notes = [x.key for x in model.metadata_props] if model else []
        raise ValueError(f"{network}: {lacks(notes, schema()['required'])}: docs/adopt.md")
    parts = load_parts(network, card_file, robot, trust)
    description = describe(parts) | {"lineage": lineage(parts.card, network)}
    about = {"adopted": json.dumps(adopted(parts.card, network))}
    data = finished(joined(parts), description, parts.mjcf, about)
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
    check_source(card, network)
    net = load_network(network, card, trust)
    driven = [model.joint(j).name for j in model.actuator_trnid[:, 0]]
    order = [driven.index(name) for name in card.joints]
    places = [model.joint(name).qposadr[0] for name in card.joints]
    pose = card.vector("pose") if "pose" in card.values else model.key_qpos[0][places]
    before = Observation(card, order, pose, {name: x for name, (_, x) in net.memory.items()})
    return Parts(card, mjcf, model, before, net, Action(before, order, pose))


def check_joints(card: Card, names: list[str]) -> None:
    """ValueError unless the card drives all joints that the robot's actuators drive."""
    if unknown := [x for x in card.joints if x not in names]:
        raise ValueError(f"no joint {unknown[0]!r} is driven: choose of {', '.join(names)}")
    if left := [x for x in names if x not in card.joints]:
        remedy = "remove their actuators and joints from a copy of the robot's file"
        what = f"the network drives {len(card.joints)} joints, not {', '.join(left)}"
        raise ValueError(f"{what}: {remedy}")


def check_source(card: Card, network: Path) -> None:
    """ValueError unless the network is the file that the card is of."""
    expected, actual = card.values["source"].get("sha256"), sha256(network)
    if expected and expected != actual:
        raise ValueError(f"{network} has SHA-256 {actual}, but the card is of {expected}")


def sha256(file: Path) -> str:
    return hashlib.sha256(read_whole(file, MAX_BYTES)).hexdigest()


# -- the network -----------------------------------------------------------------------------------


def load_network(path: Path, card: Card, trust: bool) -> Network:
    """The network of a file, opened for any number of robots; ValueError if it does not fit."""
    width = card.steps * card.step_width
    model = read_network(path, width, trust)
    exported.check_graph(model, path)
    version = opset(model)
    try:
        model = version_converter.convert_version(model, version)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path}: ONNX cannot convert it to opset {version}: {reason}") from None
    del model.graph.value_info[:]
    known = {x.name for x in model.graph.initializer}
    inputs = [x.name for x in model.graph.input if x.name not in known]
    outputs = [x.name for x in model.graph.output]
    notes = {x.key: x.value for x in model.metadata_props} if is_script(path) else {}
    pairs = {x: f"next.{x}" for x in notes.get("memory", "").split()}
    pairs = pairs or card.values.get("memory", {})
    if missing := [x for x in (*pairs, *pairs.values()) if x not in (*inputs, *outputs)]:
        raise ValueError(f"{path}: memory: the network has no {missing[0]!r}")
    entries = [x for x in inputs if x not in pairs]
    exits = [x for x in outputs if x not in pairs.values()]
    if len(entries) != 1 or not exits:
        what = f"inputs {', '.join(entries)}; outputs {', '.join(exits)}"
        raise ValueError(f"{path}: expected one observation and one action, not {what}")
    shapes = {x.name: x for x in (*model.graph.input, *model.graph.output)}
    for name in (entries[0], exits[0]):
        shapes[name].type.tensor_type.shape.dim[0].dim_param = "batch"
    memory = {x: (y, memory_start(path, model, x, y, not notes)) for x, y in pairs.items()}
    check_width(path, "sees", shapes[entries[0]], width, observed(card))
    check_width(path, "gives", shapes[exits[0]], len(card.joints), "one for each of joints")
    return Network(model, entries[0], exits[0], memory)


def memory_start(
    path: Path, model: onnx.ModelProto, entry: str, exit: str, turned: bool
) -> torch.Tensor:
    """(1, layers, width) zeros for what a network remembers, whose axes are turned in place."""
    if turned:
        turn(model.graph, entry, exit)
    (value,) = [x for x in model.graph.input if x.name == entry]
    sizes = [x.dim_value for x in value.type.tensor_type.shape.dim]
    if len(sizes) != 3 or not all(sizes[1:]):
        raise ValueError(f"{path}: memory {entry!r} is not (layers, 1, width)")
    return torch.zeros(1, *sizes[1:])


def turn(graph: onnx.GraphProto, entry: str, exit: str) -> None:
    """Give a memory (layers, 1, width) of a network the axes (B, layers, width), in place."""
    ends = {entry: f"{entry}.turned", exit: f"{exit}.turned"}
    for node in graph.node:
        node.input[:] = [ends.get(x, x) for x in node.input]
        node.output[:] = [ends.get(x, x) for x in node.output]
    make = onnx.helper.make_node
    graph.node.insert(0, make("Transpose", [entry], [ends[entry]], perm=[1, 0, 2]))
    graph.node.append(make("Transpose", [ends[exit]], [exit], perm=[1, 0, 2]))
    for value in (*graph.input, *graph.output):
        sizes = value.type.tensor_type.shape.dim
        if value.name in ends and len(sizes) == 3:
            layers = sizes[0].dim_value
            sizes[0].dim_param, sizes[1].dim_value = "batch", layers


def read_network(path: Path, width: int, trust: bool) -> onnx.ModelProto:
    """The ONNX model of a file; its numbers may lie in NAME.data beside it, and nowhere else.

    TorchScript is converted for an observation of this width, if it is trusted.
    """
    if is_script(path):
        if not trust:
            runs = "trust=true runs it once, without network and files: docs/security.md"
            raise ValueError(f"{path} is TorchScript, which is a program: {runs}")
        return exported.parse_onnx(convert(path, width), path)
    if zipfile.is_zipfile(path):
        remedy = "export the network as ONNX or TorchScript"
        raise ValueError(f"{path} is a checkpoint, whose pickles are never read: {remedy}")
    model = exported.parse_onnx(read_whole(path, MAX_BYTES), path)
    outside = [x for x in exported.tensors_of(model.graph) if x.data_location == x.EXTERNAL]
    if outside:
        beside = path.with_name(f"{path.name}.data")
        numbers = read_whole(beside, MAX_BYTES) if beside.is_file() else b""
        try:
            for tensor in outside:
                exported.fill(tensor, beside, numbers)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return model


def check_width(path: Path, verb: str, shape: onnx.ValueInfoProto, width: int, what: str) -> None:
    """ValueError unless the last axis of an input or output has this width."""
    sizes = [x.dim_value for x in shape.type.tensor_type.shape.dim]
    if len(sizes) != 2 or sizes[1] != width:
        found = sizes[1] if len(sizes) == 2 else f"shape {sizes}"
        raise ValueError(
            f"{path}: the network {verb} {found} numbers, the card says {width}: {what}"
        )


def observed(card: Card) -> str:
    """The widths of the terms in words: `5 steps of gyro 3, gravity 3`."""
    parts = ", ".join(f"{name} {card.width(name)}" for name, _ in card.terms)
    return f"{card.steps} steps of {parts}" if card.steps > 1 else parts


# -- the whole -------------------------------------------------------------------------------------


def traced(parts: Parts, version: int) -> list[onnx.ModelProto]:
    """What comes before and after the network, as ONNX whose inputs and outputs share names."""
    before, after = parts.before, parts.after
    widths = {name: (x,) for name, x in parts.card.readings.items()} | {COMMAND: (3,)}
    sample = {name: torch.zeros(2, *x) for name, x in widths.items()}
    sample |= {RESTART: torch.tensor([True, False]), SOUND: torch.tensor([True, False])}
    memory = {MEMORY + name: torch.cat([x, x]) for name, x in after.start.items()}
    # another tensor than the memory: torch would take both inputs for one
    staged = {x: memory[MEMORY + x.removeprefix(STAGED)].clone() for x in after.staged}
    sample |= memory | staged | {RESULT: torch.zeros(2, len(parts.card.joints))}
    results = [TARGETS, FAULT, *(NEXT + x for x in after.start)]
    first = to_onnx(before, {x: sample[x] for x in before.inputs}, before.outputs)
    second = to_onnx(after, {x: sample[x] for x in after.inputs}, results)
    return [version_converter.convert_version(x, version) for x in (first, second)]


def joined(parts: Parts) -> onnx.ModelProto:
    """One model of three: the network's ends get the names of its neighbours, all else a prefix."""
    net, version = parts.net, opset(parts.net.model)
    first, second = traced(parts, version)
    wires = {net.entry: OBSERVATION, net.exit: RESULT} | {x: NETWORK + x for x in net.memory}
    wires |= {result: f"{STAGED}{NETWORK}{name}" for name, (result, _) in net.memory.items()}
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
        "adopted",
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
    driven = describe_targets(model)
    inputs = []
    for name, width in card.readings.items():
        entry = {"name": name, "kind": "reading", "type": "float32", "shape": [width]}
        if name in JOINTS:
            unit = "rad" if name == "joint_pos" else "rad/s"
            entry |= {"units": [unit] * width, "joints": driven["joints"]}
        else:
            entry |= describe_sensor(model, name)
        inputs.append(entry)
    ranges = card.values["command"]
    low, high = ([float(ranges[x][i]) for x in UNITS] for i in (0, 1))
    command = {"names": [*UNITS], "units": [*UNITS.values()], "trained": {"low": low, "high": high}}
    entry = {"name": COMMAND, "kind": COMMAND, "type": "float32", "shape": [3]}
    return {
        **{"format": FORMAT, "kind": "controller", "task": card.values["name"]},
        "robot": model.names.split(b"\0", 1)[0].decode(),
        "dt": float(card.values["dt"]),
        "inputs": [
            *inputs,
            entry | command,
            {"name": RESTART, "kind": RESTART, "type": "bool", "shape": []},
        ],
        "memory": [
            {
                **{"name": name, "input": MEMORY + name, "output": NEXT + name},
                **{"type": str(x.dtype).removeprefix("torch."), "shape": list(x.shape[1:])},
                **{"start": x[0].tolist(), "of": "task"},
            }
            for name, x in parts.after.start.items()
        ],
        "outputs": [driven, {"name": FAULT, "type": "bool", "shape": []}],
        "actuator": Actuator(kind="position").description(),
    }


def adopted(card: Card, network: Path) -> Plain:
    """What the gate says of a file's origin: the metadata `adopted`."""
    source = card.values["source"]
    place = " ".join(source[x] for x in ("repository", "commit", "path") if x in source)
    about = {"source": place, "licence": source["licence"], "network": sha256(network)}
    return about | {"card": card.sha256, "reads_unmeasured": card.unmeasured}


def lineage(card: Card, network: Path) -> Plain:
    """Where a file comes from: the network's source and hash, and the whole card."""
    built = versions()
    source = card.values["source"] | {"sha256": sha256(network)}
    about = {"network": source, "card": card.values, "card_sha256": card.sha256}
    return {"adopted": about, "commit": built["commit"], "versions": built}


# -- the check -------------------------------------------------------------------------------------


def write_checked(data: bytes, out: Path, parts: Parts) -> float:
    """Write the file's bytes if they do what card and network do; return the difference [rad]."""
    part = part_of(out)
    try:
        write_whole(part, data)
        error = difference(Policy(part), parts)
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
    run, rng, worst = (
        session(parts.net.model.SerializeToString()).run,
        np.random.default_rng(0),
        0.0,
    )
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
    staged = [RESULT, *(f"{STAGED}{NETWORK}{x}" for x in net.memory)]
    v |= {name: torch.from_numpy(np.asarray(x)) for name, x in zip(staged, results, strict=True)}
    _, _, *memory = after(*(v[x] for x in after.inputs))
    kept = {name: x.numpy() for name, x in zip(after.start, memory, strict=True)}
    return kept | {OBSERVATION: v[OBSERVATION].numpy()}
