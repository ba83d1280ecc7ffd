"""The networks: a normaliser, an actor and a critic. What ONNX holds is exactly what acted."""

import math
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from gpusim_rl.maths import total
from gpusim_rl.mirror import Mirror, Mirrors, average, join, keep

LAYERS = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh, "silu": nn.SiLU}
WIDEST = 8192  # of a hidden layer: orthogonal weights take n³ operations


class Normaliser(nn.Module):
    """(x - mean) / std, clamped; the statistics are frozen while acting and move only in `absorb`.

    Statistics are merged as in Chan, Golub, LeVeque (1979) from sums, sums of squares and counts over all ranks. With a
    mirror they are those of the observations and of their images, so that the image of a normalised view is normalised.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, width: int, clamp: float = 5.0, mirror: Mirror | None = None):
        super().__init__()
        self.clamp, self.mirror = clamp, mirror
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
        if self.mirror:
            shift = self.mirror.even(shift)
        # deviations from the batch's own mean, in a second pass: E x² - (E x)² cancels to nothing, or below it
        centred = torch.where(keep, x - (self.mean + shift), 0.0)
        var = total((centred * centred).sum(0)) / n.clamp(min=1)
        if self.mirror:
            var = self.mirror.even_sizes(var)
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
    """obs (B, no) → mean action (B, nu): the deterministic policy, normaliser included. This module is exported.

    view, out: mirrors of the view and of the action, over which the network is averaged, and that of the normaliser.
    """

    def __init__(
        self,
        no: int,
        nu: int,
        hidden: tuple[int, ...],
        activation: str,
        generator: torch.Generator,
        *,
        mirror: Mirror | None = None,
        view: Mirror | None = None,
        out: Mirror | None = None,
    ):
        super().__init__()
        self.normaliser, self.view, self.out = Normaliser(no, mirror=mirror), view, out
        self.net = mlp(no, hidden, nu, activation, 0.01, generator)

    def forward(self, obs: Tensor) -> Tensor:
        return average(self.net, self.normaliser(obs), self.view, self.out)


class Policy(nn.Module):
    """A Gaussian actor with a state-independent deviation, and a critic with a wider view.

    Args:
        no, nc, nu: widths of the actor's and the critic's view and of the action.
        hidden: widths of the hidden layers of both networks.
        std, floor: first standard deviation of the actions, and the least it may become.
        amp: "bf16" multiplies matrices in bfloat16 while training; weights, and what is exported, stay float32.
        symmetry: "net" averages both networks over the view and its image, so that they commute with the mirror; "augment" and
            "loss" are PPO's business; "none". All but "none" need `mirrors`, and normalise views and images alike.
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
        symmetry: str = "none",
        mirrors: Mirrors | None = None,
        seed: int = 0,
    ):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        if amp not in (None, "bf16"):
            raise ValueError(f"algo.amp={amp}: choose one of bf16, null")
        if symmetry != "none" and (mirrors is None or [len(flip.order) for flip in mirrors] != [no, nc, nu]):
            raise ValueError(f"algo.symmetry={symmetry}: the mirrors do not fit views of {no} and {nc}, actions of {nu}")
        self.symmetry = symmetry
        obs, wide, out = map(Mirror, mirrors) if mirrors and symmetry != "none" else (None, None, None)
        self.mirrors, self.obs_mirror, self.critic_mirror, self.action_mirror = mirrors, obs, wide, out
        net = symmetry == "net"
        self.actor = Actor(
            no, nu, hidden, activation, generator, mirror=obs, view=obs if net else None, out=out if net else None
        )
        if not 0 < floor < std:
            raise ValueError(f"algo.floor={floor} must lie between 0 and algo.std={std}")
        self.register_buffer("floor", torch.tensor(floor))  # goes with the weights
        self.log_std = nn.Parameter(torch.full((nu,), math.log(std - floor)))
        self.amp = amp
        self.seer = Normaliser(nc, mirror=wide)
        self.critic = mlp(nc, hidden, 1, activation, 1.0, generator)

    @property
    def std(self) -> Tensor:
        """(nu,) the floor is added, not clamped to: the gradient lives on, and no update can bring it to zero."""
        return self.floor + self.log_std.exp()

    @torch.no_grad()
    def even(self, grad: Tensor) -> None:
        """With symmetry=net, make the gradient of log_std its own image: deviations of left and right stay one. In place."""
        if self.symmetry == "net" and self.action_mirror:
            grad.copy_(self.action_mirror.even_sizes(grad))

    def reflection(self, rest: int) -> Mirror:
        """The mirror of a row of `loss.Batch`: normalised views, action, mean action, and `rest` columns without a side."""
        assert self.mirrors
        obs, critic, action = self.mirrors
        return Mirror(join([obs, critic, action, action, keep(*[1.0] * rest)])).to(self.log_std.device)

    def act(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) of the actor's view (…, no), while training."""
        return self.mean(self.actor.normaliser(obs))

    def mean(self, obs: Tensor) -> Tensor:
        """Mean action (…, nu) of a normalised view (…, no)."""
        return average(partial(self._through, self.actor.net), obs, self.actor.view, self.actor.out)

    def value(self, view: Tensor) -> Tensor:
        """V (…, 1) of the critic's normalised view (…, nc)."""
        return average(partial(self._through, self.critic), view, self.critic_mirror if self.symmetry == "net" else None)

    def _through(self, net: nn.Sequential, x: Tensor) -> Tensor:
        """net(x), multiplied as `amp` says. A captured graph must not depend on autocast's cache: so none."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.amp == "bf16", cache_enabled=False):
            return through(net, x).to(x.dtype)
