"""The table of nodes names what grew."""

from tests.cuda import counts
from tests.worlds import TASKS


def test_what_grew_is_named():
    """Three nodes more in a part or a new one are allowed; of four a line names the functions."""
    before = {"act": {"a": 5, "b": 9}, "settle": {"c": 1}}
    assert counts.growth(before, {"act": {"a": 8, "b": 9}, "settle": {"new": 4}}) == []
    lines = counts.growth(before, {"act": {"a": 9, "b": 3, "d": 6}, "settle": {"c": 9}})
    assert lines == [
        "act: 18 nodes, at most 17; what grew: d by 6, a by 4",
        "settle: 9 nodes, at most 4; what grew: c by 8",
    ]
    assert counts.growth({}, {"new": {"a": 4}}) == ["new: 4 nodes, at most 3; what grew: a by 4"]


def test_every_task_is_in_the_table():
    """Each has all parts of an iteration."""
    table = counts.read()
    assert [*table] == [*TASKS]
    assert {tuple(x) for x in table.values()} == {
        ("act", "minibatch", "normalizers", "pack_samples", "physics", "settle")
    }
