"""Random network distillation (Burda et al., arXiv:1810.12894): a bonus for views that are new."""

from functools import partial

import torch
from torch import Tensor, nn

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.returns import recurrence
from gpusim_rl.algorithms.rewards.rnd.settings import Settings
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import FLAG, NUMBER, Columns, Record, vector
from gpusim_rl.core.states import Live, per_world, shared
from gpusim_rl.networks.encoders import mlp
from gpusim_rl.networks.normalizer import Normalizer


class RND:
    """Pays for what a predictor cannot foretell of a random network.

        e_t = mean (f(s'_t) - f̂(s'_t))²,    G_t = e_t + γ G_{t-1},    r_t += w dt e_t / std(G)

    s'_t is the critic's view of the end of step t, normalized. f never changes. f̂ takes one step of
    Adam on the mean of e in each iteration. G goes on over the ends of episodes (section 2.3).
    """

    Settings = Settings
    live = ("weight",)
    metrics = (
        Metric("novelty", "reward_model/novelty", "error of the predictor"),
        Metric("bonus", "reward_model/bonus", "bonus of a step [1/s]", ".3f", "bonus [1/s]"),
    )

    def __init__(self, spec: Spec, settings: Settings):
        self.spec, self.cfg, width = spec, settings, spec.dims[1]
        self.columns: Columns = dict(end=vector(width), reward=NUMBER, fault=FLAG)
        generator = torch.Generator().manual_seed(spec.seed + (1 << 32))  # not that of the policy
        make = partial(mlp, width, tuple(settings.hidden), settings.features, "elu", 1.0, generator)
        networks = {"target": make().requires_grad_(False), "predictor": make()}
        networks |= {"normalizer": Normalizer(width), "returns": Normalizer(1)}
        self.networks = nn.ModuleDict(networks).to(spec.device)
        groups = {"predictor": list(self.networks["predictor"].parameters())}
        self.optimizer = FlatAdam(groups, settings.learning_rate)
        self.last = torch.zeros(spec.num_envs, device=spec.device)
        self.values = torch.zeros(len(self.metrics), device=spec.device)

    def errors(self, end: Tensor) -> Tensor:
        """(T, B) errors of the predictor for views (T, B, nc)."""
        x = self.networks["normalizer"](end.nan_to_num())  # of a faulty world anything
        return (self.networks["target"](x) - self.networks["predictor"](x)).square().mean(-1)

    @torch.no_grad()
    def add_reward(self, record: Record) -> None:
        """Add the bonus to the reward, and the views to the normalizer before. In place."""
        valid, group = ~record.fault, self.spec.group
        views = record.end.flatten(0, 1)
        self.networks["normalizer"].update(views, valid.flatten(), group)
        error = self.errors(record.end) * valid
        delta = torch.cat([error[:1] + self.cfg.gamma * self.last, error[1:]]).flip(0)
        returns = recurrence(delta, torch.full_like(delta, self.cfg.gamma)).flip(0)
        self.last.copy_(returns[-1])
        self.networks["returns"].update(returns.view(-1, 1), valid.flatten(), group)
        self.networks["returns"].count.clamp_(max=19.0 * valid.numel() * group.size)
        bonus = self.cfg.weight * error * torch.rsqrt(self.networks["returns"].var + 1e-8)
        record.reward.add_(self.spec.dt * bonus)
        *totals, count = group.all_reduce(torch.stack([error.sum(), bonus.sum(), valid.sum()]))
        self.values.copy_(torch.stack(totals) / count.clamp(min=1))

    def update(self, record: Record) -> None:
        """One step of Adam on all valid samples. In place."""
        valid, group = ~record.fault, self.spec.group
        count = group.all_reduce(valid.sum()).clamp(min=1)  # of all processes
        loss = (self.errors(record.end) * valid).sum() / count
        self.optimizer.write(torch.autograd.grad(loss, list(self.optimizer.gradients)))
        group.all_reduce(self.optimizer.grads)
        self.optimizer.clip(1.0, loss.detach()[None])
        self.optimizer.step()

    def measures(self) -> Tensor:
        """(len(metrics),) means over the last iteration."""
        return self.values.clone()

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        own = self.optimizer.tensors() | {"values": self.values}
        networks = shared("rnd/", self.networks.state_dict(keep_vars=True) | own)
        return networks | per_world("rnd/", {"return": self.last})
