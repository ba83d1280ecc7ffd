"""A walking robot's network speaks mjlab's words: by hand, and as gaitkeeper reads it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from benchmarks.gaitkeeper import (
    Recorder,
    difference,
    load_trace,
    nominal_env,
    read_contract,
    write_model,
)
from gpusim_rl.deploy.export import TOLERANCE, export_network, session
from gpusim_rl.deploy.mjlab import MjlabActor, fits
from tests.exported import fresh_env, make_actor, notes_of, record_observations
from tests.worlds import make_task, numbers


def networks(name: str, **settings: Any):
    """An Env of a walking task, an actor of it, and that between mjlab's words and ours."""
    env = fresh_env(make_task(name, **settings), name)
    actor = make_actor(env, push=5.0)
    record_observations(env, actor, 10)
    task: Any = env.task
    return env, actor, MjlabActor(actor, task, env.term_widths)


def write(actor: MjlabActor, path: Path, observations: torch.Tensor) -> Path:
    """The files of a network."""
    about: Any = dict(name="x", terms={}, history={}, lineage={}, mjcf=actor.task.mjcf_text())
    further = actor.metadata("run")
    export_network(actor, path, observations=observations, further=further, **about)
    path.with_suffix(".deploy.yaml").write_text(actor.deploy_yaml())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humanoid", "quadruped"])
def test_their_words_and_ours(tmp_path, name):
    """The file's scaled actions are our targets; signs, order and last action are mjlab's."""
    env, actor, bridge = networks(name, history={"gyro": 2})
    task, nu, seen, targets = env.task, env.task.mjm.nu, [], []
    env.set_memory("command", [0.5, 0.0, 0.0])
    for _ in range(40):
        seen.append(env.observation["actor"].clone())
        env.apply_action(actor(env.observation["actor"]).detach())
        targets.append(env.sim.ctrl.float())
        env.step_physics()
        env.finish_step()
    ours = torch.cat(seen)
    theirs = bridge.theirs(ours)
    path = write(bridge, tmp_path / "walk.onnx", theirs)
    notes = {key: x.split(",") for key, x in notes_of(onnx.load(path)).items()}
    scale, stance = (np.array(notes[x], float) for x in ("action_scale", "default_joint_pos"))
    (action,) = session(path.read_bytes()).run(None, {"obs": theirs.numpy()})
    made, expected = stance + scale * action, torch.cat(targets)
    np.testing.assert_allclose(made, expected, rtol=0, atol=TOLERANCE)
    names = "base_ang_vel projected_gravity joint_pos joint_vel actions command phase"
    assert notes["observation_names"] == names.split()
    widths = [6, 3, nu, nu, nu, 3, 2]
    mine, columns = ours.split(widths, 1), theirs.split(widths, 1)
    assert torch.equal(columns[1], -mine[1]) and (mine[1][:, 2] > 0).any()
    assert torch.equal(columns[6], mine[6][:, [1, 0]])
    last = columns[4].view(40, -1, nu)[1:]
    went_on = (mine[4].view(40, -1, nu)[1:] != 0).any(-1)  # no episode began
    before = (torch.stack(targets[:-1]) - task.stance) / task.joint_scales  # pyright: ignore
    assert (last - before)[went_on].abs().max() < 1e-4 and went_on.float().mean() > 0.9
    assert (bridge.ours(theirs) - ours).abs().max() < 1e-5


def test_who_speaks_so(monkeypatch):
    """Walkers do; a scan, a hidden clock, a turned imu and other actions do not."""

    def says(name: str, **settings: Any) -> bool:
        env = fresh_env(make_task(name, **settings), name, worlds=1)
        return fits(env.task, env.term_widths)

    assert says("humanoid") and says("quadruped", hide=("gyro",))
    assert says("humanoid", acceleration=(2.0, 1.0, 2.5))
    assert not any(says("quadruped", hide=(name,)) for name in ("clock", "up"))
    assert not any(says(name) for name in ("getup", "drone", "reach"))
    env = fresh_env(make_task("humanoid"), "humanoid", worlds=1)
    assert not fits(env.task, env.term_widths | {"scan": 9})
    with monkeypatch.context() as other:
        other.setattr(type(env.task), "action_width", 1)
        assert not fits(env.task, env.term_widths)
    env.task.mjm.site("imu").quat = [0, 0, 0, 1]
    assert not fits(env.task, env.term_widths)


def test_the_deploy_yaml_has_the_limits_of_a_command():
    """That below which the clock stands still, and how fast the velocity to follow changes."""
    _, _, bridge = networks("humanoid", acceleration=(2.0, 1.0, 2.5))
    about = json.loads(bridge.deploy_yaml())
    assert about["observations"]["gait_phase"]["params"]["stand_threshold"] == 0.05
    limits = about["commands"]["twist"]["acceleration"]
    assert limits == {"lin_vel_x": 2.0, "lin_vel_y": 1.0, "ang_vel_z": 2.5}


# -- gaitkeeper --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """A humanoid's network and its files, and a trace of two episodes of its Env."""
    pytest.importorskip("gaitkeeper")
    task = make_task("humanoid", redraw=1000.0, share_standing=0.0)
    yaml = numbers("humanoid")
    env = nominal_env(task, yaml["weights"], yaml["noise"], seed=5)
    actor, folder = make_actor(env, push=5.0), tmp_path_factory.mktemp("walk")
    observations = record_observations(fresh_env(task, "humanoid"), actor, 40)
    bridge = MjlabActor(actor, env.task, env.term_widths)  # pyright: ignore
    path = write(bridge, folder / "walk.onnx", bridge.theirs(observations))
    recorder = Recorder(env, bridge)
    recorder.run(actor, [(0.0, (0.6, 0.0, 0.0)), (0.2, (0.2, -0.2, 0.5))], 0.6)
    recorder.run(actor, [(0.0, (0.0, 0.0, 0.0)), (0.2, (0.03, 0.02, 0.0))], 0.4)
    return bridge, path, recorder.save(folder / "trace")


def test_gaitkeeper_reads_the_network(walk):
    """gaitkeeper's contract has our joints, poses, gains, terms, clock and commands."""
    bridge, path, _ = walk
    contract, task = read_contract(path), bridge.task
    names = contract.get("policy_io.joints.names")
    assert names == [task.mjm.joint(i).name for i in task.mjm.actuator_trnid[:, 0]]
    for key, expected in (
        ("control.default_joint_pos", task.stance),
        ("control.actions.joint_pos.scale", task.joint_scales),
        ("control.actuators.kp", -task.mjm.actuator_biasprm[:, 1]),
        ("control.actuators.kd", -task.mjm.actuator_biasprm[:, 2]),
    ):
        assert [*contract.get(key).values()] == pytest.approx(np.asarray(expected).tolist())
    terms = contract.get("policy_io.observation_groups.policy.terms")
    assert terms[-1]["params"]["period"] == pytest.approx(1 / task.gait)
    ranges = contract.get("policy_io.commands.base_velocity.limit")
    assert [high for _, high in ranges.values()] == pytest.approx(task.fastest)
    assert contract.get("timing.policy_dt") == task.dt


def test_gaitkeeper_checks_the_network(walk):
    """Its checks pass, and from the files alone it makes our Env's torques."""
    from gaitkeeper import checks, diagnose  # pyright: ignore[reportMissingImports]
    from gaitkeeper.policy import load_policy  # pyright: ignore[reportMissingImports]
    from gaitkeeper.runner import Runner  # pyright: ignore[reportMissingImports]

    _, path, folder = walk
    contract, model = read_contract(path), str(write_model(path))
    trace, policy = load_trace(folder), load_policy(contract, path)
    diagnosis = diagnose.diagnose_trace(trace, contract, policy, target=model)
    decision = diagnosis.decision
    assert (decision.verdict, decision.evidence) == ("PASS", "L2"), diagnosis.lines()
    assert max(x.rms for x in diagnosis.d.joints) < 1e-6  # N m, of forces of up to 139
    runner = Runner(contract, model, policy)
    results = checks.run_checks(runner, which=("S16", "S17b", "S18", "S21"))
    assert all(x.status == "PASS" for x in results), [x.text() for x in results]


@pytest.mark.parametrize("column", [*range(0, 47, 3), 45, 46])
def test_gaitkeeper_finds_another_word(walk, column):
    """A trace with one number of another sign and size is not what its contract makes."""
    _, path, folder = walk
    trace = load_trace(folder)
    contract = read_contract(path)
    assert difference(trace, contract) < 1e-5
    trace.arrays["obs"][:, column] *= -1.1
    assert difference(trace, contract) > 1e-4
