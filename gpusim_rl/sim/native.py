"""MuJoCo C on all cores, through `mujoco.batch.Batch`.

It is the default without a GPU, and the reference for every other Sim.
"""

import copy
from collections.abc import Callable

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor

from gpusim_rl.core.errors import silence_mujoco
from gpusim_rl.sim import data_sensors
from gpusim_rl.sim.base import Sim, write_fault

ROW = mujoco.mjtState.mjSTATE_INTEGRATION  # what Batch keeps per world: state, controls, warm start
VELOCITY = mujoco.mjtStage.mjSTAGE_VEL.value
ISLAND = int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
MIDPHASE = int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
WARMSTART = int(mujoco.mjtDisableBit.mjDSBL_WARMSTART)
CONVERGES = 5  # iterations in which a solver that starts anew converges
FULL = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]


# Why: docs/decisions/sims.md
def fast(mjm: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of the model without what costs time and changes no motion.

    Islands and trees of bounding volumes change no bit. A solver that converges finds the same
    motion without a warm start, to rounding. One of few iterations keeps it.
    """
    model = copy.copy(mjm)
    model.opt.disableflags |= ISLAND | (WARMSTART if mjm.opt.iterations >= CONVERGES else 0)
    model.vis.global_.bvactive = 0  # trees of meshes, which only a viewer shows
    return model


class Native(Sim):
    """`Sim` over MuJoCo C. Results are bit-identical at any number of threads and of neighbors.

    Args:
        mjm: the model. It should say `<flag autoreset="disable"/>`, or MuJoCo hides NaN by
            restarting at qpos0.
        num_envs: B.
        fields: model fields with a value per world.
        threads: of the engine; 0 means all cores.
    """

    capturable = False

    def __init__(
        self, mjm: mujoco.MjModel, num_envs: int, *, fields: tuple[str, ...] = (), threads: int
    ):
        silence_mujoco()
        mjm = fast(mjm)
        if "geom_pos" in fields:  # the tree of a body's geoms is made for the model's own poses
            mjm.opt.disableflags |= MIDPHASE
        self._fields = data_sensors.data_sensors(mjm)
        # Where a step does not compute the forces, each world keeps what it needs for them.
        self._forces = not data_sensors.computed_by_step(mjm, self._fields)
        self.batch = Batch(mjm, num_envs, threads, persistent=self._forces)
        self.qpos = torch.from_numpy(self.batch.bind("qpos"))
        self.qvel = torch.from_numpy(self.batch.bind("qvel"))
        self.ctrl = torch.from_numpy(self.batch.bind("ctrl"))
        self.force = torch.from_numpy(self.batch.bind("qfrc_applied"))
        self.mocap_pos = torch.from_numpy(self.batch.bind("mocap_pos"))
        self.mocap_quat = torch.from_numpy(self.batch.bind("mocap_quat"))
        # Read-only: every call on a world refreshes it.
        self._sensors = self.batch.bind("sensordata")
        self.sensordata = torch.zeros(self._sensors.shape, dtype=self.qpos.dtype)
        self._data = {x.field: self.batch.bind(x.field) for x in self._fields}
        if self._forces:
            self._scratch = mujoco.MjData(mjm)
            self._data["cfrc_ext"] = np.zeros((num_envs, mjm.nbody, 6))
        stale = mjm.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC
        self._late = np.repeat(stale, mjm.sensor_dim)  # (ns,) columns that only a step computes
        self._model = {f: torch.from_numpy(self.batch.expand(f)) for f in fields}
        self._rows = torch.from_numpy(self.batch.state)  # (B, nstate) live
        self._warned = self.batch.warning.copy()
        self.overflow = torch.zeros(num_envs, dtype=torch.bool)
        self._fault = torch.zeros(num_envs, dtype=torch.bool)

    def step(self, n: int, worlds: np.ndarray | None = None) -> None:
        """Advance the worlds with these ids by n timesteps; None are all. Others stand still."""
        failed = self._call(self.batch.step, worlds, n)
        self.sensordata.numpy()[:] = self._sensors
        if self._forces:
            self._compute_forces()
        data_sensors.write(self._fields, self._data.__getitem__, self.sensordata.numpy())
        write_fault(self._fault, self.qpos, self.qvel)
        self.overflow.zero_()
        if not np.array_equal(self.batch.warning, self._warned):
            # (B, kinds), of (B, kinds, last info and count)
            fresh = (self.batch.warning != self._warned).any(2)
            self._warned[:] = self.batch.warning
            self.overflow.numpy()[:] = fresh[:, FULL].any(1)
            self._fault |= torch.from_numpy(fresh.any(1))
        self._fault[failed] = True

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        ids = np.flatnonzero(mask.numpy())
        if len(ids) == 0:
            return
        placed = [(x.numpy(), x.numpy()[ids]) for x in (self.mocap_pos, self.mocap_quat)]
        self._call(self.batch.reset, ids, stage=0)
        for live, before in placed:
            live[ids] = before
        self.qpos.numpy()[ids] = qpos.numpy()[ids]
        self.qvel.numpy()[ids] = qvel.numpy()[ids]
        self._call(self.batch.forward, ids, VELOCITY)
        # acceleration sensors hold another world's value after a partial forward
        sensors = np.where(self._late, 0.0, self._sensors[ids])
        early = [x for x in self._fields if not x.late]
        data_sensors.write(early, lambda name: self._data[name][ids], sensors)
        self.sensordata.numpy()[ids] = sensors
        # what the engine counted of an old episode is no new warning
        self._warned[:] = self.batch.warning
        self.overflow.numpy()[ids] = False
        self._fault.numpy()[ids] = False

    def _compute_forces(self) -> None:
        """Write the external forces of the last stage to `cfrc_ext`, as Gymnasium does."""
        for i, forces in enumerate(self._data["cfrc_ext"]):
            self.batch.get_data(i, self._scratch)
            mujoco.mj_rnePostConstraint(self.batch.model, self._scratch)
            forces[:] = self._scratch.cfrc_ext

    def refresh(self) -> None:
        self.batch.set_const()

    def tensors(self) -> dict[str, Tensor]:
        fields = {f"model/{name}": value for name, value in self._model.items()}
        return {"rows": self._rows, "sensordata": self.sensordata, **fields}

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        if self._model:
            self.refresh()

    def _call(
        self, call: Callable[..., object], ids: np.ndarray | None, *args: int, **options: int
    ) -> list[int]:
        """Run one engine call. Returns the worlds that failed; the others went on."""
        try:
            call(ids, *args, **options)
        except SimulationError as error:
            return list(error.ids)
        return []
