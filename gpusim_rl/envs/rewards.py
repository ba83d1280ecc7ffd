"""The weights of reward terms, checked against the terms of a task."""


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
