"""Getup: its rewards by hand, its model, its starts and scores."""

import math

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.envs.state import State
from tests.tasks.test_golden import terms_of
from tests.worlds import make_env, make_task


def state(task, *, fast: bool = False) -> State:
    """A robot that is nearly up, as the derivations of the golden numbers say."""
    m, columns = task.mjm, task.sensor_columns
    qpos, qvel = task.nominal("key_qpos")[:1].clone(), torch.zeros(1, m.nv)
    qpos[0, 2], qpos[0, 7], qpos[0, 9] = 0.21, 0.525, -0.84
    qvel[0, 6:9] = torch.tensor([2.0, -20.0 if fast else 2.0, 1.0])
    sensordata, action = torch.zeros(1, m.nsensordata), torch.zeros(1, 12)
    sensordata[0, columns["up"]] = torch.tensor([0.6, 0.0, 0.8])
    for joint, torque in (("abduction", 10.0), ("thigh", -5.0), ("knee", 4.0)):
        sensordata[0, columns[f"FL_{joint}_torque"]] = torque
    action[0, :2] = 0.5
    tensors = dict(qpos=qpos, qvel=qvel, action=action, previous=-action, sensordata=sensordata)
    return State(tensors, columns, task.joint_columns)


def test_golden_rewards():
    """Each reward term, worked out by hand.

    u_z = 0.8, so `upright` is 1.8/2, and g = 0.8². z = 0.21 m of ẑ = 0.28 m, so h = 0.75. FL's
    abduction is 0.525 rad off, its knee 0.76 rad, and q₀ = 0.5 rad:
    p = 1 - (ln(1 + 1.05²) + ln(1 + 1.52²))/(12 ln(1 + 39.4784)) = 1 - 1.940196/44.409.
    |q - q̄|² = 0.853225 and σ_q² = 2.25; |q̇|² = 2² + 2² + 1² = 9 and σ² = 64; |a|² = 2 · 0.5²
    and σ_a² = 3.24. Two actions change by 1. The power is 10·2 + 5·2 + 4·1 W. The knee is at its
    limit, so the margin of 0.1 rad is used up. A joint of 20 rad/s is 5 rad/s beyond the 15 that
    are free.
    """
    task = make_task("getup")
    want = dict(
        upright=0.9,
        height=0.64 * 0.75,
        posture=0.64 * (1 - 1.940196 / 44.409),
        still=0.64 * 0.75 * math.exp(-0.853225 / 2.25) * math.exp(-9 / 64 - 0.5 / 3.24),
        action_rate=-2.0,
        power=-34.0,
        fast=0.0,
        limits=-0.01,
    )
    assert terms_of(task, state(task)) == pytest.approx(want, rel=1e-5, abs=1e-7)
    assert terms_of(task, state(task, fast=True))["fast"] == pytest.approx(-25.0)


def test_a_fallen_robot_lies_on_its_legs():
    """Each leg touches ground, trunk and other legs, as does the exported MJCF's."""
    task = make_task("getup")
    m, data = task.mjm, mujoco.MjData(task.mjm)
    for body in ("FL_thigh", "RR_calf"):
        first = m.body(body).geomadr[0]
        geoms = range(first, first + m.body(body).geomnum[0])
        assert all(m.geom_contype[i] & m.geom("floor").conaffinity[0] for i in geoms)
        assert any(m.geom_contype[i] & m.geom("trunk").conaffinity[0] for i in geoms)
        assert any(m.geom_contype[i] & m.geom_conaffinity[i] for i in geoms)
    data.qpos[:] = m.key_qpos[0]
    mujoco.mj_forward(m, data)
    floor = m.geom("floor").id
    assert data.ncon == 8 and all(floor in contact.geom for contact in data.contact)
    exported = mujoco.MjModel.from_xml_string(task.mjcf_text())
    for field in ("geom_contype", "geom_conaffinity", "geom_friction", "geom_priority"):
        np.testing.assert_array_equal(getattr(exported, field), getattr(m, field))
    assert exported.names == m.names and exported.nsensordata == m.nsensordata


def test_starts_are_uniform_and_in_the_air():
    """Rotations are Haar's, and the lowest point is 0.3 m above the ground, 5 cm more at most."""
    env = make_env("getup", 4096, stagger=False, easy=0.0)
    m, up = env.task.mjm, env.current_state().up
    torch.testing.assert_close((up**2).mean(0), torch.full((3,), 1 / 3), rtol=0, atol=0.02)
    data, floor = mujoco.MjData(m), m.geom("floor").id
    geoms = [i for i in range(m.ngeom) if m.geom_contype[i]]
    for qpos in env.sim.qpos[:64].numpy():
        data.qpos[:] = qpos
        mujoco.mj_kinematics(m, data)
        mujoco.mj_comPos(m, data)
        lowest = min(mujoco.mj_geomDistance(m, data, floor, i, 5.0, None) for i in geoms)
        assert 0.29 < lowest < 0.351


def test_scores():
    """Success needs all of the last second: upright, tall, near the stance, still; and no fault."""
    task = make_task("getup")
    steps = task.horizon
    names = ("up", "height", "furthest", "velocity", "spin", "joints", "power", "fastest")
    names += ("torque", "action_rate", "terminated")
    record = {name: torch.zeros(steps, 6) for name in names}
    record["up"][:], record["height"][:] = 1.0, task.base_height
    record["up"][:100] = -1.0  # falls on its back, and stands after 2 s
    record["up"][:50, 1] = 1.0  # this one fell on its feet
    record["up"][-10, 2] = 0.9  # leans by 26 degrees for a moment
    record["height"][-10, 3] = 0.5 * task.base_height
    record["furthest"][-10, 4] = 0.6
    record["joints"][-50:, 5] = 0.5  # (0.71 rad/s)²
    record["power"][:] = 3.0
    scores = task.score(record)
    assert scores["success"] == pytest.approx(2 / 6)
    assert scores["success_upside_down"] == pytest.approx(1 / 5)
    assert scores["stands_after"] == pytest.approx(2.0)
    assert scores["energy"] == pytest.approx(3.0 * 8.0)
    for name in ("upright", "tall", "near", "still"):
        assert scores[name] == pytest.approx(5 / 6), name
    record["terminated"][20, 1] = 1.0
    assert task.score(record)["success"] == pytest.approx(1 / 6)
    short = task.score({name: x[:10] for name, x in record.items()})  # only one stands by then
    assert short["success"] == pytest.approx(1 / 6)
