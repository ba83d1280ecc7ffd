"""Links and pictures of the pages in the repository; those of the site are checked by mkdocs."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.examples import FENCE, PAGES, files
from tests.docs.test_site import site  # noqa: F401  # a fixture
from tests.worlds import ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = ("http://", "https://", "mailto:")
LARGEST = 60_000  # bytes of a picture in docs/pictures


def prose(text: str) -> str:
    """A Markdown text without its code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    words = (re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", x)).lower() for x in titles)
    return {re.sub(r"\s", "-", x.strip()) for x in words}


def markdown_files() -> list[Path]:
    """The pages of the repository, the decisions among them."""
    pages = [ROOT / page for page in PAGES]
    return [*pages, ROOT / "docs" / "llms.txt", *sorted((ROOT / "docs/decisions").glob("*.md"))]


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: page.name)
def test_a_link_in_the_repository_leads_somewhere(page):
    """Each link of a page names a file that exists, and a heading of it where it names one."""
    broken = []
    for link in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if link.startswith(OUTSIDE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        known = target.exists() and target.is_relative_to(ROOT)
        if not known or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert not broken


@pytest.mark.slow
def test_the_list_for_language_models_is_on_the_site(site):  # noqa: F811
    """llms.txt lies at the site's root, and each of its links is a page of the site."""
    links = LINK.findall((site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 15 and all((site / link).is_file() for link in links), links


def test_pictures_are_small_and_shown():
    """Each picture in docs/pictures is small, and a page shows it."""
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < LARGEST, picture
        assert f"pictures/{picture.name})" in text, picture


def test_the_files_of_the_balancer_are_those_of_its_page():
    """docs/examples/balancer holds the files as docs/balancer.md prints them, in 120 lines."""
    folder, printed = ROOT / "docs" / "examples" / "balancer", files("docs/balancer.md")
    copies = {
        f"{path.relative_to(folder)}": path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.suffix in (".py", ".xml", ".yaml")
    }
    assert copies == printed
    assert sum(len(text.splitlines()) for text in printed.values()) <= 120
