"""Models as they are compiled for simulation: a Jacobian with which MuJoCo's forces are right."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.core import errors
from gpusim_rl.deploy import exported
from gpusim_rl.envs.task import Task
from gpusim_rl.gate.robot import compiled
from gpusim_rl.robots import models
from gpusim_rl.sim.factory import make
from tests.packages import ROOT, source_files

LEG = """<body pos="{x} {y} 0"><joint axis="0 1 0" damping=".1"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".03"/>
  <body pos="0 0 -.2"><joint axis="0 1 0" damping=".1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".03"/></body></body>"""
LEGS = "".join(LEG.format(x=x, y=y) for x in (-0.2, 0.2) for y in (-0.1, 0.1))
ROBOT = """<body pos="{} {} .45"><freejoint/><geom type="box" size=".22 .1 .05"/>{}</body>"""
ROBOTS = "".join(ROBOT.format(i % 4 * 0.35, i // 4 * 0.35, LEGS) for i in range(6))
HEAP = f"""<mujoco><option timestep=".002" tolerance="1e-12"/><worldbody>
<geom type="plane" size="5 5 .1"/>{ROBOTS}</worldbody></mujoco>"""
NV = 84
STATES = 20  # that are compared, 0.04 s apart


def load_task(file: Path) -> mujoco.MjModel:
    """The model of a task with this file."""
    keys: dict[str, Any] = dict(dt=0.02, episode=1.0, clip=1.0)
    keys |= dict(observation_delay=(0, 0), share_at_ends=0.0, actuator=None)
    task = Task(mjcf=str(file), **keys)
    assert task.evaluation().mjm.opt.jacobian == task.mjm.opt.jacobian
    return task.mjm


def load_played(file: Path, monkeypatch) -> mujoco.MjModel:
    """The model of an exported file with this MJCF, as play.py simulates it."""
    policy = SimpleNamespace(mjcf=file.read_text(), command=None, views={})
    monkeypatch.setattr("gpusim_rl.deploy.runtime.Policy", lambda path: policy)
    monkeypatch.setattr(exported, "check_model", lambda *_: None)
    return exported.open_onnx(file.with_suffix(".onnx"))[1]


LOADED = {
    "task": lambda file, _: load_task(file),
    "play": load_played,
    "gate": lambda file, _: compiled(file.read_text()),
}


@pytest.fixture
def file(tmp_path) -> Path:
    """The MJCF of a heap of robots with 84 degrees of freedom."""
    path = tmp_path / "heap.xml"
    path.write_text(HEAP)
    return path


def accelerations(model: mujoco.MjModel, states: np.ndarray) -> np.ndarray:
    """(S, nv) accelerations in states (S, nq + nv)."""
    results, data = [], mujoco.MjData(model)
    for state in states:
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = np.split(state, [model.nq])
        mujoco.mj_forward(model, data)
        results.append(data.qacc.copy())
    return np.array(results)


def dense_and_states(xml: str = HEAP) -> tuple[mujoco.MjModel, np.ndarray]:
    """A heap with a dense Jacobian, and states (S, nq + nv) of its fall."""
    model = mujoco.MjModel.from_xml_string(xml)
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    data, states = mujoco.MjData(model), []
    for _ in range(STATES):
        mujoco.mj_step(model, data, 20)
        states.append(np.concatenate([data.qpos, data.qvel]))
    return model, np.array(states)


@pytest.mark.parametrize("where", LOADED)
def test_a_heap_of_robots_accelerates_as_with_a_dense_jacobian(file, where, monkeypatch, capsys):
    """It does so to 1e-9 as a task's, in play.py and in the gate, with one line on 4.0.0."""
    errors.warn_once.cache_clear()
    dense, states = dense_and_states()
    expected = accelerations(dense, states)
    scale = 1 + abs(expected).max(1, keepdims=True)
    model = LOADED[where](file, monkeypatch)
    model.opt.iterations, model.opt.tolerance = dense.opt.iterations, dense.opt.tolerance
    assert model.nv == NV
    assert (abs(accelerations(model, states) - expected) / scale).max() <= 1e-9
    said = capsys.readouterr().err
    if mujoco.__version__ == models.SPARSE_IS_WRONG:
        untouched = accelerations(mujoco.MjModel.from_xml_string(HEAP), states)
        assert (abs(untouched - expected) / scale).max() > 1e-3
        assert said.count("\n") == 1 and "wrong forces with a sparse Jacobian" in said
    else:
        assert said == "" and mujoco.mj_isSparse(model)


def test_a_small_model_and_another_version_stay_as_they_are(file, monkeypatch, capsys):
    """A model that MuJoCo takes as dense is not touched, nor any model on another version."""
    errors.warn_once.cache_clear()
    small = models.compile_spec(mujoco.MjSpec.from_string("<mujoco/>"))
    monkeypatch.setattr(mujoco, "__version__", "4.0.1")
    large = models.compile_mjcf(str(file))
    for model in (small, large):
        assert model.opt.jacobian == mujoco.mjtJacobian.mjJAC_AUTO
    assert capsys.readouterr().err == ""


def step_warp(model: mujoco.MjModel, states: np.ndarray) -> torch.Tensor:
    """(S, nv) speeds after a timestep of MuJoCo Warp from each state."""
    qpos, qvel = (torch.tensor(x, dtype=torch.float32) for x in np.split(states, [model.nq], 1))
    sim = make("warp", model, STATES, device="cpu", conditional=False, deterministic=False)
    sim.reset(torch.ones(STATES, dtype=torch.bool), qpos, qvel)
    sim.step(1)
    assert not sim.fault().any()
    return sim.qvel.clone()


@pytest.mark.slow
def test_warp_has_a_right_sparse_jacobian():
    """Two robots move alike with either Jacobian, and six as with a sparse one."""
    two = HEAP.replace(ROBOTS, "".join(ROBOT.format(i * 0.35, 0, LEGS) for i in range(2)))
    for xml, tolerance in ((two, 1e-4), (HEAP, 0)):
        model, states = dense_and_states(xml)
        dense = step_warp(model, states)
        model.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE
        torch.testing.assert_close(step_warp(model, states), dense, rtol=0, atol=tolerance)


def test_what_is_simulated_is_compiled_in_one_place():
    """But for robots/ and viewer/, none is compiled but by `compile_spec`."""
    pattern = re.compile(r"(= |return ).*\.compile\(\)|MjModel\.from_")
    places = [
        str(file)
        for file in source_files(ROOT)
        if pattern.search((ROOT / file).read_text()) and file.parts[1] not in ("robots", "viewer")
    ]
    assert places == []
