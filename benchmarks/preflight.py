"""Which faults of a robot preflight finds, and which honest robots it refuses.

    python -m benchmarks.preflight policy.onnx [honest=200] [noise=[1.0,0.1,0.0]] [drawn=true]

The robot is MuJoCo C, with the noise of readings that training has, times `noise`. Each fault is
made at each joint, leg or axis where it can be, and a miss is a robot that preflight takes. With
`drawn` each of them is a robot that training draws, and not the file's own one. Exits with 1 if
a dead encoder or a `joint_vel` of another sign is missed, or if more than 1 % of the honest robots
are refused. Robots that tip over as they stand are counted alone: they are no longer honest ones.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import program
from benchmarks.sabotage import DEGREES, Robot, changed, late, mirrored, swapped_legs
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.onboard.preflight import preflight
from gpusim_rl.deploy.runtime import Policy
from tests.simulated_robot import NOISE, Simulated

ALLOWED = 0.01  # share of honest robots that may be refused
PAIRS = {"FL": (1, 0, 2, 3), "side": (2, 1, 0, 3), "diagonal": (3, 1, 2, 0)}
Wire = Callable[[Simulated], Robot]


class Outcome(NamedTuple):
    """What preflight said of a robot."""

    message: str  # empty if it took the robot
    tipped: bool
    seconds: float


def honest(sim: Simulated) -> Robot:
    """A robot without a fault."""
    return sim.read, sim.send


def scaled(name: str, factor: float, place: int | None = None) -> Wire:
    """One number of a reading, or all of them, times a factor."""
    return changed(**{name: lambda x: np.where(at(x, place), factor * x, x)})


def shifted(name: str, by: float, place: int) -> Wire:
    """One number of a reading with an offset."""
    return changed(**{name: lambda x: x + by * at(x, place)})


def swapped(name: str, first: int, second: int) -> Wire:
    """Two numbers of a reading in each other's place."""

    def swap(x: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[[first, second]] = x[[second, first]]
        return x

    return changed(**{name: swap})


def frozen(name: str, place: int | None = None) -> Wire:
    """One number of a reading, or all of them, as at first."""

    def wire(sim: Simulated) -> Robot:
        first = sim.read()[name]
        return changed(**{name: lambda x: np.where(at(x, place), first, x)})(sim)

    return wire


def at(x: np.ndarray, place: int | None) -> np.ndarray:
    """Which numbers of a reading are of this place; all if it is None."""
    return np.ones(len(x), bool) if place is None else np.arange(len(x)) == place


def limp(joint: int, share: float) -> Wire:
    """A joint whose motor gives a share of its torque."""

    def wire(sim: Simulated) -> Robot:
        sim.kp[joint] *= share
        sim.model.actuator_biasprm[joint, 2] *= share
        return sim.read, sim.send

    return wire


def faults(policy: Policy) -> dict[str, list[Wire]]:
    """Faults by name, each at every place where it can be."""
    joints, axes = range(len(policy.joints)), range(3)

    def each(make: Callable[..., Wire], *words: Any, places: Iterable[int] = joints) -> list[Wire]:
        return [make(*words, i) for i in places]

    return {
        "a dead encoder": each(frozen, "joint_pos"),
        "an encoder of half its scale": each(scaled, "joint_pos", 0.5),
        "an encoder that is 0.1 rad off": each(shifted, "joint_pos", 0.1),
        "an encoder of another sign": each(scaled, "joint_pos", -1.0),
        "motor and encoder of another sign": [mirrored(i) for i in joints],
        "`joint_vel` of another sign, one joint": each(scaled, "joint_vel", -1.0),
        "`joint_vel` of another sign, all joints": [scaled("joint_vel", -1.0)],
        "`joint_vel` 0, one joint": each(scaled, "joint_vel", 0.0),
        "`joint_vel` 0, all joints": [scaled("joint_vel", 0.0)],
        "`joint_vel` × 0.5, all joints": [scaled("joint_vel", 0.5)],
        "`joint_vel` × 2, all joints": [scaled("joint_vel", 2.0)],
        "`joint_vel` in degrees, all joints": [scaled("joint_vel", DEGREES)],
        "two joints of a leg swapped in `joint_pos`": [
            swapped("joint_pos", i, i + 1) for i in joints if i % 3 < 2
        ],
        "two joints of a leg swapped in `joint_vel`": [
            swapped("joint_vel", i, i + 1) for i in joints if i % 3 < 2
        ],
        "two legs swapped": [swapped_legs(*legs) for legs in PAIRS.values()],
        "a motor without torque": [limp(i, 0.0) for i in joints],
        "a motor with half its torque": [limp(i, 0.5) for i in joints],
        "an axis of the gyro of another sign": each(scaled, "gyro", -1.0, places=axes),
        "an axis of the gyro that is 0": each(scaled, "gyro", 0.0, places=axes),
        "`gyro` × 0.5": [scaled("gyro", 0.5)],
        "`up` of another sign, one axis": each(scaled, "up", -1.0, places=axes),
        "a frozen `up`": [frozen("up")],
        "readings 3 steps late": [lambda sim: late(sim, 3)],
        "readings 5 steps late": [late],
    }


def check(path: Path, wire: Wire, noise: float, seed: int, drawn: bool) -> Outcome:
    """Let preflight judge a robot."""
    sim = Simulated(Policy(path))
    if drawn:
        sim.draw(seed)
    sim.rng = np.random.default_rng(seed)
    sim.noise = {name: noise * x for name, x in NOISE.items()}
    read, send = wire(sim)
    message = ""
    try:
        preflight(Guard(sim.policy, clock=sim.clock, say=str), read, send, int)
    except ValueError as error:
        message = str(error)
    return Outcome(message, sim.lowest < 0.96, sim.clock())


def judge_honest(path: Path, noise: float, count: int, drawn: bool) -> bool:
    """Whether enough honest robots are taken; prints how many are not."""
    outcomes = [check(path, honest, noise, seed, drawn) for seed in range(count)]
    refused = [x for x in outcomes if x.message and not x.tipped]
    tipped, seconds = sum(x.tipped for x in outcomes), np.mean([x.seconds for x in outcomes])
    print(
        f"noise {noise:g}: {len(refused)} of {count} honest robots refused, {tipped} tip over, "
        f"{seconds:.0f} s on average",
        flush=True,
    )
    for outcome in refused:
        print(f"  {outcome.message}")
    return len(refused) <= ALLOWED * count


def main(words: list[str]) -> None:
    """Judge honest robots, then faulty ones."""
    keys = dict(honest=200, noise=[1.0, 0.1, 0.0], drawn=False)
    own, files = program.split_words(__doc__, words, **keys)
    onnx = program.one_file(files, "policy.onnx")
    good = [judge_honest(onnx, noise, own.honest, own.drawn) for noise in own.noise]
    heads = " | ".join(f"missed with noise × {noise:g}" for noise in own.noise)
    print(f"| fault | {heads} |\n|---|{'---|' * len(own.noise)}")
    for name, wires in faults(Policy(onnx)).items():
        missed = [
            sum(not check(onnx, x, noise, seed, own.drawn).message for seed, x in enumerate(wires))
            for noise in own.noise
        ]
        print(f"| {name} | {' | '.join(f'{x} of {len(wires)}' for x in missed)} |", flush=True)
        if name == "a dead encoder" or name.startswith("`joint_vel` of another sign"):
            good.append(not any(missed))
    sys.exit(not all(good))


if __name__ == "__main__":
    main(sys.argv[1:])
