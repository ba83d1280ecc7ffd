"""Samples of a search to the first member with a success of 0.95: asha against random members.

    python -m benchmarks.search FILE.jsonl [studies=[1,2,3]]

A study has 16 members of cartpole, whose learning rates are planted from 1e-6 to 1e-1 and stay what
they are (lr_min = lr_max). All step side by side. A member is scored as those of a search are. The
decisions of asha are made by `population.rules` from the scores that were stored. Members whose
rate is below 1e-4 and that asha has stopped are not trained on, since they learn nothing. FILE gets
a line for each study; one that stands there is not done again.
"""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.commands.train import configure
from gpusim_rl.core.arguments import parse, show_usage
from gpusim_rl.core.errors import one_line_errors
from gpusim_rl.evaluation.evaluate import FEWEST, SEARCH_SEED
from gpusim_rl.population import rules
from gpusim_rl.training.trainer import evaluate

MEMBERS, LOW, HIGH = 16, 1e-6, 1e-1
EVERY, LIMIT, TARGET = 10, 72, 0.95  # iterations: a search begins with a whole episode, too
NEAR = 10.0  # return of the training from which on each second iteration is scored
WORDS = ("task=cartpole", "device=cpu", "threads=1", "sim.threads=1", "log=none")


class Member:
    """A training with a planted rate, and what it was seen to do."""

    def __init__(self, study: int, i: int):
        self.rate = LOW * (HIGH / LOW) ** (i / (MEMBERS - 1))
        rate = [f"algo.{key}={self.rate}" for key in ("learning_rate", "lr_min", "lr_max")]
        self.cfg = configure(*WORDS, *rate, f"seed={100 * study + i}")
        self.made = make_iteration(self.cfg)
        self.scores: dict[int, tuple[float, ...]] = {}

    def step(self, due: bool) -> bool:
        """An iteration; returns whether it has reached the target."""
        self.made.iteration()
        near = self.made.report()().get("return", 0.0) > NEAR and self.made.iterations % 2 == 0
        if not (due or near):
            return False
        found = evaluate(self.cfg.task, self.made, SEARCH_SEED, FEWEST)
        self.scores[self.made.iterations] = (found["success"] or 0.0, found["return"] or 0.0)
        return (found["success"] or 0.0) >= TARGET


def study(number: int) -> dict[str, Any]:
    """The samples of all members to the first that reaches the target, of both searches."""
    begun, search = time.process_time(), SimpleNamespace(name="asha", eta=2, trials=MEMBERS)
    members = {f"{i:02}": Member(number, i) for i in range(MEMBERS)}
    rungs, alive = rules.rounds(search, EVERY, LIMIT), [*members]  # pyright: ignore
    size, spent, first = next(iter(members.values())).made.size, 0, {}
    for i in range(1, LIMIT + 1):
        trained = [x for x in members if x in alive or members[x].rate >= 1e-4]
        reached = [x for x in trained if members[x].step(i in rungs and x in alive)]
        spent += len(alive)
        for name, who, samples in (
            ("random", reached, MEMBERS * i),
            ("asha", {*reached} & {*alive}, spent),
        ):
            if who and name not in first:
                first[name] = {"samples": samples * size, "by": sorted(who), "iteration": i}
        if len(first) == 2:
            break
        if i in rungs:
            scores = {x: members[x].scores[i] for x in alive}
            keep = rules.survivors(search, rungs.index(i) + 1)  # pyright: ignore
            alive = [
                x
                for x in alive
                if rules.goes_on(scores[x], x, {y: z for y, z in scores.items() if y != x}, keep)
            ]
    scores = {x: {k: v for k, v in y.scores.items()} for x, y in members.items()}
    return {"study": number, **first, "kept": alive, "scores": scores} | {
        "cpu_s": round(time.process_time() - begun, 1)
    }


def main(words: list[str]) -> None:
    """Do the studies that the file lacks, and print the ratio of each."""
    show_usage(words, __doc__)
    with one_line_errors():
        (name,), values = parse(words, ("studies",), "FILE.jsonl, and perhaps studies=[1,2]", 1)
    torch.set_num_threads(1)
    file = Path(name)
    rows = [json.loads(x) for x in file.read_text().splitlines()] if file.exists() else []
    for number in json.loads(values.get("studies", str([*range(1, 11)]))):
        if number not in [row["study"] for row in rows]:
            rows.append(study(number))
            with file.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    for row in rows:
        one, other = (row.get(x, {}).get("samples") for x in ("asha", "random"))
        ratio = f"{one / other:.2f}" if one and other else "not reached"
        print(f"study {row['study']}: asha {one}, random {other}, ratio {ratio}")


if __name__ == "__main__":
    main(sys.argv[1:])
