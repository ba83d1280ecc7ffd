"""play.py mode=check: mistakes planted in a task are named, and a sound task has none."""

import re
from pathlib import Path

import pytest

from gpusim_rl.commands import new_task, play_mode
from gpusim_rl.doctor.check_task import check_task
from tests.command_lines import SMALL, command, refused

# Mistake → (file, what stands there, what stands there instead, what the finding says), in the
# task that mode=new-task writes.
PY, YAML, XML = "tasks/pointer.py", "conf/task/pointer.yaml", "tasks/assets/pointer.xml"
NEAR = "near=torch.exp(-self.error(s) / self.sigma)"
MEASURE = "    def measure(self, s):"


def method(line: str, result: str) -> tuple[str, str, str]:
    """What adds a method to the task."""
    return PY, MEASURE, f"    def {line}:\n        return {result}\n\n{MEASURE}"


MISTAKES = {
    "reward of two dimensions": (
        *(PY, NEAR, f"{NEAR}[:, None]"),
        r"error: Pointer.reward: the term 'near' has shape \(16, 1\), expected \(16,\)",
    ),
    "observation of one dimension": (
        *(PY, "tip=tip,", "tip=tip[:, 0],"),
        r"error: Pointer.observe: the term 'tip' has shape \(16,\), expected \(16, k\)",
    ),
    "start of one joint": (
        *(PY, "qpos=angles, qvel=0 * angles", "qpos=angles[:, :1], qvel=0 * angles"),
        r"error: Pointer.start: 'qpos' has shape \(16, 1\), expected \(16, 2\)",
    ),
    "shapes that do not fit": (
        *(PY, "(self.tip(s.qpos) - s.command)", "(self.tip(s.qpos) - s.qpos[:, :1].T)"),
        r"error: Pointer.reward: pointer.py:\d+: return \(self.tip.*: RuntimeError: The size",
    ),
    "wrong name of a reading": (
        *(PY, "squared(s.qvel)", "squared(s.speed)"),
        r"error: Pointer.reward: pointer.py:\d+: .*: the task reads 'speed', which no sensor",
    ),
    "NaN in a term": (
        *(PY, NEAR, "near=(0.4 - self.error(s)).sqrt()"),
        r"error: Pointer.reward: the term 'near' is NaN or infinite from step 1 on, in \d+ %",
    ),
    "NaN in control": (
        *(PY, "0.1 * s.action", "0.1 * (s.action - 9).sqrt()"),
        r"error: Pointer.control is NaN or infinite from step 1 on, in 100 %",
    ),
    "success of each episode": (
        *(PY, ".float().mean().item())", ".float())"),
        r"error: Pointer.score: 'success' is a Tensor, expected a number: .item\(\)",
    ),
    "success in percent": (
        *(PY, ".float().mean().item())", ".float().mean().item() * 100 + 2)"),
        r"error: Pointer.score: 'success' is \d+.*, expected from 0 to 1",
    ),
    "no success": (
        *(PY, "return dict(success=", "return print("),
        r"error: Pointer.score returns a NoneType, expected a dict by name",
    ),
    "a term that is always zero": (
        *(PY, NEAR, "near=torch.exp(-self.error(s) / (1e-3 * self.sigma))"),
        r"warning: Pointer.reward: the term 'near' is zero in every step: look at",
    ),
    "a term that dwarfs the others": (
        *(YAML, "calm: 0.01", "calm: 1000.0"),
        r"warning: Pointer.reward: the term 'calm' is .* %.*lower task.weights.calm=1000",
    ),
    "the end at once": (
        *method("terminated(self, s)", "s.time > 0"),
        r"error: Pointer.terminated: 100 % of the episodes end at their first step",
    ),
    "the end too soon": (
        *method("terminated(self, s)", "s.time > 9"),
        r"warning: Pointer.terminated: within the first second, 100 % of the",
    ),
    "memory that start does not have": (
        *method("update(self, s, rng)", "dict(goal=s.qpos)"),
        r"error: Pointer.update: 'goal' is no entry of the memory \(command\): `start` gives it",
    ),
    "an observation in micrometers": (
        *(PY, "tip=tip,", "tip=1e6 * tip,"),
        r"warning: Pointer.observe: the term 'tip' is large, \S+e\+05",
    ),
    "a constant observation": (
        *(PY, "tip=tip,", "tip=0 * tip,"),
        r"warning: Pointer.observe: the term 'tip' is constant, 0: it tells",
    ),
    "actions that are clamped": (
        *(YAML, "clip: 1.0", "clip: 0.01"),
        r"warning: task.clip=0.01 clamps 98 % of the actions .*raise task.clip",
    ),
    "an action without effect": (
        *(PY, "s.joint_pos + 0.1 * s.action ", "s.joint_pos + 0 * s.action "),
        r"warning: Pointer.control: no action changes the actuator 'elbow'",
    ),
    "a discount of two steps": (
        *(YAML, "gamma: 0.9 ", "gamma: 0.5 "),
        r"warning: algo.gamma=0.5 counts the next 0.1 s \(2 steps\) of an episode of 4 s",
    ),
    "a success that everything has": (
        *(PY, "last < 0.03", "last < 3"),
        r"warning: score: zero actions have success 1.00: there is nothing to learn",
    ),
    "an episode shorter than a step": (
        *(YAML, "episode: 4.0", "episode: 0.02"),
        r"error: task.episode=0.02 s: expected 1 to",
    ),
    "a goal that has joints": (
        *(PY, 'mirrored=("y",)', 'mirrored=("y",), shown_by="arm"'),
        r"warning: the command is shown by the body 'arm', which no film can move: it must lie in",
    ),
    "a model that MuJoCo resets": (
        *(XML, '<flag autoreset="disable"/>', ""),
        r"warning: pointer.xml: MuJoCo would reset .*autoreset=\"disable\"",
    ),
}


def write(folder: Path, file: str = PY, old: str = "", new: str = "") -> None:
    """The files of a new task, with a mistake."""
    for path, text in new_task.render("pointer").items():
        if path == file:
            assert old in text
            text = text.replace(old, new, 1)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def findings_here(steps: int) -> list[str]:
    """The findings in the task of the working directory, with sim=native."""
    configs = play_mode.check_configs(["task=pointer", "sim=native", "threads=1"])
    return [str(x) for x in check_task(configs, lambda line: None, steps=steps, worlds=8)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake, tmp_path, monkeypatch, no_own_tasks):
    """The one mistake in a task is the one that is named, by method and entry."""
    *change, says = MISTAKES[mistake]
    write(tmp_path, *change)
    monkeypatch.chdir(tmp_path)
    lines = findings_here(80 if "success" in mistake else 12)  # an episode has 80
    assert any(re.match(says, line) for line in lines), lines


@pytest.mark.parametrize("mistake", ["reward of two dimensions", "shapes that do not fit"])
def test_a_training_says_the_same_at_its_start(mistake, tmp_path):
    """train.py answers a wrong method in the same line, and leaves no traceback."""
    *change, says = MISTAKES[mistake]
    write(tmp_path, *change)
    done = command("train.py", "task=pointer", *SMALL, "device=cpu", "log=none", cwd=tmp_path)
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and re.match(says, line), done.stderr
    assert "Traceback" not in done.stderr and not [*tmp_path.glob("runs/**/*.safetensors")]


def test_what_is_certain_fails(tmp_path):
    """The exit code is 1 if no training can succeed, and the last line counts the findings."""
    write(tmp_path, *MISTAKES["observation of one dimension"][:3])
    done = command("play.py", "mode=check", "task=pointer", "sim=native", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "1 finding")


@pytest.mark.parametrize(
    "words, says",
    [
        ("mode=check", "mode=check needs task=NAME: choose one of ant, cartpole"),
        ("mode=check task=nothing", "unknown task 'nothing': choose one of"),
        ("mode=check task=cartpole sim=fast", "unknown sim 'fast': choose one of"),
        ("mode=check task=cartpole video=a.mp4", "unknown key 'video'"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(words, says, tmp_path):
    """The words are those of a training, and a wrong one is named."""
    (tmp_path / "here").mkdir()
    assert says in refused("play.py", *words.split(), cwd=tmp_path / "here")


def test_a_goal_of_two_numbers_is_shown(tmp_path, monkeypatch, no_own_tasks):
    """A body shows a command of x and y: the checker has nothing to say of it."""
    write(tmp_path, PY, 'mirrored=("y",)', 'mirrored=("y",), shown_by="goal"')
    model = tmp_path / XML
    shape = '<geom type="sphere" size="0.01" contype="0" conaffinity="0"/>'
    goal = f'<body name="goal" pos="0 0 0.1">{shape}</body></worldbody>'
    model.write_text(model.read_text().replace("</worldbody>", goal))
    monkeypatch.chdir(tmp_path)
    lines = findings_here(12)
    assert not any(line.startswith("error") or "shown" in line for line in lines), lines


def test_the_length_of_episodes_is_said(tmp_path, monkeypatch, no_own_tasks):
    """25 steps of 20 ms are within the first second, and their mean length is said."""
    write(tmp_path, *method("terminated(self, s)", "s.time > 24"))
    yaml = tmp_path / YAML
    yaml.write_text(yaml.read_text().replace("dt: 0.05", "dt: 0.02"))
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    configs = play_mode.check_configs(["task=pointer", "sim=native", "threads=1"])
    found = check_task(configs, lines.append, steps=30, worlds=4)
    assert any(x.text.startswith("Pointer.terminated: within the first second") for x in found)
    says = "the task ends 100 % of the first episodes after 0.5 s on average"
    assert [says in line for line in lines if "actions: " in line] == [True, True], lines


def test_a_sound_task_has_no_findings(tmp_path, monkeypatch, no_own_tasks):
    """The task of mode=new-task is checked in both simulators without a finding."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    configs = play_mode.check_configs(["task=pointer", "threads=1"])
    assert [*configs] == ["native", "warp"]
    assert check_task(configs, lines.append, steps=80, worlds=4) == []
    assert any(line.startswith("random actions: success 0.00, return ") for line in lines)
