"""Random network distillation (Burda et al., arXiv:1810.12894): a bonus for views that are new."""

import torch
from torch import Tensor, nn

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import RewardModel, Spec
from gpusim_rl.algorithms.returns import recurrence
from gpusim_rl.algorithms.rewards.rnd.settings import Settings
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import FLAG, NUMBER, Record, vector
from gpusim_rl.core.states import Live, per_world, shared
from gpusim_rl.networks.encoders import HiddenLayers, mlp
from gpusim_rl.networks.normalizer import Normalizer

NETS = ("target", "predictor", "normalizer", "returns")


class RND(RewardModel):
    """Pays for the error of a predictor f̂ that learns what a random network f computes of a view.

        e_t = mean (f(s'_t) - f̂(s'_t))²,    G_t = e_t + γ G_{t-1},    r_t += w dt e_t / std(G)

    s'_t is the critic's view of the end of step t, normalized by the views of all steps so far. G
    goes on over the ends of episodes (section 2.3), and its deviation is that of all steps so far.
    In each iteration f̂ takes one step of Adam on the mean of e over the samples.
    """

    metrics = (
        Metric("novelty", "reward_model/novelty", "error of the predictor"),
        Metric("bonus", "reward_model/bonus", "bonus of a step [1/s]", ".3f", "bonus [1/s]"),
    )

    def __init__(self, spec: Spec, settings: Settings):
        self.spec, self.cfg, (width,) = spec, settings, spec.views["critic"].shape
        self.columns = {"end": vector(width), "reward": NUMBER, "fault": FLAG}
        generator = torch.Generator().manual_seed(spec.seed + (1 << 32))  # not that of the policy
        layers = HiddenLayers(tuple(settings.hidden), "elu", generator)
        self.target, self.predictor = (mlp(width, settings.features, layers, 1.0) for _ in range(2))
        self.normalizer, self.returns = Normalizer(width), Normalizer(1)
        self.nets = nn.ModuleDict({x: getattr(self, x) for x in NETS}).to(spec.device)
        params = {"predictor": list(self.predictor.parameters())}
        self.optimizer = FlatAdam(params, settings.learning_rate)
        self.last = torch.zeros(spec.num_rows, device=spec.device)  # G of the last step
        self.means = torch.zeros(len(self.metrics), device=spec.device)

    def errors(self, record: Record) -> Tensor:
        """e (T, B), and 0 where a world was faulty."""
        x = self.normalizer(record.end.nan_to_num())
        return (self.target(x) - self.predictor(x)).square().mean(-1) * ~record.fault

    @torch.no_grad()
    def add_reward(self, record: Record) -> None:
        valid, group, gamma = ~record.fault, self.spec.group, self.cfg.gamma
        self.normalizer.update(record.end.flatten(0, 1), valid.flatten(), group)
        error = self.errors(record)
        delta = torch.cat([error[:1] + gamma * self.last, error[1:]]).flip(0)
        returns = recurrence(delta, torch.full_like(delta, gamma)).flip(0)
        self.last.copy_(returns[-1])
        self.returns.update(returns.view(-1, 1), valid.flatten(), group)
        bonus = self.cfg.weight * error * torch.rsqrt(self.returns.var + 1e-8)
        record.reward.add_(self.spec.dt * bonus)
        *sums, count = group.all_reduce(torch.stack([error.sum(), bonus.sum(), valid.sum()]))
        self.means.copy_(torch.stack(sums) / count.clamp(min=1))

    def update(self, record: Record) -> None:
        count = self.spec.group.all_reduce((~record.fault).sum()).clamp(min=1)
        loss = self.errors(record).sum() / count
        self.optimizer.write(torch.autograd.grad(loss, list(self.optimizer.gradients)))
        self.spec.group.all_reduce(self.optimizer.grads)
        self.optimizer.clip(loss.detach()[None])
        self.optimizer.step()

    def measures(self) -> Tensor:
        return self.means.clone()

    def tensors(self) -> dict[str, Live]:
        entries = self.optimizer.tensors() | {"means": self.means}
        nets = shared("rnd/", self.nets.state_dict(keep_vars=True) | entries)
        return nets | per_world("rnd/", {"return": self.last})
