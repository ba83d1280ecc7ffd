"""ONNX export of the deterministic actor with its normalizer.

The file is compared with torch before it is written. It holds a description of the task, which is
all that a program on the robot needs.
"""

import copy
import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from gpusim_rl.core.files import write_whole
from gpusim_rl.core.provenance import versions
from gpusim_rl.envs.task import Task
from gpusim_rl.networks.actor_critic import Actor
from gpusim_rl.robots.servos import actuators

OPSET = 18
TOLERANCE = 1e-5  # largest allowed difference of an action, over all recorded observations
MIN_OBSERVATIONS = 1000  # that the file is compared on
KEY = "gpusim_rl"  # of the description in the file's metadata


def export(
    actor: Actor,
    task: Task,
    path: Path,
    *,
    name: str,
    noise: dict[str, float],
    widths: dict[str, int],
    observations: Tensor,
) -> float:
    """Write the actor as ONNX and return its largest difference from torch.

    On any failure nothing is written, and an older file at `path` stays as it is.

    Args:
        actor: obs (B, no) → mean action (B, nu).
        task: the task it was trained on, which `describe` writes into the metadata.
        name: the task's name.
        noise: observation term → half-width of its noise in training.
        widths: observation term → width, in the order of the observation.
        observations: (N, no), at least 1,000, recorded from the task.

    Raises:
        ValueError: there are too few observations, one is not finite, or ONNX and torch differ by
            more than 1e-5.
    """
    check_observations(observations)
    description = describe(task, name, noise, widths, observations.shape[1])
    model = trace(actor, observations[:2])
    text = json.dumps(description, ensure_ascii=False)
    onnx.helper.set_model_props(model, {KEY: text, "mjcf": task.mjcf_text()})
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    error = parity(data, actor, observations)
    if not error <= TOLERANCE:  # also where it is NaN
        where = f"on recorded observations, more than {TOLERANCE:.0e}"
        raise ValueError(f"export: ONNX and torch differ by {error:.2e} {where}")
    write_whole(path, data)
    return error


def check_observations(observations: Tensor) -> None:
    """Raise ValueError unless there are at least 1,000 observations and all are finite."""
    finite = int(torch.isfinite(observations).all(1).sum())
    if finite < max(MIN_OBSERVATIONS, len(observations)):
        raise ValueError(
            f"export needs at least {MIN_OBSERVATIONS} recorded observations, all finite: "
            f"got {len(observations)}, of which {finite} are finite"
        )


def trace(actor: Actor, sample: Tensor) -> onnx.ModelProto:
    """The actor as an ONNX model: input `obs` (batch, no), output `action` (batch, nu)."""
    twin = copy.deepcopy(actor).cpu().eval()
    # at its usual level the exporter reports every optional package that is not installed
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # torch.export 2.13 uses a deprecated function of torch itself
        warnings.filterwarnings(
            "ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning
        )
        program = torch.onnx.export(
            twin,
            (sample.cpu(),),
            input_names=["obs"],
            output_names=["action"],
            dynamic_shapes={"obs": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def parity(data: bytes, actor: Actor, observations: Tensor) -> float:
    """Largest |ONNX - torch| of an action: all observations in one batch, the first 8 also alone.

    Args:
        data: the serialized ONNX model.
        actor: the torch module that it was made from.
        observations: (N, no).
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(obs: Tensor) -> np.ndarray:
        return np.asarray(session.run(["action"], {"obs": obs.numpy()})[0])

    obs = observations.cpu().float()
    with torch.no_grad():
        expected = copy.deepcopy(actor).cpu()(obs).numpy()
    batch, alone = run(obs), np.concatenate([run(row[None]) for row in obs[:8]])
    return float(max(np.abs(batch - expected).max(), np.abs(alone - expected[:8]).max()))


def describe(
    task: Task, name: str, noise: dict[str, float], widths: dict[str, int], width: int
) -> dict[str, Any]:
    """The description of a policy for the program on a robot. JSON keeps every bit of its floats.

    Args:
        task: the task it was trained on.
        name: the task's name.
        noise: observation term → half-width of its noise in training.
        widths: observation term → width of one control step, in the order of the observation.
        width: of the whole observation, with the history of its terms.

    Raises:
        ValueError: the task's readings do not match the observation.
    """
    terms = describe_terms(task, noise)
    check_terms(terms, widths, width)
    built = versions()
    return {
        "format": 1,
        "task": name,
        "dt": task.dt,
        "observation": terms,
        "action": {"clip": task.clip, **asdict(task.drive), "actuator": task.actuator.about()},
        "command": asdict(task.asks) if task.asks else None,
        "clock": asdict(task.clock) if task.clock else None,
        **actuators(task.mjm),
        "commit": built["commit"],
        "versions": built,
    }


def describe_terms(task: Task, noise: dict[str, float]) -> list[dict[str, Any]]:
    """Each observation term: name, half-width of the noise, control steps of history, reading."""
    return [
        {"name": name, "noise": float(noise.get(name, 0.0)), "history": task.history.get(name, 1)}
        | asdict(reading)
        for name, reading in task.readings.items()
    ]


def check_terms(terms: list[dict[str, Any]], widths: dict[str, int], width: int) -> None:
    """Raise ValueError unless the described terms are those of the observation, in its order."""
    total = sum(term["history"] * term["width"] for term in terms)
    if total != width:
        raise ValueError(
            f"export: the task's readings are {total} wide, but its observation is {width} wide"
        )
    described = {term["name"]: term["width"] for term in terms}
    if list(described.items()) != list(widths.items()):
        raise ValueError(
            f"export: the task's readings are {described}, but its observation is {widths}"
        )
