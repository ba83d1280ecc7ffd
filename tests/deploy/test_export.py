"""ONNX export: the file acts as the torch actor does, and describes all that a robot needs."""

import copy
import json
import re
from dataclasses import asdict

import mujoco
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from gpusim_rl.core.provenance import versions
from gpusim_rl.deploy.export import KEY, MIN_OBSERVATIONS, TOLERANCE, export
from gpusim_rl.networks.actor_critic import Actor
from gpusim_rl.networks.mlp import mlp
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.robots.servos import actuators
from tests.exported import Exported, export_task
from tests.worlds import TASKS, make_env, numbers


@pytest.fixture(scope="module", params=TASKS)
def exported(request, tmp_path_factory) -> Exported:
    """An exported policy of each task."""
    return export_task(request.param, tmp_path_factory.mktemp(request.param) / "policy.onnx")


@pytest.fixture(scope="module")
def quadruped(tmp_path_factory) -> Exported:
    """An exported policy of the quadruped."""
    return export_task("quadruped", tmp_path_factory.mktemp("one") / "policy.onnx")


def keywords(exported: Exported) -> dict:
    """The keyword arguments of `export`."""
    return {
        "name": "quadruped",
        "noise": {},
        "widths": exported.widths,
        "observations": exported.observations,
    }


def about(path) -> dict:
    """The description in a file's metadata."""
    return json.loads({p.key: p.value for p in onnx.load(path).metadata_props}[KEY])


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_onnx_equals_torch(exported, batch):
    """Actions of ONNX and torch differ by at most 1e-5 on recorded observations, in batches of any
    size."""
    session = onnxruntime.InferenceSession(str(exported.path))
    assert [i.name for i in session.get_inputs()] == ["obs"] and [
        o.name for o in session.get_outputs()
    ] == ["action"]
    obs = exported.observations[200 : 200 + batch]
    output = np.asarray(session.run(None, {"obs": obs.numpy()})[0])
    expected = exported.actor(obs).detach().numpy()
    assert output.shape == (batch, exported.task.mjm.nu) and np.abs(expected).max() > 0.1
    np.testing.assert_allclose(output, expected, rtol=0, atol=TOLERANCE)
    assert exported.error <= TOLERANCE


def test_file_is_standard(exported):
    """The file passes ONNX's full check, uses only standard operators, and holds its own
    weights."""
    model = onnx.load(exported.path)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, 18 <= o.version <= 23) for o in model.opset_import] == [("", True)]
    assert len(list(exported.path.parent.iterdir())) == 1


def test_export_leaves_the_actor_alone(quadruped):
    """Export changes no weight, no statistic and no mode of the actor."""
    actor = copy.deepcopy(quadruped.actor).train()
    before = copy.deepcopy(actor.state_dict())
    export(
        actor,
        quadruped.task,
        quadruped.path.with_name("again.onnx"),
        name="quadruped",
        noise={},
        widths=quadruped.widths,
        observations=quadruped.observations,
    )
    assert actor.training and all(torch.equal(v, before[k]) for k, v in actor.state_dict().items())
    assert all(p.requires_grad for p in actor.parameters())
    quadruped.path.with_name("again.onnx").unlink()


class Split(Actor):
    """An actor that computes other actions while it is traced."""

    def forward(self, obs):
        return super().forward(obs) + (1e-4 if torch.compiler.is_compiling() else 0.0)


def test_a_file_that_differs_from_torch_is_not_written(quadruped, tmp_path):
    """An export that differs from torch fails, and an older file stays as it is."""
    split = Split(Normalizer(47), quadruped.actor.net)
    path = tmp_path / "policy.onnx"
    for old in (None, b"the one before"):
        if old:
            path.write_bytes(old)
        with pytest.raises(ValueError, match=r"ONNX and torch differ by 1\.0.e-04"):
            export(split, quadruped.task, path, **keywords(quadruped))
        assert [p.read_bytes() for p in tmp_path.iterdir()] == ([old] if old else [])


def test_an_actor_that_is_not_finite_is_not_written(quadruped, tmp_path):
    """A policy with NaN in its weights is refused, although ONNX and torch agree."""
    broken = copy.deepcopy(quadruped.actor)
    broken.net[0].bias.data[3] = torch.nan
    with pytest.raises(ValueError, match="differ by nan"):
        export(broken, quadruped.task, tmp_path / "x.onnx", **keywords(quadruped))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "fault, says",
    [("few", "999, of which 999"), ("nan", "1280, of which 1279"), ("wide", "47 wide, but")],
)
def test_observations_are_checked(quadruped, tmp_path, fault, says):
    """Too few observations, one that is not finite, or a wrong width fail the export in one
    line."""
    obs = quadruped.observations.clone()
    if fault == "few":
        obs = obs[: MIN_OBSERVATIONS - 1]
    elif fault == "nan":
        obs[-1, 7] = torch.inf
    actor = quadruped.actor
    if fault == "wide":
        obs = torch.cat([obs, obs[:, :1]], 1)
        net = mlp(48, (16,), 12, "elu", 0.01, torch.Generator().manual_seed(0))
        actor = Actor(Normalizer(48), net)
    with pytest.raises(ValueError, match=says) as error:
        export(
            actor,
            quadruped.task,
            tmp_path / "x.onnx",
            **(keywords(quadruped) | {"observations": obs}),
        )
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_metadata_is_complete(exported):
    """The metadata holds all entries, with the right widths and with units."""
    notes, task = about(exported.path), exported.task
    name, nu = notes["task"], task.mjm.nu
    env = make_env(name, 4)
    assert {t["name"]: t["width"] for t in notes["observation"]} == env.term_widths
    assert [t["name"] for t in notes["observation"]] == list(env.term_widths) and all(
        t["unit"] for t in notes["observation"]
    )
    action = notes["action"]
    assert action["unit"] and len(action["names"]) == nu and action["clip"] == task.clip
    assert action["names"] == [task.mjm.joint(int(j)).name for j in task.mjm.actuator_trnid[:, 0]]
    for key in ("default_pose", "kp", "kd", "torque_limit", "control_range", "joint_range"):
        assert len(notes[key]) == nu, key
    assert all(limit > 0 for limit in notes["torque_limit"])
    assert notes["dt"] == task.dt and notes["format"] == 1
    assert notes["versions"] == versions() and notes["commit"] == versions()["commit"]


def test_metadata_of_the_quadruped(quadruped):
    """The metadata of the quadruped equals numbers that were copied by hand."""
    notes = about(quadruped.path)
    assert (
        notes["kp"] == [40.0] * 12
        and notes["kd"] == [1.0] * 12
        and notes["default_pose"] == [0.0, 0.8, -1.6] * 4
    )
    assert notes["torque_limit"] == [23.7, 23.7, 45.4] * 4 and notes["joint_range"][2] == [
        -2.72,
        -0.84,
    ]
    assert notes["control_range"] == [None] * 12
    command = notes["command"]
    assert command["units"] == ["m/s", "m/s", "rad/s"] and len(command["names"]) == 3
    assert command["high"] == numbers("quadruped")["fastest"] and command["low"] == [
        -x for x in command["high"]
    ]


def test_metadata_keeps_every_bit(exported):
    """The numbers in the file equal those of the task, bit for bit."""
    notes, task = about(exported.path), exported.task
    for key, value in asdict(task.drive).items():
        assert notes["action"][key] == (list(value) if isinstance(value, tuple) else value), key
    for term in notes["observation"]:
        assert term["offset"] == list(task.readings[term["name"]].offset)
    if task.clock:
        assert notes["clock"] == asdict(task.clock)
    stance = torch.tensor(notes["action"]["offset"], dtype=torch.float32)
    state = make_env(notes["task"], 2).current_state()
    if "still" in state._tensors:
        assert torch.equal(
            task.control(state)[state.still == 1], stance.expand(int(state.still.sum()), -1)
        )


def test_a_third_is_exact(tmp_path):
    """A setting of 1/3 is read back as the same float64."""
    notes = about(
        export_task("quadruped", tmp_path / "p.onnx", fastest=(1 / 3, 0.1 + 0.2, 1e-9 / 7)).path
    )
    assert notes["command"]["high"] == [1 / 3, 0.1 + 0.2, 1e-9 / 7]


def test_mjcf_is_whole(exported):
    """The MJCF text in the file compiles by itself to the model that was trained on."""
    text = {p.key: p.value for p in onnx.load(exported.path).metadata_props}["mjcf"]
    model, trained = mujoco.MjModel.from_xml_string(text), exported.task.mjm
    for field in (
        "body_mass",
        "body_inertia",
        "body_ipos",
        "jnt_range",
        "actuator_gainprm",
        "geom_size",
        "qpos0",
    ):
        np.testing.assert_array_equal(getattr(model, field), getattr(trained, field), err_msg=field)
    assert model.names == trained.names and model.opt.timestep == trained.opt.timestep


def test_limits_of_other_actuators():
    """A motor's torque limit is gear · gain · control, a joint's own limit counts, and no limit is
    None."""
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
    task = make_env("cartpole", 2).task
    task.mjcf = str(tmp_path / "scene.xml")
    text = task.mjcf_text()
    assert not re.search("<include", text)
    model, direct = mujoco.MjModel.from_xml_string(text), mujoco.MjModel.from_xml_path(task.mjcf)
    assert (
        model.geom_size[0, 0] == 0.123456789
        and model.body_mass[1] == direct.body_mass[1]
        and model.names == direct.names
    )


def test_terms_must_be_described_in_their_order(quadruped, tmp_path):
    """Readings whose order or widths differ from the observation's are refused."""
    swapped = dict(reversed(quadruped.widths.items()))
    wider = quadruped.widths | {"gyro": quadruped.widths["gyro"] + 1}
    for widths in (swapped, wider):
        with pytest.raises(ValueError, match="but its observation is"):
            export(
                quadruped.actor,
                quadruped.task,
                tmp_path / "x.onnx",
                **(keywords(quadruped) | {"widths": widths}),
            )
    assert list(tmp_path.iterdir()) == []
