"""The command `gpusim-play`, which is play.py in a checkout.

Torch and MuJoCo are imported inside functions: mistakes in the command line are answered before.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from omegaconf import DictConfig

from gpusim_rl import new_task, player
from gpusim_rl.config import command_line, validate
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.paths import CONF, program
from gpusim_rl.viewer.film import film
from gpusim_rl.viewer.offscreen import has_display, load_backend
from gpusim_rl.viewer.picture import picture
from gpusim_rl.viewer.window import Choose, Command, Keys, Numbers, tour, view

MODES = ("auto", "viewer", "video", "evaluate", "export", "robot", "new-task")
EXPORTS = ("controller", "network")
FILMS = (".mp4", ".mov", ".mkv", ".avi")
REPLAY_SECONDS = 5  # of a video of repro=


def choose_mode(cfg: dict[str, Any]) -> str:
    """The mode, with `auto` resolved.

    ValueError if the keys do not fit together, OSError if a file cannot be written.
    """
    if cfg["mode"] not in MODES:
        raise ValueError(f"unknown mode {cfg['mode']!r}: choose one of {', '.join(MODES)}")
    check_source(cfg)
    mode = cfg["mode"]
    if cfg["repro"] and mode == "auto" and not cfg["video"] and not has_display():
        return "print"
    if mode == "auto":
        mode = "video" if cfg["video"] or not has_display() else "viewer"
    if mode == "viewer" and not has_display():
        raise ValueError("mode=viewer needs a display; use video=walk.mp4")
    check_values(cfg)
    if mode == "video":
        validate.writable("video", cfg["video"], FILMS)
    elif mode in ("evaluate", "export", "robot"):
        validate.writable("out", cfg["out"])
    if cfg["export"] not in EXPORTS:
        raise ValueError(f"export={cfg['export']!r}: choose one of {', '.join(EXPORTS)}")
    validate.writable("report", cfg["report"], (".png",))
    for key, only in (("report", "robot"), ("name", "new-task")):
        if mode != only and cfg[key] is not None:
            raise ValueError(f"{key}={cfg[key]} needs mode={only}")
    if mode == "robot" and cfg["robot"]["mjcf"] is None:
        raise ValueError("mode=robot needs robot.mjcf=<MJCF or URDF file>")
    if mode == "new-task":
        new_task.check_name(cfg["name"])
    return mode


def check_source(cfg: dict[str, Any]) -> None:
    """ValueError unless run=, onnx= and repro= fit together and to the mode."""
    only_runs = cfg["mode"] in ("evaluate", "export")
    if cfg["onnx"] and only_runs:
        raise ValueError(f"mode={cfg['mode']} needs run=, not onnx=")
    if cfg["repro"] and (cfg["run"] or cfg["onnx"] or only_runs):
        others = "run=, onnx=, mode=evaluate or mode=export"
        raise ValueError(f"repro= is shown by itself: not with {others}")


def check_values(cfg: dict[str, Any]) -> None:
    """ValueError if a path, a number or the command is of another kind."""
    for key in ("run", "checkpoint", "onnx", "repro", "video", "out", "report"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a path")
    if not isinstance(cfg["robot"]["mjcf"], str | None):
        raise ValueError(f"robot.mjcf={cfg['robot']['mjcf']!r}: expected a path")
    ranges.check(cfg, table=ranges.PLAY)
    validate.check_task_code(cfg)
    command = cfg["command"]
    numbers = isinstance(command, list) and all(type(x) in (int, float) for x in command)
    if command and not numbers:
        raise ValueError(f"command={command}: expected numbers, such as [0.5,0,0]")


def evaluate_run(cfg: dict[str, Any]) -> None:
    """mode=evaluate: print the scores, and write them to out=.

    The run's own eval.json stays as training wrote it.
    """
    with errors.one_line_errors():
        run = player.find_run(cfg)
        ppo, config = player.load_run(run, cfg)
    from gpusim_rl.core.files import write_whole
    from gpusim_rl.training.evaluation import evaluate

    scores = evaluate(
        ppo.policy,
        ppo.env.task,
        weights=config["task"]["weights"],
        noise=config["task"]["noise"],
        episodes=cfg["episodes"],
        progress=errors.warn,
    )
    text = json.dumps(scores, indent=2)
    print(text)
    if cfg["out"]:
        with errors.one_line_errors():
            write_whole(Path(cfg["out"]), (text + "\n").encode())


def export_run(cfg: dict[str, Any]) -> None:
    """mode=export: write the controller, or with export=network the network alone."""
    with errors.one_line_errors():
        run = player.find_run(cfg)
        ppo, config = player.load_run(run, cfg)
        path = Path(cfg["out"] or run.path / "policy.onnx")
        validate.writable("out", str(path))
        from gpusim_rl import exporter

        export = {"controller": exporter.export_policy, "network": exporter.export_bare_network}
        error = export[cfg["export"]](ppo, config, run.path, path)
    print(f"wrote {path}: within {error:.1e} of training")


def replay(cfg: dict[str, Any], mode: str) -> None:
    """repro=: print what went wrong, timestep by timestep; then show it ten times slower."""
    path = Path(cfg["repro"])
    with errors.one_line_errors():
        if mode == "video":
            load_backend()
        from gpusim_rl.tools.replay import Repro

        for line in Repro(path, cfg["task_code"]).steps():
            print(errors.printable(line))
        again = Repro(path, cfg["task_code"])
        if mode == "viewer":
            view(again.model, again.frames(), None)
        elif mode == "video":
            out = Path(cfg["video"] or path.with_suffix(".mp4"))
            film(again.model, again.frames(), out, min(cfg["seconds"], REPLAY_SECONDS))


def describe_robot(cfg: dict[str, Any]) -> None:
    """mode=robot: print what is given and guessed of a robot, as a file for conf/robot/."""
    with errors.one_line_errors():
        from gpusim_rl.robots.description import as_yaml, legs_of
        from gpusim_rl.robots.importer import load_robot

        values = dict(cfg["robot"])
        name, actuator = values.pop("name"), values.pop("actuator")
        name = Path(values["mjcf"].rpartition(":")[2]).stem if name == "own" else name
        loaded = load_robot(**values)
        print(text := as_yaml(loaded, values, name, actuator))
        if cfg["out"]:
            Path(cfg["out"]).write_text(f"{text}\n", encoding="utf-8")
        if cfg["report"]:
            picture(loaded.mjm, legs_of(loaded), Path(cfg["report"]))


def write_task(cfg: dict[str, Any]) -> None:
    """mode=new-task: write the files of a task, and print the commands that train and test it."""
    name = cfg["name"]
    files = new_task.render(name)
    with errors.one_line_errors():
        new_task.write_new(files, Path.cwd())
    for file in files:
        print(f"wrote {file}")
    print(f"train it: {program('train')} task={name}")
    print(f"test it: python -m pytest {[*files][-1]}")


def show(cfg: dict[str, Any], mode: str) -> None:
    """mode=viewer and mode=video."""
    with errors.one_line_errors():
        run = None if cfg["onnx"] else player.find_run(cfg)
    beside = run.path / "play.mp4" if run else Path(cfg["onnx"]).with_suffix(".mp4")
    out = Path(cfg["video"] or beside)
    if mode == "video":
        with errors.one_line_errors():
            validate.writable("video", str(out))
            load_backend()
    keys: list[Keys] = []
    choose = command_source(cfg, keys if mode == "viewer" else None)
    with errors.one_line_errors():
        if run:
            ppo, config = player.load_run(run, cfg)
            model, frames = player.play_run(ppo, config, cfg["seed"], choose)
        else:
            model, frames = player.play_onnx(Path(cfg["onnx"]), choose)
        if mode == "viewer":
            view(model, frames, keys[0].press if keys else None)
        else:
            film(model, frames, out, cfg["seconds"])
            print(f"wrote {out}")


def command_source(cfg: dict[str, Any], keys: list[Keys] | None) -> Choose:
    """Where commands come from: command=, the keyboard, or a tour.

    With a keyboard its `Keys` are appended to `keys`.
    """

    def choose(names: Sequence[str], low: Numbers, high: Numbers) -> Command:
        fixed = np.array(cfg["command"] or [], dtype=float)
        if len(fixed) not in (0, len(names)):
            expected = f"{len(names)} numbers: {', '.join(names)}"
            raise ValueError(f"command={cfg['command']}: this policy follows {expected}")
        if keys is not None:
            keys.append(Keys(low, high))
        if len(fixed):
            return lambda t: fixed
        return keys[0] if keys else tour(low, high, cfg["seconds"])

    return choose


def play(cfg: dict[str, Any]) -> None:
    """What a configuration asks for."""
    with errors.one_line_errors():
        mode = choose_mode(cfg)
    if cfg["repro"]:
        replay(cfg, mode)
    elif mode == "evaluate":
        evaluate_run(cfg)
    elif mode == "export":
        export_run(cfg)
    elif mode == "robot":
        describe_robot(cfg)
    elif mode == "new-task":
        write_task(cfg)
    else:
        show(cfg, mode)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="play")
def run(cfg: DictConfig) -> None:
    """`--help`, `--cfg` and `--info`, which Hydra answers before it would call this."""


def main() -> None:
    """Check the command line, then show, evaluate or export."""
    sys.argv[1:], cfg = command_line.check("play", sys.argv[1:])
    try:
        play(cfg) if cfg else run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
