"""`make docs`: the site is built without a warning, needs no network, and names every key."""

import html
import os
import re
import sys
from pathlib import Path

import pytest

from gpusim_rl.config import compose
from tests.command_lines import run_process
from tests.shared import shared
from tests.worlds import TASKS

pytestmark = pytest.mark.slow

pytest.importorskip("mkdocs", reason="needs pip install 'gpusim_rl[docs]'")

# What a browser loads by itself: scripts, styles, pictures, frames, fonts.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon)[^>]*"""
    r"""\bhref=["']?(?:https?:)?//|@import\s+url\(["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, as `make docs` builds it."""

    def build(folder: Path) -> None:
        line = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
        done = run_process(*line, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
        said = done.stdout + done.stderr
        assert done.returncode == 0 and "WARNING" not in said, said

    return shared(tmp_path_factory, "site", build)


def test_a_page_loads_nothing_from_the_network(site):
    """No page has a script, style, picture or font of another host, and none needs mermaid."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not LOADS.search(text), page
        assert 'class="mermaid"' not in text, page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_configuration_page_has_every_key(site):
    """Each key that the programs know is on the page, with a meaning."""
    text = (site / "configuration.html").read_text(encoding="utf-8")
    rows = [
        [
            html.unescape(re.sub("<.*?>", "", cell)).strip()
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in re.findall(r"<tr>.*?</tr>", text, re.DOTALL)
    ]
    meaning = {row[0]: row[3] for row in rows if row}
    limits = {row[0]: row[2] for row in rows if row}
    lines = [("config", [f"task={name}"]) for name in TASKS] + [("play", [])]
    for name, words in lines:
        flat = compose.flatten(compose.compose_plain(name, words))
        for key in (key for key, value in flat.items() if not isinstance(value, dict) or not value):
            above = [key] + [key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)]
            below = any(other.startswith(f"{key}.") for other in meaning)
            assert key.endswith(".name") or below or any(k in meaning for k in above), key
    ours = [key for key in meaning if not key.startswith("recipe.")]  # each is said above
    assert not [key for key in ours if not meaning[key]]
    assert limits["algo.gamma"] == "a number from 0 to 1"
    assert limits["task.noise"] == limits["task.fastest"] == "a number of at least 0"
