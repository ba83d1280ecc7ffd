"""The loops of CONTRIBUTING.md: which tests are fast, which a change reaches, what `same` calls
equal, and which mistakes are planted."""

import ast
from pathlib import Path

import pytest

from tests import changed, fast, mistakes, same
from tests.packages import ROOT

TESTS = [*(ROOT / "tests").rglob("test_*.py")]


def functions() -> set[str]:
    """All test functions of the repository, as tests/seconds.txt names them."""
    return {
        f"{file.relative_to(ROOT)}::{node.name}"
        for file in TESTS
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_seconds_are_of_tests_that_are_there():
    """tests/seconds.txt names no test that is gone; `python -m pytest -p tests.fast --measure` on
    all tests writes it anew."""
    tests = {fast.function(name) for name in fast.listed() if not name.startswith("fixture ")}
    assert tests <= functions() and len(tests) > 100


def test_each_room_has_fast_tests():
    """`make test-fast` runs some test of each folder of tests that has any."""
    slow = {name for name, seconds in fast.listed().items() if seconds > fast.LIMIT}
    rooms = {Path(name).parent for name in functions() - slow}
    assert rooms >= {Path(name).parent for name in functions()} - {
        *(Path("tests", room) for room in ("bench", "cuda", "docs", "strangers"))
    }


@pytest.mark.parametrize(
    ("file", "first", "none"),
    [
        ("gpusim_rl/core/maths.py", "tests/core/test_maths.py", "tests/core/test_rng.py"),
        ("gpusim_rl/serve/registry.py", "tests/serve/test_registry.py", "tests/envs/test_env.py"),
        ("tasks/flight/drone.py", "tests/tasks/test_drone.py", "tests/core/test_maths.py"),
        ("conf/task/drone.yaml", "tests/tasks/test_drone.py", "tests/core/test_maths.py"),
        ("docs/gate.md", "tests/test_design.py", "tests/envs/test_env.py"),
        ("gpusim_rl/web/app.py", "tests/web/test_web.py", "tests/core/test_maths.py"),
    ],
)
def test_what_a_change_reaches(file, first, none):
    """The nearest test comes first, and a test that cannot know the file is left out."""
    places = changed.places({Path(file)})
    assert places[first] == min(places.values()) and none not in places


def test_what_all_tests_share_reaches_all():
    """A change of conftest.py runs every test."""
    names = {f"{file.relative_to(ROOT)}" for file in TESTS}
    assert changed.places({changed.CONFTEST}).keys() == names


def test_a_program_that_a_test_starts_is_reached():
    """train.py, and all that it imports, is reached by a test that only starts it."""
    assert "tests/commands/test_cli.py" in changed.places({Path("gpusim_rl/training/loop.py")})


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


def test_mistakes_are_drawn_from_a_seed(tmp_path):
    """A seed draws the same mistakes, in lines that ran, of each kind; each file still compiles."""
    lines = {file: set(range(1, 5000)) for file in mistakes.source_files(ROOT)[:60]}
    drawn = [mistakes.draw(seed, 40, lines) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {mistake.kind for mistake in drawn[0]} == {*mistakes.KINDS}
    for mistake in drawn[0]:
        source = (ROOT / mistake.file).read_bytes()
        planted = mistake.plant(source)
        assert planted != source
        compile(planted, "planted", "exec")
    few = {Path("gpusim_rl/core/maths.py"): {*range(1, 60)}}
    assert {x.file for x in mistakes.draw(1, 20, few)} == {*few}
    assert max(x.line for x in mistakes.draw(1, 20, few)) < 60
