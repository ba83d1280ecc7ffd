"""The training loop: iterations, evaluations, checkpoints, and what to do when something fails."""

import gc
import json
from collections.abc import Callable
from typing import Any

import torch

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.runs.run import Run
from gpusim_rl.runs.writer import HASHED, CheckpointWriter
from gpusim_rl.training.dashboard import Dashboard
from gpusim_rl.training.incident import describe, write_report
from gpusim_rl.training.progress import Progress, Stopwatch, is_over, number
from gpusim_rl.training.signals import Signals

BAD = 3  # bad iterations in a row before a roll-back: most samples or minibatches were lost
Row = dict[str, float]


class TrainingFailed(RuntimeError):
    """A training went wrong again and again. The message says in one line what was seen."""


class Training:
    """Iterate a learner until its iterations are done, its success is reached or a signal comes.

    Args:
        cfg: the configuration.
        learner: ready for its next iteration. `self.learner` is the one to use afterwards.
        run: where checkpoints, metrics and hashes are written.
        note: of the checkpoint that learner comes from: seconds trained before, roll-backs.
        build: makes a learner of a configuration.
        evaluate: gives the success of a learner, 0 to 1.
        write_metrics: takes each row of metrics.
        table: shows them.
    """

    def __init__(
        self,
        cfg: dict[str, Any],
        learner: Iteration,
        run: Run,
        *,
        note: dict[str, str],
        build: Callable[[dict[str, Any]], Iteration],
        evaluate: Callable[[Iteration], float],
        write_metrics: Callable[[Row], None],
        table: Dashboard,
    ):
        self.cfg, self.learner, self.run, self.group = cfg, learner, run, learner.env.group
        self.build, self.evaluate, self.write_metrics = build, evaluate, write_metrics
        self.seconds_before = number(note.get("time_s"))
        self.checkpoint_writer = CheckpointWriter(run, table.say)
        self.stopwatch = Stopwatch(self.seconds_before)
        self.pending: list[tuple[int, Callable[[], Row], Row, torch.Tensor]] = []
        self.bad, self.rollbacks = 0, int(number(note.get("rollbacks")))
        self.over = is_over(cfg, note, learner.iterations)
        self.saved = learner.iterations if note else -1  # the iteration of the last checkpoint
        self.progress, self.table = Progress(cfg, note), table
        self.log_failed = False  # metrics.jsonl cannot be written, and the user was told

    def __call__(self) -> int:
        """Train. Returns the number of the signal that ended it, or 0.

        Raises:
            TrainingFailed: it went wrong too often.
        """
        with Signals(self.stopwatch.skip) as signals:
            if self.learner.iterations == 0:
                self.save()
            last = self.over
            try:
                while not last and not (ended := self.group.max(signals.caught)):
                    last = self.step(signals)
                if self.saved != self.learner.iterations:  # the signal came after what was due
                    self.flush()
                    if not self.bad:
                        self.save()
            finally:
                self.checkpoint_writer.close()
        return 0 if last else ended

    def step(self, signals: Signals) -> bool:
        """Do an iteration and all that is due after it. Returns whether it was the last."""
        cfg = self.cfg
        self.stopwatch.tick()
        self.learner.iteration()
        i = self.learner.iterations
        self.flush()  # the row of an earlier iteration, now that the device has this one to do
        if self.learner.iterations != i:
            return False  # rolled back
        # No local name holds the learner: `flush` may replace it by one with larger capacities.
        if i <= HASHED:
            state = self.learner.state()
            if self.group.rank == 0:
                self.checkpoint_writer.hash(i, state)
        row, success = self.success_if_due(i)
        last = i == cfg["iterations"] or bool(cfg["stop_at"] and (success or 0.0) >= cfg["stop_at"])
        caught = bool(self.group.max(signals.caught))
        due = any(n and i % n == 0 for n in (cfg["save_every"], cfg["film_every"]))
        save = last or bool(row) or caught or due
        if i % cfg["log_every"] == 0 or save:
            worst = self.learner.env.worst_step
            self.pending.append((i, self.learner.report(), row, worst.worst()))
            worst.clear()
        if save or self.learner.env.device.type == "cpu":
            self.flush()
            if self.learner.iterations != i:
                return False
        if save and (last or not self.bad):  # a roll-back must return to a good state
            self.save(success)
        return last

    def success_if_due(self, i: int) -> tuple[Row, float | None]:
        """What i's row says of success; and success, if all numbers by success are at their end."""
        schedule, mean = self.learner.schedule, self.learner.env.success
        needed = schedule.needs_evaluation
        due = (needed or self.cfg["stop_at"]) and not i % self.cfg["eval_every"]
        if not (due and self.group.broadcast(needed or self.progress.may_reach(i))):
            return {}, None
        if self.learner.env.device.type == "cuda":
            torch.cuda.synchronize(self.learner.env.device)  # what was launched is training
        with self.stopwatch.paused():
            own = self.evaluate(self.learner) if self.group.rank == 0 else 0.0
            success = self.group.broadcast(own)
        over = schedule.is_over(mean.item())  # at an evaluation, outside the iteration
        schedule.follow(success, mean)
        self.progress.judged = self.progress.mean_return
        return {"success": success}, success if over else None

    def save(self, success: float | None = None) -> None:
        """Save a checkpoint. Waits neither for the device nor for the disk."""
        note = {
            "task": self.cfg["task"]["name"],
            "time_s": str(self.stopwatch.seconds),
            "rollbacks": str(self.rollbacks),
            "config": json.dumps(self.cfg),
            **self.progress.note(),
        }
        if success is not None:
            note["success"] = str(success)
        self.saved, state = self.learner.iterations, self.learner.state()
        if self.group.rank == 0:
            self.checkpoint_writer.save(self.learner.iterations, state, note, success=success)

    def flush(self) -> None:
        """Log the pending rows. Waits for the device to have done those iterations, no later."""
        while self.pending:
            i, read, success, worst = self.pending.pop(0)
            metrics, seconds = read(), self.stopwatch.seconds
            del read  # it holds the learner, which may be replaced
            env_steps = i * self.learner.size * self.group.size
            row = {"iteration": i, "env_steps": env_steps, "time_s": seconds} | metrics | success
            row["rollbacks"] = self.rollbacks
            if self.group.rank == 0:
                self.log(row)
                self.write_metrics(row)
                self.table.show(row, self.stopwatch.seconds - self.seconds_before)
            self.bad = int(row["bad"])
            self.progress.log(row)
            if row["overflow"]:
                self.enlarge(row)
            if self.bad >= BAD:
                self.roll_back(i, worst)
            elif self.bad == i == self.cfg["iterations"]:  # too short to be rolled back
                raise TrainingFailed(f"every iteration was bad: {self.report(i, worst)}")

    def log(self, row: Row) -> None:
        """Append a row. If the disk is full, the training goes on and the row waits."""
        try:
            self.run.log(row)
            self.log_failed = False
        except OSError as error:
            if not self.log_failed:
                path = f"{self.run.path}/metrics.jsonl"
                self.table.say(f"{path} cannot be written ({error.strerror}): its rows wait")
            self.log_failed = True

    def roll_back(self, i: int, worst: torch.Tensor) -> None:
        """Go on from the last checkpoint with half the learning rates.

        Raises:
            TrainingFailed: that was done often enough, or no checkpoint can be read.
        """
        reason = self.report(i, worst)
        bad = f"{BAD} bad iterations in a row"
        if self.rollbacks >= self.cfg["rollbacks"]:
            raise TrainingFailed(f"{bad}, after {self.rollbacks} roll-backs: {reason}")
        self.rollbacks += 1
        self.checkpoint_writer.wait()
        self.group.barrier()  # the others read what rank 0 has written
        try:
            state, note, path = self.run.checkpoints.restore(self.table.say)
        except (OSError, ValueError) as error:
            raise TrainingFailed(
                f"{bad}, and no checkpoint can be loaded: {error}; {reason}"
            ) from None
        self.learner.load(state, str(path))
        self.learner.env.worst_step.clear()
        self.progress = Progress(self.cfg, note)
        self.learner.slow_down(0.5 ** (self.rollbacks - int(number(note.get("rollbacks")))))
        if self.group.rank == 0:
            self.attempt(self.rewind)
        self.pending.clear()
        self.bad = 0
        message = f"iteration {i}: {bad} ({reason}); back to {path} with lower learning rates"
        self.table.say(message)

    def rewind(self) -> None:
        """Remove the rows that will be written again, and write the count of roll-backs."""
        self.run.json("rollbacks.json", self.rollbacks)
        for row in self.run.rewind(self.learner.iterations)[-1:]:
            self.learner.env.statistics.restore_means(row)

    def attempt(self, write: Callable[[], None]) -> None:
        """Write to the run. If the disk is full or gone, tell the user and go on."""
        try:
            write()
        except OSError as error:
            self.table.say(f"{self.run.path} cannot be written ({error.strerror})")

    def report(self, i: int, worst: torch.Tensor) -> str:
        """Write the report about the worst step. Returns what it says, in a few words."""
        line, report, tensors = describe(self.learner.env, worst, i)
        if self.group.rank > 0:
            return line
        return f"{line}; {write_report(self.run, self.cfg, report, tensors)}"

    def enlarge(self, row: Row) -> None:
        """Say which capacity was exceeded. With sim.grow, double it and go on exactly."""
        over, sizes = int(row["overflow"]), self.learner.env.sim.exceeded()
        what = f"iteration {int(row['iteration'])}: {over} steps went over a capacity"
        settings = " ".join(f"sim.{name}={size}" for name, size in sizes.items())
        if not sizes:
            room = "give the model more room with <size memory=…> in its MJCF"
            return self.table.say(f"{what}, and were left out: {room}")
        if not self.cfg["sim"]["grow"] or self.group.size > 1:
            return self.table.say(f"{what}, and were left out: set {settings}")
        self.table.say(f"{what}, and were left out: going on with {settings}")
        self.cfg = self.cfg | {"sim": self.cfg["sim"] | sizes}
        state = {name: value.cpu() for name, value in self.learner.state().items()}
        iteration = self.learner.iterations
        del self.learner
        gc.collect()  # its memory, before another one takes as much: an Env refers to itself
        self.learner = self.build(self.cfg)
        self.learner.load(state, f"iteration {iteration}")
        self.learner.env.statistics.clear_overflows()  # of the smaller one, while the row was read
        self.attempt(lambda: self.run.configure(self.cfg | {"resume": None}))
