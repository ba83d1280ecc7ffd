"""The networks: a normalizer, an actor and a critic. What ONNX holds is exactly what acted."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from gpusim_rl.core.maths import log_prob
from gpusim_rl.core.record import NUMBER
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import check_layout, layout
from gpusim_rl.core.symmetry import Mirror, Mirrors, average
from gpusim_rl.networks.mlp import mlp, mlp_forward
from gpusim_rl.networks.normalizer import Normalizer


def restarted(memory: dict[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """The memory (B, …) of a policy, blank in the worlds of mask (B,), which begin an episode."""
    return {
        name: x.masked_fill(mask.view(-1, *[1] * (x.ndim - 1)), 0.0) for name, x in memory.items()
    }


class Actor(nn.Module):
    """Observation (B, no) → mean action (B, nu), normalizer included. This module is exported.

    Args:
        normalizer: of the observations.
        net: normalized observation → mean action.
        obs_mirror, action_mirror: with them, the average over an observation and its image.
    """

    def __init__(
        self,
        normalizer: Normalizer,
        net: nn.Sequential,
        obs_mirror: Mirror | None = None,
        action_mirror: Mirror | None = None,
    ):
        super().__init__()
        self.normalizer, self.obs_mirror, self.action_mirror = normalizer, obs_mirror, action_mirror
        self.net = net

    def forward(self, obs: Tensor) -> Tensor:
        return average(self.net, self.normalizer(obs), self.obs_mirror, self.action_mirror)


class Policy(nn.Module):
    """A Gaussian actor with a state-independent standard deviation, and a critic that sees more.

    Args:
        no, nc, nu: widths of the actor's and the critic's observation and of the action.
        hidden: widths of the hidden layers of both networks.
        std: standard deviation of the actions, at first; floor: the smallest that it may become.
        amp: "bf16" multiplies matrices in bfloat16 while training. The weights stay float32.
        symmetry: "net" averages both networks over an observation and its mirror image. "augment"
            and "loss" are applied by PPO. All but "none" need `mirrors`; the normalizers then treat
            observations and images alike.
        seed: of the first weights.
    """

    floor: Tensor

    def __init__(
        self,
        no: int,
        nc: int,
        nu: int,
        *,
        hidden: tuple[int, ...],
        activation: str,
        std: float,
        floor: float,
        amp: str | None,
        symmetry: str,
        mirrors: Mirrors | None = None,
        seed: int,
    ):
        super().__init__()
        if amp not in (None, "bf16"):
            raise ValueError(f"algo.amp={amp}: choose one of bf16, null")
        if not 0 < floor < std:
            raise ValueError(f"algo.floor={floor} must lie between 0 and algo.std={std}")
        self._set_mirrors(symmetry, mirrors, [no, nc, nu])
        generator = torch.Generator().manual_seed(seed)
        normalizer = Normalizer(no, mirror=self.obs_mirror)
        net = mlp(no, hidden, nu, activation, 0.01, generator)
        averaged = (self.obs_mirror, self.action_mirror) if symmetry == "net" else (None, None)
        self.actor = Actor(normalizer, net, *averaged)
        self.register_buffer("floor", torch.tensor(floor))  # goes with the weights
        self.log_std = nn.Parameter(torch.full((nu,), math.log(std - floor)))
        self.amp = amp
        self.critic_normalizer = Normalizer(nc, mirror=self.critic_mirror)
        self.critic = mlp(nc, hidden, 1, activation, 1.0, generator)

    def _set_mirrors(self, symmetry: str, mirrors: Mirrors | None, widths: list[int]) -> None:
        """Make the modules that mirror observations and actions; None for each without symmetry."""
        self.symmetry, self.mirrors = symmetry, mirrors
        self.obs_mirror = self.critic_mirror = self.action_mirror = None
        if symmetry == "none":
            return
        if mirrors is None or [len(flip.order) for flip in mirrors] != widths:
            no, nc, nu = widths
            raise ValueError(
                f"algo.symmetry={symmetry}: the mirrors do not fit"
                f" observations of {no} and {nc} and actions of {nu} numbers"
            )
        self.obs_mirror, self.critic_mirror, self.action_mirror = map(Mirror, mirrors)

    @property
    def std(self) -> Tensor:
        """(nu,) The floor is added, not clamped to, so that the gradient never vanishes."""
        return self.floor + self.log_std.exp()

    @torch.no_grad()
    def symmetrize_gradient(self, grad: Tensor) -> None:
        """With symmetry=net, make the gradient (nu,) of log_std equal left and right. In place."""
        if self.symmetry == "net" and self.action_mirror:
            grad.copy_(self.action_mirror.symmetrized_magnitudes(grad))

    @property
    def dims(self) -> tuple[int, int, int]:
        """Widths of the actor's observation, of the critic's and of the action: no, nc, nu."""
        no, nc = (len(x.mean) for x in (self.actor.normalizer, self.critic_normalizer))
        return no, nc, len(self.log_std)

    @property
    def stored(self) -> dict[str, int]:
        """The columns that `sample` gives, and their widths."""
        nu = len(self.log_std)
        return dict(action=nu, mean=nu, logp=NUMBER, std=nu)

    def blank_memory(self, worlds: int) -> dict[str, Tensor]:
        """What the networks remember as an episode begins, name → (worlds, …); zeros."""
        return {}

    def sample(
        self, views: tuple[Tensor, Tensor], memory: dict[str, Tensor], rng: Rng
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """An action for each of B worlds, with what a learner stores of it, and the next memory.

        Args:
            views: the observations (B, no) of the actor and (B, nc) of the critic.
            memory: as `blank_memory` has it.

        Returns:
            `action`, `mean` and `std`, (B, nu) each, and the action's log-probability `logp` (B,);
            then the memory.
        """
        mean, std = self.mean(self.actor.normalizer(views[0])), self.std
        action = mean + std * rng.normal("policy/action", mean.shape[1])
        logp = log_prob(action, mean, std)
        return dict(action=action, mean=mean, logp=logp, std=std.expand_as(mean)), memory

    @torch.no_grad()
    def act(self, obs: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean action (B, nu) for observations (B, no) on any device, and the next memory.

        It is what ONNX holds: always in float32.
        """
        return self.actor(obs.to(self.log_std.device)).to(obs.device), memory

    def evaluate(self, critic_obs: Tensor) -> Tensor:
        """V (…) of the critic's observation (…, nc)."""
        return self.value(self.critic_normalizer(critic_obs)).squeeze(-1)

    def mean(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) for a normalized observation (…, no)."""
        actor = self.actor
        net = partial(self._forward, actor.net)
        return average(net, obs, actor.obs_mirror, actor.action_mirror)

    def value(self, critic_obs: Tensor) -> Tensor:
        """V (…, 1) of the critic's normalized observation (…, nc)."""
        mirror = self.critic_mirror if self.symmetry == "net" else None
        return average(partial(self._forward, self.critic), critic_obs, mirror)

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Take the networks from a checkpoint of any number of worlds. In place or not at all.

        Raises:
            ValueError: they do not fit. `where` says what the checkpoint was read from.
        """
        networks = {name[7:]: value for name, value in state.items() if name.startswith("policy/")}
        check_layout(networks, layout(self.state_dict()), where)
        self.load_state_dict(networks)

    def _forward(self, net: nn.Sequential, x: Tensor) -> Tensor:
        """net(x), with the precision that `amp` says."""
        # A captured graph must not depend on autocast's cache.
        with torch.autocast(
            x.device.type, torch.bfloat16, enabled=self.amp == "bf16", cache_enabled=False
        ):
            return mlp_forward(net, x).to(x.dtype)
