"""A simulated robot with numbers of its own: its logs of hanging and of walking."""

from pathlib import Path

import numpy as np
import torch

from gpusim_rl.deploy.onboard.log import Log
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.gate.scenarios import Plan
from gpusim_rl.gate.settings import usual_settings
from gpusim_rl.gate.worlds import late_sim
from gpusim_rl.identify import hang, walk
from gpusim_rl.sim.native import Native

Array = np.ndarray
HOLD = 3  # s that a command is held
SHARES = (0.5, 1.0, 0.0, -0.5)  # of the first number's range; those of others come in between


def draw(seed: int) -> dict[str, float]:
    """The numbers of a robot, by quantity, uniform in `walk.DRAWS`. Its damping is the model's."""
    rng = np.random.default_rng(seed)
    return {name: float(rng.uniform(*ends)) for name, ends in walk.DRAWS.items()}


def hanging_motion(
    policy: Policy, numbers: dict[str, float], seconds: float, seed: int
) -> hang.Motion:
    """What a robot measures that hangs and is excited, with noise of its readings."""
    pose = np.array(policy.outputs["safe_pose"], float)
    targets = hang.excitation(pose, policy.dt, seconds, seed=seed)
    angles, speeds, time = 0 * targets, 0 * targets, np.arange(len(targets)) * policy.dt
    motion = hang.Motion(policy.mjcf, time, angles, speeds, targets)
    hung = hang.HangingModel(motion)
    model = hung.scaled_model(hang.GUESS | numbers)
    sim = late_sim(Native(model, 1, threads=1), model, np.array([numbers["delay"]]))
    qpos = sim.qpos.clone()
    qpos[0, hung.places] = torch.from_numpy(pose)
    sim.reset(torch.ones(1, dtype=torch.bool), qpos, torch.zeros_like(sim.qvel))
    for t, target in enumerate(targets):
        angles[t], speeds[t] = sim.qpos[0].numpy()[hung.places], sim.qvel[0].numpy()[hung.dofs]
        sim.ctrl[0] = torch.from_numpy(target)
        sim.step(round(policy.dt / model.opt.timestep))
    rng = np.random.default_rng([seed, 1])
    for name, x in {"angles": angles, "speeds": speeds}.items():
        x += hang.NOISE[name] * rng.normal(size=x.shape)
    return motion


def write_hanging(
    path: Path, policy: Policy, numbers: dict[str, float], seconds: float, seed: int
) -> None:
    """The log of `hanging_motion`."""
    motion, log = hanging_motion(policy, numbers, seconds, seed), Log(path, policy)
    for t, time in enumerate(motion.time):
        readings = {"joint_pos": motion.angles[t], "joint_vel": motion.speeds[t]}
        log(step(time, readings, None, motion.targets[t]))
    log.close()


def write_walking(
    path: Path, policy: Policy, numbers: dict[str, float], seconds: float, seed: int
) -> bool:
    """The log of a robot that walks, and whether it stood to the end."""
    command, ranges = commands(policy, seconds), {name: (x, x) for name, x in numbers.items()}
    _, stood, rows = walk.walks(policy, command, ranges, 1, seed)
    log, targets = Log(path, policy), rows.pop("targets")
    for t, velocities in enumerate(command):
        readings = {name: x[t, 0] for name, x in rows.items()}
        log(step(t * policy.dt, readings, velocities, targets[t, 0]))
    log.close()
    return bool(stood[0])


def step(
    time: float, readings: dict[str, Array], command: Array | None, targets: Array
) -> dict[str, object]:
    """A control step as a log takes it."""
    facts = {"gain": 1.0, "phase": "run", "restart": bool(time == 0), "faults": []}
    arrays = {"readings": readings, "command": command, "targets": targets}
    return {"time": time, "age": 0.0} | arrays | facts


def commands(policy: Policy, seconds: float) -> Array:
    """(T, n) commands of a test on the floor: each number of the command, and to stand."""
    plan = Plan(make_robot(policy), "normal", 1, 1, usual_settings(), 0)
    axes = np.eye(plan.width)
    shares = [x * axes[0] for x in SHARES]
    shares[2:2] = [0.8 * axis for axis in axes[1:]]
    rows = plan.commands(np.stack(shares))
    steps = np.arange(round(seconds / policy.dt))
    return rows[(steps * policy.dt // HOLD).astype(int) % len(rows)]
