"""The reward terms of a task, and their weights."""

from torch import Tensor

from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task


def reward_terms(task: Task, s: State) -> dict[str, Tensor]:
    """Named terms (B,), each a rate [1/s]: those of `reward`, and those of `bonus` over dt.

    Raises:
        ValueError: both have a term of the same name.
    """
    rates, amounts = task.reward(s), task.bonus(s)
    for name in amounts:
        if name in rates:
            raise ValueError(f"{type(task).__name__}: reward and bonus both have a term {name!r}")
    return rates | {name: amount / task.dt for name, amount in amounts.items()}


def ordered_weights(terms: list[str], weights: dict[str, float]) -> list[float]:
    """The weights in the order of the terms.

    Raises:
        ValueError: a term has no weight, a weight has no term, or a weight is below 0.
    """
    faults = [f"{name!r} has no weight" for name in sorted(set(terms) - set(weights))]
    faults += [f"{name!r} is no term" for name in sorted(set(weights) - set(terms))]
    if faults:
        raise ValueError(
            f"reward terms and weights disagree: {', '.join(faults)} (terms: {', '.join(terms)})"
        )
    negative = [name for name, weight in weights.items() if weight < 0]
    if negative:
        raise ValueError(
            f"task.weights.{negative[0]}={weights[negative[0]]}: expected at least 0, "
            "for the sign of a reward term is in the task's formula"
        )
    return [weights[name] for name in terms]
