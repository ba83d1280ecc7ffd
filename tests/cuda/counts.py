"""The table of nodes in a control step and in an update, by task, part and function.

`count.py` makes it, and `make cuda-test` compares with it. A node is a kernel, a copy or a fill:
what a CUDA graph launches by itself.
"""

import json
from collections import Counter
from pathlib import Path

TABLE = Path(__file__).parent / "counts.json"
ALLOWED = 3  # nodes by which a part may grow

Counts = dict[str, dict[str, int]]  # part → function → nodes


def read() -> dict[str, Counts]:
    """Task → its counts when the table was made."""
    return json.loads(TABLE.read_text())


def write(table: dict[str, Counts]) -> None:
    """Renews the table."""
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


def growth(before: Counts, now: Counts) -> list[str]:
    """A line for each part that has grown, with the functions in which it did."""
    lines = []
    for part, functions in now.items():
        old = before.get(part, {})
        nodes, limit = sum(functions.values()), sum(old.values()) + ALLOWED
        if nodes > limit:
            more = (Counter(functions) - Counter(old)).most_common()
            names = ", ".join(f"{name} by {n}" for name, n in more)
            lines.append(f"{part}: {nodes} nodes, at most {limit}; what grew: {names}")
    return lines
