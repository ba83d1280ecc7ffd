"""The networks: a normalizer, an actor and a critic. What ONNX holds is exactly what acted."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpusim_rl.core.maths import log_prob
from gpusim_rl.core.record import NUMBER, Columns, Record, vector
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import check_layout, layout
from gpusim_rl.core.symmetry import Mirror, Mirrors, keep
from gpusim_rl.networks.actor import Actor, Memory
from gpusim_rl.networks.gru import Recurrent
from gpusim_rl.networks.mlp import mlp, mlp_forward
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.symmetric import Parts, SymmetricMLP


def restarted(memory: Memory, mask: Tensor) -> Memory:
    """The memory (B, …) of a policy, blank in the worlds of mask (B,), which begin an episode."""
    return {
        name: x.masked_fill(mask.to(x.device).view(-1, *[1] * (x.ndim - 1)), 0.0)
        for name, x in memory.items()
    }


class Policy(nn.Module):
    """A Gaussian actor with a state-independent standard deviation, and a critic that sees more.

    Args:
        no, nc, nu: widths of the actor's and the critic's observation and of the action.
        hidden: widths of the hidden layers of both networks.
        memory: "gru" puts a gated recurrent unit before the layers of each network; "none" does
            not. memory_size: how many numbers each remembers.
        std: standard deviation of the actions, at first; floor: the smallest that it may become.
        amp: "bf16" multiplies matrices in bfloat16 while training. The weights stay float32.
        symmetry: with "net" both networks commute with the mirror, and `hidden` counts both units
            of each pair. "augment" and "loss" are applied by PPO. All but "none" need `mirrors`;
            the normalizers then treat observations and images alike.
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
        memory: str,
        memory_size: int,
        mirrors: Mirrors | None = None,
        seed: int,
    ):
        super().__init__()
        if amp not in (None, "bf16"):
            raise ValueError(f"algo.amp={amp}: choose one of bf16, null")
        if not 0 < floor < std:
            raise ValueError(f"algo.floor={floor} must lie between 0 and algo.std={std}")
        if memory == "gru" and symmetry != "none":
            raise ValueError(f"algo.memory=gru needs algo.symmetry=none, not {symmetry}")
        self._set_mirrors(symmetry, mirrors, [no, nc, nu])
        generator = torch.Generator().manual_seed(seed)
        net = partial(Recurrent, memory_size) if memory == "gru" else mlp
        given: list[Any] = [no, nc, nu, 1]
        parts: list[Parts | None] = [None, None]
        if symmetry == "net" and mirrors:
            net, given = SymmetricMLP, [Parts(flip) for flip in (*mirrors, keep(1.0))]
            parts = given[:2]
        obs, critic, action, value = given
        normalizer = Normalizer(no, mirror=self.obs_mirror, parts=parts[0])
        self.actor = Actor(normalizer, net(obs, hidden, action, activation, 0.01, generator))
        self.register_buffer("floor", torch.tensor(floor))  # goes with the weights
        self.log_std = nn.Parameter(torch.full((nu,), math.log(std - floor)))
        self.amp = amp
        self.critic_normalizer = Normalizer(nc, mirror=self.critic_mirror, parts=parts[1])
        self.critic = net(critic, hidden, value, activation, 1.0, generator)

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
    def stored(self) -> Columns:
        """The columns that `sample` gives."""
        nu = vector(len(self.log_std))
        return dict(action=nu, mean=nu, logp=NUMBER, std=nu)

    def blank_memory(self, worlds: int) -> Memory:
        """What the networks remember as an episode begins, name → (worlds, size): zeros."""
        memory = self.actor.blank_memory(worlds)
        if isinstance(self.critic, Recurrent):
            memory["critic_gru"] = self.log_std.new_zeros(worlds, self.critic.size)
        return memory

    def sample(
        self, views: tuple[Tensor, Tensor], memory: Memory, rng: Rng
    ) -> tuple[dict[str, Tensor], Memory]:
        """An action for each of B worlds, with what a learner stores of it, and the next memory.

        Args:
            views: the observations (B, no) of the actor and (B, nc) of the critic.
            memory: as `blank_memory` has it.

        Returns:
            `action`, `mean` and `std`, (B, nu) each, and the action's log-probability `logp` (B,);
            then the memory.
        """
        obs, std = self.actor.normalizer(views[0]), self.std
        if memory:
            mean, memory = self._remember(obs, self.critic_normalizer(views[1]), memory)
        else:
            mean = self.mean(obs)
        action = mean + std * rng.normal("policy/action", mean.shape[1])
        logp = log_prob(action, mean, std)
        return dict(action=action, mean=mean, logp=logp, std=std.expand_as(mean)), memory

    @torch.no_grad()
    def act(self, obs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The mean action (B, nu) for observations (B, no) on any device, and the next memory.

        It is what ONNX holds: always in float32.
        """
        given = obs.to(self.log_std.device)
        if not memory:
            return self.actor(given).to(obs.device), memory
        action, after = self.actor(given, memory)
        return action.to(obs.device), memory | after

    def evaluate(self, critic_obs: Tensor) -> Tensor:
        """V (…) of the critic's observation (…, nc); with memory, of (…, nc + size) with it."""
        if not isinstance(self.critic, Recurrent):
            return self.value(self.critic_normalizer(critic_obs)).squeeze(-1)
        view, memory = critic_obs.split([self.dims[1], self.critic.size], -1)
        with self._precision(view):
            value, _ = self.critic(self.critic_normalizer(view), memory)
        return value.to(view.dtype).squeeze(-1)

    def outputs(self, batch: Record, memory: Memory) -> tuple[Tensor, Tensor]:
        """Mean actions (n, nu) and values (n, 1) of n normalized samples.

        With memory, they are T steps of B worlds in their order, and it is that before the first.
        """
        if not memory:
            return self.mean(batch.obs), self.value(batch.critic)
        mean, _ = self.unroll("actor", batch.obs, memory, batch.begins)
        value, _ = self.unroll("critic", batch.critic, memory, batch.begins)
        return mean, value

    def unroll(
        self, which: str, x: Tensor, memory: Memory, begins: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The actor's or the critic's outputs (T B, …) and its memory (T B, size) after each step.

        x (T B, width) are normalized observations, begins (T B,) is 1 where an episode begins.
        """
        net, h = self.actor.net if which == "actor" else self.critic, memory[f"{which}_gru"]
        assert isinstance(net, Recurrent)
        steps = (-1, len(h))
        with self._precision(x):
            y, after = net.unroll(x.unflatten(0, steps), h, begins.unflatten(0, steps))
        return y.to(x.dtype), after.to(x.dtype)

    def _remember(self, obs: Tensor, critic_obs: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Mean action (B, nu) for normalized observations, and the next memory of both networks."""
        assert isinstance(self.critic, Recurrent)
        with self._precision(obs):
            mean, actor = self.actor.net(obs, memory["actor_gru"])
            critic = self.critic.gru(critic_obs, memory["critic_gru"])
        return mean.to(obs.dtype), dict(actor_gru=actor, critic_gru=critic)

    def mean(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) for a normalized observation (…, no)."""
        return self._forward(self.actor.net, obs)

    def value(self, critic_obs: Tensor) -> Tensor:
        """V (…, 1) of the critic's normalized observation (…, nc)."""
        return self._forward(self.critic, critic_obs)

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Take the networks from a checkpoint of any number of worlds. In place or not at all.

        Raises:
            ValueError: they do not fit. `where` says what the checkpoint was read from.
        """
        networks = {name[7:]: value for name, value in state.items() if name.startswith("policy/")}
        check_layout(networks, layout(self.state_dict()), where)
        self.load_state_dict(networks)

    def _forward(self, net: nn.Module, x: Tensor) -> Tensor:
        """net(x), with the precision that `amp` says."""
        with self._precision(x):
            y = mlp_forward(net, x) if isinstance(net, nn.Sequential) else net(x)
            return y.to(x.dtype)

    def _precision(self, x: Tensor) -> torch.autocast:
        """The precision of matrix products while training, on the device of x."""
        # A captured graph must not depend on autocast's cache.
        return torch.autocast(
            x.device.type, torch.bfloat16, enabled=self.amp == "bf16", cache_enabled=False
        )
