"""Asked against got: a robot that walks is driven at constant commands, without disturbances."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.randomization.entries import Entry
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import ERRORS, Scores, Task
from gpusim_rl.evaluation.evaluate import SEED, MeanAction, Measures, evaluation_env
from gpusim_rl.networks.policy import Policy

FILE = "drives.json"  # of a run
SECONDS, SETTLE = 12.0, 4.0  # s of a drive, and those before its means begin
FOREVER = 1e6  # s: no second command is drawn


class Drive(NamedTuple):
    """A constant command, and what the robot made of it, each in the units of the command."""

    asked: list[float]
    got: list[float]  # the mean of what was done
    failed: Sequence[str] = ()  # why: `fell`, axes that are off, and measures beyond their bound
    measures: Mapping[str, float] = MappingProxyType({})  # name → mean of each that has a bound

    @property
    def fell(self) -> bool:
        """Whether the robot fell, or its numbers were not finite."""
        return "fell" in self.failed


def without_draws(randomise: Entry) -> Entry:
    """A copy in which nothing is randomized."""
    quiet = copy.deepcopy(randomise)
    for entry in quiet.values():
        if "kind" in entry:
            entry["kind"] = "off"
        else:
            entry.update(without_draws(entry))
    return quiet


def tolerance(asked: Tensor, task: Task) -> Tensor:
    """The mean error (n, width) that a drive at a command (n, width) may have."""
    limits = ERRORS | task.drive_limits
    return (limits["relative"] * asked.abs()).clamp(min=limits["least"])


@torch.no_grad()
@torch_threads(1)
def drive(
    policy: Policy,
    task: Task,
    *,
    weights: dict[str, float],
    commands: Tensor | None = None,
    times: tuple[float, float] | None = None,
    seed: int = SEED,
) -> list[Drive]:
    """Drive the nominal robot at constant commands on level ground, without noise and pushes.

    It begins as an episode does, and takes no longer than one. The physics is the model's own, as
    in an evaluation.

    Args:
        commands: (n, width); by default `task.drives`.
        times: seconds of a drive, and those before its means begin; by default SECONDS, SETTLE.
    """
    assert task.drives is not None
    assert task.command is not None
    asked = task.drives.cpu() if commands is None else commands
    nominal: dict[str, Any] = dict(randomise=without_draws(task.randomise), redraw=FOREVER)
    nominal |= {"actuator": replace(task.actuator, delay=sum(task.actuator.delays) / 2)}
    nominal_task = replace(task.on_level_ground(), **nominal)
    env = evaluation_env(nominal_task, len(asked), weights=weights, noise={}, seed=seed)
    env.set_memory("command", asked)
    act, speeds, measures = MeanAction(policy, env.num_rows), [], Measures()
    bounds = {name: x for name, x in task.drive_limits.items() if name not in ERRORS}
    fell = torch.zeros(len(asked), dtype=torch.bool)

    def add(s: State) -> None:
        speeds.append(env.task.followed(s).cpu())
        values = env.task.measure(s)
        measures.add({name: values[name] for name in bounds})

    seconds, settle = times or (SECONDS, SETTLE)
    seconds = min(seconds, task.episode)  # no time limit on the way
    for _step in range(round(seconds / task.dt)):
        step = act.step(env, add).of_worlds(task.agents)
        fell |= (step.terminated | step.fault).cpu()
    first = round(min(settle, seconds / 3) / task.dt)
    got = torch.stack(speeds[first:]).mean(0)
    means = {name: x[first:].mean(0) for name, x in measures.stacked().items()}
    off = (got - asked).abs() > tolerance(asked, task)
    failed = {"fell": fell} | dict(zip(task.command.names, off.T, strict=True))
    failed |= {name: means[name] > bound for name, bound in bounds.items()}
    whys = [[why for why, which in failed.items() if which[i]] for i in range(len(asked))]
    measured = [{name: x[i].item() for name, x in means.items()} for i in range(len(asked))]
    return [*map(Drive, asked.tolist(), got.tolist(), whys, measured)]


def drive_scores(drives: list[Drive], names: tuple[str, ...]) -> Scores:
    """The scores of drives, in the units of the command.

    `tracking` is the share of drives without a failure, `not_<why>` that which fails for a reason.
    For each axis, of the drives that ask for it alone: `bias_<name>` is the mean error, and
    `dead_<name>` the largest command of which less than half was done. None if no drive tells.
    """
    failed = [why for x in drives for why in x.failed]
    scores: Scores = {"tracking": share_tracked(drives)}
    scores |= {f"not_{why}": failed.count(why) / len(drives) for why in dict.fromkeys(failed)}
    for axis, name in enumerate(names):
        alone = [x for x in drives if x.asked[axis] and sum(map(bool, x.asked)) == 1]
        pairs = [(x.asked[axis], x.got[axis]) for x in alone if not x.fell]
        errors = [got - asked for asked, got in pairs]
        scores[f"bias_{name}"] = sum(errors) / len(errors) if errors else None
        dead = [abs(asked) for asked, got in pairs if got / asked < 0.5]
        scores[f"dead_{name}"] = max(dead, default=0.0) if pairs else None
    return scores


def share_tracked(drives: list[Drive]) -> float:
    """The share of drives without a failure."""
    return sum(not x.failed for x in drives) / len(drives)


def add_drives(scores: Scores, drives: list[Drive], task: Task) -> Scores:
    """The scores of episodes with those of drives: `success` is the product of both shares.

    So it is the chance that neither an episode nor a drive fails. `episodes_passed` is the share of
    episodes alone. Without drives the scores stay as they are.
    """
    if not drives or task.command is None:
        return scores
    passed, driven = scores["success"] or 0.0, drive_scores(drives, task.command.names)
    success = passed * (driven["tracking"] or 0.0)
    return {**scores, "success": success, "episodes_passed": passed} | driven


def record(drives: list[Drive], task: Task) -> dict[str, Any]:
    """The content of drives.json: names and units of a command, bounds, and each drive."""
    assert task.command is not None
    return {
        "names": task.command.names,
        "units": task.command.units,
        "bounds": ERRORS | task.drive_limits,
        "drives": [x._asdict() | {"measures": {**x.measures}} for x in drives],
    }
