"""Asked against got: a robot that walks is driven at constant commands, without disturbances."""

import copy
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.randomization.entries import Entry
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Scores, Task
from gpusim_rl.evaluation.evaluate import SEED, MeanAction, evaluation_env
from gpusim_rl.networks.policy import Policy

FILE = "drives.json"  # of a run
SECONDS, SETTLE = 12.0, 4.0  # s of a drive, and those before its mean begins
RELATIVE, LEAST = 0.08, 0.03  # of the command, and in its units: the error that a drive may have
FOREVER = 1e6  # s: no second command is drawn


class Drive(NamedTuple):
    """A constant command, and what the robot made of it, each in the units of the command."""

    asked: list[float]
    got: list[float]
    fell: bool

    @property
    def followed(self) -> bool:
        """Whether it did not fall, and each mean is within `RELATIVE` or `LEAST` of the command."""
        pairs = zip(self.asked, self.got, strict=True)
        near = (abs(got - asked) <= max(LEAST, RELATIVE * abs(asked)) for asked, got in pairs)
        return not self.fell and all(near)


def without_draws(randomise: Entry) -> Entry:
    """A copy in which nothing is randomized."""
    quiet = copy.deepcopy(randomise)
    for entry in quiet.values():
        if "kind" in entry:
            entry["kind"] = "off"
        else:
            entry.update(without_draws(entry))
    return quiet


@torch.no_grad()
@torch_threads(1)
def drive(policy: Policy, task: Task, *, weights: dict[str, float]) -> list[Drive]:
    """Drive the nominal robot at each of `task.drives`, without noise and pushes.

    It begins as an episode does. The physics is the model's own, as in an evaluation.
    """
    assert task.drives is not None
    asked = task.drives.cpu()
    nominal: dict[str, Any] = dict(randomise=without_draws(task.randomise), redraw=FOREVER)
    task = replace(task, **nominal)
    env = evaluation_env(task, len(asked), weights=weights, noise={}, seed=SEED)
    env.set_memory("command", asked)
    act, speeds = MeanAction(policy, len(asked)), []
    fell = torch.zeros(len(asked), dtype=torch.bool)

    def add(s: State) -> None:
        speeds.append(env.task.followed(s).cpu())

    for _step in range(round(SECONDS / task.dt)):
        step = act.step(env, add)
        fell |= (step.terminated | step.fault).cpu()
    got = torch.stack(speeds[round(SETTLE / task.dt) :]).mean(0)
    rows = zip(asked.tolist(), got.tolist(), fell.tolist(), strict=True)
    return [Drive(*row) for row in rows]


def drive_scores(drives: list[Drive], names: tuple[str, ...]) -> Scores:
    """`as_told`, the share of drives that were followed, and the mean error along each axis.

    `bias_<name>` is in the units of the command, of the drives that ask for that axis alone.
    """
    scores: Scores = {"as_told": sum(x.followed for x in drives) / len(drives)}
    for axis, name in enumerate(names):
        alone = [x for x in drives if x.asked[axis] and sum(map(bool, x.asked)) == 1 and not x.fell]
        errors = [x.got[axis] - x.asked[axis] for x in alone]
        scores[f"bias_{name}"] = sum(errors) / len(errors) if errors else None
    return scores
