"""Fit an actuator network to a log: `gpusim identify actuator log.csv [KEY=VALUE …]`.

The log is a CSV file that begins with the row

    time,joint,target,position,velocity,torque

in s, a name or a number, rad, rad, rad/s, N m. The rows of each joint are in order of time, all at
one fixed rate. One network is fitted to all joints. The file may have more columns.

Keys:

    out      file to write, for robot.actuator.kind=net robot.actuator.file=FILE
             (default: the log's name, ending in .safetensors)
    history  how far back the inputs lie [s] (default: 0,0.01,0.02)
             These must be whole numbers of the log's rows, and later of timesteps.
    hidden   units of each layer (default: 32,32,32)
    steps    of the optimizer (default: 2000)
    seed     of the first weights and of the samples' order (default: 0)

Every fifth of twenty blocks of the log's time is held out. The figures printed are of these, beside
those of the best plain PD law. Exits with 0, or with 2 and one line for a mistake.
"""

import math
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from gpusim_rl.config import validate
from gpusim_rl.core import errors
from gpusim_rl.core.arguments import parse, show_usage
from gpusim_rl.core.waiting import counted
from gpusim_rl.identify.actuator_log import Samples, rate, read, window
from gpusim_rl.sim.actuator_models import DEEPEST, FARTHEST, WIDEST, Inputs, Net

BATCH, RATE = 1024, 3e-3  # samples of a step, first learning rate
DEFAULTS = {"out": "", "history": "0,0.01,0.02", "hidden": "32,32,32", "steps": "2000", "seed": "0"}


def fit(
    train: Samples, dt: float, offsets: list[int], *, hidden: list[int], steps: int, seed: int
) -> Net:
    """The network of least mean squared error, by Adam; a cosine takes its rate to zero."""
    error, speed, torque = (max(float(x.double().square().mean().sqrt()), 1e-6) for x in train)
    inputs = Inputs(dt=dt, offsets=tuple(offsets), error=error, speed=speed, torque=torque)
    draw = torch.Generator().manual_seed(seed)
    layers = []
    for n, m in pairwise([2 * len(offsets), *hidden, 1]):
        weight = (torch.rand(m, n, generator=draw) * 2 - 1) * math.sqrt(6 / (n + m))
        layers.append((weight.requires_grad_(), torch.zeros(m, requires_grad=True)))
    net = Net(inputs, layers)
    optimizer = torch.optim.Adam([x for layer in layers for x in layer], lr=RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in counted(steps, "fitting"):
        batch = train.rows(torch.randint(len(train.torque), (BATCH,), generator=draw))
        loss = ((net(batch.errors, batch.speeds) - batch.torque) / inputs.torque).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
    return Net(inputs, [(w.detach(), b.detach()) for w, b in layers])


def pd_gains(train: Samples) -> Tensor:
    """(2,) kp [N m/rad] and kd [N m s/rad] of τ = kp e - kd q̇ with the least squared error."""
    inputs = torch.stack([train.errors[:, 0], -train.speeds[:, 0]], 1).double()
    return torch.linalg.lstsq(inputs, train.torque.double()[:, None], driver="gelsd").solution[:, 0]


def score(predicted: Tensor, torque: Tensor) -> tuple[float, float]:
    """(RMSE [N m], share of the variance explained)."""
    pairs = (predicted, torque), (torque, torque.mean())
    rest, spread = ((x.double() - y.double()).square().mean().item() for x, y in pairs)
    return math.sqrt(rest), 1 - rest / max(spread, 1e-12)


def settings(arguments: list[str]) -> tuple[Path, Path, dict[str, list[float]]]:
    """(log, file to write, the numbers of each other key) of a command line, or ValueError."""
    expected = f"a log, and perhaps KEY=VALUE of {', '.join(DEFAULTS)}"
    (log,), pairs = parse(arguments, DEFAULTS, expected, most=1)
    values = DEFAULTS | pairs
    out = Path(values.pop("out") or Path(log).with_suffix(".safetensors"))
    return Path(log), out, {key: numbers(key, value) for key, value in values.items()}


def numbers(key: str, value: str) -> list[float]:
    """The numbers of a key; ValueError if there are too many or one is out of bounds."""
    kind = float if key == "history" else int
    try:
        values = [kind(x) for x in value.strip("[]").split(",")]
    except ValueError:
        raise ValueError(f"{key}={value}: expected numbers, such as {DEFAULTS[key]}") from None
    bounds = {"history": (0, 10), "hidden": (1, WIDEST), "steps": (1, 10**7), "seed": (0, 2**31)}
    low, high = bounds[key]
    count = 1 if key in ("steps", "seed") else DEEPEST - 1
    if len(values) > count or not all(low <= x <= high for x in values):
        raise ValueError(f"{key}={value}: expected at most {count}, from {low} to {high}")
    return values


def look_back(history: list[float], dt: float) -> list[int]:
    """The offsets in rows; ValueError unless they are whole numbers."""
    rows = [x / dt for x in history]
    offsets = sorted({round(x) for x in rows})
    whole = all(abs(x - round(x)) <= 0.01 for x in rows)
    if not whole or offsets[0] != 0 or offsets[-1] > FARTHEST:
        text = ",".join(f"{x:g}" for x in history)
        expected = f"0 and whole numbers of the log's rows of {dt:g} s, at most {FARTHEST}"
        raise ValueError(f"history={text}: expected {expected}")
    return offsets


def main(arguments: list[str]) -> None:
    """Read, fit, score, write."""
    show_usage(arguments, __doc__)
    with errors.one_line_errors():
        log, out, values = settings(arguments)
        validate.writable("out", str(out), (".safetensors",), [str(log)])
        joints = read(log)
        dt = rate(joints, log) if any(len(rows) > 1 for rows in joints.values()) else 1.0
        offsets = look_back(values["history"], dt)
        samples, held_out = window(joints, offsets)
        train, rest = samples.rows(~held_out), samples.rows(held_out)
        if len(train.torque) < 100 or len(rest.torque) < 20:
            raise ValueError(f"{log} has {len(samples.torque)} usable rows: too few to learn from")
    torch.set_num_threads(1)  # More gain nothing on a small network: they wait for one another.
    hidden, (steps,), (seed,) = (list(map(int, values[x])) for x in ("hidden", "steps", "seed"))
    net = fit(train, dt, offsets, hidden=hidden, steps=steps, seed=seed)
    kp, kd = pd_gains(train).tolist()
    counts = f"{len(train.torque)} samples to learn from, {len(rest.torque)} held out"
    print(f"{len(joints)} joints, {counts}, a row each {dt:g} s")
    error, share = score(kp * rest.errors[:, 0] - kd * rest.speeds[:, 0], rest.torque)
    gains = f"kp {kp:.4g} N m/rad, kd {kd:.4g} N m s/rad"
    print(f"PD law   RMSE {error:.4g} N m, {share:.4f} of the variance: {gains}")
    error, share = score(net(rest.errors, rest.speeds), rest.torque)
    print(f"network  RMSE {error:.4g} N m, {share:.4f} of the variance")
    with errors.one_line_errors():
        net.save(out)
    print(f"wrote {out}: robot.actuator.kind=net robot.actuator.file={out}")
