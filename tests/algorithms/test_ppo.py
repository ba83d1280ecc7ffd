"""The loss against finite differences, its statistics against torch's distributions, and the update
as a whole."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from benchmarks.levels import Operators
from gpusim_rl.algorithms.ppo.loss import STATS, loss
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.algorithms.ppo.samples import make_samples, sample_columns
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.returns import end_values
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.record import Record
from gpusim_rl.core.states import layout, state_layout
from gpusim_rl.core.streams import warp_stream
from gpusim_rl.networks.policy import ActorCritic
from tests.worlds import copies, differing, make_env, make_policy, make_ppo, make_settings

CFG = make_settings(ent_coef=0.01, clip_value=0.2)


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> PPO:
    """A rollout of 16 worlds × 8 steps, with time-outs and one quarantined sample."""
    ppo = make_ppo(make_env(episode=0.2), hidden=(4, 4))
    ppo.iteration()  # so that the normalizers know the observations
    ppo.env.sim.qpos[5, 0] = torch.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("log"))  # MuJoCo writes MUJOCO_LOG.TXT where it stands
        ppo.collect()
    assert ppo.source.record.truncated.any() and ppo.source.record.fault.sum() == 1
    return ppo


def packed_of(ppo: PPO) -> torch.Tensor:
    """The rollout as minibatches are taken from it."""
    ppo.learner.pack_samples(ppo.source.record)
    return ppo.learner.minibatches.samples.rows.clone()


def batch_of(ppo: PPO, rows: torch.Tensor) -> Record:
    """Rows of the packed samples, with names."""
    return Record(sample_columns(ppo.policy), {torch.float32: rows})


def moved(policy: ActorCritic) -> ActorCritic:
    """A float64 copy some updates away, so that ratios and values are clipped in part."""
    widths = (m.mean.shape[0] for m in (policy.actor.normalizer, policy.critic_normalizer))
    twin = make_policy(*widths, 12, hidden=(4, 4)).double()
    twin.load_state_dict(policy.state_dict())
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in twin.parameters():
            p += 0.05 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return twin


def double_batch(ppo: PPO, policy: ActorCritic) -> Record:
    """The rollout in float64, without samples near a kink."""
    packed = packed_of(ppo).double()
    b = batch_of(ppo, packed)
    with torch.no_grad():
        now = Normal(policy.actor.net(b.obs), policy.std).log_prob(b.action).sum(1)
        ratio = (now - b.logp).exp()
        value = policy.critic(b.critic)[:, 0]
    near = b.value + (value - b.value).clamp(-CFG.clip_value, CFG.clip_value)
    gaps = [(ratio - 1).abs() - CFG.clip_coef, (value - b.value).abs() - CFG.clip_value]
    crossing = ((value - b.target) ** 2 - (near - b.target) ** 2).abs()
    smooth = (gaps[0].abs() > 1e-4) & (gaps[1].abs() > 1e-4) & ((crossing > 1e-4) | (near == value))
    assert smooth.sum() > 100
    return batch_of(ppo, packed[smooth])


def parts(policy: ActorCritic, b: Record, cfg: Settings = CFG) -> dict[str, torch.Tensor]:
    """Per-sample terms of the loss, as the paper and torch's distributions have them."""
    new = Independent(Normal(policy.actor.net(b.obs), policy.std), 1)
    ratio = (new.log_prob(b.action) - b.logp).exp()
    eps, value = cfg.clip_coef, policy.critic(b.critic)[:, 0]
    surrogate, squares = [], []
    for r, a, v, old, target in zip(ratio, b.advantage, value, b.value, b.target, strict=True):
        # Whether this is the side on which clipping takes the gradient.
        bound = r.item() > 1 + eps if a > 0 else r.item() < 1 - eps
        surrogate.append(a * (1 + eps if a > 0 else 1 - eps) if bound else a * r)
        clipped = min(max(v.item(), old.item() - cfg.clip_value), old.item() + cfg.clip_value)
        near, far = (clipped - target) ** 2, (v - target) ** 2
        squares.append(0.5 * (near if near > far else far))
    both = dict(surrogate=torch.stack(surrogate), squares=torch.stack(squares))
    return both | dict(ratio=ratio, value=value, entropy=new.entropy())


def test_gradient_by_finite_differences(collected):
    """In float64 it is that of central differences, for every weight, with clipping active."""
    policy = moved(collected.policy)
    batch = double_batch(collected, policy)
    terms = parts(policy, batch)
    outside = (terms["ratio"] - 1).abs() > CFG.clip_coef
    assert 10 < outside.sum() < len(outside) - 10
    far = (terms["value"] - batch.value).abs() > CFG.clip_value
    assert 3 < far.sum() < len(far) - 10
    assert 0 < (batch.valid == 0).sum() < len(batch.valid)

    loss(policy, batch, CFG)[0].backward()
    eps = 1e-6
    for name, p in policy.named_parameters():
        numeric, flat = torch.zeros_like(p).view(-1), p.data.view(-1)
        for i in range(len(flat)):
            ends = []
            for sign in (1, -1):
                flat[i] += sign * eps
                ends.append(loss(policy, batch, CFG)[0].item())
                flat[i] -= sign * eps
            numeric[i] = (ends[0] - ends[1]) / (2 * eps)
        assert p.grad is not None and p.grad.abs().max() > 1e-5, name
        torch.testing.assert_close(
            p.grad.view(-1), numeric, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(
    "change", [{}, {"ent_coef": 0.5}, {"clip_coef": 0.5}, {"clip_value": 1e9}], ids=str
)
def test_statistics(collected, change):
    """They are means over valid samples of the paper's terms; the KL is torch's."""
    policy, cfg = moved(collected.policy), replace(CFG, **change)
    batch = double_batch(collected, policy)
    objective, stats = loss(policy, batch, cfg)
    terms = parts(policy, batch, cfg)
    new = Independent(Normal(policy.actor.net(batch.obs), policy.std), 1)
    kl = kl_divergence(Independent(Normal(batch.mean, batch.std), 1), new)
    clipped = ((terms["ratio"] - 1).abs() > cfg.clip_coef).double()
    columns = [-terms["surrogate"], terms["squares"], terms["entropy"], kl, clipped]
    want = torch.stack([c[batch.valid == 1].mean() for c in columns])
    torch.testing.assert_close(stats, want, rtol=1e-9, atol=1e-9)
    whole = want[0] + want[1] - cfg.ent_coef * want[2]
    torch.testing.assert_close(objective, whole, rtol=1e-9, atol=1e-9)
    assert len(STATS) == len(stats) + 2


@pytest.mark.parametrize("steps, episode", [(8, 0.06), (8, 0.02), (1, 0.04), (3, 20.0)])
def test_end_values(steps, episode):
    """Every step that neither terminated nor failed has the value of its end."""
    ppo = make_ppo(make_env(episode=episode), num_steps=steps, num_minibatches=1)
    for _ in range(3):
        ppo.collect()
    r, policy = ppo.source.record, ppo.policy
    with torch.no_grad():
        value, want = (
            policy.value(policy.critic_normalizer(view))[..., 0] for view in (r.critic, r.end)
        )
        horizon = ppo.env.task.horizon
        ends = end_values(value, [r.end], r.truncated, policy.evaluate, horizon=horizon)
    valued = ~(r.terminated | r.fault)
    torch.testing.assert_close(ends[valued], want[valued], rtol=0, atol=1e-6)
    assert (
        r.truncated.sum() >= (steps * 16 // round(episode / 0.02)) * 0.8
        and valued.sum() > 0.9 * valued.numel()
    )


def test_pack_bootstraps_time_outs(collected):
    """Targets are values plus advantages by the recurrence; a time-out uses its end's value."""
    r, policy, cfg = collected.source.record, collected.policy, collected.learner.cfg
    batch = batch_of(collected, packed_of(collected))
    with torch.no_grad():
        value, end = (
            policy.value(policy.critic_normalizer(view))[..., 0] for view in (r.critic, r.end)
        )
    shape = value.shape
    advantage, following = torch.zeros(shape), torch.zeros(shape[1])
    for t in reversed(range(shape[0])):
        live = (~(r.terminated[t] | r.truncated[t] | r.fault[t])).float()
        delta = r.reward[t] + cfg.gamma * end[t] * (~r.terminated[t]).float() - value[t]
        following = (delta + cfg.gamma * cfg.gae_lambda * live * following) * (~r.fault[t]).float()
        advantage[t] = following
    torch.testing.assert_close(batch.target.view(shape), value + advantage, rtol=0, atol=1e-5)
    assert (end - value.roll(-1, 0))[r.truncated][
        :-1
    ].abs().min() > 1e-6  # not the value after the restart
    sound = ~r.fault
    torch.testing.assert_close(batch.valid.view(shape), sound.float())
    scaled = (advantage - advantage[sound].mean()) / advantage[sound].std(correction=0)
    torch.testing.assert_close(batch.advantage.view(shape)[sound], scaled[sound], rtol=0, atol=1e-4)


@pytest.mark.parametrize("memory", ["none", "gru", "attention"])
@pytest.mark.parametrize("correction", ["none", "proximal", "vtrace"])
def test_steps_of_an_older_policy(correction, memory):
    """With proximal the first minibatch has ratio 1; the others compare with who acted."""
    numbers = {"num_minibatches": 1, "update_epochs": 1, "correction": correction}
    ppo = make_ppo(make_env(num_envs=16, episode=0.12), memory=memory, **numbers)
    ppo.iteration()  # memories are not blank then
    policy, learner, record = ppo.policy, ppo.learner, ppo.source.record
    ppo.collect()
    assert record.truncated.any() and all(bool(x.any()) for x in record.memory.values())
    record.obs[3, 2] = torch.nan
    record.span("fault", "fault")[3, 2] = 1.0
    with torch.no_grad():
        for x in policy.groups()["actor"]:
            x += 0.03 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    learner.pack_samples(record)
    learner.minibatches.take()
    batch, memories = learner.minibatches.batch, learner.minibatches.memory
    with torch.no_grad():
        now = policy.distribution(policy.outputs(batch, memories)[0])
        valid = batch.valid > 0
        ratio = (now.log_prob(batch.action) - batch.logp).exp()[valid]
        kl = now.kl(now.from_record(batch))[valid]
    assert valid.sum() == len(valid) - 1
    change = batch.target - batch.value
    how = {"horizon": ppo.env.task.horizon}
    plain = make_samples(record, policy, learner.cfg, **how, correction="none")
    same = change.sort().values - (plain["target"] - plain["value"]).flatten().sort().values
    if correction == "proximal":
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)
        assert kl.abs().max() < 1e-5
        samples = make_samples(record, policy, learner.cfg, **how, correction="proximal")
        weight = (samples["logp"] - record.logp).exp().clamp(max=2.0)
        assert (weight < 0.9).any() and (weight == 2.0).any()
        torch.testing.assert_close(samples["advantage"], weight * plain["advantage"])
    else:
        assert (ratio - 1).abs().max() > 0.1 and kl.max() > 1e-3
    assert (same.abs().max() > 1e-3) == (correction == "vtrace")


@pytest.mark.parametrize("fused", [True, False])
def test_learning_rate_follows_kl(fused):
    """Below half the target KL the actor's rate grows, above twice it shrinks; norms are scaled."""
    ppo = make_ppo(make_env(), max_grad_norm=1e-3, num_minibatches=1, update_epochs=1, fused=fused)
    ppo.collect()
    learner, first = ppo.learner, copies(ppo.policy.state_dict())
    for kl, start, factor in (
        (0.0, 1e-3, 1.2),
        (0.004, 1e-3, 1.2),
        (0.006, 1e-3, 1.0),
        (0.019, 1e-3, 1.0),
        (0.021, 1e-3, 1 / 1.2),
        (1.0, 1e-3, 1 / 1.2),
        (0.0, 9e-3, 1e-2 / 9e-3),
        (1.0, 1.1e-5, 1e-5 / 1.1e-5),
    ):
        ppo.policy.load_state_dict(first)
        learner.pack_samples(ppo.source.record)
        # KL of two Gaussians whose means differ by Δ in each of nu dimensions: nu Δ² / 2σ²
        samples = learner.minibatches.samples
        samples.mean.add_(math.sqrt(2 * kl / samples.std.shape[1]) * samples.std)
        learner.optimizer.rates["actor"].fill_(start)
        learner.minibatch()
        stats, rates = dict(zip(STATS, learner.stats, strict=True)), learner.optimizer.rates
        assert stats["approx_kl"].item() == pytest.approx(kl, rel=1e-3, abs=1e-5)
        assert rates["actor"].item() == pytest.approx(start * factor, rel=1e-5)
        assert rates["critic"].item() == pytest.approx(learner.cfg.learning_rate)
        for name, w in learner.optimizer.weights.items():
            assert w.grad.norm().item() == pytest.approx(1e-3, rel=1e-2)
            assert stats[f"{name}_norm"] > 1e-2
        learner.stats.zero_()


def test_quarantined_samples_are_not_absorbed(collected):
    """The normalizers count every sample except the quarantined one."""
    count = collected.policy.critic_normalizer.count.item()
    weights = copies(collected.policy.state_dict())
    collected.update()
    assert collected.policy.critic_normalizer.count == count + 16 * 8 - 1
    assert all(torch.isfinite(v).all() for v in collected.policy.state_dict().values())
    collected.policy.load_state_dict(weights)


def weights_after(iterations: int, *, seed: int, policy_seed: int) -> dict[str, torch.Tensor]:
    ppo = make_ppo(make_env(seed=seed, episode=0.3), seed=policy_seed)
    for _ in range(iterations):
        ppo.iteration()
    return ppo.policy.state_dict()


def test_same_seed_same_weights():
    """Two runs from one seed are bit-identical; another seed of either kind differs."""
    torch.manual_seed(0)
    a = weights_after(3, seed=1, policy_seed=1)
    torch.manual_seed(1)  # nothing may depend on torch's own generator
    b = weights_after(3, seed=1, policy_seed=1)
    assert differing(a, b) == []
    counts = {"actor.normalizer.count", "critic_normalizer.count"}
    for other in (weights_after(3, seed=2, policy_seed=1), weights_after(3, seed=1, policy_seed=2)):
        assert {*a} - {*differing(a, other)} <= counts | {"min_std"}


def test_a_foreign_state_is_refused():
    """It is named by its entry, nothing is written, and no tensor operation is needed."""
    ppo, other = (make_ppo(make_env(), hidden=hidden) for hidden in ((32, 32), (16, 16)))
    before, foreign = ppo.state(), other.state()
    says = r"somewhere does not fit this run: '.*' is \("
    with Operators() as operators, pytest.raises(ValueError, match=says):
        ppo.load(foreign, "somewhere")
    assert operators.count == 0 and differing(ppo.state(), before) == []


def test_layout_is_that_of_the_state():
    """The layout names what `state` returns; of two processes, rows for the worlds of both."""
    env = make_env()
    assert state_layout(env.tensors()) == layout(env.state())
    one, two = (state_layout(env.tensors(), ProcessGroup(size=n)) for n in (1, 2))
    assert two["env/time"][0] == (2 * env.num_envs,) and two["sim/rows"][0][0] == 2 * env.num_envs
    assert two["env/step_count"] == one["env/step_count"] and two.keys() == one.keys()


def test_every_sample_once_an_epoch():
    """Minibatches of an epoch hold every sample once, in an order that changes."""
    ppo = make_ppo(make_env(), update_epochs=3, num_minibatches=4)
    ppo.collect()
    parts, step = [], ppo.learner.minibatch

    def watch() -> None:
        step()
        parts.append(ppo.learner.minibatches.batch.action[:, 0].clone())

    ppo.learner._minibatch = watch
    for _ in range(2):
        ppo.update()
    assert [len(p) for p in parts] == [32] * 24
    epochs = [torch.cat(parts[4 * i : 4 * i + 4]) for i in range(6)]
    want = ppo.source.record.action[..., 0].flatten().sort().values
    assert all(torch.equal(e.sort().values, want) for e in epochs)
    assert all(not torch.equal(epochs[i], epochs[j]) for i in range(6) for j in range(i))


def test_minibatches_must_divide():
    """A number of minibatches that does not divide the rollout is refused with both numbers."""
    with pytest.raises(ValueError, match="num_minibatches=5 does not divide num_steps=8"):
        make_ppo(make_env(), num_minibatches=5)


def test_a_whole_number_is_a_rate():
    """algo.learning_rate=1, a whole number as YAML reads it, adapts as 1.0 does."""
    one, other = (
        make_ppo(make_env("cartpole", 4), num_steps=4, learning_rate=rate, lr_max=2)
        for rate in (1, 1.0)
    )
    for ppo in (one, other):
        ppo.iteration()
    rate = one.learner.optimizer.rates["actor"]
    assert rate == other.learner.optimizer.rates["actor"] and rate.dtype == torch.float32


def test_the_deviation_is_limited_where_it_is_larger():
    """An update ends with a deviation of at most `max_std`, which may change; the rest stays."""
    limit = torch.tensor(0.3)
    ppo = make_ppo(make_env(), std=1.0, min_std=0.05, max_std=limit)
    log_std = ppo.policy.log_std.detach()
    log_std[0] = -3.0
    low = ppo.policy.std[0].item()
    for largest, expected in ((0.3, 0.3), (0.2, 0.2), (0.01, 0.05)):  # not below min_std
        limit.fill_(largest)
        ppo.learner._conclude_update.launch(warp_stream(log_std.device))
        assert ppo.policy.std[1:].tolist() == pytest.approx([expected] * 11, abs=2e-4)
        assert ppo.policy.std[0].item() == pytest.approx(min(low, expected), abs=2e-4)
    ppo.iteration()
    assert ppo.policy.std.max() < 0.0502
