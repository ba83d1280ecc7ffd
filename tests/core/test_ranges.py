"""Every number of the configuration has a range, and the range is kept."""

import math

import pytest

from gpusim_rl.config import check_words, compose
from gpusim_rl.config.sections import Config, table
from gpusim_rl.core import ranges
from gpusim_rl.core.ranges import GATE, PLAY, SERVE, Range
from gpusim_rl.envs.load_task import load_task
from tests.worlds import TASKS

TABLE = table()
# Numbers with a check of their own: they depend on other keys, or on the model.
OTHERS = ("task.randomise", "curriculum", "robot.stance", "robot.mirror", "gpu", "command")
OTHERS += ("recipe",)  # its numbers are those of other keys


def is_number(value: object) -> bool:
    """Whether a value is a number, or a list of numbers."""
    values = value if isinstance(value, list) and value else [value]
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)


@pytest.mark.parametrize(
    "name, task",
    [*(("config", task) for task in TASKS), ("play", "quadruped")],  # tasks add the same to it
)
def test_each_number_has_a_range(name, task):
    """Of each program, and of each task what it adds to training's."""
    tables = {"config": TABLE, "play": PLAY | TABLE | GATE | SERVE}
    own = load_task(task).ranges
    table = tables[name] | {f"task.{key}": entry for key, entry in own.items()}
    words = [] if name == "play" else [f"task={task}"]
    numbers = {
        key
        for key, value in compose.flatten(compose.build_base(name, tuple(words))).items()
        if is_number(value) and not key.startswith(OTHERS)
    }
    assert len(numbers) > (2 if name == "play" else 30)
    assert not [key for key in numbers if not ranges.allowed(key, table)]


@pytest.mark.parametrize("task", TASKS)
def test_the_table_names_keys_that_exist(task):
    """A misspelt key of the table would check nothing."""
    known = compose.flatten(compose.build_base("config", (f"task={task}",)))
    rough = compose.flatten(compose.build_base("config", ("terrain=rough",)))
    known |= {key: value for key, value in rough.items() if key.startswith("terrain.")}
    for key in [*TABLE, *(f"task.{name}" for name in load_task(task).ranges)]:
        start = key.removesuffix("*")
        if start.removesuffix(".") in check_words.OPEN:  # empty unless a user fills it
            continue
        assert any(k == key or (start != key and k.startswith(start)) for k in known), key


@pytest.mark.parametrize("key", [key for key in TABLE if "*" not in key])
def test_what_lies_outside_is_refused_by_name(key):
    """Each end of each range, no number, and what is not finite."""
    entry, section, name = TABLE[key], *key.rpartition(".")[::2]
    wrong: list[object] = [True, "x", {}, math.nan, math.inf]
    wrong += [] if entry.null else [None]
    wrong += [[entry.high or 1]] if entry.single else []
    if entry.low is not None:
        wrong.append(entry.low if entry.above else entry.low - 1)
    if entry.high is not None:
        wrong.append(entry.high if entry.below else entry.high + 1)
    wrong += [entry.low + 0.5] if entry.whole and entry.low is not None else []
    for value in wrong:
        with pytest.raises(ValueError) as error:
            ranges.check({name: value}, section, TABLE)
        assert str(error.value) == f"{key}={value!r}: expected {entry.words()}"
    if not entry.above and not entry.single:
        ranges.check({name: [entry.low, entry.low]}, section, TABLE)


@pytest.mark.parametrize(
    "entry, words",
    [
        (Range(), "a number"),
        (Range(high=3), "a number up to 3"),
        (Range(0), "a number of at least 0"),
        (Range(0, above=True), "a number above 0"),
        (Range(0, 1, above=True, null=True), "a number above 0, up to 1, or null"),
        (Range(0, 1, below=True), "a number from 0 to below 1"),
        (Range(1, 9, whole=True), "a whole number from 1 to 9"),
    ],
)
def test_a_range_says_what_it_allows(entry, words):
    """As a message and the documentation have it."""
    assert entry.words() == words


def test_a_section_of_names_must_be_one():
    """`task.noise=3` has no readings."""
    with pytest.raises(ValueError, match=r"task\.noise=3: expected keys with values"):
        ranges.check({"task": {"noise": 3}})


def test_a_wrong_number_is_found_in_a_whole_configuration():
    """And in the part that a task's class checks."""
    cfg = compose.compose_plain("config", ["task=quadruped"])
    cfg["algo"]["hidden"] = [64, 0]
    with pytest.raises(ValueError, match=r"algo\.hidden=\[64, 0\]: expected whole numbers from 1"):
        Config.of(cfg)
