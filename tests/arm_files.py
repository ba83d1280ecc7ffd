"""Small arms with German names, and inverse kinematics by MuJoCo's own Jacobian."""

import mujoco
import numpy as np

FINGER = """
<body name="{name}" pos="0 {y} 0.06"><joint name="{name}_weg" type="slide" axis="0 {way} 0"
range="{span}"/><geom type="box" size="0.005 0.005 0.02" pos="0 0 0.02" mass="0.05"/></body>"""
FINGERS = FINGER.format(name="links", y=0.03, way=1, span="0.01 0.03") + FINGER.format(
    name="rechts", y=-0.03, way=-1, span="0 0.03"
)
COUPLED = '<equality><joint joint1="links_weg" joint2="rechts_weg"/></equality>'


def mjcf(
    *,
    base: str = "",
    elbow: str = 'range="-2.5 2.5"',
    wrist: str = 'axis="0 1 0" range="-2 2"',
    hand: str = "",
    fingers: str = FINGERS,
    world: str = "",
    more: str = COUPLED,
) -> str:
    """A 6 kg arm of six hinges, 0.3 m and 0.3 m long, with two fingers."""
    return f"""
<mujoco model="greifer"><compiler angle="radian" autolimits="true"/>
<worldbody>{world}<body name="sockel">{base}
<geom type="cylinder" size="0.06 0.03" pos="0 0 0.03" mass="2"/>
<body name="schulter" pos="0 0 0.15"><joint name="drehen" axis="0 0 1" range="-2.8 2.8"/>
<geom type="sphere" size="0.05" mass="1"/>
<body name="oberarm"><joint name="heben" axis="0 1 0" range="-1.5 2"/>
<geom type="capsule" size="0.03" fromto="0 0 0.08 0 0 0.25" mass="2"/>
<body name="unterarm" pos="0 0 0.3"><joint name="beugen" axis="0 1 0" {elbow}/>
<geom type="capsule" size="0.025" fromto="0 0 0.06 0 0 0.22" mass="1"/>
<body name="rolle" pos="0 0 0.25"><joint name="rollen" axis="0 0 1" range="-2.8 2.8"/>
<geom type="sphere" size="0.03" mass="0.3"/>
<body name="neige" pos="0 0 0.05"><joint name="neigen" {wrist}/>
<geom type="sphere" size="0.025" mass="0.2"/>
<body name="hand" pos="0 0 0.05"><joint name="drillen" axis="0 0 1" range="-2.8 2.8"/>
<geom type="box" size="0.02 0.05 0.02" pos="0 0 0.04" mass="0.3"/>{hand}{fingers}
</body></body></body></body></body></body></body></worldbody>{more}</mujoco>"""


def solving_error(
    m: mujoco.MjModel,
    site: str,
    limits: tuple[np.ndarray, np.ndarray],
    starts: np.ndarray,
    goal: np.ndarray,
    quat: np.ndarray | None,
    lever: float,
) -> float:
    """The least error [m, and lever m/rad] of inverse kinematics from starts (S, n), within limits.

    The goal (3,) is a place of the site [m], and quat (4,) its rotation, or None for any.
    """
    d, best, jacobian = mujoco.MjData(m), np.inf, np.zeros((6, m.nv))
    rows, place = slice(0, 3 if quat is None else 6), d.site(site)
    scale = np.array([1, 1, 1, lever, lever, lever])[rows]
    for start in starts:
        d.qpos[:] = start
        for _ in range(100):
            mujoco.mj_kinematics(m, d)
            mujoco.mj_comPos(m, d)
            mujoco.mj_jacSite(m, d, jacobian[:3], jacobian[3:], place.id)
            error = np.concatenate([goal - place.xpos, np.zeros(3)])
            if quat is not None:
                turn = np.zeros(4)
                mujoco.mju_mat2Quat(turn, place.xmat)
                mujoco.mju_negQuat(turn, turn)
                mujoco.mju_mulQuat(turn, quat, turn.copy())
                mujoco.mju_quat2Vel(error[3:], turn, 1)
            a, e = scale[:, None] * jacobian[rows], scale * error[rows]
            best = min(best, float(np.linalg.norm(e)))
            if best < 1e-3:
                return best
            step = a.T @ np.linalg.solve(a @ a.T + 1e-6 * np.eye(len(e)), e)
            d.qpos[:] = np.clip(d.qpos + step.clip(-0.3, 0.3), *limits)
    return best
