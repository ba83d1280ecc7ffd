"""Domain randomization: every field's distribution, in both Sims; what it does to the physics; off
costs nothing."""

import copy
import math
import re
from operator import attrgetter

import mujoco
import pytest
import torch
from torch import Tensor

from gpusim_rl.config import compose
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.randomization.entries import whole_entries
from gpusim_rl.envs.randomization.fields import BIAS, FIELDS
from tests.worlds import (
    ROOT,
    ROTORS,
    SIMS,
    everything,
    make_env,
    read,
    with_ranges,
)

WORLDS = 4096
# Kolmogorov's distance of 4,096 numbers from their distribution; 1 in 800 is farther, of this seed
# none
FAR = 0.03
KINDS = ("uniform", "log_uniform", "normal")


def cdf(kind: str, x: Tensor, low: float, high: float) -> Tensor:
    """The distribution function that docs/randomisation.md promises."""
    if kind == "uniform":
        return (x - low) / (high - low)
    if kind == "log_uniform":
        return (x / low).log() / math.log(high / low)
    phi = torch.special.ndtr
    tail = phi(torch.tensor(-3.0, dtype=x.dtype))
    return (phi((x - (low + high) / 2) / ((high - low) / 6)) - tail) / (1 - 2 * tail)


def distance(kind: str, x: Tensor, low: float, high: float) -> float:
    """Kolmogorov's: between the distribution of x (n,) and that of its kind."""
    x, n = x.double().sort().values, len(x)
    f = cdf(kind, x, low, high)
    steps = torch.arange(n + 1) / n
    return max((f - steps[:-1]).abs().max().item(), (f - steps[1:]).abs().max().item())


def drawn(env: Env, name: str) -> Tensor:
    """(B, columns): what was drawn of a field, as Sim, first states or views have it."""
    mjm, sim, task = env.task.mjm, env.sim, env.task
    start = task.start(WORLDS, env.rng)

    def share(field: str, rows=slice(6, None), part=slice(None)) -> Tensor:
        own = torch.from_numpy(getattr(mjm, field))[rows][..., part]
        return (sim.model(field)[:, rows][..., part] / own).flatten(1)

    def more(field: str, body: str) -> Tensor:
        at = mjm.body(body).id
        own = torch.from_numpy(getattr(mjm, field))[at]
        return (sim.model(field)[:, at] - own).reshape(WORLDS, -1)

    def gravity() -> Tensor:
        return sim.model("opt.gravity").double()

    pushes = task.randomization.push(env.rng, sim.force * 0, torch.ones(WORLDS, dtype=torch.int64))
    if name.startswith("bias."):
        biases = task.randomization.biases
        parts = env.memory["sensor_bias"].split(list(biases.values()), dim=1)
        return parts[list(biases).index(name[5:])]
    return {
        "friction": lambda: sim.model("geom_friction")[:, :, 0],
        "mass": lambda: share("body_mass", slice(1, 2)),
        "inertia": lambda: share("body_inertia", slice(mjm.body("FL_hip").id, None, 12), slice(1)),
        "center": lambda: more("body_ipos", "trunk"),
        "payload": lambda: more("body_mass", "FR_hip"),
        "armature": lambda: share("dof_armature"),
        "damping": lambda: share("dof_damping"),
        "joint_friction": lambda: share("dof_frictionloss"),
        "kp": lambda: share("actuator_gainprm", slice(None), slice(1)),
        "kd": lambda: share("actuator_biasprm", slice(None), slice(2, 3)),
        "strength": lambda: share("actuator_forcerange", slice(None)),
        "gravity": lambda: gravity().norm(dim=1, keepdim=True),
        "tilt": lambda: torch.atan2(gravity()[:, :2].norm(dim=1), -gravity()[:, 2])[:, None],
        "encoder": lambda: env.memory["encoder"][:, 7:],
        "start_angle": lambda: (sim.qpos - start["qpos"])[:, 7:],
        "start_speed": lambda: (sim.qvel - start["qvel"])[:, 6:],
        "start_height": lambda: (sim.qpos - start["qpos"])[:, 2:3],
        "start_velocity": lambda: (sim.qvel - start["qvel"])[:, :3],
        "start_spin": lambda: (sim.qvel - start["qvel"])[:, 3:6],
        "push": lambda: pushes["kick"][pushes["kick"][:, 0] != 0][:, :2],
        "force": lambda: pushes["force"][pushes["force"][:, 0] != 0][:, :2],
    }[name]()


@pytest.mark.parametrize("sim, kind", [*(("native", kind) for kind in KINDS), ("warp", "uniform")])
def test_distributions(sim, kind):
    """Over 4,096 worlds each number of a field is of its range and kind alone, and its own."""
    randomise = everything(kind)
    for name in ("push", "force"):
        randomise[name]["every"] = 1e-3  # s: in every step
    env = make_env(num_envs=WORLDS, sim=sim, randomise=randomise)
    for name, entry in whole_entries(with_ranges(randomise)).items():
        x, low, high = drawn(env, name), entry["low"], entry["high"]
        assert len(x) == WORLDS, name
        # The rounding of float32, after a difference.
        slack = 2e-6 * max(1.0, abs(env.sim.qpos).max().item()) * (30 if name == "tilt" else 1)
        assert low - slack <= x.min() and x.max() <= high + slack, name
        for column in x.T:
            assert distance(kind, column, low, high) < FAR, name
            others = [distance(other, column, low, high) for other in KINDS if other != kind]
            assert min(others) > 3 * FAR, name
        one = entry.get("each") is False
        assert torch.allclose(x, x[:, :1].expand_as(x)) == (one or x.shape[1] == 1), name
        if not one and x.shape[1] > 1:
            assert abs(torch.corrcoef(x[:, :2].T.double())[0, 1]) < 0.06, name


# -- what it does ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SIMS)
def lab(request) -> Env:
    """Four worlds in which every model field is a world's own, each as the model has it."""
    names = "friction mass armature damping joint_friction kp kd strength gravity".split()
    randomise = {name: {"kind": "uniform", "low": 1.0, "high": 1.0} for name in names}
    randomise["friction"]["how"] = randomise["gravity"]["how"] = "scale"
    return make_env(num_envs=4, sim=request.param, randomise=randomise)


def momentum(env: Env, world: int) -> Tensor:
    """(3,) linear momentum of a world [kg m/s], by MuJoCo C on its masses."""
    model, data = copy.copy(env.task.mjm), mujoco.MjData(env.task.mjm)
    if "body_mass" in env.task.fields:
        model.body_mass[:] = env.sim.model("body_mass")[world].numpy()
    mujoco.mj_setConst(model, mujoco.MjData(model))
    data.qpos[:], data.qvel[:] = env.sim.qpos[world].numpy(), env.sim.qvel[world].numpy()
    mujoco.mj_forward(model, data)
    mujoco.mj_subtreeVel(model, data)
    return torch.from_numpy(model.body_subtreemass[0] * data.subtree_linvel[0])


def lift(env: Env, **changes: list) -> None:
    """Worlds in the stance, at rest, 5 m up; model fields as they are but for these changes."""
    for name in env.task.fields:
        env.sim.model(name).copy_(torch.from_numpy(attrgetter(name)(env.task.mjm)))
    for name, factors in changes.items():
        name = "opt.gravity" if name == "gravity" else name
        for world, factor in enumerate(factors):
            env.sim.model(name)[world] *= factor
    env.sim.refresh()
    env.sim.reset(torch.ones(4, dtype=torch.bool), env.sim.qpos, env.sim.qvel)
    env.sim.qpos[:] = torch.from_numpy(env.task.mjm.key_qpos[0]).to(env.sim.qpos)
    env.sim.qpos[:, 2] = 5.0
    env.sim.qvel.zero_()
    env.sim.ctrl[:] = env.task.stance


def test_gravity_reaches_the_physics(lab):
    """Without gravity the robot floats where it is; under the Moon's it falls as there."""
    lift(lab, gravity=[0.0, 1.0, 1.62 / 9.81, 0.5])
    lab.sim.model("opt.gravity")[3, 0] = 1.0  # m/s²
    lab.sim.step(40)
    seconds, mass = 40 * lab.task.mjm.opt.timestep, lab.task.mjm.body_mass.sum()
    speed = torch.stack([momentum(lab, i) for i in range(4)]) / mass / seconds
    assert speed[:, 2].tolist() == pytest.approx([0.0, -9.81, -1.62, -4.905], abs=3e-3)
    assert speed[:, 0].tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0], abs=3e-3)


def test_a_force_gives_momentum_and_mass_takes_speed(lab):
    """A force adds F · t to the momentum, and takes a heavier trunk less far."""
    heavy = torch.ones(14, dtype=lab.sim.qpos.dtype)
    heavy[1] = 1.6  # the trunk: 4 kg more
    lift(lab, gravity=[0.0] * 4, body_mass=[1.0, heavy])
    lab.sim.force[:2, 0] = 50.0
    lab.sim.step(20)
    given = 50.0 * 20 * lab.task.mjm.opt.timestep
    got = [momentum(lab, i)[0].item() for i in range(3)]
    assert got == pytest.approx([given, given, 0.0], rel=1e-3, abs=1e-4)
    moved = lab.sim.qpos[:, 0] - lab.task.rest[0]
    assert 0 < moved[1] < 0.9 * moved[0] and abs(moved[2]) < 1e-6
    lab.sim.reset(torch.arange(4) == 1, lab.sim.qpos, lab.sim.qvel)
    assert lab.sim.force[:, 0].tolist() == [50.0, 0.0, 0.0, 0.0]


def test_servos_feel_their_gains(lab):
    """Twice the stiffness is twice the torque of an error, and the strength bounds it."""
    gain = [1.0, 2.0, 2.0]
    lift(lab, actuator_gainprm=gain, actuator_biasprm=gain, actuator_forcerange=[1.0, 1.0, 0.1])
    lab.sim.ctrl[:, 0] += 0.1
    lab.sim.step(1)
    torque = lab.current_state().FL_abduction_torque[:, 0].tolist()
    assert torque[1] == pytest.approx(2 * torque[0], rel=1e-3)
    assert torque[2] == pytest.approx(0.1 * lab.task.mjm.actuator_forcerange[0, 1], rel=1e-5)


def test_joints_feel_their_constants(lab):
    """More rotor inertia, damping or dry friction: less speed of a joint under the same command."""
    more = dict(dof_armature=[1, 4, 1, 1], dof_damping=[1, 1, 4, 1], dof_frictionloss=[1, 1, 1, 4])
    lift(lab, gravity=[0.0] * 4, **more)
    lab.sim.ctrl[:, 2] += 0.05
    lab.sim.step(10)
    speed = lab.sim.qvel[:, 8].abs()
    assert (speed[1:] < 0.98 * speed[0]).all()


def test_friction_brakes(lab):
    """A robot that slides along the ground on its feet comes to rest sooner with more friction."""
    lift(lab, geom_friction=[0.1, 0.25, 0.5, 1.0])
    lab.sim.qpos[:, 2], lab.sim.qvel[:, 0] = lab.task.mjm.key_qpos[0][2], 1.0
    lab.sim.step(20)
    speed = lab.sim.qvel[:, 0]
    assert (speed[:-1] > speed[1:] + 0.01).all()


def test_force_pushes():
    """A push lasts as long as its hold, none outlives a restart, and state() knows of it."""
    hold = {"kind": "uniform", "low": 20.0, "high": 20.0, "every": 0.2, "hold": [0.1, 0.1]}
    env = make_env(num_envs=32, randomise={"force": hold}, episode=1.0)
    runs, length = [], torch.zeros(32)
    for _ in range(60):
        before = env.memory["force_left"].clone()
        env.step(torch.zeros(32, 12))
        on, fresh = env.sim.force[:, 0] != 0, env.time == 0
        assert torch.equal(on, env.memory["force_left"] > 0)
        assert (env.sim.force[on][:, :2] == 20).all() and (env.sim.force[:, 2:] == 0).all()
        assert not (on & fresh).any()
        length = torch.where(fresh, torch.nan, torch.where(on & (before <= 1), 1.0, length + on))
        runs += length[(env.memory["force_left"] == 1)].tolist()
    runs = [x for x in runs if not math.isnan(x)]
    assert len(runs) > 50 and set(runs) == {5.0}
    twin = make_env(num_envs=32, randomise={"force": hold}, episode=1.0)
    twin.load(env.state())
    assert torch.equal(twin.sim.force, env.sim.force) and twin.sim.force.any()


def test_pushes_come_as_often_as_they_should():
    """Pushes are Poisson's: of 4,096 worlds in 20 steps, within five deviations."""
    push = {"kind": "uniform", "low": 0.1, "high": 0.2, "every": 2.0}
    env, count = make_env(num_envs=WORLDS, randomise={"push": push}), 0
    for step in range(1, 21):
        env.rng.draw(torch.tensor(step))
        kick = env.task.randomization.push(env.rng, env.sim.force, None)["kick"]
        count += (kick[:, 0] != 0).sum().item()
    mean = 20 * WORLDS * 0.02 / 2.0
    assert abs(count - mean) < 5 * math.sqrt(mean)


def test_encoders_and_biases():
    """The actor sees q + δ and biased readings; targets are less by δ; both anew at a restart."""
    randomise = everything() | {"push": {"kind": "off"}, "force": {"kind": "off"}}
    env = make_env(num_envs=8, randomise=randomise, episode=0.2)
    env.measurement.amplitudes.zero_()
    env.update_observations()
    offset, own, task = env.memory["encoder"], env.memory["sensor_bias"], env.task
    for _ in range(12):
        action = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
        before, s = offset.clone(), env.current_state()
        want = env.task.control(s.with_(action=action, previous=env.action)) - before[:, 7:]
        env.apply_action(action)
        torch.testing.assert_close(env.sim.ctrl.float(), want)
        env.step_physics()
        env.finish_step()
        obs = env.observation["actor"]
        critic = env.observation["critic"][:, : obs.shape[1]]
        read, biased = {"joints": "joint_pos", "gyro": "gyro"}, own.split([3, 12], dim=1)
        parts = (obs - critic).split(list(env.term_widths.values()), dim=1)
        for name, error in zip(env.term_widths, parts, strict=True):
            want = dict(zip(task.randomization.biases, biased, strict=True)).get(read.get(name, ""))
            want = 0 * error if want is None else want
            want = want + offset[:, 7:] if name == "joints" else want
            torch.testing.assert_close(error, want, atol=1e-6, rtol=0)
        assert torch.equal((offset != before).any(1), env.time == 0)
    assert own.all()


# -- the contracts ---------------------------------------------------------------------------------


def test_off_costs_nothing():
    """Without randomization no field is kept per world, no number drawn and nothing remembered."""
    env = make_env(num_envs=4, randomise={})
    assert env.task.fields == () and not env.task.randomization.memory(4) and not env.sim._model
    assert not [name for name in env.rng._place if name.startswith("randomise/")]


def test_an_evaluation_has_no_pushes():
    """The task as it is evaluated keeps what a robot may be, without pushes."""
    task = make_env(num_envs=2, randomise=everything()).task.evaluation()
    on = set(task.randomization.entries)
    assert {"push", "force", *ROTORS} == set(FIELDS) - on


def test_cartpole_has_what_it_can():
    """A task without a free base takes the fields that make sense, encoders included."""
    names = ("friction", "mass", "inertia", "gravity", "encoder", "start_angle")
    randomise = {name: {"kind": "uniform"} for name in names}
    for name in ("armature", "damping", "joint_friction"):  # cartpole has none of its own
        randomise[name] = {"kind": "uniform", "how": "set"}
    env = make_env("cartpole", 4, randomise=randomise)
    env.measurement.amplitudes.zero_()
    env.update_observations()
    angle = env.sim.qpos[:, 1] + env.memory["encoder"][:, 1]
    seen, want = env.observation["actor"][:, 1:3], torch.stack([angle.cos(), angle.sin()], 1)
    torch.testing.assert_close(seen.double(), want, atol=1e-6, rtol=0)
    assert env.memory["encoder"].all() and not env.step(torch.zeros(4, 1)).fault.any()


@pytest.mark.parametrize(
    "task, name, entry, says",
    [
        ("quadruped", "sonar", {}, ": no such field, choose one of friction, mass"),
        ("quadruped", "mass", {"lo": 1}, ": unknown key 'lo', choose one of kind, low, high, "),
        ("quadruped", "mass", {"low": 2.0}, ": low=2.0 is above high=1.1"),
        ("quadruped", "friction", {"kind": "log_uniform", "low": 0.0}, ".low=0.0: a log_uniform"),
        ("quadruped", "kp", {"kind": "normal", "low": 0.0}, ".low=0.0: expected more than 0"),
        ("quadruped", "push", {"every": 0}, ".every=0: expected more than 0 s"),
        ("quadruped", "force", {"hold": [0.5, 0.1]}, ".hold=[0.5, 0.1]: expected"),
        ("quadruped", "mass", {"only": "trunk"}, ".only=trunk: expected a list of names"),
        ("quadruped", "kp", {"only": ["x"]}, ".only: no actuator 'x', choose of FL_abduction"),
        # a field that the model has nothing for
        ("cartpole", "strength", {}, ": actuator 'slide' has no force limit"),
        ("cartpole", "kd", {}, ": actuator 'slide' is no position servo"),
        ("cartpole", "force", {}, ": this model has no free base"),
        ("cartpole", "start_spin", {}, ": this model has no free base"),
        ("cartpole", "payload", {}, ": this model has no free base, name the body with only=[NA"),
    ],
)
def test_nonsense_gets_a_line(task, name, entry, says):
    """A wrong entry is a ValueError that names it and what there is."""
    with pytest.raises(ValueError, match=re.escape(f"task.randomise.{name}{says}")):
        make_env(task, 2, randomise={name: {"kind": "uniform"} | entry})


def test_a_bias_of_no_reading_gets_a_line():
    """So is the bias of something that the task does not read."""
    bias = {"sonar": {"kind": "uniform", "low": 0.0, "high": 1.0}}
    with pytest.raises(ValueError, match=r"bias\.sonar: no such reading, choose one of gyro, up"):
        make_env(num_envs=2, randomise={"bias": bias})


# -- where it is written ---------------------------------------------------------------------------


def test_the_yaml_lists_every_field():
    """conf/config.yaml has each field, off and with all of its keys, in the order of the table."""
    section = compose.build_base("config", ("task=cartpole",))["task"]["randomise"]
    assert section.keys() == {*FIELDS, "bias"}
    listed = read("config")["task"]["randomise"]
    assert listed.pop("bias") == {} and list(listed) == list(FIELDS)
    for name, entry in listed.items():
        assert entry["kind"] == "off" and tuple(entry) == FIELDS[name].keys


def table_rows(randomise: dict) -> list[str]:
    """The rows of docs/randomisation.md but for meaning and unit."""
    draws = {"world": "once per world", "episode": "at each restart", "push": "at random times"}
    rows = []
    for name, properties in {**FIELDS, "bias.<reading>": BIAS}.items():
        entry = randomise.get(name, {})
        how = entry.get("how", properties.hows[0])
        hows = ", ".join(f"**{x}**" if x == how else x for x in properties.hows)
        default = f"{entry['low']} to {entry['high']}" if properties is not BIAS else "the task's"
        cells = [
            f"`{name}`",
            hows,
            draws[properties.when],
            default,
            " ".join(f"`{key}`" for key in properties.keys if key not in ("kind", "low", "high")),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def test_the_docs_list_every_field():
    """docs/randomisation.md has the table of the code, and says what each field is."""
    table = (ROOT / "docs" / "randomisation.md").read_text().partition("| field |")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert all(meaning and unit for _, meaning, unit, *_ in rows)
    facts = [" | ".join([name, *others]) for name, _, _, *others in rows]
    assert facts == table_rows(read("config")["task"]["randomise"])
