"""The rows of a robot's physics as numbers that a model learns, whatever its place and heading."""

# mujoco has no types:
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownParameterType=false

from typing import Any

import mujoco
import torch
from torch import Tensor
from torch.nn import functional as F

from gpusim_rl.core.maths import (
    conjugate,
    from_axis_angle,
    log,
    product,
    rotate,
    squared,
    unrotate,
    yaw_frame,
)
from gpusim_rl.core.states import Rows
from gpusim_rl.sim.data_sensors import sensor_types

FREE, HINGE, SLIDE = (
    int(getattr(mujoco.mjtJoint, f"mjJNT_{x}")) for x in "FREE HINGE SLIDE".split()
)
# sensors of the world's frame, unless they name another: places, and vectors that turn with it
PLACES = sensor_types("FRAMEPOS", "SUBTREECOM")
VECTORS = sensor_types(
    *("FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS", "FRAMELINVEL", "FRAMEANGVEL"),
    *("FRAMELINACC", "FRAMEANGACC", "SUBTREELINVEL", "SUBTREEANGMOM"),
)
QUATERNIONS = sensor_types("FRAMEQUAT")
BASE = {"qpos.place": 3, "qpos.turn": 3, "qvel.linear": 3, "qvel.angular": 3}  # readings → widths


class Physics:
    """Rows `qpos`, `qvel`, `sensordata` (n, …) ↔ numbers of a robot with or without a free base.

    Numbers of a base are those of its level frame: at its place, turned by its heading alone.
    ValueError for a model with other joints than a free base, hinges and slides.

    Attributes:
        readings: what the columns of a change are of: qpos, qvel, and each type of sensor, → width.
    """

    def __init__(self, m: Any, device: torch.device):
        kinds: list[int] = m.jnt_type.tolist()
        self.free = bool(kinds) and kinds[0] == FREE
        joints = range(self.free, m.njnt)
        if other := [m.jnt(j).name for j in joints if kinds[j] not in (HINGE, SLIDE)]:
            raise ValueError(
                f"algo=dream learns a free base, hinges and slides: the joint {other[0]!r} is none"
            )
        # columns of qpos and qvel that belong to the base
        self.of_pos, self.of_vel = (7, 6) if self.free else (0, 0)
        hinges = [kinds[j] == HINGE for j in joints]
        limited = [not x or bool(m.jnt_limited[j]) for j, x in zip(joints, hinges, strict=True)]
        which = (torch.tensor(x, dtype=torch.bool).nonzero()[:, 0] for x in (hinges, limited))
        self.hinges, self.limited = (x.to(device) for x in which)
        self.readings = {**BASE} if self.free else {}
        self.readings |= {"qpos.joints": len(joints), "qvel.joints": len(joints)}
        at: dict[str, list[int]] = {"places": [], "vectors": [], "quaternions": []}
        columns: dict[str, list[int]] = {}
        for i in range(m.nsensor):
            kind, first = int(m.sensor_type[i]), int(m.sensor_adr[i])
            width = int(m.sensor_dim[i])
            name = mujoco.mjtSensor(kind).name.removeprefix("mjSENS_").lower()
            columns.setdefault(name, []).extend(range(first, first + width))
            of_world = int(m.sensor_reftype[i]) == int(mujoco.mjtObj.mjOBJ_UNKNOWN)
            types = zip(at.values(), (PLACES, VECTORS, QUATERNIONS), strict=True)
            for group in (x for x, kinds in types if of_world and self.free and kind in kinds):
                group.append(first)
        self.readings |= {name: len(x) for name, x in columns.items()}
        self.readings = {name: width for name, width in self.readings.items() if width}
        self.order = torch.tensor([i for x in columns.values() for i in x], device=device).long()
        self.back = self.order.argsort()
        triples = torch.tensor([*at["places"], *at["vectors"]], device=device).long()
        self.triples = (triples[:, None] + torch.arange(3, device=device)).flatten()
        quads = torch.tensor(at["quaternions"], device=device).long()
        self.quads = (quads[:, None] + torch.arange(4, device=device)).flatten()
        # by which the base's place moves each triple
        self.moves = torch.zeros(len(triples), 3, device=device)
        self.moves[: len(at["places"]), :2] = 1.0
        self.up = torch.tensor([0.0, 0.0, 1.0], device=device)

    def level(self, rows: Rows, back: bool = False) -> Tensor:
        """(n, ns) `sensordata` in the level frame, or from there `back` to the world's."""
        sensors, qpos = rows["sensordata"], rows["qpos"]
        if len(self.triples):
            heading = yaw_frame(qpos[:, 3:7])[:, None].expand(-1, len(self.moves), -1)
            place = qpos[:, None, :3] * self.moves
            v = sensors.index_select(1, self.triples).view(len(sensors), -1, 3)
            v = rotate(heading, v) + place if back else unrotate(heading, v - place)
            sensors = sensors.index_copy(1, self.triples, v.flatten(1))
        if len(self.quads):
            q = sensors.index_select(1, self.quads).view(len(sensors), -1, 4)
            heading = yaw_frame(qpos[:, 3:7])[:, None].expand_as(q)
            q = product(heading if back else conjugate(heading), q)
            q = q if back else torch.where(q[..., :1] < 0, -q, q)
            sensors = sensors.index_copy(1, self.quads, q.flatten(1))
        return sensors

    def inputs(self, rows: Rows) -> Tensor:
        """(n, width) numbers of the rows of the physics and of `ctrl`."""
        qpos, qvel, parts = rows["qpos"], rows["qvel"], list[Tensor]()
        joints = qpos[:, self.of_pos :]
        if self.free:
            q = qpos[:, 3:7]
            parts += [qpos[:, 2:3], unrotate(q, self.up.expand(len(q), 3))]
            parts += [unrotate(q, qvel[:, :3]), qvel[:, 3:6]]
        angles = joints.index_select(1, self.hinges)
        parts += [joints.index_select(1, self.limited), angles.sin(), angles.cos()]
        return torch.cat([*parts, qvel[:, self.of_vel :], self.level(rows), rows["ctrl"]], 1)

    def change(self, before: Rows, after: Rows) -> Tensor:
        """(n, k) by how much the rows differ, in the order of `readings`; `moved` adds it."""
        parts = list[Tensor]()
        if self.free:
            (q, v), (q2, v2) = ((x["qpos"], x["qvel"]) for x in (before, after))
            heading, quat, quat2 = yaw_frame(q[:, 3:7]), q[:, 3:7], q2[:, 3:7]
            parts += [unrotate(heading, q2[:, :3] - q[:, :3]), log(product(conjugate(quat), quat2))]
            parts += [unrotate(quat2, v2[:, :3]) - unrotate(quat, v[:, :3]), v2[:, 3:6] - v[:, 3:6]]
        ends = (("qpos", self.of_pos), ("qvel", self.of_vel))
        parts += [after[x][:, first:] - before[x][:, first:] for x, first in ends]
        sensors = self.level(after) - self.level(before)
        return torch.cat([*parts, sensors.index_select(1, self.order)], 1)

    def moved(self, rows: Rows, change: Tensor) -> Rows:
        """`qpos`, `qvel` and `sensordata` of rows after a change (n, k)."""
        qpos, qvel = rows["qpos"], rows["qvel"]
        size = qpos.shape[1] - self.of_pos
        parts = change.split([*[3] * 4 * self.free, size, size, len(self.order)], 1)
        pos, vel = qpos[:, self.of_pos :] + parts[-3], qvel[:, self.of_vel :] + parts[-2]
        level = self.level(rows) + parts[-1].index_select(1, self.back)
        if not self.free:
            return {"qpos": pos, "qvel": vel, "sensordata": level}
        quat, turn = qpos[:, 3:7], parts[1]
        angle = (squared(turn) + 1e-12).sqrt()  # no turn has a gradient, too
        turned = product(quat, from_axis_angle(turn / angle[:, None], angle))
        quat2 = F.normalize(turned, dim=1)
        place = qpos[:, :3] + rotate(yaw_frame(quat), parts[0])
        linear = rotate(quat2, unrotate(quat, qvel[:, :3]) + parts[2])
        after = {"qpos": torch.cat([place, quat2, pos], 1), "sensordata": level}
        after["qvel"] = torch.cat([linear, qvel[:, 3:6] + parts[3], vel], 1)
        return after | {"sensordata": self.level(after, back=True)}
