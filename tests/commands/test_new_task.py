"""play.py mode=new-task: what it writes, that it works in a checkout, and what it refuses."""

import ast
import sys
from pathlib import Path

import pytest
import yaml

from gpusim_rl.commands import new_task
from tests.command_lines import environment, refused, run_process, succeed
from tests.docs.examples import files
from tests.test_wheel import copy_source, copy_tree
from tests.worlds import ROOT

WRITTEN = ("tasks/{}.py", "conf/task/{}.yaml", "tasks/assets/{}.xml", "tests/test_{}.py")


NO_NAMES = ("my-arm", "2x", "class", "none", "on", "no", "_x", "../x", "a b", "ü", True, 5, "x\n")


def contents(folder: Path) -> dict[Path, str]:
    """Every file of a directory and its text, and the directories."""
    return {path: path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


def test_the_page_prints_what_is_written():
    """docs/task.md has the files of templates/, to the last character, and all of them are used."""
    written = new_task.render("pointer")
    test = written.pop("tests/test_pointer.py")
    assert files("docs/task.md") == written
    assert test == (ROOT / "gpusim_rl" / "commands" / "templates" / "test_pointer.py").read_text()
    there = {path.name for path in (ROOT / "gpusim_rl" / "commands" / "templates").glob("*.*")}
    assert there == new_task.PLACES.keys()


@pytest.mark.parametrize(
    "name, kind", [("my_arm", "MyArm"), ("endpointer", "Endpointer"), ("x2", "X2"), ("Arm", "Arm")]
)
def test_every_name_is_replaced(name, kind):
    """Paths, class, model and configuration have the new name, and nothing is called Pointer."""
    written = new_task.render(name)
    assert tuple(written) == tuple(path.format(name) for path in WRITTEN)
    task, conf, model, test = written.values()
    tree = ast.parse(task)
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [kind]
    about = yaml.safe_load(conf)["task"]
    assert (about["name"], about["mjcf"]) == (name, f"{name}.xml")
    assert f'model="{name}"' in model and f'"task={name}"' in test
    rest = "".join(written.values()).replace(name, "").replace(kind, "")
    assert "pointer" not in rest.lower()


@pytest.mark.slow
def test_a_task_in_a_checkout(tmp_path):
    """In a copy of the repository the written test passes: it trains and exports."""
    root = tmp_path / "checkout"
    root.mkdir()
    copy_source(root)
    for name in ("train.py", "play.py", "tests"):
        copy_tree(name, root)
    env = environment(tmp_path / "home") | {"PYTHONPATH": str(root)}

    def run(*words: str) -> str:
        done = run_process(sys.executable, *words, cwd=root, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run("play.py", "mode=new-task", "name=my_arm").splitlines()
    assert said[:4] == [f"wrote {path.format('my_arm')}" for path in WRITTEN]
    assert said[4:] == [
        "train it: python train.py task=my_arm",
        "test it: python -m pytest tests/test_my_arm.py",
    ]
    said = run("-m", "pytest", "-p", "no:cacheprovider", "tests/test_my_arm.py")
    assert "4 passed" in said and "skipped" not in said


@pytest.mark.parametrize(
    "name, says",
    [
        (None, "mode=new-task needs name=NAME, for example name=my_arm"),
        ("", "mode=new-task needs name=NAME, for example name=my_arm"),
        *((name, f"name={name}: expected a name such as my_arm") for name in NO_NAMES),
        ("quadruped", "tasks/locomotion/quadruped.py exists already: choose another name"),
        ("cartpole", "tasks/classic/cartpole.py exists already: choose another name"),
        ("classic", "tasks/classic exists already: choose another name"),
        ("command", "name=command: its class would hide Command: choose another name"),
        ("task", "name=task: its class would hide Task: choose another name"),
    ],
)
def test_a_name_that_cannot_be(name, says):
    """What is no name, or is taken, is told with the reason."""
    with pytest.raises(ValueError) as error:
        new_task.check_name(name)
    assert says in str(error.value)


def test_the_command_twice(here):
    """Without torch the files are written; a second time the command names one and changes none."""
    line, block = ("play.py", "mode=new-task", "name=my_arm"), "torch mujoco warp"
    said = succeed(*line, cwd=here, block=block)
    assert said.count("wrote ") == 4
    written = contents(here)
    assert "tasks/my_arm.py exists already" in refused(*line, cwd=here, block=block)
    assert contents(here) == written


@pytest.mark.parametrize("place", WRITTEN)
def test_nothing_is_overwritten(here, place):
    """If one of the files exists, it stays as it is and no other is written."""
    file = here / place.format("my_arm")
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    before = contents(here)
    says = f"^{place.format('my_arm')} exists already: nothing was written$"
    with pytest.raises(OSError, match=says):
        new_task.write_new(new_task.render("my_arm"), here)
    assert contents(here) == before


def test_nothing_is_half_written(here):
    """A directory that cannot be written is named, and files that were written before are gone."""
    (here / "conf").write_text("a file")
    before = contents(here)
    with pytest.raises(OSError, match=r"^conf/task/my_arm\.yaml cannot be written: .*directory$"):
        new_task.write_new(new_task.render("my_arm"), here)
    assert contents(here) == before
    with pytest.raises(OSError, match=r"^tasks/my_arm\.py cannot be written: "):
        new_task.write_new(new_task.render("my_arm"), Path("/proc"))
