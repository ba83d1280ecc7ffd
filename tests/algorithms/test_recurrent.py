"""PPO of a policy that remembers: whole sequences, memory that restarts, resume and capture."""

import pytest
import torch

from gpusim_rl.algorithms.collector import Collector, step_columns
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.ppo.loss import STATS, loss
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.record import Record
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.seeds import EVALUATION_SEEDS
from gpusim_rl.evaluation.evaluate import evaluate
from gpusim_rl.networks.policy import restarted
from tests.guard import reads_nothing
from tests.worlds import goes_on, make_env, make_policy, make_ppo, make_settings, numbers, widths

MEMORIES = pytest.mark.parametrize("memory", ["gru", "attention"])


def remembering(num_envs: int = 8, memory: str = "gru", **settings) -> Iteration:
    """PPO with a policy that remembers on cartpole with speeds hidden; episodes of six steps."""
    env = make_env("cartpole", num_envs, episode=0.3, hide=("speeds",))
    return make_ppo(env, memory=memory, **settings)


@pytest.fixture(scope="module", params=["gru", "attention"])
def collected(request) -> Iteration:
    """Its second rollout, with restarts and a quarantined sample, is in the minibatches."""
    ppo = remembering(memory=request.param)
    ppo.iteration()
    ppo.env.sim.qpos[5, 0] = torch.nan
    record = ppo.source.record
    ppo.source.collect(len(record))
    assert record.truncated.any() and record.fault.sum() == 1
    ppo.learner.pack_samples(record)
    return ppo


def test_sequences_reproduce_what_acted(collected):
    """Unrolled from its first memory, the record gives the means and values that acted."""
    learner, first = collected.learner, collected.source.record.memory
    samples = learner.minibatches.samples
    _, stats = loss(learner.policy, samples, learner.cfg, first)
    values = dict(zip(STATS, stats.tolist(), strict=False))
    assert abs(values["approx_kl"]) < 1e-5 and values["clipped"] == 0
    mean, value = learner.policy.outputs(samples, first)
    valid = samples.valid == 1
    torch.testing.assert_close(mean[valid], samples.mean[valid], rtol=0, atol=1e-5)
    torch.testing.assert_close(value[:, 0], samples.value, rtol=0, atol=1e-5)
    assert (first["actor"] != 0).any()


@torch.no_grad()
def test_values_of_ends(collected):
    """Time-outs bootstrap with their episode's memory, as a loop over single steps has it."""
    r, policy, cfg = collected.source.record, collected.policy, collected.learner.cfg
    memory, value, end = r.memory["critic"], [], []
    for t, begin in enumerate(r.first_steps()):
        memory = restarted({"critic": memory}, begin == 1)["critic"]
        critic = policy.critic_normalizer(r.critic[t])
        now, memory = policy.critic(critic, memory)
        value.append(now[:, 0])
        end.append(policy.critic(policy.critic_normalizer(r.end[t]), memory)[0][:, 0])
    advantage, following = torch.zeros_like(r.reward), torch.zeros(r.reward.shape[1])
    for t in reversed(range(len(value))):
        live = (~(r.terminated[t] | r.truncated[t])).float()
        delta = r.reward[t] + cfg.gamma * end[t] - value[t]
        delta = delta + cfg.gamma * cfg.gae_lambda * live * following
        following = torch.where(r.fault[t], 0.0, delta)
        advantage[t] = following
    target = collected.learner.minibatches.samples.target.view(r.reward.shape)
    torch.testing.assert_close(target, torch.stack(value) + advantage, rtol=0, atol=1e-5)


def test_a_minibatch_holds_whole_worlds():
    """All steps of a world in order, each world once an epoch, however processes share them."""
    taken = remembering(16, num_minibatches=4, update_epochs=3).learner.minibatches
    worlds = torch.arange(16)
    count = torch.zeros((), dtype=torch.int64)
    taken.shuffle(Rng(1, worlds), count)
    order = taken.order.view(3, 4, 8, 4)  # epoch, minibatch, step, world
    assert torch.equal(order // 16, torch.arange(8)[:, None].expand_as(order))
    who = order % 16
    assert (who == who[:, :, :1]).all()
    assert all(torch.equal(epoch[:, 0].flatten().sort().values, worlds) for epoch in who)
    assert not torch.equal(who[0], who[1])
    parts = []
    for rank in (0, 1):
        half = remembering(8, num_minibatches=4, update_epochs=3).learner.minibatches
        half.shuffle(Rng(1, worlds[8 * rank : 8 * rank + 8]), count)
        rows = half.order.view(3, 4, 8, 2)
        parts.append(rows % 8 + 8 * rank)
    assert torch.equal(torch.cat(parts, 3), who)


def test_a_minibatch_has_the_memory_of_its_worlds(collected):
    """The memory beside a minibatch is that of its worlds at the start of the rollout."""
    taken, first = collected.learner.minibatches, collected.source.record.memory
    for order in taken.order:
        taken.take()
        for name, x in taken.memory.items():
            assert torch.equal(x, first[name][order[: len(x)]])


@MEMORIES
def test_kernels_and_autograd_agree(memory):
    """One update ends at the same weights; the next reads nothing and moves every weight."""
    weights = []
    for fused in (True, False):
        ppo = remembering(fused=fused, update_epochs=1, memory=memory)
        ppo.iteration()
        weights.append(torch.cat([w.detach() for w in ppo.learner.optimizer.weights.values()]))
        assert reads_nothing(ppo) == {"min_std"} and ppo.source.record.truncated.any()
    torch.testing.assert_close(*weights, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("memory", "shapes"),
    [("gru", [(8, 12), (8, 12)]), ("attention", [(8, 7, 4), (8, 7, 6)])],
)
def test_resume_is_exact(memory, shapes):
    """A new PPO that loads another's state, in the midst of episodes, goes on bit by bit."""
    runs = [remembering(num_steps=4, memory=memory) for _ in range(2)]
    for ppo in (*runs, runs[1]):
        ppo.iteration()
    saved = goes_on(*runs, 2)
    assert [saved[f"memory/{name}"].shape for name in ("actor", "critic")] == shapes


@MEMORIES
def test_an_evaluation_remembers(memory):
    """It is the same twice, and another one without memory."""
    ppo = remembering(memory=memory)
    with torch.no_grad():
        for p in ppo.policy.actor.parameters():
            p.mul_(3.0)
    options = {key: numbers("cartpole")[key] for key in ("weights", "noise")}
    options |= dict(episodes=4, seed=EVALUATION_SEEDS)
    scores = [evaluate(ppo.policy, ppo.env.task, **options) for _ in range(2)]
    assert scores[0] == scores[1]
    act = ppo.policy.act
    ppo.policy.act = lambda obs, memory: (act(obs, memory)[0], memory)  # type: ignore
    assert evaluate(ppo.policy, ppo.env.task, **options) != scores[0]


def test_what_does_not_divide():
    """Minibatches of whole worlds must divide the worlds, and not the steps."""
    remembering(8, num_steps=3, num_minibatches=4)
    with pytest.raises(ValueError, match="num_minibatches=3 does not divide num_envs × agents=8"):
        remembering(8, num_minibatches=3)
    assert make_settings().num_minibatches == 4


@pytest.mark.parametrize("fuse", ["on", "off"])
def test_memory_is_a_column_on_request(fuse):
    """`memory/…` holds what a policy remembers before each step, if the columns ask for it."""
    env = make_env("cartpole", 4, episode=0.3)
    policy = make_policy(*widths(env), memory="gru", memory_size=5)
    columns = step_columns(env, policy)
    record = Record.zeros(columns, 3, 4, device=env.device)
    timer = PartTimer(env.device)
    source = Collector(env, policy, record, graph="off", fuse=fuse, timer=timer)
    source.collect(2)
    before = {name: x.clone() for name, x in source.memory.items()}
    source.collect(1)
    for name, x in before.items():
        assert (x != 0).any() and torch.equal(record.column(f"memory/{name}")[2], x)
