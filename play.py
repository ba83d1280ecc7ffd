"""Show, evaluate or export a trained policy: `python play.py`. See `python play.py --help`."""

import ctypes.util
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from omegaconf import DictConfig, OmegaConf

from gpusim_rl import config

TOUR = ([0.0, 0.0, 0.0], [0.8, 0.0, 0.0], [0.5, 0.0, 0.8], [0.0, 0.4, 0.0], [-0.6, 0.0, 0.0], [0.0, 0.0, -1.0])
FILMS = (".mp4", ".mov", ".mkv", ".avi")
NO_GL = (
    "no display and no off-screen OpenGL: install EGL (apt install libegl1 libgl1-mesa-dri) or OSMesa (apt install libosmesa6)"
)

Command = Callable[[float], np.ndarray]  # time [s] → command
Frames = Iterator[tuple[float, np.ndarray]]  # time [s], qpos (nq,)


def has_display() -> bool:
    """Whether a window can open here."""
    return bool(sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def choose_gl() -> None:
    """Pick MuJoCo's off-screen backend, which it loads when it is imported; exits in one line if there is none."""
    if sys.platform == "linux" and "MUJOCO_GL" not in os.environ:
        found = [gl for gl, library in (("egl", "EGL"), ("osmesa", "OSMesa")) if ctypes.util.find_library(library)]
        if not found and not has_display():
            config.fail(NO_GL)
        os.environ["MUJOCO_GL"] = found[0] if found else "glfw"
    try:
        import mujoco  # noqa: F401
    except Exception as error:  # each backend raises a kind of its own
        config.fail(f"{NO_GL} ({error})")


@contextmanager
def quiet_glfw() -> Iterator[None]:
    """GLFW's own warnings go unsaid: one line of ours says what to do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -- what is played: a trained run in its Env, or an exported file alone -------------------------------------------------


def find_run(cfg: dict[str, Any]) -> Any:
    """The run that run= names, else the newest."""
    from gpusim_rl.run import Run, newest

    return Run.open(Path(cfg["run"]) if cfg["run"] else newest())


def load_run(run: Any, cfg: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(PPO with the actor of the run, on the CPU, the run's configuration); checkpoint= may name another than the last."""
    from gpusim_rl.run import load

    trained = config.trained(run)
    path = Path(cfg["checkpoint"]) if cfg["checkpoint"] else run.latest()
    state, _ = load(path)
    from gpusim_rl.assemble import make_ppo  # mistakes are answered before torch is loaded

    here = {"sim": {"name": "native", "threads": 1}, "device": "cpu", "num_steps": trained["algo"]["num_minibatches"]}
    ppo = make_ppo(trained | here, num_envs=1)
    ppo.load_policy(state, str(path))
    return ppo, trained


def play_run(ppo: Any, trained: dict[str, Any], seed: int, command: Command | None) -> tuple[Any, Frames]:
    """(model, frames) of one world as it is evaluated."""
    from gpusim_rl.evaluate import evaluation_env

    weights, noise = trained["task"]["weights"], trained["task"]["noise"]
    command = fitting(command, ppo.env.task.asks.names if ppo.env.task.asks else ())
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


def fitting(command: Command | None, names: Sequence[str]) -> Command | None:
    """The command if the policy follows one; ValueError if it asks for other numbers."""
    if command and names and len(command(0.0)) != len(names):
        raise ValueError(f"command={command(0.0).tolist()}: this policy follows {len(names)} numbers: {', '.join(names)}")
    return command if names else None


def play_onnx(path: Path, command: Command | None) -> tuple[Any, Frames]:
    """(model, frames) of an exported policy, from its file alone."""
    import mujoco

    from gpusim_rl import deploy

    policy = deploy.Policy(path)
    command = fitting(command, policy.about["command"]["names"] if policy.about["command"] else ())
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


# -- how it is shown -----------------------------------------------------------------------------------------------------


def film(model: Any, frames: Frames, path: Path, seconds: float) -> None:
    """Write a video, off screen, 25 frames a second."""
    import imageio
    import mujoco
    from rich.progress import track

    data = mujoco.MjData(model)
    try:
        with quiet_glfw():
            renderer = mujoco.Renderer(model, 480, 720)
    except Exception as error:  # each backend raises a kind of its own
        config.fail(f"{NO_GL} ({error})")
    camera = model.camera("track").id if "track" in [model.camera(i).name for i in range(model.ncam)] else -1
    fps, due = 25, 0.0
    part = path.with_stem(f".{path.stem}.part")  # a film that breaks off leaves nothing
    try:
        with imageio.get_writer(part, fps=fps, macro_block_size=8) as video, renderer:
            for _ in track(range(round(seconds * fps)), description=f"filming {path}", disable=not sys.stdout.isatty()):
                due += 1 / fps
                for t, qpos in frames:  # noqa: B007  both are used below
                    if t >= due - 1e-9:
                        break
                data.qpos[:] = qpos
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera)
                video.append_data(renderer.render())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class Keys:
    """The command as the keyboard changes it: a callable of time."""

    STEP = {265: (0, 0.1), 264: (0, -0.1), 44: (1, 0.1), 46: (1, -0.1), 263: (2, 0.2), 262: (2, -0.2)}  # noqa: RUF012

    def __init__(self) -> None:
        self.value = np.zeros(3)

    def press(self, key: int) -> None:
        """GLFW key codes: arrows, comma, full stop, space."""
        if key in self.STEP:
            axis, step = self.STEP[key]
            self.value[axis] = np.clip(self.value[axis] + step, -1, 1)
        elif key == 32:
            self.value[:] = 0

    def __call__(self, t: float) -> np.ndarray:
        return self.value


def view(model: Any, frames: Frames, keys: Keys) -> None:
    """Show it in MuJoCo's viewer, in real time, until the window closes."""
    import glfw
    import mujoco
    import mujoco.viewer

    with quiet_glfw():
        if not glfw.init():  # MuJoCo would exit without a word on what to do
            config.fail(f"no window can be opened on the display {os.environ.get('DISPLAY', '')}: use video=walk.mp4")
    data = mujoco.MjData(model)
    with mujoco.viewer.launch_passive(model, data, key_callback=keys.press, show_left_ui=False) as window:
        begun = time.perf_counter()
        for t, qpos in frames:
            data.qpos[:] = qpos
            mujoco.mj_forward(model, data)
            window.sync()
            time.sleep(max(0.0, begun + t - time.perf_counter()))
            if not window.is_running():
                return


def tour(seconds: float) -> Command:
    """Each command of TOUR for an equal time."""
    return lambda t: np.array(TOUR[min(int(t / seconds * len(TOUR)), len(TOUR) - 1)])


def choose_mode(cfg: dict[str, Any]) -> str:
    """The mode, with `auto` resolved; ValueError or OSError if the keys do not fit together or a file cannot be written."""
    modes = ("auto", "viewer", "video", "evaluate", "export")
    if cfg["mode"] not in modes:
        raise ValueError(f"unknown mode {cfg['mode']!r}: choose one of {', '.join(modes)}")
    if cfg["onnx"] and cfg["mode"] in ("evaluate", "export"):
        raise ValueError(f"mode={cfg['mode']} needs run=, not onnx=")
    mode = cfg["mode"]
    if mode == "auto":
        mode = "video" if cfg["video"] or not has_display() else "viewer"
    if mode == "viewer" and not has_display():
        raise ValueError("mode=viewer needs a display; use video=walk.mp4")
    for key in ("run", "checkpoint", "onnx", "video", "out"):
        if cfg[key] is not None and not isinstance(cfg[key], str):
            raise ValueError(f"{key}={cfg[key]!r}: expected a path")
    config.positive(cfg, "seconds", "episodes")
    command = cfg["command"]
    if command and not (isinstance(command, list) and all(type(x) in (int, float) for x in command)):
        raise ValueError(f"command={command}: expected numbers, such as [0.5,0,0]")
    if mode == "video":
        config.writable("video", cfg["video"], FILMS)
    elif mode in ("evaluate", "export"):
        config.writable("out", cfg["out"])
    return mode


def evaluate_run(cfg: dict[str, Any]) -> None:
    """mode=evaluate: print and write the scores."""
    import json

    with config.one_line():
        run = find_run(cfg)
        path = Path(cfg["out"] or run.path / "eval.json")
        config.writable("out", str(path))
        ppo, trained = load_run(run, cfg)
    from gpusim_rl.evaluate import evaluate  # loads torch: not before a mistake is answered
    from gpusim_rl.run import write_whole

    task = trained["task"]
    scores = evaluate(
        ppo.act, ppo.env.task, weights=task["weights"], noise=task["noise"], episodes=cfg["episodes"], progress=True
    )
    text = json.dumps(scores, indent=2)
    print(text)
    with config.one_line():
        write_whole(path, (text + "\n").encode())


def export_run(cfg: dict[str, Any]) -> None:
    """mode=export: write the ONNX file."""
    with config.one_line():
        run = find_run(cfg)
        ppo, trained = load_run(run, cfg)
        path = Path(cfg["out"] or run.path / "policy.onnx")
        config.writable("out", str(path))
        from gpusim_rl.assemble import export_policy  # mistakes are answered before torch is loaded

        error = export_policy(ppo, trained, path)
    print(f"wrote {path}: within {error:.1e} of torch")


def show(cfg: dict[str, Any], mode: str) -> None:
    """mode=viewer and mode=video."""
    with config.one_line():
        run = None if cfg["onnx"] else find_run(cfg)
    out = Path(cfg["video"] or (run.path / "play.mp4" if run else Path(cfg["onnx"]).with_suffix(".mp4")))
    if mode == "video":
        with config.one_line():
            config.writable("video", str(out))
        choose_gl()
    keys = Keys()
    fixed = np.array(cfg["command"], dtype=float) if cfg["command"] else None
    command = (lambda t: fixed) if fixed is not None else keys if mode == "viewer" else tour(cfg["seconds"])
    with config.one_line():
        if run:
            ppo, trained = load_run(run, cfg)
            model, frames = play_run(ppo, trained, cfg["seed"], command)
        else:
            model, frames = play_onnx(Path(cfg["onnx"]), command)
    if mode == "viewer":
        view(model, frames, keys)
        return
    with config.one_line():
        film(model, frames, out, cfg["seconds"])
    print(f"wrote {out}")


@hydra.main(version_base="1.3", config_path="conf", config_name="play")
def main(cfg: DictConfig) -> None:
    values: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    with config.one_line():
        mode = choose_mode(values)
    if mode == "evaluate":
        evaluate_run(values)
    elif mode == "export":
        export_run(values)
    else:
        show(values, mode)


if __name__ == "__main__":
    config.check("play", sys.argv[1:])
    main()
