"""The model of MuJoCo Warp, with values per world, and its room for contacts and rows."""

import copy
import math

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from gpusim_rl.sim.base import OPTIONS
from gpusim_rl.sim.capacity import probe
from gpusim_rl.sim.data_sensors import sensor_types

LARGEST_DENSE = 60  # degrees of freedom, above which MuJoCo Warp refuses a dense Jacobian
ALIGNED = 64  # numbers: an array begins at a multiple of 256 bytes, as one of its own would
# Sensors that need poses and velocities of bodies alone. Others need all that precedes the
# dynamics.
KINEMATIC = sensor_types(
    *("GYRO", "VELOCIMETER", "MAGNETOMETER", "JOINTPOS", "JOINTVEL", "BALLQUAT", "BALLANGVEL"),
    *("CLOCK", "FRAMEPOS", "FRAMEQUAT", "FRAMEXAXIS", "FRAMEYAXIS", "FRAMEZAXIS"),
    *("FRAMELINVEL", "FRAMEANGVEL", "SUBTREECOM", "SUBTREELINVEL", "SUBTREEANGMOM"),
)


def accepted(mjm: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of the model without the autoreset flag, which mujoco_warp refuses.

    Nothing is lost: MuJoCo Warp never resets by itself. ValueError if the model has what keeps
    state that mjSTATE_INTEGRATION does not name.
    """
    if mjm.nflex or mjm.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        raise ValueError("sim=warp runs neither flexes nor sleeping islands: use sim=native")
    mjm = copy.copy(mjm)
    mjm.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return mjm


# Why: docs/decisions/sims.md
def with_possible_jacobian(mjm: mujoco.MjModel) -> mujoco.MjModel:
    """The model, or a copy with a sparse Jacobian where MuJoCo Warp has no dense one.

    Its sparse Jacobian is right, also where that of MuJoCo C is not and models are loaded dense.
    """
    if mjm.nv <= LARGEST_DENSE or mujoco.mj_isSparse(mjm):
        return mjm
    mjm = copy.copy(mjm)
    mjm.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
    return mjm


def put_model(mjm: mujoco.MjModel, num_envs: int, fields: tuple[str, ...]) -> mjw.Model:
    """The model on Warp's current device; each of `fields` has a value for every world."""
    mjm = with_possible_jacobian(mjm)
    batched = [name for name in fields if name not in OPTIONS]
    m = mjw.put_model(mjm, batch_sizes=dict.fromkeys(batched, num_envs))
    for name in (name.removeprefix("opt.") for name in fields if name in OPTIONS):
        # put_model stores one vector, though every kernel reads it per world.
        rows = wp.array(np.tile(getattr(mjm.opt, name), (num_envs, 1)), dtype=wp.vec3)
        rows._is_batched = True
        setattr(m.opt, name, rows)
    return m


def capacities(
    mjm: mujoco.MjModel,
    num_envs: int,
    naconmax: int | None,
    njmax: int | None,
    fields: tuple[str, ...],
) -> tuple[int, int, np.ndarray | None]:
    """Contacts and rows per world. What is None comes from a probe of the model in MuJoCo C.

    Without naconmax, the poses (P, nq) of the probe follow, for `pool_size`. Where geoms have a
    pose per world among `fields`, the probe has seen one of many grounds, and twice as much is
    taken.
    """
    given = None if naconmax is None else math.ceil(naconmax / num_envs)
    if given is not None and njmax is not None:
        return given, njmax, None
    contacts, rows, poses = probe(mjm)
    if "geom_pos" in fields:
        contacts, rows = 2 * contacts, 2 * rows
    rows = rows if njmax is None else njmax
    return (contacts, rows, poses) if given is None else (given, rows, None)


def share_buffer(d: mjw.Data, names: tuple[str, ...]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Move the float32 arrays of these names into one buffer, so that few kernels reset them all.

    In place: `d` has views of the buffer afterwards. Arrays of another type stay as they are.
    Returns the buffer (n,); (n,) int32 the world to which each of its numbers belongs; and all
    arrays of these names as tensors.
    """
    tensors = {name: wp.to_torch(getattr(d, name)) for name in names}
    arrays = {name: x for name, x in tensors.items() if x.dtype == torch.float32 and x.numel()}
    first, size = {}, 0
    for name, x in arrays.items():
        first[name] = size
        size += ALIGNED * math.ceil(x.numel() / ALIGNED)
    device = next(iter(arrays.values())).device
    buffer = torch.zeros(size, device=device)
    world = torch.zeros(size, dtype=torch.int32, device=device)
    for name, x in arrays.items():
        part, array = slice(first[name], first[name] + x.numel()), getattr(d, name)
        buffer[part] = x.flatten()
        tensors[name] = buffer[part].view(x.shape)
        rows = torch.arange(len(x), dtype=torch.int32, device=device)
        world[part] = rows.repeat_interleave(x[0].numel())
        setattr(d, name, wp.from_torch(tensors[name], dtype=array.dtype))
    return buffer, world, tensors


def only_kinematic_sensors(mjm: mujoco.MjModel) -> bool:
    """Whether position and velocity sensors need poses and velocities of bodies alone."""
    sensors = zip(mjm.sensor_type, mjm.sensor_needstage, strict=True)
    return all(kind in KINEMATIC or stage == mujoco.mjtStage.mjSTAGE_ACC for kind, stage in sensors)
