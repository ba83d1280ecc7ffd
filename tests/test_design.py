"""docs/design.md has every room, and what it and CONTRIBUTING.md name is there; each decision is
named by the code."""

import ast
import re

from tests.packages import FLOORS, ROOT

TEXT = (ROOT / "docs" / "design.md").read_text()
MODELS = (ROOT / "CONTRIBUTING.md").read_text()
PATH = r"[\w/]+\.py"
DECISIONS = {path.name: path.read_text() for path in (ROOT / "docs" / "decisions").iterdir()}
PARTS = ("Context", "Decision", "Consequence")  # of a decision, in this order


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


def named_in_code() -> set[str]:
    """The files of docs/decisions that comments of code and configuration name."""
    folders = ("gpusim_rl", "tasks", "conf", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [ROOT / "train.py", ROOT / "play.py"]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".yaml")]
    lists = [re.findall(r"#.*\bdocs/decisions/([\w.-]+\w)", text) for text in texts]
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


def test_the_code_names_every_decision():
    """Each page of docs/decisions is named by a comment of the code, and each such name exists."""
    assert named_in_code() == DECISIONS.keys()


def test_a_decision_has_three_parts():
    """A page has a number of its own, and context, decision and consequence."""
    numbers = [name[:4] for name in DECISIONS]
    assert len({*numbers}) == len(numbers)
    for name, text in DECISIONS.items():
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name), name
        assert text.startswith(f"# {int(name[:4])}. "), name
        assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == PARTS, name
