"""Imitation: rewards by hand, starts on any frame, begins again before a fall, and whole runs."""

import math
import shutil
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from benchmarks import clips
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.assembly.environment import make_task as make_task_of
from gpusim_rl.config.resume import load_config
from gpusim_rl.config.run_files import is_kept_file
from gpusim_rl.config.sections import task_file_keys
from gpusim_rl.core.paths import ASSETS
from gpusim_rl.core.rng import Rng
from gpusim_rl.deploy.export_policy import export_policy
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.envs.state import State
from gpusim_rl.robots.clip_formats import positions
from gpusim_rl.robots.clips import Clip, joint_angles, read_clip, write_clip
from gpusim_rl.robots.load import load_as
from gpusim_rl.robots.models import find_mjcf
from gpusim_rl.robots.prepare import added_name
from gpusim_rl.robots.servos import safe_controls
from gpusim_rl.runs.run import Run
from gpusim_rl.tasks.locomotion.imitate import frames_of
from gpusim_rl.training.trainer import Trainer
from tests import humanoid_files, robot_files
from tests.command_lines import TINY
from tests.tasks.test_golden import terms_of
from tests.worlds import (
    check_words,
    make_config,
    make_env,
    make_robot,
    make_task,
    refusal,
    robot_keys,
)


def states(task, frame: int, worlds: int = 1) -> State:
    """Robots exactly at a frame of the clip."""
    frame_of = torch.full((worlds,), float(frame))
    goal = [x[frame].expand(worlds, -1) for x in task.frames]
    goal = type(task.frames)(*goal)
    columns, zero = task.sensor_columns, torch.zeros(worlds, task.mjm.nu)
    sensordata = torch.zeros(worlds, task.mjm.nsensordata)
    for name, x in (("velocity", goal.velocity), ("gyro", goal.spin), ("up", goal.up)):
        sensordata[:, columns[name]] = x
    tensors = dict(
        qpos=torch.cat([goal.place, goal.turn, goal.joints], 1),
        qvel=torch.cat([goal.way, goal.spin, goal.speeds], 1),
        sensordata=sensordata,
        action=zero,
        previous=zero,
        frame=frame_of,
        time=torch.zeros(worlds, dtype=torch.int64),
    )
    return State(tensors, columns, task.joint_columns, task.derived)


def test_golden_rewards():
    """On the clip each term is 1; off it, each is worked out by hand.

    The trunk is 0.3 m and 0.4 m beside the clip's place, so d = 0.5, and turned by 0.2 rad more, so
    ψ = 0.2. σ_p = σ_ψ = 0.2 and k = 5. One joint is 0.3 rad off.
    """
    task = make_task("imitate")
    s = states(task, 100)
    on = terms_of(task, s)
    assert on.pop("action_rate") == on.pop("power") == 0
    assert on == pytest.approx(dict.fromkeys(on, 1.0), abs=1e-5)
    qpos = s.qpos.clone()
    qpos[0, :2] += torch.tensor([0.3, 0.4])
    qpos[0, 3:7] = torch.tensor([math.cos(0.1), 0.0, 0.0, math.sin(0.1)])  # from yaw 0
    qpos[0, 9] += 0.3
    off = terms_of(task, states(task, 100).with_(qpos=qpos))
    assert off["place"] == pytest.approx(math.exp(-(0.5**2) / 0.2**2), rel=1e-3)
    assert off["far_place"] == pytest.approx(math.exp(-(0.5**2)), rel=1e-4)
    assert off["heading"] == pytest.approx(math.exp(-1), rel=1e-3)
    assert off["far_heading"] == pytest.approx(math.exp(-1 / 25), rel=1e-4)
    assert off["joints"] == pytest.approx(math.exp(-((0.3 / task.sigma_joints) ** 2)), rel=1e-4)


def test_a_clip_at_control_steps():
    """Half as many frames, a start elsewhere, and the other sign of quaternions give the same."""
    clip = read_clip(ASSETS / "trot.npz")
    want = frames_of(clip, torch.from_numpy(clip.joint_pos), 0.04)
    c, s = math.cos(0.7), math.sin(0.7)
    x, y = clip.base_pos[:, 0], clip.base_pos[:, 1]
    place = np.column_stack([c * x - s * y + 5, s * x + c * y - 3, clip.base_pos[:, 2]])
    w, i, j, k = clip.base_quat.T
    ch, sh = math.cos(0.35), math.sin(0.35)
    turn = np.column_stack([ch * w - sh * k, ch * i - sh * j, ch * j + sh * i, ch * k + sh * w])
    turn[2::6] *= -1
    moved = Clip(25.0, clip.joint_names, place[::2], turn[::2], clip.joint_pos[::2])
    have = frames_of(moved, torch.from_numpy(moved.joint_pos), 0.04)
    for name, a, b in zip(want._fields, have, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0, msg=lambda text, n=name: f"{n}: {text}")
    assert want.place[0, :2].norm() == want.heading[0] == 0
    # it trots at 0.6 m/s along its own x, and turns at 0.8 rad/s
    assert want.velocity[60].tolist() == pytest.approx([0.6, 0, 0], abs=1e-3)
    assert want.spin[125].tolist() == pytest.approx([0, 0, 0.8], abs=1e-3)
    assert not want.speeds[-1].any() and not want.way[-1].any() and not want.spin[-1].any()


def test_starts_on_any_frame():
    """While learning all frames occur, and many begin at the first; an evaluation begins there."""
    task = make_task("imitate")
    rng = Rng(1, torch.arange(4096))
    start = task.begin(4096, rng)
    frames = start["frame"]
    share = (frames == 0).float().mean().item()
    assert share == pytest.approx(0.25, abs=0.05)
    drawn = torch.histc(frames[frames > 0], 8, 0, task.last)
    assert drawn.min() > 0.8 * drawn.mean() and frames.max() < task.last
    place = task.frames.place[frames.long()]
    assert (start["qpos"][:, :2] - place[:, :2]).abs().max() < 1e-5
    judged = task.evaluation()
    assert not judged.begin(64, Rng(1, torch.arange(64)))["frame"].any()
    assert judged.horizon == task.last == 400


def test_begins_again_before_a_fall():
    """The frames before one at which every world falls are drawn three times as often."""
    task, n = make_task("imitate"), 4096
    rng = Rng(1, torch.arange(n))
    ended = states(task, 300, n)
    before = lambda x: ((x > 249) & (x <= 300)).float().mean().item()  # noqa: E731
    fell = task.begin(n, rng, ended)["frame"]
    over = task.begin(n, rng, ended.with_(time=torch.full((n,), task.horizon)))["frame"]
    assert before(fell) > 3 * before(over) and before(fell) == pytest.approx(0.55, abs=0.05)


def test_what_a_fall_is():
    """A trunk that is too low, or leans otherwise than the clip's: not one that sits with it."""
    task = make_task("imitate")
    s = states(task, 350, 3)  # it sits
    assert task.frames.up[350, 0].abs() > 0.3 and not task.terminated(s).any()
    s.qpos[0, 2] -= 0.13
    s.up[1] = torch.tensor([-0.8, 0.0, 0.6])
    assert task.terminated(s).tolist() == [True, True, False]


def test_the_clips_are_those_of_the_program(tmp_path, capsys):
    """`python -m benchmarks.clips` makes the files again, and feet follow their plans."""
    clips.main([f"folder={tmp_path}"])
    assert capsys.readouterr().out.count("feet off by 0.00 mm") == 2
    for name in ("trot.npz", "hop.npz"):
        made, kept = read_clip(tmp_path / name), read_clip(ASSETS / name)
        for a, b in zip(made[2:5], kept[2:5], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_mistakes():
    """One line names the key, the file and the choices."""
    assert refusal("task=imitate", "task.clip_file=walk.npz") == (
        "task.clip_file=walk.npz: no such file, here or among hop.npz, trot.npz"
    )
    assert refusal("task=imitate", "task.clip_file=7") == (
        "task.clip_file=7: expected a word, such as 'trot.npz'"
    )
    for name, says in (("walk.npz", "no such file, here"), ("7", "expected a word")):
        line = refusal("task=imitate", f"task.clip_file={{a:trot.npz,b:{name}}}")
        assert line.startswith(f"task.clip_file.b={name}: {says}")
    dotted = refusal("task=imitate", "task.clip_file={a:trot.npz,b.c:hop.npz}")
    assert dotted == "task.clip_file: 'b.c' is no name: expected letters, digits and _"
    assert "has no clip" in refusal("task=imitate", "task.clip_file={}")
    assert "no .npz file" in refusal("task=imitate", f"task.clip_file={find_mjcf('ant.xml')}")


def train(*words: str) -> Iteration:
    """Train, and return the iteration."""
    trainer = Trainer(check_words(*words))
    trainer.train()
    trainer.close()
    return trainer.loop.iteration


def test_a_run_keeps_its_clip(tmp_path, monkeypatch):
    """Another clip is refused; a run that is moved, whose clip is gone, goes on and exports."""
    monkeypatch.chdir(tmp_path)
    clip = read_clip(ASSETS / "hop.npz")
    write_clip(Path("mine.npz"), clip)
    words = ("task=imitate", *TINY, "log=none", "task.clip_file=mine.npz", "run_dir=run")
    train(*words, "iterations=1")
    write_clip(Path("mine.npz"), clip._replace(base_pos=clip.base_pos + 1))
    with pytest.raises(ValueError, match=r"cannot change: task\.clip_file .* → mine\.npz$"):
        check_words("resume=run", "iterations=2", "task.clip_file=mine.npz")
    Path("mine.npz").unlink()
    Path("run").rename("moved")
    assert Run.open(Path("moved")).config["task"]["clip_file"] == "model/task.clip_file.npz"
    iteration = train("resume=moved", "iterations=2")
    assert iteration.env.task.last == 200
    config = load_config(Run.open(Path("moved")))
    error = export_policy(iteration, config, Path("moved"), file := Path("policy.onnx"))
    assert error < 1e-5
    shutil.rmtree("moved")
    plays_the_clip(file, clip)


TWO = {"trot": "trot.npz", "hop": "hop.npz"}


def test_several_clips():
    """Each world has its own clip, from any of its frames on, and holds that one's last frame."""
    task, n = make_task("imitate", clip_file=TWO), 4096
    assert task.last == 401 + 201 - 1 and task.evaluation().horizon == 400
    start = task.begin(n, Rng(1, torch.arange(n)))
    hops = start["command"][:, 0] == 1
    assert hops.float().mean() == pytest.approx(0.5, abs=0.05)
    frames = start["frame"]
    assert frames[~hops].min() == 0 and frames[~hops].max() in range(380, 400)
    assert frames[hops].min() == 401 and frames[hops].max() in range(580, 601)
    goal = task.frames.joints[frames.long()]
    assert (start["qpos"][:, 7:] - goal).abs().max() < 0.06
    rng = Rng(1, torch.arange(2))
    s = states(task, 400, 2).with_(command=torch.tensor([[0.0], [1.0]]))
    # held; and the first frame of the other clip, as it is told so, is followed by its second
    assert task.update(s, rng)["frame"].tolist() == [400, 402]
    end = states(task, 601).with_(command=torch.tensor([[1.0]]))
    assert task.update(end, rng)["frame"].tolist() == [601]
    hop = make_task("imitate", clip_file="hop.npz")
    torch.testing.assert_close(task.frames.joints[401:], hop.frames.joints)
    ended = states(task, 410, n).with_(command=torch.ones(n, 1))
    again = task.begin(n, Rng(2, torch.arange(n)), ended)
    back = again["frame"][(again["frame"] >= 401) & (again["frame"] <= 410)]
    assert len(back) > n / 3 and (again["command"][:, 0] == (again["frame"] > 400)).all()


def test_a_run_keeps_several_clips(tmp_path, monkeypatch):
    """They are copied by name; the exported file plays the one whose number it is told."""
    monkeypatch.chdir(tmp_path)
    words = ("task=imitate", *TINY, "log=none", "run_dir=run", "episodes=8")
    iteration = train(*words, "iterations=1", "task.clip_file={trot:trot.npz,hop:hop.npz}")
    config = load_config(Run.open(Path("run")))
    names = config.plain["task"]["clip_file"]
    assert {*names} == {*TWO} and all(Path(x).is_relative_to("run") for x in names.values())
    error = export_policy(iteration, config, Path("run"), file := Path("policy.onnx"))
    assert error < 1e-5
    train("resume=run", "iterations=2")
    policy = Policy(file)
    readings = {name: np.zeros((1, n), np.float32) for name, n in policy.needs.items()}
    for number, name in enumerate(TWO):
        policy.reset()
        targets = np.stack([policy.act(readings, [number]).ravel() for _ in range(150)])
        knee = read_clip(ASSETS / TWO[name]).joint_pos[1:151, 2]
        assert np.corrcoef(targets[:, 2], knee)[0, 1] > 0.8
    policy.act(readings, [math.nan])
    assert policy.fault.all()


def test_scores_of_several_clips():
    """Each clip has its share of successes beside that of all."""
    task = make_task("imitate", clip_file=TWO)
    zero = torch.zeros(3, 4)
    names = ("joints", "velocity", "place", "heading", "action_rate", "terminated")
    record = dict.fromkeys(names, zero) | {"clip": torch.tensor([[0.0, 0, 1, 1]]).expand(3, 4)}
    record["joints"] = torch.tensor([[0.0, 0.0, 0.0, 1.0]]).expand(3, 4)
    scores = task.score(record)
    assert scores["success"] == 0.75
    assert scores["success_trot"] == 1 and scores["success_hop"] == 0.5


def test_the_words_of_a_run_name_its_clip_again(tmp_path):
    """resume= with the name of one of our clips means the copy that the run has of it."""
    copy = shutil.copy(ASSETS / "hop.npz", tmp_path)
    now, kept = ({"task": {"clip_file": str(x)}} for x in ("hop.npz", copy))
    (key,) = task_file_keys(kept)
    assert is_kept_file(key, now, kept)
    assert not is_kept_file(key, {"task": {"clip_file": "trot.npz"}}, kept)


def plays_the_clip(file: Path, clip: Clip) -> None:
    """The file alone moves the targets about the clip's angles, whatever it is told."""
    policy = Policy(file)
    readings = {name: np.zeros((1, n), np.float32) for name, n in policy.needs.items()}
    targets = np.stack([policy.act(readings).ravel() for _ in range(60)])
    # the knees go down and up with the clip's, apart from a constant and the servos' lead
    apart = np.corrcoef(targets[:, 2], clip.joint_pos[1:61, 2])[0, 1]
    assert targets.shape == (60, 12) and apart > 0.8


def test_another_robot_follows_its_own_clip(tmp_path, monkeypatch, capsys):
    """robot.mjcf= names a quadruped, whose joints the clip has in any order."""
    monkeypatch.chdir(tmp_path)
    robot = robot_files.write(tmp_path, robot_files.mjcf())
    words = ("task=imitate", *TINY, "log=none", f"robot.mjcf={robot}", "run_dir=run")
    model = make_robot(mjcf=robot).mjm
    order = [*reversed(robot_files.NAMES)]
    columns = [model.joint(name).qposadr[0] for name in order]
    pose = np.tile(model.key_qpos[0], (51, 1))
    clip = Clip(50, tuple(order), pose[:, :3], pose[:, 3:7], pose[:, columns], "CC0-1.0")
    write_clip(Path("stand.npz"), clip)
    iteration = train(*words, "iterations=1", "task.clip_file=stand.npz")
    task = iteration.env.task
    assert torch.allclose(task.frames.joints, task.stance, atol=1e-5)
    assert "no joint of the robot" in refusal(*words, "iterations=1", "run_dir=other")
    capsys.readouterr()
    described = make_config(*words, "task.clip_file=stand.npz", "robot.height=0.3")
    make_task_of(described, "cpu")
    assert "robot.height has no effect: Imitate does not use it" in capsys.readouterr().err


def test_a_humanoid_moves_its_whole_body(tmp_path, monkeypatch):
    """robot.mjcf= names a humanoid, whose arms follow the clip as its legs do."""
    monkeypatch.chdir(tmp_path)
    robot = robot_files.write(tmp_path, humanoid_files.mjcf())
    model = load_as("whole", **robot_keys(mjcf=robot)).mjm
    names = tuple(model.joint(j).name for j in model.actuator_trnid[:, 0])
    pose = np.tile(model.key_qpos[0], (51, 1))
    columns = [model.joint(name).qposadr[0] for name in names]
    joints = pose[:, columns]
    joints[:, -1] = np.linspace(0, 1, 51)  # an arm rises
    write_clip(Path("wave.npz"), Clip(50, names, pose[:, :3], pose[:, 3:7], joints))
    words = ("task=imitate", *TINY, "log=none", f"robot.mjcf={robot}", "run_dir=run")
    task = train(*words, "iterations=1", "task.clip_file=wave.npz").env.task
    assert task.mjm.nu == 10 and names[-1] == "links_schulter"
    assert task.frames.joints[-1, -1] == pytest.approx(1, abs=1e-5)


def test_a_squat_is_balanced(tmp_path, capsys):
    """Soles stay where they are due, and the mass of each frame is above those that stand."""
    file = str(find_mjcf("humanoid.xml"))
    clips.main([f"folder={tmp_path}", f"humanoid={file}"])
    assert "soles off by 0.00 mm" in capsys.readouterr().out
    loaded = load_as("whole", **robot_keys(mjcf=file))
    m, clip = loaded.mjm, read_clip(tmp_path / "squat.npz")
    joint_angles(clip, m)  # within the limits
    d, lifted = mujoco.MjData(m), 0
    for frame in positions(clip, m):
        d.qpos[:] = frame
        mujoco.mj_kinematics(m, d)
        mujoco.mj_comPos(m, d)
        soles = [m.site(added_name(side)).id for side in ("left", "right")]
        stands = d.site_xpos[soles, 2] < 1e-3
        lifted += not stands.all()
        off = d.subtree_com[1, :2] - d.site_xpos[soles][stands, :2]
        assert np.abs(off[:, 0]).min() < 0.09  # m: half of a sole's length
        assert stands.all() or abs(off[0, 1]) < 0.03
    assert lifted > 60
    low, high = clip.base_pos[:, 2].min(), clip.base_pos[:, 2].max()
    assert high - low == pytest.approx(clips.DEPTH * loaded.shape.size, abs=1e-3)


def test_the_actor_sees_its_heading():
    """Heading is relative to the clip's, and no term is of the place or the velocity."""
    env = make_env("imitate", 4)
    s = env.current_state()
    assert {*env.task.estimated} == {"heading"}
    assert not {"place", "velocity", "height"} & {*env.task.observe(s)}
    turned = env.task.observe(s.with_(heading=s.heading + 0.3))["heading"]
    assert (turned - env.task.observe(s)["heading"])[:, 0].tolist() == pytest.approx([0.3] * 4)


def test_a_robot_begins_in_the_clips_first_pose(tmp_path):
    """To it the guard raises the robot, and it is the model's stance; the given model stays."""
    clip = read_clip(ASSETS / "trot.npz")
    joints = clip.joint_pos + 0.1
    write_clip(file := tmp_path / "high.npz", clip._replace(joint_pos=joints))
    task = make_task("imitate", clip_file=str(file))
    assert safe_controls(task.mjm) == pytest.approx(joints[0], abs=1e-6)
    assert task.evaluation().stance.tolist() == task.stance.tolist()
    assert task.mjm.key_qpos[0, :7] == pytest.approx([0, 0, 0.28, 1, 0, 0, 0], abs=1e-6)
    model = task.mjm
    assert make_task("imitate", mjm=model) is not None
    assert model.key_qpos[0, 7:] == pytest.approx(joints[0], abs=1e-6)
