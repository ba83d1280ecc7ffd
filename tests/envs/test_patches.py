"""Every world's own patch of ground: physics, heights and writes."""

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.build import make_task
from gpusim_rl.envs.on_terrain import OnTerrain
from gpusim_rl.envs.patches import Patches
from gpusim_rl.robots.models import find_mjcf
from gpusim_rl.robots.terrains.kinds import KINDS
from gpusim_rl.robots.terrains.library import BOXES, HALF, make_library
from gpusim_rl.robots.terrains.slots import add_boxes, find_slots
from gpusim_rl.sim import native
from gpusim_rl.sim.factory import make
from tests.worlds import composed

FIELDS = ("geom_pos", "geom_quat", "geom_size", "geom_rbound", "geom_aabb", "geom_friction")


def rough_task(**terrain) -> OnTerrain:
    """task=quadruped_rough with other values of terrain."""
    cfg = composed("task=quadruped_rough")
    cfg["terrain"] |= dict(variants=1, levels=2) | terrain
    return make_task(cfg, "cpu")


def compiled(task: OnTerrain, patch: int) -> mujoco.MjModel:
    """The task's model with the boxes of one patch compiled where they lie."""
    spec = add_boxes(mujoco.MjSpec.from_file(str(find_mjcf(task.mjcf))))
    values, (first, plane) = task.patches.values, find_slots(task.mjm)
    geoms = [*spec.geoms]
    for i in range(BOXES):
        box = spec.geom(task.mjm.geom(first + i).name)
        box.pos = values["geom_pos"][patch, i].numpy()
        box.quat = values["geom_quat"][patch, i].numpy()
        box.size = values["geom_size"][patch, i].numpy()
    floor = next(g for g in geoms if g.name == task.mjm.geom(plane).name)
    floor.pos = [0, 0, float(values["floor"][patch])]
    model = spec.compile()
    model.opt.timestep = task.physics.opt.timestep
    model.opt.disableflags = task.physics.opt.disableflags
    return native.fast(model)


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_that_move_are_boxes_that_stay(kind):
    """Worlds with moved boxes do what models do that were compiled with them: half a second."""
    task, n = rough_task(kinds=(kind,), first=1), 8
    sim = make("native", task.physics, n, device="cpu", fields=FIELDS, threads=1)
    patch = torch.full((n,), 1)
    generator = torch.Generator().manual_seed(0)
    qpos = task.rest.double().repeat(n, 1)
    qpos[:, :2] += 2 * torch.rand(n, 2, generator=generator).double() - 1
    qpos[:, 2] += task.patches.height(patch, qpos[:, None, :2].float())[:, 0] + 0.05
    task.patches.write(sim, patch, torch.ones(n, dtype=torch.bool))
    sim.model("geom_friction").copy_(torch.as_tensor(task.mjm.geom_friction))
    sim.reset(torch.ones(n, dtype=torch.bool), qpos, 0 * sim.qvel)
    sim.ctrl.copy_(task.stance)
    model = compiled(task, 1)
    steps = round(0.5 / model.opt.timestep)
    sim.step(steps)
    touched = 0
    for i in range(n):
        data = mujoco.MjData(model)
        data.qpos[:], data.ctrl[:] = qpos[i], task.stance.double()
        for _ in range(steps):
            mujoco.mj_step(model, data)
        touched += data.ncon > 0
        np.testing.assert_allclose(sim.qpos[i], data.qpos, atol=1e-9, rtol=0)
    assert touched >= n - 2
