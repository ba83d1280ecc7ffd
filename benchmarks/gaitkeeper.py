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
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import torch
from torch import Tensor

from benchmarks import program
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.resume import load_config
from gpusim_rl.deploy.export_policy import export_bare_network
from gpusim_rl.deploy.mjlab import MjlabActor
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.evaluate import SEED, evaluation_env
from gpusim_rl.runs.checkpoints import load
from gpusim_rl.runs.run import Run

Command = tuple[float, float, float]
Schedule = list[tuple[float, Command]]  # seconds at which a command begins
NEAR = 1e-4  # of an observation, in its unit
# shares of the largest commands, and commands [m/s, m/s, rad/s] that start no gait clock
WALK: Schedule = [(0, (0.6, 0, 0)), (3, (1, 0, 0)), (6, (0, 0.8, 0)), (9, (0.5, 0, 0.8))]
WALK += [(13, (-0.6, 0, 0))]
STAND: Schedule = [(0, (0, 0, 0)), (2, (0.03, 0, 0)), (4, (0, 0.04, 0)), (6, (0, 0, 0.04))]


class Recorder:
    """Steps an Env of one world, and writes what happens; the clock of an episode begins at 0.

    MuJoCo's sensors are one timestep older than its state, of which gaitkeeper computes what a
    robot measures. So they are computed again before each observation.

    Args:
        env: whose readings have no noise.
        actor: between mjlab's words and ours.
        fresh: whether the sensors are computed again.
    """

    def __init__(self, env: Env, actor: MjlabActor, fresh: bool = True):
        self.env, self.actor, self.fresh = env, actor, fresh
        self.rows: dict[str, list[Any]] = defaultdict(list)
        self.batch: Any = env.sim.batch  # pyright: ignore
        self.forces, self.sensors = self.batch.bind("actuator_force"), self.batch.bind("sensordata")
        self.schedule: list[tuple[float, ...]] = []
        self.timestep, env.sim.step = env.sim.step, self.step

    def step(self, n: int) -> None:
        """Advance by n timesteps, and write each."""
        sim, rows = self.env.sim, self.rows
        for substep in range(n):
            state = dict(qpos=sim.qpos, qvel=sim.qvel, ctrl=sim.ctrl)
            for name, x in state.items():
                rows[f"p/{name}"].append(x[0].numpy().copy())
            self.timestep(1)
            rows["p/effort"].append(self.forces[0].copy())
            rows["p/step"].append(len(rows["obs"]) - 1)
            rows["p/substep"].append(substep)

    @torch.no_grad()
    def run(self, act: Callable[[Tensor], Tensor], schedule: Schedule, seconds: float) -> None:
        """An episode at commands, either all with a clock that runs or all without."""
        env, rows, task = self.env, self.rows, self.actor.task
        begin = len(rows["obs"]) * task.dt
        self.schedule += [(begin + t, *command) for t, command in schedule]
        env.restart()
        env.set_memory("phase", 0.0)
        for t in range(round(seconds / task.dt)):
            command = [x for begins, x in schedule if begins <= t * task.dt + 1e-9][-1]
            if self.fresh:
                self.batch.forward()
                env.sim.sensordata.numpy()[:] = self.sensors
            env.set_memory("command", command)
            rows["obs"].append(self.actor.theirs(env.observation["actor"])[0].numpy())
            rows["qpos"].append(env.sim.qpos[0].numpy().copy())
            rows["qvel"].append(env.sim.qvel[0].numpy().copy())
            rows["command"].append(np.array(command))
            rows["episode_step"].append(t)
            rows["reset"].append(t == 0)
            end = env.step(act(env.observation["actor"]))
            targets = rows["p/ctrl"][-1]
            scale = np.asarray(task.joint_scales, float)  # pyright: ignore
            rows["action"].append((targets - np.asarray(task.stance, float)) / scale)
            rows["target"].append(targets)
            if end.terminated.any() or end.truncated.any():
                break

    def save(self, path: Path) -> Path:
        """Write the trace as a folder, and return it."""
        from gaitkeeper.trace import Trace  # pyright: ignore[reportMissingImports]

        m, dt = self.env.task.mjm, self.env.task.dt
        joints = [
            m.joint(i).name for i in range(m.njnt) if m.jnt_type[i] != mujoco.mjtJoint.mjJNT_FREE
        ]
        driven = [m.joint(i).name for i in m.actuator_trnid[:, 0]]
        layout = dict(joint_names=joints, free_joint=True)
        meta: dict[str, Any] = dict(state_layout=layout, schedule=self.schedule, policy_dt=dt)
        meta |= dict(target_joint_names=driven, effort_joint_names=driven)
        meta |= dict(sim_dt=m.opt.timestep, decimation=self.env.task.substeps)
        meta |= dict(engine=f"gpusim_rl, MuJoCo {mujoco.__version__}")
        Trace({name: np.array(x) for name, x in self.rows.items()}, meta).save(path)
        return path


def nominal_env(task: Task, weights: dict[str, float], noise: dict[str, float], seed: int) -> Env:
    """One world as an evaluation has it, of the model itself: nothing is random but the start."""
    task, silent = replace(task, randomise={}), dict.fromkeys(noise, 0.0)
    return evaluation_env(task, 1, weights=weights, noise=silent, seed=seed)


def read_contract(path: Path) -> Any:
    """What gaitkeeper reads of an exported network and of the file beside it."""
    from gaitkeeper.readers.mjlab_export import (  # pyright: ignore[reportMissingImports]
        read_mjlab_export,
    )

    contract, findings = read_mjlab_export(path, path.with_suffix(".deploy.yaml"))
    assert all(x.kind == "missing" for x in findings), findings
    return contract


def write_model(path: Path) -> Path:
    """Write the model that an exported file holds beside it."""
    held = {x.key: x.value for x in onnx.load(path).metadata_props}
    path.with_suffix(".xml").write_text(held["mjcf"])
    return path.with_suffix(".xml")


def load_trace(path: Path) -> Any:
    """A trace that `Recorder.save` wrote."""
    from gaitkeeper.trace import Trace  # pyright: ignore[reportMissingImports]

    return Trace.load(path)


def difference(trace: Any, contract: Any) -> float:
    """The largest between observations of a trace and those that gaitkeeper makes of its states.

    Its own comparison (0.5.4) overlooks terms that mjlab's metadata and deploy.yaml name otherwise.
    """
    from gaitkeeper.compare import raw_state  # pyright: ignore[reportMissingImports]
    from gaitkeeper.terms import build_observation  # pyright: ignore[reportMissingImports]

    made, _, _ = build_observation(raw_state(trace), contract)
    return float(np.abs(trace["obs"] - made).max())


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
