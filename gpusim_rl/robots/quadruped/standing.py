"""Whether a prepared quadruped stands in its stance, and why not."""

import mujoco
import numpy as np

from gpusim_rl.robots.quadruped.kinematics import Legs


def stand(m: mujoco.MjModel, legs: Legs) -> tuple[float, str]:
    """(the height of the base [m] after two seconds in the stance, why it does not stand or "").

    A robot stands if it is still in the second of them, and upright and high at the end.
    """
    d, second = mujoco.MjData(m), round(1.0 / m.opt.timestep)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    start, least, squares = float(d.qpos[2]), 0.45 * float(legs.length.mean()), np.zeros(m.nv)
    mujoco.mj_step(m, d, second)
    for _ in range(second):
        mujoco.mj_step(m, d)
        squares += d.qvel**2 / second
    height, speed = float(d.qpos[2]), float(np.sqrt(squares).max())  # m; m/s, rad/s
    fault = ""
    if not np.isfinite(d.qpos).all():
        fault = "its simulation diverges: try a smaller robot.kp [N m/rad] or robot.kd"
    elif start <= least:
        fault = (
            f"the origin of its base is only {start:.3g} m above the ground: it must be in the "
            "trunk, by another robot.base or in the file"
        )
    elif not 1 - 2 * (d.qpos[4] ** 2 + d.qpos[5] ** 2) > 0.97:  # z of the base's z axis
        fault = "it falls over: try another robot.stance [rad] or robot.kp [N m/rad]"
    elif height <= least:
        fault = (
            f"its base sinks from {start:.3g} to {height:.3g} m: try a larger robot.kp [N m/rad] "
            "or robot.torque [N m]"
        )
    elif not speed < 0.5:
        fault = (
            f"it keeps moving, with {speed:.2g} m/s or rad/s: try another robot.kd "
            "[N m s/rad] or robot.armature [kg m²]"
        )
    return height, fault
