"""Questions about pairs of clips, and the answers: a folder of a run in which nothing is changed.

    labels/000007.safetensors   the pairs that were asked about before an iteration
    labels/answers.jsonl        an answer a line, of whoever answered, in their order
    labels/rounds.jsonl         how many of these lines each iteration has learned from

Several programs may append answers at once. A continuation reads as many lines as its run did.
"""

import csv
import errno
import hashlib
import io
import json
import os
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save as to_bytes
from torch import Tensor

from gpusim_rl.core import errors
from gpusim_rl.core.files import LARGEST_TEXT_BYTES, Plain, read_whole, write_whole
from gpusim_rl.runs.checkpoints import read_tensors
from gpusim_rl.runs.rows import Rows

FOLDER, FORMAT = "labels", "questions 1"
CHOICES = {"left": 1.0, "right": 0.0, "same": 0.5, "unclear": None}  # → that the left is better
UNDO, AGAIN = "undo", "~"  # an answer that takes one back; ends the name of a pair, sides changed
LARGEST_ANSWERS = 64 * LARGEST_TEXT_BYTES  # bytes of answers.jsonl
LARGEST_QUESTIONS = 1 << 28  # bytes of a file of questions
LONGEST_NAME = 40  # characters of who answers, and of all else in an answer
COLUMNS: tuple[str, ...] = ("pair", "answer", "who", "time", "clips")  # of an answer


class Pair(NamedTuple):
    """Two clips of T steps that somebody is asked to compare."""

    view: Tensor  # (2, T, nc) the critic's views
    pose: Tensor  # (2, T, nq)
    digest: str  # of the clips, their policy and their seed
    about: dict[str, str]  # dt [s], terms, seed, policy; `drawn` of a pair drawn by chance


class Answers(NamedTuple):
    """The lines of answers.jsonl, or the first of them."""

    rows: list[Plain]
    lines: int
    digest: str  # of the lines

    def valid(self) -> dict[tuple[str, str], str]:
        """(who, pair) → the last answer, without those that were taken back."""
        last: dict[tuple[str, str], str] = {}
        for row in self.rows:
            key = row["who"], row["pair"]
            last.pop(key, None)
            if row["answer"] != UNDO:
                last[key] = row["answer"]
        return last


class Labels:
    """The folder `labels` of a run, which need not exist yet."""

    def __init__(self, run: Path):
        self.path = run / FOLDER
        self.file, self.learned = self.path / "answers.jsonl", Rows(self.path / "rounds.jsonl")
        # of a file: time of change [ns], size and pairs
        self.known: dict[str, tuple[int, int, dict[str, Pair]]] = {}

    # -- questions ---------------------------------------------------------------------------------

    def ask(self, iteration: int, view: Tensor, pose: Tensor, about: dict[str, str]) -> None:
        """Write pairs of clips (n, 2, T, …), unless this iteration has asked already."""
        tensors = {"view": view.cpu().contiguous(), "pose": pose.cpu().contiguous()}
        self.path.mkdir(exist_ok=True)
        if not (file := self.path / f"{iteration:06d}.safetensors").exists():
            write_whole(file, to_bytes(tensors, {"gpusim_rl": FORMAT, **about}))

    def pairs(self, before: float = float("inf")) -> dict[str, Pair]:
        """Name → pair, of those that were asked before an iteration, and of an earlier run's.

        A file that cannot be read is left out, and said once.
        """
        found: dict[str, Pair] = {}
        for file in sorted(self.path.glob("*.safetensors")):
            if file.stem.isdecimal() and int(file.stem) > before:
                continue
            try:
                now = file.lstat()
                if self.known.get(file.name, ())[:2] != (now.st_mtime_ns, now.st_size):
                    self.known[file.name] = now.st_mtime_ns, now.st_size, read_pairs(file)
                found |= self.known[file.name][2]
            except (OSError, ValueError) as error:
                errors.warn_once(f"warning: {errors.reason(error)}: its pairs are left out")
        return found

    def waiting(self, before: float = float("inf")) -> list[str]:
        """The pairs of this run, not of an earlier one, that wait for an answer, of `pairs`."""
        fit = self.fitting(self.answers(), self.pairs())
        done = {pair.removesuffix(AGAIN) for _, pair in fit}
        return [x for x in self.pairs(before) if x[0].isdecimal() and x not in done]

    def adopt(self, run: Path) -> None:
        """Begin with the questions and answers of another run; ValueError if it has none."""
        if self.path.exists():
            return
        other = Labels(run)
        rows = [row | dict(pair=earlier(row["pair"])) for row in other.answers().rows]
        data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        if not data:
            raise ValueError(f"reward.labels={run}: this run has no answers")
        self.path.mkdir()
        for file in sorted(other.path.glob("*.safetensors")):
            content = read_whole(file, LARGEST_QUESTIONS, os.O_NOFOLLOW)
            write_whole(self.path / earlier(file.name), content)
        write_whole(self.file, data)

    # -- answers -----------------------------------------------------------------------------------

    def answer(self, pair: str, answer: str, who: str, digest: str) -> None:
        """Append an answer, so that a crash loses none that was given; ValueError if it is none."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = dict(zip(COLUMNS, (pair, answer, who, now, digest), strict=True))
        if why := wrong(row):
            raise ValueError(why)
        self.path.mkdir(exist_ok=True)
        line, flags = f"{json.dumps(row)}\n".encode(), os.O_RDWR | os.O_CREAT | os.O_APPEND
        file = os.open(self.file, flags | os.O_NOFOLLOW, 0o666)
        try:  # one write: what several programs append is not mixed
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # a kill, or a full disk, left half
                line = b"\n" + line
            if os.write(file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
            os.fsync(file)
        finally:
            os.close(file)

    def answers(self, lines: int | None = None) -> Answers:
        """The answers, or the first lines of them; what is none is left out, and said once.

        ValueError if the file is too large.
        """
        if not self.file.exists():
            return Answers([], 0, hashlib.sha256().hexdigest())
        whole = read_whole(self.file, LARGEST_ANSWERS, os.O_NOFOLLOW).splitlines(keepends=True)
        taken = [x for x in whole if x.endswith(b"\n")][:lines]  # the last may not be whole yet
        rows, reasons = [], Counter[str]()
        for line in taken:
            row, why = parse(line)
            reasons.update([why] if why else [])
            rows.append(row)
        for why, count in reasons.items():
            errors.warn_once(f"warning: {self.file}: {count} lines are left out: {why}")
        digest = hashlib.sha256(b"".join(taken)).hexdigest()
        return Answers([row for row in rows if row], len(taken), digest)

    def answers_at(self, iteration: int) -> Answers:
        """The answers of now, which this iteration learns from; or those that it learned from.

        ValueError if these have changed since.
        """
        row = {row["iteration"]: row for row in self.learned.read()}.get(iteration)
        read = self.answers(int(row["answers"]) if row else None)
        if row and (row["answers"], row["sha256"]) != (read.lines, read.digest):
            says = f"its first {row['answers']} lines are not those that iteration {iteration}"
            raise ValueError(f"{self.file} was changed: {says} learned from")
        if not row:
            self.path.mkdir(exist_ok=True)
            self.learned.add(dict(iteration=iteration, answers=read.lines, sha256=read.digest))
            self.learned.flush()
        return read

    def lines_before(self, iteration: float) -> int:
        """How many lines of answers the last round before an iteration learned from."""
        return max(
            (x["answers"] for x in self.learned.read() if x["iteration"] < iteration), default=0
        )

    def fitting(self, read: Answers, pairs: dict[str, Pair]) -> dict[tuple[str, str], str]:
        """Those of the valid answers whose pair is here, with the clips that were looked at."""
        clips = {(row["who"], row["pair"]): row["clips"] for row in read.rows}
        fit, missing, other = dict[tuple[str, str], str](), 0, 0
        for key, answer in read.valid().items():
            pair = pairs.get(key[1].removesuffix(AGAIN))
            if pair is None:
                missing += 1
            elif pair.digest != clips[key]:
                other += 1
            else:
                fit[key] = answer
        if missing or other:
            says = f"{missing} answers are about clips that are not here, {other} about other clips"
            errors.warn_once(f"warning: {self.file}: {says}: they are kept, and not learned from")
        return fit

    def report(self) -> dict[str, Any]:
        """How many answers each person gave, how often they repeat and how often people agree."""
        valid = self.answers().valid()
        counts = Counter(who for who, _ in valid)
        again, both = Counter[bool](), Counter[bool]()
        for (who, pair), answer in valid.items():
            if pair.endswith(AGAIN) and (first := valid.get((who, pair[:-1]))):
                again[turned(answer) == first] += 1
            for other in counts:
                if other < who and (theirs := valid.get((other, pair))):
                    both[theirs == answer] += 1
        shares = {"consistent": again, "agree": both}
        found = {key: x[True] / x.total() if x else None for key, x in shares.items()}
        return {"answers": dict(counts), **found}

    def csv(self) -> bytes:
        """All answers as a table, in which a spreadsheet finds no formula."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        for row in self.answers().rows:
            writer.writerow({key: "'" * (x[0] in "=+-@") + x for key, x in row.items()})
        return text.getvalue().encode()


def turned(answer: str) -> str:
    """An answer about the same clips with their sides changed."""
    return {"left": "right", "right": "left"}.get(answer, answer)


def wrong(row: Plain) -> str:
    """Why a row is no answer; empty if it is one."""
    if set(row) != set(COLUMNS) or not all(isinstance(x, str) for x in row.values()):
        return "they have other columns"
    if row["answer"] not in (*CHOICES, UNDO):
        return f"an answer is none of {', '.join(CHOICES)}"
    words = all(0 < len(x) <= LONGEST_NAME and x.isprintable() for x in row.values())
    return "" if words else f"a word is not 1 to {LONGEST_NAME} printable characters"


def earlier(name: str) -> str:
    """What a pair, or its file, of another run is called here: earlier-…, then earlier2-…, …"""
    before, own = re.findall(r"^(?:earlier(\d*)-)?(.*)", name)[0]
    return f"earlier{int(before or 1) + 1 if own != name else ''}-{own}"


def parse(line: bytes) -> tuple[Plain | None, str]:
    """The answer in a line, or why it is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None, "they are no JSON"
    why = wrong(row) if isinstance(row, dict) else "they have other columns"
    return (None, why) if why else (row, "")


def read_pairs(file: Path) -> dict[str, Pair]:
    """The pairs of a file; ValueError if it is damaged or holds a number that is not finite."""
    if file.is_symlink() or file.stat().st_size > LARGEST_QUESTIONS:
        raise ValueError(f"{file} is a link, or larger than {LARGEST_QUESTIONS} bytes")
    tensors, about = read_tensors(file, "no whole safetensors file")
    if about.pop("gpusim_rl", "") != FORMAT or tensors.keys() != {"view", "pose"}:
        raise ValueError(f"{file} holds no questions")
    # copies: the file itself is mapped, and may be cut while they are in use
    view, pose = tensors["view"].clone(), tensors["pose"].clone()
    if not (view.ndim == pose.ndim == 4 and view.shape[:3] == pose.shape[:3] and view.size(1) == 2):
        raise ValueError(f"{file} holds no pairs of clips")
    if not (view.isfinite().all() and pose.isfinite().all()):
        raise ValueError(f"{file} has a number that is not finite")
    shared, found = json.dumps(about, sort_keys=True).encode(), dict[str, Pair]()
    drawn = int(about["drawn"]) if about.get("drawn", "").isdecimal() else 0
    for i, clips in enumerate(zip(view, pose, strict=True)):
        data = b"".join(x.contiguous().numpy().tobytes() for x in clips)
        digest = hashlib.sha256(data + shared).hexdigest()[:16]
        chance = {"drawn": "yes"} if i < drawn else {}
        found[f"{file.stem}:{i}"] = Pair(*clips, digest, about | {"drawn": ""} | chance)
    return found
