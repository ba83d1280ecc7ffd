"""A member of a search: a training that decides by itself, from rows of its siblings.

Each member writes its scores and what it decided to search.jsonl of its run directory, and what it
has learned to the folder `states` of the search. No process tells another what to do.

A row has an `iteration` and one of these: `score` (a list), `stopped` (why), `copied` (of whom,
with the `numbers` since), `error` (why nothing could be copied), `ended` (done or failed; of one
that is done, whether it has `reached` stop_at before the last iteration).
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout, suppress
from functools import partial
from io import StringIO
from math import isfinite
from pathlib import Path

from safetensors.torch import save as to_bytes

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.core import errors
from gpusim_rl.core.files import Plain, write_whole
from gpusim_rl.core.states import copy_state, shared
from gpusim_rl.evaluation.evaluate import FEWEST, SEARCH_SEED
from gpusim_rl.population import rules
from gpusim_rl.population.rules import DONE, LOST, Score
from gpusim_rl.population.search import ROWS, Search, ending
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.rows import Rows
from gpusim_rl.runs.run import LockError
from gpusim_rl.training.loop import Row
from gpusim_rl.training.trainer import Trainer, evaluate

STATES = "states"  # folder of a search, with what each member had learned at its last decisions
KEPT = 3  # states of a member: a killed sibling begins again at most one decision before


class Member:
    """One training of a search.

    Args:
        stop: asked after each iteration; another number than 0 ends the training.
    """

    def __init__(self, search: Search, name: str, stop: Callable[[], int]):
        self.search, self.name, self.stop = search, name, stop
        self.rows = Rows(search.home / name / ROWS)
        self.siblings = [x for x in search.numbers if x != name]
        self.row: Row = {}  # the last one of metrics
        self.cpu_s = max((x.get("cpu_s", 0.0) for x in self.rows.read()), default=0.0)

    def turns(self) -> Iterator[bool]:
        """Train. Yields True after each row of metrics, and False while it waits for siblings."""
        if ending(self.rows.read()):
            return
        begun = time.process_time()
        try:
            for moved in self.train():
                self.cpu_s += time.process_time() - begun
                yield moved
                begun = time.process_time()
        except LockError:  # it passes: no end of a member
            raise
        except (RuntimeError, ValueError, OSError) as error:
            why = errors.reason(error)
            self.write({"iteration": int(self.row.get("iteration", 0)), "ended": "failed"}, why=why)
            errors.warn(f"{self.name}: {why}")
        while not self.flush():  # siblings wait for its last row
            yield False

    def train(self) -> Iterator[bool]:
        """All iterations and decisions, then the final evaluation."""
        search = self.search
        keys = tuple(search.section.space or ()) if search.section.name == "pbt" else ()
        make = partial(make_iteration, changeable=keys)
        while (first := self.first_numbers()) is None:
            yield False
        if not self.rows.read():
            self.write({"iteration": 0, "numbers": first})
        trainer = Trainer(search.configure(self.name, first), make, observed=False)
        with closing(trainer.steps(self.stop)) as steps:
            # a decision that a killed process has left open
            goes_on = yield from self.decide(trainer)
            while goes_on and (row := next(steps, None)):
                self.row = row
                yield True
                goes_on = yield from self.decide(trainer)
        if goes_on and not trainer.loop.stopped:
            self.finish(trainer)

    def first_numbers(self) -> Plain | None:
        """The numbers with which it begins; None while those it is drawn from have not ended."""
        if found := self.search.numbers[self.name] or numbers_of(self.rows.read()):
            return found
        number = [*self.search.numbers].index(self.name)
        rows = [self.rows_of(x) for x in [*self.search.numbers][: number - rules.AHEAD + 1]]
        if not all(map(ending, rows)):
            return None
        seen = [(numbers_of(x), last_score(x)) for x in rows if numbers_of(x)]
        return rules.propose(self.search.section.space or {}, seen, self.search.seed + number)

    def finish(self, trainer: Trainer) -> None:
        """The last score, by which members are compared, and the final evaluation."""
        i = trainer.loop.iteration.iterations
        self.announce(trainer, i)
        with redirect_stdout(StringIO()):  # its progress
            trainer.write_files(trainer.evaluate())
        trainer.close()
        early = i < trainer.cfg.iterations and not trainer.loop.done  # which a learner says
        self.write({"iteration": i, "ended": "done", "reached": early})

    # Why: docs/decisions/searches.md
    def decide(self, trainer: Trainer) -> Iterator[bool]:
        """Stop, copy or go on, if a decision is due; yields False while it cannot be made.

        Returns whether the training goes on.
        """
        i = trainer.loop.iteration.iterations
        if i not in self.search.rounds:
            return True
        # on the disk before anybody hears of it: no sibling has used what a kill takes back
        if trainer.loop.saved != i:
            trainer.loop.save()
        trainer.loop.checkpoint_writer.wait()
        if self.search.section.name == "pbt":
            with suppress(OSError):  # then siblings cannot copy it, and say so
                self.write_state(trainer, i)
        mine = self.announce(trainer, i)
        asha = self.search.section.name == "asha"
        while (decided := self.stops(i, mine) if asha else self.copies(trainer, i, mine)) is None:
            self.flush()
            yield False
        return decided

    def stops(self, i: int, mine: Score) -> bool | None:
        """Whether it goes on by the rule of asha; a row says why it does not."""
        section = self.search.section
        keep = rules.survivors(section, self.search.rounds.index(i) + 1)
        others = {x: self.score_of(x, i) for x in self.siblings}
        goes_on = rules.goes_on(mine, self.name, others, keep)
        if goes_on is False:
            scores = ", ".join(f"{x:.3g}" for x in mine)
            why = f"{keep} of {section.trials} members are better than {section.goal} {scores}"
            self.write({"iteration": i, "stopped": why})
        return goes_on

    def copies(self, trainer: Trainer, i: int, mine: Score) -> bool | None:
        """Take what a better member has learned, by the rule of pbt, and change its numbers."""
        scores = {self.name: mine} | {x: self.score_of(x, i) for x in self.siblings}
        if None in scores.values():
            return None
        known = {x: y for x, y in scores.items() if y and (isfinite(y[0]) or x == self.name)}
        rng = random.Random(f"{self.search.seed} {self.name} {i}")
        section = self.search.section
        source = rules.source_of(known, self.name, section.quantile, rng.random())
        if source is None:
            return True
        try:
            state, _ = load(self.state_file(source, i))
            trainer.load_learned(state, f"{source} at iteration {i}")
        except (OSError, ValueError) as error:
            self.once({"iteration": i, "error": errors.reason(error), "of": source})
            return True
        iteration, space = trainer.loop.iteration, section.space or {}
        for key, number in iteration.numbers.items():
            value = float(number.flatten()[0])
            number.fill_(rules.explored(value, space[key], section.resample, rng))
        iteration.env.update_observations()  # the critic may see a number of the task
        now = {key: float(x.flatten()[0]) for key, x in iteration.numbers.items()}
        self.once({"iteration": i, "copied": source, "numbers": now})
        return True

    def announce(self, trainer: Trainer, i: int) -> Score:
        """Write its score at an iteration, and return it."""
        for row in self.rows.read():
            if row["iteration"] == i and "score" in row:
                return tuple(row["score"])
        score = self.score(trainer)
        self.write({"iteration": i, "score": [*score]}, steps=trainer.loop.iteration.size * i)
        return score

    def score(self, trainer: Trainer) -> Score:
        """The goal, more being better, and the return of its evaluation."""
        goal, iteration = self.search.section.goal, trainer.loop.iteration
        if goal != "success":
            row = self.row or trainer.run.rows()[-1]
            if goal not in row:
                raise ValueError(f"search.goal={goal}: choose success, or one of {', '.join(row)}")
            return (row[goal],) if isfinite(row[goal]) else LOST
        iteration.policy.actor.calibration = None
        task = self.search.cfg.task  # weights and noise that no member has changed
        scores = evaluate(task, iteration, SEARCH_SEED, FEWEST)
        total = scores["return"]
        if total is None or not isfinite(total):
            return LOST
        return scores["success"] or 0.0, total

    def score_of(self, sibling: str, i: int) -> Score | None:
        """The score of a sibling at an iteration; None: it is still on its way there."""
        rows = self.rows_of(sibling)
        if found := [x["score"] for x in rows if x["iteration"] == i and "score" in x]:
            return tuple(found[0])
        last = rows[-1] if rows else {"iteration": 0}
        if any(x.get("reached") and x["iteration"] < i for x in rows):
            return DONE
        # it has ended otherwise, or its row at this iteration is damaged
        return LOST if ending(rows) or last["iteration"] > i else None

    def rows_of(self, name: str) -> list[Plain]:
        return Rows(self.search.home / name / ROWS).read()

    def state_file(self, name: str, i: int) -> Path:
        return self.search.home / STATES / f"{name}-{i:06d}.safetensors"

    def write_state(self, trainer: Trainer, i: int) -> None:
        """Write what it has learned, and remove what no sibling can still ask for."""
        iteration, before = trainer.loop.iteration, self.search.rounds.index(i) - KEPT
        learned = iteration.learned() | shared("env/", {"success": iteration.env.success})
        state = {key: x.cpu().contiguous() for key, x in copy_state(learned).items()}
        file = self.state_file(self.name, i)
        file.parent.mkdir(exist_ok=True)
        write_whole(file, to_bytes(state, metadata={"iteration": str(i)}))
        if before >= 0:
            old = self.state_file(self.name, self.search.rounds[before])
            old.unlink(missing_ok=True)

    def once(self, row: Plain) -> None:
        """Write a row of a decision, unless it was made before a kill."""
        if not any(old | row == old for old in self.rows.read()):
            self.write(row)

    def write(self, row: Plain, **more: object) -> None:
        self.rows.path.parent.mkdir(parents=True, exist_ok=True)
        self.rows.add(row | more | {"cpu_s": round(self.cpu_s, 2)})
        self.flush()

    def flush(self) -> bool:
        """Whether all its rows are on the disk; on a full one they wait for the next call."""
        try:
            self.rows.flush()
        except OSError:
            return False
        return True


def numbers_of(rows: list[Plain]) -> Plain:
    """The numbers with which a member began; empty if it has not."""
    return next((x["numbers"] for x in rows if "numbers" in x), {})


def last_score(rows: list[Plain]) -> Score:
    """The last score of a member that has ended, LOST if it has failed."""
    scores = [tuple(x["score"]) for x in rows if "score" in x]
    return scores[-1] if scores and ending(rows) != "failed" else LOST
