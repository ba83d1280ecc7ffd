"""An incident of a training, stepped again in MuJoCo C: `python play.py repro=<run>/repro.safetensors`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mujoco
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpusim_rl import config, resume, values
from gpusim_rl.assemble import fitting, make_task
from gpusim_rl.incident import live
from gpusim_rl.sim.driven import drive


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is told about an incident, and its tensors; FileNotFoundError, or ValueError in one line if it is none."""
    if not path.is_file():
        raise FileNotFoundError(f"repro={path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["gpusim_rl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        found = {key: about[key] for key in ("task", "robot")}
        cfg = config.merge(config.build("config", [f"task={values.task_name(found['task']['name'])}"]), found)
        for key in found:
            about[key] = resume.own(path.parent, key, cfg[key])
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"repro={path} is no incident of a training: {error}") from None
    return about, tensors


class Repro:
    """One world as it was before the step that went wrong, its controls held.

    Args:
        path: the file; ValueError if it does not fit its task.
    """

    def __init__(self, path: Path):
        self.about, tensors = read(path)
        with fitting(self.about["task"]):
            self.task = make_task(self.about, "cpu")
            task = self.task
            settings: dict[str, Any] = dict(device="cpu", fields=task.fields, threads=1)
            self.sim = sim = drive("native", task.mjm, 1, actuator=task.actuator, substeps=task.substeps, **settings)
        for name, target in live(sim, task.fields, "force" in task.randomisation.entries).items():
            if name not in tensors or tensors[name].shape != target[0].shape:
                raise ValueError(f"repro={path} does not fit task={self.about['task']['name']}: {name}")
            target.copy_(tensors[name][None])
        if self.task.fields:
            sim.refresh()

    def steps(self) -> Iterator[str]:
        """A line before, one for each timestep of the control step, and one on what was recorded."""
        says = {key: self.about.get(key) for key in ("world", "step", "iteration")}
        yield "  ".join(f"{key} {value}" for key, value in says.items())
        for i in range(self.task.substeps + 1):
            if i:
                self.sim.step(1)
            qpos, qvel = (x.abs().max().item() for x in (self.sim.qpos, self.sim.qvel))
            fault = "  fault" if i and self.sim.fault()[0] else ""
            yield f"timestep {i}: max |qpos| {qpos:.4g}  max |qvel| {qvel:.4g}{fault}"
        why, terms = self.about.get("why"), self.about.get("terms")
        why = ", ".join(map(str, why)) if isinstance(why, list) and why else "no fault"
        terms = "  ".join(f"{name} {value}" for name, value in terms.items()) if isinstance(terms, dict) else ""
        yield f"recorded: {why}; reward terms {terms}"

    @property
    def model(self) -> mujoco.MjModel:
        return self.task.mjm

    def frames(self) -> Iterator[tuple[float, Any]]:
        """(time [s], qpos), ten times slower than it was."""
        t = 0.0
        while True:
            qpos = torch.nan_to_num(self.sim.qpos[0], posinf=0.0, neginf=0.0).clamp(-1e3, 1e3)
            yield t, qpos.numpy().copy()
            self.sim.step(1)
            t += 10 * self.task.mjm.opt.timestep
