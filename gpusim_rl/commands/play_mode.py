"""The mode of `play.py`, and checks that its keys fit together."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpusim_rl.commands import new_task
from gpusim_rl.config import compose, validate
from gpusim_rl.config.check_words import check_task_code
from gpusim_rl.core import ranges
from gpusim_rl.core.paths import PACKAGE, install
from gpusim_rl.gate import settings as gate_settings
from gpusim_rl.serve import settings as serve_settings
from gpusim_rl.viewer.offscreen import has_display
from gpusim_rl.viewer.target import is_number
from gpusim_rl.web import requirements

MODES = (
    *("auto", "viewer", "video", "evaluate", "grid", "export", "record", "gate", "robot"),
    "ab",
    "new-task",
    "check",
    "web",
    "serve",
    "log",
    "triton",
)
DEMO = PACKAGE / "demo" / "quadruped.onnx"  # its folder says how it was made
EXPORTS = ("controller", "network")
FILMS = (".mp4", ".mov", ".mkv", ".avi", ".gif")
OUTPUTS = {  # mode → how the name of its out= may end
    "evaluate": (".json",),
    "grid": (".json",),
    "export": (".onnx",),
    "record": (".safetensors",),
    "gate": (".json",),
    "ab": (".json",),
    "robot": (".yaml",),
    "log": (".json",),
    "triton": (),  # a directory
}
ONLY = {  # modes that a key is for
    "report": ("robot", "grid", "log"),
    "name": ("new-task",),
    "worlds": ("video", "web"),
    "size": ("video", "log"),
    "camera": ("video", "log"),
    "variants": ("gate",),
    "judged": ("gate",),
    "kind": ("video", "viewer", "web"),
    "level": ("video", "viewer", "web"),
    "compare": ("web",),
    "port": ("web", "serve"),
    "registry": ("serve",),
    "alias": ("serve",),
    "out": tuple(OUTPUTS),
    "video": ("video", "log"),
    "mcap": ("log",),
    "alarm": ("log",),
}
OF_RUNS = ("evaluate", "grid", "export")  # modes that show no file


def choose_mode(cfg: dict[str, Any]) -> str:
    """The mode, with `auto` resolved.

    ValueError if the keys do not fit together, OSError if a file is missing or cannot be written.
    """
    if cfg["mode"] not in MODES:
        raise ValueError(f"unknown mode {cfg['mode']!r}: choose one of {', '.join(MODES)}")
    check_source(cfg)
    mode = resolve_auto(cfg)
    if mode == "check":
        raise ValueError("mode=check is said by itself, with the words of a training: task=NAME")
    if mode == "print":
        return mode
    check_values(cfg)
    check_keys(cfg, mode)
    if mode == "robot" and cfg["robot"]["mjcf"] is None:
        raise ValueError("mode=robot needs robot.mjcf=<MJCF or URDF file>")
    if mode == "new-task":
        new_task.check_name(cfg["name"])
    for file in onnx_files(cfg):
        if not Path(file).is_file():
            raise FileNotFoundError(f"no ONNX file {file}")
    return mode


def onnx_files(cfg: dict[str, Any]) -> list[str]:
    """The files of onnx=; ValueError unless it is a path, or two of mode=ab."""
    onnx, several = cfg["onnx"], cfg["mode"] == "ab"
    files = onnx if several and isinstance(onnx, list) else [onnx] if onnx else []
    if several and len(files) != 2:
        raise ValueError(f"mode=ab compares two files, onnx=[a.onnx,b.onnx], not onnx={onnx}")
    if not all(map(is_path, files)):
        raise ValueError(f"onnx={onnx!r}: expected a path")
    return files


def check_configs(words: list[str]) -> dict[str, Any]:
    """Simulator → the configuration of a training with it, of the words of mode=check.

    Both simulators run on the CPU, unless the words say sim= or device=. ValueError or OSError in
    one line if a word is wrong.
    """
    from gpusim_rl.commands.train import configure

    keys = {word.partition("=")[0] for word in words}
    if "task" not in keys:
        names = ", ".join(compose.choices("task"))
        raise ValueError(f"mode=check needs task=NAME: choose one of {names}")
    device = [] if "device" in keys else ["device=cpu"]
    if "sim" in keys:
        from gpusim_rl.sim.factory import choose  # loads torch

        cfg = configure(*words, *device)
        return {choose(cfg.sim.name, cfg.device)[0]: cfg}
    return {sim: configure(*words, f"sim={sim}", *device) for sim in ("native", "warp")}


def resolve_auto(cfg: dict[str, Any]) -> str:
    """The mode that `auto` means on this machine; `print` for repro= without a display."""
    mode, display = cfg["mode"], has_display()
    if mode == "auto":
        mode = "video" if cfg["video"] or not display else "viewer"
        return "print" if cfg["repro"] and not cfg["video"] and not display else mode
    if mode == "viewer" and not display:
        raise ValueError("mode=viewer needs a display; use mode=web or video=walk.mp4")
    return mode


def check_keys(cfg: dict[str, Any], mode: str) -> None:
    """ValueError or OSError unless the keys of a mode fit together and its files can be written."""
    if mode == "web":
        check_web(cfg)
    if mode == "serve":
        serve_settings.check_source(cfg)
    if mode == "log":
        check_log(cfg)
    if mode in ("video", "log"):
        validate.writable("video", cfg["video"], FILMS, inputs(cfg))
    if mode == "triton" and is_path(cfg["out"]) and Path(cfg["out"]).is_dir():
        validate.writable_folder("out", cfg["out"])  # it may have other models
    elif mode in OUTPUTS:
        validate.writable("out", cfg["out"], OUTPUTS[mode], inputs(cfg))
    if cfg["export"] not in EXPORTS:
        raise ValueError(f"export={cfg['export']!r}: choose one of {', '.join(EXPORTS)}")
    check_report(cfg, mode)
    for key, modes in ONLY.items():
        if mode not in modes and cfg[key] is not None:
            raise ValueError(f"{key}={cfg[key]} needs mode={' or '.join(modes)}")


def inputs(cfg: dict[str, Any]) -> list[str | None]:
    """The files that a configuration reads, apart from those of a run."""
    return [*onnx_files(cfg), cfg["repro"], cfg["checkpoint"], cfg["robot"]["mjcf"], cfg["mcap"]]


def demo(cfg: dict[str, Any]) -> dict[str, Any]:
    """A configuration, with the policy that comes with the package to be shown.

    A film is demo.mp4 unless video= names one. ValueError if another policy is named, or the mode
    shows none.
    """
    mode = cfg["mode"]
    if mode not in ("auto", "viewer", "video", "web"):
        raise ValueError(f"mode={mode}: the demo is shown by mode=viewer, video or web")
    for key in ("run", "onnx", "repro", "checkpoint", "compare"):
        if cfg[key] is not None:
            raise ValueError(f"{key}={cfg[key]}: the demo shows its own policy")
    films = mode == "video" or (mode == "auto" and not has_display())
    film = "demo.mp4" if films and cfg["video"] is None else cfg["video"]
    return cfg | {"onnx": str(DEMO), "video": film}


def check_source(cfg: dict[str, Any]) -> None:
    """ValueError unless run=, onnx= and repro= fit together and to the mode."""
    only_runs = cfg["mode"] in OF_RUNS
    recorded = cfg["mode"] == "record"
    if recorded and not cfg["out"]:
        raise ValueError("mode=record needs out=FILE.safetensors")
    if cfg["mode"] == "triton" and not (cfg["onnx"] and cfg["out"]):
        raise ValueError("mode=triton needs onnx=FILE and out=DIRECTORY")
    if cfg["onnx"] and (cfg["run"] or cfg["checkpoint"]) and not (recorded and cfg["run"]):
        raise ValueError("onnx= is a policy by itself: not with run= or checkpoint=")
    if cfg["onnx"] and only_runs:
        raise ValueError(f"mode={cfg['mode']} needs run=, not onnx=")
    judged = cfg["mode"] == "gate"
    if judged and cfg["checkpoint"]:
        raise ValueError("mode=gate judges an exported file: not with checkpoint=")
    if cfg["repro"] and (cfg["run"] or cfg["onnx"] or only_runs or judged or recorded):
        others = f"run=, onnx= or mode={' or '.join((*OF_RUNS, 'record', 'gate'))}"
        raise ValueError(f"repro= is shown by itself: not with {others}")
    for key in ("worlds", "kind", "level"):
        if cfg[key] is not None and (cfg["onnx"] or cfg["repro"]):
            raise ValueError(f"{key}={cfg[key]} needs run=")


def check_web(cfg: dict[str, Any]) -> None:
    """ValueError unless the page can be served, and what it is to show fits together."""
    requirements.check_installed()
    for key in ("repro", "video"):
        if cfg[key]:
            raise ValueError(f"{key}= is not shown by mode=web")
    compare = cfg["compare"]
    if compare is None:
        return
    if not (isinstance(compare, list) and len(compare) == 2 and all(map(is_path, compare))):
        raise ValueError(f"compare={compare}: expected two run directories or .onnx files")
    for key in ("run", "onnx", "checkpoint", "worlds"):
        if cfg[key]:
            raise ValueError(f"compare= names both policies: not with {key}=")


def check_log(cfg: dict[str, Any]) -> None:
    """ValueError or OSError unless there is a log to read, and what it needs."""
    if not find_spec("mcap"):
        raise ValueError(f"mode=log needs mcap: {install('log')}")
    for key in ("run", "checkpoint", "repro"):
        if cfg[key]:
            raise ValueError(f"mode=log reads the log of a robot: not with {key}=")
    if not cfg["mcap"]:
        raise ValueError("mode=log needs mcap=FILE, the log of a robot")
    if not Path(cfg["mcap"]).is_file():
        raise FileNotFoundError(f"no log {cfg['mcap']}")
    for key in ("video", "alarm"):
        if cfg[key] is not None and not cfg["onnx"]:
            raise ValueError(f"{key}= of mode=log is of the twin, which needs onnx=FILE")


def is_path(word: Any) -> bool:
    """Whether a word of the command line is a path."""
    return isinstance(word, str) and word != ""


def check_report(cfg: dict[str, Any], mode: str) -> None:
    """ValueError or OSError unless the picture report= can be drawn and written."""
    validate.writable("report", cfg["report"], (".png",), inputs(cfg))
    if mode in ("grid", "log") and cfg["report"] and not find_spec("matplotlib"):
        raise ValueError("report= needs matplotlib: pip install matplotlib")


def check_values(cfg: dict[str, Any]) -> None:
    """ValueError if a path, a number or the command is of another kind."""
    onnx_files(cfg)
    paths = ("run", "checkpoint", "repro", "video", "out", "judged", "report", "registry", "mcap")
    for key in paths:
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a path")
    if not isinstance(cfg["robot"]["mjcf"], str | None):
        raise ValueError(f"robot.mjcf={cfg['robot']['mjcf']!r}: expected a path")
    kinds = {"kind": "a kind of rough ground", "camera": "the name of a camera"}
    for key, what in (kinds | {"alias": "the name of an alias, or its file"}).items():
        if cfg[key] == "" or not isinstance(cfg[key], str | None):
            raise ValueError(f"{key}={cfg[key]!r}: expected {what}")
    size = cfg["size"]
    if size is not None and not (isinstance(size, list) and len(size) == 2):
        raise ValueError(f"size={size}: expected two even numbers, such as [1280,720]")
    ranges.check(cfg, table=ranges.PLAY)
    if any(x % 2 for x in size or ()):
        raise ValueError(f"size={size}: expected two even numbers, such as [1280,720]")
    check_task_code(cfg["task_code"])
    gate_settings.check_settings(cfg)
    gate_settings.check_variants(cfg["variants"])
    serve_settings.check_settings(cfg)
    command = cfg["command"]
    numbers = isinstance(command, list) and all(map(is_number, command))
    if command and not numbers:
        raise ValueError(f"command={command}: expected numbers, such as [0.5,0,0]")
