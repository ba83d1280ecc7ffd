"""Fit an actuator network to a log: `python -m gpusim_rl.fit_actuator log.csv [KEY=VALUE …]`.

The log is a CSV file that begins with the row

    time,joint,target,position,velocity,torque

in s, a name or a number, rad, rad, rad/s, N m: the rows of each joint in order of time, all at one fixed rate. One network is
fitted to all joints; more columns do no harm.

out      file to write, for robot.actuator.kind=net robot.actuator.file=… (default: the log's name, ending in .safetensors)
history  how far back its inputs lie [s] (default: 0,0.01,0.02): whole numbers of the log's rows, later of timesteps
hidden   units of each layer (default: 32,32,32)
steps    of the optimiser (default: 2000)
seed     of the first weights and of the samples' order (default: 0)

Every fifth of twenty blocks of the log's time is held out: the figures printed are of these, beside the best plain PD law's.
Exits with 0, or with 2 and one line for a mistake.
"""

import csv
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from gpusim_rl import config, values
from gpusim_rl.motor import DEEPEST, FARTHEST, WIDEST, Inputs, Net

COLUMNS = ("time", "joint", "target", "position", "velocity", "torque")
BLOCKS, EVERY = 20, 5  # every fifth block is held out
BATCH, RATE = 1024, 3e-3  # samples of a step, first learning rate
LARGEST = 1 << 30  # bytes of a log
JITTER = 0.25  # of a row's time
DEFAULTS = {"out": "", "history": "0,0.01,0.02", "hidden": "32,32,32", "steps": "2000", "seed": "0"}


class Samples(NamedTuple):
    """What a network sees, and what it should say."""

    errors: Tensor  # (n, offsets) rad, newest first
    speeds: Tensor  # (n, offsets) rad/s
    torque: Tensor  # (n,) N m

    def rows(self, chosen: Tensor) -> "Samples":
        """Those of a mask or of indices."""
        return Samples(*(x[chosen] for x in self))


# -- the log -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, np.ndarray]:
    """Joint → (n, 6) rows: line of the file, s, rad, rad, rad/s, N m. ValueError or OSError names the column or the row."""
    if not path.is_file():
        raise FileNotFoundError(f"no log {path}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is larger than {LARGEST >> 20} MiB")
    joints: dict[str, list[list[float]]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = [name.strip() for name in next(lines, [])]
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise ValueError(f"{path} has no column {', '.join(missing)}: its first row is {','.join(COLUMNS)}")
            at = [header.index(name) for name in COLUMNS]
            for row in lines:
                if row:
                    joint, numbers = parsed(row, at, f"{path}, row {lines.line_num}")
                    joints.setdefault(joint, []).append([lines.line_num, *numbers])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file: {error}") from None
    if not joints:
        raise ValueError(f"{path} has no rows")
    return {name: np.array(rows) for name, rows in joints.items()}


def parsed(row: list[str], at: list[int], where: str) -> tuple[str, list[float]]:
    """(joint, time and the four numbers) of a row."""
    if len(row) <= max(at):
        raise ValueError(f"{where} has {len(row)} columns, fewer than the first row")
    numbers = []
    for name, i in zip(COLUMNS, at, strict=True):
        if name == "joint":
            continue
        try:
            numbers.append(float(row[i]))
        except ValueError:
            raise ValueError(f"{where}: {name} is {row[i]!r}, not a number") from None
        if not abs(numbers[-1]) < 1e9:
            raise ValueError(f"{where}: {name} is {row[i]}, not a finite number below 1e9")
    return row[at[1]].strip(), numbers


def rate(joints: dict[str, np.ndarray], path: Path) -> float:
    """Seconds between two rows of a joint; ValueError names the first row that comes at another time."""
    steps = {name: np.diff(rows[:, 1]) for name, rows in joints.items()}
    dt = float(np.median(np.concatenate(list(steps.values()))))
    for name, found in steps.items():
        odd = np.flatnonzero(~(np.abs(found - dt) <= JITTER * dt)) if dt > 0 else np.arange(1)
        if len(odd):
            line, gap = int(joints[name][odd[0] + 1, 0]), found[odd[0]]
            raise ValueError(f"{path}, row {line}: {gap:.6g} s after the row before of joint {name!r}, others {dt:.6g} s")
    return float(f"{dt:.6g}")


def window(joints: dict[str, np.ndarray], offsets: list[int]) -> tuple[Samples, Tensor]:
    """All samples, and which are held out (n,); none reaches from one block of time into another."""
    first = min(rows[0, 1] for rows in joints.values())
    span = max(rows[-1, 1] for rows in joints.values()) - first + 1e-9
    errors, speeds, torques, held = [], [], [], []
    for rows in joints.values():
        block = ((rows[:, 1] - first) / span * BLOCKS).astype(int)
        now = np.arange(offsets[-1], len(rows))
        now = now[block[now] == block[now - offsets[-1]]]
        past = now[:, None] - np.array(offsets)
        errors.append((rows[:, 2] - rows[:, 3])[past])
        speeds.append(rows[:, 4][past])
        torques.append(rows[now, 5])
        held.append(block[now] % EVERY == EVERY - 1)
    errors, speeds, torques = (torch.tensor(np.concatenate(x), dtype=torch.float32) for x in (errors, speeds, torques))
    return Samples(errors, speeds, torques), torch.from_numpy(np.concatenate(held))


# -- the fit -------------------------------------------------------------------------------------------------------------


def fit(train: Samples, dt: float, offsets: list[int], *, hidden: list[int], steps: int, seed: int) -> Net:
    """The network of least mean squared error, by Adam with a learning rate that falls to zero (a cosine)."""
    scales = [max(float(x.double().square().mean().sqrt()), 1e-6) for x in train]
    inputs = Inputs(dt=dt, offsets=tuple(offsets), **dict(zip(("error", "speed", "torque"), scales, strict=True)))
    draw = torch.Generator().manual_seed(seed)
    layers = []
    for n, m in pairwise([2 * len(offsets), *hidden, 1]):
        weight = (torch.rand(m, n, generator=draw) * 2 - 1) * math.sqrt(6 / (n + m))
        layers.append((weight.requires_grad_(), torch.zeros(m, requires_grad=True)))
    net = Net(inputs, layers)
    optimiser = torch.optim.Adam([x for layer in layers for x in layer], lr=RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in track(range(steps), "fitting", disable=not sys.stdout.isatty(), transient=True):
        batch = train.rows(torch.randint(len(train.torque), (BATCH,), generator=draw))
        loss = ((net(batch.errors, batch.speeds) - batch.torque) / inputs.torque).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        falling.step()
    return Net(inputs, [(w.detach(), b.detach()) for w, b in layers])


def plain(train: Samples) -> Tensor:
    """(2,) kp [N m/rad] and kd [N m s/rad] of τ = kp e - kd q̇ with the least squared error."""
    seen = torch.stack([train.errors[:, 0], -train.speeds[:, 0]], 1).double()
    return torch.linalg.lstsq(seen, train.torque.double()[:, None], driver="gelsd").solution[:, 0]


def judge(found: Tensor, torque: Tensor) -> tuple[float, float]:
    """(RMSE [N m], share of the variance explained)."""
    rest, spread = ((x.double() - y.double()).square().mean().item() for x, y in ((found, torque), (torque, torque.mean())))
    return math.sqrt(rest), 1 - rest / max(spread, 1e-12)


def settings(words: list[str]) -> tuple[Path, Path, dict[str, list[float]]]:
    """(log, file to write, the numbers of each other key) of a command line; ValueError in one line."""
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    wrong = [word for word in words[1:] if word.split("=", 1)[0] not in DEFAULTS or "=" not in word]
    if wrong or not words or "=" in words[0]:
        raise ValueError(f"{' '.join(wrong or words)}: expected a log, and perhaps KEY=VALUE of {', '.join(DEFAULTS)}")
    log, values = Path(words[0]), DEFAULTS | given
    out = values.pop("out") or str(log.with_suffix(".safetensors"))
    numbers = {}
    for key, value in values.items():
        try:
            numbers[key] = [float(x) if key == "history" else int(x) for x in value.strip("[]").split(",")]
        except ValueError:
            raise ValueError(f"{key}={value}: expected numbers, such as {DEFAULTS[key]}") from None
    bounds = {"history": (0, 10), "hidden": (1, WIDEST), "steps": (1, 10**7), "seed": (0, 2**31)}
    for key, (least, most) in bounds.items():
        count = 1 if key in ("steps", "seed") else DEEPEST - 1
        if len(numbers[key]) > count or not all(least <= x <= most for x in numbers[key]):
            raise ValueError(f"{key}={values[key]}: expected at most {count}, from {least} to {most}")
    return log, Path(out), numbers


def look_back(history: list[float], dt: float) -> list[int]:
    """The offsets in rows; ValueError unless they are whole numbers."""
    rows = [x / dt for x in history]
    found = sorted({round(x) for x in rows})
    if any(abs(x - round(x)) > 0.01 for x in rows) or found[0] != 0 or found[-1] > FARTHEST:
        says = ",".join(f"{x:g}" for x in history)
        raise ValueError(f"history={says}: expected 0 and whole numbers of the log's rows of {dt:g} s, at most {FARTHEST}")
    return found


def main(words: list[str]) -> None:
    """Read, fit, judge, write."""
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        raise SystemExit(0 if words else 2)
    with config.one_line():
        log, out, numbers = settings(words)
        values.writable("out", str(out), (".safetensors",))
        joints = read(log)
        dt = rate(joints, log) if any(len(rows) > 1 for rows in joints.values()) else 1.0
        offsets = look_back(numbers["history"], dt)
        samples, held = window(joints, offsets)
        train, rest = samples.rows(~held), samples.rows(held)
        if len(train.torque) < 100 or len(rest.torque) < 20:
            raise ValueError(f"{log} has {len(samples.torque)} usable rows: too few to learn from")
    counts = {"hidden": [int(x) for x in numbers["hidden"]], "steps": int(numbers["steps"][0]), "seed": int(numbers["seed"][0])}
    torch.set_num_threads(1)  # a small network gains nothing from more, and they wait for one another
    net = fit(train, dt, offsets, **counts)
    kp, kd = plain(train).tolist()
    print(f"{len(joints)} joints, {len(train.torque)} samples to learn from, {len(rest.torque)} held out, a row each {dt:g} s")
    error, share = judge(kp * rest.errors[:, 0] - kd * rest.speeds[:, 0], rest.torque)
    print(f"PD law   RMSE {error:.4g} N m, {share:.4f} of the variance: kp {kp:.4g} N m/rad, kd {kd:.4g} N m s/rad")
    error, share = judge(net(rest.errors, rest.speeds), rest.torque)
    print(f"network  RMSE {error:.4g} N m, {share:.4f} of the variance")
    with config.one_line():
        net.save(out)
    print(f"wrote {out}: robot.actuator.kind=net robot.actuator.file={out}")


if __name__ == "__main__":
    main(sys.argv[1:])
