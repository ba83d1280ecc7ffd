"""The ONNX file alone walks as the torch policy does.

    python -m benchmarks.deploy runs/quadruped/…/policy.onnx [run=DIR] [episodes=512] [expect=0.97]

In this process torch evaluates the run's newest checkpoint. Then `tests/walk_alone.py` walks the
same episodes (start states, worlds, commands, noise of the readings) in MuJoCo C, and `runtime.py`
gives the targets in a process that can import neither torch nor mujoco. Exits with 1 if the shares
of successful episodes differ by more than 0.03. Delays and biases of readings are not emulated, so
only without them are the two the same robot. `run` is the folder of the file by default.
`expect` is torch's figure from elsewhere, such as the run's eval.json.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import program
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.resume import load_config
from gpusim_rl.envs.env import Env
from gpusim_rl.evaluation.evaluate import SEED, evaluate, evaluation_env
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = 0.03  # of success


@torch.no_grad()
def episodes(env: Env, path: Path) -> None:
    """Write what happens to the worlds of a fresh evaluation Env whatever the robot does, as
    arrays, to path (.npz).

    `qpos`, `qvel`, `phase`: start states. `model/<field>`: the worlds. `command` (T+1, B, 3) and
    `noise/<reading>` (T+1, B, …): at each control step. `timing`: control steps between commands
    and ignored after one, timesteps in a control step. `fallen`: a height [m] of the base.
    Advances the Env's clock and memory, but not its physics.
    """
    task = env.task
    given: dict[str, Any] = {
        "qpos": env.sim.qpos.clone(),
        "qvel": env.sim.qvel.clone(),
        "phase": env.memory["phase"].clone(),
    }
    given |= {f"model/{field}": env.sim.model(field) for field in task.fields}
    commands, noise = [], []
    for t in range(task.horizon + 1):
        if t:  # as in Env.step, without the step
            env.time.fill_(t)
            env.step_count.fill_(t)
            env.rng.draw(env.step_count)
            env.write(task.update(env.current_state(), env.rng), None)
        commands.append(env.memory["command"].clone())
        noise.append(env.measurement.noise(env.rng).clone())
    given["command"] = torch.stack(commands)
    parts = torch.stack(noise).split(list(env.measurement.widths.values()), dim=2)
    given |= {
        f"noise/{reading}": part
        for reading, part in zip(env.measurement.widths, parts, strict=True)
        if part.any()
    }
    timing = [round(task.redraw / task.dt), round(1.0 / task.dt), task.substeps]  # pyright: ignore
    given["timing"] = torch.tensor(timing)
    given["fallen"] = torch.tensor(task.base_height / 2)
    np.savez(path, **{name: value.numpy() for name, value in given.items()})


def walk_alone(onnx: Path, given: Path, out: Path) -> dict[str, np.ndarray]:
    """Results of tests/walk_alone.py in a process of its own, isolated from this checkout."""
    script, runtime = ROOT / "tests" / "walk_alone.py", ROOT / "gpusim_rl" / "deploy" / "runtime.py"
    command = [sys.executable, "-I", *map(str, (script, runtime, onnx.resolve(), given, out))]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    with np.load(out) as file:
        return {name: file[name] for name in file.files}


def compare(onnx: Path, run: Path, count: int, expect: float | None) -> tuple[float, float]:
    """Success of the torch policy and of the exported one."""
    opened = Run.open(run)
    settings = load_config(opened)
    ppo = make_iteration(
        settings.replace({"sim": {"name": "native", "threads": 0}, "device": "cpu"}), num_envs=1
    )
    task = ppo.env.task
    numbers: dict[str, Any] = {"weights": settings.task.weights, "noise": settings.task.noise}
    if expect is None:
        ppo.policy.load(load(opened.checkpoints.latest())[0], str(opened.checkpoints.latest()))
        expect = evaluate(ppo.policy, task, **numbers, episodes=count)["success"] or 0.0
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "episodes.npz", Path(folder) / "walked.npz"
        episodes(evaluation_env(task, count, **numbers, seed=SEED), given)
        walked = walk_alone(onnx, given, out)
    print(
        "policy.onnx: "
        + "  ".join(f"{key} {walked[key].mean():.4f}" for key in ("velocity", "yaw", "fell"))
    )
    return expect, float(walked["success"].mean())


def main(words: list[str]) -> None:
    """Compare and print."""
    own, files = program.split_words(__doc__, words, run=None, episodes=512, expect=None)
    onnx = program.one_file(files, "policy.onnx")
    torch.set_num_threads(1)
    run = Path(own.run or onnx.resolve().parent)
    expected, without_torch = compare(onnx, run, own.episodes, own.expect)
    print(
        f"success: torch {expected:.4f}, policy.onnx without torch {without_torch:.4f}, over "
        f"{own.episodes} episodes"
    )
    sys.exit(abs(expected - without_torch) > ALLOWED)


if __name__ == "__main__":
    main(sys.argv[1:])
