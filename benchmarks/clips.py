"""The clips of task=imitate, made by inverse kinematics.

    python -m benchmarks.clips [folder=tasks/assets]
    python -m benchmarks.clips humanoid=g1 folder=.

`trot.npz` has 8 s: the quadruped stands, trots at 0.6 m/s, turns at 0.8 rad/s on the spot, sits,
and stands. `hop.npz` has 4 s with two hops, of which each is a third of a second in the air.

With `humanoid=`, a name of `conf/robot` or a file, `squat.npz` has 8 s of this robot: it squats
while its arms rise, and then makes a step with each foot, slowly enough to stand at any time.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from benchmarks import program
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.robot_size import load_section
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.robots.clips import Clip, write_clip
from gpusim_rl.robots.humanoid.topology import SIDES
from gpusim_rl.robots.load import Loaded
from gpusim_rl.robots.models import find_mjcf
from gpusim_rl.robots.prepare import added_name

FPS, HEIGHT, RADIUS = 50, 0.28, 0.022  # Hz; m of the trunk that stands; m of a foot
GAIT, LIFT = 2.0, 0.06  # Hz; m: of a trotting foot
FEET, LATENESS = ("FL", "FR", "RL", "RR"), (0.0, 0.5, 0.5, 0.0)  # turns of the gait
GRAVITY = 9.81  # m/s²
LICENCE = "CC0-1.0"  # made by this program, of nobody's motion
Array = np.ndarray


class Plan(NamedTuple):
    """Where the trunk and the feet are at T moments, in the world."""

    place: Array  # (T, 3) of the trunk [m]
    yaw: Array  # (T,) [rad]
    pitch: Array  # (T,) [rad]
    feet: Array  # (T, 4, 3) their centers [m]


def smooth(t: Array, begin: float, end: float) -> Array:
    """0 before begin, 1 after end, and a cubic between them, whose speed is continuous."""
    x = np.clip((t - begin) / (end - begin), 0, 1)
    return x * x * (3 - 2 * x)


def turned(yaw: float, pitch: float = 0.0) -> Array:
    """(3, 3) the rotation about z by yaw after that about y by pitch [rad]."""
    c, s, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    about_z = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])
    return about_z @ np.array([[cp, 0, sp], [0, 1.0, 0], [-sp, 0, cp]])


def trot(home: Array) -> Plan:
    """Stand, trot, turn, sit and stand in 8 s. home (4, 3): feet below a trunk that stands."""
    t = np.arange(8 * FPS + 1) / FPS
    speed = 0.6 * (smooth(t, 0.5, 1.0) - smooth(t, 3.5, 4.0))  # m/s
    rate = 0.8 * (smooth(t, 3.5, 4.0) - smooth(t, 5.5, 6.0))  # rad/s
    sits = smooth(t, 6.2, 6.8) - smooth(t, 7.3, 7.9)
    yaw = np.cumsum(rate) / FPS
    way = np.cumsum(speed[:, None] * np.stack([np.cos(yaw), np.sin(yaw)], 1), 0) / FPS
    place = np.column_stack([way, HEIGHT - 0.05 * sits])
    steps = (speed > 1e-3) | (rate > 1e-3)
    feet = np.stack([steps_of(foot, t, place, yaw, steps, home) for foot in range(4)], 1)
    return Plan(place, yaw, -0.45 * sits, feet)


def steps_of(foot: int, t: Array, place: Array, yaw: Array, steps: Array, home: Array) -> Array:
    """(T, 3) a foot that stands still, and swings to where it is due half a stance later.

    steps (T,) bool: where the gait's clock lifts feet.
    """
    due = np.stack([[*p[:2], 0] + turned(a) @ home[foot] for p, a in zip(place, yaw, strict=True)])
    out, frames, last = due.copy(), round(0.5 / GAIT * FPS), len(t) - 1
    at, i = due[0], 0
    while i <= last:
        out[i] = at
        phase = (t[i] * GAIT + LATENESS[foot]) % 1.0
        if steps[min(i + 1, last)] and phase < GAIT / FPS:
            goal = due[min(i + frames + frames // 2, last)]
            share = np.arange(1, min(frames, last - i) + 1)[:, None] / frames
            up = [0, 0, LIFT] * np.sin(np.pi * share) ** 2
            out[i + 1 : i + 1 + len(share)] = at + smooth(share, 0, 1) * (goal - at) + up
            at, i = goal, i + frames
        i += 1
    return out


def hop(home: Array) -> Plan:
    """Two hops on the spot in 4 s. home (4, 3): feet below a trunk that stands."""
    t = np.arange(4 * FPS + 1) / FPS
    rise = rise_of_hop(t, 0.4) + rise_of_hop(t, 2.2)
    zero = 0 * t
    feet = np.repeat(home[None], len(t), 0)
    feet[..., 2] += np.maximum(rise - 0.02, 0)[:, None]
    return Plan(np.stack([zero, zero, HEIGHT + rise], 1), zero, zero, feet)


def rise_of_hop(t: Array, begin: float) -> Array:
    """(T,) how far a trunk that hops at a time [s] is above where it stands [m]."""
    low, top, speed = -0.11, 0.02, 1.6  # m; m: where the feet leave the ground; m/s
    push, fly = 2 * (top - low) / speed, 2 * speed / GRAVITY  # s: of a constant acceleration
    bent, leave, land, down, end = begin + np.cumsum([0.3, push, fly, push, 0.3])
    bend = 0.5 * speed / push  # m/s²: half of the acceleration
    return np.select(
        [t < bent, t < leave, t < land, t < down],
        [
            low * smooth(t, begin, bent),
            low + bend * (t - bent) ** 2,
            top + speed * (t - leave) - 0.5 * GRAVITY * (t - leave) ** 2,
            low + bend * (down - t) ** 2,
        ],
        low * (1 - smooth(t, down, end)),
    )


def follow(plan: Plan, m: mujoco.MjModel) -> tuple[Clip, float]:
    """The clip of a plan by damped least squares, leg by leg; how far a foot is off at most [m]."""
    d, jacobian = mujoco.MjData(m), np.zeros((3, m.nv))
    sites, worst, poses = [m.site(foot).id for foot in FEET], 0.0, []
    low, high = m.jnt_range[1:].T
    joints = m.key_qpos[0, 7:].copy()
    for place, yaw, pitch, goals in zip(*plan, strict=True):
        d.qpos[:3] = place
        mujoco.mju_mat2Quat(d.qpos[3:7], turned(yaw, pitch).ravel())
        for _ in range(30):
            d.qpos[7:] = joints
            mujoco.mj_kinematics(m, d)
            mujoco.mj_comPos(m, d)
            for foot, site in enumerate(sites):
                mujoco.mj_jacSite(m, d, jacobian, None, site)
                leg = slice(3 * foot, 3 * foot + 3)
                part, error = jacobian[:, 6:][:, leg], goals[foot] - d.site_xpos[site]
                joints[leg] += np.linalg.solve(part.T @ part + 1e-6 * np.eye(3), part.T @ error)
            joints = np.clip(joints, low + 0.02, high - 0.02)
        worst = max(worst, np.abs(d.site_xpos[sites] - goals).max())
        poses.append(np.concatenate([d.qpos[:7], joints]))
    names, qpos = tuple(m.joint(i).name for i in range(1, m.njnt)), np.array(poses)
    return Clip(FPS, names, qpos[:, :3], qpos[:, 3:7], qpos[:, 7:], LICENCE), worst


# -- a humanoid's, of its whole body ---------------------------------------------------------------

STRIDE, RAISE = 0.12, 0.05  # m: of a foot
ABOVE = 0.85  # of the way from the middle to a sole: where the mass is above one foot
DEPTH, REACH = 0.15, 0.08  # lengths of a leg: how low a squat is, and a base above a step
ARMS = {"shoulder_pitch": -0.9, "elbow": 0.4, "waist_pitch": 0.2}  # rad: how a squat moves them


class Balance(NamedTuple):
    """Where the soles and the center of mass of a humanoid are due at T moments, in the world."""

    soles: Array  # (T, 2, 3) their centers, left and right [m]
    mass: Array  # (T, 2) [m]
    height: Array  # (T,) of the base [m]
    bend: Array  # (T,) how far it squats: 0 stands, 1 is the lowest


def squat(home: Array, height: float, leg: float) -> Balance:
    """Squat, and make a step with the right and the left foot, in 8 s.

    home (2, 3): soles below a humanoid that stands; height of its base, length of a leg [m].
    """
    t = np.arange(8 * FPS + 1) / FPS
    bend = smooth(t, 0.2, 1.2) - smooth(t, 1.3, 2.3)
    soles = np.repeat(home[None], len(t), 0)
    for foot, begin, end in ((1, 3.3, 4.1), (0, 5.6, 6.4)):
        soles[:, foot, 0] += STRIDE * smooth(t, begin, end)
        soles[:, foot, 2] += RAISE * np.sin(np.pi * np.clip((t - begin) / (end - begin), 0, 1)) ** 2
    middle = soles.mean(1)
    moves = (2.3, 3.3), (4.1, 5.6), (6.4, 7.4)  # s: slow, or the feet would not hold it
    left, right, end = (smooth(t, *move)[:, None] for move in moves)
    over = ABOVE * (left - right) - ABOVE * (right - end)  # 1 is above the left sole, -1 the right
    mass = middle + over * (soles[:, 0] - soles[:, 1]) / 2
    low = DEPTH * bend + REACH * (smooth(t, 2.3, 3.3) - smooth(t, 6.4, 7.4))
    return Balance(soles, mass[:, :2], height - leg * low, bend)


def follow_soles(plan: Balance, loaded: Loaded) -> tuple[Clip, float]:
    """The clip of a plan by damped least squares; how far a sole or the mass is off at most [m]."""
    m, shape = loaded.mjm, loaded.shape
    d, full = mujoco.MjData(m), np.zeros((6, m.nv))
    sites = [m.site(added_name(side)).id for side in SIDES]
    base, half = m.body(shape.base).id, len(loaded.robot.joints[0])
    names = [m.joint(int(j)).name for j in m.actuator_trnid[:, 0]]
    columns = np.array([m.joint(name).qposadr[0] for name in names])
    dofs = np.array([m.joint(name).dofadr[0] for name in names])
    swings = np.array([sum(x for part, x in ARMS.items() if part in name) for name in names])
    d.qpos[:], worst, poses = m.key_qpos[0], 0.0, []
    rest = d.qpos[columns].copy()
    for soles, mass, height, bend in zip(*plan, strict=True):
        d.qpos[2], d.qpos[columns[2 * half :]] = height, (rest + bend * swings)[2 * half :]
        for _ in range(40):
            mujoco.mj_kinematics(m, d)
            mujoco.mj_comPos(m, d)
            d.qpos[:2] += mass - d.subtree_com[base, :2]
            mujoco.mj_kinematics(m, d)
            mujoco.mj_comPos(m, d)
            for side, site in enumerate(sites):
                mujoco.mj_jacSite(m, d, full[:3], full[3:], site)
                leg = slice(side * half, side * half + half)
                part, turn = full[:, dofs[leg]], np.zeros(3)
                quat = np.zeros(4)
                mujoco.mju_mat2Quat(quat, d.site_xmat[site])
                mujoco.mju_quat2Vel(turn, quat * [1, -1, -1, -1], 1.0)
                error = np.append(soles[side] - d.site_xpos[site], turn)
                square = part.T @ part + 1e-8 * np.eye(half)
                d.qpos[columns[leg]] += np.linalg.solve(square, part.T @ error).clip(-0.2, 0.2)
        mujoco.mj_kinematics(m, d)
        mujoco.mj_comPos(m, d)
        off = np.append(d.site_xpos[sites] - soles, d.subtree_com[base, :2] - mass)
        worst = max(worst, np.abs(off).max())
        poses.append(d.qpos.copy())
    qpos = np.array(poses)
    parts = qpos[:, :3], qpos[:, 3:7], qpos[:, columns]
    return Clip(FPS, tuple(names), *parts, LICENCE), worst


def write_squat(name: str, folder: Path) -> None:
    """Write the clip of a humanoid of `conf/robot`, or of a file."""
    words = [f"robot={name}" if "." not in name else f"robot.mjcf={name}"]
    robot = compose_plain("config", ["task=imitate", *words])["robot"]
    loaded = load_section(robot, "whole")
    m, d = loaded.mjm, mujoco.MjData(loaded.mjm)
    mujoco.mj_resetDataKeyframe(m, d, 0)
    mujoco.mj_kinematics(m, d)
    home = np.array([d.site(added_name(side)).xpos for side in SIDES])
    clip, worst = follow_soles(squat(home, d.qpos[2], loaded.shape.size), loaded)
    write_clip(folder / "squat.npz", clip)
    print(f"squat.npz: {len(clip.joint_pos)} frames, soles off by {1000 * worst:.2f} mm")


def main(words: list[str]) -> None:
    """Write each clip into folder=, and print how well the feet follow."""
    keys = program.read_keys(__doc__, words, folder=str(ASSETS), humanoid="")
    folder = Path(keys.folder)
    if keys.humanoid:
        return write_squat(keys.humanoid, folder)
    m = mujoco.MjModel.from_xml_path(str(find_mjcf("quadruped.xml")))
    d = mujoco.MjData(m)
    d.qpos[:] = m.key_qpos[0]
    mujoco.mj_kinematics(m, d)
    home = np.array([d.site(foot).xpos for foot in FEET])
    home[:, 2] = RADIUS
    for make in (trot, hop):
        clip, worst = follow(make(home), m)
        file = folder / f"{make.__name__}.npz"
        write_clip(file, clip)
        print(f"{file.name}: {len(clip.joint_pos)} frames, feet off by {1000 * worst:.2f} mm")


if __name__ == "__main__":
    main(sys.argv[1:])
