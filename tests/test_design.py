"""docs/design.md names every module, and what it names is there."""

import ast
import re

from tests.packages import ROOT, source_files

TEXT = (ROOT / "docs" / "design.md").read_text()
PATH = r"[\w/]+\.py"
TOOLS = {"bench", "verify", "fit_actuator"}  # one row for the three


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


def test_the_map_has_every_module():
    """Each module of the packages and each task has one row in the tables of docs/design.md."""
    rows = re.findall(rf"^\| `(?:gpusim_rl/)?({PATH})` \|", TEXT, re.MULTILINE)
    modules = {
        str(file).removeprefix("gpusim_rl/")
        for file in source_files(ROOT)
        if len(file.parts) != 2 or file.stem not in TOOLS
    }
    modules = {name for name in modules if not name.endswith("__init__.py")}
    assert sorted(rows) == sorted(modules)


def test_what_the_design_names_is_there():
    """A path in docs/design.md is a file, and a name behind it is defined in that file."""
    named = re.findall(rf"`({PATH})(?::([\w.]+))?`", TEXT)
    assert len(named) > 120 and sum(bool(name) for _, name in named) > 30
    for path, name in named:
        file = next(p for p in (ROOT / path, ROOT / "gpusim_rl" / path) if p.exists())
        assert not name or name in definitions(ast.parse(file.read_text())), f"{path}:{name}"
