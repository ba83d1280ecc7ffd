"""Soft actor-critic: its parts against references, and what every learner must keep."""

import math
from typing import Any

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.algorithms.sac.spec import SPEC
from gpusim_rl.core.record import Record, vector
from gpusim_rl.core.symmetry import MirrorModule, unmoved
from gpusim_rl.networks.encoders import HiddenLayers
from gpusim_rl.networks.ensembles import Ensemble, SymmetricEnsemble
from gpusim_rl.networks.squashed import SoftActorCritic
from gpusim_rl.networks.symmetric import EvenOddSplit
from gpusim_rl.runs.demonstrations import Demonstrations, demonstration_columns
from tests.guard import reads_nothing
from tests.worlds import TASKS, differing, goes_on, join, make_env, read

SMALL: dict[str, Any] = dict(hidden=(16, 16), batch_size=16, warmup=32, updates=1, replay=24)


def make_sac(
    env: Any,
    *,
    spec: LearnerSpec = SPEC,
    num_steps: int = 8,
    graph: str = "parts",
    given: Any = None,
    **numbers: Any,
) -> Any:
    """An iteration of a small SAC over an Env; `numbers` are those of `Settings`."""
    values = {key: x for key, x in read("algo/sac").items() if key != "name"}
    run = dict(num_steps=num_steps, graph=graph, fuse="on", given=given or {})
    return join(env, spec, values | SMALL | numbers, **run)


def small_layers(*widths: int) -> HiddenLayers:
    return HiddenLayers(widths, "silu", torch.Generator().manual_seed(0))


def test_log_probability_is_that_of_torch():
    """log π of a squashed Gaussian, and its action, are those of torch.distributions."""
    how: dict[str, Any] = dict(hidden=(8, 8), activation="silu", bound=2.0, std=0.6, seed=1)
    policy = SoftActorCritic(dict(actor=vector(6), critic=vector(7)), 3, mirrors=None, **how)
    generator = torch.Generator().manual_seed(0)
    x, noise = (torch.randn(50, n, generator=generator) for n in (6, 3))
    with torch.no_grad():
        policy.actor.net.net.w[-1].mul_(100.0)  # means beyond zero
        mean, log_std = policy.actor.net.heads(x)
        action, log_prob = policy.draw(x, noise)
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    free = mean + log_std.exp() * noise
    torch.testing.assert_close(action, torch.tanh(free))
    small = free.abs() < 4  # beyond, torch's own has few digits
    expected = squashed.log_prob(action)
    assert small.float().mean() > 0.5 and mean.std() > 0.1
    each = Normal(mean, log_std.exp()).log_prob(free) - 2 * (
        math.log(2) - free - torch.nn.functional.softplus(-2 * free)
    )
    torch.testing.assert_close(each[small], expected[small], atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(each.sum(1), log_prob)


def test_an_ensemble_is_its_networks():
    """Each copy is the network of its weights alone, with torch's layer norm."""
    nets = Ensemble(2, 5, 3, small_layers(8, 8), 1.0)
    with torch.no_grad():
        for p in nets.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    for i, y in enumerate(nets(x)):
        z = x
        for w, g, b in zip(nets.w, nets.g, nets.b, strict=False):
            norm = torch.nn.LayerNorm(8)
            norm.weight.data, norm.bias.data = g[i, 0].detach(), b[i, 0].detach()
            z = torch.nn.functional.silu(norm(z @ w[i]))
        torch.testing.assert_close(y, z @ nets.w[-1][i] + nets.b[-1][i, 0])


def test_a_symmetric_ensemble_commutes():
    """f(M x) = A f(x) to the last bit, where M exchanges columns and changes signs."""
    env = make_env("quadruped", 2)
    mirrors = env.task and make_sac(env).spec.mirrors()
    assert mirrors
    split, out = EvenOddSplit(mirrors.obs), EvenOddSplit(mirrors.action)
    nets = SymmetricEnsemble(2, split, out, small_layers(8, 8), 1.0)
    with torch.no_grad():
        for p in nets.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    x = torch.randn(7, len(mirrors.obs.order), generator=torch.Generator().manual_seed(2))
    of_x, of_action = MirrorModule(mirrors.obs), MirrorModule(mirrors.action)
    torch.testing.assert_close(nets(split(of_x(x))), of_action(nets(split(x))), rtol=0, atol=1e-6)
    even = SymmetricEnsemble(2, split, EvenOddSplit(unmoved(1.0)), small_layers(8), 1.0)
    torch.testing.assert_close(even(split(of_x(x))), even(split(x)), rtol=0, atol=0)


def test_one_update_is_the_formula():
    """Targets, losses and the temperature's gradient of a batch, written out again."""
    sac = make_sac(make_env("cartpole", 8), policy_delay=1, symmetry="none")
    for _ in range(5):
        sac.iteration()
    learner, policy, ring = sac.learner, sac.policy, sac.ring
    learner.updates.add_(1)
    learner.rng.draw(learner.updates)
    unit = learner.rng.uniform("sac/windows", 0.0, learner.ones)
    noise = learner.rng.normal("sac/actions", 2 * policy.nu * learner.draws)
    noise, later = noise.view(-1, 2 * policy.nu).chunk(2, 1)
    learner.updates.sub_(1)
    windows = ring.windows(ring.draw(unit, 3).places, 3)
    first, last, paid = windows.at(0), windows.at(3), windows.returns(learner.cfg.gamma)
    alpha = learner.log_alpha.exp().item()
    with torch.no_grad():
        then, log_prob = policy.draw(policy.actor.normalizer(last.obs), later)
        q = policy.values(policy.target, policy.critic_normalizer(last.critic), then)
        y = paid.gain / learner.scale + paid.discount * (q.mean(0) - alpha * log_prob)
        states = policy.critic_normalizer(first.critic)
        error = policy.values(policy.critic, states, first.action) - y
        huber = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5) * paid.valid
        loss = huber.mean(1).sum()
    before = learner.sums.clone()
    first, critic, drawn = learner.learn_values(ring)
    torch.testing.assert_close(learner.sums[1] - before[1], loss, rtol=1e-4, atol=1e-6)
    assert torch.equal(drawn, noise)
    _, log_prob = policy.draw(learner.features(first), drawn)
    learner.learn_policy(first, critic, drawn)
    gradient = learner.actor.gradients[learner.log_alpha]
    target = learner.entropy_of_width + math.log(learner.cfg.target_std)
    # the step clips the norm of each group, here far above 1
    wanted = -alpha * (log_prob.mean() + target)
    torch.testing.assert_close(gradient[0], wanted.detach().clamp(-1, 1), rtol=1e-3, atol=1e-5)


FEW = ("cartpole", "quadruped", "drone")  # the others are for `make matrix-test`
EVERY = [pytest.param(x, marks=[pytest.mark.matrix] * (x not in FEW)) for x in TASKS]


@pytest.mark.parametrize("name", EVERY)
def test_an_iteration_reads_nothing(name):
    """The last of five iterations reads nothing but the engine, and a state goes on to the bit."""
    sac, other = (make_sac(make_env(name, 8, episode=0.2), replay=20) for _ in range(2))
    for _ in range(4):
        sac.iteration()
    assert reads_nothing(sac, calls=300) == set()
    row = sac.report()()
    assert row["fault"] == 0 and row["skipped"] == 0 and math.isfinite(row["critic_loss"])
    goes_on(sac, other, 3)


def test_a_ring_that_is_not_saved_is_filled_again():
    """With save_ring=false the state has no ring, and a continuation waits for the warm-up."""
    first, second = (make_sac(make_env("cartpole", 8), save_ring=False) for _ in range(2))
    for _ in range(6):
        first.iteration()
    state = first.state()
    assert not [name for name in state if name.startswith("ring/")]
    second.load(state, "the first")
    weights = second.learner.critics.weights["critic"].detach().clone()
    second.learner.cfg.__dict__["warmup"] = 100  # of 64 samples an iteration
    second.iteration()
    assert torch.equal(weights, second.learner.critics.weights["critic"])
    second.iteration()
    assert not torch.equal(weights, second.learner.critics.weights["critic"])
    assert second.report()()["stored"] == 16


@pytest.mark.parametrize("what", ["physics", "reward", "obs"])
def test_what_is_no_number_is_never_learned_from(what):
    """Worlds that fail are quarantined, and the networks stay finite."""
    sac = make_sac(make_env("cartpole", 8), replay=16)
    for _ in range(3):
        sac.iteration()
    for world, value in ((3, torch.nan), (5, torch.inf)):
        if what == "physics":
            sac.env.sim.qpos[world, 0] = value
        else:
            sac.ring.record.column(what)[2, world] = value
    for _ in range(3):
        sac.iteration()
    assert all(torch.isfinite(x).all() for x in sac.learner.policy.state_dict().values())
    assert sac.report()()["fault"] == 2 * (what == "physics")


def test_a_loss_that_is_no_number_is_skipped():
    """Neither critics nor their moments change, and the report counts it."""
    sac = make_sac(make_env("cartpole", 8))
    for _ in range(5):
        sac.iteration()
    sac.report()
    learner = sac.learner
    learner.scale.fill_(float("nan"))
    before = learner.critics.weights["critic"].detach().clone()
    learner.learn_values(sac.ring)
    assert torch.equal(before, learner.critics.weights["critic"]) and learner.sums[3] == 1
    for _ in range(2):  # what was skipped makes the iteration bad, of which three end it
        learner.running.fill_(float("nan"))
        sac.iteration()
    assert sac.report()()["bad"] >= 1


@pytest.mark.parametrize(
    "numbers, says",
    [
        ({"batch_size": 12}, "algo.batch_size=12: expected a multiple of num_envs × agents=8"),
        ({"policy_delay": 3}, "algo.policy_delay=3: expected a divisor of num_steps"),
        ({"replay": 6}, "algo.replay=6: expected more than num_steps=8"),
        ({"window": 24}, "algo.window=24: expected less than algo.replay"),
    ],
)
def test_numbers_that_do_not_fit(numbers, says):
    """One line that names the key, before anything is built."""
    with pytest.raises(ValueError, match=says):
        make_sac(make_env("cartpole", 8), **numbers)


def test_a_ring_begins_with_demonstrations():
    """It does so also after a load, if no checkpoint holds it; the worlds go on behind them."""
    env = make_env("cartpole", 8)
    record = Record.zeros(demonstration_columns(env.views, 1), 60, device=torch.device("cpu"))
    for name in ("obs", "critic", "action", "end"):
        record.column(name).normal_(generator=torch.Generator().manual_seed(1))
    record.column("truncated")[-1] = 1.0
    given = {"demos": Demonstrations(record, {})}
    sac = make_sac(env, num_steps=4, symmetry="none", given=given, save_ring=False)
    sac.begin()
    learner, ring = sac.learner, sac.ring.record
    assert sac.ring.count.tolist() == [8] * 8
    assert torch.equal(ring.obs[:8, 0], record.obs[:8])
    assert torch.equal(ring.action[:8, 0], record.action[:8].clamp(-1, 1))
    assert learner.policy.actor.normalizer.count == 64
    before = ring.obs[:8].clone()
    sac.iteration()
    assert torch.equal(before, ring.obs[:8]) and sac.ring.written == 12
    assert ring.obs[8:12].abs().sum() > 0 and not ring.obs[12:].any()
    assert sac.report()()["skipped"] == 0
    state = sac.state()
    sac.load(state, "itself")
    assert differing(state, sac.state()) == [] and sac.ring.count.tolist() == [8] * 8
