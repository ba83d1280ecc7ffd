"""The release gate: scenarios do what they are called, limits are kept, the verdict is written."""

import json
import re
import shutil
import stat
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import mujoco
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from gpusim_rl.commands import modes, play
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.commands.play_mode import choose_mode, demo
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core import waiting
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.deploy.onboard.verdict import difference, digest, read_verdict, with_verdict
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.gate import command as command_of_gate
from gpusim_rl.gate import judge as gate
from gpusim_rl.gate import variants
from gpusim_rl.gate.drive import DriveResult, ReadingErrors, Totals, drive
from gpusim_rl.gate.judge import failures, rate, row, table, target_chatter
from gpusim_rl.gate.robot import Robot, base_body, make_robot, posture
from gpusim_rl.gate.scenarios import SCENARIOS, Plan, contact_plans, lacks
from gpusim_rl.gate.worlds import Worlds
from gpusim_rl.robots.free_bodies import free_base

TINY = (
    *("gate.robots=3", "gate.seconds=2", "gate.endurance.robots=1", "gate.endurance.minutes=0.02"),
    *("gate.limits.falls=0.9", "gate.limits.velocity=0.9", "gate.limits.turn=0.9"),
    *("gate.limits.transport=20.0", "gate.limits.endurance_falls=20000.0"),
    *("gate.limits.success=0.0", "gate.limits.tracking=0.0"),
)
SETTINGS: dict[str, Any] = compose_plain("play", [])["gate"]
REPORT = dict.fromkeys(gate.VERDICT_KEYS, "pass") | {"complaints": [], "rows": []}
REPORT |= {"chatter": [{"joint": "knee", "rms": 0.01, "hz": 9.0, "unit": "rad", "scenario": "x"}]}
REPORT |= {"adopted": {}, "success": {"value": 0.95, "interval": [0.9, 1.0], "of": 100}}
ORIGIN: Any = {"source": "a", "licence": "b", "card": "c", "reads_unmeasured": []}


@pytest.fixture(scope="module")
def robot() -> Robot:
    """The quadruped of the demo."""
    return make_robot(Policy(DEMO))


@pytest.fixture
def file(tmp_path) -> Path:
    """A copy of the demo's file."""
    return Path(shutil.copy(DEMO, tmp_path / "policy.onnx"))


def planned(robot: Robot, name: str, count: int = 4, seconds: int = 8) -> Plan:
    """A plan of one scenario."""
    return Plan(robot, name, count, seconds, SETTINGS, seed=1)


# -- scenarios -------------------------------------------------------------------------------------


def test_what_is_read_from_the_file(robot):
    """Base, height, command and limits; MJX has one ground, so it lacks slopes."""
    assert robot.model.body(robot.base).name == "trunk" and robot.follows == "velocity"
    assert robot.height == pytest.approx(0.29) and robot.up == pytest.approx([0, 0, 1])
    assert robot.torque[:3] == pytest.approx([23.7, 23.7, 45.4]) and lacks(robot) == {}
    contact = {"contact": "ground under it, in MuJoCo C"}
    assert lacks(robot, "mjx") == {"slopes": "ground that can slope"} | contact
    assert lacks(robot, "warp") == contact


@pytest.mark.parametrize(
    "model, kind", [("quadruped", "walker"), ("humanoid", "biped"), ("drone", "drone")]
)
def test_the_kind_is_seen_in_the_model(robot, model, kind):
    """Feet that touch the ground in the safe pose tell a biped, and none a drone."""
    mjm = mujoco.MjModel.from_xml_path(str(ASSETS / f"{model}.xml"))
    base = base_body(mjm)
    _, height, feet = posture(mjm, base)
    free = free_base(mjm)
    assert replace(robot, base=base, free=free, height=height, feet=feet).kind == kind
    assert replace(robot, base=0, free=None).kind == "arm"


def test_feet_touch_the_ground():
    """A hand that touches a thigh is no foot, nor the thigh; without a floor nothing stands."""
    box = '<body pos="{}"><joint type="slide"/><geom type="box" size=".1 .1 .1"/></body>'
    places = "-1 0 -.9", "1 0 -.9", "0 0 0", ".19 0 0"  # two feet, a thigh, and the hand in it
    parts = "".join(map(box.format, places))
    base = f'<body pos="0 0 1"><freejoint/><geom size=".1" pos="0 1 0"/>{parts}</body>'
    floor = '<geom type="plane" size="9 9 1"/>'
    for ground, height, feet in (floor, 1.0, 2), ("", 0.0, 0):
        xml = f"<mujoco><worldbody>{ground}{base}</worldbody></mujoco>"
        model = mujoco.MjModel.from_xml_string(xml)
        assert posture(model, 1)[1:] == (pytest.approx(height, abs=1e-3), feet)


def test_kinds_have_their_limits():
    """Walkers have the limits as they stand; those of another kind give way to a user's."""
    of = {kind: gate.settings_for(kind, SETTINGS) for kind in ("walker", "biped", "arm")}
    assert of["walker"] == SETTINGS and of["biped"]["limits"]["turn"] == 0.36
    assert of["arm"]["limits"] == SETTINGS["limits"] | {"position": 0.06}
    assert all(gate.changed(x, kind) == {} for kind, x in of.items())
    assert gate.settings_hash(of["walker"]) != gate.settings_hash(of["arm"])
    mine = gate.settings_for("arm", SETTINGS | {"limits": SETTINGS["limits"] | {"position": 0.2}})
    assert mine["limits"]["position"] == 0.2
    assert gate.changed(mine, "arm") == {"limits.position": 0.2}


def test_draws_are_keyed(robot):
    """Another policy, other readings and scenarios: the same robots, commands and disturbances."""
    policy = Policy(DEMO)
    policy.needs = {"up": 3, "gyro": 3, "joint_vel": 5}  # one less, in another order and width
    for entry in policy.description["inputs"]:
        entry["units"] = entry.get("units", [])[: policy.needs.get(entry["name"])]
    other = make_robot(policy)
    plans = {name: [planned(x, name) for x in (robot, other)] for name in [*SCENARIOS][::-1]}
    for pair in plans.values():
        for key, value in vars(pair[0]).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, getattr(pair[1], key), key)
    errors = [ReadingErrors(plan) for plan in plans["sensors"]]
    assert errors[0].bias.keys() != errors[1].bias.keys()
    for name in ("gyro", "up"):
        values = [[one(name, np.full((4, 3), float(t))) for t in range(40)] for one in errors]
        np.testing.assert_array_equal(values[0], values[1])
    starts = [plans[name][0].heading for name in ("normal", "friction")]
    starts += [Plan(robot, "normal", 4, 8, SETTINGS, seed=2).heading]
    assert len({*np.concatenate(starts)}) == 12
    several = drive([planned(robot, x, 2, 1) for x in ("normal", "delay 1")])
    # onnxruntime's last bits depend on the number of robots
    for a, b in zip(several[1], drive([planned(robot, "delay 1", 2, 1)])[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_worlds_differ_as_planned(robot):
    """Friction, mass and the slope of the ground are what the plan says, in each world alone."""
    plan = planned(robot, "normal", count=3)
    plan.friction = np.array([np.nan, 0.3, 1.2])
    plan.payload = np.array([0.0, 0.2, -0.2])
    plan.slope, plan.towards = np.array([0.0, 0.0, 0.2]), np.array([0.0, 0.0, np.pi / 2])
    plan.joints[:], plan.heading[:] = 0.0, [0.0, 1.0, 0.5]
    worlds, batch = Worlds([plan]), Worlds([plan]).sim.batch
    model, floor = robot.model, robot.model.geom("floor").id
    frictions = batch.expand("geom_friction")[:, model.geom("FL").id, 0]
    assert frictions == pytest.approx([0.8, 0.3, 1.2])
    whole, trunk = model.body_subtreemass[robot.base], model.body_mass[robot.base]
    masses = batch.expand("body_mass")[:, robot.base]
    assert masses - trunk == pytest.approx([0, 0.2 * whole, -0.2 * whole])
    data = batch.get_data(2)
    mujoco.mj_forward(batch.get_model(2), data)
    normal = data.geom_xmat[floor].reshape(3, 3)[:, 2]
    # upwards along y: the normal leans back
    assert normal == pytest.approx([0, -np.sin(0.2), np.cos(0.2)])
    assert worlds.normal[2] == pytest.approx(normal) and not worlds.fallen(1.0, 0.5).any()
    axes = data.xmat[robot.base].reshape(3, 3)
    assert (data.xpos[robot.base] - worlds.pivot) @ normal == pytest.approx(robot.height)
    assert axes[:, 2] == pytest.approx(normal)
    assert axes[0, 0] == pytest.approx(np.cos(0.5))  # the heading, before the slope about x
    assert worlds.qpos[1, 3:7] == pytest.approx([np.cos(0.5), 0, 0, np.sin(0.5)])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["warp", pytest.param("mjx", marks=pytest.mark.matrix)])
def test_other_engines_have_the_same_robots(robot, engine):
    """Another engine steps the robots: they weigh and slide as planned, and walk as in MuJoCo C."""
    if engine == "mjx":
        pytest.importorskip("mujoco.mjx")
    results = []
    for name in ("native", engine):
        soon = {"sim": name, "settle": {"velocity": 0.3, "position": 0.3}}
        plan = Plan(robot, "normal", 4, 1, SETTINGS | soon, seed=1)
        plan.payload, plan.friction = np.array([0.2, 0, 0, -0.2]), np.array([np.nan, 0.5, 0.01, 1])
        results.append(drive([plan])[0])
    for key in ("fell", "fault", "lived"):
        first, second = (getattr(x, key) for x in results)
        np.testing.assert_array_equal(first, second, key)
    upright = ~results[0].fell
    assert upright[[0, 1, 3]].all()
    for key in ("error", "turn", "power", "change"):
        values = [getattr(x, key)[upright] for x in results]
        np.testing.assert_allclose(*values, rtol=0.02, err_msg=key)
    power = results[0].power[upright]
    assert np.ptp(power) > 0.1 * power.max()  # as the robots differ


def test_contacts_differ_by_four_sets_of_options(robot):
    """The same robots meet each set; solref is drawn for each, and the robot's own model stays."""
    settings = SETTINGS | {"robots": 14}
    plans = contact_plans(robot, settings, seed=1)
    own, soft, *_ = plans
    assert [plan.count for plan in plans] == [3] * 4 and own.robot is soft.robot is robot
    assert [x.robot.model.opt.timestep for x in plans] == [0.005, 0.005, 0.005, 0.002]
    assert [x.robot.model.opt.impratio for x in plans] == [1, 1, 10, 1]
    assert [int(x.robot.model.opt.cone) for x in plans] == [0, 0, 1, 0]
    for (a, b), key in product(pairwise(plans), ("command", "heading", "joints")):
        np.testing.assert_array_equal(getattr(a, key), getattr(b, key))
    batch = Worlds([own, soft]).native.batch
    factors = batch.expand("geom_solref")[..., 0] / robot.model.geom_solref[:, 0]
    assert (factors[:3] == 1).all() and 0.5 < factors[3:].min() < factors.max() < 1.5
    assert (factors == factors[:, :1]).all() and len(np.unique(factors)) == 4
    assert batch.expand("geom_solref")[..., 1] == pytest.approx(1.0)
    driven = [(plan, results(3, error=np.full(3, i / 10))) for i, plan in enumerate(plans)]
    one = gate.row_of("contact", driven)
    assert one["robots"] == 12 and one["error"]["value"] == pytest.approx(0.15)
    assert [x["error"] for x in one["options"].values()] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert (
        failures([one], robot, SETTINGS)
        == []
        != failures([one | {"judged": True}], robot, SETTINGS)
    )
    assert "contact*" in table([one]) and "elliptic 1.000 0.000 0.200" in table([one])


def test_pushes_and_commands(robot):
    """Pushes come every four seconds with 0.5 m/s; commands jump between ends of their ranges."""
    pushes = np.linalg.norm(planned(robot, "pushes").push, axis=2)
    assert pushes[4] == pytest.approx(0.5) and pushes[[0, 1, 2, 3, 5, 6, 7]].max() == 0
    jumps = planned(robot, "commands").command
    assert (np.count_nonzero(jumps, axis=2) == 1).all() and (jumps[0] == jumps[1]).all()
    assert (jumps[2] == -jumps[0]).all() and (np.abs(jumps[0]).max(1) >= 0.5).all()
    assert (np.abs(planned(robot, "corners").command) == [1.0, 0.5, 1.0]).all()
    drawn = planned(robot, "normal").command
    assert (np.abs(drawn) <= [1.0, 0.5, 1.0]).all() and (drawn[4] == drawn[0]).all()


def test_commands_are_held(robot):
    """Each robot has one command to the end: each axis alone to both ends, pairs, and none."""
    command = planned(robot, "constant", count=128).command
    assert (command == command[0]).all()
    shares = command[0] / [1.0, 0.5, 1.0]
    numbers = (shares != 0).sum(1)
    assert {*numbers} == {0, 1, 2} and len(np.unique(shares, axis=0)) == 43
    for axis in range(3):
        alone = shares[(numbers == 1) & (shares[:, axis] != 0), axis]
        assert {*np.abs(alone)} == {0.1, 0.25, 0.5, 0.75, 1.0} and {*np.sign(alone)} == {1, -1}


def test_the_mean_error_is_over_what_is_allowed(robot):
    """It is signed, so that what alternates is none; the worst axis counts, fallen robots not."""
    plan = planned(robot, "constant", count=3, seconds=20)
    plan.command[:] = [1.0, 0.0, 0.0]
    worlds, totals, targets = Worlds([plan]), Totals([plan]), np.zeros((3, 12))
    totals.command(plan.command[0], 0)
    speeds = {"velocity": np.tile([1.0, 0.0, 0.0], (3, 1)), "gyro": np.zeros((3, 3))}
    for t in range(400):
        speeds["velocity"][0, 0] = 1.0 + (-1) ** t * 0.5
        speeds["velocity"][1, 0], speeds["gyro"][1, 2] = 1.04, -0.06
        worlds.sensors |= speeds
        totals.add(worlds, targets, np.array([True, True, False]))
    result = totals.result(*np.zeros((2, 3), bool))
    assert result.offset[:2] == pytest.approx([0.0, 1.0], abs=1e-3)  # 0.06 rad/s, of 0.06
    one = row(plan, results(3, offset=np.array([0.9, 1.1, np.nan])))
    assert one["tracking"]["count"] == 1


def test_rotations_are_commanded(robot):
    """A commanded rotation is drawn from all that is trained; it jumps in `corners` alone."""
    about: Any = dict(names=list("xyzwijk"), lean=0.5, spin=3.1, center=[0.3, 0, 0.5, 1, 0, 0, 0])
    about["trained"] = dict(low=[0.2, -0.1, 0.4, *[-1] * 4], high=[0.4, 0.1, 0.6, *[1] * 4])
    policy: Any = SimpleNamespace(command=about)
    posed = replace(robot, policy=policy, follows="position")
    jumps = planned(posed, "commands", count=64, seconds=12).command
    assert (np.count_nonzero(jumps[0] != jumps[5], axis=1) == 1).all()
    corners = planned(posed, "corners", count=64, seconds=12).command
    assert (corners[0] != corners[5])[:, 3:].any(1).all()
    drawn = planned(posed, "normal", count=64, seconds=5).command[0, :, 3:]
    turn, lean = 2 * np.arctan2(drawn[:, 3], drawn[:, 0]), np.hypot(drawn[:, 1], drawn[:, 2])
    assert turn.min() < -2 and turn.max() > 2 and 0.2 < lean.max() <= np.sin(0.25)
    report = REPORT | {"changed": {}, "skipped": {}, "rotation": True}
    assert "position alone is judged, and not the rotation" in command_of_gate.text(report)


def test_readings_are_late_lost_and_wrong(robot):
    """A delay of two steps shows the reading before last; errors stay within their widths."""
    late = ReadingErrors(planned(robot, "delay 2"))
    values = [late("gyro", np.full((4, 3), float(t)))[0, 0] for t in range(5)]
    assert values == [0, 0, 0, 1, 2]
    wrong = ReadingErrors(planned(robot, "sensors", count=500))
    first = wrong("gyro", np.zeros((500, 3)))
    assert 0.2 < np.abs(first).max() <= 0.3  # bias 0.1 and noise 0.2 [rad/s]
    wrong.noise["gyro"] *= 0
    held = [wrong("gyro", np.full((500, 3), t)) for t in (1.0, 2.0)]
    lost = np.isclose(held[1] - held[0], 0).all(1).mean()
    assert 0.02 < lost < 0.1  # 5 % keep the value of the step before


def test_each_disturbance_is_driven(robot):
    """Pairs of robots on ice, on a steep slope, with late or wrong readings, … fall or err."""
    plans = [planned(robot, "normal", count=2, seconds=2) for _ in range(8)]
    names = ("friction", "slope", "delay", "payload", "bias", "noise", "dropout")
    values = 0.01, np.deg2rad(40.0), 10, 3.0, 30.0, 30.0, 1.0
    for plan, name, value in zip(plans, names, values, strict=False):
        by_robot = isinstance(getattr(plan, name), np.ndarray)
        setattr(plan, name, np.full(2, value) if by_robot else value)
    for plan in plans:
        plan.command[:] = [1.0, 0.0, 0.0]
    missed = [list(x.fell | (x.error > 0.3)) for x in drive(plans)]
    assert missed == [[True, True]] * 7 + [[False, False]]


def test_totals_of_one_step(robot):
    """Golden numbers: shares of the actuators, power, transport, errors and change of a step."""
    plan, ones = planned(robot, "normal", count=1), np.ones((1, 12))
    plan.payload[:] = 0.25
    totals = Totals([plan])
    totals.command(np.array([[0.5, 0.0, 0.1]]), 0)
    totals.since += 100  # steps since the command: it counts
    data = {"actuator_force": robot.torque * [-1, *[0.5] * 11], "actuator_velocity": 2 * ones}
    data["actuator_force"] = data["actuator_force"][None]
    qpos, qvel = robot.model.key_qpos[:1].copy(), np.zeros((1, 18))
    qpos[0, 7:10] = -1.08, 3.52, -2.75  # beyond their ranges: below, above, below
    qvel[0, 6:8] = -31.0, 31.0
    sensors = {"velocity": np.array([[0.8, 0.4, 0.0]]), "gyro": np.array([[0.0, 0.0, 0.3]])}
    totals.last = np.zeros((1, 12))
    worlds: Any = SimpleNamespace(data=data, qpos=qpos, qvel=qvel, sensors=sensors)
    totals.add(worlds, 0.1 * totals.width * ones, np.array([True]))
    result = totals.result(*np.zeros((2, 1), bool))._asdict()
    power = 2 * (23.7 + 0.5 * (7 * 23.7 + 4 * 45.4))  # W, with 2 rad/s
    speed = np.hypot(0.8, 0.4)
    expected = dict(error=0.5, turn=0.2, torque=1 / 12, joint=3 / 12, speed=2 / 12, change=0.1)
    expected |= {"power": power, "transport": power / (9.81 * 1.25 * 15.18 * speed), "lived": 1}
    assert {key: result[key][0] for key in expected} == pytest.approx(expected)


def test_chatter_of_sines(robot):
    """A sine's frequency is found, and how much of it is chatter; a target at rest has none."""
    plan = planned(robot, "normal", count=2)
    totals, t = Totals([plan]), np.arange(1000)
    worlds = Worlds([plan])
    totals.command(plan.command[0], 0)
    targets = np.zeros((len(t), 2, 12))
    targets[..., 0], targets[..., 1] = 0.1 * (-1.0) ** t[:, None], 0.1
    targets[..., 2] = 0.1 * np.sin(2 * np.pi * 2.0 * 0.02 * t)[:, None]  # 2 Hz
    for each in targets:
        totals.add(worlds, each, np.array([True, False]))
    of = target_chatter(DriveResult(*(x[:1] for x in totals.result(*np.zeros((2, 2), bool)))), 0.02)
    share = np.sin(np.pi * 2.0 * 0.02) ** 2
    assert of["rms"][:3] == pytest.approx([0.1, 0.0, 0.1 * share / np.sqrt(2)], rel=5e-3)
    assert of["hz"][:3] == pytest.approx([25.0, 0.0, 2.0], rel=0.02)
    assert not totals.second[1].any()  # of a robot that fell


def test_worlds_that_fell_stand_still(robot):
    """A step moves the worlds that it is for, as if they were alone, and no other."""
    worlds, twin = (Worlds([planned(robot, "normal")]) for _ in range(2))
    before = worlds.qpos.copy()
    assert not worlds.step(np.array([True, False, True, False])).any()
    assert not twin.step(np.full(4, True)).any()
    np.testing.assert_array_equal(worlds.qpos[::2], twin.qpos[::2])
    np.testing.assert_array_equal(worlds.qpos[1::2], before[1::2])
    assert (worlds.qpos[::2] != before[::2]).any(1).all()


def test_a_base_that_is_low_or_touches_has_fallen(robot):
    """A robot that lies on its base has fallen, however upright; so has one that is too low."""
    worlds = Worlds([planned(robot, "normal", count=2)])
    qpos = worlds.sim.qpos.clone()
    qpos[1, 2] -= 0.24  # the trunk on the floor
    worlds.sim.reset(torch.ones(2, dtype=torch.bool), qpos, worlds.sim.qvel)
    assert worlds.fallen(1.0, 0.0).tolist() == [False, True]
    assert worlds.fallen(1.0, 1.1).tolist() == [True, True]


def test_a_robot_that_falls_stops(robot):
    """Robots that are thrown over fall and stop, and those of the demo's policy do not."""
    thrown, longer = (planned(robot, "pushes", seconds=n) for n in (6, 7))
    for plan in thrown, longer:
        plan.push[4, :2] = 20.0
    results = [drive([plan])[0] for plan in (thrown, longer)]
    assert results[0].fell.tolist() == [True, True, False, False] and not results[0].fault.any()
    assert results[0].lived[0] < 260 < results[0].lived[2] == 300
    for first, second in zip(*results, strict=True):  # nothing counts after a fall
        np.testing.assert_array_equal(first[:2], second[:2])


def test_a_base_without_a_name_falls_too(robot):
    """A robot whose base has no name is judged as one whose base has, in every scenario."""
    policy = Policy(DEMO)
    policy.mjcf = policy.mjcf.replace('name="trunk"', "")
    nameless = make_robot(policy)
    assert nameless.base == robot.base and lacks(nameless) == {}
    thrown = planned(nameless, "pushes", count=2, seconds=5)
    thrown.push[4, 0] = 20.0
    assert drive([thrown])[0].fell.tolist() == [True, False]


# -- the verdict -----------------------------------------------------------------------------------


def results(count: int = 100, **values: Any) -> DriveResult:
    """Results of robots that do well, but for `values`."""
    well = dict.fromkeys(DriveResult._fields, np.full(count, 0.01))
    well |= {"fell": np.zeros(count, bool), "fault": np.zeros(count, bool)}
    well |= {"first": np.full((count, 12), 1e-4), "second": np.full((count, 12), 1e-4)}
    return DriveResult(**well | values)


@pytest.mark.parametrize(
    "values, says",
    [
        ({}, ""),
        ({"fell": np.arange(100) < 5}, "falls 0.05, up to 0.112, at most 0.1"),
        ({"fault": np.arange(100) < 9}, "falls 0.09"),
        ({"error": np.full(100, 0.31)}, "error 0.31, at most 0.3"),
        ({"turn": np.full(100, 0.4)}, "turn 0.4"),
        ({"torque": np.full(100, 0.06)}, "torque 0.06"),
        ({"joint": np.full(100, 0.02)}, "joint 0.02"),
        ({"transport": np.full(100, 3.0)}, "transport 3"),
        ({"change": np.full(100, 0.2)}, "change 0.2"),
    ],
)
def test_each_limit_is_judged(robot, values, says):
    """A limit that is not kept is a failure with its figures, unless it is only reported."""
    fine, plan = {"speed": np.zeros(100), **values}, planned(robot, "corners")
    one = row(plan, results(**fine))
    lines = failures([one], robot, SETTINGS)
    assert (says in " ".join(lines)) and bool(lines) == bool(says), lines
    assert len([line for line in lines if "success" not in line]) == bool(says)
    plan.settings = SETTINGS | {"reported": ["corners"]}
    reported = row(plan, results(**fine))
    assert failures([reported], robot, SETTINGS) == [] and "corners*" in table([reported])


def test_most_robots_must_succeed(robot):
    """Robots that err by more than a limit are no success, however small the others' errors are."""
    for few, says in (35, []), (45, ["normal: success 0.55, down to 0.452, at least 0.5"]):
        error = np.where(np.arange(100) < few, 0.31, 0.0)
        one = row(planned(robot, "normal"), results(speed=np.zeros(100), error=error))
        assert failures([one], robot, SETTINGS) == says


@pytest.mark.parametrize("robots, falls, lines", [(8, 0, 0), (8, 1, 1), (16, 1, 0), (1, 0, 1)])
def test_endurance_counts_falls_per_hour(robot, robots, falls, lines):
    """In 20 minutes none of eight robots may fall, and one of 16; one robot proves nothing."""
    driven = {"fell": np.arange(robots) < falls, "lived": np.full(robots, 60_000)}
    one = row(planned(robot, "endurance"), results(robots, **driven, speed=np.zeros(robots)))
    says = failures([one], robot, SETTINGS)
    assert len(says) == lines and all("falls per robot-hour" in line for line in says)
    assert f"endurance: falls in {robots / 3:.2f} robot-hours: {falls}, per" in table([one])


def test_the_rate_has_its_exact_interval():
    """Ends of Poisson's 95 % intervals, of the tables of Garwood (1936)."""
    for count, ends in {0: (0, 3.689), 1: (0.0253, 5.572), 10: (4.795, 18.390)}.items():
        assert rate(count, 2.0)["interval"] == pytest.approx(np.array(ends) / 2, rel=1e-3)


def run_gate(file: Path, *words: str) -> dict[str, Any]:
    """The report of play.py mode=gate, in this process."""
    cfg = compose_plain("play", ["mode=gate", f"onnx={file}", *TINY, *words])
    assert choose_mode(cfg) == "gate"
    command_of_gate.gate_policy(cfg)
    return json.loads(Path(cfg["out"]).read_text()) if cfg["out"] else {}


def test_the_gate_writes_a_verdict(file, tmp_path, capsys):
    """mode=gate prints a table, writes JSON, and puts the verdict into the file."""
    before = file.read_bytes()
    report = run_gate(file, f"out={tmp_path / 'gate.json'}")
    said = capsys.readouterr().out
    assert "success" in (tmp_path / "gate.svg").read_text()
    assert "passes the gate" in said and len(report["rows"]) == 14 and "contact*" in said
    verdict = command_of_gate.verdict_of(file)
    assert verdict and verdict["verdict"] == report["verdict"] == "pass"
    assert verdict["file"] == digest(before) and verdict["settings"] != gate.settings_hash(SETTINGS)
    assert verdict["follows"] == "velocity" and verdict["reported"] == ["contact"]
    assert verdict["seed"] == 1 and {*verdict["scenarios"]} == {*SCENARIOS}
    joints, line = [x["joint"] for x in verdict["chatter"]], " ".join(said.split())
    assert joints == Policy(file).joints and f"{joints[0]} 0.0" in line and verdict["adopted"] == {}
    words = [f"gate.{key}={value}" for key, value in verdict["changed"].items()]
    assert sorted(words) == sorted(TINY) and f"defaults: {words[0]}, " in said
    file.write_bytes(file.read_bytes().replace(b"<mujoco", b"<Mujoco"))
    with pytest.raises(ValueError, match=r"policy.onnx: the file was edited"):
        command_of_gate.verdict_of(file)


def test_a_badge():
    """A small picture of the verdict, which is grey unless all was judged as usual."""
    good, refused = REPORT | {"changed": {}}, {"variant": "int8", "refused": True}
    reports = good, good | {"verdict": "fail"}, good | {"changed": {"robots": 40}}
    reports += good | {"adopted": ORIGIN}, good | {"variants": [refused]}
    drawings = [*map(command_of_gate.badge, reports)]
    colors = [command_of_gate.COLORS[x] for x in ("pass", "fail", "other", "other", "fail")]
    for color, drawn in zip(colors, drawings, strict=True):
        assert [x for x in command_of_gate.COLORS.values() if x in drawn] == [color]
    says = [
        [x.text for x in ElementTree.fromstring(drawn).findall(".//{*}text")] for drawn in drawings
    ]
    assert says[1] == ["gpusim gate", "fails, success 0.950"]
    assert says[2] == ["gpusim gate", "passes, success 0.950, other settings"]
    assert says[3] == ["gpusim gate", "passes, success 0.950, tracking not judged"]
    assert says[4] == ["gpusim gate", "a variant fails, success 0.950"]


def test_tracking_of_what_others_trained_is_reported(file, capsys):
    """By the lineage: the tracking is not judged, and source and readings are said."""
    about = {"source": "a/b@c1d2 p.onnx", "licence": "MIT", "card": 64 * "f"}
    about |= {"reads_unmeasured": ["velocity"]}
    model = variants.without_checksums(onnx.load(file))
    (text,) = [x for x in model.metadata_props if x.key == "gpusim_rl"]
    description = json.loads(text.value)
    for entry in description["inputs"]:
        entry.pop("seen", None)
    description["lineage"]["adopted"] = about | {"network": 64 * "0"}
    text.value = json.dumps(description)
    file.write_bytes(sealed(model))
    run_gate(file, "gate.limits.tracking=0.99")  # three robots never prove it
    verdict, said = command_of_gate.verdict_of(file), capsys.readouterr().out
    assert verdict and verdict["adopted"] == about and "constant: tracking, the mean" in said
    assert "adopted: a/b@c1d2 p.onnx, MIT, card ffffffffffff\n" in said
    assert "what no robot measures: velocity\n" in said and "not its makers'" in said
    fallen = [{"falls": {"value": 0.6}}]
    assert command_of_gate.adoption_lines(about, fallen)[-1].endswith("is the card right?")
    assert difference({"changed": {}, "adopted": about}) == "with tracking reported, not judged"


@pytest.mark.parametrize(
    "about, says",
    [
        ({}, "source is missing"),
        (3, "=3: expected object"),
        (ORIGIN | {"licence": None}, "licence=None: expected string"),
        (ORIGIN | {"reads_unmeasured": "velocity"}, "reads_unmeasured='velocity': expected arr"),
        (ORIGIN | {"reads_unmeasured": ["up", 3]}, r"reads_unmeasured\[1\]=3: expected string"),
    ],
)
def test_a_wrong_origin_is_one_line(about, says):
    """Of a file whose ranges were recorded it is nothing: nobody else's waives the tracking."""
    policy: Any = SimpleNamespace(description={"inputs": [{}], "lineage": {"adopted": about}})
    with pytest.raises(ValueError, match=f"invalid description: lineage.adopted.?{says}"):
        gate.adoption(policy)
    policy.description["inputs"] += [{"seen": {}}]
    assert gate.adoption(policy) == {}


def test_the_verdict_in_another_file(file, tmp_path, capsys):
    """judged= gets it, and the file stays bit by bit; variants lie beside judged=."""
    before, other = file.read_bytes(), tmp_path / "judged" / "walk.onnx"
    other.parent.mkdir()
    run_gate(file, f"judged={other}", "variants=[fp16]")
    assert f"{other} passes the gate" in capsys.readouterr().out
    assert file.read_bytes() == before and {*file.parent.glob("*.onnx")} == {file}
    assert {x.name for x in other.parent.iterdir()} == {"walk.onnx", "walk.fp16.onnx"}
    verdict = command_of_gate.verdict_of(other)
    assert verdict and verdict["verdict"] == "pass" and digest(other.read_bytes()) == digest(before)
    for wrong, says in (("gate.json", r"ends in \.onnx"), ("no/walk.onnx", "no directory")):
        cfg = compose_plain("play", ["mode=gate", f"onnx={file}", f"judged={tmp_path / wrong}"])
        with pytest.raises((ValueError, OSError), match=says):
            command_of_gate.policy_file(cfg)


def test_a_policy_that_does_not_walk_fails(file, capsys):
    """With weights of zero the robot stands: it fails by its errors, and exits with 1."""
    model = onnx.load(file)
    for tensor in model.graph.initializer:
        if tensor.name.startswith("module.actor.net"):
            zero = np.zeros_like(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(zero, tensor.name))
    file.write_bytes(sealed(variants.without_checksums(model)))
    with pytest.raises(SystemExit) as end:
        run_gate(file, "gate.limits.velocity=0.3")
    says = capsys.readouterr().err
    assert end.value.code == 1 and "fails the gate: " in says and command_of_gate.REMEDY in says
    verdict = read_verdict(file.read_bytes())
    assert verdict and verdict["verdict"] == "fail"
    assert any(line.startswith("commands: error 0.") for line in verdict["complaints"])


@pytest.mark.slow
def test_variants_are_judged(file, tmp_path, capsys):
    """fp16 and int8 are smaller, answer nearly the same, and have verdicts of their own."""
    report = run_gate(file, "variants=[fp16,int8]", f"out={tmp_path / 'gate.json'}")
    sizes = [x["bytes"] for x in report["variants"]]
    assert sizes[0] > sizes[1] and sizes[0] > sizes[2]
    assert "variant" in capsys.readouterr().out
    policy, inputs = Policy(file), variants.recorded(Policy(file), SETTINGS, 1)[::50]
    for name in ("fp16", "int8"):
        path = file.with_suffix(f".{name}.onnx")
        verdict = command_of_gate.verdict_of(path)
        assert verdict and verdict["verdict"] == "pass"
        other = Policy(path)
        for feed in inputs:
            targets = [np.asarray(x.session.run(["targets"], feed)[0]) for x in (policy, other)]
            worst = np.abs(targets[0] - targets[1]).max()
            assert 0 < worst < {"fp16": 0.01, "int8": 0.3}[name]


def test_a_variant_that_fails_is_refused(file, monkeypatch, capsys):
    """A variant that fails the gate is not written, and the command exits with 1."""
    fails = {"verdict": "fail", "complaints": ["normal: falls 1"]}
    judged = gate.evaluate_policy
    monkeypatch.setattr(variants, "evaluate_policy", lambda *args: judged(*args) | fails)
    with pytest.raises(SystemExit) as end:
        run_gate(file, "variants=[fp16]")
    output = capsys.readouterr()
    assert end.value.code == 1 and "policy.onnx: refused variants: fp16" in output.err
    assert "fail: refused" in output.out and [*file.parent.iterdir()] == [file]


def test_an_interrupted_gate_leaves_the_older_variant(file, monkeypatch):
    """A variant is written once it has passed: until then the older file stays."""
    older = file.with_suffix(".fp16.onnx")
    older.write_bytes(b"older")
    monkeypatch.setattr(variants, "latency", lambda policy: (0.1, 0.2))
    monkeypatch.setattr(variants, "evaluate_policy", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        variants.make(file, file.read_bytes(), ["fp16"], REPORT, SETTINGS, 1)
    assert older.read_bytes() == b"older" and {*file.parent.iterdir()} == {file, older}


def test_only_what_was_judged_gets_a_verdict(file, monkeypatch):
    """A file that is replaced while it is judged gets no verdict."""
    other = file.read_bytes().replace(b"<mujoco", b"<Mujoco")

    def judged(*args: Any) -> dict[str, Any]:
        file.write_bytes(other)
        return REPORT

    monkeypatch.setattr(gate, "evaluate_policy", judged)
    with pytest.raises(ValueError, match=r"policy\.onnx was changed while it was judged"):
        command_of_gate.evaluate_file(file, SETTINGS, 1)
    assert file.read_bytes() == other


def test_a_verdict_keeps_link_and_mode(file, monkeypatch, capsys):
    """The verdict is written behind a link to the file, which keeps its mode; play.py says it."""
    link = file.with_name("newest.onnx")
    link.symlink_to(file)
    file.chmod(0o640)
    monkeypatch.setattr(gate, "evaluate_policy", lambda *args: REPORT)
    command_of_gate.evaluate_file(link, SETTINGS, 1)
    assert link.is_symlink() and stat.S_IMODE(file.stat().st_mode) == 0o640
    cfg = compose_plain("play", [f"onnx={link}", "mode=video"])
    monkeypatch.setattr(modes, "film", lambda *args, **keys: None)
    play.play(cfg)
    today = datetime.now(UTC).date()
    said = capsys.readouterr().out
    assert f"verdict of the release gate: pass, success 0.95, {today}, with other limits" in said
    data = file.read_bytes()
    strange = [
        with_verdict(data, {"verdict": "pass", "changed": {}, "success": x})
        for x in ("\x1b[2J", 10**400)
    ]
    for wrong in (data.replace(b"<mujoco", b"<Mujoco"), *strange):
        file.write_bytes(wrong)
        command_of_gate.say_verdict(file)
        output = capsys.readouterr()
        assert output.err.startswith("warning: the verdict of the release gate is not valid: ")
        assert output.out == "" and output.err.count("\n") == 1


def test_a_variant_that_succeeds_less_is_refused(file, monkeypatch):
    """A variant may succeed less often by 0.03, and is made of the bytes that were judged."""
    judged = file.read_bytes()
    file.write_bytes(b"another file, by now")
    monkeypatch.setattr(variants, "latency", lambda policy: (0.1, 0.2))
    for value, refused in (0.91, True), (0.93, False):
        report = REPORT | {"success": {"value": value, "interval": [0.9, 1.0]}}
        monkeypatch.setattr(variants, "evaluate_policy", lambda *args, report=report: report)
        rows = variants.make(file, judged, ["fp16"], REPORT, SETTINGS, 1)
        assert [x["refused"] for x in rows] == [False, refused]
        assert file.with_suffix(".fp16.onnx").exists() != refused


def test_one_percentage_over_both_parts(monkeypatch):
    """The first line says what the gate takes; then it goes on to the end."""
    monkeypatch.setattr(waiting, "EVERY", -1.0)
    lines: list[str] = []
    settings = compose_plain("play", [*TINY, "gate.endurance.minutes=0.1"])["gate"]
    gate.evaluate_policy(Policy(DEMO), settings, 1, "walk", lines.append)
    what = r"13 scenarios of 3 robots for 2 s, and 1 robots for 6 s: about \d+ s on \d+ cores?"
    assert re.fullmatch(f"walk: {what}", lines[0])
    done = [int(re.fullmatch(r"walk: (\d+)%(, \d+:\d\d left)?", x)[1]) for x in lines[1:]]  # type: ignore[index]
    assert lines[-1].endswith(" left") and len(done) == 3 * 100 + 300
    assert done == sorted(done) and done[-1] == 100
    assert 0 < done[99] < 100


def test_a_quick_gate(robot):
    """Few robots and a minute, unless given; the verdict says so, the usual hash stays."""
    quick = compose_plain("play", ["gate.quick=true"])["gate"]
    changed = {"quick": True, "robots": 16, "endurance.minutes": 1.0}
    assert gate.changed(quick, "walker") == changed
    own = compose_plain("play", ["gate.quick=true", "gate.robots=128"])["gate"]
    assert (own["robots"], own["endurance"]) == (128, {"robots": 8, "minutes": 1.0})
    before = {key: x for key, x in SETTINGS.items() if key != "quick"}
    assert gate.settings_hash(SETTINGS) == gate.settings_hash(before)
    both = [gate.settings_hash({"seed": 1, "gate": x}) for x in (SETTINGS, before, quick)]
    assert both[0] == both[1] != both[2]
    plan = planned(robot, "normal", count=16)
    one = row(plan, results(16, speed=np.zeros(16)))
    assert failures([one], robot, quick) == [] != failures([one], robot, SETTINGS)
    fallen = row(plan, results(16, speed=np.zeros(16), fell=np.arange(16) < 2))
    assert failures([fallen], robot, quick)[0] == "normal: falls 0.125, at most 0.1"


# -- the demo, and mistakes ------------------------------------------------------------------------


def test_the_demo_is_gated():
    """The policy that comes with the package is small, and its verdict holds for this file."""
    assert DEMO.stat().st_size < 1_000_000
    verdict = command_of_gate.verdict_of(DEMO)
    assert verdict and verdict["verdict"] == "pass" and verdict["success"] > 0.9
    assert verdict["settings"] == gate.settings_hash(SETTINGS) and verdict["changed"] == {}


@pytest.mark.parametrize(
    "line, says",
    [
        ("mode=gate onnx=nothing.onnx", "no ONNX file nothing.onnx"),
        ("mode=gate onnx=5", "onnx=5: expected a path"),
        ("mode=gate run=nowhere", "nowhere is not a run directory"),
        ("mode=gate repro=x", "repro= is shown by itself"),
        ("mode=gate out=missing/gate.json", "out=missing/gate.json: no directory missing"),
        ("mode=gate run=nowhere out=p.onnx", "out=p.onnx: expected a name that ends in .json"),
        ("mode=gate run=a seconds=60", "does not use seconds=60: is gate.seconds= meant?"),
        ("mode=gate run=a command=[1,0,0]", "mode=gate does not use command=[1, 0, 0]"),
        ("mode=gate run=a episodes=9", "does not use episodes=9: is gate.robots= meant?"),
        ("mode=gate gate.robots=65536", "gate.robots=65536 for 20 s: at most 1000000 robot-sec"),
        ("mode=gate gate.endurance.minutes=1440.0 gate.endurance.robots=64", "for 86400 s: at"),
        ("mode=gate variants=[fp8]", "variants=['fp8']: expected a list of fp16 and int8"),
        ("mode=gate variants=[]", "variants=[]: expected a list"),
        ("mode=gate variants=[int8,int8]", "each once"),
        ("variants=[int8]", "variants=['int8'] needs mode=gate"),
        ("mode=gate gate.robots=1", "gate.robots=1: expected a whole number from 2"),
        ("mode=gate gate.friction=[1.2,0.3]", "gate.friction=[1.2, 0.3]: expected [least"),
        ("mode=gate gate.slope=[0.0,95.0]", "gate.slope=[0.0, 95.0]: expected numbers from 0"),
        ("mode=gate gate.limits.fals=0.1", "unknown key 'gate.limits.fals': did you mean"),
        ("mode=gate gate.reported=corners", "gate.reported='corners': expected a list"),
        ("mode=gate gate.reported=[3]", "gate.reported="),
        ("mode=gate gate.sim=physx", "gate.sim=physx: choose one of native, warp, mjx"),
        ("mode=gate checkpoint=c", "mode=gate judges an exported file: not with checkpoint="),
        ("demo onnx=p.onnx", "onnx=p.onnx: the demo shows its own policy"),
        ("demo mode=web compare=[a,b]", "compare=['a', 'b']: the demo shows its own policy"),
        ("demo mode=gate", "mode=gate: the demo is shown by mode=viewer, video or web"),
        ("demo video=walk.txt", "video=walk.txt: expected a name that ends in"),
        ("demo worlds=4", "worlds=4 needs run="),
    ],
)
def test_mistakes_get_one_line(line, says, tmp_path, monkeypatch):
    """A wrong key or value of mode=gate and of the demo is answered before anything is driven."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises((ValueError, OSError)) as error:
        words = [word for word in line.split() if word != "demo"]
        cfg = compose_plain("play", words)
        cfg = demo(cfg) if "demo" in line.split() else cfg
        choose_mode(cfg)
        command_of_gate.policy_file(cfg)
        command_of_gate.evaluate_file(Path(cfg["onnx"]), cfg["gate"], 1)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_cannot_be_judged():
    """A robot without a base that follows nothing is refused."""
    policy = Policy(DEMO)
    held = policy.mjcf.replace('name="velocity"', 'name="other"')
    held = re.sub(r"<freejoint[^>]*>|<keyframe>.*</keyframe>", "", held, flags=re.DOTALL)
    policy.mjcf = held
    with pytest.raises(ValueError, match="the gate cannot judge this policy"):
        gate.evaluate_policy(policy, SETTINGS, 1, "test")


def test_reported_scenarios_exist():
    """A scenario that is only reported must be one, and others must be left."""
    with pytest.raises(ValueError, match="unknown scenario 'jumps': choose of normal"):
        gate.evaluate_policy(Policy(DEMO), SETTINGS | {"reported": ["jumps"]}, 1, "test")
    with pytest.raises(ValueError, match=r"gate\.reported leaves nothing to judge"):
        gate.evaluate_policy(Policy(DEMO), SETTINGS | {"reported": [*SCENARIOS]}, 1, "test")
