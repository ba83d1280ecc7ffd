"""Hostile files that nobody here chose: drawn from a seed, each with the command that reads it.

`Draw` spoils a run directory, a robot's model, an exported policy, a learned actuator or a log. A
command that reads the result may refuse it in one line, or work. It may not show a traceback, hang,
send control characters to the terminal, or touch what lies outside of the run.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
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
        kinds = (self.config, self.tree, self.yaml, self.checkpoint, self.rows, self.model)
        kinds += (self.onnx_bytes, self.onnx_graph, self.onnx_about, self.link, self.actuator)
        self.kinds: tuple[Callable[[Path], Attack], ...] = (*kinds, self.log)

    def attack(self, here: Path) -> Attack:
        """Spoil a copy of the prepared folder. `outside` lies beside it."""
        return self.pick.choice(self.kinds)(here)

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

    def config(self, here: Path) -> Attack:
        """Bytes of config.yaml."""
        return self.reader(f"config, {self.spoil(here / 'run' / 'config.yaml')}")

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
        """YAML that explodes, or that makes objects."""
        bomb = ["a0: &a0 [x, x]"]
        bomb += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
        touch = f'seed: !!python/object/apply:os.system ["touch {here.parent}/outside/made"]'
        texts = ["\n".join(bomb), touch, "seed: " + "1:" * 400_000 + "1", "task: " + "[" * 9000]
        texts += ["seed: 2020-13-45", "&a {a: *a}", "a: &a\n  b: *a", "? [a]\n: 1", "---\n---"]
        text = self.pick.choice(texts) + "\n"
        (here / "run" / "config.yaml").write_text(text)
        return self.reader("config, YAML")

    def checkpoint(self, here: Path) -> Attack:
        """A checkpoint, the last or another one, or the manifest."""
        files = sorted((here / "run" / "checkpoints").iterdir())
        return self.reader(f"checkpoint, {self.spoil(self.pick.choice(files))}")

    def rows(self, here: Path) -> Attack:
        """Rows of metrics or of hashes."""
        name = self.pick.choice(("metrics.jsonl", "hashes.jsonl", "versions.json", "eval.json"))
        return self.reader(f"{name}, {self.spoil(here / 'run' / name)}")

    def model(self, here: Path) -> Attack:
        """The copy of a robot's model."""
        file = here / "legs" / "model" / "robot" / "model.xml"
        if self.pick.random() < 0.3:
            return self.reader(f"model, {self.spoil(file)}", "legs")
        text, outside = file.read_text(), here.parent / "outside"
        path = self.pick.choice((f"{outside}/victim", "../../../../outside/victim", "/etc/passwd"))
        part = self.pick.choice(
            (
                f'<include file="{path}"/>',
                f'<asset><mesh name="m" file="{path}"/></asset>',
                f'<asset><hfield name="h" size="1 1 1 1" file="{path}"/></asset>',
                f'<asset><texture type="2d" name="t" file="{path}"/></asset>',
                f'<compiler meshdir="{outside}"/><asset><mesh name="m" file="victim.stl"/></asset>',
                f'<asset><model name="o" file="{path}"/></asset>',
                '<size memory="9999G"/>',
                '<option timestep="1e-300"/>',
                '<extension><plugin plugin="mujoco.sensor.touch_grid"/></extension>',
            )
        )
        text = text.replace("<worldbody>", f"{part}<worldbody>", 1)
        if self.pick.random() < 0.4:
            text = text.replace("<mujoco ", '<mujoco xmlns="x" ', 1)
        file.write_text(text)
        return self.reader("model, " + part.split()[0][1:], "legs")

    def player(self, kind: str) -> Attack:
        """A command that plays an exported policy."""
        return Attack(kind, "play.py", ("onnx=run/policy.onnx", "video=film.mp4", "seconds=0.1"))

    def onnx_bytes(self, here: Path) -> Attack:
        """Bytes of a policy."""
        return self.player(f"policy, {self.spoil(here / 'run' / 'policy.onnx')}")

    def onnx_graph(self, here: Path) -> Attack:
        """A policy's operators and weights."""
        import onnx

        file, pick = here / "run" / "policy.onnx", self.pick
        model = onnx.load(str(file))
        node, weights = pick.choice(model.graph.node), pick.choice(model.graph.initializer)
        how = pick.choice(("operator", "domain", "external", "weights", "shape", "input", "cycle"))
        if how == "operator":
            node.op_type = pick.choice(("Loop", "Scan", "If", "Xyz", "Sqrt", "Log", "Softmax"))
        elif how == "domain":
            node.domain = pick.choice(("com.microsoft", "x", "ai.onnx.ml"))
        elif how == "external":
            weights.data_location = onnx.TensorProto.EXTERNAL
            weights.ClearField("raw_data")
            where = f"{here.parent}/outside/victim"
            for key, value in (("location", where), ("offset", "0"), ("length", "4")):
                weights.external_data.add(key=key, value=value)
        elif how == "weights":
            weights.raw_data = pick.choice((b"\xff", b"\0", b"\x7f")) * len(weights.raw_data)
        elif how == "shape":
            weights.dims[:] = [pick.choice((0, -1, 2**40, 3))] * max(len(weights.dims), 1)
        elif how == "input":
            node.input[:] = [pick.choice(("nothing", node.output[0], ""))]
        else:
            node.output[:] = [model.graph.output[0].name]
        file.write_bytes(model.SerializeToString())
        return self.player(f"policy, {how}")

    def onnx_about(self, here: Path) -> Attack:
        """What a policy says of itself, and the model in it."""
        import onnx

        file, pick = here / "run" / "policy.onnx", self.pick
        model = onnx.load(str(file))
        entry = pick.choice([x for x in model.metadata_props if x.key in ("gpusim_rl", "mjcf")])
        outside = here.parent / "outside"
        if entry.key == "mjcf":
            old, new = pick.choice(
                (
                    ("<worldbody>", f'<include file="{outside}/victim"/><worldbody>'),
                    ("<worldbody>", f'<asset><mesh file="{outside}/v.stl"/></asset><worldbody>'),
                    ("timestep=", 'timestep="1e-9" x='),
                    ("<mujoco", '<mujoco xmlns="x"'),
                    ("<actuator>", '<actuator><motor joint="nothing"/>'),
                    ("</mujoco>", ""),
                )
            )
            entry.value = entry.value.replace(old, new, 1)
        else:
            about: Any = json.loads(entry.value)
            node = about
            while isinstance(node, dict | list) and node:
                key = pick.choice([*(node if isinstance(node, dict) else range(len(node)))])
                if not (isinstance(node[key], dict | list) and node[key]) or pick.random() < 0.2:
                    node[key] = pick.choice(VALUES)
                    break
                node = node[key]
            entry.value = json.dumps(about)
        file.write_bytes(model.SerializeToString())
        return self.player(f"policy, {entry.key}")

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

    def actuator(self, here: Path) -> Attack:
        """The file of a learned actuator."""
        data = bytearray(self.pick.randbytes(self.pick.choice((0, 7, 8, 900))))
        if self.pick.random() < 0.5:
            data[:8] = (self.pick.choice((2, 2**40, 10**6))).to_bytes(8, "little")
            data[8:] = b'{"0.w":{"dtype":"F32","shape":[9,9],"data_offsets":[0,324]}}' + data[8:]
        (here / "net").write_bytes(data)
        if data and self.pick.random() < 0.3:
            self.spoil(here / "net")
        words = ("robot.actuator.kind=net", "robot.actuator.file=net", "iterations=1", "log=none")
        return Attack("actuator", "train.py", ("task=quadruped", *TINY, *words))

    def log(self, here: Path) -> Attack:
        """The log that an actuator is fitted to."""
        columns = self.pick.sample(("time", "target", "position", "speed", "torque", "x"), 5)
        cells = ("0", "1", "-1e3", "nan", "1e400", "", "x", '"', "\x1b[2J", "٣")
        rows = [
            ",".join(self.pick.choices(cells, k=5)) for _ in range(self.pick.choice((0, 3, 99)))
        ]
        (here / "log.csv").write_text("\n".join([",".join(columns), *rows]))
        if self.pick.random() < 0.3:
            self.spoil(here / "log.csv")
        return Attack("log", "-m gpusim_rl identify actuator", ("log.csv", "out=fitted"))
