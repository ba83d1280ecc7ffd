"""Dreams: physics in numbers, the model, returns, and what every learner must keep."""

import math
from types import SimpleNamespace
from typing import Any

import mujoco
import pytest
import torch

from gpusim_rl.algorithms.dream.dream import returns, terms_without_slope
from gpusim_rl.algorithms.dream.model import solve
from gpusim_rl.algorithms.dream.physics import Physics
from gpusim_rl.algorithms.dream.spec import SPEC
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.assembly.joining import RunSpec, check_dreams
from gpusim_rl.core.distributed import SINGLE
from gpusim_rl.core.maths import from_euler, product, rotate
from gpusim_rl.core.ring import cleared
from gpusim_rl.evaluation.evaluate import STOP_SEED, evaluate
from gpusim_rl.fuse.adjoint import Differentiable
from gpusim_rl.training import loop
from gpusim_rl.training.trainer import Trainer
from tests.command_lines import TINY
from tests.guard import reads_nothing
from tests.worlds import (
    TASKS,
    check_words,
    differing,
    goes_on,
    join,
    make_config,
    make_env,
    read,
    refusal,
)

TINY_DREAM = ("algo=dream", "algo.members=2", "algo.batch_size=32", "algo.model_batch=32")
TINY_DREAM += ("algo.warmup=16", "algo.replay=32", "algo.steps=2", "fuse=off")
SMALL: dict[str, Any] = dict(hidden=(16, 16), model_hidden=(16,), batch_size=24, model_batch=48)
SMALL |= dict(warmup=64, model_updates=1, updates=1, replay=24, steps=2)
EVERY = ["cartpole", "quadruped", "drone", "hopper"]


def marks(name: str) -> Any:
    """Two tasks are for each run of the tests: the kernels of one take seconds to compile."""
    return [] if name in ("cartpole", "quadruped") else [pytest.mark.slow]


def make_dream(env: Any, *, num_steps: int = 8, fuse: str = "off", **numbers: Any) -> Any:
    """An iteration of a small learner that dreams; `numbers` are those of `Settings`."""
    values = {key: x for key, x in read("algo/dream").items() if key != "name"}
    run = dict(num_steps=num_steps, fuse=fuse)
    return join(env, SPEC, values | SMALL | numbers, **run)


def transitions(made: Any) -> tuple[Any, Any]:
    """Rows of the physics before and after the steps in the ring, (n, …)."""
    column = lambda name: made.ring.record.column(name)[: int(made.ring.written)].flatten(0, 1)  # noqa: E731
    names = ("qpos", "qvel", "sensordata")
    before = {x: column(f"rows/{x}") for x in names} | {"ctrl": column("after/ctrl")}
    return before, {x: column(f"after/{x}") for x in names}


@pytest.mark.parametrize("name", EVERY)
def test_a_change_leads_from_one_state_to_the_next(name):
    """What lies between two recorded states makes the second of the first."""
    made = make_dream(make_env(name, 8))
    made.iteration()
    physics = made.learner.model.physics
    before, after = transitions(made)
    moved = physics.moved(before, physics.change(before, after))
    for x, value in after.items():
        # a quaternion and its opposite are one rotation
        signs = 1.0
        if physics.free and x == "qpos":
            signs = torch.ones_like(value)
            signs[:, 3:7] = (moved[x][:, 3:7] * value[:, 3:7]).sum(1, keepdim=True).sign()
        if name == "drone" and x == "sensordata":
            continue
        assert (moved[x] - signs * value).abs().lt(1e-3).all(), x
    assert physics.change(before, after).abs().max() > 0.01


@pytest.mark.parametrize("name", ["quadruped", "drone"])
def test_place_and_heading_do_not_matter(name):
    """A state that is moved on the ground and turned about the vertical has the same numbers."""
    made = make_dream(make_env(name, 8))
    made.iteration()
    physics = made.learner.model.physics
    before, after = transitions(made)
    m, shift = made.learner.dreams.model, torch.tensor([3.0, -2.0, 0.0])
    turn = from_euler(*torch.tensor([0.0, 0.0, 1.2]))
    elsewhere = []
    for rows in (before, after):
        q = rows["qpos"].clone()
        q[:, :3], q[:, 3:7] = (
            rotate(turn.expand(len(q), 4), q[:, :3]) + shift,
            product(turn.expand(len(q), 4), q[:, 3:7]),
        )
        v, sensors = rows["qvel"].clone(), rows["sensordata"].clone()
        v[:, :3] = rotate(turn.expand(len(q), 4), v[:, :3])
        for i in range(m.nsensor):
            kind, at = mujoco.mjtSensor(int(m.sensor_type[i])).name, int(m.sensor_adr[i])
            part = sensors[:, at : at + int(m.sensor_dim[i])]
            if kind in ("mjSENS_FRAMEPOS", "mjSENS_FRAMELINVEL"):
                part[:] = rotate(turn.expand(len(q), 4), part) + shift * (kind == "mjSENS_FRAMEPOS")
            elif kind == "mjSENS_FRAMEQUAT":
                part[:] = product(turn.expand(len(q), 4), part)
        elsewhere.append(rows | {"qpos": q, "qvel": v, "sensordata": sensors})
    for one, other in (
        (physics.inputs(before), physics.inputs(elsewhere[0])),
        (physics.change(before, after), physics.change(*elsewhere)),
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_an_image_moves_as_the_robot_does():
    """The physics of a mirrored state is the mirror image of the physics, in MuJoCo C."""
    dreams = make_dream(make_env("quadruped", 8)).learner.dreams
    images, m, results = dreams.images(), dreams.model, []
    data = mujoco.MjData(m)
    mujoco.mj_resetDataKeyframe(m, data, 0)
    data.qvel[:] = 0.3 * torch.randn(m.nv, generator=torch.Generator().manual_seed(0)).numpy()
    data.ctrl[6:] += 0.2
    names = ("ctrl", "qpos", "qvel")
    state = {x: torch.tensor(getattr(data, x)).float()[None] for x in names}
    for rows in (state, {x: images[x](y) for x, y in state.items()}):
        for x, value in rows.items():
            getattr(data, x)[:] = value[0].numpy()
        for _ in range(10):
            mujoco.mj_step(m, data)
        after = ("qpos", "qvel", "sensordata")
        results.append({x: torch.tensor(getattr(data, x)).float()[None] for x in after})
    one, other = results
    for x, value in one.items():
        torch.testing.assert_close(images[x](value), other[x], atol=2e-2, rtol=2e-2)
    assert (one["qvel"] - other["qvel"]).abs().max() > 0.1


def test_returns_are_the_formula():
    """λ-returns of three steps, of which the second ends the first dream, written out."""
    reward, values = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]), torch.full((4, 2), 10.0)
    goes_on = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    g, lam = 0.5, 0.25
    last = 4 + g * 10
    middle = 2 + g * (0.75 * 10 + 0.25 * last)
    first = 1 + g * (0.75 * 10 + 0.25 * middle)
    expected = [1 + g * (0.75 * 10 + 0.25 * 2), first]
    torch.testing.assert_close(returns(reward, goes_on, values, g, lam)[0], torch.tensor(expected))


def test_a_solution_is_torchs():
    """Of readings that nearly repeat each other, as of a joint and its target."""
    torch.manual_seed(0)
    x = torch.randn(500, 40).double()
    x = torch.cat([x, x + 1e-2 * torch.randn(500, 40).double()], 1)
    a, b = x.T @ x + 1e-4 * 500 * torch.eye(80).double(), torch.randn(80, 7).double()
    torch.testing.assert_close(solve(a, b), torch.linalg.solve(a, b), rtol=1e-9, atol=1e-12)


def test_a_regression_finds_what_is_linear():
    """A linear map is found to 1 %, whatever stands in steps that are not valid."""
    model = make_dream(make_env("quadruped", 8)).learner.model
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, len(model.center), generator=generator)
    true = torch.randn(len(model.center), len(model.mean), generator=generator)
    valid = torch.ones(2000)
    valid[::7], y = 0.0, x @ true + 3.0
    y[::7] = 1e6
    with torch.no_grad():
        model.regress(x, y, valid, SINGLE)
        left = model.error(x, y, valid, SINGLE)
    assert left.max() < 0.01 and left.shape == (len(model.physics.readings),)


@pytest.mark.parametrize("name", [pytest.param(x, marks=marks(x)) for x in EVERY])
def test_an_iteration_reads_nothing(name):
    """The last of four iterations reads nothing but the engine, and a state goes on to the bit."""
    dream, other = (make_dream(make_env(name, 8, episode=0.3)) for _ in range(2))
    for _ in range(3):
        dream.iteration()
    assert reads_nothing(dream, calls=300) == set()
    row = dream.report()()
    assert row["fault"] == 0 and row["skipped"] == 0 and math.isfinite(row["critic_loss"])
    assert 0 < row["model_error"] < 10
    state = goes_on(dream, other, 2)
    assert {"dream/linear", "dream/w.0", "adam/model_model/exp_avg", "ring/float32"} <= state.keys()


@pytest.mark.parametrize("what", ["after/qvel", "obs"])
def test_what_is_no_number_is_never_learned_from(what):
    """Steps with a NaN in the ring are left out, and everything stays finite."""
    dream = make_dream(make_env("quadruped", 8))
    for _ in range(2):
        dream.iteration()
    for world, value in ((3, torch.nan), (5, torch.inf)):
        dream.ring.record.column(what)[2:9, world] = value
    for _ in range(2):
        dream.iteration()
    learner = dream.learner
    learned = [*learner.policy.state_dict().values(), *learner.model.state_dict().values()]
    assert all(torch.isfinite(x).all() for x in learned)
    assert dream.report()()["skipped"] == 0


def test_a_model_that_predicts_nothing_is_not_followed():
    """The policy stays as it is, and the iterations count as bad ones, which a training ends."""
    dream = make_dream(make_env("cartpole", 8), model_rate=1e-9)
    for _ in range(3):
        dream.iteration()
    before = {x: y.clone() for x, y in dream.policy.actor.net.state_dict().items()}
    with torch.no_grad():
        dream.learner.model.w[-1].normal_().mul_(1e4)
    for _ in range(3):
        dream.iteration()
    row = dream.report()()
    assert row["model_error"] > 3 and row["bad"] >= 2 and row["skipped"] > 0
    assert differing(before, dream.policy.actor.net.state_dict()) == []


def test_terms_without_a_slope_are_named(capfd):
    """One line names the terms that no gradient reaches, and those alone."""
    for name, terms in (("hopper", "healthy"), ("drone", "crash")):
        make_dream(make_env(name, 8))
        said = [x for x in capfd.readouterr().out.splitlines() if x.startswith("algo=dream: ")]
        wanted = f"algo=dream: no gradient of the reward terms {terms}: the values alone show them"
        assert said == [wanted]
    dreams = make_dream(make_env("quadruped", 8)).learner.dreams
    assert "algo=dream" not in capfd.readouterr().out
    end = dreams.end
    dreams.end = lambda *given: end(*given)._replace(terms=torch.zeros(8, len(dreams.terms)))
    paid = [x for x, weight in zip(dreams.terms, dreams.weights, strict=True) if weight != 0]
    assert terms_without_slope(dreams, 12) == paid


@pytest.mark.parametrize(
    "words, says",
    [
        (["reward=rnd"], "dreams of the task's own reward alone: set reward=none"),
        (
            ["algo.batch_size=100"],
            "algo.batch_size=100: expected a multiple of num_envs × algo.mem",
        ),
        (["algo.bound=3"], "algo.bound=3: expected at most task.clip=1"),
        (["algo.memory=gru"], "unknown key 'algo.memory'"),
    ],
)
def test_what_is_refused(words, says):
    """One line that names the key, before anything is trained."""
    assert says in refusal("task=cartpole", "algo=dream", "device=cpu", *words)


def test_nothing_behind_an_end_counts():
    """Neither rewards nor values of what a dream does after its first step, where that ends it."""
    made = make_dream(make_env("cartpole", 8), steps=3)
    made.iteration()
    learner = made.learner
    after, ends = learner.after_physics, iter((True, False, False))

    def ending(rows):
        results = after(rows)
        return results | {"dream/ended": torch.full_like(results["dream/ended"], next(ends))}

    learner.after_physics = ending
    unit = torch.full((8, learner.n // 8), 0.5)
    steps = cleared(made.ring.take(*made.ring.draw(unit, 0).places.T))
    dream = learner.dream(steps, torch.ones(learner.n))
    assert dream.alive[0].all() and not dream.alive[1:].any()
    assert dream.reward[0].any() and not dream.reward[1:].any()
    assert not dream.views[1:].any()
    gain = returns(dream.reward, dream.alive[1:], torch.full((4, learner.n), 9.0), 0.9, 0.9)
    assert torch.equal(gain[0], dream.reward[0])


@pytest.mark.parametrize(
    "agents, further, says",
    [(2, {}, "of one agent"), (1, {"camera": 0}, "of rows alone, and the task has camera")],
)
def test_worlds_that_nobody_dreams_of(agents, further, says):
    """Teams and further views, such as an image, are refused in one line."""
    env: Any = SimpleNamespace(agents=agents, observer=SimpleNamespace(further=further))
    with pytest.raises(ValueError, match=f"this learner dreams {says}"):
        check_dreams(env, RunSpec(num_steps=8, graph="off", threads=0))


def test_joints_that_no_model_learns():
    """A robot with a ball joint is refused by the joint's name."""
    body = '<body><joint name="hip" type="ball"/><geom size="1"/></body>'
    m = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    with pytest.raises(ValueError, match="the joint 'hip' is none"):
        Physics(m, torch.device("cpu"))


def gradients(made: Any) -> list[torch.Tensor]:
    """Those of the actor's weights, of the rewards and views of one batch of dreams."""
    learner, ring = made.learner, made.ring
    places = ring.draw(learner.rng.uniform("dream/starts", 0.0, learner.ones), 0).places
    steps = cleared(ring.take(*places.T))
    dream = learner.dream(steps, 1 - steps.column("fault"))
    value = dream.reward.sum() + dream.views.tanh().sum()
    return [*torch.autograd.grad(value, [*learner.policy.actor.net.parameters()])]


@pytest.mark.parametrize("name", [pytest.param(x, marks=marks(x)) for x in TASKS])
def test_kernels_have_autograds_gradient(name):
    """That of a whole dream, to 1e-3 of its norm; a step is two kernels forward and two back."""
    dream = make_dream(make_env(name, 8), fuse="on", steps=3)
    dream.iteration()
    learner = dream.learner
    pair = learner.before_physics, learner.after_physics
    assert all(isinstance(x, Differentiable) for x in pair)
    one = gradients(dream)
    learner.before_physics, learner.after_physics = learner.before, learner.after
    other = gradients(dream)
    apart = [(x - y).norm() ** 2 for x, y in zip(one, other, strict=True)]
    assert sum(apart) ** 0.5 <= 1e-3 * sum(x.norm() ** 2 for x in other) ** 0.5


def test_missed_readings_are_said_once(tmp_path, monkeypatch, capsys):
    """After some rows one line names what the model misses; the row has each share by its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "MISSED", 0.0)  # any model misses something
    words = ("task=cartpole", *TINY, *TINY_DREAM, f"iterations={loop.ABOVE + 3}", "run_dir=run")
    trainer = Trainer(check_words(*words, "log=none"))
    rows = list(trainer.steps())
    trainer.close()
    assert capsys.readouterr().out.count("the model leaves more than half of the variance") == 1
    names = {"model/qpos.joints", "model/qvel.joints", "model/jointpos", "model_error"}
    assert names <= rows[-1].keys()


@pytest.mark.slow
def test_the_cartpole_is_learned():
    """14,336 samples give 0.9 of the episodes."""
    cfg = make_config("task=cartpole", "algo=dream", "device=cpu", "threads=1", "sim.threads=1")
    dream = make_iteration(cfg)
    for _ in range(14):
        dream.iteration()
    task, weights, noise = dream.env.task, cfg.task.weights, cfg.task.noise
    options = dict(weights=weights, noise=noise, episodes=32, seed=STOP_SEED)
    assert evaluate(dream.policy, task, **options)["success"] >= 0.9
