"""Show, evaluate or export a trained policy: `python play.py`. See `python play.py --help`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from omegaconf import DictConfig, OmegaConf

from gpusim_rl import command, config, resume, values
from gpusim_rl.show import Choose, Command, Frames, Keys, Numbers, choose_gl, film, has_display, tour, view

FILMS = (".mp4", ".mov", ".mkv", ".avi")


def find_run(cfg: dict[str, Any]) -> Any:
    """The run that run= names, else the newest."""
    from gpusim_rl.run import Run, newest

    return Run.open(Path(cfg["run"]) if cfg["run"] else newest())


def load_run(run: Any, cfg: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(PPO with the actor of the run, on the CPU, the run's configuration); checkpoint= may name another than the last."""
    from gpusim_rl.checkpoint import load

    trained = resume.trained(run) | {"episodes": cfg["episodes"]}
    if cfg["checkpoint"]:
        path = Path(cfg["checkpoint"])
        state, _ = load(path)
    else:
        state, _, path = run.checkpoints.restore(lambda line: print(line, file=sys.stderr))
    from gpusim_rl.assemble import make_ppo  # mistakes are answered before torch is loaded

    here = {"sim": {"name": "native", "threads": 1}, "device": "cpu", "num_steps": trained["algo"]["num_minibatches"]}
    ppo = make_ppo(trained | here, num_envs=1)
    ppo.load_policy(state, str(path))
    return ppo, trained


def play_run(ppo: Any, trained: dict[str, Any], seed: int, choose: Choose) -> tuple[Any, Frames]:
    """(model, frames) of one world as it is evaluated."""
    from gpusim_rl.evaluate import evaluation_env

    weights, noise, asks = trained["task"]["weights"], trained["task"]["noise"], ppo.env.task.asks
    command = choose(asks.names, asks.low, asks.high) if asks else None
    env = evaluation_env(ppo.env.task, 1, weights=weights, noise=noise, seed=seed)

    def frames() -> Frames:
        t = 0.0
        while True:
            if command:
                env.steer("command", command(t))
            env.step(ppo.act(env.views.obs))
            t += env.task.dt
            yield t, env.sim.qpos[0].numpy().copy()

    return env.task.mjm, frames()


def play_onnx(path: Path, choose: Choose) -> tuple[Any, Frames]:
    """(model, frames) of an exported policy, from its file alone."""
    import mujoco

    from gpusim_rl import deploy
    from gpusim_rl.bundle import confined

    policy = deploy.Policy(path)
    confined(policy.mjcf, None, str(path))
    asks = policy.about["command"]
    command = choose(asks["names"], asks["low"], asks["high"]) if asks else None
    model = mujoco.MjModel.from_xml_string(policy.mjcf)
    data = mujoco.MjData(model)

    def frames() -> Frames:
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_forward(model, data)
        t = 0.0
        while True:
            data.ctrl[:] = policy.act(deploy.readings(policy, data), command(t) if command else None)
            for _ in range(round(policy.dt / model.opt.timestep)):
                mujoco.mj_step(model, data)
            t += policy.dt
            yield t, data.qpos.copy()

    return model, frames()


def choose_mode(cfg: dict[str, Any]) -> str:
    """The mode, with `auto` resolved; ValueError or OSError if the keys do not fit together or a file cannot be written."""
    modes = ("auto", "viewer", "video", "evaluate", "export", "robot")
    if cfg["mode"] not in modes:
        raise ValueError(f"unknown mode {cfg['mode']!r}: choose one of {', '.join(modes)}")
    if cfg["onnx"] and cfg["mode"] in ("evaluate", "export"):
        raise ValueError(f"mode={cfg['mode']} needs run=, not onnx=")
    if cfg["repro"] and (cfg["run"] or cfg["onnx"] or cfg["mode"] in ("evaluate", "export")):
        raise ValueError("repro= is shown by itself: not with run=, onnx=, mode=evaluate or mode=export")
    mode = cfg["mode"]
    if cfg["repro"] and mode == "auto" and not cfg["video"] and not has_display():
        return "print"
    if mode == "auto":
        mode = "video" if cfg["video"] or not has_display() else "viewer"
    if mode == "viewer" and not has_display():
        raise ValueError("mode=viewer needs a display; use video=walk.mp4")
    for key in ("run", "checkpoint", "onnx", "repro", "video", "out"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a path")
    values.positive(cfg, "seconds", "episodes")
    command = cfg["command"]
    if command and not (isinstance(command, list) and all(type(x) in (int, float) for x in command)):
        raise ValueError(f"command={command}: expected numbers, such as [0.5,0,0]")
    if mode == "video":
        values.writable("video", cfg["video"], FILMS)
    elif mode in ("evaluate", "export", "robot"):
        values.writable("out", cfg["out"])
    if mode == "robot" and cfg["robot"]["mjcf"] is None:
        raise ValueError("mode=robot needs robot.mjcf=<MJCF or URDF file>")
    return mode


def evaluate_run(cfg: dict[str, Any]) -> None:
    """mode=evaluate: print the scores, and write them where out= says; the run's own eval.json stays as training wrote it."""
    import json

    with config.one_line():
        run = find_run(cfg)
        values.writable("out", cfg["out"])
        ppo, trained = load_run(run, cfg)
    from gpusim_rl.disk import write_whole
    from gpusim_rl.evaluate import evaluate  # loads torch: not before a mistake is answered

    task = trained["task"]
    scores = evaluate(
        ppo.act, ppo.env.task, weights=task["weights"], noise=task["noise"], episodes=cfg["episodes"], progress=True
    )
    text = json.dumps(scores, indent=2)
    print(text)
    if cfg["out"]:
        with config.one_line():
            write_whole(Path(cfg["out"]), (text + "\n").encode())


def export_run(cfg: dict[str, Any]) -> None:
    """mode=export: write the ONNX file."""
    with config.one_line():
        run = find_run(cfg)
        ppo, trained = load_run(run, cfg)
        path = Path(cfg["out"] or run.path / "policy.onnx")
        values.writable("out", str(path))
        from gpusim_rl.assemble import export_policy  # mistakes are answered before torch is loaded

        error = export_policy(ppo, trained, path)
    print(f"wrote {path}: within {error:.1e} of torch")


def reproduce(cfg: dict[str, Any], mode: str) -> None:
    """repro=: print what went wrong, timestep by timestep; then show it, ten times slower."""
    path = Path(cfg["repro"])
    if mode == "video":
        choose_gl()
    with config.one_line():
        from gpusim_rl.repro import Repro  # loads torch

        for line in Repro(path).steps():
            print(line)
        again = Repro(path)
        if mode == "viewer":
            view(again.model, again.frames(), None)
        elif mode == "video":
            film(again.model, again.frames(), Path(cfg["video"] or path.with_suffix(".mp4")), min(cfg["seconds"], 5))


def describe_robot(cfg: dict[str, Any]) -> None:
    """mode=robot: print what is said and guessed of a robot, as a file for conf/robot/."""
    with config.one_line():
        from gpusim_rl.robot import as_yaml, bring  # loads MuJoCo: not before a mistake is answered

        said = {key: value for key, value in cfg["robot"].items() if key not in ("name", "actuator")}
        name = cfg["robot"]["name"] if cfg["robot"]["name"] != "own" else Path(said["mjcf"].rpartition(":")[2]).stem
        text = as_yaml(bring(**said).robot, name, cfg["robot"]["actuator"])
        print(text)
        if cfg["out"]:
            Path(cfg["out"]).write_text(f"{text}\n", encoding="utf-8")


def show(cfg: dict[str, Any], mode: str) -> None:
    """mode=viewer and mode=video."""
    with config.one_line():
        run = None if cfg["onnx"] else find_run(cfg)
    out = Path(cfg["video"] or (run.path / "play.mp4" if run else Path(cfg["onnx"]).with_suffix(".mp4")))
    if mode == "video":
        with config.one_line():
            values.writable("video", str(out))
        choose_gl()
    keys: list[Keys] = []

    def choose(names: Sequence[str], low: Numbers, high: Numbers) -> Command:
        """What is asked for: what command= says, what the keyboard says, or a tour."""
        fixed = np.array(cfg["command"] or [], dtype=float)
        if len(fixed) not in (0, len(names)):
            raise ValueError(f"command={cfg['command']}: this policy follows {len(names)} numbers: {', '.join(names)}")
        if mode == "viewer":
            keys.append(Keys(low, high))
        return (lambda t: fixed) if len(fixed) else keys[0] if keys else tour(low, high, cfg["seconds"])

    with config.one_line():
        if run:
            ppo, trained = load_run(run, cfg)
            model, frames = play_run(ppo, trained, cfg["seed"], choose)
        else:
            model, frames = play_onnx(Path(cfg["onnx"]), choose)
    if mode == "viewer":
        with config.one_line():
            view(model, frames, keys[0].press if keys else None)
        return
    with config.one_line():
        film(model, frames, out, cfg["seconds"])
    print(f"wrote {out}")


@hydra.main(version_base="1.3", config_path="conf", config_name="play")
def main(cfg: DictConfig) -> None:
    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    with config.one_line():
        mode = choose_mode(values)
    if values["repro"]:
        reproduce(values, mode)
    elif mode == "evaluate":
        evaluate_run(values)
    elif mode == "export":
        export_run(values)
    elif mode == "robot":
        describe_robot(values)
    else:
        show(values, mode)


if __name__ == "__main__":
    sys.argv[1:] = command.check("play", sys.argv[1:])
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
