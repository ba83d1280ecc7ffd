"""MuJoCo Warp: every world on the GPU, or on the CPU for tests."""

from functools import partial
from operator import attrgetter

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.graphs import capture
from gpusim_rl.core.streams import launch, start_warp, warp_stream
from gpusim_rl.sim import data_sensors, kernels
from gpusim_rl.sim.base import BOUNDS, LIMIT, STATE, Sim, derive, with_derived
from gpusim_rl.sim.capacity import pool_size
from gpusim_rl.sim.warp_model import (
    accepted,
    capacities,
    only_kinematic_sensors,
    put_model,
    share_buffer,
    with_possible_jacobian,
)

# ruff: noqa: UP018, RUF046 (in a kernel int(0) is a variable, 0 a constant)
# The kernels are Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false
# pyright: reportUntypedFunctionDecorator=false

OverflowType = mjw.OverflowType
POOL = wp.constant(int(OverflowType.BROADPHASE | OverflowType.NARROWPHASE | OverflowType.CCD))
ROWS = wp.constant(int(OverflowType.NEFC | OverflowType.NJMAX_NNZ))
# A solver that stops at its iteration limit is normal at training settings. Every other bit says
# that physics was left out.
NORMAL = OverflowType.ITERATIONS | OverflowType.LS_ITERATIONS
CAPACITY = wp.constant(int(OverflowType.ALL & ~NORMAL))
LARGEST_NUMBER = wp.constant(LIMIT)


@wp.kernel(enable_backward=False)
def judge(
    qpos: wp.array2d[float],
    qvel: wp.array2d[float],
    bits: wp.array[int],
    overflow: wp.array[bool],
    fault: wp.array[bool],
    exceeded: wp.array[bool],
):
    """Whether a world exceeded a capacity, or its state is not finite or beyond LIMIT.

    The engine's kernels only ever set bits, so they are cleared.
    """
    i = wp.tid()
    over = (bits[i] & CAPACITY) != 0
    if (bits[i] & POOL) != 0:
        exceeded[0] = True
    if (bits[i] & ROWS) != 0:
        exceeded[1] = True
    wrong = int(0)
    for j in range(qpos.shape[1]):
        if not wp.abs(qpos[i, j]) <= LARGEST_NUMBER:
            wrong = 1
    for j in range(qvel.shape[1]):
        if not wp.abs(qvel[i, j]) <= LARGEST_NUMBER:
            wrong = 1
    bits[i] = 0
    overflow[i] = over
    fault[i] = over or wrong > 0


@wp.kernel(enable_backward=False)
def place(
    pos: wp.array3d[float],
    quat: wp.array3d[float],
    places: wp.array3d[float],
    frames: wp.array4d[float],
):
    """Position and rotation of a geom (3, 3), as MuJoCo computes it of a quaternion w, x, y, z."""
    i, k = wp.tid()
    for j in range(3):
        places[i, k, j] = pos[i, k, j]
    w, x, y, z = quat[i, k, 0], quat[i, k, 1], quat[i, k, 2], quat[i, k, 3]
    frames[i, k, 0, 0] = w * w + x * x - y * y - z * z
    frames[i, k, 0, 1] = 2.0 * (x * y - w * z)
    frames[i, k, 0, 2] = 2.0 * (x * z + w * y)
    frames[i, k, 1, 0] = 2.0 * (x * y + w * z)
    frames[i, k, 1, 1] = w * w - x * x + y * y - z * z
    frames[i, k, 1, 2] = 2.0 * (y * z - w * x)
    frames[i, k, 2, 0] = 2.0 * (x * z - w * y)
    frames[i, k, 2, 1] = 2.0 * (y * z + w * x)
    frames[i, k, 2, 2] = w * w - x * x - y * y + z * z


class Warp(Sim):
    """`Sim` over MuJoCo Warp, in float32.

    On the CPU a world's result is bit-identical with any number of neighbors.

    Args:
        mjm: the model. Sleeping islands and flexes are refused: they keep state that
            mjSTATE_INTEGRATION does not name.
        num_envs: B.
        device: "cpu", "cuda" or "cuda:<i>".
        fields: model fields with a value per world.
        naconmax: contacts that all worlds can hold together; by default from a probe of the model.
        njmax: constraint rows that each world can hold; likewise.
        deterministic: add in one order on CUDA, too, which is slower; on the CPU it always does.
            Contacts keep no order there (see `order_of_contacts` in factory.py).
        conditional: end the solver of a captured CUDA graph when every world has converged. It
            uses a conditional node instead of launching all iterations; the bits are the same.
        graph: capture the kernels of `step` and `reset`.

    `m` and `d` are the mujoco_warp.Model and mujoco_warp.Data of all worlds. The contact pool is
    shared and does not tell whose contacts were lost. A full pool therefore marks every world in
    `overflow`.
    """

    capturable = True

    def __init__(
        self,
        mjm: mujoco.MjModel,
        num_envs: int,
        *,
        device: str = "cpu",
        fields: tuple[str, ...] = (),
        naconmax: int | None = None,
        njmax: int | None = None,
        conditional: bool,
        deterministic: bool,
        graph: bool = True,
    ):
        mjm, self._inputs = accepted(mjm), fields  # of mj_setConst
        self._mjm, fields = mjm, with_derived(fields)
        start_warp()
        kernels.separate_modules("mujoco_warp")
        self._device = wp.get_device(device)
        self._torch_device = torch.device(wp.device_to_torch(self._device))
        with self._scope():
            self.m = put_model(mjm, num_envs, fields)
        self.m.opt.warn_overflow = 0  # a printf on the device serializes it
        contacts, njmax, poses = capacities(mjm, num_envs, naconmax, njmax, fields)
        if not self._device.is_cpu:
            options = {"conditional": False, "deterministic": deterministic, "graph": False}
            # with bounds per world, kernels of collisions are made for one number of worlds
            worlds = num_envs if {*BOUNDS} & {*fields} else 1
            options |= {"fields": fields, "naconmax": worlds * contacts, "njmax": njmax}
            twin = partial(Warp, mjm, worlds, **options)
            kernels.load(kernels.launches_of(twin, self._device), self._device)
        with self._scope():
            possible = with_possible_jacobian(mjm)
            if poses is not None:
                naconmax = pool_size(self.m, possible, contacts, poses, num_envs)
            self.d = mjw.make_data(possible, num_envs, naconmax=naconmax, njmax=njmax)
        # Why: docs/decisions/sims.md
        # Outside a CUDA capture, capture_while copies a counter to the host before every solver
        # iteration. A fixed number of launches gives the same bits (a converged world skips them)
        # and reads nothing; training needs six.
        self.m.opt.graph_conditional = conditional and not self._device.is_cpu
        if deterministic:
            self.m.opt.deterministic = mjw.DeterminismType.ALL
        self._ground = slice(int(mjm.body_geomnum[0]))  # geoms of the world body
        self._kinematic = only_kinematic_sensors(mjm)
        self._fields = data_sensors.data_sensors(mjm)
        self._allocate(num_envs, fields)
        self._advance, self._sense = (
            capture(fn, self._torch_device, kernels=True, on=graph)
            for fn in (self._advance_kernels, self._sense_kernels)
        )

    def _allocate(self, num_envs: int, fields: tuple[str, ...]) -> None:
        """Make the tensors of the protocol, and those that `step` writes in place."""
        self._buffer, self._world, self._state = share_buffer(self.d, STATE)
        self._blank = self._buffer.clone()
        self._active = self._state["eq_active"].clone()
        self._model = {name: wp.to_torch(attrgetter(name)(self.m)) for name in fields}
        poses = wp.to_torch(self.d.geom_xpos), wp.to_torch(self.d.geom_xmat)
        self._data = {x.field: wp.to_torch(getattr(self.d, x.field)) for x in self._fields}
        self._poses = tuple(x[:, self._ground] for x in poses)
        self._bits = wp.to_torch(self.d.overflow)
        self.qpos, self.qvel = self._state["qpos"], self._state["qvel"]
        self.ctrl, self.sensordata = self._state["ctrl"], self._state["sensordata"]
        self.force = self._state["qfrc_applied"]
        self.mocap_pos, self.mocap_quat = self._state["mocap_pos"], self._state["mocap_quat"]
        self.overflow = torch.zeros_like(self._bits, dtype=torch.bool)
        self._fault = torch.zeros_like(self.overflow)
        # whether any step so far exceeded the pool, and the rows
        self._exceeded = torch.zeros(2, dtype=torch.bool, device=self._torch_device)
        out = [self.overflow, self._fault, self._exceeded]
        inputs = [self.qpos, self.qvel, self._bits]
        self._judge = launch(judge, num_envs, inputs, out, record=True)

    def step(self, n: int) -> None:
        self._advance(n)
        data_sensors.write(self._fields, self._data.__getitem__, self.sensordata)
        # Nothing is allocated from here on: a conditional node in the solver takes torch's capture
        # from its memory pool.
        self._judge.launch(warp_stream(self._torch_device))

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        rows = mask[:, None]
        restarted = mask.index_select(0, self._world)
        placed = self.mocap_pos.clone(), self.mocap_quat.clone()
        torch.where(restarted, self._blank, self._buffer, out=self._buffer)
        self.mocap_pos.copy_(placed[0])
        self.mocap_quat.copy_(placed[1])
        active = self._state["eq_active"]
        if active.numel():
            torch.where(rows, self._active, active, out=active)
        torch.where(rows, qpos.to(self.qpos.dtype), self.qpos, out=self.qpos)
        torch.where(rows, qvel.to(self.qvel.dtype), self.qvel, out=self.qvel)
        if "geom_pos" in self._model:
            self._move_ground()
        # The stages below run for every world. They write what the next step computes again, the
        # sensors, and the delay lines behind them.
        sensors, history = self.sensordata.clone(), self._state["history"].clone()
        self._sense()
        early = [x for x in self._fields if not x.late]
        data_sensors.write(early, self._data.__getitem__, self.sensordata)
        torch.where(rows, self.sensordata, sensors, out=self.sensordata)
        self._state["history"].copy_(history)
        self.overflow.masked_fill_(mask, False)
        self._fault.masked_fill_(mask, False)

    def _move_ground(self) -> None:
        """Write the poses of the world body's geoms, which no kernel computes anew. In place."""
        poses = [self._model[f"geom_{name}"][:, self._ground] for name in ("pos", "quat")]
        size = tuple(poses[0].shape[:2])
        launch(place, size, poses, list(self._poses))

    def exceeded(self) -> dict[str, int]:
        pool, rows = self._exceeded.tolist()
        sizes = {"naconmax": 2 * self.d.naconmax} if pool else {}
        return sizes | ({"njmax": 2 * self.d.njmax} if rows else {})

    def refresh(self) -> None:
        # mjw.set_const would be hundreds of launches, and kernels of its own to compile.
        derive(self._mjm, self._model, self._inputs)

    def tensors(self) -> dict[str, Tensor]:
        """Derived constants too: computed again they may differ."""
        model = {f"model/{name}": value for name, value in self._model.items()}
        return {**self._state, **model, "overflow": self.overflow, "fault": self._fault}

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        if "geom_pos" in self._model:
            self._move_ground()

    def _advance_kernels(self, n: int) -> None:
        with self._scope():
            for _ in range(n):
                mjw.step(self.m, self.d)
            if "cfrc_ext" in self._data:
                mjw.rne_postconstraint(self.m, self.d)

    # Why: docs/decisions/sims.md
    def _sense_kernels(self) -> None:
        """Position and velocity sensors of the state as it is, in every world."""
        m, d = self.m, self.d
        with self._scope():
            d.sensordata.zero_()
            if self._kinematic:
                mjw.fwd_kinematics(m, d)
                mjw.com_vel(m, d)
            else:
                mjw.fwd_position(m, d, factorize=False)
                mjw.fwd_velocity(m, d)
            mjw.sensor_pos(m, d)
            mjw.sensor_vel(m, d)

    def _scope(self):
        """Launches inside go to this device and, on CUDA, to torch's current stream.

        One stream means one order.
        """
        if self._device.is_cpu:
            return wp.ScopedDevice(self._device)
        # sync_enter would wait for Warp's own stream. Nothing is queued there, and a torch capture
        # forbids it.
        return wp.ScopedStream(warp_stream(self._torch_device), sync_enter=False)
