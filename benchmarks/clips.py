"""The clips of task=imitate, made by inverse kinematics.

    python -m benchmarks.clips [folder=tasks/assets]

`trot.npz` has 8 s: the quadruped stands, trots at 0.6 m/s, turns at 0.8 rad/s on the spot, sits,
and stands. `hop.npz` has 4 s with two hops, of which each is a third of a second in the air.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from benchmarks import program
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.robots.clips import Clip, write_clip
from gpusim_rl.robots.models import find_mjcf

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


def main(words: list[str]) -> None:
    """Write each clip into folder=, and print how well the feet follow."""
    folder = Path(program.read_keys(__doc__, words, folder=str(ASSETS)).folder)
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
