"""Plants mistakes, each alone in a copy of the repository, and counts which tests find them.

    make test-all ARGS="--cov --cov-report="       writes .coverage: the lines that the tests run
    python -m benchmarks.mistakes                  twenty mistakes of seed 1
    python -m benchmarks.mistakes seed=2 count=5 'only=[1,4]' out=mistakes.json

A mistake is a sign, a comparison, an index or a dropped term, in a line that runs. The kind is
drawn first, then one of all its places. `make test-changed` and `make test-fast` look for each, and
`make test-all` for what neither finds. Each stops at the first test that fails with the mistake and
passes without it.
"""

import ast
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from coverage import CoverageData

from benchmarks.program import read_keys
from tests.packages import ROOT, source_files

OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add},
}
KINDS = ("comparison", "dropped term", "index", "sign")
LEVELS = ("test-changed", "test-fast", "test-all")
LONGEST = 3600  # [s] of one run of tests
NO_TESTS = 5  # pytest's exit code if it has none to run
PYTEST = ("-x", "-q", "-p", "no:cacheprovider")
FAILURE = re.compile(r"(?:FAILED|ERROR) (tests/[\w/]+\.py)(?:::\w+)*")


class Mistake(NamedTuple):
    """A wrong expression in the place of a right one."""

    kind: str  # one of KINDS
    file: Path  # from the root of the repository
    line: int
    start: int  # byte offsets within the file
    end: int
    right: str
    wrong: str

    def plant(self, source: bytes) -> bytes:
        """The source of the file with the mistake in it."""
        return source[: self.start] + self.wrong.encode() + source[self.end :]

    def description(self) -> str:
        """Where it is and what it does."""
        right, wrong = (" ".join(text.split()) for text in (self.right, self.wrong))
        return f"{self.file}:{self.line} {self.kind}: {right} → {wrong}"


class Search(NamedTuple):
    """What a target of the Makefile does with a mistake."""

    finds: bool
    seconds: float
    test: str  # that fails first, or pytest's last line


def mutations(node: ast.expr) -> Iterator[tuple[str, str]]:
    """(kind, wrong expression) of each mistake that an expression allows."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield "sign", unparse(node, op=OPPOSITES[type(node.op)]())
            yield "dropped term", ast.unparse(node.left)
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            yield "dropped term", ast.unparse(node.left)
        case ast.BoolOp():
            yield "dropped term", unparse(node, values=node.values[:-1])
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", ast.unparse(node.operand)
        case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
            yield "comparison", unparse(node, ops=[OPPOSITES[type(op)]()])
        case ast.Subscript(slice=ast.Constant(value=int(value))):
            yield "index", unparse(node, slice=ast.Constant(value + 1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int()))):
            yield "index", unparse(node, slice=node.slice.operand)


def unparse(node: ast.expr, **fields: object) -> str:
    """The source of an expression with other fields."""
    old = {name: getattr(node, name) for name in node._fields}
    return ast.unparse(type(node)(**old | fields))  # pyright: ignore[reportArgumentType]


def inert_nodes(tree: ast.AST) -> set[int]:
    """The ids of nodes that do nothing (annotations) or have no place (f-strings, Python 3.11)."""
    roots: list[ast.AST | None] = [x for x in ast.walk(tree) if isinstance(x, ast.JoinedStr)]
    for node in ast.walk(tree):
        roots += [getattr(node, field, None) for field in ("annotation", "returns")]
    return {id(node) for root in roots if root is not None for node in ast.walk(root)}


def mistakes(file: Path, lines: set[int]) -> Iterator[Mistake]:
    """All mistakes in these lines of a file."""
    source = (ROOT / file).read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    tree = ast.parse(source)
    inert = inert_nodes(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or id(node) in inert or node.lineno not in lines:
            continue
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for kind, wrong in mutations(node):
            right = source[start:end].decode()
            yield Mistake(kind, file, node.lineno, start, end, right, f"({wrong})")


def lines_that_ran(coverage: Path) -> dict[Path, set[int]]:
    """File → its lines that the tests ran, as pytest-cov wrote them."""
    data = CoverageData(str(coverage))
    data.read()
    names = {Path(name).resolve(): name for name in data.measured_files()}
    return {
        file: {*(data.lines(name) or ())}
        for file in source_files(ROOT)
        if (name := names.get((ROOT / file).resolve()))
    }


def draw(seed: int, count: int, lines: dict[Path, set[int]]) -> list[Mistake]:
    """Draw mistakes in these lines of files: first the kind, then one of all its places."""
    places: dict[str, list[Mistake]] = defaultdict(list)
    for file in sorted(lines):
        for mistake in mistakes(file, lines[file]):
            places[mistake.kind].append(mistake)
    generator = random.Random(seed)
    return [generator.choice(places[generator.choice(sorted(places))]) for _ in range(count)]


def search(target: str, copy: Path) -> Search:
    """Run a target of the Makefile until a test fails.

    Tests that go on for LONGEST find the mistake, too: they do not end.
    """
    make = ["make", "-n", target, f"ARGS={shlex.join(PYTEST)}"]
    dry = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True)
    line = [sys.executable, *shlex.split(dry.stdout.splitlines()[-1])[1:]]
    begin = time.perf_counter()
    process = subprocess.Popen(
        line, cwd=copy, stdout=-1, stderr=-2, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Search(True, time.perf_counter() - begin, "does not end")
    failures = [x for x in out.splitlines() if FAILURE.match(x)]
    finds = process.returncode not in (0, NO_TESTS)
    return Search(finds, time.perf_counter() - begin, (failures or out.splitlines()[-1:])[0])


def passes(copy: Path, failure: str) -> bool:
    """Whether the test of a line of pytest passes in a copy, with all its parameters."""
    match = FAILURE.match(failure)
    test = match[0].split(" ", 1)[1] if match else "tests"
    line = [sys.executable, "-m", "pytest", *PYTEST, "-m", "", test]
    return match is not None and not subprocess.run(line, cwd=copy, capture_output=True).returncode


def find(copy: Path) -> dict[str, Search]:
    """What the targets do with a mistake in a copy; test-all only if no other finds it."""
    results = {target: search(target, copy) for target in LEVELS[:2]}
    if not any(result.finds for result in results.values()):
        results[LEVELS[2]] = search(LEVELS[2], copy)
    return results


def main() -> None:
    """Draw, plant, search and print the results of each mistake, and the sums."""
    options = read_keys(__doc__, sys.argv[1:], seed=1, count=20, only=[], out=None)
    coverage = ROOT / ".coverage"
    if not coverage.exists():
        raise SystemExit(f"error: no {coverage}: make test-all ARGS='--cov --cov-report='")
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        raise SystemExit("error: mistakes are planted in a clone of HEAD: commit first")
    rows, lines = list[dict[str, Any]](), lines_that_ran(coverage)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
        for number, mistake in enumerate(draw(options.seed, options.count, lines), 1):
            if options.only and number not in options.only:
                continue
            file = copy / mistake.file
            source = file.read_bytes()
            file.write_bytes(mistake.plant(source))
            print(f"{number}. {mistake.description()}", flush=True)
            results = find(copy)
            file.write_bytes(source)
            for target, (finds, seconds, test) in results.items():
                if finds and not passes(copy, test):
                    results[target] = Search(False, seconds, f"fails without it, too: {test}")
                word = "finds it" if results[target].finds else "does NOT find it"
                print(f"   {target} {word}, {seconds:.0f} s: {results[target].test}", flush=True)
            rows.append({"mistake": mistake.description(), "results": results})
            if options.out:
                Path(options.out).write_text(json.dumps(rows, indent=1))
    for target in LEVELS:
        tried = [row["results"][target] for row in rows if target in row["results"]]
        print(f"{target} finds {sum(result.finds for result in tried)} of {len(tried)}")


if __name__ == "__main__":
    main()
