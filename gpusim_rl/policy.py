"""The networks: a normaliser, an actor and a critic. What ONNX holds is exactly what acted."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from gpusim_rl.maths import total

LAYERS = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh, "silu": nn.SiLU}
WIDEST = 8192  # of a hidden layer: orthogonal weights take n³ operations


class Normaliser(nn.Module):
    """(x - mean) / std, clamped; the statistics are frozen while acting and move only in `absorb`.

    Statistics are merged as in Chan, Golub, LeVeque (1979) from sums, sums of squares and counts over all ranks.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, width: int, clamp: float = 5.0):
        super().__init__()
        self.clamp = clamp
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) * torch.rsqrt(self.var + 1e-4)).clamp(-self.clamp, self.clamp)

    @torch.no_grad()
    def absorb(self, x: Tensor, valid: Tensor) -> None:
        """Add observations x (N, width) where valid (N,) is true. In place."""
        keep = valid[:, None]
        sums = total(torch.cat([torch.where(keep, x - self.mean, 0.0).sum(0), keep.sum(0).to(x.dtype)]))
        n, shift = sums[-1], sums[:-1] / sums[-1].clamp(min=1)  # of the new mean from the old
        # deviations from the batch's own mean, in a second pass: E x² - (E x)² cancels to nothing, or below it
        centred = torch.where(keep, x - (self.mean + shift), 0.0)
        var = total((centred * centred).sum(0)) / n.clamp(min=1)
        share = n / (self.count + n).clamp(min=1)
        # Σ(x - m)²/N about the new mean m: both parts, and what lies between their means
        self.var.lerp_(var, share).add_(shift * shift * share * (1 - share))
        self.mean.add_(shift * share)
        self.count.add_(n)


def mlp(
    width: int, hidden: tuple[int, ...], out: int, activation: str, gain: float, generator: torch.Generator
) -> nn.Sequential:
    """Linear layers with orthogonal weights (gain √2, `gain` on the last) and zero biases."""
    if any(n < 1 for n in hidden):
        raise ValueError(f"algo.hidden={list(hidden)}: expected whole numbers of at least 1")
    if any(n > WIDEST for n in hidden):
        raise ValueError(f"algo.hidden={list(hidden)}: expected whole numbers of at most {WIDEST}")
    if activation not in LAYERS:
        raise ValueError(f"algo.activation={activation!r}: choose one of {', '.join(LAYERS)}")
    sizes, layers = [width, *hidden, out], []
    for i, (a, b) in enumerate(pairwise(sizes)):
        last = i == len(hidden)
        linear = nn.Linear(a, b)
        nn.init.orthogonal_(linear.weight, gain if last else math.sqrt(2), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, LAYERS[activation]()]
    return nn.Sequential(*layers)


def through(net: nn.Sequential, x: Tensor) -> Tensor:
    """net(x); where a gradient will be taken, x (n, width) and the first layer's is xᵀ g.

    Of a Linear it is (gᵀ x), which takes MKL 1.7 times as long if width is no multiple of 16, and a view seldom is.
    """
    if not torch.is_grad_enabled():
        return net(x)
    first, *rest = net
    assert isinstance(first, nn.Linear)
    x = torch.addmm(first.bias, x, first.weight.t().contiguous())
    for layer in rest:
        x = layer(x)
    return x


class Actor(nn.Module):
    """obs (B, no) → mean action (B, nu): the deterministic policy, normaliser included. This module is exported."""

    def __init__(self, no: int, nu: int, hidden: tuple[int, ...], activation: str, generator: torch.Generator):
        super().__init__()
        self.normaliser = Normaliser(no)
        self.net = mlp(no, hidden, nu, activation, 0.01, generator)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(self.normaliser(obs))


class Policy(nn.Module):
    """A Gaussian actor with a state-independent deviation, and a critic with a wider view.

    Args:
        no, nc, nu: widths of the actor's and the critic's view and of the action.
        hidden: widths of the hidden layers of both networks.
        std, floor: first standard deviation of the actions, and the least it may become.
        amp: "bf16" multiplies matrices in bfloat16 while training; weights, and what is exported, stay float32.
        seed: of the first weights.
    """

    floor: Tensor

    def __init__(
        self,
        no: int,
        nc: int,
        nu: int,
        *,
        hidden: tuple[int, ...] = (128, 128),
        activation: str = "elu",
        std: float = 1.0,
        floor: float = 0.05,
        amp: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        if amp not in (None, "bf16"):
            raise ValueError(f"algo.amp={amp}: choose one of bf16, null")
        self.actor = Actor(no, nu, hidden, activation, generator)
        if not 0 < floor < std:
            raise ValueError(f"algo.floor={floor} must lie between 0 and algo.std={std}")
        self.register_buffer("floor", torch.tensor(floor))  # goes with the weights
        self.log_std = nn.Parameter(torch.full((nu,), math.log(std - floor)))
        self.amp = amp
        self.seer = Normaliser(nc)
        self.critic = mlp(nc, hidden, 1, activation, 1.0, generator)

    @property
    def std(self) -> Tensor:
        """(nu,) the floor is added, not clamped to: the gradient lives on, and no update can bring it to zero."""
        return self.floor + self.log_std.exp()

    def act(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) of the actor's view (…, no), while training."""
        return self.mean(self.actor.normaliser(obs))

    def mean(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) of a normalised view (…, no)."""
        with self._cast(obs):
            return through(self.actor.net, obs).to(obs.dtype)

    def value(self, view: Tensor) -> Tensor:
        """V (…, 1) of the critic's normalised view (…, nc)."""
        with self._cast(view):
            return through(self.critic, view).to(view.dtype)

    def _cast(self, like: Tensor) -> torch.autocast:
        """Each weight is used once, and a captured graph must not depend on a cache: so none."""
        return torch.autocast(like.device.type, torch.bfloat16, enabled=self.amp == "bf16", cache_enabled=False)
