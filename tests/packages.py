"""Floors of packages and who imports whom: the imports of every module, read from its source."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
# A package imports those of lower floors only: docs/design.md says what each is for.
FLOORS = {
    "core": 1,
    **dict.fromkeys(("sim", "networks", "runs", "viewer"), 2),
    "robots": 3,
    "envs": 4,
    **dict.fromkeys(("algorithms", "evaluation", "tasks", "config"), 5),
    **dict.fromkeys(("build", "deploy", "report"), 6),
    **dict.fromkeys(("training", "play", "adapters", "cluster"), 7),
    **dict.fromkeys(("web", "gate", "serve"), 8),
    **dict.fromkeys(("commands", "tools"), 9),
    "programs": 10,
}
PROGRAMS = "programs"  # train.py, play.py and the modules that `python -m gpusim_rl.NAME` runs


def package(path: Path) -> str:
    """The package of a source file, whose path is relative to the repository.

    `gpusim_rl/sim/native.py` belongs to `sim`, and a file of `tasks/` belongs to `tasks`. All
    modules at the top are programs.
    """
    parts = path.with_suffix("").parts
    if parts[0] == "tasks":
        return "tasks"
    if parts[0] == "gpusim_rl" and len(parts) > 2:
        return parts[1]
    return PROGRAMS


def package_of_name(name: str) -> str | None:
    """The package of an imported dotted name, or None if the name is not the project's."""
    head, *rest = name.split(".")
    if head == "tasks":
        return "tasks"
    if head != "gpusim_rl" or not rest:
        return PROGRAMS if head in ("train", "play") else None
    return rest[0] if rest[0] in FLOORS else PROGRAMS


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

    A constant first argument of `import_module` counts as an import. Of an f-string it is what
    comes before its first value, with a dot at the end.
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
            if isinstance(first, ast.JoinedStr):
                first = first.values[0]
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
    return arrows


def module_imports(root: Path) -> dict[str, set[str]]:
    """The modules of the project that each of them imports, by their dotted names."""
    files = {module_name(file): file for file in source_files(root)}
    return {
        module: {
            name if name in files else name.rpartition(".")[0]
            for name in imported_names((root / file).read_text())
        }
        & files.keys() - {module}
        for module, file in files.items()
    }


def module_name(file: Path) -> str:
    """The dotted name by which a source file is imported."""
    name = ".".join(file.with_suffix("").parts)
    return f"gpusim_rl.{name}" if file.parts[0] == "tasks" else name
