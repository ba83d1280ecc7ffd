"""Which tests are fast: the pytest plugin of `make test-fast`, by the seconds that tests took.

tests/seconds.txt has the tests that take longer than LIMIT, the functions whose parameters do so
together, and the fixtures that many tests share and that take longer than LONG_FIXTURE. What it
does not have is fast. Of a function with many parameters as many are fast as fit into LIMIT. A test
that asks for such a fixture is not fast, and neither is one with the marker `slow`.

    python -m pytest -p tests.fast --fast               the fast tests alone
    make test-all ARGS="-p tests.fast --measure"        writes tests/seconds.txt; a run of some
                                                        tests leaves the lines of others alone
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from time import perf_counter

import pytest

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_name("seconds.txt")
LIMIT = 0.2  # [s] of a test function, all its fast parameters together
LONG_FIXTURE = 0.5  # [s] of a fixture of a module or of a session


@cache
def known_seconds() -> dict[str, float]:
    """A test, a function of tests (then of one parameter), or `fixture name` → its seconds."""
    text = FILE.read_text() if FILE.exists() else ""
    rows = [line.rsplit(" ", 1) for line in text.split("\n") if line]
    return {name: float(seconds) for name, seconds in rows}


def function(nodeid: str) -> str:
    """A test's function, as tests/seconds.txt names it."""
    return nodeid.partition("[")[0]


def fast_tests(items: Iterable[pytest.Item]) -> set[str]:
    """The ids of the tests that are fast, of tests in the order of their parameters."""
    known, sums = known_seconds(), defaultdict[str, float](float)
    fast = set()
    for item in items:
        name = function(item.nodeid)
        seconds = known.get(item.nodeid, known.get(name, 0.0))
        waits = any(f"fixture {fixture}" in known for fixture in getattr(item, "fixturenames", ()))
        if waits or sums[name] + seconds > LIMIT or item.get_closest_marker("slow"):
            continue
        sums[name] += seconds
        fast.add(item.nodeid)
    return fast


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plugin."""
    parser.addoption("--fast", action="store_true", help="run the fast tests alone")
    parser.addoption("--measure", action="store_true", help="write tests/seconds.txt at the end")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure, in the process that gets the reports and in its workers."""
    if config.option.measure:
        config.pluginmanager.register(Seconds(), "seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not fast, if that was asked for."""
    if config.option.fast:
        fast = fast_tests(items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in fast])
        items[:] = [item for item in items if item.nodeid in fast]


class Seconds:
    """Measures tests and shared fixtures, and writes tests/seconds.txt at the end."""

    def __init__(self) -> None:
        self.tests: dict[str, float] = defaultdict(float)
        self.fixtures: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Note how long a shared fixture took, at the test that was the first to ask for it."""
        begin = perf_counter()
        result = yield
        if fixturedef.scope != "function" and isinstance(request._pyfuncitem, pytest.Item):
            entry = (f"fixture {fixturedef.argname}", perf_counter() - begin)
            request._pyfuncitem.user_properties.append(entry)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the time of a test, without that of the fixtures that it shares."""
        self.tests[report.nodeid] += report.duration
        if report.when == "teardown":
            for name, seconds in report.user_properties:
                if name.startswith("fixture "):
                    self.tests[report.nodeid] -= seconds
                    self.fixtures[name] = max(self.fixtures[name], seconds)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, unless this is a worker."""
        if hasattr(session.config, "workerinput"):
            return
        rows = seconds_file(known_seconds(), self.tests, self.fixtures)
        FILE.write_text("".join(f"{name} {rows[name]:.2f}\n" for name in sorted(rows)))


def seconds_file(
    known: dict[str, float], tests: dict[str, float], fixtures: dict[str, float]
) -> dict[str, float]:
    """The rows of tests/seconds.txt after a run.

    Args:
        known: its rows before. Those of tests that are gone are left out.
        tests: test id → seconds of those that ran; fixtures: the same, of `fixture name`.
    """
    rows = {name: x for name, x in known.items() if name not in tests and is_there(name)}
    rows |= {name: x for name, x in fixtures.items() if x > LONG_FIXTURE}
    functions: dict[str, dict[str, float]] = defaultdict(dict)
    for nodeid, seconds in tests.items():
        functions[function(nodeid)][nodeid] = seconds
    for name, parameters in functions.items():
        quick = [x for x in parameters.values() if x <= LIMIT]
        # an id with the checkout's path is another one elsewhere
        rows |= {test: x for test, x in parameters.items() if x > LIMIT and f"{ROOT}" not in test}
        if "[" in next(iter(parameters)) and (name in known or sum(quick) > LIMIT):
            rows[name] = mean(quick or parameters.values())
    return rows


def is_there(name: str) -> bool:
    """Whether a row of tests/seconds.txt names a fixture, or a test that its file still has."""
    path, _, test = function(name).partition("::")
    file = ROOT / path
    there = file.is_file() and f"def {test.rpartition('::')[2]}(" in file.read_text()
    return name.startswith("fixture ") or there
