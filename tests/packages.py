"""Floors of packages and who imports whom: the imports of every module, read from its source."""

import ast
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
# A package imports those of lower floors only: docs/design.md says what each is for.
FLOORS = {
    "core": 1,
    **dict.fromkeys(("sim", "runs", "fuse"), 2),
    **dict.fromkeys(("networks", "robots"), 3),
    "envs": 4,
    **dict.fromkeys(("algorithms", "evaluation", "tasks", "config", "viewer"), 5),
    **dict.fromkeys(("assembly", "deploy", "report"), 6),
    **dict.fromkeys(("training", "play", "doctor", "adapters", "cluster", "gate", "serve"), 7),
    **dict.fromkeys(("identify", "population", "web"), 8),
    "commands": 9,
    "programs": 10,
}
PROGRAMS = "programs"  # train.py, play.py `gpusim` and the modules at the package's top


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
        return PROGRAMS if head in ("train", "play", "benchmarks", "tests") else None
    return rest[0] if rest[0] in FLOORS else PROGRAMS


def source_files(root: Path) -> list[Path]:
    """Paths of the project's modules, relative to root, in alphabetical order.

    Those in templates/ are a user's.
    """
    files = [*(root / "gpusim_rl").rglob("*.py"), *(root / "tasks").rglob("*.py")]
    files = [file for file in files if file.parent.name != "templates"]
    files += [root / name for name in ("train.py", "play.py") if (root / name).exists()]
    return sorted(file.relative_to(root) for file in files)


@cache
def nodes(source: str) -> list[ast.AST]:
    """All nodes of a module's syntax tree. What keeps many of them clears the cache."""
    return [*ast.walk(ast.parse(source))]


def imported_names(source: str) -> set[str]:
    """Dotted names of all that a module imports, also inside functions; relative ones as `.name`.

    A constant first argument of `import_module` counts as an import. Of an f-string it is what
    comes before its first value, with a dot at the end.
    """
    names = set()
    for node in nodes(source):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (f"{node.module}." if node.module else "")
            names |= {f"{base}{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if isinstance(first, ast.JoinedStr) and first.values:
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


def module_imports(
    root: Path, files: Iterable[Path] | None = None, gone: Iterable[Path] = ()
) -> dict[str, set[str]]:
    """The modules that each module imports, by their dotted names.

    Args:
        root: of the repository.
        files: the modules, relative to root; None: those of the project.
        gone: modules that are no more, and may still be imported.
    """
    modules = {module_name(file): file for file in files or source_files(root)}
    names = modules.keys() | {module_name(file) for file in gone}
    imports: dict[str, set[str]] = {}
    for module, file in modules.items():
        imported = {absolute(x, file) for x in imported_names((root / file).read_text())}
        below = {x for x in imported if x.endswith(".")}
        imports[module] = {x if x in names else x.rpartition(".")[0] for x in imported} & names
        imports[module] |= {x for x in names if x.startswith((*below,))}
        imports[module] -= {module}
    return imports


def absolute(name: str, file: Path) -> str:
    """The dotted name that a file imports as `name`, which may begin with dots."""
    here = module_name(file).split(".")
    level = len(name) - len(name.lstrip("."))
    return ".".join([*here[: len(here) - level], name.lstrip(".")]) if level else name


def module_name(file: Path) -> str:
    """The dotted name by which a source file is imported."""
    name = ".".join(file.with_suffix("").parts)
    return f"gpusim_rl.{name}" if file.parts[0] == "tasks" else name
