"""The loops of CONTRIBUTING.md: which tests are fast, which a change reaches, and `same`."""

import ast
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import same
from tests import changed, fast
from tests.command_lines import run_python
from tests.packages import ROOT

TESTS = [*(ROOT / "tests").rglob("test_*.py")]


def functions() -> dict[str, str]:
    """Each test function, as tests/seconds.txt names it → its source, with the module's marks."""
    answer = {}
    for file in TESTS:
        tree = ast.parse(file.read_text())
        marks = [x for x in tree.body if isinstance(x, ast.Assign) and "pytestmark" in ast.dump(x)]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = "\n".join(map(ast.unparse, [*marks, *node.decorator_list, node.args]))
                answer[f"{file.relative_to(ROOT)}::{node.name}"] = text
    return answer


# -- fast ------------------------------------------------------------------------------------------


def test_seconds_are_of_tests_that_are_there():
    """tests/seconds.txt names no test that is gone; `-p tests.fast --measure` drops it."""
    known = [name for name in fast.known_seconds() if not name.startswith("fixture ")]
    assert len(known) > 100
    assert [name for name in known if not fast.is_there(name)] == []


def test_each_room_has_fast_tests():
    """`make test-fast` runs some test of each folder that has the name of a room."""
    known, tests = fast.known_seconds(), functions()
    fixtures = [name.removeprefix("fixture ") for name in known if name.startswith("fixture ")]
    quick = {
        name
        for name, text in tests.items()
        if known.get(name, 0.0) <= fast.LIMIT
        and ".slow" not in text
        and not any(fixture in text.split("\n")[-1] for fixture in fixtures)
    }
    rooms = {Path(name).parts[1] for name in tests if name.count("/") > 1}
    rooms = {room for room in rooms if (ROOT / "gpusim_rl" / room).is_dir()}
    assert rooms <= {Path(name).parts[1] for name in quick}


def test_which_tests_are_fast(monkeypatch):
    """What is not known is fast, of a function as much as fits; what waits or is slow is not."""
    known = {"a": 0.2, "b": 0.5, "c[long]": 3.0, "fixture run": 9.0}
    monkeypatch.setattr(fast, "known_seconds", lambda: known)

    def item(nodeid: str, *fixtures: str, slow: object = None) -> SimpleNamespace:
        return SimpleNamespace(
            nodeid=nodeid, fixturenames=fixtures, get_closest_marker=lambda _: slow
        )

    items = [item("a[1]"), item("a[2]"), item("b"), item("c[long]"), item("c[short]")]
    items += [item("new"), item("waits", "tmp_path", "run"), item("slow", slow="marked")]
    assert fast.fast_tests(items) == {"a[1]", "c[short]", "new"}  # pyright: ignore


def test_what_is_written_of_seconds():
    """A test that takes long, the others of its function together, and a long fixture."""
    here = "tests/test_loops.py::test_what_is_written_of_seconds"
    known = {"tests/test_loops.py::test_gone": 1.0, here: 2.0}
    tests = {"f[a]": 0.2, "f[b]": 0.2, "f[c]": 2.0, "g": 0.1, "h": 0.7}
    rows = fast.seconds_file(known, tests, {"fixture x": 1.0, "fixture y": 0.1})
    assert rows == {here: 2.0, "f": 0.2, "f[c]": 2.0, "h": 0.7, "fixture x": 1.0}
    assert "h" not in fast.seconds_file(rows, {"h": 0.1}, {})


# -- changed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "first", "none"),
    [
        ("gpusim_rl/core/maths.py", "tests/core/test_maths.py", "tests/core/test_rng.py"),
        ("gpusim_rl/serve/registry.py", "tests/serve/test_registry.py", "tests/core/test_rng.py"),
        (
            "gpusim_rl/deploy/onboard/checks.py",
            "tests/deploy/test_log.py",
            "tests/core/test_rng.py",
        ),
        ("tasks/flight/drone.py", "tests/tasks/test_drone.py", "tests/core/test_rng.py"),
        ("conf/task/drone.yaml", "tests/tasks/test_drone.py", "tests/core/test_rng.py"),
        ("docs/gate.md", "tests/test_design.py", "tests/envs/test_env.py"),
        ("tests/serve/conftest.py", "tests/serve/test_server.py", "tests/core/test_rng.py"),
    ],
)
def test_what_a_change_reaches(file, first, none):
    """The nearest test comes first, and a test that cannot know the file is left out."""
    distances = changed.distances({Path(file)})
    assert distances[first] == min(distances.values()) and none not in distances


@pytest.mark.parametrize("file", [*sorted(changed.SHARED), Path("tests/conftest.py")], ids=str)
def test_what_all_tests_share_reaches_all(file):
    """A change of conftest.py, or of what every import runs, asks every test."""
    assert changed.distances({file}).keys() == {f"{test.relative_to(ROOT)}" for test in TESTS}


@pytest.mark.parametrize("test", ["commands/test_cli", "deploy/test_export", "serve/test_server"])
def test_what_a_test_starts_is_reached(test):
    """By who starts it, or asks for a fixture that does."""
    assert f"tests/{test}.py" in changed.distances({Path("gpusim_rl/training/loop.py")})


def test_a_module_that_is_gone_reaches_who_imports_it(tmp_path, monkeypatch):
    """Also where its file is no more."""
    gone, test = Path("gpusim_rl/core/gone.py"), Path("tests/core/test_rng.py")
    (tmp_path / test).parent.mkdir(parents=True)
    (tmp_path / test).write_text("from gpusim_rl.core.gone import nothing")
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    assert changed.Graph(frozenset({gone})).steps(gone)[test] == 1


@pytest.mark.slow
def test_distances_are_the_same_in_every_process():
    """Workers of xdist need the tests in the same order, and have other hashes of strings."""
    program = "from tests.changed import *; print(sorted(distances({Path('play.py')}).items()))"
    first, second = (run_python(program, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.returncode == 0 and first.stdout == second.stdout, first.stderr


def test_which_files_have_changed(tmp_path):
    """Both names of a moved file, new and removed ones; no commit is one line."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    for name in ("moved.py", "removed.py", "same.py"):
        (tmp_path / name).write_text(f"{name}\n" * 20)
    (tmp_path / ".gitignore").write_text("*.log")
    git("add", ".")
    git("commit", "-qm", "first")
    git("mv", "moved.py", "now ä.py")
    (tmp_path / "removed.py").unlink()
    (tmp_path / "new.py").touch()
    (tmp_path / "a.log").touch()
    names = {"moved.py", "now ä.py", "removed.py", "new.py"}
    assert changed.changed_files("HEAD", tmp_path) == {Path(name) for name in names}
    with pytest.raises(pytest.UsageError, match=r"^--since=none: fatal: .*none"):
        changed.changed_files("none", tmp_path)


def test_when_a_test_runs():
    """Own name, fast, own room, others, slow; the groups are dealt to workers in turn."""
    own, near, far = (changed.Distance(*x, 1) for x in ((0, 0), (1, 0), (1, 1)))
    turns = [(own, True), (own, False), (near, True), (far, True), (near, False), (far, False)]
    assert [changed.turn(*x, slow=False) for x in turns] == [0, 0, 1, 1, 2, 3]
    assert changed.turn(own, fast=False, slow=True) == 4
    groups = [[1], [2, 2], [3, 3, 3], [4] * 4]
    assert changed.dealt(groups, 1) == [1, 2, 2, 3, 3, 3, 4, 4, 4, 4]  # pyright: ignore
    assert changed.dealt(groups, 2) == [1, 3, 3, 3, 4, 2, 2, 4, 4, 4]  # pyright: ignore


# -- same ------------------------------------------------------------------------------------------


def test_what_same_calls_equal():
    """The same numbers are equal, by another name too; others, more and fewer are not."""
    mine = {"state w": "1", "state new": "2", "metric a": "3", "metric b": "4"}
    assert same.differences(mine, dict(mine)) == ([], [])
    renamed = {"state w": "1", "state old": "2", "metric a": "3", "metric b": "4"}
    assert same.differences(mine, renamed) == ([], ["state old is now state new"])
    theirs = {"state w": "9", "metric new": "2", "metric a": "3", "metric b": "4"}
    wrong, _ = same.differences(mine, theirs)
    assert wrong == ["state w differs", "state new is only here", "metric new is only there"]
    assert same.digest([[1.0, 2.0]]) != same.digest([[2.0, 1.0]]) != same.digest([[2.0], [1.0]])


def test_a_case_that_fails_is_no_equal_case(tmp_path, monkeypatch):
    """Its only hash is the error, which is a difference even where both have it."""
    monkeypatch.setitem(same.CASES, "broken", ("task=none",))
    same.hash_cases(tmp_path / "hashes.json", ["broken"])
    (name,) = json.loads((tmp_path / "hashes.json").read_text())["broken"]
    assert name.startswith("error: ") and "unknown task 'none'" in name


def test_a_commit_that_is_none():
    """It is one line."""
    with pytest.raises(SystemExit, match=r"^error: WITH=none: .* has no commit 'none'$"):
        same.compare("none", [])
