"""What a clip says of itself on a robot: speeds, limits, what is below the ground."""

from collections.abc import Iterator

import mujoco
import numpy as np

from gpusim_rl.robots.clip_formats import joint_names, positions, velocities
from gpusim_rl.robots.clips import Array, Clip, within

GROUND = "gpusim_rl/clip_ground"
HIGHEST = 10.0  # m: of what is looked for above the ground
DEEPEST = 0.01  # m: below the ground of what only touches it
RESTS = 0.1  # rad/s: of a clip that stands still at its end


def describe(clip: Clip, spec: mujoco.MjSpec) -> Iterator[str]:
    """Lines on a clip of a robot's file; ValueError if its joints are not the robot's.

    What needs a look begins with `warning: `.
    """
    spec = spec.copy()
    size = [HIGHEST, HIGHEST, 1.0]
    spec.worldbody.add_geom(name=GROUND, type=mujoco.mjtGeom.mjGEOM_PLANE, size=size)
    m = spec.compile()
    qpos, names = positions(clip, m), joint_names(m)
    count, frames = len(names), len(qpos)
    licence = clip.licence or "no licence is said"
    yield f"{frames} frames at {clip.fps:g} Hz, {clip.seconds:.2f} s, {count} joints; {licence}"
    qvel = velocities(clip, m, qpos)
    speeds = np.abs(qvel[:, 6:])
    i, joint = np.unravel_index(speeds.argmax(), speeds.shape)
    yield f"fastest joint: {names[joint]}, {speeds[i, joint]:.1f} rad/s at {i / clip.fps:.2f} s"
    way, spin = (np.linalg.norm(x, axis=1).max() for x in (qvel[:, :3], qvel[:, 3:6]))
    low, high = clip.base_pos[:, 2].min(), clip.base_pos[:, 2].max()
    yield f"base: up to {way:.2f} m/s and {spin:.2f} rad/s, {low:.3f} to {high:.3f} m high"
    for name in names:
        x, (least, most) = qpos[:, m.joint(name).qposadr[0]], m.joint(name).range
        if m.joint(name).limited[0] and not within(x, least, most):
            found = f"{x.min():.3f} to {x.max():.3f} rad"
            yield f"warning: {name} is at {found}, its limits are {least:.3f} to {most:.3f}"
    if lowest := heights_of(m, qpos):
        height, part, i = min((*x, i) for i, x in enumerate(lowest))
        line = f"lowest point: {1000 * height:.0f} mm at {i / clip.fps:.2f} s, of {part}"
        yield f"warning: {line}" if height < -DEEPEST else line
    else:
        yield "warning: nothing of the robot collides"
    if (last := speeds[-1].max()) > RESTS:
        yield f"warning: it ends at {last:.1f} rad/s, where its last frame is held"


def heights_of(m: mujoco.MjModel, qpos: Array) -> list[tuple[float, str]]:
    """Height of the lowest point of what collides [m], and the name of its geom or body, of each
    frame (T, nq); empty if nothing collides."""
    d, ground = mujoco.MjData(m), m.geom(GROUND).id
    solid = (m.geom_contype > 0) | (m.geom_conaffinity > 0)
    geoms = np.flatnonzero(solid & (m.geom_bodyid > 0))
    lowest: list[tuple[float, str]] = []
    for frame in qpos if len(geoms) else ():
        d.qpos[:] = frame
        mujoco.mj_kinematics(m, d)
        each = [mujoco.mj_geomDistance(m, d, ground, int(g), HIGHEST, None) for g in geoms]
        geom = int(geoms[int(np.argmin(each))])
        lowest.append((min(each), m.geom(geom).name or m.body(int(m.geom_bodyid[geom])).name))
    return lowest
