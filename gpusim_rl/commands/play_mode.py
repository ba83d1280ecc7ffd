"""The mode of a command line of play.py: which keys each takes, and checks that these fit together.

Torch and MuJoCo are imported inside functions: mistakes in the command line are answered before.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpusim_rl.commands import modes, new_task
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.config import validate
from gpusim_rl.config.check_words import check_task_code
from gpusim_rl.core import ranges
from gpusim_rl.core.paths import install
from gpusim_rl.envs.command_columns import is_number
from gpusim_rl.gate import command as gate
from gpusim_rl.gate import settings as gate_settings
from gpusim_rl.play.player import Settings
from gpusim_rl.serve import settings as serve_settings
from gpusim_rl.viewer.offscreen import has_display
from gpusim_rl.web import requirements

EXPORTS = ("controller", "network")
PATHS = ("run", "checkpoint", "repro", "video", "out", "judged", "report", "registry", "mcap")
PATHS += ("card", "clip")
WORDS = {"kind": "a kind of rough ground", "camera": "the name of a camera"}
WORDS |= {"alias": "the name of an alias, or its file"}


class Mode(NamedTuple):
    """A mode of play.py.

    Args:
        keys: that not all modes take, beside those of `outputs`.
        outputs: key → how the name of this file may end.
        not_with: keys of other sources, and the line that refuses one of them.
        needs: keys that have to be given, and what is missing without.
        check: ValueError or OSError unless all else that it needs is there.
    """

    run: Callable[[Settings], None]
    keys: tuple[str, ...] = ()
    outputs: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    not_with: tuple[tuple[str, ...], str] = ((), "")
    needs: Mapping[str, str] = MappingProxyType({})
    check: Callable[[Settings], object] = lambda cfg: None

    def takes(self, key: str) -> bool:
        """Whether a key that not all modes take is for this one."""
        return key in self.keys or key in self.outputs


# -- what they need --------------------------------------------------------------------------------


def need_plots(cfg: Settings) -> None:
    """ValueError unless curves of report= can be drawn."""
    if cfg["report"] and not find_spec("matplotlib"):
        raise ValueError("report= needs matplotlib: pip install matplotlib")


def check_export(cfg: Settings) -> None:
    """ValueError if another file than that of the demo is exported, or the demo's network."""
    if cfg["onnx"] and (cfg["onnx"] != str(DEMO) or cfg["export"] != "controller"):
        key = "export=network" if cfg["export"] == "network" else "mode=export"
        raise ValueError(f"{key} needs run=, not onnx=")


def check_page(cfg: Settings) -> None:
    """ValueError unless the page can be served, and compare= names two policies and no more."""
    requirements.check_installed()
    compare = cfg["compare"]
    if compare is None:
        return
    if not (isinstance(compare, list) and len(compare) == 2 and all(map(is_path, compare))):
        raise ValueError(f"compare={compare}: expected two run directories or .onnx files")
    for key in ("run", "onnx", "checkpoint", "worlds"):
        if cfg[key]:
            raise ValueError(f"compare= names both policies: not with {key}=")


def check_log(cfg: Settings) -> None:
    """ValueError or OSError unless there is a log to read, and what it needs."""
    if not find_spec("mcap"):
        raise ValueError(f"mode=log needs mcap: {install('log')}")
    if not Path(cfg["mcap"]).is_file():
        raise FileNotFoundError(f"no log {cfg['mcap']}")
    for key in ("video", "alarm"):
        if cfg[key] is not None and not cfg["onnx"]:
            raise ValueError(f"{key}= of mode=log is of the twin, which needs onnx=FILE")
    need_plots(cfg)


FILM = {"video": (".mp4", ".mov", ".mkv", ".avi", ".gif")}
JSON, PICTURE = {"out": (".json",)}, {"report": (".png",)}
ROBOT, LOG = {"robot.mjcf": "<MJCF or URDF file>"}, {"mcap": "FILE, the log of a robot"}
ADOPTED = {"onnx": "NETWORK, of others", "robot.mjcf": "<MJCF file>", "out": "FILE.onnx"}
CLIP = {"out": (".npz", ".csv")}
GROUND, LOOK = ("kind", "level"), ("size", "camera")
OF_RUN = ("onnx",), "mode={mode} needs run=, not onnx="
OF_FILE = ("checkpoint",), "mode={mode} judges an exported file: not with {key}="
OF_OTHERS = ("run", "checkpoint"), "mode={mode} takes a network of others: not with {key}="
OF_PAGE = ("repro", "video"), "{key}= is not shown by mode={mode}"
OF_CLIP = (
    ("run", "onnx", "checkpoint", "repro"),
    "mode={mode} plays a motion, no policy: not with {key}=",
)
OF_LOG = ("run", "checkpoint", "repro"), "mode={mode} reads the log of a robot: not with {key}="

MODES = {
    "viewer": Mode(modes.show, GROUND),
    "video": Mode(modes.make_film, ("worlds", *LOOK, *GROUND), FILM),
    "evaluate": Mode(modes.evaluate_run, (), JSON, OF_RUN),
    "grid": Mode(modes.grid_run, (), JSON | PICTURE, OF_RUN, check=need_plots),
    "export": Mode(modes.export_run, (), {"out": (".onnx",)}, check=check_export),
    "record": Mode(
        modes.record_run, (), {"out": (".safetensors",)}, needs={"out": "FILE.safetensors"}
    ),
    "adopt": Mode(modes.adopt_network, ("card", "trust"), {"out": (".onnx",)}, OF_OTHERS, ADOPTED),
    "gate": Mode(gate.gate_policy, ("variants", "judged"), JSON, OF_FILE),
    "robot": Mode(modes.describe_robot, (), {"out": (".yaml",)} | PICTURE, needs=ROBOT),
    "ab": Mode(gate.compare_policies, (), JSON),
    "new-task": Mode(modes.write_task, ("name",), check=lambda x: new_task.check_name(x["name"])),
    "web": Mode(
        modes.show_page, ("worlds", *GROUND, "compare", "port"), {}, OF_PAGE, check=check_page
    ),
    "serve": Mode(modes.serve, ("port", "registry", "alias"), check=serve_settings.check_source),
    "label": Mode(modes.label_pairs, ("port",), {"out": (".csv",)}, OF_RUN),
    "clip": Mode(
        modes.show_clip, ("clip", "fps", *LOOK), CLIP | FILM, OF_CLIP, {"clip": "FILE, a motion"}
    ),
    "log": Mode(
        modes.show_log, ("mcap", "alarm", *LOOK), JSON | PICTURE | FILM, OF_LOG, LOG, check_log
    ),
}
# keys that not all modes take
SPECIAL = tuple(dict.fromkeys(x for mode in MODES.values() for x in (*mode.keys, *mode.outputs)))


# -- the mode of a command line --------------------------------------------------------------------


def choose_mode(cfg: Settings) -> str:
    """The mode, with `auto` resolved.

    ValueError if the keys do not fit together, OSError if a file is missing or cannot be written.
    """
    names = ("auto", *MODES, "check")
    if cfg["mode"] not in names:
        raise ValueError(f"unknown mode {cfg['mode']!r}: choose one of {', '.join(names)}")
    if cfg["mode"] == "check":
        raise ValueError("mode=check is said by itself, with the words of a training: task=NAME")
    name = resolve_auto(cfg)
    check_source(cfg, name)
    check_values(cfg)
    mode, paths = MODES[name], paths_of(cfg)
    for key, what in mode.needs.items():
        if not (paths | {"onnx": cfg["onnx"]})[key]:
            raise ValueError(f"mode={name} needs {key}={what}")
    mode.check(cfg)
    for key in SPECIAL:
        if cfg[key] is not None and not mode.takes(key):
            others = " or ".join(other for other, x in MODES.items() if x.takes(key))
            raise ValueError(f"{key}={cfg[key]} needs mode={others}")
    read = [*onnx_files(cfg), *(x for key, x in paths.items() if key not in mode.outputs)]
    for key, endings in mode.outputs.items():
        validate.writable(key, cfg[key], endings, read)
    for file in onnx_files(cfg):
        if not Path(file).is_file():
            raise FileNotFoundError(f"no ONNX file {file}")
    return name


def resolve_auto(cfg: Settings) -> str:
    """The mode that `auto` means on this machine. repro= is printed, where there is no display."""
    mode, display = cfg["mode"], has_display()
    if mode == "auto":
        return "video" if cfg["video"] or not (display or cfg["repro"]) else "viewer"
    if mode == "viewer" and not display:
        raise ValueError("mode=viewer needs a display; use mode=web or video=walk.mp4")
    return mode


def check_source(cfg: Settings, mode: str) -> None:
    """ValueError unless run=, onnx= and repro= fit together and to the mode."""
    keys, line = MODES[mode].not_with
    for key in keys:
        if cfg[key]:
            raise ValueError(line.format(key=key, mode=mode))
    both = mode == "record" and cfg["run"]
    if cfg["onnx"] and (cfg["run"] or cfg["checkpoint"]) and not both:
        raise ValueError("onnx= is a policy by itself: not with run= or checkpoint=")
    if cfg["repro"] and (cfg["run"] or cfg["onnx"] or mode not in ("viewer", "video")):
        raise ValueError(f"repro= is shown by itself: not with run=, onnx= or mode={mode}")
    for key in ("worlds", "kind", "level"):
        if cfg[key] is not None and (cfg["onnx"] or cfg["repro"]):
            raise ValueError(f"{key}={cfg[key]} needs run=")


def check_values(cfg: Settings) -> None:
    """ValueError if a path, a number or the command is of another kind."""
    onnx_files(cfg)
    for key, x in paths_of(cfg).items():
        if not isinstance(x, str | None):
            raise ValueError(f"{key}={x!r}: expected a path")
    for key, what in WORDS.items():
        if cfg[key] == "" or not isinstance(cfg[key], str | None):
            raise ValueError(f"{key}={cfg[key]!r}: expected {what}")
    if cfg["trust"] not in (None, True, False):
        raise ValueError(f"trust={cfg['trust']!r}: expected true or false")
    size, command = cfg["size"], cfg["command"]
    even = [x for x in size if type(x) is int and not x % 2] if isinstance(size, list) else []
    if size is not None and not len(size) == len(even) == 2:
        raise ValueError(f"size={size}: expected two even numbers, such as [1280,720]")
    ranges.check(cfg, table=ranges.PLAY)
    if cfg["export"] not in EXPORTS:
        raise ValueError(f"export={cfg['export']!r}: choose one of {', '.join(EXPORTS)}")
    check_task_code(cfg["task_code"])
    gate_settings.check_settings(cfg)
    gate_settings.check_variants(cfg["variants"])
    serve_settings.check_settings(cfg)
    if command and not (isinstance(command, list) and all(map(is_number, command))):
        raise ValueError(f"command={command}: expected numbers, such as [0.5,0,0]")


def paths_of(cfg: Settings) -> Settings:
    """Key → value of all that name a file or a directory, but for onnx=."""
    return {key: cfg[key] for key in PATHS} | {"robot.mjcf": cfg["robot"]["mjcf"]}


def onnx_files(cfg: Settings) -> list[str]:
    """The files of onnx=; ValueError unless it is a path, or two of mode=ab."""
    onnx, several = cfg["onnx"], cfg["mode"] == "ab"
    files = onnx if several and isinstance(onnx, list) else [onnx] if onnx else []
    if several and len(files) != 2:
        raise ValueError(f"mode=ab compares two files, onnx=[a.onnx,b.onnx], not onnx={onnx}")
    if not all(map(is_path, files)):
        raise ValueError(f"onnx={onnx!r}: expected a path")
    return files


def is_path(word: object) -> bool:
    return isinstance(word, str) and word != ""


def demo(cfg: Settings) -> Settings:
    """A configuration, with the policy that comes with the package to be shown or exported.

    A film is demo.mp4 unless video= names one. ValueError if another policy is named, or the mode
    takes none.
    """
    mode = cfg["mode"]
    if mode not in ("auto", "viewer", "video", "web", "export"):
        shown = "the demo is shown by mode=viewer, video or web, and mode=export writes its file"
        raise ValueError(f"mode={mode}: {shown}")
    for key in ("run", "onnx", "repro", "checkpoint", "compare"):
        if cfg[key] is not None:
            raise ValueError(f"{key}={cfg[key]}: the demo shows its own policy")
    films = mode == "video" or (mode == "auto" and not has_display())
    film = "demo.mp4" if films and cfg["video"] is None else cfg["video"]
    return cfg | {"onnx": str(DEMO), "video": film}
