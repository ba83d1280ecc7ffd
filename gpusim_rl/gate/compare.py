"""A/B: two policies drive the same robots through the gate's scenarios, in rounds.

Robot i of a round has the same start, commands, pushes, ground and errors of readings under both.
The evidence is two e-values (Grünwald, de Heide, Koolen, arXiv:1906.07801): under their hypothesis
the chance that one ever exceeds 1/α is at most α. So one may look after each round, and stop.
"""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np

from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.drive import drive
from gpusim_rl.gate.judge import ENDURANCE, changed, settings_for, succeeded
from gpusim_rl.gate.robot import Robot, make_robot
from gpusim_rl.gate.scenarios import CONTACT, SCENARIOS, Plan, Settings, lacks

Array = np.ndarray
BETS = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9])  # shares of the wealth
ROUND = 1 << 32  # times the round is added to the seed, so that none is a seed of the gate
GRID = np.linspace(-0.999, 0.999, 1999)  # differences of two shares
LINES = 20  # robots on which one alone failed, that are printed
CELLS = ("both", "only_a", "only_b", "neither")  # of a pair: who succeeds


class Evidence:
    """The e-values of pairs. `counts` (4,) are those of each of `CELLS`."""

    def __init__(self, margin: float):
        self.margin, self.counts = margin, np.zeros(4, int)

    def add(self, cells: Array) -> None:
        """Add pairs (n,), each the index of its entry in CELLS. They are whole rounds."""
        self.counts += np.bincount(cells, minlength=4)

    def differs(self) -> float:
        """The logarithm of the e-value against "who succeeds alone is a fair coin".

        e = 2ⁿ B(x + ½, y + ½) / B(½, ½) of x pairs that a wins alone and y that b wins, n = x + y:
        the sign test, with Jeffreys' prior as the mixture.
        """
        x, y = self.counts[1:3].tolist()
        return (x + y) * math.log(2) + log_beta(x + 0.5, y + 0.5) - log_beta(0.5, 0.5)

    def not_worse(self) -> float:
        """The logarithm of the e-value against "b succeeds less often by the margin m or more".

        e = mean over λ of Π (1 + λ (d + m) / (1 + m)), d = -1, 0, 1 of each pair: betting
        (Waudby-Smith, Ramdas, arXiv:2010.09686). Scenarios may differ in their means, as each
        round has all of them equally often: a product is at most the power of its factors' mean.
        """
        return float(log_wealth(self.counts, np.array(-self.margin)))

    def interval(self, error: float) -> tuple[float, float]:
        """What b succeeds more often than a: between the differences that bets have refuted.

        It holds after all rounds at once, with probability 1 - error.
        """
        both, x, y, neither = self.counts
        needed, swapped = math.log(2 / error), np.array([both, y, x, neither])
        above, below = log_wealth(self.counts, GRID), log_wealth(swapped, -GRID)
        low = max(GRID[above >= needed].tolist(), default=-1.0)
        return low, min(GRID[below >= needed].tolist(), default=1.0)

    def verdict(self, error: float) -> str:
        """What is proved of b: better, worse, not_worse or undecided."""
        needed, (_, x, y, _) = -math.log(error), self.counts
        if self.differs() >= needed:
            return "better" if y > x else "worse"
        return "not_worse" if self.not_worse() >= needed else "undecided"


def compare(
    policies: Sequence[Policy],
    settings: Settings,
    options: Settings,
    seed: int,
    titles: Sequence[str],
    say: Callable[[str], None],
) -> Json:
    """What two policies do on the same robots, round by round, until something is proved.

    Args:
        settings, options: the sections `gate` and `ab` of a configuration.
        seed: of every draw, with the scenario and the reading.
        titles: what a and b are called.
        say: takes a line after each round.

    Returns `verdict`, `proved`: whether it is what `ab.prove` says, `line` and `text` for people,
    pairs of each scenario, and `alone`: the robots that one alone failed.

    ValueError if they drive different robots.
    """
    robots = [make_robot(policy) for policy in policies]
    check_same(*robots, titles=titles)
    settings = settings_for(robots[0].kind, settings)
    options = {**options, "seconds": settings["seconds"]}
    names = scenarios(robots[0], settings)
    evidence, table, alone = Evidence(options["margin"]), {x: np.zeros(4, int) for x in names}, []
    rounds = max(1, options["pairs"] // (options["robots"] * len(names)))
    for number in range(1, rounds + 1):
        drawn = seed + number * ROUND
        cells = {x: pairs(robots, x, options["robots"], settings, drawn) for x in names}
        evidence.add(np.concatenate([*cells.values()]))
        for name, of in cells.items():
            table[name] += np.bincount(of, minlength=4)
            alone += [
                {"scenario": name, "round": number, "robot": int(i), "failed": titles[2 - of[i]]}
                for i in np.flatnonzero((of == 1) | (of == 2))
            ]
        say(figures(evidence, titles, options))
        if finished(verdict := evidence.verdict(options["error"]), options["prove"]):
            break
    return summary(evidence, table, alone, titles, options) | {
        "seed": seed,
        "changed": changed(settings, robots[0].kind),
        "proved": finished(verdict, options["prove"]) and verdict != "worse",
    }


def check_same(a: Robot, b: Robot, titles: Sequence[str]) -> None:
    """ValueError unless two policies drive the same joints of a robot by the same command."""
    for key, of in {
        "robot": lambda x: x.policy.description["robot"],
        "joints": lambda x: x.policy.joints,
        "command": lambda x: (x.policy.command or {}).get("names"),
        "kind": lambda x: x.kind,
    }.items():
        if of(a) != of(b):
            files = " and ".join(titles)
            raise ValueError(f"{files} cannot be compared, as their {key} differs")


def scenarios(robot: Robot, settings: Settings) -> list[str]:
    """The scenarios that are compared: all that fit the robot, without the endurance and `contact`.

    A verdict may leave some out by `gate.reported`. A comparison would then miss what they show.
    """
    left_out = {ENDURANCE, CONTACT, *lacks(robot, settings["sim"])}
    return [name for name in SCENARIOS if name not in left_out]


# Why: docs/decisions/gate.md
def pairs(
    robots: Sequence[Robot], scenario: str, count: int, settings: Settings, seed: int
) -> Array:
    """(count,) the entries of CELLS of the robots of one scenario, under each of two policies.

    Commands are drawn within the ranges of the first policy.
    """
    plan = Plan(robots[0], scenario, count, settings["seconds"], settings, seed)
    other = copy.copy(plan)
    other.robot = robots[1]
    a, b = (succeeded(x, drive([x])[0]) for x in (plan, other))
    return np.where(a, np.where(b, 0, 1), np.where(b, 2, 3))


def finished(verdict: str, prove: str) -> bool:
    """Whether a verdict answers what is to be proved, be it with no."""
    return verdict in ("better", "worse", prove)


def summary(
    evidence: Evidence,
    table: dict[str, Array],
    alone: list[Json],
    titles: Sequence[str],
    options: Settings,
) -> Json:
    counts = dict(zip(CELLS, evidence.counts.tolist(), strict=True))
    verdict = evidence.verdict(options["error"])
    line = f"{conclusion(verdict, titles, options)}: {figures(evidence, titles, options)}"
    lines = [f"{'scenario':10}" + "".join(f"{x:>9}" for x in CELLS)]
    lines += [f"{x:10}" + "".join(f"{n:9}" for n in of) for x, of in table.items()]
    lines += [
        f"{x['failed']} alone failed in {x['scenario']}, round {x['round']}, robot {x['robot']}"
        for x in alone[:LINES]
    ]
    lines += [f"and {len(alone) - LINES} more"] if len(alone) > LINES else []
    return {
        "titles": [*titles],
        "verdict": verdict,
        "line": line,
        "text": "\n".join([*lines, line]),
        "pairs": (total := sum(counts.values())),
        "robot_seconds": 2 * total * options["seconds"],
        **counts,
        "difference": [*evidence.interval(options["error"])],
        "log_e": {"differs": evidence.differs(), "not_worse": evidence.not_worse()},
        "scenarios": {x: dict(zip(CELLS, of.tolist(), strict=True)) for x, of in table.items()},
        "alone": alone,
        "how": {**options},
    }


def conclusion(verdict: str, titles: Sequence[str], options: Settings) -> str:
    """A verdict in words."""
    a, b = titles
    return {
        "better": f"{b} is better than {a}",
        "worse": f"{b} is worse than {a}",
        "not_worse": f"{b} is not worse than {a} by {options['margin']:g}",
        "undecided": f"{b} is neither proved better nor worse than {a}",
    }[verdict]


def figures(evidence: Evidence, titles: Sequence[str], options: Settings) -> str:
    """What is known so far, in a line."""
    both, x, y, _ = evidence.counts.tolist()
    n = int(evidence.counts.sum())
    values = (evidence.differs(), evidence.not_worse())
    differs, not_worse = (f"{math.exp(min(value, 700.0)):.3g}" for value in values)
    low, high = evidence.interval(options["error"])
    return (
        f"{n} pairs in {2 * n * options['seconds']} robot-seconds, success {(both + x) / n:.3f} "
        f"and {(both + y) / n:.3f}, {titles[1]} less {titles[0]} "
        f"{low:+.3f} to {high:+.3f} ({100 * (1 - options['error']):g}%), "
        f"alone failed {titles[0]} {y} and {titles[1]} {x}; "
        f"e-values: differs {differs}, not worse {not_worse}, {1 / options['error']:g} is a proof"
    )


def log_wealth(counts: Array, difference: Array) -> Array:
    """The logarithm of the e-values of counts of CELLS, against each difference or a lower one."""
    gains = (np.array([0, -1, 1, 0]) - difference[..., None]) / (1 + abs(difference[..., None]))
    wealth = np.log1p(BETS[:, None, None] * np.atleast_2d(gains)) @ counts  # (bets, differences)
    return np.reshape(np.logaddexp.reduce(wealth) - math.log(len(BETS)), difference.shape)


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
