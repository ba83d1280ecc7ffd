"""gaitkeeper reads a walking run's network, and finds our simulation in its own.

    python -m benchmarks.gaitkeeper runs/humanoid/… [seeds=3]

Needs `pip install gaitkeeper`. The newest checkpoint's network is exported alone. A trace
of two episodes is recorded in the Env of an evaluation, without noise and other randomisation: a
walk, and commands too small for the gait clock. gaitkeeper then makes the actions (B) and the
observations (A) of the trace from the files alone, its torques (C), and the forces that its motion
needs in the file's model (D). It runs the same commands in its own loop, from other starts. Exits
with 1 unless its verdict is PASS and none of its static checks fails.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import program
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.resume import load_config
from gpusim_rl.deploy.export_policy import export_bare_network
from gpusim_rl.deploy.mjlab import MjlabActor
from gpusim_rl.evaluation.evaluate import SEED
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run
from tests.mjlab_trace import (
    Command,
    Recorder,
    Schedule,
    difference,
    load_trace,
    nominal_env,
    read_contract,
    write_model,
)

NEAR = 1e-4  # of an observation, in its unit
# shares of the largest commands, and commands [m/s, m/s, rad/s] that start no gait clock
WALK: Schedule = [(0, (0.6, 0, 0)), (3, (1, 0, 0)), (6, (0, 0.8, 0)), (9, (0.5, 0, 0.8))]
WALK += [(13, (-0.6, 0, 0))]
STAND: Schedule = [(0, (0, 0, 0)), (2, (0.03, 0, 0)), (4, (0, 0.04, 0)), (6, (0, 0, 0.04))]


def judge(run: Path, seeds: int, folder: Path) -> bool:
    """Whether gaitkeeper passes the newest checkpoint of a run; what it says is printed."""
    from gaitkeeper.checks import run_checks  # pyright: ignore[reportMissingImports]
    from gaitkeeper.diagnose import diagnose_trace  # pyright: ignore[reportMissingImports]
    from gaitkeeper.policy import load_policy  # pyright: ignore[reportMissingImports]
    from gaitkeeper.runner import Runner  # pyright: ignore[reportMissingImports]

    opened = Run.open(run)
    cfg = load_config(opened).replace({"sim": {"name": "native", "threads": 1}, "device": "cpu"})
    if cfg.plain["task"].get("acceleration"):
        raise SystemExit(f"{run}: mjlab's words know no task.acceleration: take one of recipe=fast")
    iteration = make_iteration(cfg, num_envs=1)
    newest = opened.checkpoints.latest()
    iteration.policy.load(load(newest)[0], str(newest))
    path = folder / "network.onnx"
    error = export_bare_network(iteration, cfg, run, path)
    print(f"{newest}: the file's actions are within {error:.1e} of training's")
    env = nominal_env(iteration.env.task, cfg.task.weights, cfg.task.noise, SEED)
    actor = iteration.policy.actor
    task: Any = env.task
    recorder = Recorder(env, MjlabActor(actor, task, env.term_widths))
    recorder.run(actor, [(t, scaled(x, task.fastest)) for t, x in WALK], 16)
    recorder.run(actor, STAND, 8)
    trace = load_trace(recorder.save(folder / "trace"))
    contract, model = read_contract(path), write_model(path)
    diagnosis = diagnose_trace(
        trace,
        contract,
        load_policy(contract, path),
        onnx=str(path),
        target=str(model),
        seeds=tuple(range(1, seeds + 1)),
        workers=1,
    )
    print("\n".join(diagnosis.lines()))
    checks = run_checks(Runner(contract, model, load_policy(contract, path)))
    print("\n".join(x.text() for x in checks))
    error = difference(trace, contract)
    print(f"observations that are made of the states: within {error:.1e}")
    passed = diagnosis.decision.verdict == "PASS" and all(x.status != "FAIL" for x in checks)
    return passed and error < NEAR


def scaled(share: tuple[float, ...], fastest: tuple[float, ...]) -> Command:
    """A command at shares of the largest."""
    forward, left, turn = (a * b for a, b in zip(share, fastest, strict=True))
    return forward, left, turn


def main(words: list[str]) -> None:
    """Judge a run, with so many `seeds` of gaitkeeper's own loop."""
    own, runs = program.split_words(__doc__, words, seeds=3)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(not judge(program.one_file(runs, "run"), own.seeds, Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
