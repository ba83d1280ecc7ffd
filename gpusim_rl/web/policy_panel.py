"""One policy of the web page: where it comes from, its part of the controls, and its plots."""

from pathlib import Path
from typing import Any

import numpy as np

from gpusim_rl.core import errors
from gpusim_rl.core.free_bodies import free_base
from gpusim_rl.play import player
from gpusim_rl.play.rollouts import Rollout, RunRollout
from gpusim_rl.web.controls import LONGEST, Plot, short
from gpusim_rl.web.scene import Scene

RUNS = 50  # runs to choose from
LAST = "last"  # checkpoint
NOTE = 400  # characters
BASE = "pose: m, then w x y z; of a robot that is fixed, its first joints"
PERIOD = 0.1  # s between two points of a plot
TRACKED = ("error", "distance", "angle")  # in names of measures that tell how a command is followed


class PolicyPanel:
    """A policy of a run or a file, with its scene and its controls.

    Args:
        word: a run directory or an .onnx file.
        cfg: of play.py.
        server: a viser.ViserServer.
        name: of its part of the page, such as `a`.

    Raises ValueError or OSError, in one line, if it cannot be shown.
    """

    def __init__(self, word: str, cfg: dict[str, Any], server: Any, name: str):
        self.cfg, self.server, self.name, self.place = cfg, server, name, np.zeros(2)
        self.word = word
        self.run, self.ppo, self.rollout = self.load(word)
        self.acting = self.first_checkpoint(cfg["checkpoint"])
        self.cfg = cfg | {"checkpoint": None}  # it is of the first run alone
        self.scene = self.make_scene(self.rollout, word)
        self.begin()

    def load(self, word: str) -> tuple[Any, Any, Rollout]:
        """The run and the PPO of a policy, None for one of a file, and the worlds it acts in."""
        if player.is_file(word):
            return None, None, player.file_rollout(Path(word))
        run = player.find_run({"run": word})
        ppo, config = player.load_run(run, self.cfg)
        return run, ppo, player.run_rollout(run, ppo, config, self.cfg)

    def open(self, word: str) -> None:
        """Take another policy. ValueError or OSError, and nothing changes, if it cannot be."""
        run, ppo, rollout = self.load(word)
        self.scene.remove()  # the new one has the same names
        try:
            self.scene = self.make_scene(rollout, word)
        except ValueError:
            self.scene = self.make_scene(self.rollout, self.word)
            raise
        self.word, self.run, self.ppo, self.rollout = word, run, ppo, rollout
        self.acting = LAST
        for plot in self.plots:  # of the policy before
            plot.clear()
        self.begin()

    def make_scene(self, rollout: Rollout, word: str) -> Scene:
        """The worlds on the page, on the first policy's ground. ValueError if they cannot be."""
        root, ground = f"/{self.name}", self.name == "a"
        try:
            return Scene(self.server, root, rollout, self.place, ground)
        except ValueError as error:  # a shape that mjviser does not draw
            raise ValueError(f"{word}: {error}") from None

    def begin(self) -> None:
        """Set the time to zero."""
        self.time, self.count = 0.0, 0

    def move(self, place: np.ndarray) -> None:
        """Show the worlds at another place (2,) [m]."""
        self.place = place
        self.scene.remove()
        self.scene = self.make_scene(self.rollout, self.word)

    def load_checkpoint(self, name: str) -> None:
        """Let the policy of another checkpoint act; the robots stay as they are."""
        if self.run and self.ppo and isinstance(self.rollout, RunRollout):
            player.load_checkpoint(self.run, self.ppo, None if name == LAST else name)
            self.rollout.set_policy(self.ppo.policy)
        self.acting = name

    def first_checkpoint(self, path: str | None) -> str:
        """The page's name of checkpoint= of the command line, short if it is of the run."""
        if not path or not self.run:
            return LAST
        inside = Path(path).resolve().parent == self.run.checkpoints.path.resolve()
        return Path(path).stem if inside else tail(path)

    def checkpoints(self) -> tuple[str, ...]:
        """Names of the run's checkpoints, the newest first."""
        saved = self.run.checkpoints.saved() if self.run else []
        return (LAST, *(path.stem for path in reversed(saved)))

    def add_controls(self, title: str, choices: list[str]) -> None:
        """Add the choice of a run and a checkpoint, the pose of the robot, and plots."""
        gui, self.words = self.server.gui, labelled(choices)
        with gui.add_folder(title) as self.folder:
            self.pick = gui.add_dropdown("run", tuple(self.words), initial_value=self.label)
            self.iteration = gui.add_dropdown(
                "checkpoint", self.offers(), initial_value=self.acting
            )
            self.note = gui.add_text("note", "", disabled=True, multiline=True)
            self.base = gui.add_text("base", "", disabled=True, hint=BASE)
            self.plots = (Plot(gui, "reward [1/s]"), Plot(gui, "measures"))

    @property
    def label(self) -> str:
        """The page's name of this run or file."""
        return next(label for label, word in self.words.items() if word == self.word)

    def offers(self, *chosen: str) -> tuple[str, ...]:
        """Checkpoints to choose from: also those that act or are chosen, if they were removed."""
        return tuple(dict.fromkeys((*self.checkpoints(), self.acting, *chosen)))

    def look_for_checkpoints(self) -> None:
        """Offer the checkpoints that a training has written meanwhile."""
        names = self.offers(self.iteration.value)
        if names != self.iteration.options:
            self.iteration.options = names

    def show_checkpoint(self) -> None:
        """Name the checkpoint that acts."""
        self.look_for_checkpoints()
        self.iteration.value = self.acting

    def step(self, command: np.ndarray | None) -> None:
        """One control step; what is plotted is read ten times a second."""
        watched = self.count % max(1, round(PERIOD / self.rollout.dt)) == 0
        self.rollout.step(command, watched)
        self.time, self.count = self.time + self.rollout.dt, self.count + 1
        if watched:
            self.plots[0].add(self.time, self.rollout.terms)
            self.plots[1].add(self.time, tracked(self.rollout.measures))

    def show_numbers(self, world: int) -> None:
        """Write the pose of a robot, and draw the plots."""
        base, qpos = free_base(self.rollout.model), self.rollout.qpos()
        pose = qpos[min(world, self.rollout.worlds - 1)][base.qpos if base else slice(0)]
        self.base.value = " ".join(f"{x:.7f}" for x in pose)
        with self.folder:
            for plot in self.plots:
                plot.draw()

    def say(self, text: str) -> None:
        """Write a note on the page and in the terminal."""
        self.note.value = short(text, NOTE)
        errors.warn(text)


def tail(word: str) -> str:
    """The end of a path, as the page shows it."""
    return short(word if len(word) < LONGEST else f"…{word[1 - LONGEST :]}")


def labelled(words: list[str]) -> dict[str, str]:
    """Words by what the page calls them, which has a number where two have the same end."""
    names: dict[str, str] = {}
    for word in words:
        name, count = tail(word), 2
        while name in names:
            name, count = f"{tail(word)} ({count})", count + 1
        names[name] = word
    return names


def tracked(measures: dict[str, float]) -> dict[str, float]:
    """The measures that tell how well a command is followed; the first six, if none does."""
    names = [name for name in measures if any(word in name for word in TRACKED)]
    return {name: measures[name] for name in names or [*measures][:6]}


def run_choices(words: list[str]) -> list[str]:
    """These runs and files, then the newest runs beside them and under runs/."""
    roots = {Path("runs"), *(Path(word).parent for word in words if not player.is_file(word))}
    runs = {
        folder.parent.resolve(): folder.parent
        for root in sorted(roots)
        for depth in ("*/checkpoints", "*/*/checkpoints", "multirun/*/*/checkpoints")
        for folder in root.glob(depth)
        if (folder.parent / "config.yaml").is_file() and not folder.is_symlink()
    }
    for word in words:
        runs.pop(Path(word).resolve(), None)
    newest = sorted(runs.values(), key=lambda path: -(path / "checkpoints").stat().st_mtime)
    return [*dict.fromkeys(words), *map(str, newest[:RUNS])]
