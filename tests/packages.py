"""Who imports whom: the imports of every module of the project, read from its source."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

COMMANDS = "commands"  # train.py, play.py and the modules that `python -m gpusim_rl.…` runs


def package(path: Path) -> str:
    """The package of a source file, whose path is relative to the repository.

    `gpusim_rl/sim/native.py` belongs to `sim`, `gpusim_rl/build.py` is `build`, and a file of
    `tasks/` belongs to `tasks`. All other modules at the top are commands.
    """
    parts = path.with_suffix("").parts
    if parts[0] == "tasks":
        return "tasks"
    if parts[0] == "gpusim_rl" and len(parts) > 2:
        return parts[1]
    return "build" if parts == ("gpusim_rl", "build") else COMMANDS


def package_of_name(name: str) -> str | None:
    """The package of an imported dotted name, or None if the name is not the project's."""
    head, *rest = name.split(".")
    if head == "tasks":
        return "tasks"
    if head != "gpusim_rl" or not rest:
        return COMMANDS if head in ("train", "play") else None
    return rest[0]


def source_files(root: Path) -> list[Path]:
    """Paths of the project's modules, relative to root, in alphabetical order.

    Those in templates/ are a user's.
    """
    files = [*(root / "gpusim_rl").rglob("*.py"), *(root / "tasks").rglob("*.py")]
    files = [file for file in files if file.parent.name != "templates"]
    files += [root / name for name in ("train.py", "play.py") if (root / name).exists()]
    return sorted(file.relative_to(root) for file in files)


def imported_names(source: str) -> set[str]:
    """Dotted names of all that a module imports, also inside functions; relative ones as `.name`.

    A constant first argument of `import_module` counts as an import.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if name == "import_module" and isinstance(first, ast.Constant):
                names.add(str(first.value))
    return names


def module_counts(root: Path) -> dict[str, int]:
    """The number of modules in each package, without empty files."""
    files = [file for file in source_files(root) if (root / file).read_text().strip()]
    return dict(Counter(map(package, files)))


def package_imports(root: Path) -> dict[str, set[str]]:
    """The other packages that each package imports."""
    arrows: dict[str, set[str]] = {}
    for file in source_files(root):
        me = package(file)
        others = {package_of_name(name) for name in imported_names((root / file).read_text())}
        arrows.setdefault(me, set()).update(o for o in others if o is not None and o != me)
    return {me: {o if o in arrows else COMMANDS for o in os} - {me} for me, os in arrows.items()}


def levels(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The level of each package: 0 without imports, else one above its highest import.

    Raises graphlib.CycleError if packages import one another in a circle.
    """
    level: dict[str, int] = {}
    for name in TopologicalSorter(arrows).static_order():
        level[name] = max((level[other] + 1 for other in arrows.get(name, ())), default=0)
    return level
