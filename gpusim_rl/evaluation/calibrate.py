"""The calibration of a command: what an actor is told is corrected by what it makes of it."""

import json
from pathlib import Path
from typing import Any

import torch

from gpusim_rl.core.files import read_text
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.drives import Drive, drive, tolerance
from gpusim_rl.evaluation.evaluate import STOP_SEED
from gpusim_rl.networks.policy import Actor, Policy

FILE = "calibration.json"  # of a run
PASSES = 2  # at most
UNITY = 0.0, 1.0  # a, b of a fit that corrects nothing
SLOPES = 0.5, 2.0  # of a fit that is believed


# Why: docs/decisions/0081-as-fast-as-told.md
@torch.no_grad()
def calibrate(env: Env, policy: Policy, *, weights: dict[str, float]) -> list[Drive]:
    """Correct the command that the actor observes by what it makes of it. Changes the actor.

    A line got = a + b asked is fitted to each axis of the drives. By its `gain` and `offset` the
    actor then observes (asked - a) / b instead of a command, as long as that lowers the errors.

    The starts differ from those of the final evaluation, which so judges what it did not fit.
    A task that does not observe its command as a term `command` is driven only.

    Args:
        env: of the training; its task has `drives`.

    Returns:
        The drives with the calibration.
    """
    actor, task = policy.actor, env.task
    if not task.command or env.term_widths.get("command") != len(task.command.names):
        return drive(policy, task, weights=weights, seed=STOP_SEED)
    columns = env.observer.columns("command").to(actor.gain.device)
    actor.forget_calibration()
    best = drive(policy, task, weights=weights, seed=STOP_SEED)
    for _ in range(PASSES):
        before, lines = (actor.gain.clone(), actor.offset.clone()), fit(best, task)
        if not any(line != UNITY for line in lines):
            break
        for axis, (a, b) in enumerate(lines):
            at = columns[:, axis]
            actor.offset[at] -= actor.gain[at] * a / b
            actor.gain[at] /= b
        drives = drive(policy, task, weights=weights, seed=STOP_SEED)
        if misfit(drives, task) >= misfit(best, task):
            actor.gain.copy_(before[0])
            actor.offset.copy_(before[1])
            break
        best = drives
    return best


def fit(drives: list[Drive], task: Task) -> list[tuple[float, float]]:
    """(a, b) of each axis, of the line got = a + b asked: least squares of the errors that
    `tolerance` makes comparable.

    0, 1 where half of the robots fell. b is 1 if the slope is far from it.
    """
    upright: list[Any] = [x for x in drives if any(x.asked) and not x.fell]
    if 2 * len(upright) < len(drives):
        return [UNITY] * len(drives[0].asked)
    asked, got = (torch.tensor([x[i] for x in upright]).double() for i in (0, 1))
    share = tolerance(asked, task) ** -2
    share /= share.sum(0)
    center, mean = (share * asked).sum(0), (share * got).sum(0)
    slopes = (share * (asked - center) * got).sum(0) / (share * (asked - center) * asked).sum(0)
    low, high = SLOPES
    slopes = torch.where((slopes > low) & (slopes < high), slopes, 1.0)
    return list(zip((mean - slopes * center).tolist(), slopes.tolist(), strict=True))


def misfit(drives: list[Drive], task: Task) -> float:
    """The sum of squares of the errors, in units of what is allowed; a fall counts as 100."""
    asked, got = (torch.tensor([x[i] for x in drives]) for i in (0, 1))
    fell = torch.tensor([x.fell for x in drives])
    squares = (((got - asked) / tolerance(asked, task)) ** 2).sum(1)
    return torch.where(fell, 100.0, squares).sum().item()


def record(actor: Actor, iteration: int) -> dict[str, Any]:
    """The content of calibration.json: what an actor has after an iteration."""
    return {"iteration": iteration, "gain": actor.gain.tolist(), "offset": actor.offset.tolist()}


def read(path: Path, actor: Actor, iteration: int) -> None:
    """Give an actor the calibration of an iteration that a file has, or none. In place."""
    actor.forget_calibration()
    try:
        about = json.loads(read_text(path))
        gain, offset = (torch.tensor(about[key]) for key in ("gain", "offset"))
        fits = gain.shape == offset.shape == actor.gain.shape
        if about["iteration"] == iteration and fits and (gain + offset).isfinite().all():
            actor.gain.copy_(gain)
            actor.offset.copy_(offset)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return  # a run that was not driven has none
