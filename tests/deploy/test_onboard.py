"""The guard around a policy on a robot: checks, limits, ramp, stop and preflight, in MuJoCo C."""

import json
import re
from contextlib import suppress
from typing import Any

import mujoco
import numpy as np
import pytest

from benchmarks import preflight as faulty
from benchmarks import sabotage
from gpusim_rl.core.schema import problems
from gpusim_rl.deploy import runtime
from gpusim_rl.deploy.onboard.guard import CROUCH, Guard
from gpusim_rl.deploy.onboard.limits import Limits
from gpusim_rl.deploy.onboard.preflight import preflight
from gpusim_rl.deploy.onboard.verdict import with_verdict
from gpusim_rl.deploy.rest_measurements import standing
from tests.simulated_robot import NOISE, Simulated
from tests.worlds import ROOT

SCHEMA = json.loads((ROOT / "docs" / "policy.schema.json").read_text())
FORWARD = [0.5, 0.0, 0.0]
LEGS = ("FL", "FR", "RL", "RR")
PARTS = ("abduction", "thigh", "knee")
MISUSES = sabotage.misuses()


@pytest.fixture
def sim(trot) -> Simulated:
    """Its robot, in the stance."""
    return Simulated(runtime.Policy(trot))


@pytest.fixture
def quick(monkeypatch) -> None:
    """Preflight refuses a robot after its joints were moved twice, instead of five times."""
    monkeypatch.setattr("gpusim_rl.deploy.onboard.preflight.WRONG", 2)


def guarded(sim: Simulated, **settings: Any) -> tuple[Guard, list[str]]:
    """A guard with the clock of the simulation, and what it says."""
    said: list[str] = []
    return Guard(sim.policy, clock=sim.clock, say=said.append, **settings), said


def walking(sim: Simulated, seconds: float = 1.2, **settings: Any) -> tuple[Guard, list[str]]:
    """`guarded`, after so long: 0.7 s to stand up, then the policy's walk."""
    guard, said = guarded(sim, **settings)
    sim.drive(guard, seconds, FORWARD)
    return guard, said


def after_preflight(
    sim: Simulated, wire: faulty.Wire = faulty.honest, **settings: Any
) -> tuple[Guard, list[str]]:
    """`guarded`, after preflight with a fault or none."""
    guard, said = guarded(sim)
    preflight(guard, *wire(sim), int, **settings)
    return guard, said


def test_it_stands_up_runs_stops_and_stands_up_again(sim):
    """From the ground by a ramp; the policy; a crouch and the ground; and once more."""
    sim.data.qpos[:3] = 0, 0, 0.4
    sim.lie(1.5)
    guard, said = guarded(sim)
    for _ in range(2):
        guard.reset()
        pose, targets = sim.read()["joint_pos"], guard.act(sim.read())
        assert np.abs(targets - pose).max() < 0.8 * 0.02 + 1e-9  # the speed of the ramp
        before, low = targets, sim.data.qpos[2]
        while guard.phase == "rise":
            sim.send(targets, guard.gain)
            targets = guard.act(sim.read())
            assert np.abs(targets - before).max() < 0.8 * 0.02 + 1e-9
            before = targets
        assert guard.phase == "run" and sim.data.qpos[2] > 0.25 > 0.1 > low
        assert sim.drive(guard, 1.0, FORWARD) == ""
        guard.stop()
        crouch = guard.stance + CROUCH * (guard.lying - guard.stance)
        sim.drive(guard, 0.3, FORWARD)
        np.testing.assert_allclose(sim.data.ctrl, crouch, atol=1e-9)
        assert sim.drive(guard, 9.0, FORWARD) == "asked to"
        assert (guard.phase, guard.gain) == ("off", 0.0) and not sim.fell
        sim.lie(0.5)
        assert sim.data.qpos[2] < 0.1
    assert said == ["stands up", "stands", "the policy begins", "stops: asked to", said[4]] * 2
    assert said[4] == "lies: the servos only damp"


def test_the_targets_are_the_policys(sim, trot):
    """Where no limit is met the guard gives the targets of the policy alone."""
    guard, _ = guarded(sim)
    while guard.phase == "rise":
        sim.send(guard.act(sim.read()))
    alone, cut = runtime.Policy(trot), 0
    for _ in range(40):
        targets = guard.act(sim.read(), FORWARD)
        expected = alone.act(sim.read(), FORWARD)
        cut += guard.limits.cut.any()
        if not guard.limits.cut.any():
            np.testing.assert_allclose(targets, expected, atol=1e-6)
        sim.send(targets)
    assert cut < 4


def test_what_the_file_says_of_standing(trot):
    """It fits the schema; the robot is upright and still, and lies with its knees bent."""
    about = runtime.Policy(trot).description
    assert problems(about, SCHEMA, SCHEMA) == []
    standing, joints = about["standing"], about["outputs"][0]["joints"]
    np.testing.assert_allclose(standing["readings"]["up"], [0, 0, 1], atol=0.1)
    np.testing.assert_allclose(standing["readings"]["gyro"], 0, atol=0.1)
    changes = np.array(standing["changes"]["joint_pos"])
    assert (np.diag(changes) > 0.01).all()
    tilts = {joints[i]: x for i, x in enumerate(standing["changes"]["up"])}
    # a longer left leg turns the robot to its right, and the world's up axis to its left
    assert tilts["FL_knee"][1] > 0.01 > -0.01 > tilts["FR_knee"][1]
    assert max(standing["lying"][2::3]) < -2.5


SERVO = """<mujoco><worldbody><body><joint name="a" axis="0 1 0" damping="1"/>
<geom size=".02"/></body></worldbody>
<actuator>
<general joint="a" gear="{gear}" gainprm="5" biastype="affine" biasprm="{bias}"/>
</actuator>
<keyframe><key qpos="0.8" ctrl="0.8"/></keyframe></mujoco>"""


@pytest.mark.parametrize("gear, bias", [(2, "0 -5 -1"), (1, "1 -5 -1"), (1, "0 -4 -1")])
def test_a_servo_whose_control_is_no_angle(gear, bias):
    """With a gear, an offset or another gain it has no stance to send, so the guard refuses it."""
    needs = ["joint_pos", "joint_vel"]
    plain, other = (
        mujoco.MjModel.from_xml_string(SERVO.format(gear=g, bias=b))
        for g, b in ((1, "0 -5 -1"), (gear, bias))
    )
    assert standing(plain, needs, 0.02)["fixed"] and standing(other, needs, 0.02) == {}


def test_limits_by_hand():
    """Range, change and torque, each by numbers that can be checked by hand."""
    about = {"control_range": [None, [-1.0, 1.0]], "joint_range": [[-2.0, 2.0], None]}
    about |= {"change": [0.1, 10.0], "kp": [10.0, 20.0], "kd": [1.0, 0.0]}
    about |= {"torque_limit": [5.0, None]}
    limits = Limits(about, change=2.0, least_change=0.05)
    far, zero = np.array([9.0, 9.0]), np.zeros(2)
    np.testing.assert_allclose(limits(far, zero, None, None), [0.2, 1.0])
    assert limits.cut.tolist() == [True, True]
    # torque: kp (q* - q) - kd v <= 5, so q* <= q + (5 + v) / 10
    pose, speed = np.array([-0.5, 0.0]), np.array([-2.0, 0.0])
    np.testing.assert_allclose(limits(far, zero, pose, speed), [-0.2, 1.0])
    np.testing.assert_allclose(limits(zero, zero, zero, zero), zero)
    # no joint that is far away moves a target further than it may change
    np.testing.assert_allclose(limits(zero, zero, np.array([-3.0, 0.0]), zero), [-0.2, 0.0])
    np.testing.assert_allclose(limits(zero, zero + 1.9, np.array([20.0, 0.0]), zero), [2.0, 0.0])
    np.testing.assert_allclose(limits(np.array([np.nan, 0.5]), zero, None, None), [0.0, 0.5])
    assert not limits.cut.any()


@pytest.mark.parametrize("checks, runs", [("refuse", False), ("clamp", True), ("warn", True)])
def test_readings_outside_of_their_range(sim, checks, runs):
    """They are a fault, cut, or said; the line names the reading and the range."""
    guard, said = walking(sim, 0.6, checks=checks)
    taken: list[float] = []
    act = sim.policy.act
    sim.policy.act = lambda values, command: taken.append(values["gyro"][0]) or act(values, command)

    def fast():
        return {"gyro": np.array([500.0, *sim.read()["gyro"][1:]])}

    why = sim.drive(guard, 0.3, FORWARD, read=lambda: sim.read() | fast())
    line = next(x for x in said if x.startswith("gyro[0] is 500 rad/s, outside of "))
    assert (guard.phase == "run") == runs and why == ("" if runs else line)
    limit = guard.trained["gyro"][1][0]
    assert {*taken} == ({limit if checks == "clamp" else 500.0} if runs else set())


@pytest.mark.parametrize("stopped, checks", [(True, "refuse"), (False, "clamp"), (False, "warn")])
def test_the_first_reading_is_always_checked(sim, stopped, checks):
    """It must be in range; a joint a little beyond it comes back within 5 steps."""
    guard, _ = guarded(sim, checks=checks)
    if stopped:
        guard.stop()
    pose = sim.read()["joint_pos"]
    with pytest.raises(ValueError, match=r"joint_pos of FL_knee is -91.*is it in degrees"):
        guard.act(sim.read() | {"joint_pos": pose * 180 / np.pi})
    beyond = np.where(np.arange(12) == 2, guard.limits.low - 0.03, pose)
    for _ in range(5):
        targets = guard.act(sim.read() | {"joint_pos": beyond})
    assert (targets >= guard.limits.low).all()


def test_a_short_fault_is_held_and_a_long_one_stops(sim):
    """Four steps without readings repeat the targets; five stop the robot."""
    guard, _ = walking(sim, 0.7)
    last = guard.sent
    for _ in range(4):
        np.testing.assert_array_equal(guard.act(None, FORWARD), last)
        sim.send(guard.sent)
    assert guard.act(sim.read(), FORWARD) is not last and guard.phase == "run"
    for _ in range(5):
        guard.act(sim.read(), FORWARD, age=0.1)
        sim.send(guard.sent)
    assert guard.phase == "stop"
    assert guard.why == "the readings' age is 0.1 s, more than 0.06 s"


@pytest.mark.parametrize("checks", ["refuse", "clamp", "warn"])
@pytest.mark.parametrize("wrong", [("joint_pos", 20.0), ("joint_vel", 400.0)])
def test_a_spike_of_a_joint_moves_no_target(sim, checks, wrong):
    """A joint's faulty reading bends no target, neither as the policy runs nor in the stop."""
    guard, _ = walking(sim, checks=checks)
    assert guard.sent is not None and guard.phase == "run"
    low, high, (name, spike) = guard.limits.low, guard.limits.high, wrong
    read, _ = sabotage.changed(**{name: lambda x: np.where(np.arange(12) == 1, spike, x)})(sim)

    def step() -> None:
        before = guard.sent
        assert before is not None
        targets = guard.act(read(), FORWARD)
        assert (np.abs(targets - before) <= guard.limits.change + 1e-9).all()
        assert ((low <= targets) & (targets <= high)).all()
        if checks == "refuse" and guard.phase == "run":
            np.testing.assert_array_equal(targets, before)
        sim.send(targets, guard.gain)

    for _ in range(4):
        step()
    guard.stop()
    while guard.phase != "off":
        step()


def test_a_stop_as_it_rises_is_no_kick(sim):
    """From where it has risen to the robot lies down at the speed of the ramp."""
    sim.data.qpos[:3] = 0, 0, 0.4
    sim.lie(1.5)
    guard, _ = guarded(sim)
    sim.drive(guard, 0.2, None)
    guard.stop()
    while guard.phase != "off":
        before, targets = guard.sent, guard.act(sim.read())
        assert np.abs(targets - before).max() < 0.8 * 0.02 + 1e-9
        sim.send(targets, guard.gain)
    assert sim.data.qpos[2] < 0.1 and not sim.fell


def test_faults_that_come_and_go_stop_the_robot(sim):
    """Four of five readings missing stop it; one of five does not."""
    for missing, steps, phase in (([0], 20, "run"), ([0, 1, 2, 3], 7, "stop")):
        guard, _ = walking(sim, checks="warn")  # the fall itself is no fault
        for t in range(steps):
            sim.send(guard.act(None if t % 5 in missing else sim.read(), FORWARD), guard.gain)
        assert guard.phase == phase


@pytest.mark.parametrize("age, says", [(-100.0, "less than 0"), (np.nan, "more"), (0.1, "more")])
def test_an_age_that_cannot_be(sim, age, says):
    """Readings from the future are a fault, as late ones are; 5 ms between two clocks are none."""
    guard, _ = guarded(sim)
    with pytest.raises(ValueError, match=f"the readings' age is .* s, {says}"):
        guard.act(sim.read(), age=age)
    guard.act(sim.read(), age=-0.005)


@pytest.mark.parametrize("names", [("gyro",), ("up",), ("joint_pos", "joint_vel"), ("joint_vel",)])
def test_a_sensor_that_freezes_in_the_walk(sim, names):
    """A whole reading that is equal in ten steps in which the targets move stops the robot."""
    guard, _ = walking(sim, 2.0)
    begin, held = sim.clock(), {name: x for name, x in sim.read().items() if name in names}
    sim.drive(guard, 1.0, FORWARD, read=lambda: sim.read() | held)
    assert guard.why.startswith(f"{names[0]} is equal in 10 steps") and guard.phase == "stop"
    assert sim.clock() - begin > 0.3 and not sim.fell


def test_a_robot_that_stands_still_may_measure_the_same(sim):
    """Equal readings at rest, or constant for good, are no fault."""
    guard, _ = walking(sim, 2.0)
    rest, values = guard.sent, sim.read()
    sim.policy.act = lambda *_: rest
    for _ in range(40):
        guard.act(values, FORWARD)
        guard.times.clear()
    assert (guard.phase, guard.why) == ("run", "")
    assert guard.moving == ["gyro", "up", "joint_pos", "joint_vel"]
    sim.policy.description["standing"]["fixed"] = True
    assert guarded(sim)[0].moving == ["joint_pos", "joint_vel"]


HUGE = 10**400  # JSON has such numbers, and no float does


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"age": None}, "the readings' age is nan"),
        ({"age": np.zeros(2)}, "the readings' age is nan"),
        ({"age": HUGE}, "the readings' age is nan"),
        ({"command": [HUGE, 0.0, 0.0]}, "int too large to convert to float"),
        ({"gyro": [HUGE, 0.0, 0.0]}, "gyro: int too large to convert to float"),
        ({"joint_pos": {f"{x}_{y}": HUGE for x in LEGS for y in PARTS}}, "joint_pos: int too"),
        ({"clock": None}, "the time is nan"),
        ({"clock": np.nan}, "the time is nan"),
        ({"engine": "onnxruntime cannot run the policy"}, "onnxruntime cannot run the policy"),
        ({"say": BrokenPipeError()}, ""),
    ],
    ids=str,
)
def test_nothing_is_raised_as_the_robot_walks(sim, wrong, says):
    """What is no number of a float is a fault; a terminal that is gone is not even one."""
    guard, _ = walking(sim)
    last, act = guard.sent, sim.policy.act

    def fail(x: Any) -> None:
        if x is not None:
            raise x

    guard.clock = lambda: wrong.get("clock", sim.clock())
    guard.say = lambda _: fail(wrong.get("say"))
    sim.policy.act = lambda *x: fail(ValueError(wrong["engine"])) if "engine" in wrong else act(*x)
    readings = {name: wrong.get(name, x) for name, x in sim.read().items()}
    for _ in range(5):
        assert guard.phase == "run" and last is not None
        targets = guard.act(readings, wrong.get("command", FORWARD), wrong.get("age", 0.0))
        if says and guard.phase == "run":
            np.testing.assert_array_equal(targets, last)
    assert guard.phase == ("stop" if says else "run") and guard.why.startswith(says)


def test_a_bad_reading_is_said_once(sim):
    """Not again for each other text, width or number of it."""
    guard, said = walking(sim, patience=1000, rate=10)
    before = len(said)
    for i in range(20):
        guard.act(sim.read() | {"up": f"high {i}"}, FORWARD)
        guard.act(sim.read() | {"gyro": np.zeros(4 + i)}, FORWARD)
        guard.act(sim.read(), [np.nan, float(i), 0.0])
    assert len(said) == before + 3, said


@pytest.mark.parametrize(
    "periods, says",
    [
        ([0.01] * 60, "the period is 0.01 s"),  # a clock at half the speed, so twice the rate
        ([1.0], "the time since the last step is 1 s: the loop hangs"),
        ([0.1], "the time since the last step is 0.1 s"),
        ([*[0.02] * 5, 0.1], "the time since the last step is 0.1 s"),
        ([0.05] * 10, ""),  # 50 ms is late, but not more than 3 steps
        ([0.07, *[0.02] * 15] * 3, ""),  # borne, as lost readings are
    ],
)
@pytest.mark.parametrize("checks", ["refuse", "warn"])
def test_the_time_between_two_steps(sim, checks, periods, says):
    """A wrong rate or a hanging loop stops the robot, or is said with checks=warn."""
    guard, said = guarded(sim, checks=checks)
    times = iter(np.cumsum([10.0, *periods]).tolist())
    guard.clock = lambda: next(times)
    for k in range(1 + len(periods)):  # the robot is not moved: a sensor that is not frozen varies
        guard.act({name: np.asarray(x) + 1e-6 * k for name, x in sim.read().items()}, FORWARD)
    assert any(says in line for line in said)
    stops = bool(says) and checks == "refuse"
    assert guard.why.startswith(says) if stops else guard.why == ""
    guard.clock = lambda: 99.0
    guard.stop()
    for _ in range(3):
        guard.act(sim.read(), FORWARD)
    assert not guard.times


def test_commands(sim):
    """They are cut to the range of training, and said once; one that is not finite is a fault."""
    guard, said = guarded(sim)
    sim.drive(guard, 0.7, [3.0, -9.0, 0.0])
    assert said[2] == "command forward is 3 m/s, cut to 1"
    assert said[3] == "command left is -9 m/s, cut to -0.5"
    assert "[nan, 0.0, 0.0] is not finite" in sim.drive(guard, 0.2, [np.nan, 0.0, 0.0])
    guard.reset()
    sim.drive(guard, 2.0, FORWARD)
    assert "command has shape" in sim.drive(guard, 0.2, [1.0])


def test_a_joint_that_does_not_follow(sim):
    """As the robot stands up a joint that stays behind stops it, by its name."""
    sim.data.qpos[9] -= 1.0
    stuck = sim.read()["joint_pos"].copy()
    guard, _ = guarded(sim)
    why = sim.drive(guard, 3.0, FORWARD, read=lambda: sim.read() | {"joint_pos": stuck})
    assert re.match("FL_knee is 0.5.* from its target: it does not follow", why)


POSITIVE = ("margin", "late", "rate", "patience", "speed", "change", "lower")
SWAPPED = [f"{leg}_{x}" for leg in LEGS for x in ("thigh", "abduction", "knee")]


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"task": "reach"}, "the file's task is 'quadruped', not 'reach'"),
        ({"robot": "go1"}, "the file's robot is 'quadruped', not 'go1'"),
        ({"joints": ["FL_hip"]}, "lacks FL_abduction, .* has FL_hip too many"),
        ({"joints": SWAPPED}, "its joint 0 is FL_abduction, not FL_thigh"),
        ({"joints": "FL_knee"}, "joints='FL_knee': expected the names of all joints"),
        ({"joints": [None]}, "has None too many"),
        ({"checks": "no"}, "checks='no': choose refuse, clamp, warn"),
        *(({key: -1}, f"{key}=-1: expected a number above 0") for key in POSITIVE),
        ({"lower": np.nan}, "lower=nan: expected a number"),
        ({"rate": 0}, "rate=0: expected a number"),
        ({"say": None}, "say is of type NoneType: expected a function"),
        ({"clock": 3}, "clock is of type int: expected a function"),
        ({"policy": "policy.onnx"}, "policy is of type str: expected a Policy"),
    ],
)
def test_wrong_settings_are_one_line(sim, settings, says):
    """Each is refused as the guard is made, in one line that names it."""
    with pytest.raises(ValueError, match=says) as error:
        Guard(**{"policy": sim.policy} | settings)
    assert "\n" not in str(error.value)


def test_wrong_arguments_of_preflight(sim):
    """Each is refused in one line that names it, before anything moves."""
    guard, _ = guarded(sim)
    for says, change in {
        "guard is of type Policy: expected a Guard": {"guard": sim.policy},
        "read_robot is of type dict: expected a function": {"read_robot": sim.read()},
        "send is of type NoneType: expected a function": {"send": None},
        "wait is of type float: expected a function": {"wait": 0.02},
        "hung='no': expected True or False": {"hung": "no"},
        "the readings are of type int: expected a mapping": {"read_robot": lambda: 3},
        "reading 'gyro' is missing": {"read_robot": dict},
        "up: could not convert string": {"read_robot": lambda: sim.read() | {"up": "high"}},
        "up has no joint names": {"read_robot": lambda: sim.read() | {"up": {}}},
        r"gyro\[2\] is inf": {"read_robot": lambda: sim.read() | {"gyro": [0, 0, 1e300]}},
    }.items():
        with pytest.raises(ValueError, match=says) as error:
            preflight(**dict(guard=guard, read_robot=sim.read, send=sim.send) | change)
        assert "\n" not in str(error.value)
    assert guard.sent is None and sim.clock() == 0


def refusal(sim: Simulated, wire: Any, noise: float = 1.0) -> str:
    """What preflight says of a robot with a fault and training's noise, or a share of it."""
    sim.noise = {name: noise * x for name, x in NOISE.items()}
    try:
        after_preflight(sim, wire)
    except ValueError as error:
        return str(error)
    return ""


JOINTS = [i if i in (1, 5) else pytest.param(i, marks=pytest.mark.matrix) for i in range(12)]


@pytest.mark.parametrize("joint", JOINTS)
@pytest.mark.parametrize("noise", [1.0, 0.1, 0.0])
def test_a_dead_encoder_is_refused(sim, quick, joint, noise):
    """Preflight looks at each joint's own answer: one that is constant is found, by its name."""
    says = refusal(sim, faulty.frozen("joint_pos", joint), noise)
    assert says.startswith(f"preflight: {sim.policy.joints[joint]} was moved"), says


@pytest.mark.parametrize("joint", JOINTS)
@pytest.mark.parametrize("noise", [1.0, 0.0])
def test_a_joint_vel_of_another_sign_is_refused(sim, quick, joint, noise):
    """With training's noise the joints are moved until the sign of each speed is clear."""
    says = refusal(sim, faulty.scaled("joint_vel", -1.0, joint), noise)
    assert "another sign" in says or "noise hides the sign" in says
    assert sim.policy.joints[joint] in says


@pytest.mark.parametrize("seed", range(3))
def test_an_honest_robot_with_the_noise_of_training_is_taken(sim, seed):
    """Where noise hides the speeds it is moved a few times more, and the lines say so."""
    sim.noise, sim.rng = NOISE, np.random.default_rng(seed)
    guard, said = after_preflight(sim)
    assert guard.phase == "run" and 2 <= len(said) <= 6
    assert all(line.endswith("moves them once more") for line in said[2:])


@pytest.mark.parametrize("name", MISUSES)
def test_misuses_are_stopped(trot, request, name):
    """By the right layer, in one line, before a fall; the last is missed, as the docs say."""
    misuse = MISUSES[name]
    if name not in [*MISUSES][:13]:  # a variant, beyond the twelve
        request.getfixturevalue("quick")
    result = sabotage.drive(trot, misuse, check=True, seconds=7.0)
    assert sabotage.expected(result, misuse) and "\n" not in result.message, result


def test_the_table_of_mistakes():
    """docs/deploy.md tells who stops each of the twelve, in their order."""
    text = (ROOT / "docs" / "deploy.md").read_text().split("### Twelve mistakes")[1]
    rows = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    twelve = [misuse.by for misuse in MISUSES.values()][1:13]
    assert [row.split(",")[0].split(" ")[0] for row in rows] == twelve


def hanging(policy: runtime.Policy) -> Simulated:
    """Its robot, in the air."""
    sim = Simulated(policy)
    sim.model.opt.gravity[:] = 0
    sim.data.qpos[2] = 1.0
    return sim


def swap_sides(x: np.ndarray) -> np.ndarray:
    """Numbers of the joints, with left and right legs in each other's place."""
    return x[sabotage.SIDES]


def test_preflight_in_the_air(trot):
    """A hanging robot is not asked to tilt; swapped joints are found all the same."""
    policy = runtime.Policy(trot)
    before = json.dumps(policy.description)
    guard, _ = after_preflight(hanging(policy), hung=True)
    assert json.dumps(policy.description) == before
    # it is not driven by the policy before it stands on the ground
    assert guard.phase == "rise" and guard.sent is None
    swapped = sabotage.changed(**dict.fromkeys(("joint_pos", "joint_vel"), swap_sides))
    with pytest.raises(ValueError, match="FL_abduction was moved, but joint_pos says that FR_"):
        after_preflight(hanging(policy), swapped, hung=True)


def weaker(m: Any) -> None:
    """Servos with 0.85 of the file's kp."""
    m.actuator_gainprm[:, 0] *= 0.85
    m.actuator_biasprm[:, 1] *= 0.85


@pytest.mark.parametrize(
    "change",
    [
        weaker,
        lambda m: m.dof_frictionloss[6:].fill(0.5),
        pytest.param(lambda m: setattr(m.opt, "noslip_iterations", 0), marks=pytest.mark.matrix),
        pytest.param(lambda m: m.dof_frictionloss[6:].fill(0.2), marks=pytest.mark.matrix),
        pytest.param(lambda m: m.geom_friction[:, 0].fill(0.3), marks=pytest.mark.matrix),
        pytest.param(lambda m: m.geom_friction[:, 0].fill(1.5), marks=pytest.mark.matrix),
    ],
    ids=["kp 0.85", "dry friction 0.5", "creep", "dry friction 0.2", "floor 0.3", "floor 1.5"],
)
def test_a_robot_that_differs_a_little_passes_preflight(sim, change):
    """Gains, dry friction of the joints, friction of the floor, feet that creep."""
    change(sim.model)
    sim.kp = sim.model.actuator_gainprm[:, 0].copy()
    guard, said = after_preflight(sim)
    assert said == ["stands up", "stands"] and guard.phase == "run"


@pytest.mark.parametrize(
    "seed", [5, *(pytest.param(i, marks=pytest.mark.matrix) for i in range(40))]
)
def test_robots_that_training_draws_pass_preflight(sim, seed):
    """With training's noise, too; one that is refused does tip over."""
    sim.draw(seed)
    try:
        after_preflight(sim)
    except ValueError as error:
        assert "the robot tips over" in str(error) and sim.lowest < 0.96, error


def test_preflight_needs_a_guard_that_has_not_moved_its_robot(sim):
    """From a policy's targets the way to the stance would be a jump."""
    guard, _ = walking(sim, 1.0)
    with pytest.raises(ValueError, match=r"moves its robot already: call guard.reset"):
        preflight(guard, sim.read, sim.send, int)
    guard.reset()
    guard.stop()
    with pytest.raises(ValueError, match="moves its robot already"):
        preflight(guard, sim.read, sim.send, int)


def test_a_robot_that_tips_over_is_not_moved_on(sim):
    """Preflight ends as soon as the base tilts far, with that reason."""
    guard, said = guarded(sim)

    def send(targets: np.ndarray) -> None:
        if "stands" in said and sim.clock() > 3.5:
            sim.data.qvel[4] = 3.0  # [rad/s] forward
        sim.send(targets)

    with pytest.raises(ValueError, match="the robot tips over as its joints move: up"):
        preflight(guard, sim.read, send, int)
    assert sim.lowest > 0.9


@pytest.mark.parametrize("after", [20, 150])  # as it stands up; as joints are moved
def test_preflight_is_stopped(trot, after):
    """When the wait between two steps stops the guard, preflight ends and the robot lies down."""
    sim, steps = Simulated(runtime.Policy(trot)), iter(range(after))
    guard, said = guarded(sim)
    preflight(guard, sim.read, sim.send, lambda: next(steps, None) is None and guard.stop())
    assert (guard.phase, guard.why) == ("stop", "asked to")
    sim.drive(guard, 10.0, FORWARD)
    assert guard.phase == "off" and not sim.fell and sim.data.qpos[2] < 0.1
    assert [line.split(":")[0] for line in said][-2:] == ["stops", "lies"]


def test_a_robot_that_hangs_and_nobody_says_so(trot):
    """Without hung=True a base that does not tilt is asked for, not called swapped legs."""
    with pytest.raises(ValueError, match="no joint tilts the robot: does it hang"):
        after_preflight(hanging(runtime.Policy(trot)), faulty.frozen("up"))


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda x, _: x["standing"].update(lying=[np.nan] * 12), "lying is not"),
        (lambda x, _: x["standing"].update(lying=[0.0] * 3), "lying is not"),
        (lambda x, _: x["standing"].pop("lying"), "neither how its robot lies down, nor"),
        (lambda x, _: x.pop("standing"), "does not say how its robot stands"),
        (lambda x, _: x["outputs"][0].update(safe_pose=[np.nan] * 12), "safe_pose is not"),
        (lambda x, _: x["outputs"][0]["kp"].__setitem__(0, -40.0), r"kp \[-40"),
        (lambda x, _: x["outputs"][0].pop("change"), "KeyError 'change'"),
        (lambda x, _: x["outputs"][0]["joint_range"].__setitem__(0, [1, -1]), "joint_range begins"),
        (lambda x, _: x["inputs"][0].pop("seen"), "KeyError 'seen'"),
        (lambda x, _: x["inputs"][0]["seen"]["least"].__setitem__(0, np.nan), "seen of gyro is"),
        (lambda x, _: x["standing"]["changes"]["up"].pop(), "changes of up is not"),
        (lambda x, _: x["standing"]["changes"].pop("joint_pos"), "KeyError 'joint_pos'"),
        (lambda x, _: x.update(standing="it stands"), "does not say how its robot stands"),
        (lambda x, _: x["outputs"][0].pop("kp"), "position servos of joints"),
        (lambda x, _: x["outputs"][0].update(safe_pose=[1e9] * 12), "safe_pose of .* is outside"),
        (lambda x, _: x["standing"]["lying"].__setitem__(2, 5.0), "lying of FL_knee is outside of"),
        (lambda x, _: x["inputs"][0].update(units=["rad/s"]), "gyro .* expected 3 names"),
        (lambda x, _: x["inputs"][4].update(units=[1, 2, 3]), "command .* expected 3 names"),
        (lambda x, _: x["outputs"][0]["kp"].__setitem__(3, None), "of joints: quadruped is none"),
        (lambda _, p: p.joints.__setitem__(0, p.joints[1]), "expected 11 names"),
        (lambda _, p: p.reads["joint_vel"].reverse(), "joint_vel has other joints than"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_are_refused(trot, change, says):
    """Numbers that are none or too few, motors, joints of one name or another order."""
    policy = runtime.Policy(trot)
    change(policy.description, policy)
    with pytest.raises(ValueError, match=says) as error:
        Guard(policy)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, n: x["outputs"][0].update(kd=[n] * 12),
        lambda x, n: x["outputs"][0].update(change=[n] * 12),
        lambda x, n: x["outputs"][0].update(torque_limit=[n] * 12),
        lambda x, n: x["outputs"][0].update(safe_pose=[n] * 12),
        lambda x, n: x["inputs"][0]["seen"].update(greatest=[n] * 3),
        lambda x, n: x["inputs"][4]["trained"].update(high=[n] * 3),
        lambda x, n: x["standing"]["readings"].update(up=[n] * 3),
        lambda x, n: x["standing"]["changes"].update(up=[[n] * 3] * 12),
        lambda x, n: x["standing"].update(delay=[n] * 12),
        lambda x, n: x["standing"].update(lying=[n] * 12),
    ],
)
def test_integers_of_any_size(trot, change):
    """Beyond float they are one line; beyond int64 nothing else is raised as it moves."""
    policy = runtime.Policy(trot)
    change(policy.description, HUGE)
    with pytest.raises(ValueError, match="description is invalid: OverflowError int too large"):
        Guard(policy)
    sim = Simulated(runtime.Policy(trot))
    change(sim.policy.description, 10**30)
    with suppress(ValueError):
        guard, _ = guarded(sim)
        sim.drive(guard, 0.8, FORWARD)
        assert guard.sent is not None and np.isfinite(guard.sent).all()
        preflight(guarded(sim)[0], sim.read, sim.send, int)


def test_the_verdict_of_the_gate(trot, tmp_path):
    """A failed or edited file is refused; one never judged, or by other limits, is said."""
    data, path, said = trot.read_bytes(), tmp_path / "policy.onnx", list[str]()

    def make(data: bytes, gate: bool = True) -> Guard:
        path.write_bytes(data)
        return Guard(runtime.Policy(path), gate=gate, say=said.append)

    make(with_verdict(data, {"verdict": "pass", "changed": {}}))
    assert said == []
    make(data)
    make(with_verdict(data, {"verdict": "pass", "changed": {"limits.falls": 1.0}}))
    make(with_verdict(data, {"verdict": "pass", "changed": {"quick": True, "robots": 16}}))
    assert [line.split(":")[0] for line in said] == [
        "the release gate never judged this file",
        "the release gate judged this file with other limits or scenarios than usual",
        "the release gate judged this file by the quick gate, which proves nothing",
    ]
    failed = with_verdict(data, {"verdict": "fail"})
    for wrong, says in (
        (failed, "the file failed the release gate"),
        (failed.replace(b'"fail"', b'"pass"'), "the file was edited after the gate judged it"),
    ):
        with pytest.raises(ValueError, match=says):
            make(wrong)
        make(wrong, gate=False)
    with pytest.raises(ValueError, match="gate=1: expected True or False"):
        Guard(runtime.Policy(path), gate=1)  # pyright: ignore


def test_a_fixed_base_needs_no_lying_pose(trot):
    """It stops in the stance. The file of a legged robot does not say that its base is fixed."""
    policy = runtime.Policy(trot)
    assert "fixed" not in policy.description["standing"]
    del policy.description["standing"]["lying"]
    policy.description["standing"]["fixed"] = True
    assert problems(policy.description, SCHEMA, SCHEMA) == []
    guard = Guard(policy, say=str)
    guard.stop()
    np.testing.assert_array_equal(guard.goals, [guard.stance])
