"""Whether a prepared quadruped stands in its stance, and why not."""

import mujoco
import numpy as np

from gpusim_rl.robots.quadruped.kinematics import Legs

UPRIGHT = 0.97  # least z of the base's z axis
HIGH = 0.45  # least height of the base, in lengths of a leg
STILL = 0.5  # m/s, rad/s; root mean square of the fastest coordinate


def stand(m: mujoco.MjModel, legs: Legs) -> tuple[float, str]:
    """(the height of the base [m] after two seconds in the stance, why it does not stand or "").

    A robot stands if it is still in the second of them, and upright and high at the end.
    """
    d, second = mujoco.MjData(m), round(1.0 / m.opt.timestep)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    start, least = float(d.qpos[2]), HIGH * float(legs.length.mean())
    squares, first = np.zeros(m.nv), ""  # what happened first
    for step in range(2 * second):
        mujoco.mj_step(m, d)
        squares += d.qvel**2 / second if step >= second else 0
        tilted = not 1 - 2 * (d.qpos[4] ** 2 + d.qpos[5] ** 2) > UPRIGHT
        low = not d.qpos[2] > least
        first = first or ("sinks" if low else "tilts" if tilted else "")
    height, speed = float(d.qpos[2]), float(np.sqrt(squares).max())
    if not np.isfinite(d.qpos).all():
        return height, "its simulation diverges: try a smaller robot.kp or robot.kd"
    if start <= least:
        return height, (
            f"the origin of its base is only {start:.3g} m above the ground: try another "
            "robot.stance, or move the origin into the trunk in the file"
        )
    if (low or tilted) and first == "tilts":
        return height, "it falls over: try another robot.stance, robot.kp or robot.torque"
    if low or tilted:
        return height, (
            f"it sinks from {start:.3g} m: try a larger robot.torque [N m] or robot.kp [N m/rad]"
        )
    if speed > STILL:
        return height, f"it keeps moving, at {speed:.2g} m/s or rad/s: try another robot.kp and kd"
    return height, ""
