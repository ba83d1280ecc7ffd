"""A step that went wrong, stepped again: `python play.py repro=<run>/repro.safetensors`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpusim_rl.assembly.environment import make_task
from gpusim_rl.assembly.models import model_must_fit
from gpusim_rl.config import check_words, compose, validate
from gpusim_rl.config.run_files import find_files
from gpusim_rl.config.sections import Config
from gpusim_rl.envs.worst_step import step_tensors
from gpusim_rl.sim.actuated import make_actuated


def read(
    path: Path, task_code: str | None = None
) -> tuple[dict[str, Any], Config, dict[str, Tensor]]:
    """The report on a failure, its configuration, and its tensors.

    FileNotFoundError or ValueError if there is no such file, or it is none of ours.
    """
    if not path.is_file():
        raise FileNotFoundError(f"repro={path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            description = json.loads((file.metadata() or {})["gpusim_rl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        keys = [x for x in ("task", "robot", "terrain") if x in description]
        name, saved = str(description["task"]["name"]), description.get("task_code")
        code = validate.saved_code("task", name, saved, task_code)
        builtin = code is None
        words = [f"task={validate.check_name('task', name)}"]
        base = compose.build("config", words, builtin)
        cfg = check_words.merge(base, {key: description[key] for key in keys})
        find_files(path.parent, cfg, builtin)
        config = Config.of(cfg | {"task_code": code})
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"repro={path} is no failure of a training: {error}") from None
    return description, config, tensors


class FailureReplay:
    """One world as it was before the step that went wrong, its controls held.

    task_code: "here" allows a task of the working directory. ValueError if the file does not fit.
    """

    def __init__(self, path: Path, task_code: str | None = None):
        self.description, config, tensors = read(path, task_code)
        with model_must_fit(config.task, config.task_code):
            self.task = task = make_task(config, "cpu")
            settings: dict[str, Any] = dict(device="cpu", fields=task.fields, threads=1)
            settings |= {"actuator": task.actuator}
            self.sim = sim = make_actuated("native", task.physics, 1, **settings)
        pushed = "force" in task.randomization.entries
        for name, target in step_tensors(sim, task.fields, pushed).items():
            if name not in tensors or tensors[name].shape != target[0].shape:
                raise ValueError(f"repro={path} does not fit task={config.task.name}: {name}")
            target.copy_(tensors[name][None])
        if task.fields:
            sim.refresh()

    def steps(self) -> Iterator[str]:
        """A first line, one for each timestep of the control step, and one on what was recorded."""
        where = {key: self.description.get(key) for key in ("world", "step", "iteration")}
        yield "  ".join(f"{key} {value}" for key, value in where.items())
        for i in range(self.task.substeps + 1):
            if i:
                self.sim.step(1)
            qpos, qvel = (x.abs().max().item() for x in (self.sim.qpos, self.sim.qvel))
            fault = "  fault" if i and self.sim.fault()[0] else ""
            yield f"timestep {i}: max |qpos| {qpos:.4g}  max |qvel| {qvel:.4g}{fault}"
        why, terms = self.description.get("why"), self.description.get("terms")
        why = ", ".join(map(str, why)) if isinstance(why, list) and why else "no fault"
        values = terms.items() if isinstance(terms, dict) else ()
        values = "  ".join(f"{name} {value}" for name, value in values)
        yield f"recorded: {why}; reward terms {values}"

    @property
    def model(self) -> mujoco.MjModel:
        return self.task.physics

    def frames(self) -> Iterator[tuple[float, Any]]:
        """(time [s], qpos), ten times slower than it was."""
        t = 0.0
        while True:
            qpos = torch.nan_to_num(self.sim.qpos[0], posinf=0.0, neginf=0.0).clamp(-1e3, 1e3)
            yield t, qpos.numpy().copy()
            self.sim.step(1)
            t += 10 * self.task.physics.opt.timestep
