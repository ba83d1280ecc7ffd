"""The modes of play.py: what each does, which keys it takes, and checks that these fit together.

Torch and MuJoCo are imported inside functions: mistakes in the command line are answered before.
"""

# ruff: noqa: E402

import os

PARENT = os.getppid()  # before imports that take long: it may end meanwhile

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gpusim_rl.commands import new_task
from gpusim_rl.config import compose, resume, validate
from gpusim_rl.config.check_words import check_task_code
from gpusim_rl.core import errors, ranges
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import PACKAGE, executable, find_data, install, program
from gpusim_rl.core.waiting import print_now
from gpusim_rl.deploy import exported
from gpusim_rl.envs.command_columns import fixed_command, is_number
from gpusim_rl.gate import command as gate
from gpusim_rl.gate import settings as gate_settings
from gpusim_rl.play import player
from gpusim_rl.play.player import Settings
from gpusim_rl.play.rollouts import FileRollout
from gpusim_rl.runs.run import Run, find_run
from gpusim_rl.serve import settings as serve_settings
from gpusim_rl.viewer.caption import Caption
from gpusim_rl.viewer.film import film
from gpusim_rl.viewer.offscreen import has_display, load_backend
from gpusim_rl.viewer.picture import picture
from gpusim_rl.viewer.window import Keys, tour, view
from gpusim_rl.web import requirements

if TYPE_CHECKING:
    from gpusim_rl.config.sections import Config
    from gpusim_rl.play.replay_failure import FailureReplay
    from gpusim_rl.play.rollouts import Rollout
    from gpusim_rl.robots.load import Loaded

DEMO = PACKAGE / "demo" / "quadruped.onnx"  # its folder says how it was made
EXPORTS = ("controller", "network")
CLIP_FPS = 30.0  # Hz: of the CSV files of GMR and LAFAN1
REPLAY_SECONDS = 5  # of a video of repro=
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


# -- what the modes do -----------------------------------------------------------------------------


def show(cfg: Settings) -> None:
    """mode=viewer: a window; of repro=, first what went wrong, then ten times slower."""
    with errors.one_line_errors():
        if cfg["repro"]:
            again = replay(cfg)
            return view(again.model, again.frames()) if has_display() else None
        run = None if cfg["onnx"] else find_run(cfg)
        rollout = open_rollout(cfg, run)
        described = rollout.description
        fixed, keys = fixed_command(described, cfg["command"]), Keys((), ())
        if described and not len(fixed):
            ends, center = described["trained"], described.get("center", ())
            keys = Keys(ends["low"], ends["high"], center, described["names"])
        command = (lambda t: fixed) if len(fixed) else keys
        frames = player.frames_of(rollout, command if described else None)
        print(errors.printable(f"{run.path if run else cfg['onnx']}: {keys.help}"), flush=True)
        view(rollout.model, frames, keys, rollout)


def make_film(cfg: Settings) -> None:
    """mode=video: a film of a run, of a file, or of repro=."""
    look = dict(size=cfg["size"], view=cfg["camera"])
    with errors.one_line_errors():
        if cfg["repro"]:
            load_backend()
            again, out = replay(cfg), Path(cfg["video"] or Path(cfg["repro"]).with_suffix(".mp4"))
            return film(
                again.model, again.frames(), out, min(cfg["seconds"], REPLAY_SECONDS), **look
            )
        run = None if cfg["onnx"] else find_run(cfg)
        beside = run.path / "play.mp4" if run else Path(cfg["onnx"]).with_suffix(".mp4")
        out = Path(cfg["video"] or beside)
        validate.writable("video", str(out))
        load_backend()
        rollout = open_rollout(cfg, run)
        described = rollout.description
        fixed = fixed_command(described, cfg["command"])
        moving = tour(described, cfg["seconds"]) if described else None
        command = (lambda t: fixed) if len(fixed) else moving
        frames = player.frames_of(rollout, command, several=bool(cfg["worlds"]))
        look["caption"] = Caption(rollout.model, described, command)
        look["ghost"] = rollout.ghost
        film(rollout.model, frames, out, cfg["seconds"], rollout.show_world, **look)
        print(f"wrote {out}")
        if cfg["mode"] == "auto" and not cfg["video"]:  # there is no display
            policy = errors.printable(f"run={run.path}" if run else f"onnx={cfg['onnx']}")
            code = f" {validate.TASK_CODE}" if cfg["task_code"] else ""
            print(f"in a browser: {program('play')} {policy} mode=web{code}")


def open_rollout(cfg: Settings, run: Run | None) -> "Rollout":
    """The worlds of a run, or that of an exported file, whose verdict is printed."""
    if run:
        return player.run_rollout(run, *player.load_run(run, cfg), cfg)
    rollout = FileRollout(Path(cfg["onnx"]))
    gate.say_verdict(Path(cfg["onnx"]))
    return rollout


def replay(cfg: Settings) -> "FailureReplay":
    """Print what went wrong in repro=, timestep by timestep; the same from its beginning."""
    from gpusim_rl.play.replay_failure import FailureReplay

    for line in FailureReplay(Path(cfg["repro"]), cfg["task_code"]).steps():
        print(errors.printable(line))
    return FailureReplay(Path(cfg["repro"]), cfg["task_code"])


def evaluate_run(cfg: Settings) -> None:
    """mode=evaluate: print the scores, and write them to out=.

    The run's own eval.json stays as training wrote it.
    """
    with errors.one_line_errors():
        iteration, config = player.load_run(find_run(cfg), cfg)
    from gpusim_rl.evaluation.evaluate import evaluate

    policy, task = iteration.policy, iteration.env.task
    scores = evaluate(policy, task, **player.evaluation_options(config, cfg))
    if task.drives is not None:
        from gpusim_rl.evaluation.drives import add_drives, drive

        scores = add_drives(scores, drive(policy, task, weights=config.task.weights), task)
    print(text := json.dumps(scores, indent=2))
    write_out(cfg, text)


def grid_run(cfg: Settings) -> None:
    """mode=grid: print success by kind and level of rough ground, and write it to out= and report=.

    out= has the falls and the intervals, too.
    """
    with errors.one_line_errors():
        run = find_run(cfg)
        iteration, config = player.load_run(run, cfg)
        player.check_rough(run, iteration.env.task, "mode=grid")
    from gpusim_rl.evaluation import terrain_grid

    options = player.evaluation_options(config, cfg)
    grid = terrain_grid.terrain_grid(iteration.policy, iteration.env.task, **options)
    print(terrain_grid.as_text(grid))
    write_out(cfg, json.dumps(grid, indent=2))
    if cfg["report"]:
        with errors.one_line_errors():
            terrain_grid.draw(grid, Path(cfg["report"]))


def write_out(cfg: Settings, text: str) -> None:
    if cfg["out"]:
        with errors.one_line_errors():
            write_whole(Path(cfg["out"]), f"{text}\n".encode())


def export_run(cfg: Settings) -> None:
    """mode=export: write the controller, or with export=network the network alone.

    That of the demo is its file, with the verdict.
    """
    with errors.one_line_errors():
        if cfg["onnx"]:
            write_whole(out := Path(cfg["out"] or "demo.onnx"), DEMO.read_bytes())
            return print(f"wrote {out}")
        run = find_run(cfg)
        iteration, config = player.load_run(run, cfg)
        path = Path(cfg["out"] or run.path / "policy.onnx")
        validate.writable("out", str(path))
        from gpusim_rl.deploy import export_policy as exporter

        export = {"controller": exporter.export_policy, "network": exporter.export_bare_network}
        error = export[cfg["export"]](iteration, config, run.path, path)
    print(f"wrote {path}: within {error:.1e} of training")


def record_run(cfg: Settings) -> None:
    """mode=record: write whole episodes of a run or of an exported file to out=."""
    with errors.one_line_errors():
        from gpusim_rl.play import record_episodes  # loads torch, after mistakes are answered

        demos = record_episodes.record_episodes(cfg)
        demos.write(Path(cfg["out"]))
    print(f"wrote {cfg['out']}: {record_episodes.summary(demos)}")


def adopt_network(cfg: Settings) -> None:
    """mode=adopt: write a network of others as a file of ours, with its model and its source."""
    with errors.one_line_errors():
        from gpusim_rl.deploy.adopt import adopt  # loads torch, after mistakes are answered
        from gpusim_rl.robots.models import find_robot_file

        files = Path(cfg["onnx"]), cfg["card"] and Path(cfg["card"])
        files = *files, find_robot_file(cfg["robot"]["mjcf"])
        card, error = adopt(*files, Path(cfg["out"]), bool(cfg["trust"]))
        what = f"{card.values['name']}, {card.values['source']['repository']}"
        within = f"within {error:.1e} rad of card and network"
        print(errors.printable(f"wrote {cfg['out']}: {what}: {within}"))
        for name in card.unmeasured:
            print(f"it reads what no robot measures: {name}")
        print(f"next: {program('play')} onnx={errors.printable(cfg['out'])} mode=gate")


def describe_robot(cfg: Settings) -> None:
    """mode=robot: print what is given and guessed of a robot, and how to train it.

    out= is a whole file for conf/robot/; what is printed lacks the keys that do not apply.
    """
    with errors.one_line_errors():
        from gpusim_rl.robots import description

        values = dict(cfg["robot"])
        given, actuator = values.pop("name"), values.pop("actuator")
        loaded = load_robot(values)
        name = loaded.spec.modelname if given == "own" else given
        robot = (loaded, values, name, actuator)
        print(f"# {description.sentence(loaded)}")
        print(description.as_yaml(*robot, whole=False))
        write_out(cfg, description.as_yaml(*robot))
        if cfg["report"]:
            from gpusim_rl.robots.models import find_robot_file
            from gpusim_rl.robots.visuals import is_urdf, picture_model

            # of a URDF file with the visual geometry, which is not simulated
            file = find_robot_file(loaded.robot.mjcf)
            model = picture_model(loaded.spec, file) if is_urdf(file) else loaded.mjm
            picture(model, loaded.shape.labels, Path(cfg["report"]))
        for key in ("out", "report"):
            if cfg[key]:
                print(f"# wrote {errors.printable(cfg[key])}")
        words = description.task_words(loaded, values, given)
        print(f"# train it: {program('train')} {errors.printable(words)}")


def load_robot(values: Settings) -> "Loaded":
    """The robot of a description; a ValueError of a body that no task takes says what to do."""
    from gpusim_rl.robots.load import load_any

    try:
        return load_any(**values)
    except ValueError as error:
        given = {key for key, x in values.items() if x is not None}
        if not given <= {"mjcf", "collide"} or not str(error).startswith("robot.mjcf="):
            raise
        remedy = f"{program('play')} mode=new-task name=my_robot writes a task for any other body"
        raise ValueError(f"{error}; {remedy}") from None


def write_task(cfg: Settings) -> None:
    """mode=new-task: write the files of a task, and print the commands that train and test it."""
    files = new_task.render(cfg["name"])
    with errors.one_line_errors():
        new_task.write_new(files, Path.cwd())
    for file in files:
        print(f"wrote {file}")
    print(f"train it: {program('train')} task={cfg['name']}")
    print(f"test it: {executable('python')} -m pytest {[*files][-1]}")


def show_page(cfg: Settings) -> None:
    """mode=web: serve a page that shows one policy, or two side by side."""
    with errors.one_line_errors():
        words = cfg["compare"] or [cfg["onnx"] or str(find_run(cfg).path)]
        for word in cfg["compare"] or ():
            if not exported.is_file(word):
                find_run({"run": word})
    with errors.one_line_errors(), requirements.check_versions():
        from gpusim_rl.web import app  # loads torch and viser, after mistakes are answered

    app.serve(cfg, words, PARENT)


def serve(cfg: Settings) -> None:
    """mode=serve: answer robots with a policy."""
    from gpusim_rl.serve.server import run_server  # loads what is optional

    run_server(cfg)


def label_pairs(cfg: Settings) -> None:
    """mode=label: serve a page on which people answer a run's questions; out= has the answers."""
    from gpusim_rl.runs.labels import Labels  # loads torch, after mistakes are answered

    with errors.one_line_errors():
        run = find_run(cfg)
        settings = resume.load_config(run, cfg["task_code"]).reward
        if settings.name != "preference":
            raise ValueError(f"{run.path} asks nothing: train with reward=preference start=RUN")
        if cfg["out"]:
            labels = Labels(run.path)
            write_whole(Path(cfg["out"]), labels.csv())
            return print(json.dumps(labels.report(), indent=2))
        load_backend()
        from gpusim_rl.serve import label_page

        model = player.load_run(run, cfg)[0].env.task.mjm
        host, most = cfg["serve"]["host"], settings.settings.answers
        label_page.serve(run, model, host, cfg["port"], most)


def show_log(cfg: Settings) -> None:
    """mode=log: print the events of a robot's log and how far it is from its twins.

    out=, report= and video= are written if they are given. Exits with 1 if the distance is above
    alarm=.
    """
    with errors.one_line_errors():
        from gpusim_rl.deploy.onboard.log import read

        log, result, model = read(Path(cfg["mcap"])), None, None
        from gpusim_rl.identify import robot_log, twin  # loads torch, after mistakes are answered

        if cfg["video"]:
            load_backend()
        if cfg["onnx"]:
            result, model = twin.twins_of(log, Path(cfg["onnx"]))
        timeline, alarm = robot_log.events(log), cfg["alarm"] or twin.ALARM
        for line in robot_log.as_text(cfg["mcap"], log, timeline, result).splitlines():
            print(errors.printable(line), flush=True)
        if cfg["onnx"] and result is None:
            errors.warn(f"warning: {robot_log.why_no_twin(log)}")
        write_out(cfg, json.dumps(robot_log.as_dict(log, timeline, result), indent=2))
        if cfg["report"]:
            robot_log.draw(log, result, alarm, Path(cfg["report"]))
        if cfg["video"]:
            options = dict(size=cfg["size"], view=cfg["camera"], seconds=cfg["seconds"])
            robot_log.film(log, result, model, Path(cfg["video"]), **options)
            print(f"wrote {cfg['video']}")
    if result and result.distance > alarm:
        errors.exit_with_error(f"{cfg['mcap']}: {robot_log.warning(result, alarm)}", 1)


def show_clip(cfg: Settings) -> None:
    """mode=clip: print what a motion is like on a robot; write it to out=, and a film to video=."""
    with errors.one_line_errors():
        import mujoco

        from gpusim_rl.robots import clip_formats, clip_report
        from gpusim_rl.robots.models import compile_spec, find_mjcf, find_robot_file

        given = cfg["robot"]["mjcf"]
        robot = find_robot_file(given) if given else find_mjcf("quadruped.xml")
        spec = mujoco.MjSpec.from_file(str(robot))
        model, file = compile_spec(spec), find_data("clip", cfg["clip"])
        if cfg["fps"] and file.suffix == ".npz":
            raise ValueError(f"fps={cfg['fps']:g}: {file} says its own rate; fps= is of .csv files")
        clip = clip_formats.read_any(file, model, cfg["fps"] or CLIP_FPS)
        for line in clip_report.describe(clip, spec):
            print(errors.printable(line))
        if cfg["out"]:
            lost = clip_formats.write_any(Path(cfg["out"]), clip, model)
            says = f"; its format has no place for the clip's {' and '.join(lost)}" if lost else ""
            print(errors.printable(f"wrote {cfg['out']}{says}"))
        if cfg["video"]:
            load_backend()
            frames = clip_formats.positions(clip, model)
            times = ((i / clip.fps, frames[min(i, len(frames) - 1)]) for i in count())
            look = dict(size=cfg["size"], view=cfg["camera"])
            film(model, times, Path(cfg["video"]), clip.seconds, **look)
            print(f"wrote {errors.printable(cfg['video'])}")


def check_task(words: list[str]) -> None:
    """mode=check: print what is wrong with a task; exit with 1 if no training can succeed with it.

    words: the others of the command line, which are those of train.py.
    """
    with errors.one_line_errors():
        configs = check_configs(words)
    from gpusim_rl.doctor import check_task as checker  # loads torch, after mistakes are answered

    name, sims = next(iter(configs.values())).task.name, " and ".join(configs)
    worlds = f"{checker.WORLDS} worlds with zero actions, {checker.WORLDS} with random ones"
    print(f"checking {name} with sim={sims}: {worlds}", flush=True)
    results = checker.check_task(configs, print_now)
    for finding in results:
        print(errors.printable(str(finding)))
    print(f"{len(results)} finding{'s' * (len(results) != 1)}")
    if any(finding.certain for finding in results):
        raise SystemExit(1)


def check_configs(words: list[str]) -> dict[str, "Config"]:
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
    "viewer": Mode(show, GROUND),
    "video": Mode(make_film, ("worlds", *LOOK, *GROUND), FILM),
    "evaluate": Mode(evaluate_run, (), JSON, OF_RUN),
    "grid": Mode(grid_run, (), JSON | PICTURE, OF_RUN, check=need_plots),
    "export": Mode(export_run, (), {"out": (".onnx",)}, check=check_export),
    "record": Mode(record_run, (), {"out": (".safetensors",)}, needs={"out": "FILE.safetensors"}),
    "adopt": Mode(adopt_network, ("card", "trust"), {"out": (".onnx",)}, OF_OTHERS, ADOPTED),
    "gate": Mode(gate.gate_policy, ("variants", "judged"), JSON, OF_FILE),
    "robot": Mode(describe_robot, (), {"out": (".yaml",)} | PICTURE, needs=ROBOT),
    "ab": Mode(gate.compare_policies, (), JSON),
    "new-task": Mode(write_task, ("name",), check=lambda x: new_task.check_name(x["name"])),
    "web": Mode(show_page, ("worlds", *GROUND, "compare", "port"), {}, OF_PAGE, check=check_page),
    "serve": Mode(serve, ("port", "registry", "alias"), check=serve_settings.check_source),
    "label": Mode(label_pairs, ("port",), {"out": (".csv",)}, OF_RUN),
    "clip": Mode(
        show_clip, ("clip", "fps", *LOOK), CLIP | FILM, OF_CLIP, {"clip": "FILE, a motion"}
    ),
    "log": Mode(show_log, ("mcap", "alarm", *LOOK), JSON | PICTURE | FILM, OF_LOG, LOG, check_log),
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
