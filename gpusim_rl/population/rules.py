"""What the members of a search decide, as pure functions of scores at the same iteration.

A decision depends neither on the speed of members nor on the number of processes: a rule has an
answer once the scores that are there settle it, and every later score leaves it as it is.
"""

import math
import random
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gpusim_rl.config.sections import SearchSection
from gpusim_rl.core.files import Plain

Score = tuple[float, ...]  # the goal, then what orders members that are equal in it
LOST: Score = (-math.inf,)  # of a member that has failed, or whose row is damaged
DONE: Score = (math.inf,)  # of one that has reached stop_at
FACTORS = (0.8, 1.25)  # by which pbt changes a number, as in arXiv:1711.09846
AHEAD = 4  # members of optuna: one is drawn from those that are so many or more before it


def rounds(search: SearchSection, every: int, iterations: int) -> list[int]:
    """The iterations after which members decide, before the last one."""
    if search.name == "pbt":
        return [*range(every, iterations, every)]
    found = []
    while search.name == "asha" and survivors(search, len(found)) > 1 and every < iterations:
        found.append(every)
        every *= search.eta
    return found


def survivors(search: SearchSection, number: int) -> int:
    """How many members there are before a decision of asha, numbered from 0."""
    return max(1, search.trials // search.eta**number)


def goes_on(mine: Score, name: str, others: Mapping[str, Score | None], keep: int) -> bool | None:
    """Whether a member is among the best `keep` (arXiv:1810.05934); None: not settled yet.

    others: name → score of each sibling; None: it is not there yet. The first by name wins a tie.
    """
    known = {other: x for other, x in others.items() if x is not None}
    better = sum((x, name) > (mine, other) for other, x in known.items())
    if better >= keep:
        return False
    return True if better + len(others) - len(known) < keep else None


def source_of(scores: Mapping[str, Score], name: str, quantile: float, draw: float) -> str | None:
    """Whose state a member copies (arXiv:1711.09846); None: it keeps its own.

    scores: of all members, this one included; draw: in [0, 1), which of the best it is.
    """
    order = sorted(scores, key=lambda x: (*(-y for y in scores[x]), x))
    n = min(max(1, int(quantile * len(order))), len(order) // 2)
    return order[int(draw * n)] if name in order[len(order) - n :] else None


def explored(
    value: float, space: Plain | list[float], resample: float, rng: random.Random
) -> float:
    """A number of pbt after a copy: changed by a factor, or by the chance `resample` drawn anew."""
    if rng.random() < resample:
        return number_at(space, rng.random())
    if isinstance(space, list):  # a neighbour
        place = min(range(len(space)), key=lambda i: abs(space[i] - value))
        return space[min(max(place + rng.choice((-1, 1)), 0), len(space) - 1)]
    ((kind, (low, high)),) = space.items()
    changed = min(max(value * rng.choice(FACTORS), low), high)
    return round(changed) if kind == "whole" else changed


def number_at(space: Plain | list[float], quantile: float) -> float:
    """The number at a quantile in [0, 1) of its space."""
    if isinstance(space, list):
        return space[int(quantile * len(space))]
    ((kind, (low, high)),) = space.items()
    if kind == "whole":
        return low + int(quantile * (high - low + 1))
    value = low * (high / low) ** quantile if kind == "log" else low + quantile * (high - low)
    return min(max(float(f"{value:.6g}"), low), high)  # short on a command line


def propose(space: Plain, seen: list[tuple[Plain, Score]], seed: int) -> Plain:
    """The numbers of a new member by optuna's TPE (Bergstra et al., NeurIPS 2011).

    seen: numbers and last score of each member that has ended. Their order alone counts.
    """
    optuna: Any = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = optuna.distributions
    where, lists = {}, {key: x for key, x in space.items() if isinstance(x, list)}
    for key, x in space.items():
        if key in lists:
            where[key] = kinds.CategoricalDistribution(range(len(x)))
            continue
        ((kind, ends),) = x.items()
        whole, log = kind == "whole", kind == "log"
        where[key] = (
            kinds.IntDistribution(*ends) if whole else kinds.FloatDistribution(*ends, log=log)
        )
    sampler = optuna.samplers.TPESampler(n_startup_trials=0, seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    order = sorted(score for _, score in seen)
    for numbers, score in seen:
        places = numbers | {key: x.index(numbers[key]) for key, x in lists.items()}
        study.add_trial(
            optuna.trial.create_trial(params=places, distributions=where, value=order.index(score))
        )
    found = study.ask(where).params
    return found | {key: x[found[key]] for key, x in lists.items()}


def first_numbers(space: Plain, trials: int, seed: int) -> list[Plain]:
    """The numbers of each member: a Latin hypercube, so that each range is covered evenly."""
    columns = {}
    for key, where in space.items():
        rng = random.Random(f"{seed} {key}")
        order = rng.sample(range(trials), trials)
        columns[key] = [number_at(where, (x + rng.random()) / trials) for x in order]
    return [{key: column[i] for key, column in columns.items()} for i in range(trials)]
