"""Twelve ways to misuse a controller, and what stops each of them before a fall.

    python -m benchmarks.sabotage policy.onnx

The robot is MuJoCo C. Each misuse goes through what docs/deploy.md describes: the runtime loads the
file, the guard is told task and robot, preflight moves the joints, and the guard drives the policy
for ten seconds at 0.5 m/s. The last column is the same without preflight. Exits with 1 if one is
not stopped by the layer and with the words of `misuses`, if the robot falls, or if the honest
policy is not driven to the end. The last variant is a miss that docs/deploy.md tells of.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from benchmarks import program
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.onboard.preflight import preflight
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.deploy.to_onnx import KEY, sealed
from tests.simulated_robot import Simulated

SECONDS = 10.0
FORWARD = [0.5, 0.0, 0.0]  # m/s, m/s, rad/s
SIDES = [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]  # left and right legs in each other's place
DEGREES = 180 / np.pi
Robot = tuple[Callable[[], Any], Callable[..., None]]


class Result(NamedTuple):
    """What became of a robot."""

    by: str  # file | guard | preflight | runtime; empty if nothing stopped it
    message: str
    fell: bool


class Misuse(NamedTuple):
    """What a user does wrong. Each field leaves the honest way as it is unless given."""

    wire: Callable[[Simulated], Robot] = lambda sim: (sim.read, sim.send)
    command: list[float] = FORWARD
    late: int = 0  # control steps
    file: Callable[[Path, Path], Path] = lambda path, folder: path
    robot: str | None = None  # that the program expects
    by: str = ""  # who stops it, with preflight; empty if nothing does
    says: str = ""  # words of the message
    missed: bool = False  # by preflight, as docs/deploy.md says; the robot may fall


# -- misuses of the robot's readings ---------------------------------------------------------------


def changed(**changes: Callable[[np.ndarray], Any]) -> Callable[[Simulated], Robot]:
    """Readings of these names go through a function."""

    def wire(sim: Simulated) -> Robot:
        def read() -> dict[str, Any]:
            return {k: changes.get(k, lambda x: x)(x) for k, x in sim.read().items()}

        return read, sim.send

    return wire


def swapped_legs(*legs: int) -> Callable[[Simulated], Robot]:
    """The driver has legs in this order, both in its readings and its targets."""
    order = np.concatenate([np.arange(3 * leg, 3 * leg + 3) for leg in legs])

    def wire(sim: Simulated) -> Robot:
        def read() -> dict[str, Any]:
            return {k: x[order] if len(x) == 12 else x for k, x in sim.read().items()}

        return read, lambda targets, gain=1.0: sim.send(targets[np.argsort(order)], gain)

    return wire


def mirrored(*joints: int) -> Callable[[Simulated], Robot]:
    """Motors that turn the other way, as do their encoders."""
    sign = np.where(np.isin(np.arange(12), joints), -1.0, 1.0)

    def wire(sim: Simulated) -> Robot:
        def read() -> dict[str, Any]:
            return {k: x * sign if len(x) == 12 else x for k, x in sim.read().items()}

        return read, lambda targets, gain=1.0: sim.send(targets * sign, gain)

    return wire


def nan_later(sim: Simulated) -> Robot:
    """A sensor fails after four seconds of walking."""
    end = 22.0 if sim.checked else 8.0

    def read() -> dict[str, Any]:
        values = sim.read()
        return values | {"gyro": values["gyro"] * (np.nan if sim.clock() > end else 1)}

    return read, sim.send


def missing(sim: Simulated) -> Robot:
    """A sensor is not there."""
    return lambda: {k: x for k, x in sim.read().items() if k != "gyro"}, sim.send


def late(sim: Simulated, steps: int = 5) -> Robot:
    """Readings wait in a queue, and nobody tells how old they are."""
    queue: list[Any] = []

    def read() -> Any:
        queue.append(sim.read())
        return queue[max(0, len(queue) - 1 - steps)]

    return read, sim.send


def twice_as_fast(sim: Simulated) -> Robot:
    """The loop runs at twice the rate."""
    sim.substeps //= 2
    return sim.read, sim.send


# -- misuses of files ------------------------------------------------------------------------------


def other_normalizer(path: Path, folder: Path) -> Path:
    """The file with another normalizer."""
    model = onnx.load(path)
    for x in model.graph.initializer:
        if "normalizer" in x.name:
            values = onnx.numpy_helper.to_array(x)
            x.CopyFrom(onnx.numpy_helper.from_array(values + 1, x.name))
    (folder / "mixed.onnx").write_bytes(model.SerializeToString())
    return folder / "mixed.onnx"


def of_another_task(path: Path, folder: Path) -> Path:
    """The file of another task."""
    model = onnx.load(path)
    notes = {x.key: x.value for x in model.metadata_props}
    about = json.dumps(json.loads(notes[KEY]) | {"task": "getup"})
    onnx.helper.set_model_props(model, notes | {KEY: about})
    (folder / "other.onnx").write_bytes(sealed(model))
    return folder / "other.onnx"


def misuses() -> dict[str, Misuse]:
    """What a user does wrong, by its name."""
    minus, degrees = (lambda x: -x), (lambda x: x * DEGREES)
    guard, check = "guard", "preflight"
    return {
        "none: the honest policy": Misuse(),
        "flipped gravity": Misuse(changed(up=minus), by=check, says="minus projected gravity"),
        "degrees": Misuse(
            changed(joint_pos=degrees, joint_vel=degrees), by=check, says="is it in degrees?"
        ),
        "swapped legs": Misuse(swapped_legs(1, 0, 3, 2), by=check, says="legs are swapped"),
        "one joint's sign": Misuse(mirrored(1), by=check, says="is its sign another?"),
        "another normalizer": Misuse(file=other_normalizer, by="file", says="SHA-256"),
        "a command of 3 m/s": Misuse(command=[3.0, 0.0, 0.0], by=guard, says="cut to 1"),
        "NaN": Misuse(nan_later, by=guard, says="gyro[0] is nan"),
        "late by 5 steps": Misuse(late, by=check, says="readings or targets are late"),
        "twice the rate": Misuse(twice_as_fast, by=check, says="the period is 0.01 s"),
        "a missing sensor": Misuse(missing, by=check, says="reading 'gyro' is missing"),
        "another robot": Misuse(robot="go1", by=guard, says="robot is 'quadruped', not 'go1'"),
        "another file": Misuse(file=of_another_task, by=guard, says="task is 'getup'"),
        # variants, beyond the twelve
        "gyro in degrees": Misuse(changed(gyro=degrees), by=check, says="gyro"),
        "gyro's sign": Misuse(changed(gyro=minus), by=check, says="are its signs or axes others?"),
        "sign of the gyro's y axis": Misuse(
            changed(gyro=lambda x: x * [1, -1, 1]), by=check, says="as up[0] tilts: are its signs"
        ),
        "one encoder's sign": Misuse(
            changed(joint_pos=lambda x: x * np.where(np.arange(12) == 0, -1, 1)),
            by=check,
            says="of what it should: its sign is another",
        ),
        "readings of swapped legs": Misuse(
            changed(joint_pos=lambda x: x[SIDES], joint_vel=lambda x: x[SIDES]),
            by=check,
            says="FL_thigh was moved, but joint_pos says that FR_thigh was",
        ),
        "front legs swapped": Misuse(swapped_legs(1, 0, 2, 3), by=check, says="legs are swapped"),
        "left legs swapped": Misuse(swapped_legs(2, 1, 0, 3), by=check, says=" was moved, but"),
        "no joint_vel": Misuse(
            changed(joint_vel=lambda x: 0 * x), by=check, says="the integral of its joint_vel is 0"
        ),
        "joint_vel of swapped legs": Misuse(
            changed(joint_vel=lambda x: x[SIDES]), by=check, says="another sign, order or unit"
        ),
        "joint_vel in half of its unit": Misuse(
            changed(joint_vel=lambda x: 0.5 * x), by=check, says="another sign, order or unit"
        ),
        "late by 5 steps, and said": Misuse(late, late=5, by=check, says="are late"),
        "sign of all abductions": Misuse(mirrored(0, 3, 6, 9), missed=True),
    }


def drive(path: Path, misuse: Misuse, check: bool, seconds: float = SECONDS) -> Result:
    """Do it, with or without preflight."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            policy = Policy(misuse.file(path, Path(folder)))
        except ValueError as error:
            return Result("file", str(error).replace(folder + "/", ""), False)
    sim, said = Simulated(policy), []
    sim.checked = check
    read, send = misuse.wire(sim)
    told: dict[str, Any] = dict(
        task="quadruped", robot=misuse.robot or "quadruped", clock=sim.clock, say=said.append
    )
    by = "guard"
    try:
        guard = Guard(policy, **told)  # pyright: ignore
        by = "preflight"
        if check:
            preflight(guard, read, send, int)
        by = "guard"
        end = sim.clock() + seconds
        while guard.phase != "off" and (sim.clock() < end or guard.phase == "stop"):
            send(guard.act(read(), misuse.command, misuse.late * policy.dt), guard.gain)
    except ValueError as error:
        return Result(by, str(error), sim.fell)
    cut = [line for line in said if line.startswith("command")]
    return Result("guard" if guard.why or cut else "", guard.why or "".join(cut), sim.fell)


def expected(result: Result, misuse: Misuse) -> bool:
    """Whether a misuse is stopped by whom it should be, with the right words, before a fall.

    Of one that is missed, whether preflight misses it.
    """
    if misuse.missed:
        return result.by in ("", "guard")
    return result.by == misuse.by and misuse.says in result.message and not result.fell


def main(words: list[str]) -> None:
    """Try each misuse with and without preflight."""
    _, files = program.split_words(__doc__, words)
    onnx = program.one_file(files, "policy.onnx")
    stopped = []
    print("| misuse | stopped by | message | fell | without preflight |\n|---|---|---|---|---|")
    for name, misuse in misuses().items():
        whole, alone = (drive(onnx, misuse, check) for check in (True, False))
        stopped.append(expected(whole, misuse))
        without = f"{alone.by or 'nothing'}, {'fell' if alone.fell else 'did not fall'}"
        print(f"| {name} | {whole.by or '-'} | {whole.message} | {whole.fell} | {without} |")
    print(f"{sum(stopped[1:13])} of 12 are stopped; honest: {stopped[0]}; variants: {stopped[13:]}")
    sys.exit(not all(stopped))


if __name__ == "__main__":
    main(sys.argv[1:])
