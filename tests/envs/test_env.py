"""Env: time-outs, masked restarts, quarantine, independence of worlds, metrics, randomization,
resume."""

import itertools
import math

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.core import graphs
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.statistics import SUMS
from gpusim_rl.envs.step import Step
from tests.worlds import (
    SIMS,
    copies,
    differing,
    everything,
    make_env,
    make_ppo,
    make_sim_of,
    make_task,
    numbers,
)

QUADRUPED = numbers("quadruped")
PAST = dict(history={"gyro": 4, "joints": 2, "action": 3}, observation_delay=(1, 3))
EVERYTHING = dict(randomise=everything("log_uniform"))
KINDS = ["plain", "past", "everything"]

pytestmark = pytest.mark.usefixtures("elsewhere")


def actions(steps: int, num_envs: int) -> torch.Tensor:
    """(steps, num_envs, 12) fixed actions, the same for world i among any number of worlds."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(steps, 64, 12, generator=g)[:, :num_envs]


def run(env: Env, plan: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """(views, end, reward, ends, qpos, qvel) after each step of a plan (T, B, nu)."""
    history = []
    for action in plan:
        step = env.step(action)
        history.append(
            (*step.observation.values(), *step[1:5], env.sim.qpos.clone(), env.sim.qvel.clone())
        )
    return history


def same(a, b) -> bool:
    """Whether the tensors of two steps, or of two `run`s, are bit for bit the same."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return all(same(x, y) for x, y in zip(a, b, strict=True))


# -- time-outs and restarts ------------------------------------------------------------------------


def test_time_out_shows_the_state_it_ended_in():
    """At a time-out `end` is the critic's view before the restart; the next view is after it."""
    env, twin = make_env(episode=0.1, stagger=False), make_env(episode=20.0, stagger=False)
    plan = 0.1 * actions(5, 16)
    for action in plan[:4]:
        assert not env.step(action).truncated.any()
        twin.step(action)
    last = env.step(plan[4])
    unbroken = twin.step(plan[4])  # the same without a restart
    assert last.truncated.all() and not last.terminated.any() and not last.fault.any()
    assert torch.equal(last.end, unbroken.observation["critic"]) and torch.equal(
        last.reward, unbroken.reward
    )
    assert (last.reward != 0).all()
    terms = twin.task.observe(twin.current_state()) | twin.task.privileged(twin.current_state())
    before = [term.shape[1] for term in terms.values()][: list(terms).index("height")]
    assert torch.equal(last.end[:, sum(before)], twin.sim.qpos[:, 2].float())
    assert (env.sim.qpos[:, 2] != twin.sim.qpos[:, 2]).all() and (env.time == 0).all()
    assert (last.observation["critic"] != last.end).any(1).all()


@pytest.mark.parametrize("sim", SIMS)
def test_leaving_out_nothing_changes_nothing(sim, monkeypatch):
    """Leaving out work on no world, as on the CPU, changes no bit, over restarts and faults."""
    results, plan = [], actions(24, 8)
    plan[12, 3, 0] = math.nan
    for skips in (True, False):
        monkeypatch.setattr(graphs, "SKIPS", skips)
        env = make_env(num_envs=8, sim=sim, episode=0.3)
        rows = []
        for action in plan:
            step = env.step(action)
            rows += [*step.observation.values(), *step[1:], *copies(env.rows()).values()]
        states = [x for _, x in sorted(env.state().items())]
        results.append([*rows, *states, env.worst_step.row.clone()])
        restarts = env.statistics.sums[SUMS.index("episodes")]
        assert 8 <= restarts < 24  # some steps restart worlds, and some none
    assert same(*([x.nan_to_num() for x in result] for result in results))


def test_a_failure_is_not_a_time_out():
    """A robot on its back is terminated, even in its last step; the others time out."""
    env = make_env(episode=0.04, stagger=False)
    env.step(torch.zeros(16, 12))
    env.sim.qpos[3, 2:7] = torch.tensor([0.5, 0.0, 1.0, 0.0, 0.0], dtype=env.sim.qpos.dtype)
    step = env.step(torch.zeros(16, 12))
    assert step.terminated.nonzero().flatten().tolist() == [3]
    assert torch.equal(step.truncated, ~step.terminated)


def test_restart_is_masked():
    """Worlds whose episode ended begin anew from task.begin; the others go on untouched."""
    env, twin = make_env(episode=0.2), make_env(episode=0.2)
    twin._restart = lambda mask, ended: None
    live = torch.ones(16, dtype=torch.bool)
    for action in 0.1 * actions(8, 16):
        before, step = env.time.clone(), env.step(action)
        twin.step(action)
        done = step.terminated | step.truncated
        live &= ~done
        start = env.task.begin(16, env.rng, env.current_state())
        for name, now in (("qpos", env.sim.qpos), ("qvel", env.sim.qvel), *env.memory.items()):
            assert torch.equal(now[done].float(), start[name][done]), name
        assert (env.time[done] == 0).all() and torch.equal(env.time[~done], before[~done] + 1)
        assert (env.action[done] == 0).all() and torch.equal(env.action[~done], action[~done])
        assert torch.equal(env.sim.qpos[live], twin.sim.qpos[live])
        assert torch.equal(step.observation["critic"][live], twin.observation["critic"][live])
    assert 0 < live.sum() < 16


def test_restarted_views_have_current_sensors():
    """A restarted world is seen as MuJoCo computes it from its new state."""
    env = make_env(episode=0.04, stagger=False)
    env.step(torch.zeros(16, 12))
    assert env.step(torch.ones(16, 12)).truncated.all()
    s = env.current_state()
    for i in range(16):
        data = mujoco.MjData(env.task.mjm)
        data.qpos[:], data.qvel[:] = env.sim.qpos[i].numpy(), env.sim.qvel[i].numpy()
        mujoco.mj_forward(env.task.mjm, data)
        for name in ("up", "gyro", "velocity", "FL_position"):
            got, want = getattr(s, name)[i].double(), torch.from_numpy(data.sensor(name).data)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


def test_stagger_spreads_time_outs():
    """With stagger the first episodes end at many different steps, without it in one."""
    counts = []
    for stagger in (True, False):
        env = make_env(num_envs=64, episode=0.2, stagger=stagger)
        counts.append([env.step(torch.zeros(64, 12)).truncated.sum().item() for _ in range(10)])
    assert sum(counts[0]) >= 64 and max(counts[0]) < 30 and sum(c > 0 for c in counts[0]) >= 8
    assert counts[1] == [0] * 9 + [64]


def test_reward_is_weighted_terms():
    """The reward is dt Σ weight · term of the state after the step; actions are clamped."""
    env = make_env(stagger=False)
    action = 100 * actions(1, 16)[0]
    twin = make_env(stagger=False)
    seen, reward = [], twin.task.reward
    twin.task.reward = lambda s: seen.append(reward(s)) or seen[-1]
    step = env.step(action)
    twin.step(action.clamp(-env.task.clip, env.task.clip))
    want = env.task.dt * sum(QUADRUPED["weights"][name] * term for name, term in seen[-1].items())
    torch.testing.assert_close(step.reward, want)
    assert not step.terminated.any()
    assert torch.equal(step.end, twin.observer.critic(twin.current_state()))
    assert env.action.abs().max() <= env.task.clip


# -- quarantine and independence -------------------------------------------------------------------


@pytest.mark.parametrize("sim", SIMS)
def test_quarantine(sim):
    """Poisoned worlds get no reward and are restarted; their neighbors keep every bit."""
    plan = actions(35, 16)
    poisoned, clean = (make_env(sim=sim, episode=0.5) for _ in range(2))
    for env in (poisoned, clean):
        run(env, plan[:5])
        env.metrics()
    bad = torch.zeros(16, dtype=torch.bool)
    poisons = itertools.product(("qpos", "qvel"), (math.nan, math.inf, 1e10))
    for world, (where, poison) in zip(range(1, 12, 2), poisons, strict=True):
        getattr(poisoned.sim, where)[world, 2], bad[world] = poison, True
    first = poisoned.step(plan[5])
    assert torch.equal(first.fault, bad)
    assert not first.reward[bad].any() and not poisoned.time[bad].any()
    assert not (first.terminated | first.truncated)[bad].any()
    seen = (*first.observation.values(), first.end, poisoned.sim.qpos, poisoned.sim.qvel)
    assert all(torch.isfinite(x).all() for x in seen)
    metrics = poisoned.metrics()
    assert metrics["fault"] == 6 and all(math.isfinite(v) for v in metrics.values())
    step = clean.step(plan[5])
    a, b = ((*x.observation.values(), x.end, x.reward) for x in (first, step))
    assert same([x[~bad] for x in a], [x[~bad] for x in b])
    for a, b in zip(run(poisoned, plan[6:]), run(clean, plan[6:]), strict=True):
        assert same([x[~bad] for x in a], [y[~bad] for y in b])
        assert all(torch.isfinite(x).all() for x in a)
    assert poisoned.metrics()["fault"] == 0


def test_a_reward_that_is_not_finite_is_quarantined():
    """A NaN that the task itself makes, in a world whose physics is fine, is a fault as well."""
    env = make_env(num_envs=4)
    reward, bad = env.task.reward, torch.arange(4) == 2
    env.task.reward = lambda s: {n: x.masked_fill(bad, torch.nan) for n, x in reward(s).items()}
    step = env.step(torch.zeros(4, 12))
    assert step.fault.tolist() == [False, False, True, False] and torch.isfinite(step.reward).all()


def test_quarantined_samples_do_not_teach():
    """The rollout marks the sample that went wrong, and the loss does not see what stands in it."""
    ppo = make_ppo(make_env())
    ppo.env.sim.qvel[5, 3] = torch.inf
    ppo.collect()
    assert ppo.source.record.fault.nonzero().tolist() == [[0, 5]]
    ppo.learner.pack_samples(ppo.source.record)
    packed = ppo.learner.minibatches.samples.rows.clone()
    assert torch.isfinite(packed).all()
    ppo.source.record.reward[0, 5] = 1e3
    ppo.source.record.end[0, 5] = 7.0
    ppo.learner.pack_samples(ppo.source.record)
    assert torch.equal(ppo.learner.minibatches.samples.rows, packed)


@pytest.mark.parametrize("sim", SIMS)
@pytest.mark.parametrize("settings", [{}, PAST, EVERYTHING], ids=KINDS)
def test_worlds_do_not_know_how_many_they_are(settings, sim):
    """Envs with ids 0 to 7 and 8 to 15 do what one of 16 does, bit by bit, over restarts."""
    plan, ended = 2 * actions(30, 16), torch.zeros(16)
    settings = settings | dict(sim=sim, episode=0.5)
    whole = run(make_env(**settings), plan)
    halves = (
        run(make_env(num_envs=8, first=first, **settings), plan[:, first : first + 8])
        for first in (0, 8)
    )
    for w, a, b in zip(whole, *halves, strict=True):
        assert same(w, [torch.cat(parts) for parts in zip(a, b, strict=True)])
        ended += w[4] | w[5]
    assert (ended > 0).all()


# -- names, metrics, noise -------------------------------------------------------------------------


def test_weights_must_be_those_of_the_terms():
    """A weight too many and one too few are one error; a negative one is refused by name."""
    task, weights = make_task(), QUADRUPED["weights"]
    about = dict(seed=0, noise=QUADRUPED["noise"])
    with pytest.raises(ValueError, match=r"task\.weights\.action_rate=.*: expected at least 0"):
        Env(task, make_sim_of(task, 2), weights=weights | {"action_rate": -1.0}, **about)
    weights = {k: v for k, v in weights.items() if k != "action_rate"} | {"bounce": 1.0}
    says = "reward terms and weights disagree: 'action_rate' has no weight, 'bounce' is no term"
    with pytest.raises(ValueError, match=says):
        Env(task, make_sim_of(task, 2), weights=weights, **about)


def test_metrics():
    """Means since they were last read; an episode that goes on meanwhile counts whole."""
    env = make_env(episode=0.1, stagger=False)
    steps: list[Step] = [env.step(a) for a in 0.1 * actions(5, 16)]
    metrics = env.metrics()
    rewards = torch.stack([s.reward for s in steps])
    terms = {k: x for k, x in metrics.items() if k.startswith("reward/")}
    assert sum(terms.values()) * env.task.dt == pytest.approx(rewards.mean().item(), rel=1e-4)
    assert terms.keys() == {f"reward/{name}" for name in QUADRUPED["weights"]}
    assert metrics["return"] == pytest.approx(rewards.sum(0).mean().item(), rel=1e-4)
    assert metrics["length"] == pytest.approx(0.1)
    assert metrics["terminated"] == metrics["fault"] == 0
    nothing = env.metrics()
    # The last known means, because no episode has ended since.
    assert all(nothing[k] == metrics[k] for k in ("return", "length", "terminated"))
    assert {nothing[k] for k in (*terms, "fault", "overflow")} == {0.0}
    total = torch.zeros(16)
    for i, action in enumerate(0.2 * actions(5, 16)):
        total += env.step(action).reward
        if i == 2:
            assert env.metrics()["return"] == metrics["return"]
    metrics = env.metrics()
    assert metrics["length"] == pytest.approx(0.1)
    assert metrics["return"] == pytest.approx(total.mean().item(), rel=1e-4)


def test_length_is_of_what_was_lived():
    """Episodes that begin at a random time count their own steps alone."""
    env = make_env(num_envs=64, episode=1.0)
    for _ in range(10):
        env.step(torch.zeros(64, 12))
    metrics = env.metrics()
    assert 0 < metrics["length"] <= 10 * env.task.dt


def test_observation_noise():
    """Uniform, ± the reading's half-width, for the actor alone; by world, entry and step."""
    env = make_env(num_envs=64)
    previous = torch.zeros(())
    for action in actions(3, 64):
        obs, critic = env.step(action).observation.values()
        error, at = obs - critic[:, : obs.shape[1]], 0
        read = {"joints": "joint_pos", "speeds": "joint_vel"}
        for name, width in env.term_widths.items():
            part = error[:, at : at + width]
            half = QUADRUPED["noise"].get(read.get(name, name), 0.0)
            at += width
            assert part.abs().max() <= half * (1 + 1e-4) + 1e-6
            assert part.abs().max() >= 0.9 * half and part.mean().abs() <= 0.2 * half
            if half:
                assert len(part.unique()) > 0.9 * part.numel() * (0.5 if name == "up" else 1)
        assert not torch.equal(error, previous)
        previous = error


# -- randomization ---------------------------------------------------------------------------------

DERIVED = ("body_subtreemass", "body_invweight0", "dof_invweight0")


def test_masses_and_what_follows_from_them():
    """Masses and inertias differ alike, the trunk's center moves, mj_setConst's values follow."""
    env = make_env(num_envs=8, fields=DERIVED)
    task, mjm = env.task, env.task.mjm
    scale = env.sim.model("body_mass")[:, 1:] / torch.from_numpy(mjm.body_mass[1:])
    assert len(scale.unique()) > 0.9 * scale.numel()
    inertia = env.sim.model("body_inertia")[:, 1:] / torch.from_numpy(mjm.body_inertia[1:])
    torch.testing.assert_close(inertia, scale[:, :, None].expand_as(inertia), rtol=1e-6, atol=0)
    moved = env.sim.model("body_ipos") - torch.from_numpy(mjm.body_ipos)
    trunk = mjm.body("trunk").id
    assert moved[:, trunk].any()
    moved[:, trunk] = 0
    assert moved.abs().max() < 1e-7
    for i in range(8):
        own = mujoco.MjModel.from_xml_path(str(ASSETS / task.mjcf))
        for name in ("body_mass", "body_inertia", "body_ipos"):
            getattr(own, name)[:] = env.sim.model(name)[i].numpy()
        mujoco.mj_setConst(own, mujoco.MjData(own))
        for name in DERIVED:
            want = torch.from_numpy(getattr(own, name))
            torch.testing.assert_close(env.sim.model(name)[i], want, rtol=1e-9, atol=1e-12)
            assert not torch.allclose(want, torch.from_numpy(getattr(mjm, name)), rtol=1e-3)


def test_friction_and_gains():
    """Friction and gains, Kp alike in gain and bias, are drawn anew for each episode alone."""
    env = make_env(num_envs=64, episode=0.2)
    mjm = env.task.mjm

    def drawn() -> tuple[torch.Tensor, ...]:
        gain, bias = env.sim.model("actuator_gainprm"), env.sim.model("actuator_biasprm")
        kp = gain[:, :, 0] / torch.from_numpy(mjm.actuator_gainprm[:, 0])
        kd = bias[:, :, 2] / torch.from_numpy(mjm.actuator_biasprm[:, 2])
        torch.testing.assert_close(bias[:, :, 1], -gain[:, :, 0])
        torch.testing.assert_close(kp, kp[:, :1].expand_as(kp))
        return env.sim.model("geom_friction")[:, :, 0].clone(), kp[:, 0].clone(), kd[:, 0].clone()

    friction, kp, kd = drawn()
    assert torch.equal(friction, friction[:, :1].expand_as(friction))
    assert len(kp.unique()) == len(kd.unique()) == 64
    mass = env.sim.model("body_mass").clone()
    other = env.sim.model("geom_friction")[:, :, 1:].clone()
    for action in 0.1 * actions(3, 64):
        step = env.step(action)
        done = step.terminated | step.truncated
        now = drawn()
        for a, b in zip((friction, kp, kd), now, strict=True):
            changed = (a != b).reshape(64, -1).any(1)
            assert torch.equal(changed, done)
        friction, kp, kd = now
        assert done.any() and not done.all()
    assert torch.equal(env.sim.model("body_mass"), mass)
    assert torch.equal(env.sim.model("geom_friction")[:, :, 1:], other)


# -- resume ----------------------------------------------------------------------------------------


FRAMES = {"env/history/frames", "env/delay/frames", "env/delay/age"}
DRAWN = {"env/success", *(f"env/memory/{x}" for x in ("encoder", "sensor_bias", "force_left"))}


@pytest.mark.parametrize("sim", SIMS)
@pytest.mark.parametrize(
    "settings, names", [({}, set()), (PAST, FRAMES), (EVERYTHING, DRAWN)], ids=KINDS
)
def test_state_round_trip(settings, names, sim):
    """A new Env loaded with another's state goes on bit by bit; the state is a copy."""
    plan = actions(20, 8)
    env, other = (make_env(num_envs=8, sim=sim, episode=0.2, **settings) for _ in range(2))
    run(env, plan[:8])
    saved = env.state()
    assert saved.keys() >= names
    frozen = copies(saved)
    observation = [view.clone() for view in env.observation.values()]
    want = run(env, plan[8:])
    assert differing(frozen, saved) == []
    run(other, 3 * plan[:5])
    for value in other.memory.values():
        value.fill_(torch.nan if value.is_floating_point() else -1)
    other.load(saved)
    assert same([*other.observation.values()], observation) and same(want, run(other, plan[8:]))
    assert env.metrics() == other.metrics()


def test_sims_draw_and_start_alike():
    """With one seed native and warp draw the same, and start and restart in the same states."""
    envs = [make_env(num_envs=8, sim=sim, episode=0.1) for sim in ("native", "warp")]
    for step in range(6):
        native, warp = envs
        assert torch.equal(native.rng._words, warp.rng._words)
        assert torch.equal(native.time, warp.time)
        fresh = native.time == 0
        assert fresh.any() or step == 0
        assert torch.equal(native.sim.qpos.float()[fresh], warp.sim.qpos[fresh])
        assert torch.equal(native.sim.qvel.float()[fresh], warp.sim.qvel[fresh])
        for name in native.memory:
            if name == "mean_error":  # of velocities, which the engines compute
                torch.testing.assert_close(native.memory[name], warp.memory[name])
            else:
                assert torch.equal(native.memory[name], warp.memory[name]), name
        for field in native.task.fields:
            a, b = native.sim.model(field).float(), warp.sim.model(field)
            assert torch.allclose(a, b, rtol=1e-6, atol=0), field
        for env in envs:
            env.step(torch.zeros_like(env.action))


# -- the state -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sim", SIMS)
def test_a_state_is_the_moment_at_which_it_was_made(sim):
    """A State that is kept over steps, restarts and pushes holds the values of its own moment."""
    pushed = QUADRUPED["randomise"] | {"push": {"kind": "uniform", "every": 0.04}}
    env = make_env(num_envs=8, sim=sim, episode=0.1, randomise=pushed)
    kept, values = [], []

    def keep(s):
        kept.append(s)
        values.append(copies(s._tensors))

    keep(env.current_state())
    for action in actions(8, 8):
        env.step(action, on_step=keep)
        keep(env.current_state())
    live = {name: x for name, x in env.rows().items() if "/" not in name}
    for s, copy in zip(kept, values, strict=True):
        assert copy.keys() == live.keys() and differing(s._tensors, copy) == []
        assert not {x.data_ptr() for x in s._tensors.values() if x.numel()} & {
            x.data_ptr() for x in live.values()
        }
    assert not torch.equal(kept[0].qpos, kept[-1].qpos)
    assert not torch.equal(kept[0].action, kept[-1].action)


@pytest.mark.parametrize(
    "action, given",
    [
        (torch.zeros(3, 1), r"Tensor \[3, 1\]"),
        (np.zeros((2, 1)), r"ndarray \[2, 1\]"),
        (0, r"int \[\]"),
    ],
)
def test_an_action_of_another_shape_is_refused(action, given):
    """It is one line, as all mistakes of a user are."""
    env = make_env("cartpole", 2)
    with pytest.raises(ValueError, match=f"action is a {given}, expected a tensor of shape .2, 1"):
        env.step(action)


@pytest.mark.parametrize("sim", SIMS)
def test_control_sees_the_action_of_its_step(sim):
    """`control` is given the new action, the one before, and else the state at the step's start."""
    env = make_env(num_envs=4, sim=sim, stagger=False)
    states, control = [], env.task.control
    env.task.control = lambda s: states.append(s.clone()) or control(s)
    before, plan = [], actions(3, 4)
    for action in plan:
        before.append(env.current_state())
        env.step(action)
    for i, (s, earlier) in enumerate(zip(states, before, strict=True)):
        assert torch.equal(s.action, plan[i].clamp(-env.task.clip, env.task.clip))
        assert torch.equal(s.previous, earlier.action)
        assert torch.equal(s.qpos, earlier.qpos) and torch.equal(s.time, earlier.time)


@pytest.mark.parametrize("sim", SIMS)
def test_update_may_return_what_it_was_given(sim):
    """What `update` makes of other entries is made of their values before any was written."""
    env = make_env("cartpole", 4, sim=sim, stagger=False)
    env.memory |= {name: torch.full((4, 1), float(i)) for i, name in enumerate("ab")}
    env.memory["speed"] = torch.zeros(4, 2)
    env.task.update = lambda s, rng: dict(a=s.b, b=s.a, kick=torch.ones_like(s.qvel), speed=s.qvel)
    seen = []
    env.step(torch.zeros(4, 1), on_step=seen.append)
    assert (seen[0].a == 1).all() and (seen[0].b == 0).all()
    assert torch.allclose(seen[0].speed + 1, seen[0].qvel)
