"""Which tests are fast: the pytest plugin of `make test-fast`, by the seconds that tests took.

tests/seconds.txt lists the tests that take longer than LIMIT, the functions whose parameters do so
together, and the fixtures that many tests share and that take longer than SHARED. What is not
listed is fast. Of a function with many parameters as many are fast as fit into LIMIT. A test that
asks for a listed fixture is not fast, and neither is one with the marker `slow`.

    python -m pytest -p tests.fast --fast               the fast tests alone
    make test-all ARGS="-p tests.fast --measure"        writes tests/seconds.txt; a run of some
                                                        tests leaves the other lines alone
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from time import perf_counter

import pytest

FILE = Path(__file__).with_name("seconds.txt")
LIMIT = 0.3  # [s] of a test function, all its fast parameters together
SHARED = 0.5  # [s] of a fixture of a module or of a session


@cache
def listed() -> dict[str, float]:
    """A test, a function of tests (then of one parameter), or `fixture name` → its seconds."""
    text = FILE.read_text() if FILE.exists() else ""
    rows = [line.rsplit(" ", 1) for line in text.splitlines()]
    return {name: float(seconds) for name, seconds in rows}


def function(nodeid: str) -> str:
    """A test's function, as tests/seconds.txt names it."""
    return nodeid.partition("[")[0]


def fast(items: list[pytest.Item]) -> set[str]:
    """The ids of the tests that are fast, of tests in the order of their parameters."""
    spent: dict[str, float] = defaultdict(float)
    answer = set()
    for item in items:
        name = function(item.nodeid)
        seconds = listed().get(item.nodeid, listed().get(name, 0.0))
        fixtures = getattr(item, "fixturenames", ())
        shared = any(f"fixture {fixture}" in listed() for fixture in fixtures)
        if shared or spent[name] + seconds > LIMIT or item.get_closest_marker("slow"):
            continue
        spent[name] += seconds
        answer.add(item.nodeid)
    return answer


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plugin."""
    parser.addoption("--fast", action="store_true", help="run the fast tests alone")
    parser.addoption("--measure", action="store_true", help="write tests/seconds.txt at the end")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to measure, in the process that gets the reports and in its workers."""
    if config.option.measure:
        config.pluginmanager.register(Seconds(), "seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other tests out, if that was asked for."""
    if config.option.fast:
        chosen = fast(items)
        config.hook.pytest_deselected(items=[x for x in items if x.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]


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
        begun = perf_counter()
        result = yield
        if fixturedef.scope != "function" and isinstance(request._pyfuncitem, pytest.Item):
            entry = (f"fixture {fixturedef.argname}", perf_counter() - begun)
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
        functions: dict[str, dict[str, float]] = defaultdict(dict)
        for nodeid, seconds in self.tests.items():
            functions[function(nodeid)][nodeid] = seconds
        rows = listed() | {name: x for name, x in self.fixtures.items() if x > SHARED}
        for name in functions:
            quick = [x for x in functions[name].values() if x <= LIMIT]
            rows |= {test: x for test, x in functions[name].items() if x > LIMIT and "[" in test}
            if name in rows or sum(quick) > LIMIT or not quick:
                rows[name] = mean(quick or functions[name].values())
        FILE.write_text("".join(f"{name} {rows[name]:.2f}\n" for name in sorted(rows)))
