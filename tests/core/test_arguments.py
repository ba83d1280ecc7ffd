"""Command lines of plain words and KEY=VALUE."""

import pytest

from gpusim_rl.core.arguments import parse, show_usage

KEYS = ("out", "gate.")


def test_words_and_keys():
    """A key may stand anywhere, and a path may have a `=`."""
    line = ["a", "out=x=y", "runs/b=c", "gate.robots=4"]
    assert parse(line, KEYS, "files") == (["a", "runs/b=c"], {"out": "x=y", "gate.robots": "4"})


@pytest.mark.parametrize(
    "line, says",
    [
        ("a b c", "a b c: expected one or two files"),
        ("", "expected one or two files"),
        ("a seed=1", "seed=1: expected one or two files"),
        ("a -x", "-x: expected one or two files"),
        ("a gate=1", "gate=1: expected one or two files"),
        ("a out=1 out=2", "out=2: out= is given twice"),
    ],
)
def test_a_wrong_word_is_named(line, says):
    """In one line."""
    with pytest.raises(ValueError, match=f"^{says}$"):
        parse(line.split(), KEYS, "one or two files", most=2)


@pytest.mark.parametrize("words, code", [([], 2), (["x", "--help"], 0), (["-h"], 0)])
def test_usage(words, code, capsys):
    """It is printed for who asks for it, and for who says nothing."""
    with pytest.raises(SystemExit) as end:
        show_usage(words, "usage")
    assert (end.value.code, capsys.readouterr().out) == (code, "usage\n")
