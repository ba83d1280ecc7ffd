"""Adam on a policy's parameters and gradients, kept as two vectors each: actor and critic."""

import torch
from torch import Tensor, nn

from gpusim_rl.networks.actor_critic import Policy

LINE = 32  # numbers: 128 bytes


def lines(n: int) -> int:
    """n, rounded up to whole lines of memory: a matrix that begins at one is read faster."""
    return -(-n // LINE) * LINE


def flatten(params: list[nn.Parameter], flat: Tensor, grads: Tensor) -> list[Tensor]:
    """Move parameters into the vector `flat`, each to a multiple of LINE numbers.

    Returns the views of the vector `grads` where their gradients go.
    """
    start, views = 0, []
    for p in params:
        place = slice(start, start + p.numel())
        flat[place].copy_(p.detach().flatten())
        p.data = flat[place].view_as(p)
        views.append(grads[place].view_as(p))
        start += lines(p.numel())
    return views


class FlatAdam:
    """Adam with one kernel for each network, instead of one for each parameter.

    Args:
        policy: its parameters become views of two vectors.
        learning_rate: of both networks, at first.

    Attributes:
        params: the policy's parameters, log_std first.
        grad_views: where the gradient of each parameter stands in `grads`.
        weights: the vector of the actor and that of the critic.
        moments: of each vector, the number of steps and the means of gradients and their squares.
        actor_rate, critic_rate: () learning rates, which may be written at any time.
        bad: () where it is 1, a step changes nothing.
    """

    def __init__(self, policy: Policy, learning_rate: float):
        actor, critic = (
            [policy.log_std, *policy.actor.parameters()],
            list(policy.critic.parameters()),
        )
        device = policy.log_std.device
        self.params = [*actor, *critic]
        self.actor_rate, self.critic_rate = (
            torch.full((), float(learning_rate), device=device) for _ in range(2)
        )
        sizes = [sum(lines(p.numel()) for p in params) for params in (actor, critic)]
        weights, self.grads = (torch.zeros(sum(sizes), device=device) for _ in range(2))
        self.weights = [nn.Parameter(part) for part in weights.split(sizes)]
        self.grad_views: list[Tensor] = []
        for params, flat, grad in zip(
            (actor, critic), self.weights, self.grads.split(sizes), strict=True
        ):
            flat.grad = grad
            self.grad_views += flatten(params, flat.data, grad)
        self.bad = torch.zeros((), device=device)
        self.moments = [
            {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(w.data),
                "exp_avg_sq": torch.zeros_like(w.data),
            }
            for w in self.weights
        ]

    @property
    def rates(self) -> tuple[Tensor, Tensor]:
        """The actor's and the critic's."""
        return self.actor_rate, self.critic_rate

    @property
    def log_std_grad(self) -> Tensor:
        """(nu,) where the gradient of log_std stands."""
        return self.grad_views[0]

    def write(self, grads: tuple[Tensor, ...], first: int = 0) -> None:
        """Copy the gradients of params[first:], in as few kernels as can be. In place."""
        views = self.grad_views[first:]
        torch._foreach_copy_(views, grads)  # pyright: ignore[reportPrivateImportUsage]

    def clip(self, max_norm: float, stats: Tensor) -> Tensor:
        """Clip the gradient of each network to a norm of `max_norm`. Returns the norms (2,) before.

        `bad` becomes 1 if a norm or an entry of `stats` is not finite, else 0. In place.
        """
        norms = torch.stack([nn.utils.clip_grad_norm_(w, max_norm) for w in self.weights])
        bad = ~torch.isfinite(norms.sum() + stats.sum())
        self.bad.copy_(bad)
        self.grads.masked_fill_(bad, 0.0)  # also between the parameters, which nobody writes
        return norms

    @torch.no_grad()
    def step(self) -> None:
        """One step of Adam (arXiv:1412.6980), or none where `bad` is 1. In place.

        The kernel is that of torch.optim.Adam with fused=True. That class loads torch's compiler,
        which takes seconds at each start.
        """
        for w, rate, moments in zip(self.weights, self.rates, self.moments, strict=True):
            step, mean, square = moments.values()
            step += 1
            assert w.grad is not None
            torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
                *([w.data], [w.grad], [mean], [square], [], [step]),
                lr=rate,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-5,
                amsgrad=False,
                maximize=False,
                found_inf=self.bad,
            )
            step -= self.bad

    def tensors(self) -> dict[str, Tensor]:
        """Adam's live tensors, by name."""
        named = zip(("actor", "critic"), self.moments, strict=True)
        return {f"{name}/{key}": x for name, moments in named for key, x in moments.items()}
