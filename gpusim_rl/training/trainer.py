"""`Trainer`: one training with its run directory, its loggers and its table.

`gpusim_rl.train` is the whole way from a configuration to a policy in a file. Who
wants to stop, read and change a training between two rows of metrics uses a `Trainer`:

    from gpusim_rl.commands.train import configure
    from gpusim_rl.training.trainer import Trainer

    trainer = Trainer(configure("task=cartpole", "iterations=100"))
    for row in trainer.steps():
        if row["return"] > 15:
            break
    trainer.close()

A population has several in one process, each with `observed=False`, whose rows it takes in turn;
`load_learned` lets one go on from what another has learned.
"""

import os
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.sections import Config, TaskSection
from gpusim_rl.config.validate import code_words
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.memory import free_cycles
from gpusim_rl.core.metrics import described
from gpusim_rl.deploy.export_policy import READINGS, evaluated, export_policy
from gpusim_rl.deploy.record import ReadingSamples
from gpusim_rl.envs.task import Scores, Task
from gpusim_rl.evaluation import calibrate as calibration
from gpusim_rl.evaluation import drives
from gpusim_rl.evaluation import evaluate as evaluation
from gpusim_rl.evaluation.drives import Drive, add_drives
from gpusim_rl.sim.factory import order_of_contacts, solver_cost
from gpusim_rl.training import metric_writers
from gpusim_rl.training.dashboard import Dashboard
from gpusim_rl.training.films import Films
from gpusim_rl.training.loop import METRICS, Row, Training
from gpusim_rl.training.memory import Maker, make_on_device
from gpusim_rl.training.open_run import open_run


@dataclass(frozen=True)
class Result:
    """The end of a training after some iterations: its directory, its scores, and what went wrong.

    Args:
        signal: number of the signal that ended the training early; 0 if none did.
        failure: why the last checkpoint could not be written; empty if it was.
        refused: why the policy fails gate=true; empty if it passes, or was not judged.
        scores: of the last evaluation; empty after a signal.
    """

    path: Path
    iterations: int
    signal: int = 0
    failure: str = ""
    refused: str = ""
    scores: Scores = field(default_factory=dict)


class Trainer:
    """One training: its worlds and its learner, its run directory and its metrics.

    ValueError if it cannot be built, OSError if its run directory cannot be written.

    Args:
        cfg: from `configure`.
        make: makes the iteration, if another than that of this process.
        observed: whether there are loggers, films and a table. The run directory has all rows.

    Attributes:
        after_row: functions that take each row of metrics. They may be added to.
    """

    def __init__(self, cfg: Config, make: Maker | None = None, *, observed: bool = True):
        make = make or make_iteration
        self.group = ProcessGroup.from_environment()
        first = self.group.rank == 0
        seen = first and observed
        iteration, cfg, self.device_overrides = make_on_device(cfg, self.group, make)
        self.run, metadata, self.cfg = open_run(cfg, iteration)
        metrics = (*METRICS, *iteration.metrics)
        self.sink = metric_writers.sink(
            self.cfg.log.name if seen else "none",
            self.run.path,
            self.cfg.plain,
            done=iteration.iterations,
            metrics=metrics,
        )
        self.begun = time.time()
        title = f"{self.cfg.task.name} · {self.cfg.num_envs} worlds · {self.run.path}"
        self.table = Dashboard(
            title,
            self.cfg.iterations,
            iteration.iterations,
            metrics=metrics,
            bounds=iteration.env.task.drive_limits,
            quiet=not seen,
        )
        every = (self.cfg.film_every or 0) if seen else None
        self.films = Films(self.run.path, every, code_words(self.cfg.plain), self.table.say)
        self.after_row: list[Callable[[Row], None]] = [self.sink.write, self.films]
        self.loop = Training(
            self.cfg,
            iteration,
            self.run,
            metadata=metadata,
            build=partial(make, group=self.group),
            evaluate=partial(success, self.cfg),  # no cycle: the run is unlocked at once
            table=self.table,
        )
        if first:
            self.loop.attempt(lambda: self.run.json("metrics.json", described(metrics)))

    def steps(self, stop: Callable[[], int] = lambda: 0) -> Generator[Row]:
        """Train, and yield each row of metrics.

        It may be left at any row. The last iteration is saved then, and `close` ends the loggers.
        TrainingFailed if it went wrong too often.

        stop: asked after each iteration; another number than 0 ends the training.
        """
        task, sim, ring = self.loop.iteration.env.task, self.cfg.sim, self.loop.iteration.ring
        first = filter(None, [f"run: {self.run.path}", self.device_overrides, task.difference])
        where = sim.name, self.cfg.device, task.physics
        size = ring.describe() if ring else ""
        cost = solver_cost(*where, task.substeps, bool(sim.conditional))
        order = order_of_contacts(*where, bool(sim.deterministic))
        failed = True
        try:
            with self.table:
                lines = "; ".join(first), size, cost, order, self.sink.where
                for line in filter(None, lines):
                    self.table.say(line)
                with closing(self.loop.steps(stop)) as rows:
                    for row in rows:
                        self.log(row)
                        yield row
            success, target = self.table.success.get("success", 0.0), self.cfg.stop_at
            if target and success >= target:
                self.table.say(f"success {success:.3f} reaches stop_at={target}")
            failed = False
        except GeneratorExit:
            for row in self.loop.take_rows():  # those that the last save waited for
                self.log(row)
            failed = False
            raise
        finally:
            if failed or self.loop.stopped:  # else the evaluation's scores are still to be written
                self.close(failed)

    def load_learned(self, state: dict[str, Tensor], where: str = "the other run") -> None:
        """As `Iteration` has it, between two rows."""
        self.loop.iteration.load_learned(state, where)

    def log(self, row: Row) -> None:
        for take in self.after_row:
            take(row)

    def train(self, stop: Callable[[], int] = lambda: 0) -> Result:
        """Take all `steps`."""
        for _ in self.steps(stop):
            pass
        return self.result(signal=self.loop.stopped)

    def close(self, failed: bool = False) -> None:
        """End the films and the loggers."""
        self.films.stop()
        self.sink.close(failed)

    def evaluate(self) -> Scores:
        """The scores of the final evaluation; empty in all processes but the first."""
        self.trained_cpu_s = processor_seconds()
        if self.group.rank > 0:
            return {}
        seconds, episodes = self.loop.stopwatch.seconds, self.cfg.episodes
        task, self.seen = self.cfg.task, ReadingSamples()
        first = f"{evaluation.FEWEST} to " if episodes > evaluation.FEWEST else ""
        self.table.say(f"evaluating {first}{episodes} episodes on the model's own physics")
        try:
            self.drives = self.calibrate()
            scores = evaluate(task, self.loop.iteration, evaluation.SEED, episodes, self.seen)
        except BaseException:
            self.close(failed=True)
            raise
        scores = add_drives(scores, self.drives, self.loop.iteration.env.task)
        values: Row = {f"eval/{key}": x for key, x in scores.items() if x is not None}
        self.sink.write(values | {"iteration": self.loop.iteration.iterations})
        scores["time_s"] = seconds
        return scores

    @free_cycles()
    def calibrate(self) -> list[Drive]:
        """Calibrate the policy, and drive it; [] for a task that is not driven."""
        iteration, weights = self.loop.iteration, self.cfg.task.weights
        if iteration.env.task.drives is None:
            return []
        calibration.calibrate(iteration.env, iteration.policy, weights=weights)
        numbers = calibration.record(iteration.policy.actor, iteration.iterations)
        self.loop.attempt(lambda: self.run.json(calibration.FILE, numbers))
        return drives.drive(iteration.policy, iteration.env.task, weights=weights)

    def write_files(self, scores: Scores) -> None:
        """Write the scores, what the policy was shown, and the policy; then wait for the films.

        ValueError or OSError if the policy cannot be exported, or a file not be written.
        """
        self.run.repair()
        self.run.json("eval.json", scores)
        if self.drives:
            self.run.json(drives.FILE, drives.record(self.drives, self.loop.iteration.env.task))
        ranges, share = self.seen.ranges(), scores.get("success")
        self.run.json(READINGS, evaluated(self.loop.iteration, share, ranges))
        if self.cfg.export == "none":  # one of an earlier iteration would not be this policy
            (self.run.path / "policy.onnx").unlink(missing_ok=True)
        else:
            export_policy(self.loop.iteration, self.cfg, self.run.path)
        self.films.finish()

    def log_files(self) -> None:
        """Give film, policy and report to the logger; OSError if the last checkpoint failed."""
        files = [self.run.path / name for name in ("policy.onnx", "report.html")]
        for file in (*self.run.films(since=self.begun)[-1:], *files):
            if file.is_file():
                self.sink.add(file)
        if failed := self.loop.checkpoint_writer.failed:
            raise OSError(f"the last checkpoint of {self.run.path} could not be written: {failed}")

    def cost(self) -> str:
        """What the training and its end took of the processor, as a line."""
        trained, after = self.trained_cpu_s, processor_seconds() - self.trained_cpu_s
        return f"{trained:.0f} CPU s of training, {after:.0f} of evaluation, export and report"

    def result(self, **values: Any) -> Result:
        """The result of the training as it is now."""
        failure = self.loop.checkpoint_writer.failed
        return Result(self.run.path, self.loop.iteration.iterations, failure=failure, **values)


def processor_seconds() -> float:
    """What this process, and those of its children that have ended, had of the processor [s]."""
    return sum(os.times()[:4])


@free_cycles()  # the Sim of an evaluation's Env holds memory and threads
def evaluate(
    section: TaskSection,
    iteration: Iteration,
    seed: int,
    episodes: int,
    watch: ReadingSamples | None = None,
    *,
    task: Task | None = None,
) -> Scores:
    """The scores of a policy on its own task, or on another one.

    Args:
        section: of the configuration, with the task's weights and noise.
        watch: of the final evaluation, which has as many episodes as tell whether it succeeds.
    """
    keys: dict[str, Any] = {"weights": section.weights, "noise": section.noise}
    keys |= dict(seed=seed, episodes=episodes, before_step=watch)
    keys["progress"] = partial(print, flush=True) if watch else None
    rate = evaluation.judge if watch else evaluation.evaluate
    return rate(iteration.policy, task or iteration.env.task, **keys)


def success(cfg: Config, iteration: Iteration) -> float:
    """The success of a policy during training, 0 to 1, with numbers as success has moved them."""
    task, section, plan = iteration.env.task, cfg.task, iteration.schedule
    iteration.policy.actor.calibration = None  # of an evaluation before
    if plan.needs_evaluation:
        mean = iteration.env.success.item()  # at an evaluation, outside the iteration
        task, values = plan.task_now(task, cfg.plain, mean)
        section = TaskSection.of(values)
    seed, episodes = evaluation.STOP_SEED, evaluation.FEWEST
    share = evaluate(section, iteration, seed, episodes, task=task)["success"] or 0.0
    # Drives cost as much as an evaluation: they are made where the training may stop. What a
    # curriculum follows is the share of episodes alone.
    if plan.needs_evaluation or not cfg.stop_at or share < cfg.stop_at:
        return share
    return share * tracking(iteration, section.weights)


@free_cycles()
def tracking(iteration: Iteration, weights: dict[str, float]) -> float:
    """The share of drives without a failure, calibrated; 1 for a task that is not driven."""
    if iteration.env.task.drives is None:
        return 1.0
    driven = calibration.calibrate(iteration.env, iteration.policy, weights=weights)
    return drives.share_tracked(driven)
