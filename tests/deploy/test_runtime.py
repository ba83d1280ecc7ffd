"""Deployment: numpy and onnxruntime alone give the observations and controls of training."""

import json
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import onnx
import pytest
import torch

from gpusim_rl.deploy import runtime
from gpusim_rl.training.evaluation import SEED, evaluation_env
from tests.acceptance.deploy import ROOT, episodes, walk_alone
from tests.exported import Exported, export_task
from tests.walk_alone import BANNED
from tests.worlds import TASKS, make_env, numbers

B = 8
CASES = [(name, {}) for name in TASKS]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join([case[0], *case[1]]))
def exported(request, tmp_path_factory) -> Exported:
    """An exported policy of each case."""
    name, settings = request.param
    return export_task(name, tmp_path_factory.mktemp(name) / "policy.onnx", **settings)


@pytest.fixture(scope="module")
def walker(tmp_path_factory) -> Exported:
    """An exported policy of the quadruped."""
    return export_task("quadruped", tmp_path_factory.mktemp("walker") / "policy.onnx")


def measure(policy: runtime.Policy, env) -> dict[str, np.ndarray]:
    """A batch of readings from the physics of an Env."""
    model, state = env.task.mjm, env.current_state()
    values = {
        name: getattr(state, name).numpy() for name in policy.needs if name not in policy.reads
    }
    for source, array, place in (
        ("joint_pos", env.sim.qpos, "jnt_qposadr"),
        ("joint_vel", env.sim.qvel, "jnt_dofadr"),
    ):
        columns = [
            int(getattr(model, place)[model.joint(joint).id]) for joint in policy.reads[source]
        ]
        values[source] = array[:, columns].float().numpy()
        for i, joint in enumerate(policy.reads[source]):
            if joint == "hinge":  # the cartpole's, which has no actuator
                sensor = {"joint_pos": state.pole_angle, "joint_vel": state.pole_speed}[source]
                values[source][:, i] = sensor[:, 0]
    return values


def sample_readings(policy: runtime.Policy) -> dict[str, np.ndarray]:
    """Plausible readings of one robot."""
    return {name: np.linspace(-0.3, 0.4, width) for name, width in policy.needs.items()}


@torch.no_grad()
def test_observation_and_controls_are_those_of_training(exported):
    """Over at most 300 control steps, the runtime gives the observations and controls of `Env`."""
    policy = runtime.Policy(exported.path)
    env = make_env(policy.about["task"], B, stagger=False, **exported.settings)
    policy.reset(env.memory["phase"].numpy() if "phase" in env.memory else np.zeros(B))
    running, lived, commands = torch.ones(B, dtype=torch.bool), 0, set()
    for _ in range(min(300, env.task.horizon - 1)):
        s, readings = env.current_state(), measure(policy, env)
        command = s.command.numpy().copy() if "command" in env.memory else None
        expected = torch.cat(list(env.task.observe(s).values()), 1)
        np.testing.assert_allclose(
            policy.observe(readings, command)[running], expected[running], rtol=0, atol=1e-5
        )
        targets = policy.act(readings, command)
        step = env.step(torch.from_numpy(policy.action.copy()))
        # a restarted world has a new clock, and no controls yet
        running &= ~(step.terminated | step.truncated | step.fault)
        np.testing.assert_allclose(targets[running], env.sim.ctrl[running], rtol=0, atol=1e-5)
        lived += int(running.sum())
        commands.add(None if command is None else command[running].tobytes())
    assert lived > 100 * B and (command is None or len(commands) > 1)


def test_act_is_the_torch_actor(exported):
    """Controls are offset + scale · clamp(action) of the torch actor, for readings by joint
    name."""
    policy = runtime.Policy(exported.path)
    readings, drive = sample_readings(policy), exported.task.drive
    slow = np.array([0.05, 0.0, 0.0])  # too slow to start the clock
    command = slow if exported.task.asks else None
    policy.reset(0.3)
    obs = policy.observe(readings, command)
    clip = exported.task.clip
    action = exported.actor(torch.from_numpy(obs)).detach().numpy()[0].clip(-clip, clip)
    named = readings | {
        source: dict(zip(joints, readings[source], strict=True))
        for source, joints in policy.reads.items()
    }
    targets = policy.act(named, command)
    used = 0 * action if drive.delay else action
    assert targets.shape == (exported.task.mjm.nu,)
    np.testing.assert_allclose(
        targets, np.array(drive.offset) + np.array(drive.scale) * used, atol=1e-5
    )
    np.testing.assert_allclose(policy.action, action[None], atol=1e-5)


def test_action_is_clamped(tmp_path):
    """An action is within ± clip, and a target within scale · clip of its offset."""
    exported = export_task("quadruped", tmp_path / "policy.onnx", clip=0.05)
    policy, drive = runtime.Policy(exported.path), exported.task.drive
    targets = policy.act(sample_readings(policy), np.zeros(3))
    assert np.abs(policy.action).max() == np.float32(0.05)
    np.testing.assert_array_less(
        np.abs(targets - drive.offset), np.array(drive.scale) * 0.05 + 1e-6
    )


def test_batch_is_each_robot_alone(exported):
    """Over several steps a batch of robots gets the controls that each would get alone."""
    batch, alone = runtime.Policy(exported.path), [runtime.Policy(exported.path) for _ in range(3)]
    rng, phases = np.random.default_rng(0), np.array([0.0, 0.3, 0.9])
    batch.reset(phases)
    for policy, phase in zip(alone, phases, strict=True):
        policy.reset(float(phase))
    for _ in range(5):
        readings = {name: rng.normal(size=(3, width)) for name, width in batch.needs.items()}
        command = rng.normal(size=(3, 3)) if exported.task.asks else None
        together = batch.act(readings, command)
        for i, policy in enumerate(alone):
            one = policy.act(
                {k: v[i] for k, v in readings.items()}, None if command is None else command[i]
            )
            np.testing.assert_allclose(together[i], one, rtol=0, atol=1e-5)


def test_reset_forgets(walker):
    """After a reset a policy acts as a new one does."""
    policy = runtime.Policy(walker.path)
    readings, command = sample_readings(policy), np.array([0.5, 0.0, 0.2])
    first = policy.act(readings, command)
    assert not np.array_equal(policy.act(readings, command), first)
    policy.reset()
    np.testing.assert_array_equal(policy.act(readings, command), first)


def test_readings_of_mujoco(exported):
    """`readings` returns the sensors and joints of an MjData, which `act` accepts."""
    policy = runtime.Policy(exported.path)
    model = mujoco.MjModel.from_xml_string(policy.mjcf)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = exported.task.mjm.qpos0, np.linspace(-1, 1, model.nv)
    mujoco.mj_forward(model, data)
    values = runtime.readings(policy, data)
    assert {k: len(v) for k, v in values.items()} == policy.needs
    for i, joint in enumerate(policy.joints):
        address = model.jnt_dofadr[model.actuator_trnid[i, 0]]
        assert values["joint_vel"][joint] == data.qvel[address]
    assert np.isfinite(policy.act(values, np.zeros(3) if exported.task.asks else None)).all()


@pytest.mark.parametrize(
    "wrong, says",
    [
        (
            {"gyro": None},
            "reading 'gyro' is missing: this policy needs gyro, up, joint_pos, joint_vel",
        ),
        ({"joint_vel": None}, "reading 'joint_vel' is missing"),
        ({"up": np.zeros(4)}, r"up has shape \(4,\), this policy needs 3 numbers"),
        ({"joint_pos": np.zeros(11)}, r"joint_pos has shape \(11,\), this policy needs 12 numbers"),
        ({"joint_pos": {"FL_thigh": 0.0}}, "joint_pos has no joint FL_abduction, FL_knee,"),
        ({"gyro": np.array([0.0, np.nan, 0.0])}, "gyro is not finite"),
        ({"joint_pos": np.full(12, np.inf)}, "joint_pos is not finite"),
        ({"gyro": np.zeros((2, 3))}, r"gyro has shape \(2, 3\)"),
        ({"command": np.zeros(2)}, r"command has shape .*2\), this policy needs 3 numbers"),
        ({"command": None}, "follows a command of 3 numbers"),
        ({"command": [0.0, np.nan, 0.0]}, "command is not finite"),
    ],
)
def test_wrong_readings_are_named(walker, wrong, says):
    """A wrong reading is refused in one line that names it, and the policy does not change."""
    policy = runtime.Policy(walker.path)
    given = sample_readings(policy) | {"command": np.zeros(3)} | wrong
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(ValueError, match=says) as error:
        policy.act(given, given.get("command"))
    assert "\n" not in str(error.value) and not policy.action.any()


def test_wrong_batch_is_named(walker):
    """Readings of fewer robots than `reset` was given are refused."""
    policy = runtime.Policy(walker.path)
    policy.reset(np.zeros(4))
    with pytest.raises(ValueError, match="3 numbers for each of 4 robots"):
        policy.act(sample_readings(policy), np.zeros(3))


def test_wrong_files_are_named(walker, tmp_path):
    """A file that is missing, damaged or foreign is refused in one line with its path."""
    whole = walker.path.read_bytes()
    plain, later = onnx.load(walker.path), onnx.load(walker.path)
    del plain.metadata_props[:]
    (notes,) = (p for p in later.metadata_props if p.key == "gpusim_rl")
    notes.value = json.dumps(json.loads(notes.value) | {"format": 2})
    files = {
        "text": (b"this is not ONNX", "is not an ONNX file"),
        "empty": (b"", "is not an ONNX file"),
        "half": (whole[: len(whole) // 2], "is not an ONNX file"),
        "plain": (plain.SerializeToString(), "was not exported by gpusim_rl"),
        "later": (later.SerializeToString(), "has format 2, this program reads format 1"),
    }
    for name, (data, says) in files.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=says) as error:
            runtime.Policy(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"nothing\.onnx"):
        runtime.Policy(tmp_path / "nothing.onnx")


@torch.no_grad()
def test_walks_without_torch(walker, tmp_path):
    """Without torch, the runtime moves evaluation worlds along the same path as torch does."""
    yaml = {key: numbers("quadruped")[key] for key in ("weights", "noise")}
    task = make_env("quadruped", 2, episode=6.0).task  # with a new command at 5 s
    episodes(evaluation_env(task, B, **yaml, seed=SEED), tmp_path / "episodes.npz")
    walked = walk_alone(walker.path, tmp_path / "episodes.npz", tmp_path / "walked.npz")
    env = evaluation_env(task, B, **yaml, seed=SEED)
    fell = torch.zeros(B, dtype=torch.bool)
    for t in range(env.task.horizon - 1):
        step = env.step(walker.actor(env.observation.actor))
        fell |= step.terminated | step.fault
        if t < 20:  # contacts make rounding grow
            np.testing.assert_allclose(walked["path"][t], env.sim.qpos, rtol=0, atol=1e-4)
    assert abs(int(fell.sum()) - int(walked["fell"].sum())) <= 1
    moved = np.abs(walked["path"][19] - walked["path"][0]).max()
    assert moved > 0.1 and walked["path"].shape == (env.task.horizon, B, env.task.mjm.nq)


def test_the_ban_holds(tmp_path):
    """The process that runs the policy alone cannot import torch or this package."""
    for name in BANNED:
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import walk_alone"
        code += f"; sys.meta_path.insert(0, walk_alone.Ban()); import {name}"
        tried = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert (
            tried.returncode == 1
            and f"ImportError: {name} is not installed on a robot" in tried.stderr
        ), name
    spoiled = (
        Path(runtime.__file__)
        .read_text()
        .replace("import numpy as np\n", "import numpy as np\nimport torch\n")
    )
    (tmp_path / "runtime.py").write_text(spoiled)
    script = [
        sys.executable,
        "-I",
        str(ROOT / "tests" / "walk_alone.py"),
        str(tmp_path / "runtime.py"),
        "a",
        "b",
        "c",
    ]
    tried = subprocess.run(script, capture_output=True, text=True, check=False)
    assert tried.returncode == 1 and "torch is not installed on a robot" in tried.stderr
