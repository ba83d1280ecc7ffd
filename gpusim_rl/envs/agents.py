"""Rows of the agents of worlds: agent a of world b is row b·A + a. For A = 1 x is given back."""

from torch import Tensor


def folded(x: Tensor, agents: int) -> Tensor:
    """(B, A, …) → (B·A, …) a row for each agent."""
    return x.flatten(0, 1) if agents > 1 else x


def unfolded(x: Tensor, agents: int, axis: int = 0) -> Tensor:
    """(B·A, …) → (B, A, …), a view; or another axis."""
    return x.unflatten(axis, (-1, agents)) if agents > 1 else x


def of_each(x: Tensor, agents: int, axes: int = 1) -> Tensor:
    """(B, A, …) what is of each agent; x (B, …) of so many axes is of the world, so of all."""
    if agents == 1 or x.ndim > axes:
        return x
    return x[:, None].expand(-1, agents, *x.shape[1:])


def of_world(x: Tensor, agents: int) -> Tensor:
    """(B, A, …) → (B, …) the mean of the agents."""
    return x.mean(1) if agents > 1 else x
