"""Every Sim against MuJoCo C, and against itself with other neighbors, threads, restarts and
poisoned worlds."""

import copy
import functools
import itertools
import sys
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
import warp as wp
from mujoco.batch import Batch

from gpusim_rl.sim import factory
from gpusim_rl.sim.base import STATE
from gpusim_rl.sim.factory import choose, order_of_contacts, solver_cost
from gpusim_rl.sim.native import ISLAND, WARMSTART, Native, fast
from gpusim_rl.sim.warp import Warp
from tests.command_lines import run_python
from tests.guard import guard
from tests.worlds import ROOT, copies, differing, make_sim

# A box with one leg on the floor: contacts, a joint limit, dry friction, an actuator with memory, a
# mocap body, and sensors of all three stages. The solver converges, so that float32 and float64
# agree. The foot is a sphere: under a capsule within 30° of upright MuJoCo Warp turns the friction
# pyramid differently from MuJoCo C.
HOPPER = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.004" integrator="implicitfast" jacobian="dense" iterations="20"
   ls_iterations="50">
    <flag autoreset="disable"/>
  </option>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="target" mocap="true" pos="1 0 1"/>
    <body name="base" pos="0 0 0.3">
      <freejoint/>
      <geom type="box" size="0.2 0.1 0.05" mass="2"/>
      <site name="imu"/>
      <body name="leg" pos="0.1 0 -0.05">
        <joint name="hip" axis="0 1 0" range="-1 1" damping="0.2" armature="0.01"
         frictionloss="0.05"/>
        <geom type="sphere" size="0.03" pos="0 0 -0.2" mass="0.5"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="hip" kp="20" kv="0.5" timeconst="0.05"/></actuator>
  <sensor>
    <framepos objtype="site" objname="imu"/>
    <gyro site="imu"/>
    <accelerometer site="imu"/>
    <jointactuatorfrc joint="hip"/>
  </sensor>
</mujoco>
"""
OFF = ISLAND | WARMSTART
FRESH = 6  # sensor columns which need positions and velocities alone; the other four need a step
QUADRUPED = Path(__file__).parents[2] / "tasks/assets/quadruped.xml"
FIELDS = ("body_mass", "geom_friction")
WORLDS = 64
NO_JAX = pytest.mark.skipif(find_spec("jax") is None, reason="the extra [mjx] is not installed")
MJX = pytest.param("mjx", marks=[NO_JAX, pytest.mark.slow])


@functools.cache
def hopper() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(HOPPER)


@functools.cache
def quadruped() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(QUADRUPED))


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(params=["native", "warp", MJX])
def backend(request) -> str:
    return request.param


def test_what_is_left_out_changes_no_motion():
    """Without islands the bits are the same; without warm start the motion is, to 1e-9."""
    qpos, qvel = starts(0, WORLDS)
    results = {}
    for name, flags in (("all", 0), ("islands", ISLAND), ("both", OFF)):
        model = copy.copy(hopper())
        model.opt.iterations, model.opt.tolerance = 100, 1e-12
        model.opt.disableflags |= flags
        batch = Batch(model, WORLDS, 1)
        pos, vel = batch.bind("qpos"), batch.bind("qvel")
        pos[:], vel[:] = qpos.numpy(), qvel.numpy()
        batch.step(nstep=8)
        results[name] = np.concatenate([pos, vel], 1)
    assert np.array_equal(results["all"], results["islands"])
    np.testing.assert_allclose(results["all"], results["both"], rtol=0, atol=1e-9)
    assert fast(hopper()).opt.disableflags & OFF == OFF
    assert hopper().opt.disableflags & OFF == 0  # the caller's model stays as it is
    short = copy.copy(hopper())
    short.opt.iterations = 1  # needs what the timestep before has solved
    assert fast(short).opt.disableflags & OFF == ISLAND


def starts(seed: int, num_envs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Poses (B, nq) and speeds (B, nv) of hoppers about to land; row i is the same for every B."""
    rng = np.random.default_rng(seed)
    qpos = np.tile(hopper().qpos0, (WORLDS, 1))
    qpos[:, 2] += rng.uniform(-0.05, 0.2, WORLDS)
    qpos[:, 3:7] += rng.normal(0, 0.2, (WORLDS, 4))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    qpos[:, 7] = rng.uniform(-0.5, 0.5, WORLDS)
    qvel = rng.normal(0, 1, (WORLDS, hopper().nv))
    # float32 values, so that every backend starts from the same state
    pos, vel = (torch.tensor(x[:num_envs], dtype=torch.float32) for x in (qpos, qvel))
    return pos, vel


def control(step: int, num_envs: int) -> torch.Tensor:
    """Targets (B, 1) rad for one control step; row i is the same for every B."""
    targets = np.random.default_rng(step).uniform(-1, 1, (WORLDS, 1))
    return torch.tensor(targets[:num_envs], dtype=torch.float32)


def every(num_envs: int, n: int = 1) -> torch.Tensor:
    """(B,) bool: each n-th world."""
    return torch.arange(num_envs) % n == 0


def build(backend: str, num_envs: int, **options):
    """A Sim of hoppers; MJX's always has the same fields, which it compiles for 20 s."""
    fields = {"fields": FIELDS} if backend == "mjx" else {}
    return make_sim(backend, hopper(), num_envs, **fields | options)


def addresses(sim) -> list[int]:
    """Where its state lies."""
    return [x.data_ptr() for x in (sim.qpos, sim.qvel, sim.ctrl, sim.sensordata)]


def started(backend: str, num_envs: int, **options):
    """A Sim of hoppers, all restarted at `starts(0)`."""
    sim = build(backend, num_envs, **options)
    sim.reset(every(num_envs), *starts(0, num_envs))
    return sim


def run(sim, first: int, last: int, restarts: bool = False) -> torch.Tensor:
    """(steps, B, …) of qpos, qvel and sensordata over control steps of two timesteps."""
    num_envs, seen = len(sim.qpos), []
    for step in range(first, last):
        sim.ctrl.copy_(control(step, num_envs))
        sim.step(2)
        if restarts and step % 5 == 2:
            sim.reset(every(num_envs, 3), *starts(step, num_envs))
        seen.append(torch.cat([sim.qpos, sim.qvel, sim.sensordata], dim=1))
    return torch.stack(seen)


def mujoco_c(model: mujoco.MjModel, qpos, qvel, steps: int, world: int) -> torch.Tensor:
    """(steps, nq + nv + ns) of MuJoCo C from one state, where `run` has a world of a Sim."""
    data, seen = mujoco.MjData(model), []
    data.qpos, data.qvel = qpos, qvel
    for step in range(steps):
        data.ctrl = control(step, WORLDS)[world]
        mujoco.mj_step(model, data, 2)
        seen.append(np.concatenate([data.qpos, data.qvel, data.sensordata]))
    return torch.tensor(np.stack(seen))


def test_step_is_mj_step(backend):
    """Forty timesteps give the qpos, qvel and one timestep old sensordata of MuJoCo C."""
    sim, tolerance = started(backend, 8), {"native": 0.0, "warp": 2e-3, "mjx": 2e-3}[backend]
    seen = run(sim, 0, 20).double()
    worst, model = 0.0, fast(hopper()) if backend == "native" else hopper()
    for i, (qpos, qvel) in enumerate(zip(*starts(0, 8), strict=True)):
        expected = mujoco_c(model, qpos, qvel, 20, i)
        # accelerations are of the order of 100 m/s² at an impact
        off = (seen[:, i] - expected).abs() / (1 + expected.abs())
        worst = max(worst, off.max().item())
    assert worst <= tolerance


def test_reset_makes_sensors_current(backend):
    """Sensors show the new state, accelerations are zero, and the past has no effect."""
    sim = started(backend, 8)
    run(sim, 0, 10)
    mask, (qpos, qvel) = every(8, 3), starts(7, 8)
    sim.sensordata.fill_(torch.nan)
    sim.reset(mask, torch.where(mask[:, None], qpos, torch.nan), qvel)
    for i in (0, 3, 6):
        data = mujoco.MjData(hopper())
        data.qpos, data.qvel = qpos[i], qvel[i]
        mujoco.mj_forward(hopper(), data)
        expected = torch.tensor(data.sensordata, dtype=sim.sensordata.dtype)
        torch.testing.assert_close(sim.sensordata[i, :FRESH], expected[:FRESH], rtol=0, atol=1e-6)
        assert not sim.sensordata[i, FRESH:].any()
    new = build(backend, 8)
    new.reset(every(8), qpos, qvel)
    assert torch.equal(run(sim, 10, 20)[:, mask], run(new, 10, 20)[:, mask])


def test_reset_leaves_the_others_alone(backend):
    """Worlds outside the mask keep every bit and go on; a reset of no world is none."""
    sim, undisturbed = started(backend, 8), started(backend, 8)
    run(sim, 0, 10), run(undisturbed, 0, 10)
    before = copies(sim.tensors())
    sim.reset(torch.zeros(8, dtype=torch.bool), *starts(7, 8))
    assert differing(copies(sim.tensors()), before) == []
    mask = every(8, 3)
    sim.reset(mask, *starts(7, 8))
    for name in ("qpos", "qvel", "ctrl", "sensordata"):
        assert torch.equal(getattr(sim, name)[~mask], getattr(undisturbed, name)[~mask])
    assert torch.equal(run(sim, 10, 30)[:, ~mask], run(undisturbed, 10, 30)[:, ~mask])


def test_warp_resets_every_array():
    """A world restarts as it was made, whatever was written; most arrays lie in one buffer."""
    weld = '<equality><weld body1="base" active="false"/></equality>'
    model = mujoco.MjModel.from_xml_string(HOPPER.replace("<sensor>", f"{weld}<sensor>"))
    sim = make_sim("warp", model, 8)
    assert isinstance(sim, Warp)
    state = {name: wp.to_torch(getattr(sim.d, name)) for name in STATE}
    made = copies(state)
    first = sim._buffer.data_ptr()
    places = {name: x.data_ptr() - first for name, x in state.items() if x.numel()}
    inside = {name for name, place in places.items() if 0 <= place < sim._buffer.nbytes}
    assert inside == places.keys() - {"eq_active"} and "mocap_quat" in inside
    assert all(places[name] % 256 == 0 for name in inside)
    for x in state.values():
        x.fill_(True if x.dtype == torch.bool else 3.0)
    written, mask = copies(state), every(8, 3)
    sim.reset(mask, *starts(1, 8))
    for name, x in state.items():
        assert torch.equal(x[~mask], written[name][~mask]), name
        if name in ("mocap_pos", "mocap_quat"):  # a task places them before the world restarts
            assert torch.equal(x, written[name]), name
        elif name not in ("qpos", "qvel", "sensordata", "history"):
            assert torch.equal(x[mask], made[name][mask]), name
    assert torch.equal(sim.qpos[mask], starts(1, 8)[0].float()[mask])


def test_a_world_does_not_see_its_neighbors(backend):
    """Worlds 0 to 7 are bit-identical among 8 and among 64 (MJX: 16), restarts included."""
    few, many = started(backend, 8), started(backend, 16 if backend == "mjx" else 64)
    assert torch.equal(run(few, 0, 20, restarts=True), run(many, 0, 20, restarts=True)[:, :8])


def test_native_does_not_depend_on_threads():
    """MuJoCo C gives the same bits on one thread and on two."""
    one, two = started("native", 64, threads=1), started("native", 64, threads=2)
    assert torch.equal(run(one, 0, 20, restarts=True), run(two, 0, 20, restarts=True))


def test_load_continues_exactly(backend):
    """A state loaded into a new Sim continues bit for bit, with its own masses and frictions."""
    sim = started(backend, 8, fields=FIELDS)
    sim.model("body_mass").mul_(torch.linspace(0.8, 1.2, 8)[:, None])
    sim.model("geom_friction").mul_(torch.linspace(0.5, 1.5, 8)[:, None, None])
    sim.refresh()
    run(sim, 0, 10, restarts=True)
    saved = copies(sim.tensors())
    expected = run(sim, 10, 20)  # and what is saved does not change with the Sim
    new = build(backend, 8, fields=FIELDS)
    for tensor in (new.qpos, new.qvel, new.sensordata):
        tensor.fill_(torch.nan)
    places = addresses(new)
    new.load(saved)
    assert torch.equal(new.sensordata, saved["sensordata"])
    assert torch.equal(run(new, 10, 20), expected)
    assert addresses(new) == places


def test_mass_per_world(backend):
    """Masses written per world, and `refresh`, give what mj_setConst gives in MuJoCo C."""
    sim = started(backend, 8, fields=FIELDS)
    run(sim, 0, 3)
    before = copies(sim.tensors())
    scales = np.linspace(0.5, 2.0, 8)
    sim.model("body_mass").mul_(torch.tensor(scales, dtype=sim.qpos.dtype)[:, None])
    sim.refresh()
    changed = differing(copies(sim.tensors()), before)
    assert changed and all(name.startswith("model/") for name in changed)
    sim.reset(every(8), *starts(1, 8))
    seen = run(sim, 0, 10).double()
    for i, (qpos, qvel) in enumerate(zip(*starts(1, 8), strict=True)):
        model = fast(hopper()) if backend == "native" else copy.copy(hopper())
        model.body_mass *= scales[i]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        if backend != "native":
            for name in ("body_subtreemass", "body_invweight0", "dof_invweight0", "actuator_acc0"):
                expected = torch.tensor(getattr(model, name), dtype=torch.float32)
                torch.testing.assert_close(sim.model(name)[i], expected, rtol=2e-6, atol=0)
        expected = mujoco_c(model, qpos, qvel, 10, i)[-1, : model.nq + model.nv]
        atol = 0.0 if backend == "native" else 5e-4
        torch.testing.assert_close(seen[-1, i, : len(expected)], expected, rtol=0, atol=atol)


def test_poisoned_worlds_stay_alone(backend):
    """Worlds not finite or far off are faults, the others keep every bit; a reset heals."""
    sim, clean = started(backend, 16), started(backend, 16)
    run(sim, 0, 5), run(clean, 0, 5)
    poisons = itertools.product(("qpos", "qvel"), (torch.nan, torch.inf, 1e10))
    for i, (field, value) in enumerate(poisons):
        getattr(sim, field)[2 * i + 1] = value
    bad = (torch.arange(16) % 2 == 1) & (torch.arange(16) < 12)
    for last in (6, 30):
        seen, expected = (run(s, 5 if last == 6 else 6, last) for s in (sim, clean))
        assert torch.equal(seen[:, ~bad], expected[:, ~bad])
        assert torch.equal(sim.fault(), bad) and not clean.fault().any()
    for s in (sim, clean):
        s.reset(bad, *starts(9, 16))
    assert not sim.fault().any()
    assert torch.equal(run(sim, 30, 55), run(clean, 30, 55))
    assert not sim.fault().any()


@pytest.mark.parametrize("backend", ["native", "warp"])
def test_too_little_room_is_a_fault(backend):
    """More constraints than the arena of MuJoCo C, or njmax of Warp, are a world's fault."""
    size = '<size memory="4500"/>' if backend == "native" else ""
    model = mujoco.MjModel.from_xml_string(HOPPER.replace("<worldbody>", f"{size}<worldbody>", 1))
    room = {"njmax": 2} if backend == "warp" else {}  # a flying hopper has one row, for friction
    sim = make_sim(backend, model, 8, **room)
    qpos, qvel = starts(0, 8)
    qpos[:, 2] = torch.where(every(8, 2), 0.1, 5.0)
    if backend == "warp":  # upright and away from the limits of the hip
        qpos[:, 3:7], qpos[:, 7] = torch.tensor([1.0, 0, 0, 0]), 0.0
    sim.reset(every(8), qpos, 0 * qvel)
    sim.step(2)
    assert torch.equal(sim.fault(), every(8, 2))
    assert backend == "native" or torch.equal(sim.overflow, every(8, 2))
    sim.reset(every(8, 2), qpos + torch.tensor([0, 0, 5.0, 0, 0, 0, 0, 0]), 0 * qvel)
    assert not sim.overflow.any() and not sim.fault().any()
    sim.step(2)
    assert not sim.overflow.any() and not sim.fault().any()


def test_a_full_contact_pool_is_a_fault():
    """The pool does not tell whose contacts it lost, so that every world is flagged."""
    sim = make_sim("warp", hopper(), 8, naconmax=4)
    sim.reset(every(8), *starts(0, 8))
    run(sim, 0, 20)
    assert sim.overflow.all() and sim.fault().all()


def test_the_probe_is_enough():
    """Quadrupeds that are thrown about never reach the default capacities."""
    sim = make_sim("warp", quadruped(), 32)
    rng = np.random.default_rng(1)
    stance = torch.tensor(quadruped().key_ctrl[0])
    qpos = torch.tensor(quadruped().key_qpos[0]).repeat(32, 1)
    sim.reset(every(32), qpos, torch.tensor(rng.normal(0, 2, (32, quadruped().nv))))
    over = torch.zeros(32, dtype=torch.bool)
    for _ in range(40):
        sim.ctrl.copy_(stance + torch.tensor(rng.normal(0, 1.5, (32, 12))))
        sim.step(5)
        over |= sim.fault()
    assert not over.any()


def test_the_probe_leaves_room():
    """A model that touches nothing in the probe has room for contacts and limits all the same."""
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 9">
    <joint type="slide" axis="1 0 0" limited="true" range="-50 50"/><geom size="0.1"/>
    </body></worldbody></mujoco>""")
    sim = make_sim("warp", model, 4)
    sim.reset(every(4), torch.full((4, 1), 49.99), torch.full((4, 1), 20.0))
    for _ in range(20):
        sim.step(5)
        assert not sim.fault().any()
    assert (sim.qpos < 50.5).all()


def test_warp_never_reads_on_the_host():
    """Step, reset, fault and state of sim=warp run under the guard at fixed addresses."""
    sim = started("warp", 8)
    qpos, qvel = starts(1, 8)
    places = [*addresses(sim), sim.fault().data_ptr()]
    with guard() as switch:
        for _ in range(6):
            sim.step(2)
            sim.reset(every(8, 3) | sim.fault(), qpos, qvel)
            copies(sim.tensors())
    assert switch.seen > 100 and sim._advance.graph and sim._sense.graph
    assert places == [*addresses(sim), sim.fault().data_ptr()]


def test_choices_are_explained():
    """A wrong backend or device is a ValueError that says what would do."""
    assert choose("auto", "cpu") == ("native", "cpu")
    assert choose("warp", "cpu") == ("warp", "cpu")
    for name, device, word in (("newton", "cpu", "native"), ("native", "cuda", "warp|CUDA")):
        with pytest.raises(ValueError, match=word):
            choose(name, device)


@pytest.mark.parametrize(
    "options, kernels",
    [("", 2000), ('integrator="RK4"', 8000), ('solver="CG"', 1600), ('iterations="20"', None)],
)
def test_the_cost_of_a_solver(options, kernels):
    """It is told of a model with many iterations, where MuJoCo Warp launches all of them."""
    mjm = mujoco.MjModel.from_xml_string(f"<mujoco><option {options}/></mujoco>")
    said = solver_cost("warp", "cpu", mjm, 2, True)  # the CPU knows no conditional node
    assert said == "" if kernels is None else f"about {kernels:,} kernels a control step" in said
    assert solver_cost("auto", "cpu", mjm, 2, False) == ""


def test_where_contacts_have_no_order(monkeypatch):
    """A line says that sim.deterministic=true cannot repeat the bits of a model with contacts."""
    falls, hangs = (
        mujoco.MjModel.from_xml_string(
            f'<mujoco><worldbody><geom size="1" {words}/></worldbody></mujoco>'
        )
        for words in ("", 'contype="0" conaffinity="0"')
    )
    assert order_of_contacts("warp", "cpu", falls, True) == ""
    monkeypatch.setattr(factory, "choose", lambda name, device: ("warp", "cuda"))
    assert "any order" in order_of_contacts("warp", "cuda", falls, True)
    assert order_of_contacts("warp", "cuda", falls, False) == ""
    assert order_of_contacts("warp", "cuda", hangs, True) == ""


def test_models_that_do_not_fit_are_explained(backend):
    """An unknown field, and a model that an engine would step wrongly, are one line."""
    with pytest.raises(ValueError, match="body_nose"):
        make_sim(backend, hopper(), 2, device="cpu", fields=("body_nose",))
    if backend != "native":
        asleep = HOPPER.replace('<flag autoreset="disable"/>', '<flag sleep="enable"/>')
        with pytest.raises(ValueError, match="sim=native"):
            make_sim(backend, mujoco.MjModel.from_xml_string(asleep), 2, device="cpu")


def test_mjx_needs_jax(monkeypatch):
    """Without JAX, sim=mjx is a ValueError that says how to install it."""
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "gpusim_rl.sim.mjx", raising=False)
    with pytest.raises(ValueError, match=r"sim=mjx needs JAX: .* install -e '.*\[mjx\]'"):
        make_sim("mjx", hopper(), 2, device="cpu")


@functools.cache
def standing(count: int) -> dict[str, torch.Tensor]:
    """qpos, qvel, qacc_warmstart, ctrl (count, …) of quadrupeds in contact near the stance."""
    sim = make_sim("native", quadruped(), 2 * count)
    stance = torch.tensor(quadruped().key_ctrl[0])
    qpos = torch.tensor(quadruped().key_qpos[0]).repeat(2 * count, 1)
    sim.reset(every(2 * count), qpos, torch.zeros(2 * count, quadruped().nv))
    rng, contacts = np.random.default_rng(0), sim.batch.bind("ncon")
    for _ in range(30):
        sim.ctrl.copy_(stance + torch.tensor(rng.normal(0, 0.3, (2 * count, 12))))
        sim.step(4)
    touching = np.flatnonzero(contacts)[:count]
    assert len(touching) == count
    names = ("qpos", "qvel", "qacc_warmstart", "ctrl")
    # As in `starts`.
    return {name: torch.from_numpy(sim.batch.bind(name)[touching]).float() for name in names}


def unsaturated(states: dict[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """The first `count` states in which no actuator reaches its limit within four timesteps."""
    free = []
    for i in range(len(states["qpos"])):
        data = mujoco.MjData(quadruped())
        for name, value in states.items():
            getattr(data, name)[:] = value[i]
        forces = []
        for _ in range(4):
            mujoco.mj_step(quadruped(), data)
            forces.append(np.abs(data.actuator_force))
        if (np.max(forces, 0) < 0.999 * quadruped().actuator_forcerange[:, 1]).all():
            free.append(i)
    assert len(free) >= count
    return {name: value[free[:count]] for name, value in states.items()}


def control_step(
    backend: str, states: dict[str, torch.Tensor], **solver: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """qpos and qvel after four timesteps from `states` with some solver settings."""
    model = copy.copy(quadruped())
    for name, value in solver.items():
        setattr(model.opt, name, value)
    sim = make_sim(backend, model, len(states["qpos"]), device="cpu")
    if isinstance(sim, Native):
        for name, value in states.items():
            torch.from_numpy(sim.batch.bind(name)).copy_(value)
    else:
        sim.load(copies(sim.tensors()) | states)
    sim.step(4)
    assert not sim.fault().any()
    return sim.qpos.double(), sim.qvel.double()


CONVERGED = {"iterations": 100, "ls_iterations": 50}


def largest_differences(states: dict[str, torch.Tensor], backend: str) -> tuple[float, float]:
    """Of qpos and qvel after a control step with a converged solver, from those of MuJoCo C."""
    ours, theirs = (control_step(name, states, **CONVERGED) for name in (backend, "native"))
    dq, dv = ((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))
    return dq, dv


def test_warp_is_mujoco_on_the_quadruped():
    """A converged control step agrees to 1e-5 m or rad and 1e-3 m/s or rad/s."""
    states = standing(100)
    dq, dv = largest_differences(states, "warp")
    assert dq <= 1e-5 and dv <= 1e-3


@pytest.mark.slow
@NO_JAX
def test_mjx_in_float64_is_mujoco():
    """In float64 it agrees to rounding, where no actuator is saturated: MJX keeps damping there."""
    program = "import tests.sim.test_sim as t; states = t.unsaturated(t.standing(130), 100); "
    program += "print(*t.largest_differences(states, 'mjx'))"
    done = run_python(program, JAX_ENABLE_X64="1", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    dq, dv = map(float, done.stdout.split())
    assert dq <= 1e-12 and dv <= 1e-10


@pytest.mark.parametrize("backend", ["native", "warp"])
def test_training_solver_is_close_to_converged(backend):
    """With the model's few iterations 1 % of 512 states are off by 1e-3 at most. Of MJX 13 %."""
    states = standing(512)
    expected, _ = control_step("native", states, **CONVERGED)
    off = (control_step(backend, states)[0] - expected).abs().amax(1)
    share = (off > 1e-3).double().mean()
    assert share <= 0.01


PLATE = """
<mujoco>
  <option timestep="0.004" jacobian="dense" iterations="20" ls_iterations="50">
    <flag autoreset="disable"/>
  </option>
  <worldbody>
    <body name="plate" mocap="true" pos="0 0 0.5"><geom type="box" size="0.2 0.2 0.05"/></body>
    <body name="mark" mocap="true" pos="1 0 0"/>
    <body pos="0 0 0.65"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
  </worldbody>
  <sensor><framepos objtype="xbody" objname="plate"/></sensor>
</mujoco>
"""


def test_mocap_bodies_are_placed(backend):
    """They stand where they are written, in one world alone, carry what lies on them, and stay
    there when a world restarts, whose sensors know it at once."""
    m = mujoco.MjModel.from_xml_string(PLATE)
    sim = make_sim(backend, m, 3)
    assert sim.mocap_pos.shape == (3, 2, 3) and sim.mocap_quat.shape == (3, 2, 4)
    raised = torch.tensor([0.0, 0.0, 0.6]).to(sim.mocap_pos)
    for _ in range(50):  # by 0.1 m in 0.2 s
        sim.mocap_pos[1, 0] += (raised - sim.mocap_pos[1, 0]) / 10
        sim.step(1)
    assert sim.qpos[1, 2] > 0.72 > 0.66 > sim.qpos[0, 2]
    torch.testing.assert_close(sim.sensordata[1].float(), raised.float(), atol=2e-3, rtol=0)
    mask = torch.tensor([False, True, True])
    sim.mocap_pos[2, 0] = torch.tensor([0.0, 0.3, 0.5]).to(sim.mocap_pos)
    before = sim.mocap_pos.clone()
    qpos = torch.tensor(m.qpos0, dtype=torch.float32).expand(3, -1)
    sim.reset(mask, qpos, torch.zeros(3, m.nv))
    assert torch.equal(sim.mocap_pos, before) and not sim.fault().any()
    torch.testing.assert_close(sim.sensordata[1:], sim.mocap_pos[1:, 0], check_dtype=False)
    state, other = copies(sim.tensors()), make_sim(backend, m, 3)
    other.load(state)
    assert torch.equal(other.mocap_pos, before)
