"""The exported controller gives the targets of Env: its memory, filters, history and restarts."""

import json
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from gpusim_rl.assembly.environment import robot_arguments
from gpusim_rl.core.schema import problems
from gpusim_rl.deploy import runtime
from gpusim_rl.deploy.controller import MEMORY, NEXT, RESTART, Controller, check_names
from gpusim_rl.deploy.describe import describe_targets
from gpusim_rl.deploy.export import TOLERANCE
from gpusim_rl.envs.mirror import Reflector
from gpusim_rl.envs.observation import Observation
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.evaluate import MeanAction, evaluation_env
from gpusim_rl.networks.settings import MemorySettings
from gpusim_rl.networks.squashed_memory import RecurrentActorCritic
from gpusim_rl.robots.servos import safe_controls
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests import robot_files
from tests.exported import Exported, export_env, export_task, fresh_env, make_actor, use_torch
from tests.worlds import (
    ROOT,
    make_actuator,
    make_config,
    make_policy,
    make_task,
    widths,
    with_ranges,
)

SHORT: dict[str, Any] = {"episode": 0.5}  # s: every world restarts at least twice
STEPS = 70


@dataclass(kw_only=True)
class Late(Quadruped):
    """Acts one step late, on filtered readings; a joint's reading is added at the end."""

    def start(self, n, rng):
        return super().start(n, rng) | dict(filtered=torch.zeros(n, 3), wish=torch.zeros(n, 3))

    def update(self, s, rng):
        wish = 0.8 * s.wish + 0.2 * s.command - 0.1 * s.gyro
        return super().update(s, rng) | dict(filtered=0.8 * s.filtered + 0.2 * s.gyro, wish=wish)

    def observe(self, s):
        new = dict(filtered=s.filtered, wish=s.wish, before=s.previous)
        return super().observe(s) | new | dict(time=s.time[:, None].float() / 100)

    def control(self, s):
        late = super().control(s.with_(action=s.previous))
        return late + 0.1 * (s.joint_pos - self.stance)


def uniform(low: float, high: float) -> dict[str, Any]:
    return {"kind": "uniform", "low": low, "high": high}


BIAS = {"gyro": uniform(-0.2, 0.2), "joint_pos": uniform(-0.05, 0.05)}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "history and delay": {
        "history": {"gyro": 3, "joints": 5, "action": 2},
        "observation_delay": (0, 3),
    },
    "limited commands": {"acceleration": (3.0, 2.0, 4.0), "redraw": 0.1},
    "motor": {"actuator": make_actuator(kind="dc", stall=[24, 24, 46], no_load=30, delay=0.01)},
    "all": {
        "history": {"gyro": 3, "action": 4},
        "observation_delay": (1, 2),
        "dropout": {"gyro": 0.2, "joint_vel": 0.5},
        "randomise": {"bias": BIAS, "encoder": uniform(-0.05, 0.05)},
    },
}


def check(exported: Exported) -> None:
    """Over more than 2,000 world-steps with restarts the file gives the targets of Env."""
    restart, targets = exported.recorded.restart, exported.recorded.targets
    assert restart.size > 2000 and (restart.sum(0) > 1).all()
    assert targets.std(0).max() > 0.05  # it moves
    assert exported.error <= TOLERANCE, exported.error


@pytest.mark.parametrize("case", CASES)
def test_targets_are_those_of_env(case, monkeypatch, tmp_path):
    """Fed with what Env delivered, the controller gives the targets of Env."""
    use_torch(monkeypatch)
    check(export_task("quadruped", tmp_path / "p.onnx", steps=STEPS, **SHORT | CASES[case]))


def test_memory_of_the_task(tmp_path, monkeypatch):
    """Delay, filters, time and a reading in `control`, with late, lost and biased readings."""
    use_torch(monkeypatch)
    task = make_task(
        "quadruped", Late, **SHORT | CASES["all"] | {"history": {"filtered": 3}, "redraw": 0.1}
    )
    exported = export_task("quadruped", tmp_path / "p.onnx", task=task, steps=STEPS)
    names = {"action", "previous", "time", "phase", "filtered", "wish", "history.filtered"}
    assert set(exported.controller.start) == names | {"targets"}
    check(exported)


class Fragile(torch.nn.Module):
    """Its action overflows where an observation is large."""

    def forward(self, obs):
        return obs[:, :12] + torch.exp(obs.amax(1, True))


def inputs_of(controller: Controller) -> dict[str, torch.Tensor]:
    """The inputs of two robots whose episodes begin."""
    values = {name: torch.full((2, *shape), 0.1) for name, shape in controller.shapes().items()}
    values |= {MEMORY + name: torch.cat([x, x]) for name, x in controller.start.items()}
    return values | {RESTART: torch.tensor([True, True])}


def outputs_of(controller: Controller, values: dict[Any, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name → output."""
    return dict(zip(controller.outputs, controller(*values.values()), strict=True))


def test_action_is_clamped():
    """The action that is remembered is within ± clip."""
    controller = Controller(make_task(clip=0.05), Fragile())
    action = outputs_of(controller, inputs_of(controller))["next.action"]
    assert action.abs().max() == torch.tensor(0.05)


def test_a_result_that_is_not_finite():
    """A network that overflows for one robot holds its targets and memory, and no other's."""
    controller = Controller(make_task(clip=1e9), Fragile())
    values = inputs_of(controller)
    first = outputs_of(controller, values)
    values |= {MEMORY + name: first[NEXT + name] for name in controller.start}
    values[RESTART] = torch.tensor([False, False])
    values["gyro"] = torch.tensor([[1.0, 0, 0], [1e6, 0, 0]])
    second = outputs_of(controller, values)
    assert first["fault"].tolist() == [False, False] and second["fault"].tolist() == [False, True]
    for name in ("targets", *(NEXT + name for name in controller.start)):
        assert torch.equal(first[name][1], second[name][1]), name
        assert not torch.equal(first[name][0], second[name][0]), name


class Table(Quadruped):
    """Looks something up by a reading, which no NaN can do."""

    def observe(self, s):
        table = torch.linspace(0, 1, 11)
        column = ((s.gyro[:, :1].clamp(-1, 1) + 1) * 5).long()
        return super().observe(s) | dict(looked_up=table[column])


def test_a_task_never_sees_what_is_not_finite():
    """A reading that is NaN for one robot of two leaves the other one's targets as they are."""
    controller = Controller(make_task("quadruped", Table), Fragile())
    values = inputs_of(controller)
    before = outputs_of(controller, values)
    values["gyro"][1] = torch.nan
    after = outputs_of(controller, values)
    assert after["fault"].tolist() == [False, True]
    assert torch.equal(after["targets"][0], before["targets"][0])


@dataclass(kw_only=True)
class Endless(Quadruped):
    """Begins with memory that is not finite."""

    def start(self, n, rng):
        return super().start(n, rng) | dict(since=torch.full((n,), torch.inf))

    def observe(self, s):
        return super().observe(s) | dict(since=torch.exp(-s.since)[:, None])


def test_what_cannot_be_exported_is_named():
    """A sensor or memory with one of our names, and memory that does not start finite."""
    with pytest.raises(ValueError, match="the memory 'since' does not start with finite numbers"):
        Controller(make_task("quadruped", Endless), Fragile())
    for readings, start, says in (
        (["fault"], {}, "a sensor must not be called 'fault'"),
        ([], {"targets": torch.zeros(1)}, "memory must not be called 'targets'"),
    ):
        with pytest.raises(ValueError, match=says):
            check_names(readings, start)


def test_safe_controls():
    """A position servo holds the keyframe; others do nothing; limits and gears are kept."""
    model = mujoco.MjModel.from_xml_string("""
        <mujoco><worldbody><body><joint name="a"/><geom size="1"/></body></worldbody>
          <actuator>
            <position joint="a" kp="10"/> <position joint="a" kp="10" gear="2"/>
            <position joint="a" kp="10" ctrllimited="true" ctrlrange="-0.1 0.5"/>
            <motor joint="a"/> <velocity joint="a" kv="3"/>
            <intvelocity joint="a" kp="10" actrange="-1 1"/>
          </actuator>
          <keyframe><key qpos="0.7"/></keyframe></mujoco>""")
    controls = safe_controls(model)
    np.testing.assert_allclose(controls, [0.7, 1.4, 0.5, 0, 0, 0])
    assert not np.signbit(controls).any()
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    data.ctrl[:2] = controls[:2]
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.actuator_force[:2], 0, atol=1e-12)


ROPES = """<mujoco><option timestep="0.01"><flag autoreset="disable"/></option><worldbody>
<site name="s0"/><site name="s1"/><site name="s2"/><site name="s3"/>
<body><joint name="a" axis="0 1 0" damping="0.5"/><geom size="0.05" pos="0 0 -0.2"/>
<site name="tip" pos="0 0 -0.3"/>
<body pos="0 0 -0.3"><joint name="b" axis="0 1 0" damping="0.5"/><geom size="0.05" pos="0 0 -0.2"/>
</body></body></worldbody>
<tendon><fixed name="t0"><joint joint="a" coef="1"/></fixed><fixed name="t1"><joint joint="a"
coef="1"/></fixed><fixed name="rope"><joint joint="a" coef="1"/><joint joint="b" coef="-1"/></fixed>
</tendon><actuator>
<motor name="pull" site="tip" gear="2 0 0 0 0 0"/>
<motor name="twist" site="tip" gear="0 0 0 0 1 0"/>
<position name="reel" tendon="rope" kp="2" forcerange="-3 3"/>
<position name="turn" joint="b" kp="3" kv="0.3"/></actuator>
<sensor><jointpos name="a_pos" joint="a"/><actuatorpos name="reeled" actuator="reel"/>
<actuatorpos name="turned" actuator="turn"/></sensor></mujoco>"""


@dataclass(kw_only=True)
class Puller(Task):
    """Pulls at a double pendulum with a site, a tendon and a joint."""

    def start(self, n, rng):
        angle = rng.uniform("start", -torch.ones(2), torch.ones(2))
        return dict(qpos=angle, qvel=0 * angle)

    def observe(self, s):
        return dict(a=s.a_pos, reeled=s.reeled, turned=s.turned)

    def reward(self, s):
        return dict(low=s.qpos[:, 0].cos())

    def score(self, record):
        return dict(success=0.0)


def puller(**settings: Any) -> Puller:
    """A task of this model."""
    mjm, encoder = mujoco.MjModel.from_xml_string(ROPES), uniform(0.1, 0.2)
    settings = {"randomise": with_ranges({"encoder": encoder}), "text": ROPES} | settings
    past = {"observation_delay": (0, 1), "clip": 2.0, "share_at_ends": 0.0}
    past["actuator"] = make_actuator()
    return Puller(mjcf="ropes.xml", dt=0.02, episode=0.4, mjm=mjm, **past | settings)


def test_actuators_without_a_joint(monkeypatch, tmp_path):
    """Those of sites and tendons have no encoder, and are described by what they drive."""
    use_torch(monkeypatch)
    envs = [evaluation_env(puller(), 32, weights={"low": 1}, noise={}, seed=5) for _ in range(2)]
    env, task = envs[0], envs[0].task
    s, seen = env.current_state(), task.evaluation().randomization
    assert seen.gear.tolist() == [0, 0, 0, 1] and seen.acts_on[3] == 1
    assert env.measurement.encoders and env.measurement.encoders[1].tolist() == [1, 0, 1]
    assert (s.encoder[:, 1] > 0).all() and torch.equal(env.readings["reeled"], s.reeled)
    torch.testing.assert_close(env.readings["turned"], s.turned + s.encoder[:, 1:])
    actor, path = make_actor(env), tmp_path / "p.onnx"
    controller = Controller(task, actor)
    act = lambda views, _: actor(views["actor"])  # noqa: E731
    check(export_env(envs[1], controller, path, act, "puller", STEPS))
    out = describe_targets(task.mjm)
    assert out["joints"] == [None, None, None, "b"] and out["safe_pose"] == [None, None, None, 0.0]
    assert out["drives"] == ["site tip", "site tip", "tendon rope", "joint b"]
    assert out["units"] == ["2 N", "N m", "m", "rad"]
    assert out["torque_limit"] == [None, None, 3.0, None] and out["joint_range"] == [None] * 4
    root = json.loads((ROOT / "docs" / "policy.schema.json").read_text())
    assert problems(out | {"change": [0.0] * 4}, root["$defs"]["targets"], root) == []


def test_no_mirror_of_a_tendon():
    """A mirror image of an actuator on a tendon is refused with its name."""
    task = puller()
    with pytest.raises(ValueError, match="'reel' drives the tendon rope, which has no"):
        Reflector(task.mjm, 0, None, "cpu")


def test_order_of_joints(monkeypatch, tmp_path):
    """A robot whose joints and actuators have other orders and signs is deployed by its names."""
    use_torch(monkeypatch)
    mjcf = robot_files.write(tmp_path, robot_files.mjcf())
    robot = make_config("task=quadruped", f"robot.mjcf={mjcf}").robot
    task = make_task("quadruped", Quadruped, **SHORT | robot_arguments(Quadruped, robot))
    exported = export_task("quadruped", tmp_path / "p.onnx", task=task, steps=STEPS)
    order = task.mjm.jnt_qposadr[task.mjm.actuator_trnid[:, 0]]
    assert (np.diff(order) < 0).any()
    check(exported)
    about = describe_targets(task.mjm)
    assert about["joints"] == robot_files.NAMES and about["torque_limit"] == [25.0] * 12
    assert about["kp"] == pytest.approx([task.mjm.actuator_gainprm[0, 0]] * 12)
    assert about["safe_pose"] == pytest.approx(task.stance.tolist())


@pytest.mark.parametrize("memory, learner", [("gru", "ppo"), ("attention", "sac")])
def test_policy_that_remembers(tmp_path, memory, learner):
    """A policy is deployed with its memory: the targets of 200 steps with restarts."""
    env = fresh_env(make_task("cartpole", episode=1.0, hide=("speeds",)), "cartpole")
    if learner == "ppo":
        policy: Any = make_policy(*widths(env), memory=memory, seed=3)
        last = policy.actor.net.head[-1].weight
    else:
        remembered = MemorySettings(memory=memory, memory_size=8, memory_frames=8)
        networks: Any = dict(hidden=(16,), activation="silu", bound=1.0, std=0.6, mirrors=None)
        networks |= dict(memory=remembered, seed=3)
        policy = RecurrentActorCritic(env.views, env.task.action_width, **networks)
        last = policy.head.net.w[-1]
    with torch.no_grad():
        last.mul_(300)
    mean = MeanAction(policy, env.num_envs)
    controller = Controller(env.task, policy.actor, policy.actor.blank_memory(1))

    def act(views: Observation, began: torch.Tensor) -> torch.Tensor:
        mean.restart(began)
        return mean(views)

    exported = export_env(env, controller, tmp_path / "p.onnx", act, "cartpole", 200)
    memory = runtime.Policy(exported.path).description["memory"]
    assert [x["name"] for x in memory if x["of"] == "actor"] == ["actor"]
    check(exported)


@torch.no_grad()
def test_a_restart_uses_the_memory_that_is_given():
    """Where an episode begins, memory is used as given, and the history is the first term."""
    task = make_task("quadruped", history={"gyro": 3})
    env = fresh_env(task, "quadruped", 2)
    controller = Controller(env.task, make_actor(env))
    readings = [torch.rand(2, *controller.shapes()[name]) for name in controller.readings]
    memory = {name: torch.rand(2, *x.shape[1:]) for name, x in controller.start.items()}
    restart = torch.tensor([True, False])
    after = outputs_of(controller, dict(enumerate([*readings, restart, *memory.values()])))
    phase = memory["phase"] + torch.tensor([0.0, env.task.dt * env.task.gait])  # pyright: ignore
    torch.testing.assert_close(after["next.phase"], phase % 1)
    gyro = readings[controller.readings.index("gyro")]
    history = after["next.history.gyro"]
    torch.testing.assert_close(history[0], gyro[0].expand(2, 3))
    torch.testing.assert_close(history[1, 0], memory["history.gyro"][1, 1])
    torch.testing.assert_close(history[1, 1], gyro[1])
