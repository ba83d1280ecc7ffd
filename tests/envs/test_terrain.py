"""Every world's own patch of ground: physics, heights and writes."""

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.assembly.environment import make_task
from gpusim_rl.config.sections import Config
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.envs.terrain.kinds import KINDS, Patch
from gpusim_rl.envs.terrain.library import BOXES, CELL, HALF
from gpusim_rl.envs.terrain.patches import Patches
from gpusim_rl.envs.terrain.slots import add_boxes, find_slots
from gpusim_rl.robots.models import converged, find_mjcf
from gpusim_rl.sim import native
from gpusim_rl.sim.factory import make
from gpusim_rl.tasks.common.on_terrain import OnTerrain
from tests.worlds import SIMS, composed, copies, make_env, make_sim, refusal

FIELDS = ("geom_pos", "geom_quat", "geom_size", "geom_rbound", "geom_aabb", "geom_friction")


def rough_task(**terrain) -> OnTerrain:
    """task=quadruped_rough with other values of terrain."""
    cfg = composed("task=quadruped_rough")
    cfg["terrain"] |= dict(variants=1, levels=2) | terrain
    return make_task(Config.of(cfg), "cpu")


def compiled(task: OnTerrain, patch: int) -> mujoco.MjModel:
    """The task's model with the boxes of one patch compiled where they lie."""
    spec = add_boxes(mujoco.MjSpec.from_file(str(find_mjcf(task.mjcf))))
    values, (first, plane) = task.patches.values, find_slots(task.mjm)
    for i in range(BOXES):
        box = spec.geom(task.mjm.geom(first + i).name)
        box.pos = values["geom_pos"][patch, i].numpy()
        box.quat = values["geom_quat"][patch, i].numpy()
        box.size = values["geom_size"][patch, i].numpy()
    floor = next(g for g in spec.geoms if g.name == task.mjm.geom(plane).name)
    floor.pos = [0, 0, float(values["floor"][patch])]
    model = spec.compile()
    model.opt.timestep = task.physics.opt.timestep
    model.opt.disableflags = task.physics.opt.disableflags
    return native.fast(model)


def put_down(task: OnTerrain, n: int, patch: int, far: float) -> torch.Tensor:
    """(n, nq) poses at rest 5 cm above a patch, within ± far [m] of its origin."""
    qpos = task.rest.double().repeat(n, 1)
    generator = torch.Generator().manual_seed(0)
    qpos[:, :2] = far * (2 * torch.rand(n, 2, generator=generator).double() - 1)
    height = task.patches.height(torch.full((n,), patch), qpos[:, None, :2].float())
    qpos[:, 2] += height[:, 0] + 0.05
    return qpos


def on_patch(name: str, task: OnTerrain, model: mujoco.MjModel, n: int) -> Any:
    """A Sim of n worlds, all of them on the second patch."""
    threads = {"threads": 1} if name == "native" else {}
    sim = make_sim(name, model, n, fields=FIELDS, **threads)
    task.patches.write(sim, torch.full((n,), 1), torch.ones(n, dtype=torch.bool))
    return sim


def place(task: OnTerrain, sim: Any, qpos: torch.Tensor, qvel: torch.Tensor | None = None) -> None:
    """Restart all worlds in poses, at rest unless there are speeds, with the stance as targets."""
    qvel = 0 * sim.qvel if qvel is None else qvel
    every = torch.ones(len(qpos), dtype=torch.bool)
    sim.reset(every, qpos.to(sim.qpos.dtype), qvel.to(sim.qvel.dtype))
    sim.ctrl.copy_(task.stance)


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_that_move_are_boxes_that_stay(kind):
    """Worlds with moved boxes do what models do that were compiled with them: half a second."""
    task, n = rough_task(kinds=(kind,), first_level=1), 8
    sim, qpos = on_patch("native", task, task.physics, n), put_down(task, n, 1, 1.0)
    sim.model("geom_friction").copy_(torch.as_tensor(task.mjm.geom_friction))
    place(task, sim, qpos)
    model = compiled(task, 1)
    steps = round(0.5 / model.opt.timestep)
    sim.step(steps)
    touched = 0
    for i in range(n):
        data = mujoco.MjData(model)
        data.qpos[:], data.ctrl[:] = qpos[i], task.stance.double()
        mujoco.mj_step(model, data, steps)
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stairs_up", "rubble", "stones"])
def test_warp_has_the_same_ground(kind):
    """One control step of a converged solver on the hardest patch: Warp moves as MuJoCo C does."""
    task, n = rough_task(kinds=(kind,), first_level=1), 16
    native, warp = (on_patch(name, task, converged(task.mjm), n) for name in SIMS)
    place(task, native, put_down(task, n, 1, 2.0))
    native.step(60)  # it lands
    start = native.qpos.float(), native.qvel.float()
    for sim in (native, warp):
        place(task, sim, *start)
        sim.step(task.substeps)
        assert not sim.fault().any()
    for one, other, limit in ((native.qpos, warp.qpos, 1e-5), (native.qvel, warp.qvel, 1e-3)):
        assert ((one - other.double()).abs().amax(1) < limit).float().mean() >= 0.9


def test_moving_ground_has_twice_the_room():
    """A probe sees one ground: where boxes move, the capacities are twice what it says."""
    task = rough_task()
    fixed = make_sim("warp", task.physics, 4)
    moving = make_sim("warp", task.physics, 4, fields=FIELDS)
    assert moving.d.njmax == 2 * fixed.d.njmax and moving.d.naconmax > fixed.d.naconmax


@pytest.mark.parametrize("name", SIMS)
def test_a_restart_moves_no_other_ground(name):
    """A masked restart writes the patch of its worlds; the ground of the others keeps its bits."""
    env = make_env("quadruped_rough", 8, sim=name, randomise={})
    mask = torch.tensor([True, False] * 4)
    fields = {field: env.sim.model(field).clone() for field in FIELDS}
    before = copies(env.sim.tensors()), env.memory["patch"].clone()
    env.memory["level"] += 3
    env.restart_worlds(mask, env.current_state())
    for field, old in fields.items():
        assert torch.equal(env.sim.model(field)[~mask], old[~mask]), field
    for key, old in before[0].items():
        assert torch.equal(env.sim.tensors()[key][~mask], old[~mask]), key
    assert torch.equal(env.memory["patch"][~mask], before[1][~mask])
    patch, patches = env.memory["patch"], env.task.patches
    boxes = env.sim.model("geom_pos")[:, patches.boxes]
    assert torch.equal(boxes.double(), patches.values["geom_pos"][patch].to(boxes.dtype).double())
    friction = env.sim.model("geom_friction")[:, patches.plane, 0]
    torch.testing.assert_close(friction.float(), patches.friction[patch], atol=1e-6, rtol=0)


def test_levels():
    """Up after enough progress, down after a fall or too little; above the last one, anywhere."""
    env = make_env("quadruped_rough", 7)
    task, last = env.task, env.task.patches.levels - 1
    time = torch.tensor([500, 500, 500, 500, 30, 30, 500])
    share = torch.tensor([0.9, 0.5, 0.2, 0.9, 0.9, 0.9, 0.0])
    wanted = torch.tensor([5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 1.0])
    level = torch.tensor([3, 3, 3, last, 3, 0, 3])
    ended = env.current_state().with_(
        time=time, level=level, wanted=wanted, progress=share * wanted
    )
    got = task.begin(7, env.rng, ended)
    assert got["level"][[0, 1, 2, 4, 5, 6]].tolist() == [4, 3, 2, 2, 0, 3]
    assert 0 <= got["level"][3] <= last and torch.equal(got["kind"], ended.kind)
    assert got["relevelled"].tolist() == [False] * 3 + [True] + [False] * 3
    again = task.begin(7, env.rng, ended.with_(**got))
    assert again["relevelled"][3]
    judged = task.evaluation()
    assert torch.equal(judged.begin(7, env.rng, ended)["level"], level)
    assert not np.array_equal(judged.patches.values["geom_pos"], task.patches.values["geom_pos"])


def test_levels_in_the_log():
    """Shares of levels are of all worlds; means of kinds leave out those that were relevelled."""
    env = make_env("quadruped_rough", 4)
    kinds = env.task.patches.kinds
    s = env.current_state().with_(
        kind=torch.tensor([0, 0, 0, 1]),
        level=torch.tensor([2, 4, 9, 0]),
        relevelled=torch.tensor([False, False, True, True]),
    )
    means = {name: float(value.mean()) for name, value in env.task.measure(s).items()}
    assert [means[f"level/{i}"] for i in (0, 2, 4, 9)] == [0.25] * 4
    assert means["level"] == 3.75 and means["relevelled"] == 0.5
    assert means[f"level/{kinds[0]}"] == 3.0  # of levels 2 and 4
    assert means[f"level/{kinds[1]}"] == 9.0  # all of them were beyond it
    assert means[f"level/{kinds[2]}"] == 0.0  # of no world


@pytest.mark.slow
@pytest.mark.parametrize("name", SIMS)
def test_friction_decides(name):
    """On a slope of tan 0.275 a robot slides where the patch has friction 0.2, and holds at 0.8."""
    slid = {}
    for friction in (0.2, 0.8):
        task = rough_task(kinds=("slope",), levels=3, friction=(friction, friction))
        sim, patch = on_patch(name, task, task.mjm, 1), torch.tensor([1])
        scaled = task.patches.scale_friction({"patch": patch})["geom_friction.0"]
        sim.model("geom_friction")[..., 0] = scaled.to(sim.qpos.dtype)
        qpos = task.rest.clone()[None]
        qpos[:, 0] = 2.0
        qpos[:, 3:7] = torch.tensor([math.cos(0.134), 0.0, math.sin(0.134), 0.0])
        qpos[:, 2] = task.rest[2] + task.patches.height(patch, qpos[:, None, :2])[0] + 0.05
        place(task, sim, qpos)
        sim.step(200)
        slid[friction] = float(sim.qpos[0, 0]) - 2.0
    # sliding freely for 1 s: ½ g (sin - 0.2 cos) cos = 0.33 m
    assert slid[0.2] > 0.3 and abs(slid[0.8]) < 0.06, slid


def test_faults_leave_no_table():
    """Positions and memory that a fault wrote give no index beyond the library."""
    patches = rough_task(kinds=("steps",)).patches
    nowhere = torch.tensor([[[math.nan, 0.0]], [[math.inf, -math.inf]], [[1e30, -1e30]]])
    assert patches.height(torch.tensor([-5, 10**9, 0]), nowhere).shape == (3, 1)


def test_a_kind_of_the_users():
    """A function that returns boxes is a kind; one that returns too many is refused, by name."""

    def beams(level, rng):
        patch = Patch()
        for i in range(3 if level < 1 else 65):
            patch.add(0.5 * i, 0, 0.1, 0.05, 3.0)
        return patch

    task = rough_task(kinds=("steps",))
    numbers = dict(variants=1, seed=0, friction=(0.8, 0.8), first_level=0, device="cpu")
    choices = {"beams": beams}
    patches = Patches(task.mjm, kinds=("beams",), levels=1, choices=choices, **numbers)
    height = patches.height(torch.tensor([0]), torch.tensor([[[0.5, 0.0], [0.25, 0.0]]]))
    torch.testing.assert_close(height, torch.tensor([[0.1, 0.0]]))
    with pytest.raises(ValueError, match="terrain beams: 65 boxes, expected at most 64"):
        Patches(task.mjm, kinds=("beams",), levels=2, choices=choices, **numbers)
    with pytest.raises(ValueError, match=r"terrain.kinds: 'logs': choose among slope, valley"):
        rough_task(kinds=("logs",))


def test_other_robots_walk_on_it():
    """A robot's own file gets the boxes, too; terrain= is refused where it does not fit."""
    cfg = composed("task=quadruped_rough", "terrain.variants=1", "terrain.levels=2")
    cfg["robot"]["mjcf"] = str(ASSETS / "quadruped.xml")
    task = make_task(Config.of(cfg), "cpu")
    assert find_slots(task.mjm)[0] > 0 and task.patches.fields
    for words, says in (
        (("terrain=rough",), "terrain=rough does not fit task=quadruped: choose terrain=flat"),
        (("task=quadruped_rough", "terrain=flat"), "terrain=flat does not fit"),
    ):
        assert says in refusal(*words, "device=cpu")


def test_a_level_of_all_worlds():
    """level= puts every world on it, in an evaluation, too."""
    task = rough_task(level=1).evaluation()
    env = make_env("quadruped_rough", 4)
    assert task.begin(4, env.rng)["level"].tolist() == [1] * 4
    with pytest.raises(ValueError, match="level=2: expected a level below 2"):
        rough_task(level=2)


def test_mjx_is_refused():
    """It would keep the ground of the model: one line says what to use."""
    with pytest.raises(ValueError, match="sim=mjx has no ground of its own per world: use sim="):
        make("mjx", rough_task(kinds=("steps",)).mjm, 1, device="cpu", fields=FIELDS)
