"""A trace of a walking task's Env in gaitkeeper's format, and the files that it is checked against.

gaitkeeper (https://github.com/dundysm/gaitkeeper) tells what another simulator does otherwise. Its
golden traces have a row for each control step and each timestep; see its `trace.py`.
"""

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

from gpusim_rl.deploy.mjlab import MjlabActor
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.evaluate import evaluation_env

Command = tuple[float, float, float]
Schedule = list[tuple[float, Command]]  # seconds at which a command begins


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
