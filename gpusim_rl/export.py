"""ONNX: the deterministic actor with its normaliser, checked against torch, and a description a robot can be run from."""

import copy
import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import torch
from torch import Tensor

from gpusim_rl.disk import write_whole
from gpusim_rl.policy import Actor
from gpusim_rl.run import versions
from gpusim_rl.task import Task

OPSET = 18
TOLERANCE = 1e-5  # of an action, over all recorded observations
RECORDED = 1000  # observations at least
KEY = "gpusim_rl"  # of the metadata


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
    """Write path and return the largest difference from torch over the observations; on any failure, write nothing.

    Args:
        actor: obs (B, no) → mean action (B, nu).
        task: as trained; describes itself in the metadata.
        name: of the task.
        noise: observation term → half-width it was trained with.
        widths: observation term → width, in the order in which the task observes.
        observations: (N, no), at least 1,000, recorded from the task.

    Raises:
        ValueError: too few observations, one that is not finite, or ONNX and torch differ by more than 1e-5.
    """
    finite = int(torch.isfinite(observations).all(1).sum())
    if finite < max(RECORDED, len(observations)):
        found = f"{len(observations)}, of which {finite} are finite"
        raise ValueError(f"export is checked on at least {RECORDED} recorded observations, all finite: got {found}")
    about = describe(task, name, noise, widths, observations.shape[1])
    model = trace(actor, observations[:2])
    onnx.helper.set_model_props(model, {KEY: json.dumps(about, ensure_ascii=False), "mjcf": task.mjcf_text()})
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    error = parity(data, actor, observations)
    if not error <= TOLERANCE:
        raise ValueError(f"export: ONNX and torch differ by {error:.2e} on recorded observations, more than {TOLERANCE:.0e}")
    write_whole(path, data)
    return error


def trace(actor: Actor, sample: Tensor) -> onnx.ModelProto:
    """The actor as ONNX: input `obs` (batch, no), output `action` (batch, nu)."""
    twin = copy.deepcopy(actor).cpu().eval()  # outside the iteration, as all of an export
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports every optional package that is not there
    with warnings.catch_warnings():
        # torch.export 2.13 trips over a deprecation of its own
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
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
    """Largest |ONNX - torch| of an action, in one batch and one by one for the first few."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    obs = observations.cpu().float()
    with torch.no_grad():
        expected = copy.deepcopy(actor).cpu()(obs).numpy()
    found = np.asarray(session.run(["action"], {"obs": obs.numpy()})[0])
    single = np.concatenate([np.asarray(session.run(["action"], {"obs": row[None].numpy()})[0]) for row in obs[:8]])
    return float(max(np.abs(found - expected).max(), np.abs(single - expected[:8]).max()))


def describe(task: Task, name: str, noise: dict[str, float], widths: dict[str, int], width: int) -> dict[str, Any]:
    """Everything a robot's program must know, in full precision: JSON keeps every bit of a float."""
    past = {key: task.history.get(key, 1) for key in task.readings}  # control steps of it in the observation, oldest first
    about = {key: {"noise": float(noise.get(key, 0.0)), "history": past[key]} for key in task.readings}
    terms = [{"name": key, **about[key], **asdict(reading)} for key, reading in task.readings.items()]
    found = {key: reading.width for key, reading in task.readings.items()}
    wide = sum(past[key] * found[key] for key in found)
    if wide != width:
        raise ValueError(f"export: the task's readings are {wide} wide, its observation is {width}")
    if list(found.items()) != list(widths.items()):
        raise ValueError(f"export: the task's readings are {found}, what it observes is {widths}")
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


def actuators(m: mujoco.MjModel) -> dict[str, list[Any]]:
    """The robot's side of the action, a list over the actuators for each; None where the model sets no gain or no limit.

    `default_pose` [rad, m] is the joint's place in the first keyframe, or in qpos0; `kp`, `kd` are those of a position servo,
    `torque_limit` [N m, N] bounds what reaches the joint.
    """
    joints, motors = m.actuator_trnid[:, 0], range(m.nu)
    servo = m.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    pose = m.key_qpos[0] if m.nkey else m.qpos0
    return {
        "default_pose": [float(pose[m.jnt_qposadr[j]]) for j in joints],
        "kp": [float(-m.actuator_biasprm[i, 1]) if servo[i] else None for i in motors],
        "kd": [float(-m.actuator_biasprm[i, 2]) if servo[i] else None for i in motors],
        "torque_limit": [torque_limit(m, i) for i in motors],
        "control_range": [m.actuator_ctrlrange[i].tolist() if m.actuator_ctrllimited[i] else None for i in motors],
        "joint_range": [m.jnt_range[j].tolist() if m.jnt_limited[j] else None for j in joints],
    }


def torque_limit(m: mujoco.MjModel, i: int) -> float | None:
    """Largest |torque| [N m] or |force| [N] of actuator i on its joint, by whichever limits the model sets; None if by none."""
    gear, joint, limits = abs(float(m.actuator_gear[i, 0])), m.actuator_trnid[i, 0], []
    if m.actuator_forcelimited[i]:
        limits.append(gear * float(np.abs(m.actuator_forcerange[i]).max()))
    if m.jnt_actfrclimited[joint]:
        limits.append(float(np.abs(m.jnt_actfrcrange[joint]).max()))
    if m.actuator_ctrllimited[i] and m.actuator_biastype[i] == mujoco.mjtBias.mjBIAS_NONE:  # a motor: force = gain · ctrl
        limits.append(gear * float(m.actuator_gainprm[i, 0] * np.abs(m.actuator_ctrlrange[i]).max()))
    return min(limits) if limits else None
