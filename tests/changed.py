"""The tests that a change may break, nearest first: the pytest plugin of `make test-changed`.

It keeps the test files that reach a changed file by imports, by fixtures of a conftest.py, or by a
name in their strings, such as "train.py". First come the tests of a changed file's own name, then
fast ones, as tests/fast.py has them, then those of its room, then the others, and last the slow
ones. Among each, those that are fewer steps away come first.

    python -m pytest -p tests.changed --since=HEAD      what is not committed
    python -m pytest -p tests.changed --since=main      the commits of a branch as well
"""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fast import fast_tests
from tests.packages import ROOT, module_imports, module_name, nodes, package, source_files

LOADER = "gpusim_rl.envs.load_task"  # imports the task that a command line names
TASKS = "gpusim_rl.tasks."
# what every test depends on
SHARED = {Path(name) for name in ("pyproject.toml", "tests/__init__.py", "gpusim_rl/__init__.py")}

DISTANCES = pytest.StashKey[dict[str, list[int]]]()  # test file → its Distance, of a session


class Distance(NamedTuple):
    """How far a test file is from a changed one; the least comes first."""

    other_name: bool
    other_room: bool
    steps: int


def changed_files(since: str, root: Path = ROOT) -> set[Path]:
    """The files that differ from where this branch left a commit, and those that git ignores not.

    A file with another name counts under both names. UsageError if there is no such commit.
    """
    names: list[str] = []
    for line in (
        ["diff", "--merge-base", "--no-renames", "--name-only", "-z", since, "--"],
        ["ls-files", "--others", "--exclude-standard", "-z"],
    ):
        done = subprocess.run(["git", *line], cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(f"--since={since}: {done.stderr.strip()}")
        names += done.stdout.split("\0")
    return {Path(name) for name in names if name}


def strings(parts: list[ast.AST]) -> set[str]:
    """The words, and the parts of paths, in the strings of a module but its docstrings."""
    docs = {id(node.value) for node in parts if isinstance(node, ast.Expr)}
    constants = [x for x in parts if isinstance(x, ast.Constant) and id(x) not in docs]
    texts = [x.value for x in constants if isinstance(x.value, str)]
    return {word for text in texts for word in re.split(r"[^\w.-]+", text)}


class Graph:
    """Who reaches whom among the modules of the package, the tasks and the tests.

    Args:
        gone: modules that were removed, which others may still import.
    """

    def __init__(self, gone: frozenset[Path] = frozenset()):
        folders = (ROOT / "tests", ROOT / "benchmarks")
        tests = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py")]
        self.files = {*source_files(ROOT), *tests}
        self.modules = {module_name(file): file for file in self.files | gone}
        parts = {file: nodes((ROOT / file).read_text()) for file in self.files}
        self.words = {file: strings(x) for file, x in parts.items()}
        self.importers: dict[Path, set[Path]] = defaultdict(set)
        self.add_imports(gone)
        self.add_names()
        self.add_fixtures(parts)
        nodes.cache_clear()

    def add_imports(self, gone: frozenset[Path]) -> None:
        """Modules reach what they import, and the one that loads tasks reaches them all."""
        for module, names in module_imports(ROOT, self.files, gone).items():
            for name in names:
                self.importers[self.modules[name]].add(self.modules[module])
        for name, file in self.modules.items():
            if name.startswith(TASKS):
                self.importers[file].add(self.modules[LOADER])

    def add_names(self) -> None:
        """Tests reach the modules that their strings name, as files or with dots."""
        named: dict[str, set[Path]] = defaultdict(set)
        for module, file in self.modules.items():
            named[module].add(file)
            named[file.name].add(file)
        for file in filter(is_test, self.files):
            for word in self.words[file] - {"__init__.py", "conftest.py"}:
                for other in named.get(word) or named.get(word.rpartition(".")[0]) or ():
                    self.importers[other].add(file)

    def add_fixtures(self, parts: dict[Path, list[ast.AST]]) -> None:
        """Tests reach the conftest.py of their folder, or above, whose fixtures they ask for."""
        conftests = [file for file in self.files if file.name == "conftest.py"]
        offered = {conftest: fixtures(parts[conftest]) for conftest in conftests}
        for file in filter(is_test, self.files):
            names = {x.arg for x in parts[file] if isinstance(x, ast.arg)}
            for conftest in conftests:
                below = conftest.parent in file.parents
                if below and offered[conftest] & (names | self.words[file]):
                    self.importers[conftest].add(file)

    def readers(self, file: Path) -> set[Path]:
        """The modules that name a file that is no module, or a folder that it lies in.

        The package reads what is installed with it; all other files are for tests alone.
        """
        names = {*file.parts[:-1]} - {"gpusim_rl", "tests", "tasks"}
        names |= {file.name} if file.suffix or len(file.parts) == 1 else set()
        installed = file.parts[0] in ("gpusim_rl", "conf", "tasks")
        return {x for x, words in self.words.items() if names & words and (installed or is_test(x))}

    def steps(self, changed: Path) -> dict[Path, int]:
        """Each module that reaches a changed file → in how many steps."""
        if changed in SHARED:
            return dict.fromkeys(self.files, 1)
        if changed.suffix == ".py":
            steps = {changed: 0}
        else:
            steps = dict.fromkeys(self.readers(changed), 1)
        if changed.name == "conftest.py":
            steps |= {file: 1 for file in self.files if changed.parent in file.parents}
        queue = [*steps]
        for file in queue:  # which grows meanwhile
            for importer in self.importers[file] - steps.keys():
                steps[importer] = steps[file] + 1
                queue.append(importer)
        return steps


def is_test(file: Path) -> bool:
    """Whether a module belongs to the tests."""
    return file.parts[0] == "tests"


def fixtures(conftest: list[ast.AST]) -> set[str]:
    """The fixtures that a conftest.py offers."""
    functions = [node for node in conftest if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if "fixture" in "".join(map(ast.unparse, f.decorator_list))}


@cache
def graph(gone: frozenset[Path]) -> Graph:
    """The graph of the working tree, with modules that were removed."""
    return Graph(gone)


def distances(changed: set[Path]) -> dict[str, Distance]:
    """Each test file that changed files may break → its least distance from one of them."""
    answer: dict[str, Distance] = {}
    gone = frozenset(x for x in changed if x.suffix == ".py" and not (ROOT / x).exists())
    for file in changed:
        for test, steps in graph(gone).steps(file).items():
            if is_test(test) and test.name.startswith("test_"):
                other_name = test.stem not in (file.stem, f"test_{file.stem}")
                distance = Distance(other_name, package(file) not in test.parts, steps)
                answer[f"{test}"] = min(distance, answer.get(f"{test}", distance))
    return answer


# -- pytest --------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option `--since`."""
    parser.addoption("--since", default="HEAD", help="the commit that files may differ from")


def pytest_configure(config: pytest.Config) -> None:
    """Find the distances; a worker of xdist gets those of the process that starts it."""
    if hasattr(config, "workerinput"):
        config.stash[DISTANCES] = config.workerinput["distances"]
        return
    changed = changed_files(config.option.since)
    config.stash[DISTANCES] = {name: [*x] for name, x in distances(changed).items()}
    reach = f"{len(config.stash[DISTANCES])} test files reach them"
    print(f"{len(changed)} files differ from {config.option.since}, {reach}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the distances to a worker of xdist."""
    node.workerinput["distances"] = node.config.stash[DISTANCES]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out test files that reach no changed file."""
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT):
        return None
    return f"{collection_path.relative_to(ROOT)}" not in config.stash[DISTANCES] or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests, so that each worker begins with the nearest ones."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    known = [x for x in items if f"{x.path.relative_to(ROOT)}" in config.stash[DISTANCES]]
    config.hook.pytest_deselected(items=[item for item in items if item not in known])
    items[:] = dealt([*nearest_first(config, known)], workers)


def nearest_first(config: pytest.Config, items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The tests of each file, which share fixtures, in the order of `turn`."""
    groups: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    fast = fast_tests(items)
    for item in items:
        distance = Distance(*config.stash[DISTANCES][f"{item.path.relative_to(ROOT)}"])
        slow = item.get_closest_marker("slow") is not None
        groups[(turn(distance, item.nodeid in fast, slow), *distance, item.path)].append(item)
    yield from (groups[key] for key in sorted(groups))


def turn(distance: Distance, fast: bool, slow: bool) -> int:
    """When a test runs: that of the changed file's name, fast ones, its room, others, slow ones."""
    if slow:
        return 4
    if not distance.other_name:
        return 0
    return 1 if fast else 3 if distance.other_room else 2


def dealt(groups: list[list[pytest.Item]], workers: int) -> list[pytest.Item]:
    """The tests in an order of which each worker, which gets one piece of it, has the nearest."""
    hands: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for group in groups:
        min(hands, key=len).extend(group)
    while len(longest := max(hands, key=len)) - len(shortest := min(hands, key=len)) > 1:
        shortest.append(longest.pop())
    return [item for hand in hands for item in hand]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """It is no mistake that nothing has changed."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and not session.config.stash[DISTANCES]:
        session.exitstatus = pytest.ExitCode.OK
