"""MuJoCo C on all cores, through `mujoco.batch.Batch`: the default without a GPU, the reference for every other Sim."""

import mujoco
import numpy as np
import torch
from mujoco.batch import Batch, SimulationError
from torch import Tensor

from gpusim_rl.sim import LIMIT

ROW = mujoco.mjtState.mjSTATE_INTEGRATION  # what Batch keeps per world: state, controls, warm start
VELOCITY = mujoco.mjtStage.mjSTAGE_VEL.value
mujoco.set_mju_user_warning(lambda _: None)  # they are counted as faults; said aloud they tear the live table, or fill a file
FULL = [int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL)]


class Native:
    """`Sim` over MuJoCo C. Results are bit-identical at any number of threads and of neighbours.

    Args:
        mjm: the model; it should say `<flag autoreset="disable"/>`, or MuJoCo hides NaN by restarting at qpos0.
        num_envs: B.
        fields: model fields with a value per world.
        threads: of the engine; 0 means all cores.

    `overflow` (B,) bool says which worlds the last step took over a capacity; they are in `fault` too.
    """

    capturable = False

    def __init__(self, mjm: mujoco.MjModel, num_envs: int, *, fields: tuple[str, ...] = (), threads: int = 0):
        self.batch = Batch(mjm, num_envs, threads)
        self.qpos = torch.from_numpy(self.batch.bind("qpos"))
        self.qvel = torch.from_numpy(self.batch.bind("qvel"))
        self.ctrl = torch.from_numpy(self.batch.bind("ctrl"))
        self.force = torch.from_numpy(self.batch.bind("qfrc_applied"))
        self._sensors = self.batch.bind("sensordata")  # read-only, refreshed by every call on a world
        self.sensordata = torch.zeros(self._sensors.shape, dtype=self.qpos.dtype)
        stale = mjm.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC
        self._late = np.repeat(stale, mjm.sensor_dim)  # (ns,) columns that only a step computes
        self._model = {f: torch.from_numpy(self.batch.expand(f)) for f in fields}
        self._rows = torch.from_numpy(self.batch.state)  # (B, nstate) live
        self._warned = self.batch.warning.copy()
        self.overflow = torch.zeros(num_envs, dtype=torch.bool)
        self._fault = torch.zeros(num_envs, dtype=torch.bool)

    def step(self, n: int) -> None:
        failed = self._call(self.batch.step, None, n)
        self.sensordata.numpy()[:] = self._sensors
        # NaN fails every comparison, and amax passes it on: one pass over the state
        worst = torch.maximum(self.qpos.abs().amax(1), self.qvel.abs().amax(1))
        torch.logical_not(worst <= LIMIT, out=self._fault)
        self.overflow.zero_()
        if not np.array_equal(self.batch.warning, self._warned):
            fresh = (self.batch.warning != self._warned).any(2)  # (B, kinds), of (B, kinds, last info and count)
            self._warned[:] = self.batch.warning
            self.overflow.numpy()[:] = fresh[:, FULL].any(1)
            self._fault |= torch.from_numpy(fresh.any(1))
        self._fault[failed] = True

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        ids = np.flatnonzero(mask.numpy())
        if len(ids) == 0:
            return
        self._call(self.batch.reset, ids, stage=0)
        self.qpos.numpy()[ids] = qpos.numpy()[ids]
        self.qvel.numpy()[ids] = qvel.numpy()[ids]
        self._call(self.batch.forward, ids, VELOCITY)
        # acceleration sensors hold another world's value after a partial forward
        self.sensordata.numpy()[ids] = np.where(self._late, 0.0, self._sensors[ids])
        self._warned[:] = self.batch.warning
        self.overflow.numpy()[ids] = False
        self._fault.numpy()[ids] = False

    def model(self, field: str) -> Tensor:
        return self._model[field]

    def refresh(self) -> None:
        self.batch.set_const()

    def fault(self) -> Tensor:
        return self._fault

    def state(self) -> dict[str, Tensor]:
        fields = {f"model/{name}": value.clone() for name, value in self._model.items()}
        return {"rows": self._rows.clone(), "sensordata": self.sensordata.clone(), **fields}

    def load(self, state: dict[str, Tensor]) -> None:
        self._rows.copy_(state["rows"])
        self.sensordata.copy_(state["sensordata"])
        for name, value in self._model.items():
            value.copy_(state[f"model/{name}"])
        if self._model:
            self.refresh()

    def _call(self, call, ids, *args, **kwargs) -> list[int]:
        """Run one engine call; the worlds that it could not complete (the others did)."""
        try:
            call(ids, *args, **kwargs)
        except SimulationError as error:
            return list(error.ids)
        return []
