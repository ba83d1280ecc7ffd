"""Every world's own patch of ground: physics, heights and writes."""

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.build import make_task
from gpusim_rl.envs.on_terrain import OnTerrain
from gpusim_rl.robots.models import find_mjcf
from gpusim_rl.robots.terrains.kinds import KINDS
from gpusim_rl.robots.terrains.library import BOXES, CELL, HALF
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
    task, n = rough_task(kinds=(kind,), first_level=1), 8
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


@pytest.mark.parametrize("kind", KINDS)
def test_heights_are_those_of_rays(kind):
    """Straight down: 95 % within 5 mm, and the rest within a cell of where the ground steps."""
    task = rough_task(kinds=(kind,), first_level=1)
    model = compiled(task, 1)
    data = mujoco.MjData(model)
    data.qpos[:2] = 100.0  # out of the way
    mujoco.mj_kinematics(model, data)
    rng, down, geom = np.random.default_rng(0), np.array([0, 0, -1.0]), np.zeros(1, np.int32)

    def ray(x: float, y: float) -> float:
        return 5.0 - mujoco.mj_ray(model, data, np.array([x, y, 5.0]), down, None, 1, -1, geom)

    points = rng.uniform(-0.9 * HALF, 0.9 * HALF, (400, 2))
    want = np.array([ray(x, y) for x, y in points])
    patch = torch.ones(len(points), dtype=torch.long)
    xy = torch.tensor(points, dtype=torch.float32)[:, None]
    wrong = np.abs(task.patches.height(patch, xy)[:, 0].numpy() - want) > 5e-3
    assert wrong.mean() <= 0.05
    for (x, y), z in zip(points[wrong], want[wrong], strict=True):
        around = [ray(x + dx, y + dy) for dx in (-CELL, 0, CELL) for dy in (-CELL, 0, CELL)]
        assert max(abs(np.array(around) - z)) > 4e-3
