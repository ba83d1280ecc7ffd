"""The calibration of a command: what an actor is told is corrected by what it makes of it."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.files import read_map, read_text
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.task import Task
from gpusim_rl.evaluation.drives import Drive, drive, tolerance
from gpusim_rl.evaluation.evaluate import STOP_SEED
from gpusim_rl.networks.calibration import Calibration, features
from gpusim_rl.networks.policy import Actor, Policy

FILE = "calibration.json"  # of a run
PASSES = 3  # at most
STRAIGHT = 2.0  # how much less a command with a zero may err
RIDGE, DECIMALS = 1.0, 4  # of the weights of a fit
COMMANDS = 32  # beside those of an evaluation, anywhere within their range
TIMES = 6.0, 2.0  # s of a drive, and those before its means begin
NAMES = "columns", "weights", "limit"  # of a calibration, in the file
LARGEST_CORRECTION = 0.25  # change of a command, as a share of the largest one


# Why: docs/decisions/walking.md
@torch.no_grad()
def calibrate(env: Env, policy: Policy, *, weights: dict[str, float]) -> list[Drive]:
    """Correct the command that the actor observes by what it makes of it. Changes the actor.

    What the actor observed is fitted to what the robot did. The actor then observes what makes
    the robot do what is asked, again until no drive at `task.drives` fails, as long as that lowers
    the errors.

    The starts differ from those of the final evaluation, which so judges what it did not fit.
    A task that does not observe its command as a term `command` is driven only.

    Returns the drives at `task.drives`, which the task of the training's Env has, with the
    calibration.
    """
    actor, task = policy.actor, env.task
    assert task.drives is not None
    listed, actor.calibration = task.drives.cpu(), None
    generator, extremes = torch.Generator().manual_seed(STOP_SEED), listed.abs().amax(0)
    anywhere = (2 * torch.rand(COMMANDS, len(extremes), generator=generator) - 1) * extremes
    asked = torch.cat((listed, anywhere))

    def driven() -> list[Drive]:
        return drive(policy, task, weights=weights, commands=asked, times=TIMES, seed=STOP_SEED)

    best = driven()
    if not task.command or env.term_widths.get("command") != len(task.command.names):
        return best[: len(listed)]
    width, columns = actor.normalizer.mean.shape[0], env.observer.columns("command").cpu()
    observed, rows, result, limit = [asked], [*best], None, LARGEST_CORRECTION * extremes
    for _ in range(PASSES):
        fitted = fit(torch.cat(observed), rows, task)
        actor.calibration = Calibration(columns, fitted, limit, width)
        correct = Calibration(torch.arange(len(limit))[None], fitted, limit, len(limit))
        actor.calibration.to(actor.normalizer.mean.device)
        drives = driven()
        if misfit(drives, task) >= misfit(best, task):
            break
        best, result = drives, actor.calibration
        if not any(x.failed for x in best[: len(listed)]):
            break  # what is asked is done
        observed, rows = [*observed, correct(asked)], [*rows, *drives]
    actor.calibration = result
    return best[: len(listed)]


def fit(observed: Tensor, drives: list[Drive], task: Task) -> Tensor:
    """(f, n) weights of the fit observed - got = features(got) @ weights, by least squares of the
    errors that `tolerance` makes comparable. A robot that fell does not count.

    Small weights are preferred where the drives do not tell. They are rounded, so that a rounding
    error of the solver cannot change what a run is. `observed` is (m, n), of each drive.
    """
    upright = torch.tensor([any(x.asked) and not x.fell for x in drives])
    asked, got = (torch.tensor([x[i] for x in drives])[upright] for i in (0, 1))
    error, inputs = tolerance(asked, task).double(), features(got.double())
    error = torch.where((asked != 0).all(1, keepdim=True), error, error / STRAIGHT)
    change, fits = observed[upright].double() - got, []
    for e, y in zip(error.T, change.T, strict=True):
        x, small = inputs / e[:, None], RIDGE * torch.eye(inputs.shape[1]).double()
        fits.append(torch.linalg.solve(x.T @ x + small, x.T @ (y / e)))
    return torch.stack(fits, 1).round(decimals=DECIMALS).float()


def misfit(drives: list[Drive], task: Task) -> float:
    """The sum of squares of the errors, in units of what is allowed; a fall counts as 100."""
    asked, got = (torch.tensor([x[i] for x in drives]) for i in (0, 1))
    fell = torch.tensor([x.fell for x in drives])
    squares = (((got - asked) / tolerance(asked, task)) ** 2).sum(1)
    return torch.where(fell, 100.0, squares).sum().item()


def record(actor: Actor, iteration: int) -> dict[str, Any]:
    """The content of calibration.json: what an actor has after an iteration."""
    result = actor.calibration
    if result is None:
        return {"iteration": iteration}
    return {"iteration": iteration} | {name: getattr(result, name).tolist() for name in NAMES}


def read(path: Path, actor: Actor, iteration: int) -> None:
    """Give an actor the calibration of an iteration that a file has, or none. In place."""
    actor.calibration = None
    width = actor.normalizer.mean.shape[0]
    try:
        description = read_map(read_text(path))
        if description["iteration"] != iteration or NAMES[0] not in description:
            return
        columns, *values = (torch.tensor(description[name]) for name in NAMES)
        calibration = Calibration(columns, *values, width=width)
        if calibration(torch.zeros(1, width)).isfinite().all():
            actor.calibration = calibration.to(actor.normalizer.mean.device)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError):
        return  # a run that was not driven has none
