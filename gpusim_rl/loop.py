"""The training loop: iterations, evaluations, checkpoints, and what happens when something goes wrong."""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save as to_bytes

from gpusim_rl.board import Board
from gpusim_rl.disk import write_whole
from gpusim_rl.ppo import PPO
from gpusim_rl.ranks import agreed, largest, rank, ranks
from gpusim_rl.run import Run, Stopwatch
from gpusim_rl.saver import HASHED, Saver
from gpusim_rl.sim.driven import engine

BAD = 3  # iterations in a row that lost most of their samples or minibatches, before a roll-back
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Row = dict[str, float]


def number(text: str | None) -> float:
    """A number of at least 0 from a file; 0 if it is none."""
    try:
        return max(0.0, min(float(text or 0), 1e12))
    except ValueError:
        return 0.0


class GaveUp(RuntimeError):
    """A training that went wrong again and again; says in one line what was found."""


class Signals:
    """While it is entered, SIGTERM, SIGINT and SIGHUP are noted in `caught`; the second one ends the program at once."""

    caught = 0

    def __enter__(self) -> "Signals":
        heeded = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
        self._before = {number: signal.signal(number, self._catch) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: object) -> None:
        if self.caught:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h\n")  # the live table hid the cursor
            os._exit(128 + number)
        self.caught = number
        name = signal.Signals(number).name
        os.write(2, f"{name}: ends after this iteration and its checkpoint; a second one ends at once\n".encode())


class Training:
    """Iterates a PPO until its iterations are done, its success is reached or a signal comes, and keeps what it does in a run.

    Args:
        cfg: the configuration.
        ppo: ready for its next iteration; `self.ppo` is the one to use afterwards.
        run: where to keep.
        note: of the checkpoint that ppo comes from: seconds that were trained before, roll-backs.
        build: makes a PPO of a configuration.
        judge: success of a PPO, 0 to 1.
        write: takes each row of metrics.
        table: shows them.
    """

    def __init__(
        self,
        cfg: dict[str, Any],
        ppo: PPO,
        run: Run,
        *,
        note: dict[str, str],
        build: Callable[[dict[str, Any]], PPO],
        judge: Callable[[PPO], float],
        write: Callable[[Row], None],
        table: Board,
    ):
        self.cfg, self.ppo, self.run, self.before = cfg, ppo, run, number(note.get("time_s"))
        self.build, self.judge, self.write, self.table = build, judge, write, table
        self.saver = Saver(run, table.say)
        self.watch = Stopwatch(self.before)
        self.pending: list[tuple[int, Callable[[], Row], Row, torch.Tensor]] = []
        self.bad, self.rollbacks = 0, int(number(note.get("rollbacks")))
        self.reached = bool(cfg["stop_at"]) and number(note.get("success")) >= cfg["stop_at"]
        self.saved = ppo.iterations if note else -1  # the iteration of the last checkpoint
        self.mute = False  # metrics.jsonl cannot be written, and that was said

    def __call__(self) -> int:
        """Train; the number of the signal that ended it, or 0. GaveUp if it went wrong too often."""
        with Signals() as signals:
            if self.ppo.iterations == 0:
                self.save()
            last = self.reached or self.ppo.iterations >= self.cfg["iterations"]
            try:
                while not last and not (ended := largest(signals.caught)):
                    last = self.step(signals)
                if self.saved != self.ppo.iterations:  # the signal came after what was due
                    self.flush()
                    if not self.bad:
                        self.save()
            finally:
                self.saver.close()
        return 0 if last else ended

    def step(self, signals: Signals) -> bool:
        """An iteration and all that is due after it; whether it was the last."""
        cfg, ppo = self.cfg, self.ppo
        ppo.iteration()
        i = ppo.iterations
        self.flush()  # the row of an earlier iteration, now that the device has this one to do
        if self.ppo.iterations != i:
            return False  # rolled back
        ppo = self.ppo  # another, if a capacity grew
        if i <= HASHED:
            state = ppo.state()
            if rank() == 0:
                self.saver.hash(i, state)
        last, success = i == cfg["iterations"], {}
        if (cfg["stop_at"] or ppo.schedule.judged) and i % cfg["eval_every"] == 0:
            success = {"success": agreed(self.judge(ppo) if rank() == 0 else 0.0)}
            last |= bool(cfg["stop_at"]) and success["success"] >= cfg["stop_at"]
            ppo.env.success.fill_(success["success"])
        save = last or i % cfg["save_every"] == 0 or bool(success) or bool(largest(signals.caught))
        if i % cfg["log_every"] == 0 or save:
            self.pending.append((i, ppo.report(), success, ppo.env.incident.worst()))
            ppo.env.incident.clear()
        if save or ppo.env.device.type == "cpu":
            self.flush()
            if self.ppo.iterations != i:
                return False
        if save and (last or not self.bad):  # what a roll-back returns to is good
            self.save(success.get("success"))
        return last

    def save(self, success: float | None = None) -> None:
        """Keep a checkpoint; waits neither for the device nor for the disk."""
        note = {"task": self.cfg["task"]["name"], "time_s": str(self.watch.seconds), "rollbacks": str(self.rollbacks)}
        if success is not None:
            note["success"] = str(success)
        self.saved, state = self.ppo.iterations, self.ppo.state()
        if rank() == 0:
            self.saver.save(self.ppo.iterations, state, note, success=success)

    def flush(self) -> None:
        """Log what was begun to be read: waits for the device to have done that iteration, and for no later one."""
        while self.pending:
            i, read, success, worst = self.pending.pop(0)
            row = read()
            row = {"iteration": i, "env_steps": i * self.ppo.size * ranks(), "time_s": self.watch.seconds} | row | success
            row["rollbacks"] = self.rollbacks
            if rank() == 0:
                self.log(row)
                self.write(row)
                self.table.show(row, self.watch.seconds - self.before)
            self.bad = int(row["bad"])
            if row["overflow"]:
                self.enlarge(row)
            if self.bad >= BAD:
                self.roll_back(i, worst)

    def log(self, row: Row) -> None:
        """Append a row; a disk that is full does not end the training, the row waits."""
        try:
            self.run.log(row)
            self.mute = False
        except OSError as error:
            if not self.mute:
                self.table.say(f"{self.run.path}/metrics.jsonl cannot be written ({error.strerror}): its rows wait")
            self.mute = True

    def roll_back(self, i: int, worst: torch.Tensor) -> None:
        """Go on from the last checkpoint with half the learning rates; GaveUp if that was done often enough."""
        says = self.report(i, worst)
        if self.rollbacks >= self.cfg["rollbacks"]:
            raise GaveUp(f"{BAD} bad iterations in a row, after {self.rollbacks} roll-backs: {says}")
        self.rollbacks += 1
        self.saver.wait()
        agreed(0)  # the others read what rank 0 has written
        try:
            state, note, path = self.run.checkpoints.restore(self.table.say)
        except (OSError, ValueError) as error:
            raise GaveUp(f"{BAD} bad iterations in a row, and no way back: {error}; {says}") from None
        self.ppo.load(state, str(path))
        self.ppo.env.incident.clear()
        for rate in self.ppo.vectors.rates:
            rate.mul_(0.5 ** (self.rollbacks - int(number(note.get("rollbacks")))))
        if rank() == 0:
            self.attempt(self.rewind)
        self.pending.clear()
        self.bad = 0
        self.table.say(f"iteration {i}: {BAD} bad iterations in a row ({says}); back to {path} with lower learning rates")

    def rewind(self) -> None:
        """Forget the rows that are written again, and keep the count of roll-backs, which no restart may forget."""
        self.run.json("rollbacks.json", self.rollbacks)
        for row in self.run.rewind(self.ppo.iterations)[-1:]:
            self.ppo.env.tally.recall(row)

    def attempt(self, write: Callable[[], None]) -> None:
        """Write to the run; a disk that is full or gone is said, and ends nothing."""
        try:
            write()
        except OSError as error:
            self.table.say(f"{self.run.path} cannot be written ({error.strerror})")

    def report(self, i: int, worst: torch.Tensor) -> str:
        """Write report.json and repro.safetensors about the worst step; what they say, in a few words."""
        env = self.ppo.env
        found = env.incident.read(worst.cpu())
        terms = dict(zip(env.terms, found.terms, strict=True))
        finite = [name for name, value in terms.items() if not abs(value) < 1e8]
        term = finite[0] if finite else max(terms, key=lambda name: abs(terms[name]))
        why = " and ".join(found.why) or "no step was quarantined"
        says = f"world {found.world}, step {found.step}: {why}; largest reward term {term} = {terms[term]:.4g}"
        about = {"iteration": i, "world": found.world, "step": found.step, "why": found.why, "term": term, "terms": terms}
        if rank():
            return says
        cfg = self.run.portable(self.cfg)
        try:
            self.run.json("report.json", about)
            data = to_bytes(
                found.tensors, metadata={"gpusim_rl": json.dumps(about | {key: cfg[key] for key in ("task", "robot")})}
            )
            write_whole(self.run.path / "repro.safetensors", data)
        except OSError as error:
            return f"{says}; the report cannot be written: {error.strerror}"
        return f"{says}; see it: python play.py repro={self.run.path}/repro.safetensors"

    def enlarge(self, row: Row) -> None:
        """Say which capacity was exceeded, and double it if that is wanted: the PPO is built anew and goes on exactly."""
        sim, over = engine(self.ppo.env.sim), int(row["overflow"])
        what = f"iteration {int(row['iteration'])}: {over} steps went over a capacity"
        lacks: dict[str, int] = getattr(sim, "lacks", dict)()  # Warp's alone
        sizes = " ".join(f"sim.{name}={size}" for name, size in lacks.items())
        if not lacks:
            return self.table.say(f"{what}, and were left out: give the model more room with <size memory=…> in its MJCF")
        if not self.cfg["sim"]["grow"] or ranks() > 1:
            return self.table.say(f"{what}, and were left out: set {sizes}")
        self.table.say(f"{what}, and were left out: going on with {sizes}")
        self.cfg = self.cfg | {"sim": self.cfg["sim"] | lacks}
        state = {name: value.cpu() for name, value in self.ppo.state().items()}
        logged, iteration = self.ppo.logged, self.ppo.iterations
        del self.ppo  # its memory, before another takes as much
        self.ppo = self.build(self.cfg)
        self.ppo.load(state, f"iteration {iteration}")
        self.ppo.logged = logged
        self.attempt(lambda: self.run.configure(self.cfg | {"resume": None}))
