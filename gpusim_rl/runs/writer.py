"""A thread that writes checkpoints and hashes, so that training does not wait for the disk."""

import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.runs.run import Run

# Not hashed: names that end so start again at each row of the log, or come from an evaluation.
SUMS = ("sums", "env/success")
PERIOD = 5.0  # s between two calls of what is done meanwhile
HASHED = 10  # first iterations after which the state is hashed, for `gpusim verify`


def snapshot(state: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    """Start to copy tensors to the host. The function returned waits for this copy and returns it.

    Nobody may write to these tensors any more.
    """
    if all(x.device.type == "cpu" for x in state.values()):
        return lambda: state
    host = {n: torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for n, x in state.items()}
    for name, value in state.items():
        host[name].copy_(value, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> dict[str, Tensor]:
        arrived.synchronize()
        return host

    return read


def digests(state: dict[str, Tensor]) -> dict[str, str]:
    """The first 16 digits of each tensor's SHA-256; the tensors are on the CPU."""
    return {
        name: hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16]
        for name, value in state.items()
        if not name.endswith(SUMS)
    }


class CheckpointWriter:
    """Writes checkpoints and hashes of a run in a thread of its own.

    If the disk is slower than the training, a newer checkpoint replaces one that still waits.
    A full disk does not end the training: each save tries again.

    The thread frees no copy of a state: the next call from outside does. To free pinned memory
    while another thread captures a CUDA graph would break the capture.

    Args:
        say: called with one line when writing fails, and when it works again.
        meanwhile: called in the thread at its beginning, and every few seconds.
    """

    def __init__(
        self,
        run: Run,
        say: Callable[[str], None],
        meanwhile: Callable[[], None] = lambda: None,
    ):
        self.run, self.say, self.meanwhile = run, say, meanwhile
        self.failed = ""  # why the last write failed
        self._jobs: list[dict[str, Any]] = []
        self._written: list[dict[str, Any]] = []  # jobs whose copies are to be freed
        self._busy = False
        self._change = threading.Condition()
        self._start()

    def _start(self) -> None:
        """Begin the thread, which `close` ends."""
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="checkpoint writer", daemon=True)
        self._thread.start()

    def save(
        self, iteration: int, state: dict[str, Tensor], metadata: dict[str, str], **more: Any
    ) -> None:
        """Write a checkpoint, as `Checkpoints.save`; returns before it is written.

        Nobody may write to the tensors. `more` has the success, if the state was evaluated.
        """
        self._submit(iteration=iteration, read=snapshot(state), metadata=metadata, more=more)

    def hash(self, iteration: int, state: dict[str, Tensor]) -> None:
        """Append the hashes of a state to `hashes.jsonl`; returns before they are written."""
        self._submit(iteration=iteration, read=snapshot(state), metadata=None, more={})

    def wait(self) -> bool:
        """Wait until everything is written. Returns whether the last write worked."""
        with self._change:
            self._change.wait_for(lambda: not self._busy and not self._jobs)
            self._written.clear()
        return not self.failed

    def close(self) -> bool:
        """Wait as `wait` does, and end the thread. Returns whether the last write worked."""
        done = self.wait()
        with self._change:
            self._ends = True
            self._change.notify_all()
        self._thread.join()
        return done

    def _submit(self, **job: Any) -> None:
        if not self._thread.is_alive():  # a training that was left goes on
            self._start()
        with self._change:
            self._written.clear()
            # Why: docs/decisions/checkpoints.md
            if job["metadata"] is not None:  # it replaces those that wait and have no evaluation
                self._jobs = [
                    other
                    for other in self._jobs
                    if other["metadata"] is None or other["more"].get("success") is not None
                ]
            self._jobs.append(job)
            self._change.notify_all()

    def _work(self) -> None:
        due = 0.0
        while True:
            if time.monotonic() >= due:
                due = time.monotonic() + PERIOD
                with suppress(Exception):  # it must not end the only thread that writes
                    self.meanwhile()
            with self._change:
                self._change.wait_for(lambda: self._jobs or self._ends, due - time.monotonic())
                if not self._jobs:
                    if self._ends:
                        return
                    continue
                job, self._busy = self._jobs.pop(0), True
            try:
                self._write(**job)
                if self.failed and job["metadata"] is not None:
                    self.say(f"{self.run.path} can be written again")
                    self.failed = ""
            except Exception as error:  # an error must not end the only thread that writes
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                if not self.failed:
                    what = "training goes on, each save tries again"
                    self.say(f"{self.run.path} cannot be written ({reason}): {what}")
                self.failed = reason
            with self._change:
                self._written.append(job)
                del job
                self._busy = False
                self._change.notify_all()

    def _write(
        self,
        iteration: int,
        read: Callable[[], dict[str, Tensor]],
        metadata: dict[str, str] | None,
        more: dict,
    ) -> None:
        state = read()
        if metadata is None:
            # The row waits for the next one, and the failure of a checkpoint is said.
            with suppress(OSError):
                self.run.log({"iteration": iteration, "sha256": digests(state)}, "hashes.jsonl")
            return
        self.run.repair()
        self.run.checkpoints.save(iteration, state, metadata, **more)
