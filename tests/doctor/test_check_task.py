"""play.py mode=check: mistakes planted in a task are named, and a sound task has none."""

import re
import sys
from pathlib import Path

import pytest

from gpusim_rl.commands import modes, new_task
from gpusim_rl.doctor.check_task import check_task
from tests.command_lines import SMALL
from tests.worlds import refusal

METHOD = "    def measure(self, s):"


def parse(text: str) -> dict[str, tuple[str, str, str]]:
    """A mistake's name → what it replaces, with what, and what is said of it."""
    lines, mistakes = text.strip().splitlines(), {}
    for head, says in zip(lines[::2], lines[1::2], strict=True):
        name, _, change = head.partition(" | ")
        old, _, new = change.partition(" =>")
        if change.startswith("+ "):
            old, new = METHOD, f" \n    {change[2:]}\n\n{METHOD}"
        mistakes[name] = old, new[1:], says.strip()
    return mistakes


# What a user may do wrong in the task that mode=new-task writes: a name, what stands there => what
# stands there instead, or a method after a plus, and below what the finding says.
MISTAKES = parse(r"""
reward of two dimensions | / self.sigma), => / self.sigma)[:, None],
    error: Pointer.reward: the term 'near' has shape \(16, 1\), expected \(16,\)
observation of one dimension | tip=tip, => tip=tip[:, 0],
    error: Pointer.observe: the term 'tip' has shape \(16,\), expected \(16, k\)
start of one joint | qpos=angles, => qpos=angles[:, :1],
    error: Pointer.start: 'qpos' has shape \(16, 1\), expected \(16, 2\)
shapes that do not fit | s.qpos) - s.command) => s.qpos) - s.qpos[:, :1].T)
    error: Pointer.reward: pointer.py:\d+: return \(self.tip.*: RuntimeError: The size
wrong name of a reading | squared(s.qvel) => squared(s.speed)
    error: Pointer.reward: pointer.py:\d+: .*: the task reads 'speed', which no sensor
NaN in a term | torch.exp(-self.error(s) / self.sigma) => (0.4 - self.error(s)).sqrt()
    error: Pointer.reward: the term 'near' is NaN or infinite from step 1 on, in \d+ %
NaN in control | 0.1 * s.action => 0.1 * (s.action - 9).sqrt()
    error: Pointer.control is NaN or infinite from step 1 on, in 100 %
success of each episode | .float().mean().item()) => .float())
    error: Pointer.score: 'success' is a Tensor, expected a number: .item\(\)
success in percent | .float().mean().item()) => .float().mean().item() * 100 + 2)
    error: Pointer.score: 'success' is \d+.*, expected from 0 to 1
no success | return dict(success= => return print(
    error: Pointer.score returns a NoneType, expected a dict by name
a term that is always zero | / self.sigma) => / (1e-3 * self.sigma))
    warning: Pointer.reward: the term 'near' is zero in every step: look at
a term that dwarfs the others | calm: 0.01 => calm: 1000.0
    warning: Pointer.reward: the term 'calm' is .* %.*lower task.weights.calm=1000
the end at once | + def terminated(self, s): return s.time > 0
    error: Pointer.terminated: 100 % of the episodes end at their first step
the end too soon | + def terminated(self, s): return s.time > 9
    warning: Pointer.terminated: within the first second, and 20 steps, 100 % of the
memory that start does not have | + def update(self, s, rng): return dict(goal=s.qpos)
    error: Pointer.update: 'goal' is no entry of the memory \(command\): `start` gives it
an observation in micrometers | tip=tip, => tip=1e6 * tip,
    warning: Pointer.observe: the term 'tip' is large, \S+e\+05
a constant observation | tip=tip, => tip=0 * tip,
    warning: Pointer.observe: the term 'tip' is constant, 0: it tells
actions that are clamped | clip: 1.0 => clip: 0.01
    warning: task.clip=0.01 clamps 98 % of the actions .*raise task.clip
an action without effect | 0.1 * s.action => 0 * s.action
    warning: Pointer.control: no action changes the actuator 'elbow'
a discount of two steps | gamma: 0.9 => gamma: 0.5
    warning: algo.gamma=0.5 counts the next 0.1 s \(2 steps\) of an episode of 4 s
a success that everything has | last < 0.03 => last < 3
    warning: score: zero actions have success 1.00: there is nothing to learn
an episode shorter than a step | episode: 4.0 => episode: 0.02
    error: task.episode=0.02 s: expected 1 to
a goal that has joints | mirrored=("y",) => mirrored=("y",), shown_by="arm"
    warning: the command is shown by the body 'arm', which no film can move: it must lie in
a model that MuJoCo resets | <flag autoreset="disable"/> =>
    warning: pointer.xml: MuJoCo would reset .*autoreset=\"disable\"
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pointer")


@pytest.fixture
def here(folder, monkeypatch, no_own_tasks) -> Path:
    """The working directory of all tests, in which a configuration is composed once."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which has seconds, not the text
    return folder


def write(folder: Path, old: str = "", new: str = "") -> None:
    """The files of a new task, with a mistake in the first that has what it replaces."""
    for path, text in new_task.render("pointer").items():
        if old and old in text:
            text, old = text.replace(old, new, 1), ""
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    assert not old


def findings_here(steps: int) -> list[str]:
    """The findings in the task of the working directory, with sim=native."""
    configs = modes.check_configs(["task=pointer", "sim=native", "threads=1"])
    return [str(x) for x in check_task(configs, lambda line: None, steps=steps, worlds=8)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake, here):
    """The one mistake in a task is the one that is named, by method and entry."""
    *change, says = MISTAKES[mistake]
    write(here, *change)
    lines = findings_here(80 if "success" in mistake else 12)  # an episode has 80
    assert any(re.match(says, line) for line in lines), lines


@pytest.mark.parametrize("mistake", ["reward of two dimensions", "shapes that do not fit"])
def test_a_training_says_the_same_at_its_start(mistake, here):
    """train.py answers a wrong method in the same line."""
    *change, says = MISTAKES[mistake]
    write(here, *change)
    line = refusal("task=pointer", *SMALL, "device=cpu", "log=none")
    assert re.match(says, f"error: {line}"), line
    assert not [*here.glob("runs/**/*.safetensors")]


def test_what_is_certain_fails(here, capsys):
    """The exit code is 1 if no training can succeed, and the last line counts the findings."""
    write(here, *MISTAKES["observation of one dimension"][:2])
    with pytest.raises(SystemExit) as stopped:
        modes.check_task(["task=pointer", "sim=native", "threads=1"])
    assert (stopped.value.code, capsys.readouterr().out.splitlines()[-1]) == (1, "1 finding")


@pytest.mark.parametrize(
    "words, says",
    [
        ("", "mode=check needs task=NAME: choose one of ant, cartpole"),
        ("task=nothing", "unknown task 'nothing': choose one of"),
        ("task=cartpole sim=fast", "unknown sim 'fast': choose one of"),
        ("task=cartpole video=a.mp4", "unknown key 'video'"),
    ],
)
def test_a_wrong_word_is_answered_in_one_line(words, says, capsys):
    """The words are those of a training, and a wrong one is named."""
    with pytest.raises(SystemExit) as stopped:
        modes.check_task(words.split())
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and re.fullmatch("error: .*\n", error) and says in error


def test_a_goal_of_two_numbers_is_shown(here):
    """A body shows a command of x and y: the checker has nothing to say of it."""
    write(here, 'mirrored=("y",)', 'mirrored=("y",), shown_by="goal"')
    model = here / "tasks" / "assets" / "pointer.xml"
    shape = '<geom type="sphere" size="0.01" contype="0" conaffinity="0"/>'
    goal = f'<body name="goal" pos="0 0 0.1">{shape}</body></worldbody>'
    model.write_text(model.read_text().replace("</worldbody>", goal))
    lines = findings_here(12)
    assert not any(line.startswith("error") or "shown" in line for line in lines), lines


def test_the_length_of_episodes_is_said(here):
    """Of the first episodes, where the task ends them: 25 steps of 20 ms."""
    write(here, METHOD, f"    def terminated(self, s):\n        return s.time > 24\n\n{METHOD}")
    config = here / "conf" / "task" / "pointer.yaml"
    config.write_text(config.read_text().replace("dt: 0.05", "dt: 0.02"))
    lines: list[str] = []
    configs = modes.check_configs(["task=pointer", "sim=native", "threads=1"])
    check_task(configs, lines.append, steps=30, worlds=4)
    says = "the task ends 100 % of the first episodes after 0.5 s on average"
    assert [says in line for line in lines if "actions: " in line] == [True, True], lines


def test_a_sound_task_has_no_findings(here):
    """The task of mode=new-task is checked in both simulators without a finding."""
    write(here)
    lines: list[str] = []
    configs = modes.check_configs(["task=pointer", "threads=1"])
    assert [*configs] == ["native", "warp"]
    assert check_task(configs, lines.append, steps=80, worlds=4) == []
    assert any(line.startswith("random actions: success 0.00, return ") for line in lines)
