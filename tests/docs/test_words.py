"""The sentences of the pages are short."""

import re

import pytest

from tests.docs.examples import FENCE, PAGES
from tests.worlds import ROOT

# Between sentences, paragraphs and entries of lists; a cell of a table is a paragraph.
ENDS = r"\n\s*\n|\n *(?:[-*]|\d+\.|#+|>) |(?<=[.!?])[\"')]*\s+(?=[\"'([*_]*[A-Z0-9])"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/log")])
def test_sentences_are_short(page):
    """No sentence of a page has more than 25 words; `code` and a link's address are none."""
    text = FENCE.sub("\n\n", (ROOT / page).read_text(encoding="utf-8"))
    text = re.sub(r"^ {4}(?! *(?:[-*|]|\d+\.) ).*", "", text, flags=re.M)  # code, too
    text = re.sub(r"(`+).+?\1", "Code", re.sub(r"\]\([^)]*\)", "]", text), flags=re.S)
    text = re.sub(r"^ *\|.*", lambda row: re.sub("[|;]", "\n\n", row[0]), text, flags=re.M)
    words = {x: len(re.findall(r"\S*\w\S*", x)) for x in re.split(ENDS, text)}
    assert [sentence for sentence in words if words[sentence] > 25] == []
