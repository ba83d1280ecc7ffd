"""The command `gpusim-play`, which is play.py in a checkout.

Torch and MuJoCo are imported inside functions: mistakes in the command line are answered before.
"""

# ruff: noqa: E402

import os

PARENT = os.getppid()  # before imports that take long: it may end meanwhile

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusim_rl.commands import new_task, play_mode
from gpusim_rl.commands.play_mode import choose_mode, demo
from gpusim_rl.config import command_line, validate
from gpusim_rl.core import errors
from gpusim_rl.core.paths import executable, program
from gpusim_rl.core.waiting import print_now
from gpusim_rl.gate import command as gate
from gpusim_rl.play import player
from gpusim_rl.viewer.caption import Caption
from gpusim_rl.viewer.film import film
from gpusim_rl.viewer.offscreen import load_backend
from gpusim_rl.viewer.picture import picture
from gpusim_rl.viewer.target import fixed_command
from gpusim_rl.viewer.window import Choose, Command, Keys, tour, view
from gpusim_rl.web.requirements import check_versions

REPLAY_SECONDS = 5  # of a video of repro=


def evaluate_run(cfg: dict[str, Any]) -> None:
    """mode=evaluate: print the scores, and write them to out=.

    The run's own eval.json stays as training wrote it.
    """
    with errors.one_line_errors():
        ppo, config = player.load_run(player.find_run(cfg), cfg)
    from gpusim_rl.evaluation.evaluate import evaluate

    policy, task = ppo.policy, ppo.env.task
    scores = evaluate(policy, task, **player.how_to_evaluate(config, cfg))
    if task.drives is not None:
        from gpusim_rl.evaluation.drives import add_drives, drive

        scores = add_drives(scores, drive(policy, task, weights=config.task.weights), task)
    print(text := json.dumps(scores, indent=2))
    write_out(cfg, text)


def grid_run(cfg: dict[str, Any]) -> None:
    """mode=grid: print success by kind and level of rough ground, and write it to out= and report=.

    out= has the falls and the intervals, too.
    """
    with errors.one_line_errors():
        run = player.find_run(cfg)
        ppo, config = player.load_run(run, cfg)
        player.check_rough(run, ppo.env.task, "mode=grid")
    from gpusim_rl.evaluation import terrain_grid

    how = player.how_to_evaluate(config, cfg)
    grid = terrain_grid.terrain_grid(ppo.policy, ppo.env.task, **how)
    print(terrain_grid.as_text(grid))
    write_out(cfg, json.dumps(grid, indent=2))
    if cfg["report"]:
        with errors.one_line_errors():
            terrain_grid.draw(grid, Path(cfg["report"]))


def write_out(cfg: dict[str, Any], text: str) -> None:
    """Write a text to out=, if that is given."""
    from gpusim_rl.core.files import write_whole

    if cfg["out"]:
        with errors.one_line_errors():
            write_whole(Path(cfg["out"]), f"{text}\n".encode())


def export_run(cfg: dict[str, Any]) -> None:
    """mode=export: write the controller, or with export=network the network alone."""
    with errors.one_line_errors():
        run = player.find_run(cfg)
        ppo, config = player.load_run(run, cfg)
        path = Path(cfg["out"] or run.path / "policy.onnx")
        validate.writable("out", str(path))
        from gpusim_rl.deploy import export_policy as exporter

        export = {"controller": exporter.export_policy, "network": exporter.export_bare_network}
        error = export[cfg["export"]](ppo, config, run.path, path)
    print(f"wrote {path}: within {error:.1e} of training")


def record_run(cfg: dict[str, Any]) -> None:
    """mode=record: write whole episodes of a run or of an exported file to out=."""
    with errors.one_line_errors():
        from gpusim_rl.play import record_episodes  # loads torch, after mistakes are answered

        demos = record_episodes.record_episodes(cfg)
        demos.write(Path(cfg["out"]))
    print(f"wrote {cfg['out']}: {record_episodes.summary(demos)}")


def replay(cfg: dict[str, Any], mode: str) -> None:
    """repro=: print what went wrong, timestep by timestep; then show it ten times slower."""
    path = Path(cfg["repro"])
    with errors.one_line_errors():
        if mode == "video":
            load_backend()
        from gpusim_rl.play.replay_failure import FailureReplay

        for line in FailureReplay(path, cfg["task_code"]).steps():
            print(errors.printable(line))
        again = FailureReplay(path, cfg["task_code"])
        if mode == "viewer":
            view(again.model, again.frames(), None)
        elif mode == "video":
            out = Path(cfg["video"] or path.with_suffix(".mp4"))
            seconds = min(cfg["seconds"], REPLAY_SECONDS)
            film(again.model, again.frames(), out, seconds, size=cfg["size"], view=cfg["camera"])


def describe_robot(cfg: dict[str, Any]) -> None:
    """mode=robot: print what is given and guessed of a robot, and how to train it.

    out= is a whole file for conf/robot/; what is printed lacks the keys that do not apply.
    """
    with errors.one_line_errors():
        from gpusim_rl.robots import description

        values = dict(cfg["robot"])
        given, actuator = values.pop("name"), values.pop("actuator")
        loaded = load_robot(values)
        name = Path(values["mjcf"].rpartition(":")[2]).stem if given == "own" else given
        about = (loaded, values, name, actuator)
        print(f"# {description.sentence(loaded)}")
        print(description.as_yaml(*about, whole=False))
        write_out(cfg, description.as_yaml(*about))
        if cfg["report"]:
            picture(shown_model(loaded), loaded.shape.labels, Path(cfg["report"]))
        words = description.task_words(loaded, values, given)
        print(f"# train it: {program('train')} {errors.printable(words)}")


def shown_model(loaded: Any) -> Any:
    """The model of a loaded robot for a picture, with the visual geometry of a URDF file."""
    from gpusim_rl.robots.models import find_robot_file
    from gpusim_rl.robots.visuals import is_urdf, picture_model

    file = find_robot_file(loaded.robot.mjcf)
    return picture_model(loaded.spec, file) if is_urdf(file) else loaded.mjm


def load_robot(values: dict[str, Any]) -> Any:
    """The robot of a description; a ValueError of a body that no task takes says what to do."""
    from gpusim_rl.robots.load import load_any

    try:
        return load_any(**values)
    except ValueError as error:
        described = any(
            x is not None for key, x in values.items() if key not in ("mjcf", "collide")
        )
        if described or not str(error).startswith("robot.mjcf="):
            raise
        remedy = f"{program('play')} mode=new-task name=my_robot writes a task for any other body"
        raise ValueError(f"{error}; {remedy}") from None


def write_task(cfg: dict[str, Any]) -> None:
    """mode=new-task: write the files of a task, and print the commands that train and test it."""
    name = cfg["name"]
    files = new_task.render(name)
    with errors.one_line_errors():
        new_task.write_new(files, Path.cwd())
    for file in files:
        print(f"wrote {file}")
    print(f"train it: {program('train')} task={name}")
    print(f"test it: {executable('python')} -m pytest {[*files][-1]}")


def check_task(words: list[str]) -> None:
    """mode=check: print what is wrong with a task; exit with 1 if no training can succeed with it.

    words: the others of the command line, which are those of train.py.
    """
    with errors.one_line_errors():
        configs = play_mode.check_configs(words)
    from gpusim_rl.play import check_task as checker  # loads torch, after mistakes are answered

    name, sims = next(iter(configs.values())).task.name, " and ".join(configs)
    worlds = f"{checker.WORLDS} worlds with zero actions, {checker.WORLDS} with random ones"
    print(f"checking {name} with sim={sims}: {worlds}", flush=True)
    results = checker.check_task(configs, print_now)
    for finding in results:
        print(errors.printable(str(finding)))
    print(f"{len(results)} finding{'s' * (len(results) != 1)}")
    if any(finding.certain for finding in results):
        raise SystemExit(1)


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
    source, caption = command_source(cfg, keys if mode == "viewer" else None), []

    def choose(about: Mapping[str, Any]) -> Command:
        caption[:] = [about, source(about)]
        return caption[1]

    with errors.one_line_errors():
        if run:
            rollout = player.run_rollout(run, *player.load_run(run, cfg), cfg)
        else:
            rollout = player.file_rollout(Path(cfg["onnx"]))
            gate.say_verdict(Path(cfg["onnx"]))
        frames = player.frames_of(rollout, choose, several=bool(cfg["worlds"]))
        fixed_command(rollout.about, cfg["command"])
        if mode == "viewer":
            controls = keys[0] if keys else Keys((), ())
            line = f"{run.path if run else cfg['onnx']}: {controls.help}"
            print(errors.printable(line), flush=True)
            view(rollout.model, frames, controls, rollout)
        else:
            how = dict(size=cfg["size"], view=cfg["camera"])
            how["caption"] = Caption(rollout.model, *caption)
            film(rollout.model, frames, out, cfg["seconds"], rollout.show_world, **how)
            print(f"wrote {out}")
            if cfg["mode"] == "auto" and not cfg["video"]:  # there is no display
                print(f"in a browser: {program('play')} {page_words(run, cfg)}")


def page_words(run: Any, cfg: dict[str, Any]) -> str:
    """The words of a command line that shows the same policy on a page; `run` is None of a file."""
    policy = errors.printable(f"run={run.path}" if run else f"onnx={cfg['onnx']}")
    code = f" {validate.TASK_CODE}" if cfg["task_code"] else ""
    return f"{policy} mode=web{code}"


def command_source(cfg: dict[str, Any], keys: list[Keys] | None) -> Choose:
    """Where commands come from: command=, the keyboard, or a tour.

    With a keyboard its `Keys` are appended to `keys`.
    """

    def choose(about: Mapping[str, Any]) -> Command:
        names, trained = about["names"], about["trained"]
        fixed = fixed_command(about, cfg["command"])
        if keys is not None and not len(fixed):
            center = about.get("center", ())
            keys.append(Keys(trained["low"], trained["high"], center, names))
        if len(fixed):
            return lambda t: fixed
        return keys[0] if keys else tour(about, cfg["seconds"])

    return choose


def show_page(cfg: dict[str, Any]) -> None:
    """mode=web: serve a page that shows one policy, or two side by side."""
    with errors.one_line_errors():
        words = cfg["compare"] or [cfg["onnx"] or str(player.find_run(cfg).path)]
        for word in cfg["compare"] or ():
            if not player.is_file(word):
                player.find_run({"run": word})
    with errors.one_line_errors(), check_versions():
        from gpusim_rl.web import app  # loads torch and viser, after mistakes are answered

    app.serve(cfg, words, PARENT)


def serve(cfg: dict[str, Any]) -> None:
    """Answer robots with a policy: mode=serve."""
    from gpusim_rl.serve.server import run_server  # loads what is optional

    run_server(cfg)


def show_log(cfg: dict[str, Any]) -> None:
    """mode=log: print the events of a robot's log and how far it is from its twins.

    out=, report= and video= are written if they are given. Exits with 1 if the distance is above
    alarm=.
    """
    with errors.one_line_errors():
        from gpusim_rl.deploy.onboard.log import read

        log, result, model = read(Path(cfg["mcap"])), None, None
        from gpusim_rl.play import robot_log, twin  # loads torch, after mistakes are answered

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
            how = dict(size=cfg["size"], view=cfg["camera"], seconds=cfg["seconds"])
            robot_log.film(log, result, model, Path(cfg["video"]), **how)
            print(f"wrote {cfg['video']}")
    if result and result.distance > alarm:
        errors.exit_with_error(f"{cfg['mcap']}: {robot_log.warning(result, alarm)}", 1)


def write_triton(cfg: dict[str, Any]) -> None:
    """Write a model repository of Triton: mode=triton."""
    with errors.one_line_errors():
        from gpusim_rl.serve.triton import write_repository  # loads onnx

        write_repository(cfg)


STORIES = {  # mode → what it does
    "evaluate": evaluate_run,
    "grid": grid_run,
    "export": export_run,
    "record": record_run,
    "gate": gate.gate_policy,
    "ab": gate.compare_policies,
    "robot": describe_robot,
    "new-task": write_task,
    "web": show_page,
    "serve": serve,
    "log": show_log,
    "triton": write_triton,
}


def play(cfg: dict[str, Any], show_demo: bool = False) -> None:
    """Do what a configuration asks for, with the package's own policy if `show_demo`."""
    with errors.one_line_errors():
        cfg = demo(cfg) if show_demo else cfg
        mode = choose_mode(cfg)
    if cfg["repro"]:
        replay(cfg, mode)
    elif mode in STORIES:
        STORIES[mode](cfg)
    else:
        show(cfg, mode)


def main() -> None:
    """Check the command line, then show, evaluate or export."""
    words = [word for word in sys.argv[1:] if word != "demo"]
    checks = "mode=check" in words  # whose other words are those of train.py
    words = [word for word in words if word != "mode=check"]
    options = any(word.startswith("-") for word in words)  # such as --help
    cfg = command_line.check("config" if checks else "play", words) if options or not checks else {}
    try:
        if checks:
            check_task(words)
        else:
            play(cfg, show_demo="demo" in sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":  # so a multirun exports its best run
    main()
