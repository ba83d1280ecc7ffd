"""What docs/design.md and CONTRIBUTING.md name is there; each decision is named."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from tests.packages import FLOORS, ROOT

TEXT = (ROOT / "docs" / "design.md").read_text()
MODELS = (ROOT / "CONTRIBUTING.md").read_text()
PATH = r"[\w/]+\.py"
DECISIONS = {path.name for path in (ROOT / "docs" / "decisions").iterdir()}


def definitions(tree: ast.Module) -> set[str]:
    """Names at the top of a module, and methods as `Class.method`."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
    return names


def decisions_named(files: Iterable[Path], before: str = "") -> set[str]:
    """The pages of docs/decisions that files name, behind the pattern `before` in a line."""
    lists = [re.findall(rf"{before}\bdecisions/([\w.-]+\w)", path.read_text()) for path in files]
    return {name for names in lists for name in names}


def test_the_map_has_every_room():
    """docs/design.md has a row with the floor of each room."""
    rows = re.findall(r"^\| (\d+) \| `?(\w+)`? \|", TEXT, re.MULTILINE)
    assert {room: int(floor) for floor, room in rows} == FLOORS


def test_what_the_design_names_is_there():
    """A path in docs/design.md or CONTRIBUTING.md is a file, and defines the name behind it."""
    named = re.findall(rf"(?<![\w/>])({PATH})(?::([\w.]*\w))?", TEXT + MODELS)
    assert len(named) > 70 and sum(bool(name) for _, name in named) > 25
    for path, name in named:
        file = next(p for p in (ROOT / path, ROOT / "gpusim_rl" / path) if p.exists())
        assert not name or name in definitions(ast.parse(file.read_text())), f"{path}:{name}"


def test_every_decision_is_named():
    """A comment of the code or a page names each page of docs/decisions, and the code no other."""
    code = [ROOT / "train.py", ROOT / "play.py", ROOT / "pyproject.toml"]
    for folder in ("gpusim_rl", "tasks", "conf", "benchmarks"):
        code += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yaml")]
    in_code = decisions_named(code, before="#.*")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert in_code <= DECISIONS <= in_code | decisions_named(pages)
