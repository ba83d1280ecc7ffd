"""Adam on groups of parameters, each group and its gradients kept as one vector."""

import torch
from torch import Tensor, nn

LINE = 32  # numbers: 128 bytes


def lines(n: int) -> int:
    """n, rounded up to whole lines of memory: a matrix that begins at one is read faster."""
    return -(-n // LINE) * LINE


def length(params: list[nn.Parameter]) -> int:
    """Length of a vector that holds the parameters, each from a multiple of LINE numbers on."""
    return sum(lines(p.numel()) for p in params)


def places(params: list[nn.Parameter], flat: Tensor) -> list[Tensor]:
    """The views of such a vector, of the shapes of the parameters."""
    parts = flat.split([lines(p.numel()) for p in params])
    return [part[: p.numel()].view_as(p) for p, part in zip(params, parts, strict=True)]


def flatten(params: list[nn.Parameter], flat: Tensor) -> None:
    """Move parameters into a vector: they become views of it. In place."""
    for p, place in zip(params, places(params, flat), strict=True):
        place.copy_(p.detach())
        p.data = place


# Why: docs/decisions/0006-adam-in-one-vector.md
class FlatAdam:
    """Adam with one kernel for each group, instead of one for each parameter.

    Args:
        groups: name → parameters, which become views of the group's vector, in their order.
        rate: the learning rate of all groups, at first.

    Attributes:
        weights: name → the group's vector.
        gradients: parameter → where its gradient stands in `grads`, in the order of the groups.
        moments: of each group, the number of steps and the means of gradients and their squares.
        rates: name → () learning rate, which may be written at any time.
        bad: () where it is 1, a step changes nothing.
    """

    def __init__(self, groups: dict[str, list[nn.Parameter]], rate: float):
        device = next(p.device for params in groups.values() for p in params)
        sizes = [length(params) for params in groups.values()]
        flat, self.grads = (torch.zeros(sum(sizes), device=device) for _ in range(2))
        self.weights, self.gradients = {}, {}
        parts = zip(groups.items(), flat.split(sizes), self.grads.split(sizes), strict=True)
        for (name, params), weights, grads in parts:
            flatten(params, weights)
            self.weights[name] = nn.Parameter(weights)
            self.weights[name].grad = grads
            self.gradients |= zip(params, places(params, grads), strict=True)
        self.rates = {name: torch.full((), float(rate), device=device) for name in groups}
        self.bad = torch.zeros((), device=device)
        self.moments = {
            name: {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(w.data),
                "exp_avg_sq": torch.zeros_like(w.data),
            }
            for name, w in self.weights.items()
        }

    def target(self, name: str, copies: list[nn.Parameter]) -> Tensor:
        """Move copies of a group's parameters, in its order, into one vector, and return it.

        So a target network follows by `vector.lerp_(optimizer.weights[name].data, τ)`.
        """
        vector = torch.zeros_like(self.weights[name].data)
        flatten(copies, vector)
        return vector

    def write(self, grads: tuple[Tensor, ...], first: int = 0) -> None:
        """Copy the gradients of all parameters from the first on, in few kernels. In place."""
        views = list(self.gradients.values())[first:]
        torch._foreach_copy_(views, grads)  # pyright: ignore[reportPrivateImportUsage]

    def clip(self, max_norm: float, stats: Tensor) -> Tensor:
        """Clip the gradient of each group to a norm of `max_norm`. Returns the norms before (n,).

        `bad` becomes 1 if a norm or an entry of `stats` is not finite, else 0. In place.
        """
        norms = [nn.utils.clip_grad_norm_(w, max_norm) for w in self.weights.values()]
        norms = torch.stack(norms)
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
        for name, w in self.weights.items():
            step, mean, square = self.moments[name].values()
            step += 1
            assert w.grad is not None
            # eps=1e-5, as in CleanRL's PPO
            torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
                *([w.data], [w.grad], [mean], [square], [], [step]),
                lr=self.rates[name],
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-5,
                amsgrad=False,
                maximize=False,
                found_inf=self.bad,
            )
            # a step that is skipped does not count for the correction of Adam's bias
            step -= self.bad

    def tensors(self) -> dict[str, Tensor]:
        """Adam's live tensors, by name."""
        named = self.moments.items()
        return {f"{name}/{key}": x for name, moments in named for key, x in moments.items()}
