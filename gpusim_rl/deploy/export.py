"""Exported policies: `policy.onnx` is the whole controller, or on request the network alone.

A file is compared with what it was made from before it is written. On any failure nothing is
written, and an older file stays as it is.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpusim_rl.core.files import write_whole
from gpusim_rl.deploy.controller import MEMORY, RESTART, Controller
from gpusim_rl.deploy.describe import FORMAT, describe
from gpusim_rl.deploy.onboard.verdict import Json
from gpusim_rl.deploy.record import Ranges, Trace, greatest_changes
from gpusim_rl.deploy.to_onnx import finished, to_onnx

TOLERANCE = 1e-5  # largest allowed difference of an output
LEAST_SAMPLES = 1000  # world-steps or observations that a file is compared on


def export(
    controller: Controller,
    path: Path,
    *,
    name: str,
    recorded: Trace,
    ranges: Ranges,
    lineage: Json,
    rest: Json | None = None,
) -> float:
    """Write a controller as ONNX and return its largest difference from the Env, of a target.

    Args:
        name: the task's name.
        recorded: at least 1,000 world-steps of the task.
        ranges: input → its percentiles 0, 0.5, 99.5 and 100, column by column.
        lineage: where the policy comes from: the run, the iteration, its success.
        rest: what `standing` says of the robot.

    ValueError if there are too few world-steps, one is not finite, ONNX lacks an operator of the
    task, or file and Env differ by more than 1e-5.
    """
    values = [*recorded.readings.values(), recorded.targets]
    finite = np.stack([np.isfinite(x).all(tuple(range(2, x.ndim))) for x in values])
    check_finite("world-steps", np.asarray(finite.all(axis=0)))
    description = describe(controller, name=name, ranges=ranges, lineage=lineage)
    description["outputs"][0]["change"] = greatest_changes(recorded)
    description |= {"standing": rest} if rest else {}
    sample = {key: torch.zeros(2, *shape) for key, shape in controller.shapes().items()}
    sample |= {
        key: torch.cat([x, x]) for key, x in controller.blank.items() if key in controller.views
    }
    sample |= {MEMORY + key: torch.cat([x, x]) for key, x in controller.start.items()}
    sample[RESTART] = torch.tensor([True, False])
    model = to_onnx(controller, sample, controller.outputs, controller.user)
    data = finished(model, description, controller.task.mjcf_text())
    error = parity(data, controller, recorded)
    check_error("targets or memory of ONNX and Env", error, f"{recorded.restart.size} world-steps")
    write_whole(path, data)
    return error


def export_network(
    actor: nn.Module,
    path: Path,
    *,
    name: str,
    terms: dict[str, int],
    history: dict[str, int],
    observations: Tensor,
    views: dict[str, Tensor] | None = None,
    mjcf: str,
    lineage: Json,
    further: dict[str, str] | None = None,
) -> float:
    """Write an actor with its normalizer as ONNX: `obs` (B, no) → `action` (B, nu), not clamped.

    Further views are inputs of their names and types.

    Returns its largest difference from torch; raises as `export` does.

    Args:
        name, lineage: as of `export`.
        terms, history: observation term → width, and control steps of it, oldest first.
        observations: (N, no), at least 1,000, recorded from the task; views: as many of those that
            the actor sees beside.
        mjcf: the text of the model.
        further: metadata of other names.
    """
    check_finite("observations", torch.isfinite(observations).all(1).numpy())
    steps = {term: history.get(term, 1) for term in terms}
    observation = [{"name": x, "width": terms[x], "history": steps[x]} for x in terms]
    metadata = {"format": FORMAT, "kind": "network", "task": name, "observation": observation}
    actor = copy.deepcopy(actor).cpu()  # outside the iteration
    views = views or {}
    seen, alone = {"obs": observations} | views, WithViews(actor, [*views]) if views else actor
    model = to_onnx(alone, {name: x[:2] for name, x in seen.items()}, ["action"])
    data = finished(model, metadata | {"lineage": lineage}, mjcf, further)
    with torch.no_grad():
        expected = alone(*seen.values()).numpy()
    (action,) = session(data).run(None, {name: x.numpy() for name, x in seen.items()})
    error = float(np.abs(np.asarray(action) - expected).max())
    check_error("actions of ONNX and torch", error, f"{len(observations)} observations")
    write_whole(path, data)
    return error


class WithViews(nn.Module):
    """An actor whose further views are arguments, in the order of their names."""

    def __init__(self, actor: nn.Module, names: list[str]):
        super().__init__()
        self.actor, self.names = actor, names

    def forward(self, obs: Tensor, *views: Tensor) -> Tensor:
        return self.actor(obs, None, dict(zip(self.names, views, strict=True)))


def check_finite(what: str, finite: np.ndarray) -> None:
    """Raise ValueError unless there are at least 1,000 rows and all are finite."""
    if finite.sum() < max(LEAST_SAMPLES, finite.size):
        counts = f"{finite.size}, of which {finite.sum()} are finite"
        needed = f"at least {LEAST_SAMPLES} recorded {what}, all finite"
        raise ValueError(f"export needs {needed}: got {counts}")


def check_error(what: str, error: float, where: str) -> None:
    """Raise ValueError if a difference is above 1e-5, or NaN."""
    if not error <= TOLERANCE:
        far = f"{error:.2e} over {where}, more than {TOLERANCE:.0e}"
        raise ValueError(f"export: {what} differ by {far}")


def session(data: bytes) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


# Why: docs/decisions/controller.md
def parity(data: bytes, controller: Controller, recorded: Trace) -> float:
    """Largest |ONNX - Env| / max(1, |Env|) of a target or of memory, over all world-steps.

    Each step begins with what the Env remembers, since a policy that answers its own last action
    strongly would enlarge the rounding of one step in the next. The history of terms, and what the
    actor itself remembers, go from each step to the next through the file.
    """
    run, (steps, worlds) = session(data).run, recorded.restart.shape
    first = {name: x.numpy().repeat(worlds, 0) for name, x in controller.start.items()}
    memory, worst = first, 0.0
    for t in range(steps):
        restart = recorded.restart[t]
        begin = first | {name: x[t] for name, x in recorded.memory.items()}
        begins = {name: restart.reshape(-1, *[1] * (x.ndim - 1)) for name, x in memory.items()}
        memory = {name: np.where(begins[name], begin[name], x) for name, x in memory.items()}
        feed = {name: x[t] for name, x in recorded.readings.items()} | {RESTART: restart}
        feed |= {MEMORY + name: x for name, x in memory.items()}
        targets, fault, *after = run(controller.outputs, feed)
        if fault.any():
            what = "an action, a target or memory is not finite"
            raise ValueError(f"export: in control step {t} of {steps} {what}")
        expected = {name: x[t] for name, x in recorded.after.items()}
        memory = dict(zip(memory, after, strict=True))
        pairs = [(memory[name], x) for name, x in expected.items()]
        for pair in ((targets, recorded.targets[t]), *pairs):
            ours, theirs = (x.astype(np.float64) for x in pair)  # also of bool memory
            error = np.abs(ours - theirs) / np.maximum(1, np.abs(theirs))
            # max() of Python would drop it
            worst = np.maximum(worst, error.max())  # keeps NaN
        memory |= expected
    return float(worst)
