"""The physics that a policy learns on, where it may be coarser than the model's own."""

import copy
from typing import Any

import mujoco

from gpusim_rl.envs.randomization.entries import active_entries
from gpusim_rl.sim.actuator_spec import Actuator

LONGEST_EPISODE_STEPS = 10**6  # control steps of an episode
PREFIX = "mjINT_"
INTEGRATOR = {
    name.removeprefix(PREFIX).lower(): int(kind)
    for name, kind in mujoco.mjtIntegrator.__members__.items()
}
FRICTION = int(mujoco.mjtDisableBit.mjDSBL_FRICTIONLOSS)


# Why: docs/decisions/physics.md
def coarse(
    mjm: mujoco.MjModel,
    actuator: Actuator,
    randomise: dict[str, Any],
    *,
    timestep: float | None,
    integrator: str | None = None,
    joint_friction: bool,
) -> mujoco.MjModel:
    """A model with another timestep [s] or integrator, perhaps without dry friction of joints.

    It is mjm itself where nothing differs.

    Actuators whose torque is computed anew at each timestep keep the model's timestep. Dry friction
    that is randomised, or that the actuators have, stays.
    """
    model = copy.copy(mjm)
    if timestep is not None and actuator.kind == "position":
        model.opt.timestep = timestep
    if integrator is not None:
        model.opt.integrator = INTEGRATOR[integrator]
    needed = actuator.friction is not None or "joint_friction" in active_entries(randomise)
    if not (joint_friction or needed):
        model.opt.disableflags |= FRICTION
    return model if description(mjm, model) else mjm


def description(exact: mujoco.MjModel, stepped: mujoco.MjModel) -> str:
    """How the physics differs, in a few words; empty if it does not."""
    parts = []
    if stepped.opt.timestep != exact.opt.timestep:
        actual, nominal = (f"{1e3 * m.opt.timestep:g} ms" for m in (stepped, exact))
        parts.append(f"timesteps of {actual}, not {nominal}")
    if stepped.opt.integrator != exact.opt.integrator:
        actual, nominal = (mujoco.mjtIntegrator(m.opt.integrator).name for m in (stepped, exact))
        parts.append(f"{actual.removeprefix(PREFIX)}, not {nominal.removeprefix(PREFIX)}")
    if stepped.opt.disableflags != exact.opt.disableflags:
        parts.append("no dry joint friction")
    return f"physics while learning: {', and '.join(parts)}" if parts else ""


def check_times(dt: float, episode: float, exact: mujoco.MjModel, stepped: mujoco.MjModel) -> None:
    """ValueError unless a control period dt [s] is whole timesteps, and an episode [s] has steps.

    Args:
        exact, stepped: the task's own model, and the one that training steps.
    """
    for model, what in ((exact, "the model's timestep"), (stepped, "task.training.timestep")):
        timestep = model.opt.timestep
        steps = dt / timestep
        # 1e-6: dt and timestep are decimal numbers, which binary ones round
        if not 0.5 < steps < 1000 or abs(steps - round(steps)) > 1e-6:
            expected = f"is not a whole number, from 1 to 1000, of {what} {timestep} s"
            remedy = "" if model is exact else "; task.training=exact has the model's own"
            raise ValueError(f"task.dt={dt} s {expected}{remedy}")
    if not 0.5 < episode / dt <= LONGEST_EPISODE_STEPS:
        expected = f"expected 1 to {LONGEST_EPISODE_STEPS} control steps of {dt} s"
        raise ValueError(f"task.episode={episode} s: {expected}")
