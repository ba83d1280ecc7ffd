"""Identification of robots that are drawn, and drift of their numbers.

    python -m benchmarks.identify intervals [robots=5] [first=0]
    python -m benchmarks.identify drift-by-walk [robots=20] [first=0]

`intervals` counts how many ranges hold the truth after 60 s of hanging and 20 s of walking; each
second robot has joints that differ by 5 %. `drift-by-walk` compares walks of 20 s with what
recipe=robot draws: of robots inside all of it, and of robots of which one number lies beyond it by
a third to once its width. Robots are logged by a loop of their own.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import mujoco
import numpy as np

from benchmarks import program
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.deploy.onboard.log import Log
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.identify import drift, hang, simulated, walk
from gpusim_rl.identify import main as identify
from gpusim_rl.identify.estimates import Estimate
from tests.simulated_robot import Simulated

SETTINGS: Any = compose_plain("play", ["mode=gate"])["gate"]
SPREAD = 0.05  # of the joints' factors
LOWEST = {"friction": 0.1, "payload": -0.5, "delay": 0.0, "kp": 0.5, "kd": 0.5}  # that may be drawn


class Robot(Simulated):
    """A simulated robot with numbers of its own, stepped by nothing that identification uses.

    Args:
        numbers: of `walk.DRAWS`; those that are missing are the model's.
        seed: of the errors of its readings, each up to a share of 0 to 1 of those of the gate.
        spread: standard deviation of what the joints' factors differ by.
    """

    def __init__(self, policy: Policy, numbers: dict[str, float], seed: int, spread: float = 0.0):
        super().__init__(policy)
        self.bias: dict[str, Any] = {}
        self.rng, timestep = np.random.default_rng([seed, 7]), self.model.opt.timestep
        self.late = timestep * np.ceil(numbers.get("delay", 0.0) / timestep)
        units = {
            x["name"]: x["units"][0]
            for x in policy.description["inputs"]
            if x["name"] in policy.needs
        }
        for kind, errors in {"noise": self.noise, "bias": self.bias}.items():
            share = self.rng.uniform(0, 1)
            errors |= {name: share * SETTINGS[kind][unit] for name, unit in units.items()}
        self.bias = {
            name: self.rng.uniform(-x, x, policy.needs[name]) for name, x in self.bias.items()
        }
        m, base = self.model, make_robot(policy).base
        if "friction" in numbers:
            m.geom_friction[:, 0] = numbers["friction"]
        m.body_mass[base] += numbers.get("payload", 0.0) * m.body_mass.sum()
        self.factors = scale_joints(m, numbers, self.rng, spread)
        mujoco.mj_setConst(m, mujoco.MjData(m))
        self.kp = m.actuator_gainprm[:, 0].copy()
        self.sent = [(-np.inf, np.array(policy.outputs["safe_pose"], float))]

    def read(self) -> dict[str, np.ndarray]:
        """The readings with their errors."""
        return {name: x + self.bias[name] for name, x in super().read().items()}

    def send(self, targets: np.ndarray, gain: float = 1.0) -> None:
        """Step the physics for one control period; each timestep has the newest target in time."""
        self.sent.append((self.data.time, targets))
        for _ in range(self.substeps):
            due = self.data.time - self.late + 1e-9
            while len(self.sent) > 1 and self.sent[1][0] <= due:
                del self.sent[0]
            self.data.ctrl[:] = self.sent[0][1]
            mujoco.mj_step(self.model, self.data)
        self.lowest = min(self.lowest, float(self.data.xmat[1].reshape(3, 3)[2, 2]))


def scale_joints(
    m: mujoco.MjModel, numbers: dict[str, float], rng: np.random.Generator, spread: float
) -> dict[str, float]:
    """Scale the joints of a model, each by its own factor about the number; returns their means."""
    means = {}
    for name in ("kp", "kd", "armature", "joint_friction"):
        factors = numbers.get(name, 1.0) * (1 + spread * rng.normal(size=m.nu))
        dofs = m.jnt_dofadr[m.actuator_trnid[:, 0]]
        if name == "kp":
            m.actuator_gainprm[:, 0] *= factors
            m.actuator_biasprm[:, 1] *= factors
        elif name == "kd":
            m.actuator_biasprm[:, 2] *= factors
        else:
            field = {"armature": m.dof_armature, "joint_friction": m.dof_frictionloss}[name]
            field[dofs] *= factors
        means[name] = float(factors.mean())
    return means


def write_walk(path: Path, policy: Policy, robot: Robot, seed: int) -> Path:
    """The log of a robot that walks for 20 s."""
    log, command = Log(path, policy), simulated.commands(policy, 20.0)
    policy.reset()
    for t, velocities in enumerate(command):
        if robot.fell:
            break
        readings = robot.read()
        targets = policy.act(dict(readings), velocities)
        log(simulated.step(t * policy.dt, readings, velocities, targets))
        robot.send(targets)
    log.close()
    if robot.fell:
        print(f"robot {seed} fell", flush=True)
    return path


def write_hang(path: Path, policy: Policy, robot: Robot, seconds: float, seed: int) -> Path:
    """The log of a robot whose base is held, with the joints of another."""
    m = hang.hung_model(policy.mjcf)
    for field in ("actuator_gainprm", "actuator_biasprm"):
        getattr(m, field)[:] = getattr(robot.model, field)
    first = robot.model.nv - m.nv
    for field in ("dof_armature", "dof_frictionloss"):
        getattr(m, field)[:] = getattr(robot.model, field)[first:]
    data, joints = mujoco.MjData(m), m.actuator_trnid[:, 0]
    places, dofs = m.jnt_qposadr[joints], m.jnt_dofadr[joints]
    targets = hang.excitation(robot.sent[0][1], policy.dt, seconds, seed=seed)
    data.qpos[places] = targets[0]
    log, sent = Log(path, policy), [(-np.inf, targets[0])]
    for t, row in enumerate(targets):
        angles = data.qpos[places] + robot.rng.normal(0, hang.NOISE["angles"], m.nu)
        speeds = data.qvel[dofs] + robot.rng.normal(0, hang.NOISE["speeds"], m.nu)
        readings = {"joint_pos": angles, "joint_vel": speeds}
        log(simulated.step(t * policy.dt, readings, None, row))
        sent.append((data.time, row))
        for _ in range(robot.substeps):
            while len(sent) > 1 and sent[1][0] <= data.time - robot.late + 1e-9:
                del sent[0]
            data.ctrl[:] = sent[0][1]
            mujoco.mj_step(m, data)
    log.close()
    return path


def intervals(seeds: range) -> None:
    """Hidden robots, every second one with joints that differ: do the intervals hold the truth?"""
    policy, folder = Policy(DEMO), Path(tempfile.mkdtemp())
    held, widths = list[bool](), dict[str, list[float]]()
    for seed in seeds:
        numbers, spread = simulated.draw(seed), SPREAD * (seed % 2)
        robot = Robot(policy, numbers, seed, spread)
        logs = [write_hang(folder / f"hang{seed}.mcap", policy, robot, 60.0, seed)]
        logs.append(write_walk(folder / f"walk{seed}.mcap", policy, robot, seed))
        if robot.fell:
            continue  # a fall tells little of what was before
        estimates = run_identify(*logs, out=folder / f"robot{seed}.yaml")[0]
        for name, truth in (numbers | robot.factors | {"delay": robot.late}).items():
            low, high = estimates[name].range
            held.append(low <= truth <= high)
            widths.setdefault(name, []).append((high - low) / 2)
            print(f"{seed} {spread:g} {name}: {truth:.4f}, {low:.4f} to {high:.4f}", held[-1])
    print(f"{sum(held)} of {len(held)} intervals hold the truth; mean half-widths:")
    print({name: round(float(np.mean(x)), 4) for name, x in widths.items()})


def drifting(seeds: range) -> None:
    """Robots inside of what recipe=robot draws, and as many of which one number has left it."""
    policy, folder = Policy(DEMO), Path(tempfile.mkdtemp())
    file = folder / "config.yaml"
    file.write_text(json.dumps(compose_plain("config", ["task=quadruped", "recipe=robot"])))
    trained = drift.trained_ranges(file, [*walk.QUANTITIES], make_robot(policy))
    told, alarms = 0, 0
    # the simulated robots of the first round are made once: all logs have the same commands
    with mock.patch.object(walk, "walks", first_round_once(walk.walks)):
        for seed in seeds:
            for changed in ("", walk.QUANTITIES[seed % len(walk.QUANTITIES)]):
                numbers = drawn_robot(trained, changed, seed)
                mine = 2 * seed + bool(changed)
                path = folder / f"walk{mine}.mcap"
                log = write_walk(path, policy, Robot(policy, numbers, mine), mine)
                _, said = run_identify(log, against=file)
                left = re.findall(r"^drift: (\w+)", said, re.M)
                told += changed in left
                alarms += bool(left) and not changed
                rounded = {name: round(x, 3) for name, x in numbers.items()}
                print(seed, changed or "inside", rounded, "told:", *left, flush=True)
    print(f"told {told} of {len(seeds)}, false alarms {alarms} of {len(seeds)}")


def drawn_robot(trained: dict[str, drift.Range], changed: str, seed: int) -> dict[str, float]:
    """Numbers from anywhere inside the ranges; one is beyond them by a third to once the width."""
    rng = np.random.default_rng([seed, 11])
    numbers = {name: float(rng.uniform(*ends)) for name, ends in trained.items()}
    while changed:
        low, high = trained[changed]
        beyond = (high - low) * rng.uniform(1 / 3, 1)
        numbers[changed] = float(low - beyond if rng.uniform() < 0.5 else high + beyond)
        if numbers[changed] >= LOWEST[changed]:
            break
    return numbers


def first_round_once(make: Callable[..., Any]) -> Callable[..., Any]:
    """`walk.walks`, which keeps what it makes for logs of each length."""
    made: dict[int, Any] = {}

    def walks(policy: Policy, command: np.ndarray, *about: Any) -> Any:
        if about[-1]:  # the seed of a later round
            return make(policy, command, *about)
        if len(command) not in made:
            made[len(command)] = make(policy, command, *about)
        return made[len(command)]

    return walks


def run_identify(*logs: Path, **values: Path) -> tuple[dict[str, Estimate], str]:
    """The estimates that the program prints, and all that it prints."""
    words = [*map(str, logs), f"policy={DEMO}", *(f"{key}={x}" for key, x in values.items())]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            identify.main(words)
        except SystemExit as end:
            if end.code not in (0, identify.DRIFT):
                print(f"{logs[-1]} is refused", file=sys.stderr)
    rows = re.findall(r"^(\w+) +(-?[\d.]+) +([\d.]+)   ", out.getvalue(), re.M)
    return {name: Estimate(float(x), float(margin)) for name, x, margin in rows}, out.getvalue()


def main(words: list[str]) -> None:
    """The part that is named."""
    own, names = program.split_words(__doc__, words, robots=0, first=0)
    parts = {"intervals": (intervals, 5), "drift-by-walk": (drifting, 20)}
    for name in program.choose(names, parts):
        part, robots = parts[name]
        part(range(own.first, own.first + (own.robots or robots)))


if __name__ == "__main__":
    main(sys.argv[1:])
