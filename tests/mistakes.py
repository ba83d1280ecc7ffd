"""Twenty mistakes, each planted alone in a copy of the repository: which tests tell?

    make test-all ARGS="--cov --cov-report="     writes .coverage: the lines that the tests run
    python -m tests.mistakes                     twenty mistakes of seed 1
    python -m tests.mistakes seed=2 count=5 out=mistakes.json

A mistake is a sign, a comparison, an index or a dropped term, in a line that runs. The kind is
drawn first, then one of all its places. A mistake goes to `make test-changed`, to `make test-fast`
and, if neither finds it, to `make test-all`; each stops at its first failure. What is committed is
copied, and the working tree is left alone.
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

from tests.packages import ROOT, source_files

OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add},
}
KINDS = ("sign", "comparison", "index", "dropped term")
LONGEST = 3600  # [s] of one run of tests
NO_TESTS = 5  # pytest's exit code if it has none to run
LEVELS = ("test-changed", "test-fast", "test-all")


class Mistake(NamedTuple):
    """One wrong expression in the place of a right one."""

    kind: str
    file: Path
    line: int
    start: int  # byte offsets within the file
    end: int
    old: str
    new: str

    def plant(self, source: bytes) -> bytes:
        """The source of the file with the mistake in it."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def text(self) -> str:
        """Where it is and what it does."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}:{self.line} {self.kind}: {old} → {new}"


def wrong(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(kind, wrong expression) of each mistake that an expression allows."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield "sign", changed(node, op=OPPOSITE[type(node.op)]())
            yield "dropped term", ast.unparse(node.left)
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            yield "dropped term", ast.unparse(node.left)
        case ast.BoolOp():
            yield "dropped term", changed(node, values=node.values[:-1])
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", ast.unparse(node.operand)
        case ast.Compare(ops=[op]) if type(op) in OPPOSITE:
            yield "comparison", changed(node, ops=[OPPOSITE[type(op)]()])
        case ast.Subscript(slice=ast.Constant(value=int(value))):
            yield "index", changed(node, slice=ast.Constant(value + 1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int()))):
            yield "index", changed(node, slice=node.slice.operand)


def changed(node: ast.AST, **fields: object) -> str:
    """The source of an expression with other fields."""
    old = {name: getattr(node, name) for name in node._fields}
    return ast.unparse(type(node)(**old | fields))


def left_out(tree: ast.AST) -> set[int]:
    """The nodes of type annotations, which do nothing when they run, and of f-strings, whose places
    Python 3.11 does not know."""
    roots: list[ast.AST | None] = [x for x in ast.walk(tree) if isinstance(x, ast.JoinedStr)]
    for node in ast.walk(tree):
        roots += [getattr(node, field, None) for field in ("annotation", "returns")]
    return {id(node) for root in roots if root is not None for node in ast.walk(root)}


def mistakes(file: Path, lines: set[int]) -> Iterator[Mistake]:
    """All mistakes in these lines of a file."""
    source = (ROOT / file).read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    tree = ast.parse(source)
    others = left_out(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or id(node) in others or node.lineno not in lines:
            continue
        start = begins[node.lineno - 1] + node.col_offset
        end = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for kind, new in wrong(node):
            old = source[start:end].decode()
            yield Mistake(kind, file, node.lineno, start, end, old, f"({new})")


def lines_that_ran(coverage: Path) -> dict[Path, set[int]]:
    """File → its lines that the tests ran, as pytest-cov wrote them."""
    data = CoverageData(str(coverage))
    data.read()
    files = {Path(name).resolve(): name for name in data.measured_files()}
    return {
        file: {*(data.lines(name) or ())}
        for file in source_files(ROOT)
        if (name := files.get((ROOT / file).resolve()))
    }


def draw(seed: int, count: int, lines: dict[Path, set[int]]) -> list[Mistake]:
    """Draw mistakes in these lines of files: first the kind, then one of all its places."""
    choices: dict[str, list[Mistake]] = defaultdict(list)
    for file in sorted(lines):
        for mistake in mistakes(file, lines[file]):
            choices[mistake.kind].append(mistake)
    generator = random.Random(seed)
    return [generator.choice(choices[generator.choice(sorted(choices))]) for _ in range(count)]


class Answer(NamedTuple):
    """What a target of the Makefile says of a mistake."""

    failed: bool
    seconds: float
    test: str  # that failed first, or the last line


def run(target: str, copy: Path, only: str = "") -> Answer:
    """Run a target of the Makefile until a test fails, or only its tests of one file.

    Tests that go on for LONGEST have found the mistake, too: they do not end.
    """
    dry = subprocess.run(
        ["make", "-n", target, f"ARGS=-x -q -p no:cacheprovider {only}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    line = [sys.executable, *shlex.split(dry.stdout.splitlines()[-1])[1:]]
    begun = time.perf_counter()
    process = subprocess.Popen(
        line, cwd=copy, stdout=-1, stderr=-2, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Answer(True, time.perf_counter() - begun, "does not end")
    first = [x for x in out.splitlines() if x.startswith(("FAILED", "ERROR"))]
    failed = process.returncode not in (0, NO_TESTS)
    return Answer(failed, time.perf_counter() - begun, (first or out.splitlines()[-1:])[0])


def ask(copy: Path) -> dict[str, Answer]:
    """What each of LEVELS says of the mistake in a copy; test-all only if no other finds it.

    Of test-fast the file that `test-changed` failed in comes first, since it takes seconds.
    """
    told = {"test-changed": run("test-changed", copy)}
    if failed := re.match(r"(?:FAILED|ERROR) (tests/[\w/]+\.py)", told["test-changed"].test):
        told["test-fast"] = run("test-fast", copy, failed[1])
    if not failed or not told["test-fast"].failed:
        told["test-fast"] = run("test-fast", copy)
    if not any(answer.failed for answer in told.values()):
        told["test-all"] = run("test-all", copy)
    return told


def main() -> None:
    """Draw, plant, test and print a row for each mistake, and the sums."""
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    seed, count = int(words.get("seed", 1)), int(words.get("count", 20))
    drawn = draw(seed, count, lines_that_ran(ROOT / words.get("coverage", ".coverage")))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
        for number, mistake in enumerate(drawn, 1):
            file = copy / mistake.file
            right = file.read_bytes()
            file.write_bytes(mistake.plant(right))
            print(f"{number}. {mistake.text()}", flush=True)
            told = ask(copy)
            for level, (failed, seconds, test) in told.items():
                print(f"   {level}: {'found' if failed else 'NOT found'}, {seconds:.0f} s: {test}")
            sys.stdout.flush()
            file.write_bytes(right)
            rows.append({"mistake": mistake.text(), "told": told})
            if "out" in words:
                Path(words["out"]).write_text(json.dumps(rows, indent=1))
    for level in LEVELS:
        asked = [row["told"][level] for row in rows if level in row["told"]]
        print(f"{level}: found {sum(answer.failed for answer in asked)} of {len(asked)}")


if __name__ == "__main__":
    main()
