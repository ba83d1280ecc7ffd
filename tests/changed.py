"""The tests that a change may break, nearest first: the pytest plugin of `make test-changed`.

It keeps the test files that reach a changed file: by imports, or by a name in their strings, such
as "train.py" or "conf". Tests of the changed file's own name or room come first, then those that
are fewer steps away. Among all of them, those that tests/fast.py says are fast come first.

    python -m pytest -p tests.changed --since=HEAD      what is not committed
    python -m pytest -p tests.changed --since=main      the commits of a branch as well
"""

import ast
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.fast import fast
from tests.packages import ROOT, imported_names, module_name, package, source_files

WORKERS = 2  # of `make test-changed`: each begins with the nearest tests
LOADER = Path("gpusim_rl/envs/load_task.py")  # imports the task that a command line names
CONFTEST = Path("tests/conftest.py")
FOR_ALL = {CONFTEST, Path("pyproject.toml"), Path("tests/__init__.py")}
SPLIT = re.compile(r"[^\w.-]+")


def changed_files(since: str) -> set[Path]:
    """The files that differ from a commit, and those that git does not know yet, from ROOT."""
    names: list[str] = []
    for words in ("diff", "--name-only", since, "--"), ("ls-files", "--others", "-X", ".gitignore"):
        line = ["git", *words]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(f"--since={since}: {done.stderr.strip()}")
        names += done.stdout.splitlines()
    return {Path(name) for name in names}


@cache
def modules() -> dict[str, Path]:
    """Dotted name → file of all modules of the package, of tasks and of tests."""
    files = [*source_files(ROOT), *(p.relative_to(ROOT) for p in (ROOT / "tests").rglob("*.py"))]
    return {module_name(file).removesuffix(".__init__"): file for file in files}


def module_files(name: str) -> set[Path]:
    """The file of the module that a dotted name is, or is in; of `a.b.` all below a.b."""
    if name.endswith("."):
        return {file for module, file in modules().items() if module.startswith(name)}
    while name:
        if name in modules():
            return {modules()[name]}
        name = name.rpartition(".")[0]
    return set()


def words_of(tree: ast.AST) -> set[str]:
    """The words, and the parts of paths, in the strings of a module but its docstrings."""
    nodes = [*ast.walk(tree)]
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs
    ]
    return {word for text in texts if isinstance(text, str) for word in SPLIT.split(text)}


@cache
def reads() -> dict[Path, tuple[set[Path], set[str]]]:
    """Each module → (the modules that it imports, the words and parts of paths in its strings).

    A test also reaches the modules that its strings name, as `command("train.py", …)` does.
    """
    answer = {}
    for file in modules().values():
        source = (ROOT / file).read_text()
        words = words_of(ast.parse(source))
        names = imported_names(source)
        if file.parts[0] == "tests":
            names |= {word for word in words if re.match(r"(gpusim_rl|tests)\.\w", word)}
            names |= {name.removesuffix(".py") for name in words & {"train.py", "play.py"}}
        files = {other for name in names for other in module_files(name)}
        if file == LOADER:
            files |= {other for other in modules().values() if other.parts[0] == "tasks"}
        answer[file] = files - {file}, words
    return answer


@cache
def fixtures() -> set[str]:
    """The fixtures of tests/conftest.py that a test has to ask for."""
    body = ast.parse((ROOT / CONFTEST).read_text()).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if "fixture" in "".join(map(ast.unparse, f.decorator_list))}


def distances(changed: Path) -> dict[Path, int]:
    """Each module that reaches the changed file → in how many steps."""
    importers = defaultdict(set)
    for file, (files, _) in reads().items():
        for other in files:
            importers[other].add(file)
    steps = {changed: 0} if changed in reads() else dict.fromkeys(readers(changed), 1)
    edge = [*steps]
    for file in edge:  # which grows meanwhile
        for importer in importers[file] - steps.keys():
            steps[importer] = steps[file] + 1
            edge.append(importer)
    return steps


def readers(file: Path) -> set[Path]:
    """The modules that name a file that is no module, or a folder that it lies in.

    The package reads what is installed with it; all others are for tests alone.
    """
    names = {file.name, *file.parts[:-1]} - {"gpusim_rl", "tests", "tasks"}
    installed = file.parts[0] in ("gpusim_rl", "conf", "tasks")
    return {f for f, (_, words) in reads().items() if names & words and (installed or is_test(f))}


def is_test(file: Path) -> bool:
    """Whether a module belongs to the tests."""
    return file.parts[0] == "tests"


def places(changed: set[Path]) -> dict[str, list[int]]:
    """Each test file that a change may break → [another name, another room, steps].

    The least comes first. What all tests share is a step away from each of them.
    """
    answer: dict[str, list[int]] = {}
    for file in changed:
        all_tests = dict.fromkeys(reads(), 1)
        steps = all_tests if file in FOR_ALL else distances(file)
        for test in steps:
            if is_test(test) and test.name.startswith("test_"):
                name = test.stem not in (file.stem, f"test_{file.stem}")
                place = [int(name), int(package(file) not in test.parts), steps[test]]
                answer[f"{test}"] = min(place, answer.get(f"{test}", place))
    return answer


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option `--since`."""
    parser.addoption("--since", default="HEAD", help="the commit that files may differ from")


def pytest_configure(config: pytest.Config) -> None:
    """Find the places of test files, once for all workers, which get the options."""
    if not hasattr(config.option, "places"):
        changed = changed_files(config.option.since)
        config.option.places = places(changed)
        print(f"{len(changed)} files differ from {config.option.since}; ", end="")
        print(f"{len(config.option.places)} test files reach them")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out test files that reach no changed file."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT):
        return None
    return f"{collection_path.relative_to(ROOT)}" not in config.option.places or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests, so that each of the workers begins with the nearest.

    Workers get a share of the list each, in one piece. The tests of a file stay together, for the
    sake of what they share.
    """
    groups: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    first = fast(items)
    for item in items:
        place = config.option.places[f"{item.path.relative_to(ROOT)}"]
        groups[(item.nodeid not in first, *place, item.path)].append(item)
    shares: list[list[pytest.Item]] = [[] for _ in range(WORKERS)]
    for key in sorted(groups):
        min(shares, key=len).extend(groups[key])
    items[:] = [item for share in shares for item in share]
