"""One training of `bench time`, in a process of its own: python -P training_run.py JOB RESULT.

The program that trains is the checkout on PYTHONPATH, which may be an older commit. So this file
takes nothing of the checkout that it lies in, and little of the other one. JOB is a JSON text,
RESULT the JSON file to write. `tools/bench/cases.py` starts it.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

Condition = tuple[str, str, float]  # score, >= or <=, bound
OLD_TRAINER = "gpusim_rl.trainer"  # of commits up to 25 November 2026
WARM_UP = 4  # iterations before the clock runs: kernels compile, CUDA graphs are captured


class Actor(NamedTuple):
    """The weights of an actor, and when it had them."""

    iteration: int
    env_steps: int
    time_s: float  # wall time of training
    cpu_s: float  # processor time of training, of all threads
    weights: dict[str, Any]


class Clock:
    """Wall time and the processor time of all threads [s], without what is `paused`."""

    def __init__(self) -> None:
        self.start, self.away = self.now(), (0.0, 0.0)

    def now(self) -> tuple[float, float]:
        """(wall, processor) [s]."""
        return time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """(wall, processor) [s] since the start."""
        wall, cpu = (
            now - start - away
            for now, start, away in zip(self.now(), self.start, self.away, strict=True)
        )
        return wall, cpu

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work inside takes no time."""
        before = self.now()
        yield
        wall, cpu = (
            away + now - then for away, now, then in zip(self.away, self.now(), before, strict=True)
        )
        self.away = wall, cpu


def meets(scores: dict[str, float | None], conditions: list[Condition]) -> bool:
    """Whether scores meet all conditions. One of a score that is not reported is met."""
    for score, sign, bound in conditions:
        value = scores.get(score, bound)
        if value is None:  # no episode tells
            return False
        if not (value >= bound if sign == ">=" else value <= bound):  # a NaN meets none
            return False
    return True


def warm_up(learner: Any) -> None:
    """Do some iterations, and return to the beginning exactly. In place."""
    start = learner.state()
    for _ in range(WARM_UP):
        learner.iteration()
    learner.report()()
    learner.load(start, "the beginning")


def keep_actors(loop: Any, clock: Clock, every: int) -> list[Actor]:
    """Make a loop copy every n-th actor and its last one into the list that is returned.

    The clock does not count the copies, nor evaluations during training.
    """
    step, evaluate, actors, count = loop.step, loop.evaluate, [], 0

    def step_and_keep(signals: Any) -> bool:
        nonlocal count
        last, learner = step(signals), learner_of(loop)
        count += 1  # not learner.iterations, which a roll-back lowers
        if last or count % every == 0:
            wait(learner)
            times = clock.read()
            with clock.paused():
                weights = {k: v.detach().clone() for k, v in learner.policy.state_dict().items()}
            steps = count * learner.size * learner.env.group.size
            actors.append(Actor(count, steps, *times, weights))
        return last

    def evaluate_paused(learner: Any) -> float:
        wait(learner)
        with clock.paused():
            return evaluate(learner)

    loop.step, loop.evaluate = step_and_keep, evaluate_paused
    return actors


def learner_of(loop: Any) -> Any:
    """The iteration of a loop, under its name of today or of an older commit."""
    return loop.iteration if hasattr(loop, "iteration") else loop.learner


def section_of(cfg: Any) -> Any:
    """The section `task` of a configuration, which is a dictionary in older commits."""
    return cfg["task"] if isinstance(cfg, dict) else cfg.task


def wait(learner: Any) -> None:
    """Wait until a GPU has done all its work, so that the clock is right."""
    if learner.env.device.type == "cuda":
        import torch

        torch.cuda.synchronize(learner.env.device)


def scores_of(program: Any, learner: Any, section: Any, seed: int, episodes: int) -> dict[str, Any]:
    """What the final evaluation of a commit says of a policy: of its drives too, if it has them."""
    drives = getattr(program, "as_told", None)
    told = drives(learner, section.weights) if drives else None  # it calibrates the policy
    scores = program.evaluate(section, learner, seed, episodes)
    if told is None:
        return scores
    passed = scores["success"]
    return scores | {"as_told": told, "episodes_passed": passed, "success": passed * told}


def judge(
    actors: list[Actor],
    score: Callable[[Actor], dict[str, Any]],
    conditions: list[Condition],
    how: str,
) -> list[dict[str, Any]]:
    """A row for each judged actor: when it had its weights, its scores, whether it counts.

    Args:
        how: `all`; `first`, in order until one counts, and the last; or `bisect`, which finds an
            actor that counts after one that does not, if the last counts, and else is `first`.
    """
    rows: dict[int, dict[str, Any]] = {}
    last = len(actors) - 1

    def counts(n: int) -> bool:
        if n not in rows:
            scores, (iteration, env_steps, time_s, *_) = score(actors[n]), actors[n]
            when = {"iteration": iteration, "env_steps": env_steps, "time_s": time_s}
            rows[n] = when | {"counts": meets(scores, conditions), "scores": scores}
            say(f"judged {len(rows)}: iteration {iteration} success {scores['success']:.3f}")
        return rows[n]["counts"]

    if how == "bisect" and counts(last):
        low, high = -1, last
        while high - low > 1:
            center = (low + high) // 2
            low, high = (low, center) if counts(center) else (center, high)
    else:
        for n in range(last):
            if counts(n) and how != "all":
                break
        counts(last)
    return [rows[n] for n in sorted(rows)]


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train as a job says, and judge the actors."""
    begun = time.perf_counter()
    from gpusim_rl.core.provenance import versions
    from gpusim_rl.training.loop import TrainingFailed

    words = job["words"]
    try:
        from gpusim_rl.config import compose, resume
        from gpusim_rl.evaluation.evaluate import SEED
        from gpusim_rl.training import trainer as program
    except ImportError:
        program = import_module(OLD_TRAINER)
        cfg, SEED = program.configure(*words), program.evaluation.SEED
    else:
        cfg = resume.check_training(compose.compose_plain("config", words), words)
    if job["check"]:
        return {}
    trainer, failed = program.Trainer(cfg), ""
    loop = trainer.loop
    warm_up(learner_of(loop))
    start_s = time.perf_counter() - begun
    clock = Clock()
    actors = keep_actors(loop, clock, job["every"])
    try:
        if signal := trainer.train().signal:
            raise SystemExit(128 + signal)
    except TrainingFailed as error:
        failed = str(error)
    if not actors:
        raise SystemExit(failed)
    learner, end, begun = learner_of(loop), actors[-1], time.perf_counter()

    def score(actor: Actor) -> dict[str, Any]:
        learner.policy.load_state_dict(actor.weights)
        return scores_of(program, learner, section_of(cfg), SEED, job["episodes"])

    rows = judge(actors, score, job["conditions"], job["judge"])
    return {
        **{"start_s": start_s, "train_s": end.time_s, "judge_s": time.perf_counter() - begun},
        **{"env_steps": end.env_steps, "steps_per_s": end.env_steps / end.time_s},
        **{"cores": end.cpu_s / end.time_s, "failed": failed},
        **{"actors": rows, "versions": versions()},
    }


def say(line: str) -> None:
    """Progress, for the process that waits."""
    print(line, flush=True)


def main(job_text: str, result: str) -> None:
    """Do a job and write its result. A mistake of the user's is one line and exit code 2."""
    job = json.loads(job_text)
    import gpusim_rl

    checkout = Path(str(gpusim_rl.__file__)).resolve().parents[1]
    if checkout != Path(job["checkout"]).resolve():
        raise SystemExit(f"error: {checkout} would be measured, not {job['checkout']}")
    try:
        done = run(job)
    except (ValueError, OSError) as error:
        if not job["check"]:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    Path(result).write_text(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
