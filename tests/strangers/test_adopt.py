"""Policies that others trained become files of ours, or are refused in one line."""

import json
import os
import pickle
import warnings
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper, numpy_helper

from gpusim_rl.commands import play
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.core.schema import problems
from gpusim_rl.deploy.adopt import adopt, load_parts
from gpusim_rl.deploy.card import read_card
from gpusim_rl.deploy.exported import open_onnx
from gpusim_rl.deploy.makers_files import READERS
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.drive import DriveResult, drive
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.gate.scenarios import Plan
from gpusim_rl.robots.bare_model import driven_names, load_bare, make_model
from tests.gate.test_gate import SETTINGS
from tests.worlds import ROOT

CARDS = sorted((Path(__file__).parent / "cards").glob("*.yaml"))
FOLDER = os.environ.get("GPUSIM_STRANGERS")  # holds owner+name/ of each repository
ROBOT = ASSETS / "quadruped.xml"
DESCRIPTION = json.loads((ROOT / "docs" / "policy.schema.json").read_text())
NOTHING: dict[str, Any] = {
    "name": "tiny",
    "source": {"repository": "ours", "licence": "Apache-2.0"},
    **{"dt": 0.02, "timestep": 0.005, "integrator": "implicitfast", "cone": "pyramidal"},
    "scale": 0.25,
    "observe": [
        {"gyro": 0.25},
        "gravity",
        "command",
        "joint_pos_rel",
        {"joint_vel": 0.05},
        "action",
    ],
    "command": {"forward": [-1.0, 1.0], "left": [-0.5, 0.5], "turn": [-1.0, 1.0]},
}


def linear(folder: Path, width: int, joints: int, size: float = 0.1) -> Path:
    """An ONNX network of one layer and a tanh, with a batch of 1, as others export them."""
    weight = np.random.default_rng(0).normal(0, size, (width, joints)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["obs", "w"], ["x"]), helper.make_node("Tanh", ["x"], ["act"])],
        "net",
        [helper.make_tensor_value_info("obs", TensorProto.FLOAT, [1, width])],
        [helper.make_tensor_value_info("act", TensorProto.FLOAT, [1, joints])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def written(folder: Path, **changes: Any) -> Path:
    """The card of a tiny network of ours, with changes; None removes a key."""
    values = {key: x for key, x in (tiny() | changes).items() if x is not None}
    (folder / "card.yaml").write_text(yaml.safe_dump(values))
    return folder / "card.yaml"


def tiny() -> dict[str, Any]:
    """A card for our quadruped's file."""
    model = mujoco.MjModel.from_xml_path(str(ROBOT))
    joints = [model.joint(j).name for j in model.actuator_trnid[:, 0]]
    return NOTHING | {"joints": joints[::-1], "keyframe": model.key(0).name}


def of_card(file: Path) -> tuple[Path, Path]:
    """The network and the robot's file of a card; the test is skipped without them."""
    card = yaml.safe_load(file.read_text())
    first, second = (place(card[x]["repository"], card[x]["path"]) for x in ("source", "robot"))
    return first, second


def place(repository: str, path: str) -> Path:
    """A file of a repository of strangers; the test is skipped without it."""
    if not FOLDER:
        pytest.skip("GPUSIM_STRANGERS names no folder of the strangers' repositories")
    file = Path(FOLDER) / repository.replace("/", "+") / path
    if not file.is_file():
        pytest.skip(f"{file} is missing")
    return file


def drive_normal(file: Path, robots: int = 8, seconds: int = 8) -> DriveResult:
    """What robots do in the gate's `normal`."""
    plan = Plan(make_robot(Policy(file)), "normal", robots, seconds, SETTINGS, 0)
    (result,) = drive([plan])
    return result


def test_a_tiny_network_becomes_a_file(tmp_path):
    """Its source is in the file, the gate's runtime drives it, and the guard refuses it."""
    file = tmp_path / "policy.onnx"
    net = linear(tmp_path, 45, 12)
    adopt(net, written(tmp_path), ROBOT, file)
    policy = Policy(file)
    about = policy.description["lineage"]["adopted"]
    assert about["source"] == "ours" and about["licence"] == "Apache-2.0"
    assert about["reads_unmeasured"] == [] and len(about["card"]) == 64
    assert about["network"]["sha256"] == sha256(net.read_bytes()).hexdigest()
    assert problems(policy.description, DESCRIPTION, DESCRIPTION) == []
    result = drive_normal(file, 4, 2)
    assert result.lived.shape == (4,) and result.lived.min() > 1 and result.first.all()
    with pytest.raises(ValueError, match="ranges were never recorded"):
        Guard(policy)


@pytest.mark.slow
@pytest.mark.parametrize("card", CARDS, ids=[x.stem for x in CARDS])
def test_a_policy_of_others_walks(tmp_path, card):
    """Each named policy is adopted with its card, and at most one of eight robots falls."""
    file = tmp_path / "policy.onnx"
    adopt(*of_card(card)[:1], card, of_card(card)[1], file, trust=True)
    result = drive_normal(file)
    assert (result.fell | result.fault).mean() <= 0.125


def test_a_network_is_adopted_by_command(tmp_path, capsys):
    """play.py writes the file and says its source and its difference."""
    out = tmp_path / "policy.onnx"
    words = {"onnx": linear(tmp_path, 45, 12), "card": written(tmp_path), "robot.mjcf": ROBOT}
    play.main(["mode=adopt", *(f"{key}={x}" for key, x in (words | {"out": out}).items())])
    first, after = capsys.readouterr().out.splitlines()
    assert first.startswith(f"wrote {out}: tiny, ours: within ")
    assert first.endswith(" rad of card and network") and after.endswith(f"onnx={out} mode=gate")
    assert Policy(out).joints == tiny()["joints"][::-1]


# -- recurrent networks and history ----------------------------------------------------------------


class Recurrent(torch.nn.Module):
    """An LSTM that keeps its state in buffers, as others export it."""

    def __init__(self, width: int, joints: int):
        super().__init__()
        self.memory = torch.nn.LSTM(width, 16)
        self.actor = torch.nn.Linear(16, joints)
        self.register_buffer("hidden_state", torch.zeros(1, 1, 16))
        self.register_buffer("cell_state", torch.zeros(1, 1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, joints) the action."""
        out, (h, c) = self.memory(x.unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = h
        self.cell_state[:] = c
        return self.actor(out.squeeze(0))


class Thief(torch.nn.Module):
    """A network that writes into a file, by a mapping that it shares."""

    def __init__(self, victim: str):
        super().__init__()
        self.victim = victim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, 12) what it wrote."""
        return x[:, :12] + torch.from_file(self.victim, True, 8, dtype=torch.uint8).fill_(7).sum()


def scripted(module: torch.nn.Module, file: Path) -> Path:
    """A module as a TorchScript file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and strangers use it
        torch.jit.script(module.eval()).save(str(file))
    return file


def test_a_script_with_memory_becomes_a_file(tmp_path):
    """Its LSTM's state is memory of the file, by which each robot has its own."""
    net, file = scripted(Recurrent(45, 12), tmp_path / "net.pt"), tmp_path / "policy.onnx"
    card = written(tmp_path)
    with pytest.raises(ValueError, match="is TorchScript, which is a program: trust=true"):
        adopt(net, card, ROBOT, file)
    adopt(net, card, ROBOT, file, trust=True)
    policy = Policy(file)
    assert policy.start["network.hidden_state"].shape == (1, 1, 16)
    readings = {name: np.full(width, 0.1) for name, width in policy.needs.items()}
    first, second = (policy.act(readings, np.zeros(3)) for _ in range(2))
    policy.reset()
    np.testing.assert_array_equal(policy.act(readings, np.zeros(3)), first)
    assert np.abs(second - first).max() > 1e-3


@pytest.mark.slow
def test_a_script_is_shut_in(tmp_path):
    """One that writes into a file of this machine is refused, and the file stays."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    net = scripted(Thief(str(victim)), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"cannot be converted: .*Operation not permitted"):
        adopt(net, written(tmp_path), ROBOT, tmp_path / "policy.onnx", trust=True)
    assert victim.read_bytes() == b"precious" and not (tmp_path / "policy.onnx").exists()


@pytest.mark.parametrize(
    "by, first, begin", [("term", "oldest", "repeat"), ("time", "newest", "zero")]
)
def test_history_is_in_the_order_of_the_card(tmp_path, by, first, begin):
    """Of two terms over three steps; the numbers are by hand."""
    history = {"steps": 3, "by": by, "first": first, "begin": begin}
    card = written(tmp_path, observe=["command_turn", "joint_pos"], history=history)
    net = linear(tmp_path, 39, 12)
    parts = load_parts(net, card, ROBOT)
    before, memory = parts.before, {k: x.numpy() for k, x in parts.after.start.items()}
    seen = np.zeros(0)
    for t in (1.0, 2.0):
        command, joints = np.array([[0, 0, t]]), np.full((1, 12), 10 * t)
        feed = {"joint_pos": joints, "command": command, "memory.past": memory["past"]}
        feed |= {"memory.action": memory["action"], "restart": np.array([t == 1])}
        v = {
            k: torch.from_numpy(x if k == "restart" else x.astype(np.float32))
            for k, x in feed.items()
        }
        out = dict(zip(before.outputs, before(*(v[x] for x in before.inputs)), strict=True))
        seen, memory["past"] = out["observation"].numpy()[0], out["draft.past"].numpy()
    turn, angle = seen[seen < 9], seen[seen > 9]
    if by == "term":
        assert seen[:3].tolist() == [1, 1, 2] and seen[3:].tolist() == [10] * 24 + [20] * 12
    else:
        assert seen[[0, 13, 26]].tolist() == [2, 1, 0] and seen[1:13].tolist() == [20] * 12
        assert seen[27:].tolist() == [0] * 12 and len(turn) == 15 and len(angle) == 24


# -- what is refused -------------------------------------------------------------------------------

CARD_MISTAKES = {
    "dt is missing; dt: Control period": {"dt": None},
    "unknown key 'gain': choose one of": {"gain": 3},
    "dt='fast': expected number": {"dt": "fast"},
    "dt=-1: expected more than 0": {"dt": -1},
    "integrator='euler': choose one of implicitfast": {"integrator": "euler"},
    "unknown term 'gyros': choose one of gyro": {"observe": ["gyros", "joint_pos"]},
    "observe.gyro: 2 scales for 3 numbers": {"observe": [{"gyro": [1.0, 2.0]}, "joint_pos"]},
    "scale: 3 numbers for 12 joints": {"scale": [1.0, 1.0, 1.0]},
    "no joint 'tail' is driven: choose of": {"joints": ["tail"]},
    "the network drives 1 joints, not": {"joints": tiny()["joints"][:1]},
    "observe: sin needs `clock`": {"observe": ["sin", "joint_pos"]},
    "pose or keyframe is needed": {"keyframe": None},
    "kp needs kd": {"kp": 3.0},
    "keyframe='sit': the robot's file has": {"keyframe": "sit"},
    "imu='nose': the robot's file has": {"imu": "nose"},
    "the network sees 45 numbers, the card says 36": {
        "observe": ["joint_pos", "joint_vel", "action"]
    },
    "command.turn: 1.0 is above -1.0": {"command": NOTHING["command"] | {"turn": [1.0, -1.0]}},
    "a number is above 1e+06": {"scale": 1e30},
    "a number is above 1e+06, or": {"scale": 10**400},
    "scale=False: expected number or array": {"scale": False},
    "kp[0]=False: expected number": {"kp": [False], "kd": 1},
    "observe[0].gyro=None: expected number or array": {"observe": [{"gyro": None}, "joint_pos"]},
    "observe[0].gyro={'a': 1}: expected number": {"observe": [{"gyro": {"a": 1}}, "joint_pos"]},
    "torque=-5: expected at least 0": {"torque": -5, "kp": 1, "kd": 1},
    "armature needs kp": {"armature": 0.1},
    "torque needs kp": {"torque": 9},
    "clip_action: a least action is above the greatest": {"clip_action": [1, [-1] * 12]},
    "integrator=Euler: kp needs implicitfast": {"integrator": "Euler", "kp": 9, "kd": 1},
    "dt=0.02 is no multiple of timestep=0.003": {"timestep": 0.003},
}


@pytest.mark.parametrize("says", CARD_MISTAKES)
def test_a_mistake_in_a_card_is_one_line(tmp_path, says):
    """It names the key and the choices."""
    card = written(tmp_path, **CARD_MISTAKES[says])
    line = refusal(linear(tmp_path, 45, 12), card, tmp_path)
    assert says in line


def refusal(net: Path, card: Path | None, folder: Path, trust: bool = True) -> str:
    """The line that refuses a network or a card; nothing is written."""
    with pytest.raises((ValueError, OSError)) as error:
        adopt(net, card, ROBOT, folder / "policy.onnx", trust=trust)
    line = str(error.value)
    assert "\n" not in line and not (folder / "policy.onnx").exists()
    return line


TEXTS = {
    "is no card": "- 1",
    "is not YAML: aliases are not supported": "a: &a [1]\nb: *a",
    "is not YAML": "a: [",
    "name is missing": "scale: !!python/object/apply:os.system ['touch owned']",
}


@pytest.mark.parametrize("says", TEXTS)
def test_a_card_runs_nothing(tmp_path, says, monkeypatch):
    """What is no plain YAML is refused, or null where others make an object."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "card.yaml").write_text(TEXTS[says])
    assert says in refusal(linear(tmp_path, 45, 12), tmp_path / "card.yaml", tmp_path)
    assert not (tmp_path / "owned").exists()


def changed(folder: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    """The tiny network with a change that ONNX's checker never saw."""
    file = linear(folder, 45, 12)
    change(model := onnx.load(file))
    file.write_bytes(model.SerializeToString())
    return file


def outside(model: onnx.ModelProto, place: str) -> None:
    """Say that the weights lie in another file."""
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=place)


def another(model: onnx.ModelProto, width: int) -> None:
    """Give it one more output, before the other."""
    one = numpy_helper.from_array(np.ones((1, width), np.float32), "one")
    model.graph.node.append(helper.make_node("Constant", [], ["more"], value=one))
    output = helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, width])
    model.graph.output.insert(0, output)


def test_the_action_is_the_output_of_its_width(tmp_path):
    """Of two; the other may come first."""
    net = changed(tmp_path, lambda m: another(m, 3))
    assert load_parts(net, written(tmp_path), ROBOT).net.exit == "act"


HOSTILE: dict[str, Callable[[onnx.ModelProto], object]] = {
    "numbers of 'w' are in '/etc/passwd'": lambda m: outside(m, "/etc/passwd"),
    "net.onnx.data lacks the numbers of 'w'": lambda m: outside(m, "net.onnx.data"),
    "the operator evil.MatMul is not allowed": lambda m: setattr(m.graph.node[0], "domain", "evil"),
    "the operator Loop is not allowed": lambda m: setattr(m.graph.node[0], "op_type", "Loop"),
    "Nothing": lambda m: setattr(m.graph.node[0], "op_type", "Nothing"),
    "opset 999": lambda m: setattr(m.opset_import[0], "version", 999),
    "expected one observation and one action": lambda m: m.graph.input.add(name="more"),
    "No Op registered for Nothing with domain_version of 18": lambda m: (
        setattr(m.graph.node[0], "op_type", "Nothing"),
        setattr(m.opset_import[0], "version", 18),
    ),
    "the network sees shape []": lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"),
    "the network sees numbers of type FLOAT16": lambda m: setattr(
        m.graph.input[0].type.tensor_type, "elem_type", TensorProto.FLOAT16
    ),
    "outputs more [1, 12], act [1, 12]": lambda m: another(m, 12),
    "ONNX refuses the network": lambda m: m.graph.node.append(
        helper.make_node("Reshape", ["obs", "one"], ["x"])
    ),
    "the network gives": lambda m: m.graph.output[0].type.tensor_type.shape.dim.add(dim_value=2),
}


@pytest.mark.parametrize("says", HOSTILE)
def test_a_hostile_network_is_one_line(tmp_path, says):
    """Weights elsewhere, operators that are not ONNX's or that onnxruntime lacks, other shapes."""
    assert says in refusal(changed(tmp_path, HOSTILE[says]), written(tmp_path), tmp_path)


def test_pickles_and_giants_are_not_read(tmp_path):
    """A checkpoint, a pickle, a file of 1 GB without content, and a network of another card."""
    card = written(tmp_path)
    torch.save({"w": torch.zeros(2)}, tmp_path / "net.pt")
    assert "whose pickles are never read" in refusal(tmp_path / "net.pt", card, tmp_path)
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"w": 1}))
    assert "is not an ONNX file" in refusal(tmp_path / "old.pt", card, tmp_path)
    with open(tmp_path / "giant.onnx", "wb") as giant:
        giant.truncate(1 << 30)
    assert "is larger than" in refusal(tmp_path / "giant.onnx", card, tmp_path)
    card = written(tmp_path, source=NOTHING["source"] | {"sha256": "0" * 64})
    assert "but the card is of 000" in refusal(linear(tmp_path, 45, 12), card, tmp_path)


def test_the_gate_names_adopt(tmp_path):
    """A network of others and a .pt file are refused with the mode that takes them."""
    with pytest.raises(ValueError, match="mode=adopt"):
        open_onnx(linear(tmp_path, 45, 12))
    torch.save({}, tmp_path / "net.pt")
    with pytest.raises(ValueError, match="mode=adopt"):
        open_onnx(tmp_path / "net.pt")


# -- files of other programs -----------------------------------------------------------------------

LAB, SAR = "unitreerobotics/unitree_rl_lab", "fan-ziqi/rl_sar"
MJLAB = "unitreerobotics/unitree_rl_mjlab"
G1 = ("amazon-far/holosoma", "src/holosoma/holosoma/data/robots/g1/g1_29dof.xml")
UNITREE = ("unitreerobotics/unitree_mujoco", "unitree_robots/{}/{}.xml")
VELOCITY = "deploy/robots/g1/config/policy/velocity/v0"
READ = {  # what a card by hand says, too: repository, file, network, robot → the card's name
    "unitree_rl_lab_g1": (LAB, f"{VELOCITY}/params/deploy.yaml", G1),
    "unitree_rl_mjlab_g1": (MJLAB, f"{VELOCITY}/params/deploy.yaml", G1),
    "rl_sar_go2_himloco": (SAR, "policy/go2/himloco/config.yaml", "go2"),
    "rl_sar_go2_robot_lab": (SAR, "policy/go2/robot_lab/config.yaml", "go2"),
    "rl_sar_b2_robot_lab": (SAR, "policy/b2/robot_lab/config.yaml", "b2"),
}


@pytest.mark.parametrize("name", READ)
def test_a_reader_makes_the_card_that_was_written_by_hand(name):
    """All that the maker's file says; of rl_sar's, joints, gains and history among it."""
    repository, path, robot = READ[name]
    file, where = place(repository, path), (UNITREE[0], UNITREE[1].format(robot, robot))
    spec = load_bare(place(*(where if isinstance(robot, str) else robot)))
    read = read_card(file, driven_names(spec), READERS)
    (card,) = [x for x in CARDS if x.stem == name]
    ours = read_card(card, [])
    same = ("dt", "timestep", "clip", "history", "integrator", "cone")
    assert {k: read.values.get(k) for k in same} == {k: ours.values.get(k) for k in same}
    assert read.joints == ours.joints and [x for x, _ in read.terms] == [x for x, _ in ours.terms]
    for key in ("pose", "scale", "kp", "kd"):
        np.testing.assert_allclose(read.vector(key), ours.vector(key), err_msg=key)
    for (_, mine), (_, theirs) in zip(read.terms, ours.terms, strict=True):
        np.testing.assert_allclose(np.broadcast_to(mine, theirs.shape or mine.shape), theirs)


TRAINED: dict[str, Any] = {  # what unitree_rl_lab writes, of our quadruped
    **{"joint_ids_map": [*range(12)], "step_dt": 0.02, "stiffness": [20] * 12},
    **{"damping": [0.5] * 12, "commands": {"base_velocity": {"ranges": {}}}},
    "actions": {"JointPositionAction": {"scale": 0.25, "offset": [0.0] * 12, "clip": None}},
    "observations": {"joint_pos_rel": {"scale": 1.0, "clip": None, "history_length": 1}},
}
SAR_OF = {  # what rl_sar writes of it, but for what its base.yaml says
    **{"observations": ["dof_pos"], "dt": 0.005, "decimation": 4, "wheel_indices": []},
    **{"joint_mapping": [*range(12)], "default_dof_pos": [0.0] * 12, "action_scale": 0.25},
    **{"clip_actions_lower": [-9] * 12, "clip_actions_upper": [9] * 12, "clip_obs": 100},
    **{"rl_kp": [20] * 12, "rl_kd": [0.5] * 12, "torque_limits": [20] * 12},
    **{"dof_pos_scale": 1.0, "observations_history": [0]},
}
MAKERS_MISTAKES: dict[str, dict[str, Any]] = {
    "KeyError 'lin_vel_x'": TRAINED,
    "KeyError 'joint_names'": {"go2/x": SAR_OF},
    "TypeError": TRAINED | {"joint_ids_map": 3},
    "AttributeError": TRAINED | {"observations": [1]},
    "name is missing": {},
}


def of_rl_sar(folder: Path, base: Any, values: Any = None) -> Path:
    """A config.yaml, by default rl_sar's, and its base.yaml, which has a tag as well."""
    (folder / "go2").mkdir()
    (folder / "base.yaml").write_text(f"{yaml.safe_dump(base).rstrip()}\n")
    file = folder / "go2" / "config.yaml"
    file.write_text(yaml.safe_dump({"go2/x": SAR_OF} if values is None else values))
    return file


@pytest.mark.parametrize("says", MAKERS_MISTAKES)
def test_a_wrong_makers_file_is_one_line(tmp_path, says):
    """Whatever it lacks: the line names it, and the key where there is one."""
    file = of_rl_sar(tmp_path, {"base": {}}, MAKERS_MISTAKES[says])
    line = refusal(linear(tmp_path, 12, 12), file, tmp_path)
    assert line.startswith(f"{file}") and says in line


def test_one_step_is_no_history(tmp_path, capsys):
    """Of rl_sar; what its files do not say of the simulation is said."""
    joints = tiny()["joints"]
    card = read_card(of_rl_sar(tmp_path, {"base": {"joint_names": joints}}), joints, READERS)
    assert card.steps == 1 and card.values["dt"] == 0.02
    said = "does not say integrator=implicitfast, cone=pyramidal, which are assumed"
    assert said in capsys.readouterr().err


METADATA = {
    "holosoma": (["dof_names", "kp", "kd", "command_ranges"], "has joints, kp, kd, command alone"),
    "mjlab": (["joint_names", "joint_stiffness", "observation_names"], "has joints, kp alone"),
    "none": ([], "nothing describes the network"),
}


@pytest.mark.parametrize("maker", METADATA)
def test_metadata_alone_does_not_suffice(tmp_path, maker):
    """A network without a card is refused in one line that lists what is missing."""
    keys, says = METADATA[maker]
    notes = dict.fromkeys(keys, "[]")
    net = changed(tmp_path, lambda m: helper.set_model_props(m, notes))
    line = refusal(net, None, tmp_path)
    assert says in line and all(x in line for x in ("observe", "history", "timestep", "clock"))


# -- the robot's file ------------------------------------------------------------------------------

LEG = """<mujoco><asset><mesh name="foot" file="foot.stl"/></asset><worldbody><body>
<freejoint/><geom size="0.1" mass="1" material="red"/><geom type="mesh" mesh="foot" {}/>
<body><joint name="knee"/><geom size="0.1" mass="1"/></body></body></worldbody></mujoco>"""


def test_a_urdf_file_is_one_line(tmp_path):
    """What is no MJCF is refused."""
    (tmp_path / "robot.urdf").write_text('<robot name="r"><link name="base"/></robot>')
    with pytest.raises(ValueError, match=r"robot\.urdf: expected MJCF"):
        load_bare(tmp_path / "robot.urdf")


@pytest.mark.parametrize("collides", [True, False])
def test_a_missing_mesh_is_one_line(tmp_path, capsys, collides):
    """If it collides; a missing picture is left out, and so is a material that is not there."""
    file = tmp_path / "leg.xml"
    file.write_text(LEG.format("" if collides else 'contype="0" conaffinity="0"'))
    spec = load_bare(file)
    assert spec.compile().ngeom == 3 and driven_names(spec) == ["knee"]  # two and the floor
    says = f"warning: {file}: the mesh foot.stl is missing: it collides with nothing\n"
    assert capsys.readouterr().err == (says if collides else "")


LIMITS = {  # of the joint and of its actuator → torque limit [N m], by hand
    "a motor with a gear": ("", '<motor gear="10" ctrlrange="-2 2"/>', 20),
    "the joint's": ('actuatorfrcrange="-7 7"', '<motor gear="10" ctrlrange="-2 2"/>', 7),
    "a servo's force": ("", '<position kp="9" ctrlrange="-3 3" forcerange="-5 5"/>', 5),
    "a servo's angle is none": ("", '<position kp="9" ctrlrange="-3 3"/>', 0),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_file_limits_torque(tmp_path, name):
    """Where the card does not; without a limit and without gains a line says what is needed."""
    joint, motor, limit = LIMITS[name]
    text = LEG.replace('<mesh name="foot" file="foot.stl"/>', "").replace("</mujoco>", "")
    text = text.replace('<geom type="mesh" mesh="foot" {}/>', "").replace(
        '"knee"', f'"knee" {joint}'
    )
    motor = motor.replace("/>", ' joint="knee"/>')
    (tmp_path / "leg.xml").write_text(f"{text}<actuator>{motor}</actuator></mujoco>")
    card = {key: NOTHING[key] for key in ("timestep", "integrator", "cone")}
    card |= {"joints": ["knee"], "pose": [0.0], "kp": 20, "kd": [0.5]}

    def made(card: dict[str, Any]) -> str:
        return make_model(load_bare(tmp_path / "leg.xml"), card, lambda names: None)

    if limit:
        (range,) = mujoco.MjModel.from_xml_string(made(card)).actuator_forcerange.tolist()
        assert range == [-limit, limit]
    else:
        with pytest.raises(ValueError, match="torque is needed: the robot's file has no limit of"):
            made(card)
    bare = {key: x for key, x in card.items() if key not in ("kp", "kd")}
    if motor.startswith("<motor"):
        with pytest.raises(ValueError, match="kp and kd are needed: the robot's file has no servo"):
            made(bare)
    else:
        made(bare)
