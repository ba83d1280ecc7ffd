"""MuJoCo Warp: every world on the GPU, or on the CPU for tests."""

import copy
from operator import attrgetter

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from mujoco.batch import Batch
from torch import Tensor

from gpusim_rl.graph import capture, warp_stream
from gpusim_rl.sim import LIMIT

# What mjSTATE_INTEGRATION names (see mjtState), and the sensors, which cannot be recomputed from it.
STATE = (
    *("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied"),
    *("eq_active", "mocap_pos", "mocap_quat", "userdata", "sensordata"),
)
# What set_const derives from other fields. Written per world only where it is stored per world.
DERIVED = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "tendon_length0", "actuator_acc0"),
    *("eq_data", "cam_pos0", "cam_poscom0", "cam_mat0"),
)
GRAVITY = "opt.gravity"
BOUNDS = ("geom_aabb", "geom_rbound")  # derived from geom_size; the broadphase is compiled anew if they are per world
POOL = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD  # of naconmax
ROWS = mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ  # of njmax
# A solver that stops at its iteration limit is normal at training settings; every other bit is lost physics.
CAPACITY = int(mjw.OverflowType.ALL & ~(mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS))
MARGIN = 1.5  # times the largest count of the probe
FEW = 4  # contacts that every world has room for
KINEMATIC = {  # sensors that need poses and velocities of bodies alone; any other needs all that comes before the dynamics
    int(getattr(mujoco.mjtSensor, f"mjSENS_{name}"))
    for name in (
        *("GYRO", "VELOCIMETER", "MAGNETOMETER", "JOINTPOS", "JOINTVEL", "BALLQUAT", "BALLANGVEL", "CLOCK"),
        *("FRAMEPOS", "FRAMEQUAT", "FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS", "FRAMELINVEL", "FRAMEANGVEL"),
        *("SUBTREECOM", "SUBTREELINVEL", "SUBTREEANGMOM"),
    )
}


class Warp:
    """`Sim` over MuJoCo Warp, in float32. On the CPU a world's result is bit-identical with any number of neighbours.

    Args:
        mjm: the model. Sleeping islands and flexes are refused: they keep state that mjSTATE_INTEGRATION does not name.
        num_envs: B.
        device: "cpu", "cuda" or "cuda:<i>".
        fields: model fields with a value per world.
        naconmax: contacts that all worlds can hold together; the default comes from a probe of the model.
        njmax: constraint rows that each world can hold; likewise.
        deterministic: add in one order on CUDA, too, which is slower; on the CPU it always does.
        conditional: let the solver of a captured CUDA graph end when every world has converged, by a conditional node,
            instead of launching all of its iterations; results are bit-identical.
        graph: capture the kernels of `step` and `reset`.

    `overflow` (B,) bool says which worlds the last step took over a capacity; they are in `fault` too. The contact pool
    is shared and does not tell whose contacts were lost, so that a full pool marks every world.
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
        conditional: bool = False,
        deterministic: bool = False,
        graph: bool = True,
    ):
        if mjm.nflex or mjm.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
            raise ValueError("sim=warp runs neither flexes nor sleeping islands: use sim=native")
        mjm = accepted(mjm)
        derived = (*DERIVED, *(BOUNDS if "geom_size" in fields else ())) if fields else ()
        self._device = wp.get_device(device)
        self._torch_device = torch.device(wp.device_to_torch(self._device))
        with self._scope():
            batched = [name for name in (*fields, *derived) if name != GRAVITY]
            self._m = mjw.put_model(mjm, batch_sizes=dict.fromkeys(batched, num_envs))
            if GRAVITY in fields:  # which put_model makes one of, though every kernel reads it per world
                self._m.opt.gravity = wp.array(np.tile(mjm.opt.gravity, (num_envs, 1)), dtype=wp.vec3)
                self._m.opt.gravity._is_batched = True
            if naconmax is None or njmax is None:
                contacts, rows, poses = probe(mjm)
                naconmax = self._pool(mjm, contacts, poses, num_envs) if naconmax is None else naconmax
                njmax = rows if njmax is None else njmax
            self._d = mjw.make_data(mjm, num_envs, naconmax=naconmax, njmax=njmax)
        # Outside a CUDA capture, capture_while copies a counter to the host before every solver iteration. A fixed number
        # of launches gives the same bits (a converged world skips them) and reads nothing; training needs six.
        self._m.opt.graph_conditional = conditional and not self._device.is_cpu
        if deterministic:
            self._m.opt.deterministic = mjw.DeterminismType.ALL
        self._m.opt.warn_overflow = 0  # a printf on the device serialises it
        self._state = {name: wp.to_torch(getattr(self._d, name)) for name in STATE}
        self._blank = {name: value[:1].clone() for name, value in self._state.items()}
        self._model = {name: wp.to_torch(attrgetter(name)(self._m)) for name in (*fields, *derived)}
        self._bits = wp.to_torch(self._d.overflow)
        self.qpos, self.qvel = self._state["qpos"], self._state["qvel"]
        self.ctrl, self.sensordata = self._state["ctrl"], self._state["sensordata"]
        self.force = self._state["qfrc_applied"]
        self.overflow = torch.zeros_like(self._bits, dtype=torch.bool)
        self._lacked = torch.zeros(2, dtype=torch.bool, device=self._torch_device)  # of the pool and of the rows, ever
        self._fault = torch.zeros_like(self.overflow)
        self._worst = torch.zeros(2, num_envs, device=self._torch_device).unbind(0)
        sensors = zip(mjm.sensor_type, mjm.sensor_needstage, strict=True)
        self._kinematic = all(kind in KINEMATIC or stage == mujoco.mjtStage.mjSTAGE_ACC for kind, stage in sensors)
        self._advance, self._sense = (
            capture(fn, self._torch_device, kernels=True, on=graph) for fn in (self._advance_kernels, self._sense_kernels)
        )

    def step(self, n: int) -> None:
        self._lacked |= self._lost()  # in the step before: after the solver nothing may be allocated
        self._bits.zero_()  # sticky otherwise
        self._advance(n)
        # Nothing is allocated from here on: a conditional node in the solver takes torch's capture from its memory pool.
        self._bits &= CAPACITY
        torch.ne(self._bits, 0, out=self.overflow)
        # A maximum is not finite if a term is not, and |x| ≤ LIMIT bounds the rest: one pass over the state.
        torch.linalg.vector_norm(self.qpos, torch.inf, dim=1, out=self._worst[0])
        torch.linalg.vector_norm(self.qvel, torch.inf, dim=1, out=self._worst[1])
        torch.maximum(*self._worst, out=self._worst[0])
        torch.le(self._worst[0], LIMIT, out=self._fault).logical_not_()
        self._fault |= self.overflow

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        for name, value in self._state.items():
            torch.where(_rows(mask, value), self._blank[name], value, out=value)
        self.qpos.copy_(torch.where(_rows(mask, qpos), qpos, self.qpos))
        self.qvel.copy_(torch.where(_rows(mask, qvel), qvel, self.qvel))
        # The stages below run for every world. They write what the next step computes again, the sensors, and the
        # delay lines behind them.
        sensors, history = self.sensordata.clone(), self._state["history"].clone()
        self._sense()
        torch.where(_rows(mask, sensors), self.sensordata, sensors, out=self.sensordata)
        self._state["history"].copy_(history)
        self.overflow &= ~mask
        self._fault &= ~mask

    def lacks(self) -> dict[str, int]:
        """The capacities that some step went over, each with twice its size: what to set. Reads the device."""
        now = {"naconmax": self._d.naconmax, "njmax": self._d.njmax}
        lacked = (self._lacked | self._lost()).tolist()
        return {name: 2 * size for (name, size), short in zip(now.items(), lacked, strict=True) if short}

    def _lost(self) -> Tensor:
        """(2,) bool: whether the last step went over the pool, and over the rows."""
        return torch.stack([(self._bits & int(POOL)).any(), (self._bits & int(ROWS)).any()])

    def model(self, field: str) -> Tensor:
        return self._model[field]

    def refresh(self) -> None:
        with self._scope():
            mjw.set_const(self._m, self._d)

    def fault(self) -> Tensor:
        return self._fault

    def state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._tensors().items()}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, value in self._tensors().items():
            value.copy_(state[name])

    def _advance_kernels(self, n: int) -> None:
        """n timesteps."""
        with self._scope():
            for _ in range(n):
                mjw.step(self._m, self._d)

    def _sense_kernels(self) -> None:
        """Position and velocity sensors of the state as it is, in every world."""
        m, d = self._m, self._d
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

    def _pool(self, mjm: mujoco.MjModel, contacts: int, poses: np.ndarray, num_envs: int) -> int:
        """naconmax: the pool also holds the pairs that the broadphase lets through, which may be more than contacts."""
        d = mjw.make_data(mjm, len(poses), naconmax=1, njmax=1)  # counters go on counting where storage ends
        d.qpos.assign(poses)
        mjw.kinematics(self._m, d)
        mjw.collision(self._m, d)
        pairs = int(np.ceil(MARGIN * d.ncollision.numpy()[0] / len(poses)))
        # The mean world is what a shared pool must hold; one world with every pair covers the spread of a few worlds.
        return num_envs * max(contacts, pairs) + self._m.nxn_geom_pair_filtered.shape[0]

    def _tensors(self) -> dict[str, Tensor]:
        """Every live tensor by its name in a checkpoint. Derived constants too: computed again they may differ."""
        model = {f"model/{name}": value for name, value in self._model.items()}
        return {**self._state, **model, "overflow": self.overflow, "fault": self._fault}

    def _scope(self):
        """Launches inside go to this device and, on CUDA, to torch's current stream: one stream, so one order."""
        if self._device.is_cpu:
            return wp.ScopedDevice(self._device)
        # sync_enter would wait for Warp's own stream, which a torch capture forbids; nothing is queued there.
        return wp.ScopedStream(warp_stream(self._torch_device), sync_enter=False)


def accepted(mjm: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of the model without the flag that mujoco_warp refuses, and that says nothing there: it never resets by itself."""
    mjm = copy.copy(mjm)
    mjm.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return mjm


def probe(mjm: mujoco.MjModel, *, num_envs: int = 16, seconds: float = 2.0) -> tuple[int, int, np.ndarray]:
    """Contacts and constraint rows per world, MARGIN times the most seen in MuJoCo C, but no fewer than any model needs; and
    the poses (P, nq) it saw.

    num_envs worlds start at the default pose and the keyframes in turn with random speeds, 1 m/s and 1 rad/s, and are
    thrown about by random controls, held for 0.1 s each: in their range, or ±1 about the keyframe's. Deterministic.
    """
    rng = np.random.default_rng(0)
    steps, hold = round(seconds / mjm.opt.timestep), max(1, round(0.1 / mjm.opt.timestep))
    batch = Batch(mjm, num_envs, 1)
    batch.reset(keyframe=np.arange(num_envs) % (mjm.nkey + 1) - 1)
    low, high = mjm.actuator_ctrlrange.T
    draw = rng.uniform(size=(num_envs, -(-steps // hold), mjm.nu))
    control = np.where(mjm.actuator_ctrllimited, low + (high - low) * draw, batch.bind("ctrl")[:, None] + 2 * draw - 1)
    control = control.repeat(hold, axis=1)[:, :steps]
    batch.bind("qvel")[:] += rng.standard_normal((num_envs, mjm.nv))
    seen = batch.rollout(steps, control, record=("ncon", "nefc", "qpos"))
    contacts, rows = (int(np.ceil(MARGIN * seen[name].max())) for name in ("ncon", "nefc"))
    # what a model can always come to, though it did not here: a few contacts, and each of its limits and frictions at once
    contacts = max(contacts, FEW)
    fixed = (
        mjm.jnt_limited.sum()
        + mjm.tendon_limited.sum()
        + (mjm.dof_frictionloss > 0).sum()
        + (mjm.tendon_frictionloss > 0).sum()
    )
    rows = max(rows, int(fixed) + 6 * mjm.neq + 4 * FEW)
    return contacts, rows, seen["qpos"][:, ::hold].reshape(-1, mjm.nq)


def _rows(mask: Tensor, like: Tensor) -> Tensor:
    """mask (B,) as (B, 1, …), to choose whole rows of `like`."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))
