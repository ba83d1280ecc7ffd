"""The Sim protocol: B copies of one MuJoCo model in live tensors."""

from collections.abc import Mapping
from typing import Protocol

import mujoco
import torch
from mujoco.batch import Batch
from torch import Tensor


# Why: docs/decisions/sims.md
class Sim(Protocol):
    """B copies of one MuJoCo model, stepped together. What has a body here serves most backends.

    The tensors are allocated once and written in place only, in the backend's own precision:
    native float64, warp and mjx float32.

    After `step`, `sensordata` is as mj_step leaves it: one timestep older than `qpos`. A `user`
    sensor that is named as a field of MjData holds that field (`sim/data_sensors.py`). After
    `reset`, position and velocity sensors are current in the worlds that restarted. Acceleration
    sensors are zero there.
    """

    capturable: bool  # whether step and reset may stand inside a CUDA graph
    qpos: Tensor  # (B, nq)  m, rad, unit quaternions (w, x, y, z)
    qvel: Tensor  # (B, nv)  m/s, rad/s
    ctrl: Tensor  # (B, nu)  units of each actuator
    sensordata: Tensor  # (B, ns)  units of each sensor
    # (B, nv)  N, N m: added to the actuators' forces until it is written again. reset: 0
    force: Tensor
    # (B, m, 3) [m], (B, m, 4): places and rotations of the m mocap bodies, written like `ctrl`.
    # reset: they stay
    mocap_pos: Tensor
    mocap_quat: Tensor
    # (B,) bool: the last step exceeded a capacity. Such worlds are in fault() too.
    overflow: Tensor
    _fault: Tensor
    _model: dict[str, Tensor]

    def step(self, n: int) -> None:
        """Advance every world by n timesteps with `ctrl` held."""
        ...

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Restart the worlds where mask (B,) is true, at rows of qpos (B, nq) and qvel (B, nv)."""
        ...

    def model(self, field: str) -> Tensor:
        """The model field (B, …) with a value per world, live and writable.

        The field was named when the Sim was built.
        """
        return self._model[field]

    def refresh(self) -> None:
        """Recompute what MuJoCo derives from masses and inertias, after writes to model(field)."""
        ...

    def fault(self) -> Tensor:
        """(B,) bool: worlds whose last step went wrong.

        The state is not finite or beyond LIMIT, the engine gave a new warning or error, or a
        capacity was exceeded.
        """
        return self._fault

    def exceeded(self) -> dict[str, int]:
        """Capacities that any step so far exceeded: configuration key → the size to set.

        Empty if the engine has none that the configuration sets. Reads the device.
        """
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """The live tensors that a continuation needs, by name, each with a row for every world.

        Copies of their rows, loaded into a new Sim, continue bit-identically.
        """
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Write copies of what `tensors` returned, in place."""
        for name, value in self.tensors().items():
            value.copy_(state[name])


# Vectors of a model's options that may have a value per world.
OPTIONS = GRAVITY, WIND = ("opt.gravity", "opt.wind")
# What mjSTATE_INTEGRATION names (see mjtState), and the sensors, which cannot be recomputed from
# it.
STATE = (
    *("time", "qpos", "qvel", "act", "history", "plastic", "qacc_warmstart", "ctrl"),
    *("qfrc_applied", "xfrc_applied", "eq_active", "mocap_pos", "mocap_quat", "userdata"),
    "sensordata",
)
# What mj_setConst derives from other fields.
DERIVED = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0"),
    *("tendon_length0", "actuator_acc0", "eq_data", "cam_pos0", "cam_poscom0", "cam_mat0"),
)
# Derived from geom_size. The broadphase of MuJoCo Warp is compiled anew if they are per world.
BOUNDS = ("geom_aabb", "geom_rbound")
# m, rad, m/s, rad/s: a state beyond this is a fault. MuJoCo's own mjMAXVAL is 1e10.
LIMIT = 1e8


def with_derived(fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields with a value per world, and those that are derived from them."""
    bounds = BOUNDS if "geom_size" in fields else ()
    return tuple(dict.fromkeys((*fields, *DERIVED, *bounds))) if fields else ()


def derive(mjm: mujoco.MjModel, model: Mapping[str, Tensor], fields: tuple[str, ...]) -> None:
    """Write to `model`, field → (B, …), what mj_setConst derives from `fields` of it. In place.

    MuJoCo C does it on the host, in float64. Call it outside the iteration.
    """
    if not model:
        return
    batch = Batch(mjm, len(next(iter(model.values()))), 0)
    live = {name: batch.expand(name) for name in model}
    for name in fields:
        live[name][:] = model[name].cpu().numpy().reshape(live[name].shape)
    batch.set_const()
    for name in model.keys() - {*fields}:
        model[name].copy_(torch.from_numpy(live[name]).reshape(model[name].shape))


def write_fault(fault: Tensor, qpos: Tensor, qvel: Tensor) -> None:
    """Write to fault (B,) bool whether a state is not finite or beyond LIMIT. In place."""
    # NaN fails every comparison, and amax passes it on: one pass over the state
    worst = torch.maximum(qpos.abs().amax(1), qvel.abs().amax(1))
    torch.logical_not(worst <= LIMIT, out=fault)
