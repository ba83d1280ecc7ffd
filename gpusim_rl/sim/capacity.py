"""Capacities of MuJoCo Warp: how many contacts and constraints a model can come to."""

import mujoco
import mujoco_warp as mjw
import numpy as np
from mujoco.batch import Batch

WORLDS = 16  # of the probe
MARGIN = 1.5  # times the largest count of the probe
FEW = 4  # contacts that every world has room for


def probe(mjm: mujoco.MjModel) -> tuple[int, int, np.ndarray]:
    """Contacts and constraint rows per world, and the poses (P, nq) that were seen.

    Both counts are MARGIN times the most seen in MuJoCo C, but never less than FEW contacts need.

    WORLDS start at the default pose and at the keyframes in turn, with random speeds of 1 m/s and
    1 rad/s. Random controls, held for 0.1 s each, then move them for 2 s. The controls lie in their
    range, or within ±1 of the keyframe's. The result is deterministic.
    """
    # fixed: a capacity that differed between runs would change their bits
    rng = np.random.default_rng(0)
    steps, hold = round(2.0 / mjm.opt.timestep), max(1, round(0.1 / mjm.opt.timestep))
    batch = Batch(mjm, WORLDS, 1)
    batch.reset(keyframe=np.arange(WORLDS) % (mjm.nkey + 1) - 1)
    low, high = mjm.actuator_ctrlrange.T
    draw = rng.uniform(size=(WORLDS, -(-steps // hold), mjm.nu))
    control = np.where(
        mjm.actuator_ctrllimited,
        low + (high - low) * draw,
        batch.bind("ctrl")[:, None] + 2 * draw - 1,
    )
    control = control.repeat(hold, axis=1)[:, :steps]
    batch.bind("qvel")[:] += rng.standard_normal((WORLDS, mjm.nv))
    seen = batch.rollout(steps, control, record=("ncon", "nefc", "qpos"))
    contacts, rows = (int(np.ceil(MARGIN * seen[name].max())) for name in ("ncon", "nefc"))
    # What a model can always come to: a few contacts, and all its limits and frictions at once.
    contacts = max(contacts, FEW)
    frictions = (mjm.dof_frictionloss > 0).sum() + (mjm.tendon_frictionloss > 0).sum()
    fixed = int(mjm.jnt_limited.sum() + mjm.tendon_limited.sum() + frictions)
    rows = max(rows, fixed + 6 * mjm.neq + 4 * FEW)
    return contacts, rows, seen["qpos"][:, ::hold].reshape(-1, mjm.nq)


def pool_size(
    m: mjw.Model, mjm: mujoco.MjModel, contacts: int, poses: np.ndarray, num_envs: int
) -> int:
    """naconmax of num_envs worlds of a Warp model m, from what `probe` returned.

    The pool also holds the pairs that the broadphase lets through, which may be more than the
    contacts.
    """
    # counters go on counting where storage ends
    d = mjw.make_data(mjm, len(poses), naconmax=1, njmax=1)
    d.qpos.assign(poses)
    mjw.kinematics(m, d)
    mjw.collision(m, d)
    pairs = int(np.ceil(MARGIN * d.ncollision.numpy()[0] / len(poses)))
    # The mean world is what a shared pool must hold. One world with every pair covers the spread
    # of a few worlds.
    return num_envs * max(contacts, pairs) + m.nxn_geom_pair_filtered.shape[0]
