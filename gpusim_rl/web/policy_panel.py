"""One policy of the web page: where it comes from, its part of the controls, and its plots."""

from pathlib import Path
from typing import Any

import numpy as np
import viser

from gpusim_rl.algorithms.iteration import Player
from gpusim_rl.core import errors
from gpusim_rl.core.metrics import tracks
from gpusim_rl.core.paths import quoted
from gpusim_rl.deploy import exported
from gpusim_rl.play import player
from gpusim_rl.play.rollouts import FileRollout, Rollout, RunRollout
from gpusim_rl.robots.free_bodies import free_base
from gpusim_rl.runs.run import Run, find_run
from gpusim_rl.web.controls import LAST as LOWEST
from gpusim_rl.web.controls import LONGEST_NAME, Plot, short
from gpusim_rl.web.scene import Scene
from gpusim_rl.web.share import FILM, ONNX, Send, Share, file_name

RUNS = 50  # runs to choose from
LAST = "last"  # checkpoint
NOTE = 400  # characters
BASE = "pose: m, then w x y z; of a robot that is fixed, its first joints"
SHARE = "a film of ten seconds, or the exported policy; the browser saves it"
PERIOD = 0.1  # s between two points of a plot
COMMANDS = 6  # numbers of a command that have a plot


class PolicyPanel:
    """A policy of a run or a file, with its scene and its controls; ValueError or OSError.

    word: a run directory or an .onnx file. name: of its part of the page, such as `a`.
    """

    def __init__(self, word: str, cfg: dict[str, Any], server: viser.ViserServer, name: str):
        self.cfg, self.server, self.name, self.word = cfg, server, name, word
        self.run, self.trained, self.rollout = self.load(word)
        self.acting = self.first_checkpoint(cfg["checkpoint"])
        self.cfg = cfg | {"checkpoint": None}  # it is of the first run alone
        self.scene = self.make_scene(self.rollout, word)
        self.begin()

    def load(self, word: str) -> tuple[Run | None, Player | None, Rollout]:
        """The run and the PPO of a policy, None for one of a file, and the worlds it acts in."""
        if exported.is_file(word):
            return None, None, FileRollout(Path(word))
        run = find_run({"run": word})
        trained, config = player.load_run(run, self.cfg)
        return run, trained, player.run_rollout(run, trained, config, self.cfg)

    def open(self, word: str) -> None:
        """Take another policy. ValueError or OSError, and nothing changes, if it cannot be."""
        run, trained, rollout = self.load(word)
        self.scene.remove()  # the new one has the same names
        try:
            self.scene = self.make_scene(rollout, word)
        except ValueError:
            self.scene = self.make_scene(self.rollout, self.word)
            raise
        self.word, self.run, self.trained, self.rollout = word, run, trained, rollout
        self.acting = LAST
        for plot in (*self.plots, *self.answers):  # of the policy before
            plot.clear()
        self.answers = self.plots_of_command()
        self.begin()

    def make_scene(self, rollout: Rollout, word: str) -> Scene:
        """The worlds on the page, on the first policy's ground. ValueError if they cannot be."""
        root, ground = f"/{self.name}", self.name == "a"
        try:
            return Scene(self.server, root, rollout, ground)
        except ValueError as error:  # a shape that mjviser does not draw
            raise ValueError(f"{word}: {error}") from None

    def begin(self) -> None:
        """Set the time to zero."""
        self.time, self.count = 0.0, 0
        self.gains: set[str] = set()  # reward terms that have been above 0

    def load_checkpoint(self, name: str) -> None:
        """Let the policy of another checkpoint act; the robots stay as they are."""
        if self.run and self.trained and isinstance(self.rollout, RunRollout):
            player.load_checkpoint(self.run, self.trained, None if name == LAST else name)
            self.rollout.set_policy(self.trained.policy)
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
            self.share = gui.add_button_group("share", (FILM, ONNX), hint=SHARE)
            self.note = gui.add_text("note", "", disabled=True, multiline=True, visible=False)
            self.base = gui.add_text("base", "", disabled=True, hint=BASE, order=LOWEST)
            self.answers = self.plots_of_command()
            titles = ("reward terms above 0 [1/s]", "reward terms below 0 [1/s]", "measures")
            self.plots = tuple(Plot(gui, title) for title in titles)
        self.files = Share(self.tell)

    def plots_of_command(self) -> list[Plot]:
        """A plot for each number of the command, of what is asked and what is measured."""
        description = self.rollout.description
        pairs = zip(description.get("names", ()), description.get("units", ()), strict=False)
        titles = [f"{name} [{unit}]" for name, unit in pairs]
        return [Plot(self.server.gui, title, height=130) for title in titles[:COMMANDS]]

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
        if not watched:
            return
        rows = *signed(self.rollout.terms, self.gains), tracked(self.rollout.measures)
        for plot, values in zip(self.plots, rows, strict=True):
            plot.add(self.time, values)
        followed = self.rollout.followed
        if command is not None and followed is not None:
            for plot, asked, measured in zip(self.answers, command, followed, strict=False):
                plot.add(self.time, {"asked": float(asked), "measured": float(measured)})

    def show_numbers(self, world: int) -> None:
        """Write the pose of a robot, and draw the plots."""
        base, poses = free_base(self.rollout.model), self.rollout.pose()
        pose = poses[min(world, self.rollout.worlds - 1)][base.qpos if base else slice(0)]
        self.base.value = " ".join(f"{x:.3f}" for x in pose)
        with self.folder:
            for plot in (*self.answers, *self.plots):
                plot.draw()

    def share_file(self, kind: str, send: Send, command: np.ndarray | None) -> None:
        """Send a FILM, of a command (n,) or a tour, or the policy as ONNX to a page."""
        name = file_name(self.label)
        try:
            ready = self.exported() if self.acting == LAST else None
            if kind == ONNX and ready:
                return self.files.send_file(ready, f"{name}.onnx", send)
            self.files.make(self.words_of_play(command if kind == FILM else None), kind, name, send)
        except (OSError, ValueError) as error:
            self.say(str(error))

    def exported(self) -> Path | None:
        """The file of the last policy; None if there is none, or its training went on since."""
        if not self.run:
            return Path(self.word)
        file, saved = self.run.path / "policy.onnx", self.run.checkpoints.path.glob("*.safetensors")
        newest = max((x.stat().st_mtime for x in saved), default=0.0)
        return file if file.is_file() and file.stat().st_mtime >= newest else None

    def words_of_play(self, command: np.ndarray | None) -> list[str]:
        """The words with which play.py shows what acts here, at a command (n,), or on a tour."""
        words = [f"seed={self.cfg['seed']}"]
        if command is not None:
            words += [f"command=[{','.join(f'{x:.6g}' for x in command)}]"]
        if not self.run:
            return [*words, quoted("onnx", Path(self.word))]
        words += [quoted("run", self.run.path)]
        words += ["task_code=here"] if self.cfg["task_code"] else []
        if self.acting != LAST:
            file = self.run.checkpoints.path / f"{self.acting}.safetensors"
            words += [quoted("checkpoint", file)]
        return words

    def tell(self, text: str) -> None:
        """Write a note on the page; it is hidden while there is none."""
        self.note.value, self.note.visible = short(text, NOTE), bool(text)

    def say(self, text: str) -> None:
        """Write a note on the page and in the terminal."""
        self.tell(text)
        errors.warn(text)


def tail(word: str) -> str:
    """The name of a run or a file: what stands below `runs` in its path, else its last part.

    Of a file in a run, that of the run comes first. A long name has its end.
    """
    parts = Path(word).absolute().parts
    below = parts[len(parts) - parts[::-1].index("runs") :] if "runs" in parts else ()
    name = "/".join(below or parts[-2 if Path(word).suffix == ".onnx" else -1 :])
    return short(name if len(name) < LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}")


def labelled(words: list[str]) -> dict[str, str]:
    """Words by what the page calls them, which has a number where two have the same name."""
    names: dict[str, str] = {}
    for word in words:
        name, count = tail(word), 2
        while name in names:
            name, count = f"{tail(word)} ({count})", count + 1
        names[name] = word
    return names


def signed(terms: dict[str, float], gains: set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Reward terms that have been above 0, whose names are kept in `gains`, and the others."""
    gains |= {name for name, value in terms.items() if value > 0}
    above = {name: value for name, value in terms.items() if name in gains}
    return above, {name: value for name, value in terms.items() if name not in gains}


def tracked(measures: dict[str, float]) -> dict[str, float]:
    """The measures that tell how well a command is followed; the first six, if none does."""
    names = [*filter(tracks, measures)]
    return {name: measures[name] for name in names or [*measures][:6]}


def run_choices(words: list[str]) -> list[str]:
    """These runs and files, then the newest runs beside them and under runs/."""
    roots = {Path("runs"), *(Path(word).parent for word in words if not exported.is_file(word))}
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
