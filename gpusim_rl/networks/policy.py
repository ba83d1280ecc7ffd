"""`Policy`: what acts. The actor-critic of PPO: normalizers, an actor and a critic."""

# torch has no types for some of its members:
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import NUMBER, Columns, Record, vector, view_columns
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows, beside, check_layout, layout
from gpusim_rl.core.symmetry import MirrorModule, ViewMirrors, unmoved
from gpusim_rl.networks.calibration import Calibration
from gpusim_rl.networks.distributions import Distribution, Gaussian
from gpusim_rl.networks.encoders import (
    HiddenLayers,
    MemoryMLP,
    make_encoders,
    make_net,
    mlp_forward,
)
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.settings import NetworkSettings
from gpusim_rl.networks.symmetric import EvenOddSplit, SymmetricMLP

Memory = dict[str, Tensor]  # what networks remember of B episodes, by their name → (B, …)
# name of a view → (B, …): `actor` (B, no), `critic` (B, nc), and those that the task adds
Views = Mapping[str, Tensor]


class Actor(nn.Module):
    """Observation (B, no) → mean action (B, nu), perhaps both with memory: what is exported.

    With `encoders` the net is given what they make of further views, too.
    """

    net: Any  # normalized observation → mean action
    calibration: Calibration | None  # of the command; training neither reads nor changes it

    def __init__(
        self, normalizer: Normalizer, net: nn.Module, encoders: nn.ModuleDict | None = None
    ):
        super().__init__()
        self.normalizer, self.net, self.encoders = normalizer, net, encoders or nn.ModuleDict()
        self.calibration = None

    @property
    def views(self) -> Columns:
        """The further views that it sees."""
        encoders: dict[str, Any] = dict(self.encoders.items())
        return {name: encoder.view for name, encoder in encoders.items()}

    def features(self, x: Tensor, view: Callable[[str], Tensor]) -> Tensor:
        """What the net is given: x (…, no), normalized, and features of the views by name."""
        encoded = [encoder(view(name)) for name, encoder in self.encoders.items()]
        return torch.cat([x, *encoded], -1) if encoded else x

    def blank_memory(self, worlds: int) -> Memory:
        """The memory as an episode begins, name → (worlds, …): zeros; {} for most."""
        return blank_memory(worlds, actor=self.net)

    def forward(self, obs: Tensor, memory: Memory | None = None, views: Views | None = None) -> Any:
        x = self.normalizer(self.calibration(obs) if self.calibration else obs)
        x = self.features(x, (views or {}).__getitem__)
        if not memory:
            return self.net(x)
        action, after = self.net(x, memory["actor"])
        return action, {"actor": after}


class Policy(Protocol):
    """A policy that steps worlds: in training, in an evaluation and when a run is played."""

    actor: Actor  # the module that is exported

    @property
    def stored(self) -> Columns: ...  # the columns that `sample` gives, in their order
    # as an episode begins, name → (worlds, …): zeros
    def blank_memory(self, worlds: int) -> Memory: ...
    # for B worlds `action` (B, nu) and the other columns of `stored`, and the next memory
    def sample(self, views: Views, memory: Memory, rng: Rng) -> tuple[Rows, Memory]: ...
    # the exported action (B, nu) for views on any device, and the next memory
    def act(self, views: Views, memory: Memory) -> tuple[Tensor, Memory]: ...
    # takes the networks from a checkpoint, in place, or ValueError that names `where` it is
    def load(self, state: dict[str, Tensor], where: str) -> None: ...
    # it, with its tensors on a device
    def to(self, device: torch.device, /) -> Self: ...


def act(actor: Actor, views: Views, memory: Memory, device: torch.device) -> tuple[Tensor, Memory]:
    """The mean action (B, nu) of an actor on a device for views on any, and the next memory."""
    obs = views["actor"]
    further = {name: views[name].to(device) for name in actor.encoders}
    out = actor(obs.to(device), memory, further)
    action, after = out if memory else (out, memory)
    return action.to(obs.device), after


def blank_memory(worlds: int, **nets: nn.Module) -> Memory:
    """The blank memory (worlds, …) of those of the networks that have one."""
    remembering = {name: net for name, net in nets.items() if isinstance(net, MemoryMLP)}
    return {name: net.encoder.blank(worlds) for name, net in remembering.items()}


def restarted(memory: Memory, mask: Tensor) -> Memory:
    """The memory (B, …) of a policy, blank in the worlds of mask (B,), which begin an episode."""
    return {name: x.masked_fill(beside(mask.to(x.device), x), 0.0) for name, x in memory.items()}


class SampleInParts(nn.Module):
    """A policy whose `sample` has the three parts of `envs.fused_step.PolicyParts`."""

    prepare: Any
    compute: Any
    choose: Any

    def sample(self, views: Views, memory: Memory, rng: Rng) -> tuple[dict[str, Tensor], Memory]:
        """As `Policy` has it: an action for each of B worlds, and the next memory."""
        further = {name: x for name, x in views.items() if name not in ("actor", "critic")}
        head, memory = self.compute(self.prepare(views) | further, memory, rng)
        return self.choose(head, memory, rng)

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """As `Policy` has it: take the networks `policy/…` from a checkpoint."""
        networks = {name[7:]: value for name, value in state.items() if name.startswith("policy/")}
        check_layout(networks, layout(self.state_dict()), where)
        self.load_state_dict(networks)


class ActorCritic(SampleInParts):
    """A Gaussian actor with a state-independent standard deviation, and a critic that sees more.

    Args:
        views: shapes of the views, `actor` (no,) and `critic` (nc,); action_width: nu.
        cfg: layers, memory and noise.
        symmetry: with "net" both networks commute with the mirror, and `cfg.hidden` counts both
            units of each pair. "augment" is applied by PPO. All but "none" need `mirrors`;
            the normalizers then treat observations and images alike.
    """

    family: ClassVar[Any] = Gaussian  # of distribution: another one takes no fused kernels
    min_std: Tensor
    critic: Any  # as actor.net: layers, with an encoder before them or not

    def __init__(
        self,
        views: Columns,
        action_width: int,
        cfg: NetworkSettings,
        *,
        symmetry: str = "none",
        mirrors: ViewMirrors | None = None,
        seed: int,
    ):
        super().__init__()
        if cfg.amp not in (None, "bf16"):
            raise ValueError(f"algo.amp={cfg.amp}: choose one of bf16, null")
        least, std = cfg.min_std, cfg.std
        if not 0 < least < std:
            raise ValueError(f"algo.min_std={least} must lie between 0 and algo.std={std}")
        if cfg.memory != "none" and symmetry != "none":
            raise ValueError(f"algo.memory={cfg.memory} needs algo.symmetry=none, not {symmetry}")
        if cfg.encoders and symmetry != "none":
            raise ValueError(f"algo.encoders needs algo.symmetry=none, not {symmetry}")
        (no,), (nc,), nu = views["actor"].shape, views["critic"].shape, action_width
        self._set_mirrors(symmetry, mirrors, (no, nc, nu))
        layers = HiddenLayers(cfg.hidden, cfg.activation, torch.Generator().manual_seed(seed))
        # gain 0.01: first mean actions are near zero, and std explores (arXiv:2006.05990)
        encoders: Any = {}
        if symmetry == "net" and mirrors:
            parts = [EvenOddSplit(flip) for flip in (*mirrors, unmoved(1.0))]
            net = SymmetricMLP(parts[0], parts[2], layers, 0.01)
            critic = SymmetricMLP(parts[1], parts[3], layers, 1.0)
        else:
            parts = [None, None]
            encoders = make_encoders(cfg.encoders, views, layers.generator)
            width = no + sum(encoder.size for encoder in encoders.values())
            net, critic = make_net(cfg, width, nu, layers, 0.01), make_net(cfg, nc, 1, layers, 1.0)
        normalizer = Normalizer(no, mirror=self.obs_mirror, parts=parts[0])
        self.actor, self.amp = Actor(normalizer, net, encoders), cfg.amp
        seen = {name: x for name, x in views.items() if name in ("actor", "critic", *encoders)}
        self.views = view_columns(seen)
        self.register_buffer("min_std", torch.tensor(least))  # goes with the weights
        self.log_std = nn.Parameter(torch.full((nu,), math.log(std - least)))
        self.critic_normalizer = Normalizer(nc, mirror=self.critic_mirror, parts=parts[1])
        self.critic = critic

    def _set_mirrors(
        self, symmetry: str, mirrors: ViewMirrors | None, widths: tuple[int, int, int]
    ) -> None:
        self.symmetry, self.mirrors = symmetry, mirrors
        self.obs_mirror = self.critic_mirror = self.action_mirror = None
        if symmetry == "none":
            return
        if mirrors is None or tuple(len(flip.order) for flip in mirrors) != widths:
            no, nc, nu = widths
            raise ValueError(
                f"algo.symmetry={symmetry}: the mirrors do not fit"
                f" observations of {no} and {nc} and actions of {nu} numbers"
            )
        self.obs_mirror, self.critic_mirror, self.action_mirror = map(MirrorModule, mirrors)

    @property
    def std(self) -> Tensor:
        """(nu,) `min_std` is added, not clamped to, so that the gradient never vanishes."""
        return self.min_std + self.log_std.exp()

    @property
    def stored(self) -> Columns:
        """The action, its log-probability and the parameters of its distribution."""
        nu = vector(len(self.log_std))
        return dict(action=nu, logp=NUMBER) | dict.fromkeys(self.family.columns, nu)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each network, those of the distribution first among the actor's."""
        actor = [self.log_std, *self.actor.parameters()]
        return {"actor": actor, "critic": list(self.critic.parameters())}

    def blank_memory(self, worlds: int) -> Memory:
        """As `Policy` has it: of both networks."""
        return blank_memory(worlds, actor=self.actor.net, critic=self.critic)

    def prepare(self, views: Views) -> dict[str, Tensor]:
        """What the networks take of the views, world by world: normalized observations."""
        remembers = isinstance(self.critic, MemoryMLP)
        critic = {"critic": self.critic_normalizer(views["critic"])} if remembers else {}
        return {"obs": self.actor.normalizer(views["actor"])} | critic

    def compute(self, inputs: dict[str, Tensor], memory: Memory, rng: Rng) -> tuple[Tensor, Memory]:
        """The networks: prepared views → mean actions (B, nu), and the next memory."""
        x = self.actor.features(inputs["obs"], inputs.__getitem__)
        if not memory:
            return self.mean(x), memory
        mean, actor = self._run(self.actor.net, x, memory["actor"])
        _, critic = self._run(self.critic.encoder.step, inputs["critic"], memory["critic"])
        return mean, memory | dict(actor=actor, critic=critic)

    def choose(self, mean: Tensor, memory: Memory, rng: Rng) -> tuple[dict[str, Tensor], Memory]:
        """What is stored of an action, world by world, from mean actions (B, nu); the memory."""
        acted = self.distribution(mean)
        action = acted.sample(rng)
        return self.describe(acted, action), memory

    def describe(self, acted: Distribution, action: Tensor) -> dict[str, Tensor]:
        """The columns `stored` of actions (…, nu), if they are of this distribution."""
        # Why: docs/decisions/records.md
        columns = {name: getattr(acted, name).expand_as(action) for name in acted.columns}
        return dict(action=action, logp=acted.log_prob(action)) | columns

    @torch.no_grad()
    def act(self, views: Views, memory: Memory) -> tuple[Tensor, Memory]:
        """As `Policy` has it: the mean action, always in float32."""
        action, after = act(self.actor, views, memory, self.log_std.device)
        return action, memory | after

    def distribution(self, mean: Tensor) -> Distribution:
        """The distribution of actions around mean actions (…, nu)."""
        return self.family(mean, self.std)

    def mean(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) for the `features` of the actor."""
        return self._run(self.actor.net, obs)

    def value(self, critic_obs: Tensor) -> Tensor:
        """V (…, 1) of the critic's normalized observation (…, nc)."""
        return self._run(self.critic, critic_obs)

    def outputs(self, batch: Record, memory: Memory) -> tuple[Tensor, Tensor]:
        """Mean actions (n, nu) and values (n, 1) of n normalized samples.

        With memory, they are T steps of B worlds in their order, and it is that before the first.
        """
        seen = self.actor.features(batch.obs, batch.column)
        if not memory:
            return self.mean(seen), self.value(batch.critic)
        views, worlds = (seen, batch.critic, batch.begins), len(memory["actor"])
        obs, critic, begins = (x.unflatten(0, (-1, worlds)) for x in views)
        mean, _ = self._run(self.actor.net.unroll, obs, memory["actor"], begins)
        value, _ = self._run(self.critic.unroll, critic, memory["critic"], begins)
        return mean.flatten(0, 1), value.flatten(0, 1)

    def values(
        self, critic_obs: Tensor, memory: Memory, begins: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """V (T, B) of normalized observations (T, B, nc), and what the critic remembers after.

        The latter is one tensor (T, B, …), or none. `memory` is that before the first step; begins
        (T, B) is 1 where an episode begins.
        """
        if begins is None:
            return self.value(critic_obs).squeeze(-1), []
        value, after = self._run(self.critic.unroll, critic_obs, memory["critic"], begins)
        return value.squeeze(-1), [after]

    def distributions(
        self, seen: Tensor, memory: Memory, begins: Tensor | None = None
    ) -> Distribution:
        """Those of actions (T, B, nu) at `features` (T, B, n) of the actor, as `values` has it."""
        if begins is None:
            return self.distribution(self.mean(seen))
        return self.distribution(self._run(self.actor.net.unroll, seen, memory["actor"], begins)[0])

    def evaluate(self, critic_obs: Tensor, *memory: Tensor) -> Tensor:
        """V (…) of raw observations (…, nc), with the critic's memory (…) if it has one."""
        x = self.critic_normalizer(critic_obs)
        if not memory:
            return self.value(x).squeeze(-1)
        return self._run(self.critic, x, *memory)[0].squeeze(-1)

    def normalize(self, obs: Tensor, critic_obs: Tensor) -> tuple[Tensor, Tensor]:
        """The normalized observations of actor (…, no) and critic (…, nc)."""
        return self.actor.normalizer(obs), self.critic_normalizer(critic_obs)

    def update_normalizers(
        self, views: Sequence[Tensor], valid: Tensor, group: ProcessGroup = SINGLE
    ) -> None:
        """Add the observations (n, ·) of both networks where valid (n,) is true. In place."""
        self.actor.normalizer.update(views[0], valid, group)
        self.critic_normalizer.update(views[1], valid, group)

    @torch.no_grad()
    def symmetrize(self, gradients: dict[nn.Parameter, Tensor]) -> None:
        """With symmetry=net, make the gradient of log_std equal left and right. In place."""
        if self.symmetry == "net" and self.action_mirror:
            grad = gradients[self.log_std]
            grad.copy_(self.action_mirror.symmetrized_magnitudes(grad))

    def _run(self, net: Any, x: Tensor, *memory: Tensor) -> Any:
        """net(x, …), or another function, with the precision that `amp` says: of the type of x."""
        # Why: docs/decisions/precision.md
        # A captured graph must not depend on autocast's cache.
        bf16 = self.amp == "bf16"
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            y = mlp_forward(net, x) if isinstance(net, nn.Sequential) else net(x, *memory)
        return y.to(x.dtype) if isinstance(y, Tensor) else [part.to(x.dtype) for part in y]
