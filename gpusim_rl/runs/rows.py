"""A file of rows, such as `metrics.jsonl`: one JSON object per line, one line per iteration."""

import json
from pathlib import Path
from typing import Any

from gpusim_rl.core.files import write_whole


class Rows:
    """The rows of one file.

    Args:
        path: of the file; it need not exist.
    """

    def __init__(self, path: Path):
        self.path = path
        self._waiting: list[str] = []  # lines that are not in the file yet

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row until `flush`."""
        self._waiting.append(json.dumps(row) + "\n")

    def flush(self) -> None:
        """Append the waiting rows. On an OSError the file is unchanged, and the rows still wait."""
        data = "".join(self._waiting).encode()
        with open(self.path, "ab", buffering=0) as file:
            before = file.tell()
            try:
                written = file.write(data)
                if written < len(data):
                    raise OSError(28, "No space left on device")
            except OSError:
                file.truncate(before)  # half a row would join the next one
                raise
        self._waiting.clear()

    def read(self) -> list[dict[str, Any]]:
        """The rows of the file, up to the first that is damaged or incomplete."""
        if not self.path.is_file():
            return []
        rows = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
                break
            rows.append(row)
        return rows

    def rewind(self, iteration: int) -> list[dict[str, Any]]:
        """Remove the rows after an iteration, and what is damaged; returns the rows that remain."""
        rows = [row for row in self.read() if row["iteration"] <= iteration]
        if rows or self.path.exists():
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return rows
