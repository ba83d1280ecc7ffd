"""Adversarial motion priors (Peng et al., arXiv:2104.02180): a reward for moving as was shown."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
from itertools import accumulate

import torch
from torch import Tensor

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import RewardModel, Spec
from gpusim_rl.algorithms.rewards.amp.settings import Settings
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import FLAG, NUMBER, Columns, Record
from gpusim_rl.core.states import Live, shared
from gpusim_rl.networks.encoders import HiddenLayers, mlp
from gpusim_rl.runs.demonstrations import Demonstrations


# Why: docs/decisions/teachers.md
class AMP(RewardModel):
    """A discriminator D tells shown transitions from the policy's own, and pays for its mistakes.

        r_t += w dt max(0, 1 - ¼ (D(x_t) - 1)²)                                          (eq. 7)
        L = E_shown (D - 1)² + E_policy (D + 1)² + ½ λ E_shown |∇D|²                      (eq. 8)

    x_t are some terms of the critic's views before and after step t, normalized by the mean and
    deviation of what was shown, of which every process has the same. ValueError for no such term.
    """

    metrics = (
        Metric("style", "reward_model/style", "reward of the style [1/s]", ".3f", "style [1/s]"),
        Metric("shown", "reward_model/shown", "discriminator of what was shown", ".3f"),
        Metric("own", "reward_model/own", "discriminator of the policy's own steps", ".3f"),
    )

    def __init__(self, spec: Spec, settings: Settings):
        self.spec, self.cfg, device = spec, settings, spec.device
        demos: Demonstrations = spec.given["reward.demos"]
        critic = spec.views["critic"]
        self.columns: Columns = dict(critic=critic, end=critic, reward=NUMBER, fault=FLAG)
        self.picked = torch.tensor(term_columns(demos, settings.terms), device=device)
        shown = self.transitions(demos.record)  # (N, 2k)
        self.mean, self.scale = shown.mean(0), shown.std(0).clamp(min=1e-2)
        self.shown = self.normalized(shown)
        generator = torch.Generator().manual_seed(spec.seed + (2 << 32))  # not that of the policy
        layers = HiddenLayers(tuple(settings.hidden), "elu", generator)
        self.network = mlp(shown.shape[1], 1, layers, 1.0).to(device)
        self.optimizer = FlatAdam({"all": list(self.network.parameters())}, settings.learning_rate)
        # of the shown transitions all processes draw the same; of its own each draws its share
        self.rng, self.own_rng = spec.rng(shared=True), spec.rng()
        self.values = torch.zeros(len(self.metrics), device=device)

    def transitions(self, record: Record) -> Tensor:
        """(…, 2k) the terms before and after each step."""
        views = record.critic, record.end
        return torch.cat([x.nan_to_num().index_select(-1, self.picked) for x in views], -1)

    def normalized(self, x: Tensor) -> Tensor:
        """Transitions (…, 2k) in units of the demonstrations' deviation."""
        return ((x - self.mean) / self.scale).clamp(-5.0, 5.0)

    @torch.no_grad()
    def add_reward(self, record: Record) -> None:
        """Add the style's reward. In place."""
        valid, group = ~record.fault, self.spec.group
        judged = self.network(self.normalized(self.transitions(record))).squeeze(-1)  # (T, B)
        style = (1 - 0.25 * (judged - 1).square()).clamp(min=0) * valid
        record.reward.add_(self.spec.dt * self.cfg.weight * style)
        total, count = group.all_reduce(torch.stack([style.sum(), valid.sum()]))
        self.values[0].copy_(self.cfg.weight * total / count.clamp(min=1))

    def update(self, record: Record) -> None:
        """Some steps of the discriminator on transitions drawn anew. In place."""
        cfg, worlds = self.cfg, self.spec.num_rows
        per_world = -(-cfg.batch // (worlds * self.spec.group.size))
        entries, valid = self.normalized(self.transitions(record)), (~record.fault).float()
        for rng in (self.rng, self.own_rng):
            rng.draw(self.spec.iteration)
        rows = self.rng.integers("amp/shown", len(self.shown), cfg.steps * cfg.batch)[0]
        times = self.own_rng.integers("amp/own", len(entries), cfg.steps * per_world)  # (B, …)
        columns = torch.arange(worlds, device=times.device)[:, None]
        for shown, t in zip(rows.split(cfg.batch), times.split(per_world, 1), strict=True):
            self.step(
                self.shown[shown], entries[t, columns].flatten(0, 1), valid[t, columns].flatten()
            )

    def step(self, shown: Tensor, entries: Tensor, valid: Tensor) -> None:
        """One step on transitions (n, 2k) shown and (m, 2k) of the policy; valid (m,). In place."""
        group, first = self.spec.group, shown.requires_grad_()
        count = group.all_reduce(valid.sum()).clamp(min=1)  # of all processes
        real, fake = self.network(first).squeeze(-1), self.network(entries).squeeze(-1)
        (slope,) = torch.autograd.grad(real.sum(), first, create_graph=True)
        penalty = 0.5 * self.cfg.gradient_penalty * slope.square().sum(1).mean()
        of_shown = ((real - 1).square().mean() + penalty) / group.size  # each has the same
        loss = of_shown + ((fake + 1).square() * valid).sum() / count
        self.optimizer.write(torch.autograd.grad(loss, list(self.optimizer.gradients)))
        group.all_reduce(self.optimizer.grads)
        self.optimizer.clip(loss.detach()[None])
        self.optimizer.step()
        self.values[1].copy_(real.detach().mean())
        self.values[2].copy_(group.all_reduce((fake.detach() * valid).sum()) / count)

    def measures(self) -> Tensor:
        """(len(metrics),) of the last iteration."""
        return self.values.clone()

    def tensors(self) -> dict[str, Live]:
        entries = self.optimizer.tensors() | {"values": self.values}
        return shared("amp/", self.network.state_dict(keep_vars=True) | entries)


def term_columns(demos: Demonstrations, names: list[str]) -> list[int]:
    """The columns of the critic's view that hold some terms; ValueError names an unknown one."""
    widths: dict[str, int] = json.loads(demos.description["terms"])
    if unknown := [name for name in names if name not in widths]:
        raise ValueError(f"reward.terms: no term {unknown[0]!r}: choose of {', '.join(widths)}")
    ends = zip(widths.items(), accumulate(widths.values()), strict=True)
    places = {name: range(end - width, end) for (name, width), end in ends}
    return [column for name in names for column in places[name]]
