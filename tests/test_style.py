"""The style that ruff does not check: lines of YAML and Markdown, names, and where tests lie."""

import ast
import re
from pathlib import Path

from tests.packages import ROOT

COLUMNS = 100
FOLDERS = ("conf", "docs", "gpusim_rl", "tasks", "tests")
# Where Python's syntax tree keeps names: of variables, parameters, keywords, attributes, functions,
# classes and imports.
NAME_FIELDS = ("id", "arg", "attr", "name", "asname")
UNMIRRORED = {"acceptance", "bench", "cuda", "docs", "strangers"}  # of tests


def files(*endings: str) -> list[Path]:
    """The repository's own files with these endings, relative to its root."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    names = (path.relative_to(ROOT) for path in paths if path.suffix in endings)
    return sorted(name for name in names if "__pycache__" not in name.parts)


def long_lines(file: Path, text: str) -> list[str]:
    """A line `file:number` for each that is too long; tables, links and code of Markdown may be."""
    wrong, in_code = [], False
    for number, line in enumerate(text.split("\n"), 1):
        if file.suffix == ".md":
            fence = line.lstrip().startswith("```")
            in_code ^= fence
            if in_code or fence or line.lstrip().startswith("|") or line.startswith("    "):
                continue
            line = re.sub(r"\]\([^)]*\)|https?://\S+", "", line)
        if len(line) > COLUMNS:
            wrong.append(f"{file}:{number}")
    return wrong


def functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def vague_names(file: Path, text: str) -> list[str]:
    """Where something is called `found`, which says nothing of what it is."""
    return [
        f"{file}:{node.lineno}"
        for node in ast.walk(ast.parse(text))
        if "found" in [getattr(node, field, None) for field in NAME_FIELDS]
    ]


def undocumented_tests(file: Path, text: str) -> list[str]:
    """The tests without a docstring."""
    return [
        f"{file}:{node.lineno}: {node.name}"
        for node in functions(text)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]


def all_of(check, paths: list[Path]) -> list[str]:
    """What a check finds in all these files."""
    return [line for path in paths for line in check(path, (ROOT / path).read_text())]


def test_lines_are_short():
    """No line of YAML or Markdown has more than 100 columns, but tables, links and code."""
    assert all_of(long_lines, files(".yaml", ".md")) == []


def test_nothing_is_called_found():
    """A name says what the thing is: none is `found`, in the tests neither."""
    assert all_of(vague_names, files(".py")) == []


def test_every_test_says_what_it_tests():
    """Each test function has a docstring."""
    tests = [file for file in files(".py") if file.name.startswith("test_")]
    assert len(tests) > 30
    assert all_of(undocumented_tests, tests) == []


def test_tests_mirror_the_packages():
    """Each folder of tests has the name of a package, or holds what is no part of `make test`."""
    folders = {file.parts[1] for file in files(".py") if file.parts[0] == "tests"}
    folders = {name for name in folders if not name.endswith(".py")}
    assert {name for name in folders if not (ROOT / "gpusim_rl" / name).is_dir()} <= UNMIRRORED
