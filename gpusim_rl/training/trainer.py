"""Train a policy from Python, for example in a notebook.

    from gpusim_rl.training.trainer import configure, train

    result = train(configure("task=cartpole", "iterations=20"))
    print(result.path, result.scores["success"])

The words are those of train.py's command line.
"""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpusim_rl.algorithms.learner import Learner
from gpusim_rl.build import make_ppo
from gpusim_rl.config import resume
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.validate import code_word
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.deploy.export_policy import READINGS, evaluated, export_policy
from gpusim_rl.deploy.record import Seen
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation import evaluate as evaluation
from gpusim_rl.report import command as report
from gpusim_rl.tasks.common.scores import Scores
from gpusim_rl.training import dashboard, metric_writers
from gpusim_rl.training.films import Films
from gpusim_rl.training.loop import Training
from gpusim_rl.training.memory_plan import make_on_device
from gpusim_rl.training.open_run import open_run
from gpusim_rl.viewer.offscreen import choose_backend

STOP_EPISODES = 128  # of an evaluation during training


@dataclass(frozen=True)
class Result:
    """What a training left behind.

    Args:
        path: the run directory.
        iterations: how many are done.
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


def configure(*words: str) -> dict[str, Any]:
    """The configuration of a training, from the words of train.py's command line; ValueError or
    OSError in one line if they are wrong."""
    return resume.check_training(compose_plain("config", list(words)), list(words))


def train(cfg: dict[str, Any]) -> Result:
    """Train, evaluate and export as a configuration of `configure` says.

    Raises:
        ValueError: a value of the configuration does not fit the task or the machine.
        OSError: the results cannot be written.
        TrainingFailed: training went wrong too often.
    """
    trainer = Trainer(cfg)
    result = trainer.train()
    return result if result.signal else trainer.write_results(trainer.evaluate())


class Trainer:
    """One training: its learner, its run directory and its metrics.

    Args:
        cfg: from `configure`.
    ValueError or OSError if it cannot be built, or its run directory cannot be written.
    """

    def __init__(self, cfg: dict[str, Any]):
        if cfg["film_every"]:
            choose_backend()  # a mistake now, not a line at each film
        self.group = ProcessGroup.from_environment()
        self.build = partial(make_ppo, group=self.group)
        cfg = cfg | {"threads": cfg["threads"] or torch.get_num_threads()}
        learner, cfg, self.recipe = make_on_device(cfg, self.group)
        self.run, note, self.cfg = open_run(cfg, learner)
        sink = self.cfg["log"]["name"] if self.group.rank == 0 else "none"
        self.sink = metric_writers.sink(
            sink, self.cfg["log"], self.run.path, self.cfg, learner.iterations
        )
        self.begun = time.time()
        title = f"{self.cfg['task']['name']} · {self.cfg['num_envs']} worlds · {self.run.path}"
        self.table = dashboard.Dashboard(
            title, self.cfg["iterations"], learner.iterations, quiet=self.group.rank > 0
        )
        every = self.cfg["film_every"] if self.group.rank == 0 else None
        self.films = Films(self.run.path, every, code_word(self.cfg), self.table.say)
        self.loop = Training(
            self.cfg,
            learner,
            self.run,
            note=note,
            build=self.build,
            evaluate=partial(success, self.cfg),  # no cycle: the run is unlocked at once
            write_metrics=partial(call_all, (self.sink.write, self.films)),
            table=self.table,
        )

    def train(self) -> Result:
        """Iterate until all are done or a signal comes; TrainingFailed if it fails too often."""
        lines = [f"run: {self.run.path}", self.recipe, self.loop.learner.env.task.difference]
        signal = -1  # until it is over
        try:
            with self.table:
                self.table.say("; ".join(filter(None, lines)))
                if self.sink.where:
                    self.table.say(self.sink.where)
                signal = self.loop()
        except Exception:
            self.write_report()
            raise
        finally:
            if signal:  # else the evaluation's scores are still to be written
                self.films.stop()
                self.sink.close(failed=signal < 0)
        return self.result(signal=signal)

    def evaluate(self) -> Scores:
        """The scores of the final evaluation, printed; empty in all processes but the first."""
        if self.group.rank > 0:
            return {}
        seconds, episodes = self.loop.stopwatch.seconds, self.cfg["episodes"]
        task, self.seen = self.cfg["task"], Seen()
        self.table.say(f"evaluating {episodes} episodes on the model's own physics")
        try:
            scores = evaluate(task, self.loop.learner, evaluation.SEED, episodes, self.seen)
        except BaseException:
            self.films.stop()
            self.sink.close(failed=True)
            raise
        told = {f"eval/{key}": x for key, x in scores.items() if x is not None}
        self.sink.write({"iteration": self.loop.learner.iterations} | told)
        scores["time_s"] = seconds
        self.table.say(evaluation.line(scores))
        return scores

    def write_results(self, scores: Scores) -> Result:
        """Write the files of a run's end, as `export` says. OSError if it cannot be written."""
        if self.group.rank > 0:
            self.group.leave()
            return self.result()
        failed, refused = True, ""
        try:
            self.write_files(scores)
            self.films.finish()
            self.write_report()
            if self.cfg["gate"]:  # it writes into the file, which the loggers get
                from gpusim_rl.gate.command import gate_trained

                refused = gate_trained(self.run.path / "policy.onnx")
            self.log_files()
            failed = False
        finally:
            self.films.stop()
            self.sink.close(failed)
        self.group.leave()
        return self.result(scores=scores, refused=refused)

    def write_files(self, scores: Scores) -> None:
        """Write the scores, what the policy was shown, and the policy."""
        self.run.repair()
        self.run.json("eval.json", scores)
        ranges, success = self.seen.ranges(), scores.get("success")
        self.run.json(READINGS, evaluated(self.loop.learner, success, ranges))
        if self.cfg["export"] == "none":  # one of an earlier iteration would not be this policy
            (self.run.path / "policy.onnx").unlink(missing_ok=True)
        else:
            export_policy(self.loop.learner, self.cfg, self.run.path)

    def log_files(self) -> None:
        """Give film and policy to W&B or TensorBoard; OSError if the last checkpoint failed."""
        for file in (*self.run.films(since=self.begun)[-1:], *self.run.path.glob("policy.onnx")):
            self.sink.add(file)
        if failed := self.loop.checkpoint_writer.failed:
            raise OSError(f"the last checkpoint of {self.run.path} could not be written: {failed}")

    def write_report(self) -> None:
        """Write report.html, if the configuration wants one; one line if it cannot be written."""
        if self.group.rank == 0 and self.cfg["report"]:
            report.write_or_warn([self.run.path], self.run.path / "report.html")

    def result(self, **values: Any) -> Result:
        """What is known of the training now."""
        failure = self.loop.checkpoint_writer.failed
        return Result(self.run.path, self.loop.learner.iterations, failure=failure, **values)


def call_all(functions: Iterable[Callable[[Any], None]], value: Any) -> None:
    """Call each function with the value."""
    for function in functions:
        function(value)


def evaluate(
    section: dict[str, Any],
    learner: Learner,
    seed: int,
    episodes: int,
    watch: Seen | None = None,
    *,
    task: Task | None = None,
) -> Scores:
    """The scores of a policy on its own task, or on another one.

    section: of the configuration, with the task's weights and noise.
    """
    keys = {key: section[key] for key in ("weights", "noise")}
    keys |= dict(seed=seed, episodes=episodes, before_step=watch)
    keys["progress"] = partial(print, flush=True) if watch else None
    scores = evaluation.evaluate(learner.policy, task or learner.env.task, **keys)
    gc.collect()  # the evaluation's Env refers to itself, and its Sim holds memory and threads
    return scores


def success(cfg: dict[str, Any], learner: Learner) -> float:
    """The success of a policy during training, 0 to 1, with numbers as success has moved them."""
    task, section, plan = learner.env.task, cfg["task"], learner.schedule
    if plan.needs_evaluation:
        mean = learner.env.success.item()  # at an evaluation, outside the iteration
        task, section = plan.task_now(task, cfg, mean)
    seed, episodes = evaluation.STOP_SEED, STOP_EPISODES
    return evaluate(section, learner, seed, episodes, task=task)["success"] or 0.0
