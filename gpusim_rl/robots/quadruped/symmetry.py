"""The mirror image of a quadruped: which joints swap sides, and with what sign."""

import mujoco
import numpy as np

from gpusim_rl.core.symmetry import Flip
from gpusim_rl.robots.bodies import Signs
from gpusim_rl.sim.actuator_spec import Actuator

# The joint on the other side, for each joint of the legs FL, FR, RL, RR.
SIDES = np.array([3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8])

# The largest distance of a foot from its mirror image, in lengths of a leg.
GUESS_TOLERANCE = 0.01  # for signs that are guessed
CHECK_TOLERANCE = 0.1  # for signs of the description
# The same for the center of mass, because batteries and cables lie where there is room.
MASS_TOLERANCE = 0.03


def leg_mirror(m: mujoco.MjModel, feet: tuple[str, ...], signs: Signs, actuator: Actuator) -> Flip:
    """How the joint positions of a quadruped look in a mirror, in the order of `ctrl`.

    feet and signs are those of `hinge_signs`. ValueError if the robot or its actuator is not even.
    """
    base = m.body(int(m.jnt_bodyid[0])).name
    for key in ("stall", "no_load", "friction"):
        if getattr(actuator, key) is not None:
            numbers = actuator.per_joint(key, 12)
            if not np.allclose(numbers, numbers[SIDES], rtol=0.02, atol=1e-3):
                raise ValueError(
                    f"algo.symmetry: robot.actuator.{key} differs between left and right: "
                    f"{[round(float(x), 3) for x in numbers]}"
                )
    return Flip(tuple(SIDES.tolist()), hinge_signs(m, base, feet, signs))


def hinge_signs(
    m: mujoco.MjModel, base: str, feet: tuple[str, ...], signs: Signs = ()
) -> tuple[float, ...]:
    """(12,) signs s of the joints in a mirrored pose, in the order of `ctrl`.

    If a pose differs from the stance by δ, its mirror image differs by s_i δ_SIDES[i]. The signs
    follow from the joints' axes, unless given: the x-z plane mirrors an axis a to (-a_x, a_y,
    -a_z). They are checked: feet, four geoms, and center of mass of mirrored poses must be mirror
    images.

    The model's first keyframe is the stance, and its actuators are three for each leg, in the order
    FL, FR, RL, RR. x of the base is forward, z up. ValueError if the robot is not its own mirror
    image.
    """
    if len(m.actuator_trnid) != 12:
        expected = "expected 12 actuators, three for each leg"
        raise ValueError(f"robot.mirror: {expected}; this model has {m.nu}")
    joints, d = m.actuator_trnid[:, 0], mujoco.MjData(m)
    stance = m.key_qpos[0][m.jnt_qposadr[joints]]
    points = feet_and_mass(m, d, base, feet, stance)
    length = float(np.linalg.norm(d.xanchor[joints[1::3]] - points[:4], axis=1).mean())  # hip, foot
    same_turn = (d.xaxis[joints][SIDES] * d.xaxis[joints] * [-1, 1, -1]).sum(1)
    tolerance = CHECK_TOLERANCE if signs else GUESS_TOLERANCE
    turns = np.array(signs) if signs else np.sign(same_turn) + 0.0
    limits = length * np.array([tolerance] * 4 + [max(tolerance, MASS_TOLERANCE)])
    # the largest distances of feet and center of mass from their images [m], in eight poses
    poses = 0.3 * np.random.default_rng(0).uniform(-1, 1, (8, 12))  # rad from the stance
    mirrored = [feet_and_mass(m, d, base, feet, stance + turns * x[SIDES]) for x in poses]
    images = np.array([points[[1, 0, 3, 2, 4]] * [1, -1, 1] for points in mirrored])
    places = [feet_and_mass(m, d, base, feet, stance + x) for x in poses]
    errors = np.linalg.norm(images - places, axis=2).max(0)
    if (turns != turns[SIDES]).any() or not (errors <= limits).all():
        worst = int((errors / limits).argmax())
        raise ValueError(
            f"robot.mirror: this robot is not its own mirror image: in mirrored poses its "
            f"{[*feet, 'center of mass'][worst]} is {1e3 * errors[worst]:.0f} mm from where it "
            f"should be, of {1e3 * limits[worst]:.0f} allowed"
        )
    check_servos(m, joints)
    return tuple(float(s) for s in turns)


def check_servos(m: mujoco.MjModel, joints: np.ndarray) -> None:
    """ValueError if the servos of left and right differ by more than 1 %."""
    servos = {
        "kp": m.actuator_gainprm[:, 0],
        "kd": m.actuator_biasprm[:, 2],
        "torque": m.actuator_forcerange[:, 1],
        "armature": m.dof_armature[m.jnt_dofadr[joints]],
    }
    for key, value in servos.items():
        if not np.allclose(value, value[SIDES], rtol=0.01):
            raise ValueError(
                f"robot.mirror: robot.{key} differs between left and right: {value.tolist()}"
            )


def feet_and_mass(
    m: mujoco.MjModel, d: mujoco.MjData, base: str, feet: tuple[str, ...], angles: np.ndarray
) -> np.ndarray:
    """(5, 3) the positions of the four feet and of the center of mass [m].

    angles: (12,) of the joints [rad]. The pose is written into d, the base upright at the origin.
    """
    d.qpos[:] = m.key_qpos[0]
    d.qpos[:7], d.qpos[m.jnt_qposadr[m.actuator_trnid[:, 0]]] = [0, 0, 0, 1, 0, 0, 0], angles
    mujoco.mj_kinematics(m, d)
    mujoco.mj_comPos(m, d)
    return np.array([*(d.geom(foot).xpos for foot in feet), d.subtree_com[m.body(base).id]])
