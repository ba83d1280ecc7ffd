"""The training loop: iterations, evaluations, checkpoints, and what to do when something fails."""

import json
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.algorithms.iteration import Evaluation, Iteration
from gpusim_rl.config.sections import Config
from gpusim_rl.config.validate import TASK_CODE
from gpusim_rl.core.errors import reason
from gpusim_rl.core.files import Plain, write_whole
from gpusim_rl.core.memory import free_unused
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.paths import program
from gpusim_rl.envs.env import Env
from gpusim_rl.runs.run import Run
from gpusim_rl.runs.writer import HASHED, CheckpointWriter
from gpusim_rl.training.dashboard import Dashboard
from gpusim_rl.training.hopeless import hopeless
from gpusim_rl.training.machine import Machine
from gpusim_rl.training.open_run import load_checkpoint
from gpusim_rl.training.progress import Progress, Stopwatch, is_over, number

BAD = 3  # bad iterations in a row before a roll-back: most samples or minibatches were lost
ABOVE = 10  # rows in a row in which a bonus is above the task's reward, before a line says so
MISSED = 0.5  # of a reading's variance that a learned model leaves: above it a line says so
PATIENCE = 0.2  # s between two looks at what is waited for
Row = dict[str, float]
METRICS = (
    Metric("env_steps", "train/env_steps", "env steps"),
    Metric("time_s", "perf/time_s", "time of training [s]"),
    Metric("success", "train/success", "success, of evaluations while training", ".3f"),
    Metric("success_of", "train/success_of", "the earlier iteration that success is of", ".0f"),
    Metric("rollbacks", "train/rollbacks", "roll-backs"),
    Metric("eval/*", "eval/*"),
    Metric("system/*", "system/*"),
)


class TrainingFailed(RuntimeError):
    """A training went wrong again and again. The message says in one line what was seen."""


@dataclass
class PendingEvaluation:
    """An evaluation that has begun, of the policy of an iteration.

    Args:
        read: gives the success, as `Iteration.begin_evaluation` has it.
        reward: mean of all worlds then.
        over: whether numbers by success were at their ends.
        bad: whether its row, or the last one before, is bad; see `flush`.
        save: writes the checkpoint of that iteration, if the success comes later.
    """

    iteration: int
    read: Evaluation
    reward: float
    over: bool
    bad: bool
    save: Callable[[float], None] | None = None


class Training:
    """Iterates until all iterations are done, the success is reached or somebody stops it.

    Args:
        iteration: ready for its next one. `self.iteration` is the one to use afterwards.
        metadata: of the checkpoint that it comes from: seconds trained before, roll-backs.
        build: makes an `Iteration` of a configuration.
        evaluate: gives the success of its policy, 0 to 1, as `Iteration.begin_evaluation` has it.

    Attributes:
        stopped: what `stop` returned that ended the training, or 0.
    """

    def __init__(
        self,
        cfg: Config,
        iteration: Iteration,
        run: Run,
        *,
        metadata: dict[str, str],
        build: Callable[[Config], Iteration],
        evaluate: Callable[[Any], float],
        table: Dashboard,
    ):
        self.cfg, self.iteration, self.run, self.group = cfg, iteration, run, iteration.group
        self.build, self.evaluate, self.stopped = build, evaluate, 0
        self.seconds_before = number(metadata.get("time_s"))
        self.machine = Machine(run, cfg.task.name, iteration.env.device)
        meanwhile = self.machine.read if self.group.rank == 0 else lambda: None
        self.checkpoint_writer = CheckpointWriter(run, table.say, meanwhile)
        self.stopwatch = Stopwatch(self.seconds_before)
        self.pending: list[tuple[int, Callable[[], Row], Row, torch.Tensor]] = []
        self.rows: list[Row] = []  # that were logged, and not yielded yet
        self.evaluation: PendingEvaluation | None = None
        self.done = "done" in metadata  # a row of the learner has said so
        self.hopeless = ""  # why stop_when=hopeless ends it
        self.history: list[Row] = run.rows() if cfg.stop_when else []
        self.bad, self.rollbacks = 0, int(number(metadata.get("rollbacks")))
        self.rollbacks_before = self.rollbacks  # by earlier programs
        self.over = is_over(cfg, metadata, iteration.iterations)
        self.saved = iteration.iterations if metadata else -1  # when the last checkpoint was
        self.progress, self.table = Progress(cfg, metadata), table
        self.rows_above = 0  # in a row, whose bonus is above the task's reward
        self.rows_missed = 0  # in a row, in which a learned model misses readings
        self.waited = ""  # for what, before the next iteration
        self.log_failed = False  # metrics.jsonl cannot be written, and the user was told

    def steps(self, stop: Callable[[], int] = lambda: 0) -> Generator[Row]:
        """Train, and yield each row of metrics once it is logged. The last iteration is saved.

        The training ends when it is over, or when the generator is closed. It ends, too, when
        `stop` returns another number than 0: that is asked after each iteration. Of several
        processes only the first yields rows: there `stop` ends it, which all processes follow.
        TrainingFailed if it went wrong too often.
        """
        if self.saved != self.iteration.iterations == 0:
            # A training that goes wrong at once has a state to go back to. The one that it goes on
            # from is not written anew: a kill meanwhile would leave none that is whole.
            self.save()
        last = self.over
        try:
            while not last and not (stopped := self.group.max(stop())):
                if self.waits():
                    continue
                try:
                    last = self.step(stop)
                finally:
                    yield from self.take_rows()
            self.stopped = 0 if last else stopped
            self.save_rest()
            yield from self.take_rows()
        except GeneratorExit:
            if self.group.size == 1:  # the others are not told that this one leaves
                self.save_rest()
            raise
        finally:
            self.checkpoint_writer.close()
            if self.group.rank == 0:
                self.machine.write(running=False)
            self.iteration.close()

    def waits(self) -> bool:
        """Whether the next iteration cannot begin yet, after a moment; say once what is missing."""
        try:
            why = self.iteration.waits()
        except (ValueError, OSError) as error:  # such as of a file of answers that was changed
            raise TrainingFailed(reason(error)) from None
        if why and not self.waited:  # the number of pairs in it falls
            self.table.say(why)
        self.waited = why
        if why:
            with self.stopwatch.paused():
                time.sleep(PATIENCE)
        return bool(why)

    def take_rows(self) -> Iterator[Row]:
        """The rows that were logged since the last call."""
        while self.rows:
            yield self.rows.pop(0)

    def save_rest(self) -> None:
        """Save the last iteration, if the training was stopped after what was due."""
        if self.saved != self.iteration.iterations:
            self.flush()
            if not self.bad:
                self.save()

    def step(self, stop: Callable[[], int] = lambda: 0) -> bool:
        """Do an iteration and all that is due after it. Returns whether it was the last."""
        cfg = self.cfg
        self.stopwatch.tick()
        self.iteration.iteration()
        i = self.iteration.iterations
        self.flush()  # the row of an earlier iteration, now that the device has this one to do
        if self.iteration.iterations != i:
            return False  # rolled back
        # No local name holds the iteration: `flush` may replace it by one with larger capacities.
        if i <= HASHED:
            state = self.iteration.state()
            if self.group.rank == 0:
                self.checkpoint_writer.hash(i, state)
        row, success = self.success_if_due(i, wait=i == cfg.iterations)
        last = i == cfg.iterations or bool(cfg.stop_at and (success or 0.0) >= cfg.stop_at)
        last |= self.done or bool(self.hopeless)
        stopped = bool(self.group.max(stop()))
        due = any(n and i % n == 0 for n in (cfg.save_every, cfg.film_every))
        save = last or bool(row) or stopped or due
        if i % cfg.log_every == 0 or save:
            worst = self.iteration.env.worst_step
            self.pending.append((i, self.iteration.report(), row, worst.worst()))
            worst.clear()
        # Why: docs/decisions/checkpoints.md
        if save or self.iteration.env.device.type == "cpu":
            self.flush()
            if self.iteration.iterations != i:
                return False
            last |= self.done or bool(self.hopeless)
            save |= last
        if save and (last or not self.bad):  # a roll-back must return to a good state
            self.save(success, evaluated="success_of" not in row)
        return last

    # Why: docs/decisions/cluster.md
    def success_if_due(self, i: int, wait: bool) -> tuple[Row, float | None]:
        """Begin an evaluation if one is due, and take the success of one that is done.

        One that is due while another one is under way is left out; with `wait` that is waited for.
        Returns what i's row has of it, and the success if all numbers by success were at their end.
        """
        begins, device = not self.evaluation and self.is_due(i), self.iteration.env.device
        if begins and device.type == "cuda":
            torch.cuda.synchronize(device)  # what was launched is training
        with self.stopwatch.paused():
            if begins:
                self.begin_evaluation(i)
            if not (pending := self.evaluation):
                return {}, None
            # one process evaluates, since all must decide by the same number
            success = self.group.broadcast(pending.read(wait))
        if success is None:
            pending.save = pending.save or self.checkpoint()  # of what will have changed
            return {}, None
        self.evaluation = None
        self.iteration.schedule.follow(success, self.iteration.env.success)
        self.progress.judged = pending.reward
        if pending.save and pending.over and not pending.bad:
            pending.save(success)
        row: Row = {"success": success}
        if pending.iteration < i:
            row["success_of"] = pending.iteration
        return row, success if pending.over else None

    def is_due(self, i: int) -> bool:
        needed = self.iteration.schedule.needs_evaluation
        due = (needed or self.cfg.stop_at) and not i % self.cfg.eval_every
        return bool(due and self.group.broadcast(needed or self.progress.may_reach(i)))

    def begin_evaluation(self, i: int) -> None:
        iteration, rank = self.iteration, self.group.rank
        over = iteration.schedule.is_over(iteration.env.success.item())  # outside the iteration
        read = iteration.begin_evaluation(self.evaluate) if rank == 0 else lambda wait: None
        reward = self.progress.begin_evaluation()
        self.evaluation = PendingEvaluation(i, read, reward, over, bad=bool(self.bad))

    def save(self, success: float | None = None, *, evaluated: bool = True) -> None:
        """Save a checkpoint. Waits neither for the device nor for the disk.

        evaluated: the success is of this iteration, and not of an earlier one.
        """
        self.saved = self.iteration.iterations
        self.checkpoint()(success, evaluated)

    def checkpoint(self) -> Callable[..., None]:
        """A copy of all that a checkpoint has. The function returned writes it, see `save`."""
        metadata = {
            "task": self.cfg.task.name,
            "time_s": str(self.stopwatch.seconds),
            "rollbacks": str(self.rollbacks),
            "config": json.dumps(self.cfg.plain),
            **self.progress.metadata(),
            **dict.fromkeys(["done"] * self.done, "true"),
        }
        i, state = self.iteration.iterations, self.iteration.state()

        def write(success: float | None, evaluated: bool = True) -> None:
            report_metadata = metadata if success is None else metadata | {"success": str(success)}
            if self.group.rank == 0:
                of = success if evaluated else None
                self.checkpoint_writer.save(i, state, report_metadata, success=of)

        return write

    def flush(self) -> None:
        """Log the pending rows. Waits for the device to have done those iterations, no later."""
        while self.pending:
            i, read, success, worst = self.pending.pop(0)
            metrics, seconds = read(), self.stopwatch.seconds
            del read  # it holds the iteration, which may be replaced
            env_steps = i * self.iteration.size * self.group.size
            row = {"iteration": i, "env_steps": env_steps, "time_s": seconds} | metrics | success
            row["rollbacks"] = self.rollbacks
            if self.group.rank == 0:
                self.log(row)
                self.rows.append(row)
                self.table.show(row, self.stopwatch.seconds - self.seconds_before)
            self.bad = int(row.get("bad", 0))
            if self.evaluation and self.evaluation.iteration == i:
                self.evaluation.bad = bool(self.bad)
            self.progress.log(row)
            if row.get("done", 0.0) > 0 and not self.done:
                self.done = True
                self.table.say(f"iteration {i}: the training ends, as its learner is done")
            self.compare_bonus(row)
            self.judge_model(row)
            if self.cfg.stop_when:
                self.give_up(row)
            if row["overflow"]:
                self.enlarge(row)
            if self.bad >= BAD:
                self.roll_back(row, worst)
            elif self.bad == i == self.cfg.iterations:  # too short to be rolled back
                reason = self.failure_report(row, worst)
                raise TrainingFailed(f"every iteration was bad: {reason}")

    def log(self, row: Row) -> None:
        """Append a row. If the disk is full, the training goes on and the row waits."""
        self.machine.log(row)
        try:
            self.run.log(row)
            self.log_failed = False
        except OSError as error:
            if not self.log_failed:
                path = f"{self.run.path}/metrics.jsonl"
                self.table.say(f"{path} cannot be written ({error.strerror}): its rows wait")
            self.log_failed = True

    def give_up(self, row: Row) -> None:
        """End the training if stop_when=hopeless says why, in one line."""
        self.history.append(row)
        if self.hopeless:
            return
        # one process judges, as another one may have read fewer rows of before a resume
        why = hopeless(self.history, self.cfg.iterations) if self.group.rank == 0 else ""
        if why := self.group.broadcast(why):
            self.hopeless = why
            self.table.say(f"iteration {int(row['iteration'])}: the training ends, as it is {why}")

    def compare_bonus(self, row: Row) -> None:
        """Say it if the bonus of a reward model has been above the task's reward for some rows.

        Both are compared by their magnitudes [1/s], so that costs count as well.
        """
        bonus, model = row.get("bonus", 0.0), self.cfg.reward.name
        task = sum(abs(x) for key, x in row.items() if key.startswith("reward/"))
        self.rows_above = self.rows_above + 1 if bonus > task and model != "none" else 0
        if self.rows_above == ABOVE:
            self.table.say(
                f"iteration {int(row['iteration'])}: the bonus of reward={model}, {bonus:.2g}/s, is"
                f" above the task's reward of {task:.2g}/s: lower reward.weight if this lasts"
            )

    def judge_model(self, row: Row) -> None:
        """Say which readings a learned model has missed, if it has missed some for some rows."""
        errors = {x.partition("/")[2]: y for x, y in row.items() if x.startswith("model/")}
        missed = [f"{name} ({x:.2f})" for name, x in errors.items() if x > MISSED]
        self.rows_missed = self.rows_missed + 1 if missed else 0
        if self.rows_missed == ABOVE:
            self.table.say(
                f"iteration {int(row['iteration'])}: the model leaves more than half of the "
                f"variance of {', '.join(missed)}: what is paid for these is hardly learned"
            )

    def roll_back(self, row: Row, worst: torch.Tensor) -> None:
        """Go on from the last checkpoint with half the learning rates.

        TrainingFailed if that was done often enough, or no checkpoint can be read.
        """
        i, reason = int(row["iteration"]), self.failure_report(row, worst)
        bad = f"{BAD} bad iterations in a row"
        if self.rollbacks >= self.cfg.rollbacks:
            raise TrainingFailed(f"{bad}, after {self.rollbacks} roll-backs: {reason}")
        self.rollbacks += 1
        # the newest checkpoint may still be on its way to the disk
        self.checkpoint_writer.wait()
        self.group.barrier()  # the others read what rank 0 has written
        try:
            checkpoint = self.run.checkpoints.restore(self.table.say)
        except (OSError, ValueError) as error:
            why = f"and no checkpoint can be loaded: {error}"
            raise TrainingFailed(f"{bad}, {why}; {reason}") from None
        count = {"before": self.rollbacks_before, "now": self.rollbacks}
        load_checkpoint(self.iteration, self.cfg, checkpoint, **count)
        self.iteration.env.worst_step.clear()
        self.history = [x for x in self.history if x["iteration"] <= self.iteration.iterations]
        _, metadata, path = checkpoint
        self.progress = Progress(self.cfg, metadata)
        if self.group.rank == 0:
            self.attempt(self.rewind)
        self.done = False
        # rows and an evaluation of iterations that are taken back
        self.pending.clear()
        self.evaluation = None
        self.bad = 0
        message = f"iteration {i}: {bad} ({reason}); back to {path} with lower learning rates"
        self.table.say(message)

    def rewind(self) -> None:
        """Remove the rows that will be written again, and write the count of roll-backs."""
        self.run.json("rollbacks.json", self.rollbacks)
        for row in self.run.rewind(self.iteration.iterations)[-1:]:
            self.iteration.env.statistics.restore_means(row)

    def attempt(self, write: Callable[[], None]) -> None:
        """Write to the run. If the disk is full or gone, tell the user and go on."""
        try:
            write()
        except OSError as error:
            self.table.say(f"{self.run.path} cannot be written ({error.strerror})")

    def failure_report(self, row: Row, worst: torch.Tensor) -> str:
        """Write the report about the worst step. Returns what it and the row say, briefly."""
        line, report, tensors = describe_failure(self.iteration.env, worst, int(row["iteration"]))
        if skipped := row.get("skipped", 0.0):  # of the learner: no sample of a faulty world is
            line += f"; {skipped:.0f} minibatches were skipped, as loss or gradient was not finite:"
            line += " perhaps algo.learning_rate is too large"
        if (left := row.get("model_error", 0.0)) > 1:
            line += f"; the learned model's error is {left:.1f} times the variance:"
            line += " perhaps algo.model_rate is too large"
        if self.group.rank > 0:
            return line
        return f"{line}; {write_failure_report(self.run, self.cfg.plain, report, tensors)}"

    def enlarge(self, row: Row) -> None:
        """Say which capacity was exceeded. With sim.grow, double it and go on exactly."""
        over, sizes = int(row["overflow"]), self.iteration.env.sim.exceeded()
        what = f"iteration {int(row['iteration'])}: {over} steps went over a capacity"
        settings = " ".join(f"sim.{name}={size}" for name, size in sizes.items())
        if not sizes:
            room = "give the model more room with <size memory=…> in its MJCF"
            return self.table.say(f"{what}, and were left out: {room}")
        if not self.cfg.sim.grow or self.group.size > 1:
            return self.table.say(f"{what}, and were left out: set {settings}")
        self.table.say(f"{what}, and were left out: going on with {settings}")
        self.cfg = self.cfg.replace({f"sim.{name}": size for name, size in sizes.items()})
        # Why: docs/decisions/sims.md
        state = {name: value.cpu() for name, value in self.iteration.state().items()}
        done = self.iteration.iterations
        del self.iteration
        free_unused()  # before another one takes as much
        self.iteration = self.build(self.cfg)
        self.iteration.load(state, f"iteration {done}")
        self.iteration.open(self.run.path)
        # They are of the smaller one, while the row was read.
        self.iteration.env.statistics.clear_overflows()
        self.attempt(lambda: self.run.configure(self.cfg.plain | {"resume": None}))


def describe_failure(env: Env, row: Tensor, iteration: int) -> tuple[str, Plain, dict[str, Tensor]]:
    """(one line, the entries of report.json, tensors) of `row`, from `env.worst_step.worst()`."""
    worst = env.worst_step.read(row.cpu())
    terms = dict(zip(env.terms, worst.terms, strict=True))
    not_finite = [name for name, value in terms.items() if not abs(value) < 1e8]
    term = not_finite[0] if not_finite else max(terms, key=lambda name: abs(terms[name]))
    why = " and ".join(worst.why) or "no step was quarantined"
    line = f"world {worst.world}, step {worst.step}: {why}; largest reward term {term}"
    line += f" = {terms[term]:.4g}"
    report = {"iteration": iteration, "world": worst.world, "step": worst.step, "why": worst.why}
    return line, report | {"term": term, "terms": terms}, worst.tensors


def write_failure_report(run: Run, cfg: Plain, report: Plain, tensors: dict[str, Tensor]) -> str:
    """Write report.json and repro.safetensors. Returns what to tell the user about them."""
    portable, path = run.portable(cfg), run.path / "repro.safetensors"
    report_metadata = report | {x: portable[x] for x in ("task", "robot", "terrain", "task_code")}
    try:
        run.json("report.json", report)
        write_whole(path, to_bytes(tensors, metadata={"gpusim_rl": json.dumps(report_metadata)}))
    except OSError as error:
        return f"the report cannot be written: {error.strerror}"
    code = f" {TASK_CODE}" if cfg["task_code"] else ""
    return f"see it: {program('play')} repro={path}{code}"
