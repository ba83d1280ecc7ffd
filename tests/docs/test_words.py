"""The words of the pages: whole sentences, and none that is long."""

import re

import pytest

from tests.docs.examples import LOG, PAGES
from tests.worlds import ROOT

LONGEST = 25  # words of a sentence
# What ends a sentence: a full stop, a question mark or a colon before a list, and not one within
# a number or a name such as train.py.
END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(`*_]*[A-Z0-9`])")
WORD = re.compile(r"\w")


def sentences(text: str) -> list[str]:
    """The sentences of a Markdown text: of paragraphs, list entries and cells of tables.

    A semicolon in a cell ends a part of it. Code that stands for itself is left out, and `code`
    within a sentence is one word.
    """
    text = re.sub(r"^(?: {4,})?```.*?^ *```", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}(?! *(?:[-*]|\d+\.|\|) ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)  # a link is its words
    text = re.sub(r"(`+)(?:(?!\1).)+\1", "Code", text, flags=re.DOTALL)
    blocks, lines = [], []
    for line in [*text.splitlines(), ""]:
        line = line.strip()
        starts = re.match(r"(?:[-*]|\d+\.|#+|>) ", line)
        if not line or starts or line.startswith("|"):
            blocks.append(" ".join(lines))
            lines = []
        if line.startswith("|"):
            blocks += re.split(r"[|;]", line.strip("|"))
        elif line:
            lines.append(line[starts.end() :] if starts else line)
    return [part for block in blocks for part in END.split(block.strip()) if part]


def words(sentence: str) -> int:
    """How many words a sentence has: what stands between spaces and has a letter or a digit."""
    return sum(bool(WORD.search(part)) for part in sentence.split())


def test_a_sentence_is_counted():
    """Sentences end at full stops, not in numbers and names, and code is one word."""
    text = "One `a b c` is 1.5 m, see [the page](a.md). Two ends?\n\n- Three: `x`. `y` is four.\n"
    text += "\n```bash\nnot this one\n```\n\n| a cell | *one* more |\n"
    assert sentences(text) == [
        *("One Code is 1.5 m, see the page.", "Two ends?", "Three: Code.", "Code is four."),
        *("a cell", "*one* more"),
    ]
    assert [words(x) for x in ("One code is 1.5 m.", "a = b - c")] == [5, 3]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in LOG])
def test_sentences_are_short(page):
    """No sentence of a page has more than 25 words; the log is a diary for developers."""
    text = (ROOT / page).read_text(encoding="utf-8")
    long = [f"{words(x)}: {x}" for x in sentences(text) if words(x) > LONGEST]
    assert not long, "\n".join(long)
