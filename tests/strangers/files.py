"""Hostile files that nobody here chose: drawn from a seed, each with the command that reads it.

`Draw` spoils a run directory, a robot's model or an exported policy. A command that reads the
result may refuse it in one line, or work. It may not show a traceback, hang, send control
characters to the terminal, or touch what lies outside of the run.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.command_lines import EXPORTED, TINY, succeed
from tests.strangers.robots import Shape, mjcf

GIANT = 40 << 30  # bytes of a file with nothing in it
VALUES = (
    *(None, True, 0, -1, 1e-300, 1e300, 2**70, float("nan"), float("inf"), "", "x", "\x1b[2J"),
    *([], {}, [[]], [1, "x"], {"a": 1}, "../../outside/victim", "/etc/passwd", "a\0b", "=", "1:1"),
)
EVALUATE, EXPORT = ("mode=evaluate", "episodes=2"), ("mode=export", "out=again.onnx")
FILM = ("mode=video", "seconds=1")
WRITTEN = {  # files that a command makes, perhaps as a part at first → its words
    **dict.fromkeys(("play.mp4", ".play.part.mp4"), ("run=run", *FILM)),
    **dict.fromkeys(("policy.mp4", ".policy.part.mp4"), ("onnx=run/policy.onnx", *FILM)),
    **dict.fromkeys(("policy.onnx", ".policy.onnx.part"), ("run=run", "mode=export")),
}
RESUME = ("iterations=3", "log=none", "export=none")
PLAYED = ("onnx=run/policy.onnx", "video=film.mp4", "seconds=0.1")
POLICY = "policy.onnx"
FILES = (  # of which bytes change: (run, pattern)
    *(("run", "config.yaml"), ("run", "checkpoints/*"), ("run", "*.json*"), ("run", POLICY)),
    ("legs", "model/robot/model.xml"),
)


class Attack(NamedTuple):
    """A command, and what was done to the files that it reads."""

    kind: str
    script: str
    words: tuple[str, ...]


def prepare(folder: Path) -> Path:
    """A folder with `run`, of the cartpole with its policy.onnx, and `legs`, of a robot's file."""
    base = folder / "base"
    base.mkdir()
    words = (*TINY, "iterations=2", "save_every=1", "log=none")
    succeed("train.py", "task=cartpole", *words, EXPORTED, "run_dir=run", cwd=base)
    (base / "robot.xml").write_text(mjcf(Shape(random.Random(5))))
    legs = ("task=quadruped", "robot.mjcf=robot.xml", "algo.symmetry=none", "run_dir=legs")
    succeed("train.py", *words, *legs, cwd=base)
    return base


class Draw:
    """Draws attacks.

    Args:
        seed: of all choices.
    """

    def __init__(self, seed: int):
        self.pick = random.Random(seed)

    def attack(self, number: int, here: Path) -> Attack:
        """Spoil a copy of the prepared folder, each kind in turn. `outside` lies beside it."""
        kinds = (self.link, self.model, self.yaml, self.tree, self.file)
        return kinds[number % len(kinds)](here)

    def reader(self, kind: str, run: str = "run") -> Attack:
        """A command that reads a run."""
        how = self.pick.choice((EVALUATE, EXPORT, RESUME))
        if how is RESUME:
            return Attack(kind, "train.py", (f"resume={run}", *how))
        return Attack(kind, "play.py", (f"run={run}", *how))

    def spoil(self, path: Path) -> str:
        """Cut a file, change some of its bytes, or put something else in its place."""
        pick, data = self.pick, bytearray(path.read_bytes())
        how = pick.choice(("cut", "flip", "flip", "insert", "pipe", "giant", "folder", "device"))
        if how == "cut":
            data = data[: pick.randrange(len(data) + 1)]
        for _ in range(pick.choice((1, 4, 64)) if how == "flip" else 0):
            data[pick.randrange(len(data))] = pick.randrange(256)
        if how == "insert":
            at = pick.randrange(len(data))
            data[at:at] = pick.choice((b"\0" * 9, b"\x1b[2J\x1b]0;x\a", b"{" * 5000, b"\xff\xfe"))
        if how in ("pipe", "giant", "folder", "device"):
            path.unlink()
        if how == "pipe":
            os.mkfifo(path)
        elif how == "giant":
            with path.open("wb") as file:
                file.truncate(GIANT)
        elif how == "folder":
            path.mkdir()
        elif how == "device":
            path.symlink_to("/dev/zero")
        else:
            path.write_bytes(data)
        return how

    def file(self, here: Path) -> Attack:
        """Bytes of a file of a run."""
        run, pattern = self.pick.choice(FILES)
        file = self.pick.choice(sorted((here / run).glob(pattern)))
        kind = f"{file.name}, {self.spoil(file)}"
        return Attack(kind, "play.py", PLAYED) if pattern == POLICY else self.reader(kind, run)

    def tree(self, here: Path) -> Attack:
        """Values of config.yaml, and keys that it lacks."""
        run = self.pick.choice(("run", "legs"))
        file = here / run / "config.yaml"
        tree: dict[str, Any] = yaml.safe_load(file.read_text())
        for _ in range(self.pick.choice((1, 1, 3))):
            node: Any = tree
            while True:
                key = self.pick.choice([*node])
                if not (isinstance(node[key], dict) and node[key]) or self.pick.random() < 0.1:
                    break
                node = node[key]
            node[key] = self.pick.choice(VALUES)
            if self.pick.random() < 0.2:
                del node[key]
        file.write_text(yaml.safe_dump(tree))
        return self.reader("config, values", run)

    def yaml(self, here: Path) -> Attack:
        """YAML that holds itself, is no mapping of names, or has two documents."""
        text = self.pick.choice(("&a {a: *a}", "a: &a\n  b: *a", "? [a]\n: 1", "---\n---"))
        (here / "run" / "config.yaml").write_text(text + "\n")
        return self.reader("config, YAML")

    def model(self, here: Path) -> Attack:
        """A part of a robot's model that no robot has."""
        file, outside = here / "legs" / "model" / "robot" / "model.xml", here.parent / "outside"
        part = self.pick.choice(
            (
                f'<asset><hfield name="h" size="1 1 1 1" file="{outside}/victim"/></asset>',
                f'<asset><mesh name="m" file="{outside}/victim.stl"/></asset>',
                f'<include file="{outside}/victim"/>',
                '<size memory="9999G"/>',
                '<option timestep="1e-300"/>',
                '<extension><plugin plugin="mujoco.sensor.touch_grid"/></extension>',
            )
        )
        file.write_text(file.read_text().replace("<worldbody>", f"{part}<worldbody>", 1))
        return self.reader("model, " + part.split()[0][1:], "legs")

    def link(self, here: Path) -> Attack:
        """A link out of the run, in place of one of its files or of one that will be written."""
        outside, run = here.parent / "outside", here / "run"
        inside = [str(path.relative_to(run)) for path in run.rglob("*")]
        name = self.pick.choice([*inside, *WRITTEN])
        if (run / name).is_dir():
            shutil.rmtree(run / name)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside if self.pick.random() < 0.3 else outside / "victim")
        if self.pick.random() < 0.3:
            words = ("task=cartpole", *TINY, *RESUME, "auto_resume=true", "run_dir=run")
            return Attack("link", "train.py", words)
        if name in WRITTEN:
            return Attack("link, new", "play.py", WRITTEN[name])
        return self.reader("link")
