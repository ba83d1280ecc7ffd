"""A policy's parameters and gradients as two vectors each, the actor's and the critic's, and Adam on them."""

import torch
from torch import Tensor, nn

from gpusim_rl.policy import Policy

LINE = 32  # numbers: 128 bytes


def lines(n: int) -> int:
    """n, rounded up to whole lines of memory: matrices that begin at one are read faster."""
    return -(-n // LINE) * LINE


def flatten(params: list[nn.Parameter], flat: Tensor, grads: Tensor) -> list[Tensor]:
    """Move parameters into a vector, each to a multiple of LINE numbers; the places of their gradients in another."""
    at, places = 0, []
    for p in params:
        place = slice(at, at + p.numel())
        flat[place].copy_(p.detach().flatten())
        p.data = flat[place].view_as(p)
        places.append(grads[place].view_as(p))
        at += lines(p.numel())
    return places


class Vectors:
    """What an optimiser's step reads and writes: one kernel a network instead of one a parameter.

    Args:
        policy: its parameters move into our vectors.
        learning_rate: of both networks, at first.

    `params` are the policy's parameters, log_std first, and `places` those of their gradients in `grads`; `weights` are the
    actor's vector and the critic's. `actor_rate` and `critic_rate` () may be written at any time. Where `bad` () is 1, a step
    changes nothing.
    """

    def __init__(self, policy: Policy, learning_rate: float):
        actor, critic = [policy.log_std, *policy.actor.parameters()], list(policy.critic.parameters())
        device = policy.log_std.device
        self.params = [*actor, *critic]
        self.actor_rate, self.critic_rate = (torch.full((), float(learning_rate), device=device) for _ in range(2))
        sizes = [sum(lines(p.numel()) for p in params) for params in (actor, critic)]
        weights, self.grads = (torch.zeros(sum(sizes), device=device) for _ in range(2))
        self.weights = [nn.Parameter(part) for part in weights.split(sizes)]
        self.places: list[Tensor] = []
        for params, flat, grad in zip((actor, critic), self.weights, self.grads.split(sizes), strict=True):
            flat.grad = grad
            self.places += flatten(params, flat.data, grad)
        groups = [{"params": [w], "lr": r} for w, r in zip(self.weights, self.rates, strict=True)]
        self.optimiser = torch.optim.Adam(groups, eps=1e-5, fused=True, capturable=device.type == "cuda")
        self.bad = torch.zeros((), device=device)
        self.optimiser.found_inf = self.bad  # heeded by the fused kernel, as torch's GradScaler uses it
        for w in self.weights:  # as Adam would make it at its first step
            moments = {"exp_avg": torch.zeros_like(w.data), "exp_avg_sq": torch.zeros_like(w.data)}
            self.optimiser.state[w] = {"step": torch.zeros((), device=device), **moments}

    @property
    def rates(self) -> tuple[Tensor, Tensor]:
        """The actor's and the critic's."""
        return self.actor_rate, self.critic_rate

    def write(self, found: tuple[Tensor, ...], first: int = 0) -> None:
        """Copy gradients of params[first:] to their places, in as few kernels as can be. In place."""
        torch._foreach_copy_(self.places[first:], found)  # pyright: ignore[reportPrivateImportUsage]

    def clip(self, largest: float, stats: Tensor) -> Tensor:
        """Clip each network's gradient to a norm of `largest`; the norms (2,) before. In place.

        If one of them, or of stats, is not finite, `bad` becomes 1, else 0.
        """
        norms = torch.stack([nn.utils.clip_grad_norm_(w, largest) for w in self.weights])
        bad = ~torch.isfinite(norms.sum() + stats.sum())
        self.bad.copy_(bad)
        self.grads.masked_fill_(bad, 0.0)  # between the parameters' lines nobody else would
        return norms

    def state(self) -> dict[str, Tensor]:
        """Adam's live tensors, by name."""
        named = zip(("actor", "critic"), self.weights, strict=True)
        return {f"{name}/{key}": value for name, w in named for key, value in self.optimiser.state[w].items()}
