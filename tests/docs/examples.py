"""The examples of README.md and docs/: what stands in fenced blocks."""

import re
import shlex
from typing import NamedTuple

from tests.worlds import ROOT

FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
LOG = sorted(f"docs/log/{path.name}" for path in (ROOT / "docs" / "log").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS, *LOG)


class Block(NamedTuple):
    """A fenced block."""

    page: str
    language: str
    title: str  # the file that it is, if it is one
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    result = []
    for language, more, body in FENCE.findall(text):
        title = re.search(r'title="([^"]+)"', more)
        result.append(Block(page, language, title[1] if title else "", body))
    return result


def commands(page: str) -> list[str]:
    """The shell commands of a page, one a line, without comments."""
    lines = [
        line
        for block in blocks(page)
        if block.language in ("", "bash", "sh", "shell", "console")
        for line in block.text.splitlines()
    ]
    words = [shlex.split(line, comments=True) for line in lines]
    return [shlex.join(line).replace("'…'", "…") for line in words if line]


def files(page: str) -> dict[str, str]:
    """The blocks of a page that are files: path → text."""
    return {block.title: block.text for block in blocks(page) if block.title}
