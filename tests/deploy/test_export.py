"""ONNX export: the file acts as Env does, describes all that a robot needs, or is not written."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from gpusim_rl.core.provenance import versions
from gpusim_rl.core.schema import problems
from gpusim_rl.deploy.controller import Controller
from gpusim_rl.deploy.describe import describe_sensor, describe_targets
from gpusim_rl.deploy.export import LEAST_SAMPLES, TOLERANCE, export, export_network
from gpusim_rl.deploy.record import percentiles
from gpusim_rl.deploy.to_onnx import KEY, to_onnx
from gpusim_rl.robots.models import compile_mjcf
from gpusim_rl.robots.servos import actuators, driven_joints
from gpusim_rl.tasks.locomotion.quadruped import Quadruped
from tests.exported import (
    Exported,
    export_task,
    fresh_env,
    make_actor,
    notes_of,
    record_observations,
    use_torch,
)
from tests.worlds import ROOT, make_task, numbers

SCHEMA = json.loads((ROOT / "docs" / "policy.schema.json").read_text())


def again(exported: Exported, path, **changes) -> float:
    """Export once more, with other arguments."""
    ranges = percentiles(exported.recorded.readings)
    given: Any = dict(controller=exported.controller, recorded=exported.recorded)
    return export(**given | changes, path=path, name="quadruped", lineage={}, ranges=ranges)


def about(path) -> dict:
    """The description in a file's metadata."""
    return json.loads(notes_of(onnx.load(path))[KEY])


def refuses(says: str, exported: Exported, folder: Path, **changes: Any) -> None:
    """Nothing is written to an empty folder, and one line says why."""
    with pytest.raises(ValueError, match=says) as error:
        again(exported, folder / "x.onnx", **changes)
    assert "\n" not in str(error.value) and not list(folder.iterdir())


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_onnx_equals_torch(exported, batch):
    """The file gives the outputs of the torch controller, for a batch of any size."""
    controller = exported.controller
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    args = [torch.rand(batch, *shape) for shape in controller.shapes().values()]
    place = controller.inputs.index("restart")
    args[place] = args[place] > 0.5
    feed = {name: x.numpy() for name, x in zip(controller.inputs, args, strict=True)}
    with torch.no_grad():
        expected = controller(*args)
    for x, wanted in zip(session.run(None, feed), expected, strict=True):
        np.testing.assert_allclose(np.asarray(x), wanted.numpy(), rtol=0, atol=TOLERANCE)
    assert exported.error <= TOLERANCE


def test_file_is_standard(exported):
    """It passes ONNX's full check with standard operators, and holds its own weights."""
    model = onnx.load(exported.path)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, 18 <= o.version <= 23) for o in model.opset_import] == [("", True)]
    assert len(list(exported.path.parent.iterdir())) == 1
    assert [x.name for x in model.graph.input] == exported.controller.inputs
    assert [x.name for x in model.graph.output] == exported.controller.outputs


@pytest.mark.slow
def test_export_leaves_the_actor_alone(walker, tmp_path):
    """Export changes no weight, no statistic and no mode of the actor."""
    actor = walker.actor.train()
    before = copy.deepcopy(actor.state_dict())
    again(walker, tmp_path / "again.onnx")
    assert actor.training and all(torch.equal(v, before[k]) for k, v in actor.state_dict().items())
    assert all(p.requires_grad for p in actor.parameters())
    assert (tmp_path / "again.onnx").read_bytes() == walker.path.read_bytes()


# -- what is refused -------------------------------------------------------------------------------


def test_a_file_that_differs_from_env_is_not_written(walker, tmp_path, monkeypatch):
    """An export that differs from Env fails, and an older file stays as it is."""
    model = onnx.load(walker.path)
    (bias,) = (x for x in model.graph.initializer if x.name == "module.actor.net.4.bias")
    more = onnx.numpy_helper.to_array(bias) + np.float32(1e-3)  # of each action
    bias.CopyFrom(onnx.numpy_helper.from_array(more, bias.name))
    monkeypatch.setattr("gpusim_rl.deploy.export.to_onnx", lambda *_: model)
    path, old = tmp_path / "policy.onnx", b"the one before"
    path.write_bytes(old)
    with pytest.raises(ValueError, match=r"of ONNX and Env differ by 1\.00e-03 over 1280"):
        again(walker, path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [old]


def test_a_file_that_remembers_something_else_is_not_written(walker, tmp_path, monkeypatch):
    """Memory that differs from the Env's fails, even in the last step, where no target shows it."""
    use_torch(monkeypatch)
    after = {name: x.copy() for name, x in walker.recorded.after.items()}
    assert {*after} == {"action", "phase"}
    after["phase"][-1, 3] += 1e-3
    recorded = walker.recorded._replace(after=after)
    refuses("memory of ONNX and Env differ by 1", walker, tmp_path, recorded=recorded)


def test_what_differs_from_training_is_not_written(walker, tmp_path, monkeypatch):
    """Another order of terms, another memory and NaN in the weights."""
    use_torch(monkeypatch)
    other, slow, broken = (copy.deepcopy(walker.controller) for _ in range(3))
    terms = walker.task.observe
    other.task.observe = lambda s: dict(reversed(terms(s).items()))
    refuses("differ by", walker, tmp_path, controller=other)
    slow.task.gait = 0.9 * slow.task.gait
    refuses("memory of ONNX and Env differ", walker, tmp_path, controller=slow)
    broken.actor.net[0].bias.data[3] = torch.nan
    refuses(r"control step 0 of .* is not finite", walker, tmp_path, controller=broken)


@pytest.mark.parametrize(
    "fault, says", [("few", "992, of which 992"), ("nan", "1280, of which 1279")]
)
def test_world_steps_are_checked(walker, tmp_path, fault, says):
    """Too few world-steps, or one that is not finite, fail the export in one line."""
    recorded = copy.deepcopy(walker.recorded)
    if fault == "few":
        few = [recorded.restart[:31], recorded.targets[:31]]
        readings = {name: x[:31] for name, x in recorded.readings.items()}
        recorded = recorded._replace(restart=few[0], targets=few[1], readings=readings)
        assert recorded.restart.size < LEAST_SAMPLES
    else:
        recorded.readings["gyro"][3, 7, 1] = np.inf
    refuses(says, walker, tmp_path, recorded=recorded)


def refusal(**methods) -> str:
    """The line that refuses a quadruped with other methods."""
    task = make_task("quadruped", type("Walker", (Quadruped,), methods))
    actor = torch.nn.Linear(task.mjm.nu, task.mjm.nu)
    with pytest.raises(ValueError) as error:
        controller = Controller(task, actor)
        sample = {name: torch.rand(2, *x) for name, x in controller.shapes().items()}
        sample["restart"] = torch.tensor([True, False])
        to_onnx(controller, sample, controller.outputs, controller.user)
    assert "\n" not in str(error.value)
    return str(error.value)


def observing(read):
    """`observe` with the terms `joints` and `extra`, 12 numbers together."""
    return lambda self, s: {"joints": s.joint_pos[:, :11], "extra": read(s)}


def test_what_cannot_be_traced_is_refused():
    """A branch, an operator that ONNX lacks, a constant number of worlds, by their line."""
    said = refusal(observe=observing(lambda s: s.up[:, :1] if s.up.sum() > 0 else s.up[:, 1:2]))
    assert said.startswith("Walker.observe branches on a tensor: test_export.py:")
    said = refusal(observe=observing(lambda s: torch.special.bessel_j0(s.up[:, :1])))
    assert said.startswith("export: ONNX has no operator for aten.special_bessel_j0.default: ")
    assert "Walker.observe uses special_bessel_j0: test_export.py:" in said
    said = refusal(observe=observing(lambda s: s.up[:, :1] / len(s.up)))
    assert said.startswith("export: torch cannot trace the controller: ")


# -- the description -------------------------------------------------------------------------------


def test_the_description_fits_its_schema(exported):
    """The metadata is what docs/policy.schema.json says, and nothing else."""
    notes = about(exported.path)
    assert problems(notes, SCHEMA, SCHEMA) == []
    for key in notes:
        assert problems({k: v for k, v in notes.items() if k != key}, SCHEMA, SCHEMA)
    (targets, fault), first = notes["outputs"], notes["inputs"][0]
    for wrong in (
        {"more": 1},
        {"format": 1},
        {"dt": 0},
        {"outputs": [targets, targets]},
        {"outputs": [targets]},
        {"outputs": [fault, targets]},
        {"outputs": [targets | {"safe_pose": ["0"]}, fault]},
        {"inputs": [first | {"type": "float16"}]},
        {"inputs": [first | {"shape": [-1]}]},
        {"lineage": {}},
        (unseen := {"inputs": [{k: x for k, x in first.items() if k != "seen"}]}),
        (still := {"outputs": [{k: x for k, x in targets.items() if k != "change"}, fault]}),
    ):
        assert problems(notes | wrong, SCHEMA, SCHEMA), wrong
    origin = dict.fromkeys(["source", "licence", "card"], "x") | {"reads_unmeasured": []}
    origin |= {"network": {"licence": "x", "sha256": "x"}}
    others = {"lineage": notes["lineage"] | {"adopted": origin}}
    assert problems(notes | unseen | still | others, SCHEMA, SCHEMA) == []


def test_the_description_is_complete(exported):
    """Every input and output of the network is described, with its shape and unit."""
    notes, task = about(exported.path), exported.task
    inputs = {x["name"]: x for x in notes["inputs"]}
    memory = {x["input"]: x for x in notes["memory"]}
    assert [*inputs, *memory] == exported.controller.inputs
    outputs = [x["name"] for x in notes["outputs"]] + [x["output"] for x in notes["memory"]]
    assert outputs == exported.controller.outputs
    for name, shape in exported.controller.shapes().items():
        assert (inputs | memory)[name]["shape"] == list(shape), name
    for name, entry in inputs.items():
        if name == "restart":
            continue
        width = entry["shape"][0]
        assert len(entry["units"]) == len(entry["seen"]["low"]) == width
        values = exported.recorded.readings[name]
        assert (np.array(entry["seen"]["low"]) >= values.min((0, 1))).all()
        assert (np.array(entry["seen"]["high"]) <= values.max((0, 1))).all()
    targets, fault = notes["outputs"]
    assert fault == {"name": "fault", "type": "bool", "shape": []}
    limits = actuators(task.mjm)
    assert targets["safe_pose"] == limits.pop("default_pose")
    assert {key: targets[key] for key in limits} == limits
    joints = driven_joints(task.mjm)
    assert targets["joints"] == [task.mjm.joint(j).name if j >= 0 else None for j in joints]
    assert notes["dt"] == task.dt and notes["format"] == 4
    assert notes["lineage"]["versions"] == versions()


def test_the_description_of_the_quadruped(walker):
    """The metadata of the quadruped equals values that were copied by hand."""
    notes = about(walker.path)
    inputs, targets = {x["name"]: x for x in notes["inputs"]}, notes["outputs"][0]
    assert list(inputs) == ["gyro", "up", "joint_pos", "joint_vel", "command", "restart"]
    assert inputs["gyro"]["units"] == ["rad/s"] * 3 and inputs["gyro"]["frame"] == "site imu"
    assert inputs["up"]["units"] == ["1"] * 3 and inputs["up"]["frame"] == "site imu"
    assert inputs["up"]["meaning"] == "z axis of world"
    assert inputs["joint_vel"]["units"] == ["rad/s"] * 12
    assert inputs["joint_pos"]["joints"][:2] == ["FL_abduction", "FL_thigh"]
    assert targets["kp"] == [40.0] * 12 and targets["kd"] == [1.0] * 12
    assert targets["units"] == ["rad"] * 12 and targets["safe_pose"] == [0.0, 0.8, -1.6] * 4
    assert targets["torque_limit"] == [23.7, 23.7, 45.4] * 4
    assert targets["joint_range"][2] == [-2.72, -0.84] and targets["control_range"] == [None] * 12
    command = inputs["command"]
    assert command["names"] == ["forward", "left", "turn"]
    assert command["units"] == ["m/s", "m/s", "rad/s"]
    assert command["trained"]["high"] == numbers("quadruped")["fastest"]
    action, phase, held = notes["memory"]
    assert action["start"] == [0.0] * 12 and phase["start"] == 0.5 and phase["shape"] == []
    np.testing.assert_array_equal(held["start"], np.float32(targets["safe_pose"]))


def test_units_of_other_robots():
    """They follow from joints, servos and sensors; a motor's is its force per unit."""
    targets = describe_targets(make_task("cartpole").mjm)
    assert (targets["units"], targets["joints"]) == (["10 N"], ["slider"])
    model = mujoco.MjModel.from_xml_string("""
        <mujoco>
          <worldbody><body name="b"><joint name="a"/><geom size="1"/><site name="s"/>
            <body><joint name="c" type="slide"/><geom size="1"/></body></body></worldbody>
          <sensor>
            <accelerometer name="acc" site="s"/><jointvel name="speed" joint="c"/>
            <jointactuatorfrc name="push" joint="c"/><jointactuatorfrc name="turn" joint="a"/>
            <framequat name="q" objtype="body" objname="b"/>
          </sensor>
        </mujoco>""")
    acc, speed, push, turn, quaternion = (
        describe_sensor(model, name) for name in ("acc", "speed", "push", "turn", "q")
    )
    assert acc == dict(sensor="accelerometer", units=["m/s²"] * 3, frame="site s")
    assert speed == dict(sensor="jointvel", units=["m/s"], of="joint c")
    assert push["units"] == ["N"] and turn["units"] == ["N m"]
    about = dict(frame="world", meaning="orientation of body b")
    assert quaternion == dict(sensor="framequat", units=["1"] * 4, **about)


def test_mjcf_is_whole(exported):
    """The MJCF text in the file compiles by itself to the model that was trained on."""
    model = mujoco.MjModel.from_xml_string(notes_of(onnx.load(exported.path))["mjcf"])
    trained = exported.task.mjm
    if exported.task.takes_terrain:  # the file has the robot on flat ground
        trained = compile_mjcf(exported.task.mjcf)
    fields = "body_mass body_inertia body_ipos jnt_range actuator_gainprm geom_size qpos0"
    for field in fields.split():
        np.testing.assert_array_equal(getattr(model, field), getattr(trained, field), err_msg=field)
    assert model.names == trained.names and model.opt.timestep == trained.opt.timestep


def test_limits_of_other_actuators():
    """gear · gain · control, or the joint's own limit; no limit is None."""
    model = mujoco.MjModel.from_xml_string("""
        <mujoco>
          <worldbody><body><joint name="a"/><geom size="1"/>
            <body><joint name="b" actuatorfrcrange="-3 3"/><geom size="1"/>
              <body><joint name="c"/><geom size="1"/></body></body>
          </body></worldbody>
          <actuator>
            <motor joint="a" gear="10" ctrlrange="-2 2"/>
            <position joint="b" kp="7" kv="2" forcerange="-9 9"/>
            <position joint="c" kp="5"/>
          </actuator>
        </mujoco>""")
    assert actuators(model) == {
        "default_pose": [0.0] * 3,
        "kp": [None, 7.0, 5.0],
        "kd": [None, 2.0, 0.0],
        "torque_limit": [20.0, 3.0, None],
        "control_range": [[-2.0, 2.0], None, None],
        "joint_range": [None] * 3,
    }


def test_includes_are_resolved(tmp_path):
    """The exported MJCF contains the files that the model includes."""
    body = '<body name="b"><joint name="j"/><geom name="g" size="0.123456789"/></body>'
    body = f"<mujoco><worldbody>{body}</worldbody></mujoco>"
    (tmp_path / "deep.xml").write_text(body)
    (tmp_path / "robot.xml").write_text('<mujoco><include file="deep.xml"/></mujoco>')
    (tmp_path / "scene.xml").write_text(
        '<mujoco><option timestep="0.005"/><include file="robot.xml"/></mujoco>'
    )
    task = make_task("cartpole")
    task.mjcf = str(tmp_path / "scene.xml")
    text = task.mjcf_text()
    assert not re.search("<include", text)
    model, direct = mujoco.MjModel.from_xml_string(text), mujoco.MjModel.from_xml_path(task.mjcf)
    assert model.geom_size[0, 0] == 0.123456789 and model.names == direct.names
    assert model.body_mass[1] == direct.body_mass[1]


# -- the network alone -----------------------------------------------------------------------------


def test_the_network_alone(tmp_path):
    """export=network writes observation → action with the terms' names, and no controller."""
    env = fresh_env(make_task("quadruped", history={"gyro": 2}), "quadruped")
    actor = make_actor(env)
    observations, path = record_observations(env, actor, 40), tmp_path / "network.onnx"
    given: dict[str, Any] = dict(name="quadruped", mjcf=env.task.mjcf_text(), lineage={})
    given |= dict(terms=env.term_widths, history=env.task.history)
    assert export_network(actor, path, observations=observations, **given) <= TOLERANCE
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (action,) = session.run(["action"], {"obs": observations[:5].numpy()})
    wanted = actor(observations[:5]).detach()
    np.testing.assert_allclose(np.asarray(action), wanted, rtol=0, atol=TOLERANCE)
    notes = about(path)
    assert notes["kind"] == "network"
    assert notes["observation"][0] == {"name": "gyro", "width": 3, "history": 2}
    with pytest.raises(ValueError, match="999, of which 999"):
        export_network(actor, path, observations=observations[:999], **given)


class RunsAhead(torch.nn.Module):
    """An actor that moves an arm's targets the further, the further they are ahead of the joints.

    The servos bring the joints after them. Without that, a difference would grow with each step.
    """

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        joints, ahead = obs[:, :7], obs[:, 14:21]
        return 4.0 * ahead - 0.3 * joints


@pytest.mark.slow
def test_rounding_does_not_grow_in_a_memory(tmp_path):
    """The file's memory of targets stays with the Env's for a whole episode."""
    actor: Any = RunsAhead()
    exported = export_task("reach", tmp_path / "policy.onnx", steps=200, actor=actor)
    assert exported.error <= TOLERANCE
