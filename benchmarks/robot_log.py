"""What the log of a robot costs, what `kill -9` leaves of it, and what its twins tell.

    python -m benchmarks.robot_log cost [seconds=60]
    python -m benchmarks.robot_log kill [times=10]
    python -m benchmarks.robot_log twin [robots=20] [drawn=false]

The robot is the demo's in MuJoCo, with training's noise of readings. `cost` prints the processor
time of `Log` in a step, which may be 100 µs, beside that of the guard; physics run between two
steps, as no robot has them. `kill` ends a program in its loop at drawn moments: less than a second
may be lost. `twin` lets robots walk for 20 s under commands that change, each with and without a
load of 20 % of its mass, and prints their distances. With drawn=true they are robots as training
draws them. Of the others, 95 % of the pairs must be told apart by the usual alarm. Exits with 1 if
a limit is missed.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mcap.reader import make_reader

from benchmarks import program
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.core.waiting import print_now
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.onboard.log import Log, read
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.identify.twin import ALARM, TwinResult, twins_of
from tests.simulated_robot import NOISE, Simulated

LOAD, HOLD = 0.2, 3.0  # share of the robot's mass; [s] that a command lasts
ALLOWED, LOST = 100.0, 1.0  # µs of the processor in a step; [s] of a killed program
LOOP = """
import sys, time
from benchmarks.robot_log import walk
walk(sys.argv[1], 600.0, 0, pace=True)
"""


def walk(
    path: str | Path, seconds: float, seed: int, *, load=0.0, drawn=False, pace=False, record=None
) -> str:
    """Let a robot walk and write its log; returns why it stopped, empty if it did not.

    Args:
        load: on its base, as a share of its mass.
        drawn: whether it is one that training draws.
        pace: whether it walks in real time, and prints the time of each step.
        record: gets the log, and returns what gets the steps.
    """
    sim = Simulated(Policy(DEMO), NOISE)
    if drawn:
        sim.draw(seed)
    m, rng = sim.model, np.random.default_rng(seed)
    sim.rng = np.random.default_rng(seed + 1000)
    m.body_mass[1] += load * m.body_subtreemass[0]
    mujoco.mj_setConst(m, sim.data)
    mujoco.mj_resetDataKeyframe(m, sim.data, 0)
    mujoco.mj_forward(m, sim.data)
    log = Log(path, sim.policy)
    about: Any = sim.policy.command
    ends = np.array(about["trained"]["low"]), np.array(about["trained"]["high"])
    guard = Guard(sim.policy, clock=sim.clock, say=str, record=record(log) if record else log)
    change, command = 0.0, np.zeros(3)
    while sim.data.time < seconds and guard.phase != "off":
        if sim.data.time >= change:
            change, command = change + HOLD, rng.uniform(*ends)
        targets = guard.act(sim.read(), command)
        if pace:
            print_now(f"{sim.data.time:.2f}")
            time.sleep(sim.policy.dt)
        sim.send(targets, guard.gain)
    log.close()
    return guard.why


def cost(folder: Path, seconds: float) -> bool:
    """Whether a step of the log takes what it may."""
    spent, guards = [], []

    def timed(log: Log) -> Any:
        def record(step: dict[str, Any]) -> None:
            begin = time.thread_time_ns()
            log(step)
            spent.append((time.thread_time_ns() - begin) / 1e3)

        return record

    act = Guard.act

    def timed_act(*args: Any) -> Any:
        begin = time.thread_time_ns()
        targets = act(*args)
        guards.append((time.thread_time_ns() - begin) / 1e3)
        return targets

    Guard.act = timed_act  # pyright: ignore
    walk(path := folder / "cost.mcap", seconds, 0, record=timed)
    Guard.act = act
    with open(path, "rb") as file:
        count = sum(1 for _ in make_reader(file).iter_messages())
    x, whole = np.array(spent), np.array(guards)
    ends = f"median {np.median(x):.0f}, 99 % {np.percentile(x, 99):.0f}, largest {x.max():.0f}"
    print(f"log: {x.mean():.0f} us of the processor a step ({ends}), {count} steps read by mcap")
    print(f"guard with the log: {whole.mean():.0f} us; {path.stat().st_size / seconds:.0f} bytes/s")
    return x.mean() <= ALLOWED and count == len(x)


def kill(folder: Path, times: int) -> bool:
    """Whether programs that are killed lose less than a second of their log."""
    rng, worst = np.random.default_rng(0), 0.0
    for i in range(times):
        path, end = folder / f"{i}.mcap", rng.uniform(2, 6)
        words = [sys.executable, "-c", LOOP, str(path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                if float(line) > end:
                    process.kill()
                    break
            lines = [line, *process.stdout]
        last = float([x for x in lines if x.endswith("\n")][-1])
        log = read(path)
        worst = max(worst, last - log.time[-1])
        print_now(f"killed at {last:.2f} s: read to {log.time[-1]:.2f} s, whole={log.whole}")
    print(f"at most {worst:.2f} s lost in {times} kills")
    return worst < LOST


def twin(folder: Path, robots: int, drawn: bool) -> bool:
    """Whether robots are told from the same ones with a load."""
    distances: dict[float, list[float]] = {0.0: [], LOAD: []}
    apart = 0
    for seed in range(robots):
        pair = []
        for load, row in distances.items():
            path = folder / f"{seed}-{load}.mcap"
            why = walk(path, 20.0, seed, load=load, drawn=drawn)
            result, _ = twins_of(read(path), DEMO)
            assert isinstance(result, TwinResult), why
            pair.append(result.distance)
            row.append(result.distance)
            print_now(f"{seed} load {load:.0%}: {result.by_name} {why}")
        apart += pair[0] < ALARM < pair[1]
        print_now(f"{seed}: {pair[0]:.2f} and {pair[1]:.2f}")
    for load, x in distances.items():
        print(f"load {load:.0%}: {min(x):.2f} to {max(x):.2f}, median {np.median(x):.2f}")
    print(f"{apart} of {robots} pairs are on both sides of the alarm, {ALARM:g}")
    return drawn or apart >= 0.95 * robots


def main(words: list[str]) -> None:
    """Those that are named, or all three."""
    keys = dict(seconds=60.0, times=10, robots=20, drawn=False)
    own, names = program.split_words(__doc__, words, **keys)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {"cost": lambda: cost(folder, own.seconds), "kill": lambda: kill(folder, own.times)}
        parts["twin"] = lambda: twin(folder, own.robots, own.drawn)
        passed = [parts[name]() for name in program.choose(names, parts)]
    raise SystemExit(not all(passed))


if __name__ == "__main__":
    main(sys.argv[1:])
