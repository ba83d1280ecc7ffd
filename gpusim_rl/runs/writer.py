"""Checkpoints off the critical path: a snapshot is copied at once, hashed and written by a thread."""

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.run import Run

# begin anew at each row of the log, or come of an evaluation: no part of what is verified
SUMS = ("env/sums", "env/term_sums", "env/success", "ppo/skips")
HASHED = 10  # first iterations of a run whose state is hashed, for `gpusim_rl.verify`


def snapshot(state: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Begin to copy tensors, which nobody writes any more, to the host; the function returned waits for that copy alone."""
    if all(value.device.type == "cpu" for value in state.values()):
        return lambda: state
    host = {name: torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for name, value in state.items()}
    for name, value in state.items():
        host[name].copy_(value, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> dict[str, Tensor]:
        arrived.synchronize()
        return host

    return read


def digests(state: dict[str, Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor on the CPU, its first 16 digits."""
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16] for name, value in state.items() if name not in SUMS}


class Saver:
    """Writes what a run keeps of its states. If the disk is slower than the training, the newest state is written next.

    A disk that is full or gone does not end a training: `say` hears of it once, and every save tries again.

    Args:
        run: where to.
        say: hears one line when writing fails, and when it works again.
    """

    def __init__(self, run: Run, say: Callable[[str], None]):
        self.run, self.say = run, say
        self.failed = ""  # why the last write failed
        self._jobs: list[dict[str, Any]] = []
        self._busy = self._ends = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def save(self, iteration: int, state: dict[str, Tensor], note: dict[str, str], **more: Any) -> None:
        """Keep a state, whose tensors nobody writes any more; returns before it is written. `more`: success."""
        self._submit(iteration=iteration, read=snapshot(state), note=note, more=more)

    def hash(self, iteration: int, state: dict[str, Tensor]) -> None:
        """Keep the hashes of a state."""
        self._submit(iteration=iteration, read=snapshot(state), note=None, more={})

    def wait(self) -> bool:
        """Wait for all writing; whether the last of it worked."""
        with self._change:
            self._change.wait_for(lambda: not self._busy and not self._jobs)
        return not self.failed

    def close(self) -> bool:
        """Wait, and end the thread; whether the last write worked."""
        done = self.wait()
        with self._change:
            self._ends = True
            self._change.notify_all()
        self._thread.join()
        return done

    def _submit(self, **job: Any) -> None:
        with self._change:
            if job["note"] is not None:  # a newer checkpoint takes the place of one that waits
                self._jobs = [
                    other for other in self._jobs if other["note"] is None or other["more"].get("success") is not None
                ]
            self._jobs.append(job)
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._jobs or self._ends)
                if not self._jobs:
                    return
                job, self._busy = self._jobs.pop(0), True
            try:
                self._write(**job)
                if self.failed:
                    self.say(f"{self.run.path} can be written again")
                self.failed = ""
            except Exception as error:  # whatever it is, the training is worth more; and without it nothing would be written
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                if not self.failed:
                    self.say(f"{self.run.path} cannot be written ({reason}): training goes on, each save tries again")
                self.failed = reason
            with self._change:
                self._busy = False
                self._change.notify_all()

    def _write(self, iteration: int, read: Callable[[], dict[str, Tensor]], note: dict[str, str] | None, more: dict) -> None:
        state = read()
        if note is None:
            self.run.log({"iteration": iteration, "sha256": digests(state)}, "hashes.jsonl")
            return
        self.run.mend()
        self.run.checkpoints.save(iteration, state, note, **more)
