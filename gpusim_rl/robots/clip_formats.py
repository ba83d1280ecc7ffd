"""Clips in the files of others: CSV of GMR and LAFAN1, `.npz` of mjlab and holosoma.

The name of a file says which it is: `walk.csv`, `walk.mjlab.npz`, `walk.holosoma.npz`, and any
other `.npz` is ours. On reading, the arrays of a `.npz` say it.
"""

from collections.abc import Mapping
from pathlib import Path

import mujoco
import numpy as np

from gpusim_rl.core.files import read_text, write_whole
from gpusim_rl.robots.clips import (
    MAX_BYTES,
    Array,
    Clip,
    checked,
    clip_of,
    number_array,
    packed,
    read_arrays,
    require,
    write_clip,
)

ENDINGS = (".csv", ".npz")
DIGITS = 9  # of a number of a CSV file: enough for float32
BODIES = ("body_pos_w", "body_quat_w")


def read_any(path: Path, m: mujoco.MjModel, fps: float) -> Clip:
    """The clip of a file of ours or of others; ValueError or OSError in one line if it is none.

    Args:
        m: the robot, whose joints the numbers of a file without names are of, in this order.
        fps: frames in a second of a file that does not say it [Hz].
    """
    if path.suffix not in ENDINGS:
        choices = " or ".join(ENDINGS)
        raise ValueError(f"{path}: expected a file {choices}; one of Python's pickle is not opened")
    try:
        if path.suffix == ".csv":
            return of_csv(read_text(path, MAX_BYTES), joint_names(m), fps)
        return of_arrays(read_arrays(path), joint_names(m))
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def write_any(path: Path, clip: Clip, m: mujoco.MjModel) -> list[str]:
    """Write a clip as the name of the file says, and return what such a file has no place for.

    m: the robot, whose joints the clip has.
    """
    licence = [f"licence {clip.licence}"] if clip.licence else []
    if path.suffix == ".csv":
        write_whole(path, as_csv(positions(clip, m)).encode())
        return [f"rate of {clip.fps:g} Hz", *licence]
    if path.name.endswith((".mjlab.npz", ".holosoma.npz")):
        arrays = as_arrays(clip, m, whole=path.name.endswith(".holosoma.npz"))
        write_whole(path, packed(arrays))
        return licence
    write_clip(path, clip)
    return []


def joint_names(m: mujoco.MjModel) -> tuple[str, ...]:
    """The joints of a robot but its free one, in the order of qpos.

    ValueError unless the free one is the first, and all others have one number.
    """
    free = mujoco.mjtJoint.mjJNT_FREE
    names = tuple(m.joint(i).name for i in range(m.njnt) if m.jnt_type[i] != free)
    if not names or m.jnt_type[0] != free or m.nq != 7 + len(names):
        raise ValueError("the robot needs a free base as its first joint, and hinges or slides")
    return names


def positions(clip: Clip, m: mujoco.MjModel) -> Array:
    """(T, nq) the frames as positions of a model; ValueError if its joints are others."""
    names = joint_names(m)
    if {*names} != {*clip.joint_names}:
        odd = sorted({*names} ^ {*clip.joint_names})[0]
        who = "the clip" if odd in names else "the robot"
        raise ValueError(f"{who} has no joint {odd!r}: the robot has {', '.join(names)}")
    joints = clip.joint_pos[:, [clip.joint_names.index(name) for name in names]]
    return np.column_stack([clip.base_pos, clip.base_quat, joints])


def velocities(clip: Clip, m: mujoco.MjModel, qpos: Array) -> Array:
    """(T, nv) differences of the frames [1/s]; the last frame has those of the one before."""
    qvel = np.zeros((len(qpos), m.nv))
    for i in range(len(qpos) - 1):
        mujoco.mj_differentiatePos(m, qvel[i], 1 / clip.fps, qpos[i], qpos[i + 1])
    qvel[-1] = qvel[-2]
    return qvel


# -- CSV: place, quaternion (x, y, z, w) and joints of a frame in a line, without a header ---------


def of_csv(text: str, names: tuple[str, ...], fps: float) -> Clip:
    """The clip of a CSV text, whose joints have these names."""
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    width = 7 + len(names)
    for i, row in enumerate(rows, 1):
        if len(row) != width:
            raise ValueError(f"line {i} has {len(row)} numbers, expected {width}, 7 of the base")
    try:
        x = np.array(rows, dtype=np.float64).reshape(-1, width)
    except ValueError as error:
        raise ValueError(f"no numbers: {error}") from None
    return checked(Clip(fps, names, x[:, :3], x[:, [6, 3, 4, 5]], number_array("it", x[:, 7:])))


def as_csv(qpos: Array) -> str:
    """The CSV text of frames (T, 7 + n), as of `positions`."""
    rows = qpos[:, [0, 1, 2, 4, 5, 6, 3, *range(7, qpos.shape[1])]]
    return "".join(",".join(f"{x:.{DIGITS}g}" for x in row) + "\n" for row in rows)


# -- .npz of mjlab (joints alone) and of holosoma (the whole qpos, with names) ---------------------


def of_arrays(arrays: Mapping[str, Array], names: tuple[str, ...]) -> Clip:
    """The clip of the arrays of a `.npz` file, ours or of others."""
    if "base_pos" in arrays or "body_pos_w" not in arrays:
        return clip_of(arrays)
    require(arrays, ("fps", "joint_pos", *BODIES))
    if "joint_names" in arrays:
        qpos = np.atleast_2d(arrays["joint_pos"])
        parts = dict(base_pos=qpos[:, :3], base_quat=qpos[:, 3:7], joint_pos=qpos[:, 7:])
        return clip_of({"fps": arrays["fps"], "joint_names": arrays["joint_names"]} | parts)
    for name in BODIES:
        if (x := arrays[name]).ndim != 3 or not x.shape[1]:
            raise ValueError(f"{name} has shape {x.shape}, expected (frames, bodies, numbers)")
    place, turn = (arrays[name][:, 0] for name in BODIES)
    parts = dict(base_pos=place, base_quat=turn, joint_pos=arrays["joint_pos"])
    return clip_of({"fps": arrays["fps"], "joint_names": np.array(names)} | parts)


def as_arrays(clip: Clip, m: mujoco.MjModel, whole: bool) -> dict[str, Array]:
    """The arrays of mjlab, or with `whole` those of holosoma.

    The poses are of the model's bodies: of mjlab without the world, so the first one is the base.
    """
    d, qpos = mujoco.MjData(m), positions(clip, m)
    qvel = velocities(clip, m, qpos)
    first = 0 if whole else 1
    poses, turns, speeds = [], [], np.zeros((len(qpos), m.nbody, 6))
    for i, frame in enumerate(zip(qpos, qvel, strict=True)):
        d.qpos[:], d.qvel[:] = frame
        mujoco.mj_forward(m, d)
        poses.append(d.xpos[first:].copy())
        turns.append(d.xquat[first:].copy())
        for body in range(m.nbody):
            kind = mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(m, d, kind, body, speeds[i, body], 0)
    arrays = dict(fps=np.array([clip.fps]), body_pos_w=np.array(poses), body_quat_w=np.array(turns))
    arrays |= dict(body_ang_vel_w=speeds[:, first:, :3], body_lin_vel_w=speeds[:, first:, 3:])
    if not whole:
        return arrays | dict(joint_pos=qpos[:, 7:], joint_vel=qvel[:, 6:])
    bodies = np.array([m.body(i).name for i in range(m.nbody)])
    arrays |= dict(joint_names=np.array(joint_names(m)), body_names=bodies)
    return arrays | dict(joint_pos=qpos, joint_vel=qvel)
