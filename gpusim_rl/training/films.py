"""Films during a training: `film_every=` iterations apart, each by a process of lowest priority.

`python -m gpusim_rl.commands.film` is that process.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from gpusim_rl.core.paths import PACKAGE, quoted
from gpusim_rl.core.waiting import waiting

SECONDS = 5  # of a film
PATIENCE = 120.0  # s that the end of a training waits for the last film


# Why: docs/decisions/0053-films-never-wait.md
class Films:
    """Makes films of checkpoints, one at a time. During training only the newest waits for one.

    Args:
        path: the run directory; films go to its folder `films`.
        every: iterations between two; None: no films.
        task_code: as in the configuration.
        say: takes a line about a film that fails or is left out.
    """

    def __init__(
        self, path: Path, every: int | None, task_code: str | None, say: Callable[[str], None]
    ):
        self.folder, self.every, self.say = path / "films", every, say
        self.words = [quoted("run", path), f"seconds={SECONDS}"]
        self.words += [f"task_code={task_code}"] if task_code else []
        self.due: int | None = None  # an iteration whose checkpoint is not written yet
        self.queue: list[int] = []  # those whose checkpoints are copied
        self.made = 0  # the one whose film is being made
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None  # what the process writes
        for copy in self.folder.glob("*.safetensors"):  # of a training that was killed
            copy.unlink(missing_ok=True)

    def __call__(self, row: dict[str, float]) -> None:
        """To be called with each row of metrics: it starts what can be started, and never waits."""
        i = int(row["iteration"])
        self.go_on()
        if self.copy_if_due() and len(self.queue) > 1:
            late = self.queue.pop(0)
            self.say(f"no film of iteration {late}: that of {self.made} takes too long")
            self.copied(late).unlink(missing_ok=True)
        if self.every and i % self.every == 0:
            if self.due not in (None, i):
                self.say(f"no film of iteration {self.due}: its checkpoint is not written in time")
            self.due = i  # this checkpoint is written after its row
        self.go_on()

    def go_on(self) -> None:
        """Take the film that has ended, and start the next one."""
        if self.process and self.process.poll() is not None:
            self.end()
        if self.queue and not self.process:
            self.start(self.queue.pop(0))

    def copied(self, i: int) -> Path:
        """The copy of a checkpoint, which is there until its film is made."""
        return self.folder / f"{i:06d}.safetensors"

    def copy_if_due(self) -> bool:
        """Copy a checkpoint that is due, since training removes its own. Returns whether it did."""
        if (i := self.due) is None:
            return False
        checkpoint = self.folder.parent / "checkpoints" / f"{i:06d}.safetensors"
        if not checkpoint.exists():  # it is still being written
            return False
        self.due = None
        try:
            self.folder.mkdir(exist_ok=True)
            shutil.copyfile(checkpoint, self.copied(i))
        except OSError as error:
            self.say(f"no film of iteration {i}: {self.folder} cannot be written: {error}")
            self.copied(i).unlink(missing_ok=True)
            return False
        self.queue.append(i)
        return True

    def start(self, i: int, lowest: bool = True) -> None:
        """Start the film of a copied checkpoint, with the lowest priority."""
        self.made, self.errors = i, tempfile.TemporaryFile()
        copy = self.copied(i)
        film = quoted("video", copy.with_suffix(".mp4"))
        words = [*self.words, quoted("checkpoint", copy), film]
        before = os.environ.get("PYTHONPATH")
        paths = os.pathsep.join([str(PACKAGE.parent), *filter(None, [before])])
        own = {"PYTHONPATH": paths, "LP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        # -P: no module comes from the working directory
        line = [sys.executable, "-P", "-m", "gpusim_rl.commands.film"]
        line += [str(os.getpid()), str(lowest)]
        self.process = subprocess.Popen(
            [*line, *words],
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
        )

    def end(self) -> None:
        """Clear up after a process that has ended, and say why if it failed."""
        process, errors = self.process, self.errors
        assert process and errors
        self.process = self.errors = None
        with errors:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
        self.copied(self.made).unlink(missing_ok=True)
        for part in self.folder.glob(f".{self.made:06d}.mp4.*"):  # of a process that was killed
            part.unlink(missing_ok=True)
        if process.returncode:
            why = lines[-1] if lines else f"its process ended with {process.returncode}"
            why = "it takes too long" if process.returncode == -signal.SIGKILL else why
            self.say(f"no film of iteration {self.made}: {why.removeprefix('error: ')}")

    def finish(self) -> None:
        """Make the films that are still to be made, and end one that takes too long.

        The training is over: so their priority is not lowered any more, and one that is being made
        begins again.
        """
        self.copy_if_due()
        if self.process and self.process.poll() is not None:
            self.end()
        if self.process and self.errors:
            self.process.kill()
            self.process.wait()
            self.errors.close()
            self.queue.insert(0, self.made)
        for i in self.queue:
            self.start(i, lowest=False)
            assert self.process
            with waiting(f"filming iteration {self.made}", self.say):
                try:
                    self.process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self.end()
        self.queue.clear()

    def stop(self) -> None:
        """End a film that is being made, and make no other."""
        while self.queue:
            self.copied(self.queue.pop()).unlink(missing_ok=True)
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.returncode = 0  # it did not fail
            self.end()
