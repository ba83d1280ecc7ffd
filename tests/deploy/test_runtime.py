"""Deployment: numpy and onnxruntime alone give the targets of the torch controller."""

import json
import sys
from pathlib import Path

import mujoco
import numpy as np
import onnx
import pytest
import torch

from benchmarks.deploy import ROOT, episodes, walk_alone
from gpusim_rl.deploy import exported, runtime
from gpusim_rl.deploy.onboard.verdict import with_verdict
from gpusim_rl.deploy.to_onnx import sealed
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.evaluation.evaluate import SEED, evaluation_env
from tests.command_lines import run_process, run_python
from tests.exported import notes_of
from tests.robot_computer import BANNED
from tests.worlds import make_task, numbers

B = 8


def sample_readings(policy: runtime.Policy) -> dict[str, np.ndarray]:
    """Plausible readings of one robot."""
    return {name: np.linspace(-0.3, 0.4, width) for name, width in policy.needs.items()}


def sample_command(policy: runtime.Policy) -> np.ndarray | None:
    return np.linspace(0.5, 0.2, len(policy.command["names"])) if policy.command else None


@torch.no_grad()
def test_act_is_the_torch_controller(exported):
    """Over several steps, for readings by joint name."""
    policy, controller = runtime.Policy(exported.path), exported.controller
    rng, memory = np.random.default_rng(0), dict(controller.start)
    for t in range(6):
        readings = {name: rng.normal(size=width) for name, width in policy.needs.items()}
        command = sample_command(policy)
        values = readings | {"command": command, "restart": t == 0}
        args = [torch.tensor(values[name])[None] for name in controller.inputs if name in values]
        args = [x.float() if x.dtype == torch.float64 else x for x in args]
        expected, _, *after = controller(*args, *memory.values())
        memory = dict(zip(memory, after, strict=True))
        named = {x: dict(zip(of, readings[x], strict=True)) for x, of in policy.reads.items()}
        targets = policy.act(readings | named, command)
        np.testing.assert_allclose(targets, expected[0].numpy(), rtol=0, atol=1e-5)
    shapes = [{name: tuple(x.shape) for name, x in of.items()} for of in (policy.memory, memory)]
    assert shapes[0] == shapes[1]


def test_batch_is_each_robot_alone(exported):
    """Over several steps a batch of robots gets the controls that each would get alone."""
    batch, alone = runtime.Policy(exported.path), [runtime.Policy(exported.path) for _ in range(3)]
    rng = np.random.default_rng(0)
    batch.reset(3)
    for t in range(6):
        readings = {name: rng.normal(size=(3, width)) for name, width in batch.needs.items()}
        command = rng.normal(size=(3, len(batch.command["names"]))) if batch.command else [None] * 3
        if t == 3:  # one of them begins again
            batch.restart(np.array([False, True, False]))
            alone[1].reset()
        together = batch.act(readings, command if batch.command else None)
        for i, policy in enumerate(alone):
            one = policy.act({k: v[i] for k, v in readings.items()}, command[i])
            np.testing.assert_allclose(together[i], one, rtol=0, atol=1e-5)


def test_bits_do_not_depend_on_the_batch(exported):
    """Targets and memory of a robot are the same bits, however many others are in its batch."""
    policy, rng, most = runtime.Policy(exported.path), np.random.default_rng(1), 67
    widths = policy.needs | ({"command": len(policy.command["names"])} if policy.command else {})
    readings = {k: rng.normal(size=(most, n)).astype(np.float32) for k, n in widths.items()}
    noise = {k: rng.normal(0, 0.3, (most, *x.shape[1:])) for k, x in policy.start.items()}
    memory = {k: (x + noise[k]).astype(x.dtype) for k, x in policy.start.items()}

    def run(first: int, end: int) -> list[np.ndarray]:
        rows, restart = slice(first, end), np.zeros(end - first, bool)
        parts = ({k: x[rows] for k, x in values.items()} for values in (readings, memory))
        targets, _, after = policy.run(next(parts), restart, next(parts))
        return [targets, *after.values()]

    alone = [np.concatenate(x) for x in zip(*(run(i, i + 1) for i in range(most)), strict=True)]
    for robots in (2, 3, 5, 16, 33, most):
        for together, one in zip(run(0, robots), alone, strict=True):
            np.testing.assert_array_equal(together, one[:robots])


def test_reset_forgets(exported):
    """After a reset a policy acts as a new one does."""
    policy = runtime.Policy(exported.path)
    readings, command = sample_readings(policy), sample_command(policy)
    first = policy.act(readings, command)
    policy.act({name: -x for name, x in readings.items()}, command)
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
    missing = {*policy.needs} - {model.sensor(i).name for i in range(model.nsensor)} - {*JOINTS}
    if missing:  # an estimator's readings, which the model has no sensor for
        assert missing <= {*exported.task.estimated}
        with pytest.raises(KeyError, match=next(name for name in policy.needs if name in missing)):
            runtime.readings(policy, data)
        return
    values = runtime.readings(policy, data)
    assert {k: len(v) for k, v in values.items()} == policy.needs
    for i, joint in enumerate(policy.joints if "joint_vel" in values else []):
        address = model.jnt_dofadr[model.actuator_trnid[i, 0]]
        assert values["joint_vel"][joint] == data.qvel[address]
    assert np.isfinite(policy.act(values, sample_command(policy))).all()


FAULTS = {
    "reading": {"gyro": [0.0, np.nan, 0.0]},
    "joints": {"joint_pos": np.full(12, -np.inf)},
    "command": {"command": [0.0, 0.0, np.inf]},
    "large joints": {"joint_pos": np.full(12, 1e300)},  # too large for float32
    "large command": {"command": [0.0, 1e300, 0.0]},
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_holds_the_last_targets(walker, case):
    """A value that is not finite gives the last targets and a fault, and is then forgotten."""
    policy, other = runtime.Policy(walker.path), runtime.Policy(walker.path)
    good = sample_readings(policy) | {"command": np.array([0.5, 0.0, 0.0])}
    wrong = good | FAULTS[case]
    safe = np.array(policy.outputs["safe_pose"], np.float32)
    np.testing.assert_array_equal(policy.act(wrong, wrong["command"]), safe)  # the first step
    assert policy.fault.tolist() == [True]
    for _ in range(3):
        last = policy.act(good, good["command"])
        np.testing.assert_array_equal(last, other.act(good, good["command"]))
        assert policy.fault.tolist() == [False] and not np.array_equal(last, safe)
    memory = policy.memory
    for _ in range(2):
        np.testing.assert_array_equal(policy.act(wrong, wrong["command"]), last)
        assert policy.fault.all()
    for name, x in memory.items():
        np.testing.assert_array_equal(policy.memory[name], x)
    last, expected = (x.act(good, good["command"]) for x in (policy, other))
    np.testing.assert_array_equal(last, expected)


def test_a_fault_is_of_one_robot(walker):
    """The other robots of a batch go on."""
    policy, one = runtime.Policy(walker.path), runtime.Policy(walker.path)
    policy.reset(3)
    for t in range(4):
        readings = {name: np.tile(x, (3, 1)) for name, x in sample_readings(policy).items()}
        alone = one.act(sample_readings(one), np.zeros(3))
        if t == 2:
            readings["up"][1, 0] = np.nan
        targets = policy.act(readings, np.zeros(3))
        assert policy.fault.tolist() == [False, t == 2, False]
        np.testing.assert_allclose(targets[[0, 2]], np.tile(alone, (2, 1)), rtol=0, atol=1e-5)
        assert np.isfinite(targets).all()


def test_memory_that_is_not_finite(walker):
    """Even a memory that was overwritten gives finite targets, and a fault until a reset."""
    policy = runtime.Policy(walker.path)
    for name in policy.memory:
        policy.reset()
        first = policy.act(sample_readings(policy), np.zeros(3))
        policy.memory[name] = np.full_like(policy.memory[name], np.nan)
        held = policy.act(sample_readings(policy), np.zeros(3))
        expected = policy.outputs["safe_pose"] if name == "targets" else first
        np.testing.assert_array_equal(held, np.array(expected, np.float32))
        assert policy.fault.all()
    policy.reset()
    assert not policy.fault.any()
    np.testing.assert_array_equal(policy.act(sample_readings(policy), np.zeros(3)), first)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"gyro": None}, "'gyro' is missing: this policy needs gyro, up, joint_pos, joint_vel"),
        ({"joint_vel": None}, "reading 'joint_vel' is missing"),
        ({"up": np.zeros(4)}, r"up has shape \(4,\), this policy needs 3 numbers"),
        ({"joint_pos": np.zeros(11)}, r"joint_pos has shape \(11,\), this policy needs 12 numbers"),
        ({"joint_pos": {"FL_thigh": 0.0}}, "joint_pos has no joint FL_abduction, FL_knee,"),
        ({"gyro": np.zeros((2, 3))}, r"gyro has shape \(2, 3\)"),
        ({"command": np.zeros(2)}, r"command has shape .*2\), this policy needs 3 numbers"),
        ({"command": None}, "follows a command of 3 numbers"),
    ],
)
def test_wrong_readings_are_named(walker, wrong, says):
    """A wrong reading is refused in one line that names it, and the policy does not change."""
    policy = runtime.Policy(walker.path)
    values = sample_readings(policy) | {"command": np.zeros(3)} | wrong
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(ValueError, match=says) as error:
        policy.act(values, values.get("command"))
    assert "\n" not in str(error.value) and not policy.memory["action"].any()


def test_wrong_batch_is_named(walker):
    """Readings of fewer robots than `reset` was given are refused."""
    policy = runtime.Policy(walker.path)
    policy.reset(4)
    with pytest.raises(ValueError, match="3 numbers for each of 4 robots"):
        policy.act(sample_readings(policy), np.zeros(3))


def test_wrong_files_are_named(walker, tmp_path):
    """A file that is missing, damaged, foreign or of another format is refused in one line."""
    whole, model = walker.path.read_bytes(), onnx.load(walker.path)
    notes = notes_of(model)
    about = json.loads(notes["gpusim_rl"])
    action, phase, held = about["memory"]
    (_, *rest), short = about["inputs"], {"shape": [3], "start": [0] * 3}
    files = {
        "text": (b"this is not ONNX", "is not an ONNX file"),
        "blank": (b"", "is not an ONNX file"),
        "half": (whole[: len(whole) // 2], "is not an ONNX file"),
    }
    for name, changes, says in (
        ("old", {"format": 3}, "has format 3, this program reads format 4: export it again"),
        ("later", {"format": 5}, "has format 5, this program reads format 4"),
        ("network", {"kind": "network"}, "is a network alone"),
        ("slow", {"dt": 1e9}, "invalid description"),
        ("fast", {"dt": 1e-9}, "invalid description"),
        ("wide", {"inputs": [about["inputs"][0] | {"shape": [10**12]}, *rest]}, "readings of 10"),
        ("huge", {"inputs": [about["inputs"][0] | {"shape": [10**400]}, *rest]}, "readings of 10"),
        ("forgetful", {"memory": [action, held]}, "invalid description"),
        ("large", {"memory": [action, phase | {"shape": [10**9]}, held]}, "invalid description"),
        ("short", {"memory": [action | short, phase, held]}, "invalid description"),
        ("other", {"memory": [action | {"type": "object"}, phase, held]}, "invalid description"),
        ("blind", {"inputs": about["inputs"][1:]}, "invalid description"),
        ("trusting", {"outputs": about["outputs"][:1]}, "invalid description"),
    ):
        onnx.helper.set_model_props(model, notes | {"gpusim_rl": json.dumps(about | changes)})
        files[name] = (sealed(model), says)
    onnx.helper.set_model_props(model, notes | {"mjcf": notes["mjcf"] + " "})
    files["edited"] = (model.SerializeToString(), "was changed after its export")
    onnx.helper.set_model_props(model, {key: notes[key] for key in ("gpusim_rl", "mjcf")})
    files["unsealed"] = (model.SerializeToString(), "was changed after its export")
    judged = with_verdict(whole, {"passed": True, "says": "x" * 300})
    (tmp_path / "judged.onnx").write_bytes(judged)
    assert runtime.Policy(tmp_path / "judged.onnx").joints
    entry = onnx.ModelProto()  # of a message that is appended, protobuf adds the fields
    onnx.helper.set_model_props(entry, {"gpusim_rl": json.dumps(about | {"robot": "go1"})})
    for name, more in (("appended", entry.SerializeToString()), ("empty", b"\x72\x00")):
        files[name] = whole + more, "was changed after its export"
        files[f"judged {name}"] = judged + more, "was changed after its export"
    onnx.helper.set_model_props(model, {})
    files["plain"] = (model.SerializeToString(), "was not exported by gpusim_rl")
    for name, (data, says) in files.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=says) as error:
            runtime.Policy(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"nothing\.onnx"):
        runtime.Policy(tmp_path / "nothing.onnx")


def test_weights_of_another_file(walker, tmp_path, monkeypatch):
    """Whoever changes those would change the policy under a valid verdict."""
    model = onnx.load(walker.path)
    weights = max(model.graph.initializer, key=lambda x: len(x.raw_data))
    (tmp_path / "w.bin").write_bytes(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    path = tmp_path / "policy.onnx"
    path.write_bytes(with_verdict(sealed(model), {"verdict": "pass"}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="is not an ONNX file that onnxruntime can load") as error:
        runtime.Policy(path)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=f"the numbers of '{weights.name}' are in another file"):
        exported.check_operators(path)


@torch.no_grad()
def test_walks_without_torch(walker, tmp_path):
    """A process without torch and mujoco moves evaluation worlds along the same path as torch."""
    yaml = {key: numbers("quadruped")[key] for key in ("weights", "noise")}
    task = make_task("quadruped", episode=2.0, redraw=1.0)  # with a new command at 1 s
    episodes(evaluation_env(task, B, **yaml, seed=SEED), tmp_path / "episodes.npz")
    walked = walk_alone(walker.path, tmp_path / "episodes.npz", tmp_path / "walked.npz")
    env = evaluation_env(task, B, **yaml, seed=SEED)
    fell = torch.zeros(B, dtype=torch.bool)
    for t in range(env.task.horizon - 1):
        step = env.step(walker.actor(env.observation["actor"]))
        fell |= step.terminated | step.fault
        if t < 20:  # contacts make rounding grow
            np.testing.assert_allclose(walked["path"][t], env.sim.qpos, rtol=0, atol=1e-4)
    assert abs(int(fell.sum()) - int(walked["fell"].sum())) <= 1
    moved = np.abs(walked["path"][19] - walked["path"][0]).max()
    assert moved > 0.1 and walked["path"].shape == (env.task.horizon, B, env.task.mjm.nq)


def test_the_ban_holds(tmp_path):
    """The process that runs the policy can import neither torch, nor mujoco, nor this package."""
    for name in BANNED:
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import robot_computer"
        code += f"; sys.meta_path.insert(0, robot_computer.Ban()); import {name}"
        tried = run_python(code)
        says = f"ImportError: {name} is not installed on a robot"
        assert tried.returncode == 1 and says in tried.stderr, name
    whole, line = Path(runtime.__file__).read_text(), "import numpy as np\n"
    (tmp_path / "runtime.py").write_text(whole.replace(line, line + "import torch\n"))
    script = [str(ROOT / "tests" / "robot_computer.py"), str(tmp_path / "runtime.py")]
    tried = run_process(sys.executable, "-I", *script, "a")
    assert tried.returncode == 1 and "torch is not installed on a robot" in tried.stderr
