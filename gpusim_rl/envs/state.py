"""`State`: what a task reads of B worlds at one moment."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import mujoco
import numpy as np
import torch
from torch import Tensor

from gpusim_rl.robots.servos import driven_joints

ONE_DOF = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
# entry of a state and of `Task.start` → numbers of each mocap body; not of the task's memory
MOCAP = {"mocap_pos": 3, "mocap_quat": 4}
Derived = Mapping[str, Callable[["State"], Tensor]]


class JointColumns(NamedTuple):
    """Where the actuated joints are in `qpos` and `qvel`, in the order of ctrl."""

    qpos: slice | Tensor  # (nu,) int64; a slice if they are adjacent there
    qvel: slice | Tensor
    unjointed: str = ""  # an actuator that moves no joint; there are no columns then

    def put(self, qpos: Tensor, joint_pos: Tensor) -> Tensor:
        """qpos (n, nq) with the actuated joints at joint_pos (n, nu)."""
        if isinstance(self.qpos, slice):
            return qpos.slice_scatter(joint_pos, 1, self.qpos.start, self.qpos.stop)
        return qpos.index_copy(1, self.qpos, joint_pos)


def joint_columns(m: mujoco.MjModel, device: str) -> JointColumns:
    """The columns of a model's actuated joints: hinges and slides."""
    joints = driven_joints(m)
    for i, joint in enumerate(joints):
        if joint < 0 or m.jnt_type[joint] not in ONE_DOF:
            return JointColumns(slice(0), slice(0), m.actuator(i).name or f"number {i}")
    return JointColumns(
        adjacent(m.jnt_qposadr[joints], device), adjacent(m.jnt_dofadr[joints], device)
    )


def sensor_columns(m: mujoco.MjModel) -> dict[str, slice]:
    """Sensor of a model → its columns in `sensordata`."""
    ends = [int(a) + int(d) for a, d in zip(m.sensor_adr, m.sensor_dim, strict=True)]
    return {m.sensor(i).name: slice(int(m.sensor_adr[i]), end) for i, end in enumerate(ends)}


def adjacent(place: np.ndarray, device: str) -> slice | Tensor:
    """Columns as a slice if each follows the one before, else as int64."""
    # a slice is a view, and indices are a copy in each step
    first = int(place[0]) if len(place) else 0
    if np.array_equal(place, range(first, first + len(place))):
        return slice(first, first + len(place))
    return torch.tensor(place, dtype=torch.int64, device=device)


class State:
    """The values of B worlds at the moment at which it was made; a later step does not change them.

    Attributes, each a tensor of B rows, float32 unless it says otherwise:

    - `qpos`, `qvel`, `ctrl`: MuJoCo's, in its units;
    - `joint_pos`, `joint_vel` (B, nu): of the actuated joints, in the order of ctrl [rad, m];
    - `<sensor>`: each sensor of the model by its name, (B, width);
    - `mocap_pos` (B, m, 3) [m], `mocap_quat` (B, m, 4): of the model's m mocap bodies, if any;
    - `action` (B, n) of this control step, and `previous` of the one before;
    - `time` (B,) int64: control steps since the restart;
    - each entry of the task's memory, and each that `Task.derived` computes, by its name.

    A name that is none of these raises ValueError, with the names that there are.

    Args:
        tensors: these by name, and `sensordata` (B, ns); they are kept, not copied. A joint
            position or a sensor that is among them is taken from there.
        columns: sensor → its columns in `sensordata`.
        joints: the columns of the actuated joints; unless given, `tensors` has what is read.
        derived: name → what computes a further entry, as `Task.derived` says.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        columns: dict[str, slice],
        joints: JointColumns | None = None,
        derived: Derived | None = None,
    ):
        self._tensors, self._columns, self._joints = tensors, columns, joints
        self._derived: Derived = derived or {}
        self._computed: dict[str, Tensor] = {}  # of `derived`, what was read

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._tensors:
            return self._tensors[name]
        if name == "joint_pos":
            return self._tensors["qpos"][:, self._actuated().qpos]
        if name == "joint_vel":
            return self._tensors["qvel"][:, self._actuated().qvel]
        if name in self._derived:
            if name not in self._computed:
                self._computed[name] = self._derived[name](self)
            return self._computed[name]
        columns = self._sensor(name)
        return self._tensors["sensordata"][:, columns]

    def span(self, first: str, last: str) -> Tensor:
        """(B, …) adjacent sensors as one tensor, from first to last in the model's order."""
        columns = slice(self._sensor(first).start, self._sensor(last).stop)
        names = [
            name
            for name, place in self._columns.items()
            if columns.start <= place.start and place.stop <= columns.stop
        ]
        if any(name in self._tensors for name in names):
            return torch.cat([getattr(self, name) for name in names], 1)
        return self._tensors["sensordata"][:, columns]

    def with_(self, **tensors: Tensor) -> Self:
        """A copy of the state, with other tensors of these names."""
        return type(self)(self._tensors | tensors, self._columns, self._joints, self._derived)

    def clone(self) -> Self:
        """A state of copies of these tensors; floating-point ones become float32."""
        copies = {
            name: x.to(torch.float32 if x.is_floating_point() else x.dtype, copy=True).contiguous()
            for name, x in self._tensors.items()
        }
        return type(self)(copies, self._columns, self._joints, self._derived)

    def _actuated(self) -> JointColumns:
        if self._joints is None:
            raise ValueError(
                "the task reads joint_pos or joint_vel, which this state does not have"
            )
        if self._joints.unjointed:
            raise ValueError(
                f"the task reads joint_pos or joint_vel, but actuator {self._joints.unjointed!r} "
                f"moves no hinge or slide: read a jointpos or jointvel sensor of the model"
            )
        return self._joints

    def _sensor(self, name: str) -> slice:
        if name not in self._columns:
            names = ", ".join(sorted({*self._tensors, *self._columns, "joint_pos", "joint_vel"}))
            raise ValueError(
                f"the task reads {name!r}, which no sensor or memory of this model has: {names}"
            )
        return self._columns[name]
