"""The update's kernels against the same formulas in torch, differentiated by autograd; run, and
replayed from a graph."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, Self

import pytest
import torch
import warp as wp
from torch import Tensor

from gpusim_rl.algorithms.ppo.loss import STATS, loss
from gpusim_rl.algorithms.ppo.loss_kernels import FusedLoss
from gpusim_rl.algorithms.ppo.samples import sample_columns
from gpusim_rl.core.graphs import record
from gpusim_rl.core.record import Record
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.symmetry import Flip
from gpusim_rl.networks.policy import ActorCritic
from tests.worlds import make_env, make_policy, make_ppo, make_settings

NO, NC, NU, N = 6, 8, 5, 500
COLUMNS = sample_columns(make_policy(NO, NC, NU))
CFG = make_settings(ent_coef=0.02, clip_value=0.3)


def minibatch(seed: int, *, valid: float = 0.9) -> tuple[ActorCritic, torch.Tensor]:
    """A policy, and rows on both sides of their clips, of which some do not count."""
    g = torch.Generator().manual_seed(seed)
    policy = make_policy(NO, NC, NU, hidden=(16, 16), seed=seed)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=g))
    b = Record.zeros(COLUMNS, N, device=torch.device("cpu"))
    b.rows.normal_(generator=g)
    with torch.no_grad():
        b.std.copy_(policy.std * (1 + 0.2 * torch.rand(N, NU, generator=g)))
        mean, value = policy.mean(b.obs), policy.value(b.critic)[:, 0]
        b.mean.copy_(mean + 0.1 * b.mean)
        b.action.copy_(b.mean + b.std * b.action)
        now = torch.distributions.Normal(mean, policy.std).log_prob(b.action).sum(1)
        b.logp.copy_(now + 0.3 * b.logp)
        b.value.copy_(value + 0.4 * b.value)
    b.valid.copy_((torch.rand(N, generator=g) < valid).float())
    b.advantage[b.valid == 0], b.target[b.valid == 0] = 1e3, -1e3
    return policy, b.rows


def fused(policy: ActorCritic, rows: torch.Tensor) -> tuple[FusedLoss, torch.Tensor, Record]:
    """The kernels over a minibatch, outputs poisoned, and where d/d log_std goes."""
    grad = torch.full((NU,), torch.nan, device=rows.device)
    batch = Record(COLUMNS, {rows.dtype: rows})
    ours = FusedLoss(policy, batch, CFG, grad_log_std=grad, share=grad.new_zeros(1))
    for value in vars(ours).values():
        if isinstance(value, torch.Tensor):
            value.fill_(torch.nan)
    return ours, grad, batch


def compare(policy: ActorCritic, ours: FusedLoss, grad: torch.Tensor, batch: Record) -> None:
    """Statistics and gradients are those of autograd through `loss.loss`."""
    mean, value = policy.mean(batch.obs), policy.value(batch.critic)
    with pytest.MonkeyPatch.context() as patch:  # so that these are the leaves
        patch.setattr(policy, "mean", lambda _: mean)
        patch.setattr(policy, "value", lambda _: value)
        objective, stats = loss(policy, batch, CFG)
    want = torch.autograd.grad(objective, (mean, value, policy.log_std))
    close = {"rtol": 2e-4, "atol": 2e-6}
    torch.testing.assert_close(ours.stats, stats.detach(), **close)
    for gradient, expected in zip((ours.grad_mean, ours.grad_value, grad), want, strict=True):
        torch.testing.assert_close(gradient * ours.share, expected, **close)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seed, valid", [(0, 0.9), (1, 0.9), (2, 0.9), (5, -1.0)])
def test_kernels_are_the_loss(seed, valid, graph):
    """Kernels, also from a graph, equal torch's formulas; samples that do not count are none."""
    policy, rows = minibatch(seed, valid=valid)
    ours, grad, batch = fused(policy, rows)
    # torch's sum between the kernels cannot be recorded on the CPU: each kernel is replayed by
    # itself
    mean, value = policy.mean(batch.obs).detach(), policy.value(batch.critic).detach()
    if graph:
        for i, x in enumerate((mean, value)):
            ours._sample.set_param_at_index(i, wp.from_torch(x))
        for name in ("_prepare", "_sample", "_conclude"):
            replay = record(getattr(ours, name).launch, torch.device("cpu"))
            how = {
                "launch": lambda _, replay=replay: replay(),
                "set_param_at_index_from_ctype": lambda *_: None,
            }
            setattr(ours, name, SimpleNamespace(**how))
        assert torch.isnan(ours.stats).all()  # recorded, not run
    ours(mean, value)
    compare(policy, ours, grad, batch)
    ratio = (
        torch.distributions.Normal(mean, policy.std).log_prob(batch.action).sum(1) - batch.logp
    ).exp()
    far = (value[:, 0] - batch.value).abs() > CFG.clip_value
    assert 50 < ((ratio - 1).abs() > CFG.clip_coef).sum() < N - 50 and 50 < far.sum() < N - 50
    gone = batch.valid == 0
    assert gone.any() and (ours.grad_mean[gone] == 0).all() and (ours.grad_value[gone] == 0).all()
    assert valid > 0 or ((ours.stats == 0).all() and (grad == 0).all() and ours.share == 1)


@dataclass(frozen=True)
class Laplace:
    """p(x) = exp(-|x - m| / b) / 2b, with an entropy for each state."""

    mean: Tensor
    scale: Tensor
    columns: ClassVar[tuple[str, ...]] = ("mean", "scale")

    @classmethod
    def from_record(cls, record: Record) -> Self:
        return cls(record.mean, record.scale)

    @classmethod
    def flips(cls, action: Flip) -> dict[str, Flip]:
        return dict(mean=action, scale=Flip(action.order, tuple(map(abs, action.signs))))

    @property
    def mode(self) -> Tensor:
        return self.mean

    def sample(self, rng: Rng) -> Tensor:
        u = torch.erf(rng.normal("policy/action", self.mean.shape[1]) / 2**0.5)
        return self.mean - self.scale * u.sign() * torch.log1p(-u.abs())

    def log_prob(self, x: Tensor) -> Tensor:
        return -((x - self.mean).abs() / self.scale + (2 * self.scale).log()).sum(-1)

    def entropy(self) -> Tensor:
        return (1 + (2 * self.scale.expand_as(self.mean)).log()).sum(-1)

    def kl(self, old: Self) -> Tensor:
        far, ratio = (old.mean - self.mean).abs() / self.scale, old.scale / self.scale
        return (ratio * (-far / ratio).exp() + far - ratio.log() - 1).sum(-1)


@pytest.mark.parametrize("symmetry", ["none", "augment"])
def test_another_distribution_takes_autograd(monkeypatch, symmetry):
    """Another family is stored, mirrored and learned from through its own methods."""
    monkeypatch.setattr(ActorCritic, "family", Laplace)
    ppo = make_ppo(make_env("cartpole", 8), fused=True, symmetry=symmetry, num_minibatches=1)
    learner, record = ppo.learner, ppo.source.record
    ppo.iteration()
    assert learner.fused is None and record.scale.shape == record.action.shape
    ppo.env.sim.qpos[5, 0] = torch.nan
    ppo.source.collect(len(record))
    assert record.fault.sum() == 1
    learner.pack_samples(record)
    before = [w.detach().clone() for w in learner.optimizer.weights.values()]
    learner.minibatch()
    stats = dict(zip(STATS, learner.stats.tolist(), strict=True))
    assert abs(stats["approx_kl"]) < 1e-6 and stats["clipped"] == 0
    want = torch.distributions.Laplace(0.0, learner.policy.std.detach()).entropy().sum()
    assert stats["entropy"] * learner.cfg.update_epochs == pytest.approx(want.item(), rel=1e-2)
    moved = zip(learner.optimizer.weights.values(), before, strict=True)
    assert all(not torch.equal(w, old) for w, old in moved)
