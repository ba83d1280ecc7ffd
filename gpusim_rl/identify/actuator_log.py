"""The log of an actuator: CSV rows of each joint, and the samples that a network learns from."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

COLUMNS = ("time", "joint", "target", "position", "velocity", "torque")
BLOCKS, EVERY = 20, 5  # every fifth of twenty blocks of time is held out
LARGEST_LOG_BYTES = 1 << 30  # bytes of a log
JITTER = 0.25  # how far a row may be off its time, as a share of the time between two rows


class Samples(NamedTuple):
    """Inputs of a network, and the torque that it should give."""

    errors: Tensor  # (n, offsets) rad, newest first
    speeds: Tensor  # (n, offsets) rad/s
    torque: Tensor  # (n,) N m

    def rows(self, index: Tensor) -> "Samples":
        """The samples of a mask or of indices."""
        return Samples(*(x[index] for x in self))


def read(path: Path) -> dict[str, np.ndarray]:
    """Joint → (n, 6) rows: line of the file, s, rad, rad, rad/s, N m.

    ValueError or OSError, which names the column or the row.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no log {path}")
    if path.stat().st_size > LARGEST_LOG_BYTES:
        raise ValueError(f"{path} is larger than {LARGEST_LOG_BYTES >> 20} MiB")
    joints: dict[str, list[list[float]]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = [name.strip() for name in next(lines, [])]
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                needed = f"its first row is {','.join(COLUMNS)}"
                raise ValueError(f"{path} has no column {', '.join(missing)}: {needed}")
            columns = [header.index(name) for name in COLUMNS]
            for row in lines:
                if row:
                    joint, numbers = parse(row, columns, f"{path}, row {lines.line_num}")
                    joints.setdefault(joint, []).append([lines.line_num, *numbers])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file: {error}") from None
    if not joints:
        raise ValueError(f"{path} has no rows")
    return {name: np.array(rows) for name, rows in joints.items()}


def parse(row: list[str], columns: list[int], where: str) -> tuple[str, list[float]]:
    """(joint, time and the four numbers) of a row."""
    if len(row) <= max(columns):
        raise ValueError(f"{where} has {len(row)} columns, fewer than the first row")
    numbers = []
    for name, i in zip(COLUMNS, columns, strict=True):
        if name == "joint":
            continue
        try:
            numbers.append(float(row[i]))
        except ValueError:
            raise ValueError(f"{where}: {name} is {row[i]!r}, not a number") from None
        if not abs(numbers[-1]) < 1e9:
            raise ValueError(f"{where}: {name} is {row[i]}, not a finite number below 1e9")
    return row[columns[COLUMNS.index("joint")]].strip(), numbers


def rate(joints: dict[str, np.ndarray], path: Path) -> float:
    """Seconds between two rows of a joint; ValueError names the first that comes otherwise."""
    steps = {name: np.diff(rows[:, 1]) for name, rows in joints.items()}
    dt = float(np.median(np.concatenate(list(steps.values()))))
    for name, gaps in steps.items():
        wrong = np.flatnonzero(~(np.abs(gaps - dt) <= JITTER * dt)) if dt > 0 else np.arange(1)
        if len(wrong):
            line, gap = int(joints[name][wrong[0] + 1, 0]), gaps[wrong[0]]
            says = f"{gap:.6g} s after the row before of joint {name!r}, others {dt:.6g} s"
            raise ValueError(f"{path}, row {line}: {says}")
    return float(f"{dt:.6g}")


def window(joints: dict[str, np.ndarray], offsets: list[int]) -> tuple[Samples, Tensor]:
    """All samples, and a mask (n,) of those held out. None reaches into another block of time."""
    first = min(rows[0, 1] for rows in joints.values())
    span = max(rows[-1, 1] for rows in joints.values()) - first + 1e-9
    errors, speeds, torques, held_out = [], [], [], []
    for rows in joints.values():
        block = ((rows[:, 1] - first) / span * BLOCKS).astype(int)
        now = np.arange(offsets[-1], len(rows))
        now = now[block[now] == block[now - offsets[-1]]]
        past = now[:, None] - np.array(offsets)
        errors.append((rows[:, 2] - rows[:, 3])[past])
        speeds.append(rows[:, 4][past])
        torques.append(rows[now, 5])
        held_out.append(block[now] % EVERY == EVERY - 1)
    samples = [torch.from_numpy(np.concatenate(x)).float() for x in (errors, speeds, torques)]
    return Samples(*samples), torch.from_numpy(np.concatenate(held_out))
