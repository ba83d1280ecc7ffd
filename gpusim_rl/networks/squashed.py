"""The policy of soft actor-critic: a squashed Gaussian, an ensemble of critics, their targets."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import Columns, vector
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.symmetry import Flip, MirrorModule, ViewMirrors, concatenated, unmoved
from gpusim_rl.networks.encoders import HiddenLayers, make_encoders
from gpusim_rl.networks.ensembles import Ensemble, SymmetricEnsemble
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.policy import Actor, Memory, SampleInParts, Views, act
from gpusim_rl.networks.symmetric import EvenOddSplit

CRITICS = 2  # targets take their mean: with the least value legs learn later (the log)
LOG_STD = -5.0, 1.0  # least and largest logarithm of a deviation, before the action is squashed
LAST_GAIN = 0.01  # of all networks: their first outputs are small


class Squashed(nn.Module):
    """Normalized observation (n, no) → the mean action (n, nu), bound · tanh(mean).

    std: deviation at first, as `SoftActorCritic` has it.
    """

    def __init__(self, net: nn.Module, bound: float, std: float):
        super().__init__()
        self.net, self.bound = net, bound
        low, high = LOG_STD
        self.offset = math.atanh(2 * (math.log(std) - low) / (high - low) - 1)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the deviation (n, nu) each, before the action is squashed."""
        mean, free = self.net(x)[0].chunk(2, -1)  # (1, n, 2 nu)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (torch.tanh(free + self.offset) + 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.bound * torch.tanh(self.heads(x)[0])


class SoftActorCritic(SampleInParts):
    """A Gaussian actor whose actions are squashed to ±bound, and critics of state and action.

    Args:
        views: shapes of the views, `actor` (no,) and `critic` (nc,); action_width: nu.
        bound: the largest action. std: deviation of the actions at first, as a share of it, before
            they are squashed.
        mirrors: with which all networks commute; None for networks that know no mirror.
        of_actions: whether critics take the action: Q(s, a), or V(s).
        encoders: as `NetworkSettings` has them, without mirrors.

    Attributes:
        critic: (n, nc + nu), or (n, nc), → (copies, n, 1), of returns in units of their scale;
            target: the same networks, which follow slowly.
        noise_factor: of the noise of actions, for those who explore more than others, or less.
    """

    noise_factor = 1.0

    def __init__(
        self,
        views: Columns,
        action_width: int,
        *,
        hidden: tuple[int, ...],
        activation: str,
        bound: float,
        std: float,
        mirrors: ViewMirrors | None,
        encoders: Mapping[str, Any] | None = None,
        of_actions: bool = True,
        seed: int,
    ):
        super().__init__()
        (no,), (nc,), nu = views["actor"].shape, views["critic"].shape, action_width
        self.nu, self.bound = nu, bound
        layers = HiddenLayers(hidden, activation, torch.Generator().manual_seed(seed))
        seen: Any = make_encoders(encoders or {}, views, layers.generator)
        if mirrors:
            magnitudes = Flip(mirrors.action.order, tuple(map(abs, mirrors.action.signs)))
            heads = concatenated([mirrors.action, magnitudes])
            taken = concatenated([mirrors.critic, *[mirrors.action] * of_actions])
            flips = mirrors.obs, heads, taken, unmoved(1.0)
            split, out, self.split, value = map(EvenOddSplit, flips)
            net = SymmetricEnsemble(1, split, out, layers, LAST_GAIN)
            self.critic = SymmetricEnsemble(CRITICS, self.split, value, layers, LAST_GAIN)
        else:
            split, self.split = None, nn.Identity()
            width = no + sum(encoder.size for encoder in seen.values())
            net = Ensemble(1, width, 2 * nu, layers, LAST_GAIN)
            self.critic = Ensemble(CRITICS, nc + nu * of_actions, 1, layers, LAST_GAIN)
        obs, critic = [MirrorModule(x) for x in mirrors[:2]] if mirrors else (None, None)
        self.actor = Actor(Normalizer(no, mirror=obs, parts=split), Squashed(net, bound, std), seen)
        self.critic_normalizer = Normalizer(nc, mirror=critic)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)

    @property
    def head(self) -> Squashed:
        """The actor's layers."""
        return self.actor.net

    @property
    def stored(self) -> Columns:
        """As `Policy` has it: the action alone, as the worlds took it."""
        return {"action": vector(self.nu)}

    def blank_memory(self, worlds: int) -> Memory:
        """None: it remembers nothing."""
        return {}

    def prepare(self, views: Views) -> dict[str, Tensor]:
        """What the network takes of the views, world by world: the normalized observation."""
        return {"obs": self.actor.normalizer(views["actor"])}

    def compute(self, inputs: dict[str, Tensor], memory: Memory, rng: Rng) -> tuple[Tensor, Memory]:
        """The network: prepared views → means and deviations (B, 2 nu); and the memory."""
        x = self.actor.features(inputs["obs"], inputs.__getitem__)
        return torch.cat(self.head.heads(x), -1), memory

    def choose(self, head: Tensor, memory: Memory, rng: Rng) -> tuple[dict[str, Tensor], Memory]:
        """What is stored of an action, world by world, from `compute`'s (B, 2 nu); the memory."""
        mean, log_std = head.chunk(2, -1)
        noise = self.noise_factor * rng.normal("policy/action", self.nu)
        return {"action": self.bound * torch.tanh(mean + log_std.exp() * noise)}, memory

    @torch.no_grad()
    def act(self, views: Views, memory: Memory) -> tuple[Tensor, Memory]:
        """As `Policy` has it: the mean action."""
        return act(self.actor, views, memory, self.critic_normalizer.mean.device)

    def draw(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions / bound (n, nu) for `features` of the actor and noise, with log π (n,)."""
        mean, log_std = self.head.heads(x)
        free = mean + log_std.exp() * noise
        return torch.tanh(free), squashed_log_prob(free, noise, log_std)

    def values(self, net: nn.Module, critic_obs: Tensor, *action: Tensor) -> Tensor:
        """Q or V (copies, n) by critic or target: of normalized observations, actions / bound."""
        return net(self.split(torch.cat([critic_obs, *action], 1))).squeeze(-1)

    def update_normalizers(
        self, views: Sequence[Tensor], valid: Tensor, group: ProcessGroup = SINGLE
    ) -> None:
        """Add the observations (n, ·) of both networks where valid (n,) is true. In place."""
        self.actor.normalizer.update(views[0], valid, group)
        self.critic_normalizer.update(views[1], valid, group)


def squashed_log_prob(free: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """log π (n,) of tanh(free), where free = mean + exp(log_std) · noise, (n, nu) each.

    log N(noise) - log_std - log(1 - tanh²), the last as 2 (log 2 - free - softplus(-2 free)):
    arXiv:1812.05905, appendix C, in a form that does not overflow.
    """
    normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)
    return (normal - 2 * (math.log(2) - free - F.softplus(-2 * free))).sum(-1)
