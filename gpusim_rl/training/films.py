"""Films during a training: `film_every=` iterations apart, each by a process of lowest priority.

`python -m gpusim_rl.commands.film` is that process.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import IO, Any

from gpusim_rl.core.paths import quoted, search_path
from gpusim_rl.core.waiting import waiting

SECONDS = 5  # of a film
PATIENCE = 120.0  # s that the end of a training waits for the last film


# Why: docs/decisions/pictures.md
class Films:
    """Makes films of checkpoints: one at a time, and one more checkpoint may wait for its turn.

    An error of the disk or of a film's process costs this film and a line, never the training.
    Films go to the folder `films` of the run directory.

    Args:
        every: iterations between two; 0: no films; None: not in this process of several.
        code: words that play.py needs for the code of the run.
    """

    def __init__(self, path: Path, every: int | None, code: list[str], say: Callable[[str], None]):
        self.folder, self.every, self.say = path / "films", every, say
        self.words = [quoted("run", path), f"seconds={SECONDS}", *code]
        self.due: int | None = None  # an iteration whose checkpoint is not written yet
        self.pending: int | None = None  # one whose checkpoint is copied
        self.made = 0  # the one whose film is being made
        self.process: Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None  # what the process writes
        if every is not None:
            self.attempt(self.take_over)

    def take_over(self) -> None:
        """Find the films that were due when an earlier training of this run was killed."""
        copies = iterations(self.folder)
        self.pending = copies.pop() if copies and self.every else None
        for i in copies:
            self.lose(i, "its training was killed")
        last = max(iterations(self.folder.parent / "checkpoints"), default=0)
        if self.every and last and not last % self.every:
            made = (self.pending, *iterations(self.folder, "mp4"))
            self.due = None if last in made else last

    def attempt(self, step: Callable[..., None], *values: Any) -> None:
        """Do a step. If it fails, say so in a line, and go on."""
        try:
            step(*values)
        except OSError as error:
            self.say(f"a film is not made: {error}")

    def __call__(self, row: dict[str, float]) -> None:
        """Start what can be started, after each row of metrics; never wait."""
        for step in (self.go_on, self.copy_if_due, self.go_on):
            self.attempt(step)
        i = int(row["iteration"])
        if self.every and i % self.every == 0:
            if self.due not in (None, i):
                self.say(f"no film of iteration {self.due}: its checkpoint is not written in time")
            self.due = i  # this checkpoint is written after its row

    def go_on(self) -> None:
        """Take the film that has ended, and start the one that waits."""
        if self.process and self.process.poll() is not None:
            self.end()
        if self.pending and not self.process:
            i, self.pending = self.pending, None
            self.start(i)

    def copied(self, i: int) -> Path:
        """The copy of a checkpoint, which is there until its film is made."""
        return self.folder / f"{i:06d}.safetensors"

    def copy_if_due(self) -> None:
        """Copy a checkpoint that is due, since training removes its own."""
        checkpoint = self.folder.parent / "checkpoints" / f"{self.due or 0:06d}.safetensors"
        if not self.due or not checkpoint.exists():  # it is still being written
            return
        i, self.due = self.due, None
        self.folder.mkdir(exist_ok=True)
        try:
            shutil.copyfile(checkpoint, self.copied(i))
        except OSError:
            remove(self.copied(i))
            raise
        # the newest wins: a film is to show what is learned by now, and the last one the end
        if self.pending:
            self.lose(self.pending, f"that of {self.made} takes too long, and {i} is newer")
        self.pending = i

    def lose(self, i: int, why: str) -> None:
        """Say why a film is not made, and remove the copy of its checkpoint."""
        self.say(f"no film of iteration {i}: {why}")
        self.clear(i)

    def clear(self, i: int) -> None:
        """Remove the copy of a checkpoint, and what a process that was killed left of its film."""
        for file in (self.copied(i), *self.folder.glob(f".{i:06d}.mp4.*")):
            remove(file)

    def start(self, i: int, lowest: bool = True) -> None:
        """Start the film of a copied checkpoint, with the lowest priority."""
        self.made = i
        copy = self.copied(i)
        film = quoted("video", copy.with_suffix(".mp4"))
        words = [*self.words, quoted("checkpoint", copy), film]
        self.errors = tempfile.TemporaryFile()
        try:
            self.process = start_play(words, self.errors, lowest)
        except OSError:  # there is no memory for a process
            self.errors.close()
            remove(copy)
            raise

    def end(self) -> None:
        """Clear up after a process that has ended, and say why if it failed."""
        process, errors = self.process, self.errors
        assert process and errors
        self.process = self.errors = None
        with errors:
            why = last_line(errors)
        if code := process.returncode:
            why = "it takes too long" if code == -signal.SIGKILL else why
            self.say(f"no film of iteration {self.made}: {why or f'its process ended with {code}'}")
        self.clear(self.made)

    def interrupt(self) -> int:
        """End a film that is being made. Returns its iteration; 0 if there is none."""
        if self.process and self.process.poll() is not None:
            self.attempt(self.end)
        if not (self.process and self.errors):
            return 0
        self.process.kill()
        self.process.wait()
        self.errors.close()
        self.process = None
        return self.made

    def finish(self) -> None:
        """Make the films that are still to be made, and end one that takes too long.

        The training is over: so their priority is not lowered any more, and one that is being made
        begins again.
        """
        self.attempt(self.make, self.interrupt())
        for step in (lambda: None, self.copy_if_due):
            self.attempt(step)
            i, self.pending = self.pending, None
            self.attempt(self.make, i)

    def make(self, i: int | None) -> None:
        """Make the film of a copied checkpoint, if there is one, and wait for it."""
        if not i:
            return
        self.start(i, lowest=False)
        assert self.process
        with waiting(f"filming iteration {i}", self.say):
            try:
                self.process.wait(PATIENCE)
            except TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.end()

    def stop(self) -> None:
        """End a film that is being made, and make no other; a line names each that is lost."""
        lost = filter(None, (self.interrupt(), self.pending, self.due))
        self.due = self.pending = None
        for i in lost:
            self.attempt(self.lose, i, "the training has ended before")


def start_play(words: list[str], errors: IO[bytes], lowest: bool) -> Popen[bytes]:
    """Start play.py in a process that ends with this one, on one core and without a GPU.

    `errors` takes its stderr. With `lowest` it takes only time that nothing else wants. OSError if
    there is no memory for a process.
    """
    env = {"PYTHONPATH": search_path(), "LP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # -P: no module comes from the working directory
    line = [sys.executable, "-P", "-m", "gpusim_rl.commands.film", str(os.getpid()), str(lowest)]
    env = os.environ | env
    return Popen([*line, *words], env=env, stdin=DEVNULL, stdout=DEVNULL, stderr=errors)


def last_line(errors: IO[bytes]) -> str:
    """The last line that a process wrote to a file, without the word `error`."""
    errors.seek(0)
    text = errors.read().decode(errors="replace").strip()
    return text.rpartition("\n")[2].removeprefix("error: ")


def iterations(folder: Path, suffix: str = "safetensors") -> list[int]:
    """The iterations of a folder's files that are named after one, the newest last."""
    return sorted(int(x.stem) for x in folder.glob(f"*.{suffix}") if x.stem.isdecimal())


def remove(file: Path) -> None:
    if file.is_file():
        file.unlink()
