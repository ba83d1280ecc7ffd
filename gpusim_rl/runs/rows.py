"""A file of rows, such as `metrics.jsonl`: one JSON object per line, one line per iteration."""

import json
from pathlib import Path

from gpusim_rl.core.files import Plain, write_whole

LONGEST_ROW = 1 << 20  # characters of a row


def parse(line: str) -> Plain | None:
    """The row in a line; None if it is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("iteration"), int) else None


class Rows:
    """The rows of one file, which need not exist."""

    def __init__(self, path: Path):
        self.path = path
        self._waiting: list[str] = []  # lines that are not in the file yet
        self.damaged = 0  # rows that the last `read` left out

    def add(self, row: Plain) -> None:
        """Keep a row until `flush`."""
        self._waiting.append(json.dumps(row) + "\n")

    def flush(self) -> None:
        """Append the waiting rows. On an OSError the file is unchanged, and the rows still wait."""
        data = "".join(self._waiting).encode()
        with open(self.path, "ab", buffering=0) as file:
            before = file.tell()
            try:
                # one write: a reader or a crash sees whole rows, or the rest is cut off
                written = file.write(data)
                if written < len(data):
                    raise OSError(28, "No space left on device")
            except OSError:
                file.truncate(before)  # half a row would join the next one
                raise
        self._waiting.clear()

    def read(self) -> list[Plain]:
        """The rows of the file, without damaged ones and without a last one that is incomplete.

        It ends at a line of more than a megabyte, because no row is that long.
        """
        self.damaged = 0
        if not self.path.is_file():
            return []
        rows = []
        with open(self.path, encoding="utf-8", errors="replace") as file:
            while (line := file.readline(LONGEST_ROW)).endswith("\n"):
                row = parse(line)
                if row is None:
                    self.damaged += 1
                else:
                    rows.append(row)
        self.damaged += len(line) == LONGEST_ROW
        return rows

    def rewind(self, iteration: int) -> list[Plain]:
        """Remove the rows after an iteration, and what is damaged; returns the rows that remain.

        A file that has nothing else is not written: its disk may be full.
        """
        rows = [row for row in self.read() if row["iteration"] <= iteration]
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if self.path.exists() and (self.damaged or self.path.stat().st_size != len(data)):
            write_whole(self.path, data)
        return rows
