"""Policies that others trained become files of ours, or are refused in one line."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from gpusim_rl.core.paths import ASSETS
from gpusim_rl.deploy.adopt import adopt
from gpusim_rl.deploy.onboard.guard import Guard
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.gate.drive import drive
from gpusim_rl.gate.robot import make_robot
from gpusim_rl.gate.scenarios import Plan
from tests.gate.test_gate import SETTINGS

CARDS = sorted((Path(__file__).parent / "cards").glob("*.yaml"))
FOLDER = os.environ.get("GPUSIM_STRANGERS")  # holds owner+name/ of each repository
ROBOT = ASSETS / "quadruped.xml"
LEGS = [f"{leg}_{x}" for leg in ("FL", "FR", "RL", "RR") for x in ("abduction", "hip", "knee")]
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
    import mujoco

    model = mujoco.MjModel.from_xml_path(str(ROBOT))
    joints = [model.joint(j).name for j in model.actuator_trnid[:, 0]]
    return NOTHING | {"joints": joints[::-1], "keyframe": model.key(0).name}


def of_card(file: Path) -> tuple[Path, Path]:
    """The network and the robot's file of a card; the test is skipped without them."""
    card = yaml.safe_load(file.read_text())
    if not FOLDER:
        pytest.skip("GPUSIM_STRANGERS names no folder of the strangers' repositories")
    files = [
        Path(FOLDER) / card[x]["repository"].replace("/", "+") / card[x]["path"]
        for x in ("source", "robot")
    ]
    if missing := [file for file in files if not file.is_file()]:
        pytest.skip(f"{missing[0]} is missing")
    return files[0], files[1]


def falls(file: Path, robots: int = 8, seconds: int = 8) -> float:
    """The share of robots that fall in the gate's `normal`."""
    plan = Plan(make_robot(Policy(file)), "normal", robots, seconds, SETTINGS, 0)
    (result,) = drive([plan])
    return float((result.fell | result.fault).mean())


def test_a_tiny_network_becomes_a_file(tmp_path):
    """Its source is in the file, the gate's runtime drives it, and the guard refuses it."""
    file = tmp_path / "policy.onnx"
    adopt(linear(tmp_path, 45, 12), written(tmp_path), ROBOT, file)
    policy = Policy(file)
    notes = policy.session.get_modelmeta().custom_metadata_map
    about = json.loads(notes["adopted"])
    assert about["source"] == "ours" and about["licence"] == "Apache-2.0"
    assert about["reads_unmeasured"] == [] and len(about["card"]) == 64
    assert policy.description["lineage"]["adopted"]["card"]["scale"] == 0.25
    assert 0 <= falls(file, 4, 2) <= 1
    with pytest.raises(ValueError, match="ranges were never recorded"):
        Guard(policy)


@pytest.mark.parametrize("card", CARDS, ids=[x.stem for x in CARDS])
def test_a_policy_of_others_walks(tmp_path, card):
    """Each named policy is adopted with its card, and at most one of eight robots falls."""
    file = tmp_path / "policy.onnx"
    adopt(*of_card(card)[:1], card, of_card(card)[1], file, trust=True)
    assert falls(file) <= 0.125
