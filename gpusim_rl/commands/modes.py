"""What the modes of play.py do.

Torch and MuJoCo are imported inside functions: mistakes in the command line are answered before.
"""

# ruff: noqa: E402

import os

PARENT = os.getppid()  # before imports that take long: it may end meanwhile

import json
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from gpusim_rl.commands import new_task
from gpusim_rl.config import compose, resume, validate
from gpusim_rl.core import errors
from gpusim_rl.core.files import write_whole
from gpusim_rl.core.paths import PACKAGE, executable, find_data, program
from gpusim_rl.core.waiting import print_now
from gpusim_rl.deploy import exported
from gpusim_rl.envs.command_columns import fixed_command
from gpusim_rl.gate import command as gate
from gpusim_rl.play import player
from gpusim_rl.play.player import Settings
from gpusim_rl.play.rollouts import FileRollout
from gpusim_rl.runs.run import Run, find_run
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
CLIP_FPS = 30.0  # Hz: of the CSV files of GMR and LAFAN1
REPLAY_SECONDS = 5  # of a video of repro=


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
