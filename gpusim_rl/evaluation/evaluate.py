"""Evaluation: how good a policy is, always measured in MuJoCo C with a converged solver."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.maths import wilson
from gpusim_rl.core.seeds import EVALUATION_SEEDS
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.core.waiting import counted
from gpusim_rl.envs.check_methods import check_scores
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.state import State
from gpusim_rl.envs.step import Step, ended
from gpusim_rl.envs.task import Scores, Task
from gpusim_rl.networks.policy import Policy, Views, restarted
from gpusim_rl.sim.actuated import make_actuated

SEED = EVALUATION_SEEDS  # of the final evaluation
STOP_SEED = EVALUATION_SEEDS + 1  # of evaluations during training
SEARCH_SEED = EVALUATION_SEEDS + 2  # of those by which the members of a search are compared
FEWEST = 128  # episodes that judge a policy, unless they leave open whether it succeeds
BAR = 0.95  # success that a policy is trained to


@dataclass(frozen=True)
class EpisodeRecord:
    """Episodes of B worlds, each played for the length of one."""

    task: Task  # as it was evaluated
    record: dict[str, Tensor]  # measure → (T, B), `terminated`: where a world failed, and `reward`
    returns: Tensor  # (B,) sum of rewards of the first episode
    begun: State  # in which the worlds began


def evaluate(policy: Policy, task: Task, *, episodes: int, **options: Any) -> Scores:
    """`success`, `episodes`, `return` (the mean sum of rewards of the first episodes) and the
    task's own scores. The arguments are those of `play`.

    ValueError if a score is not what `Task.score` says.
    """
    return scores_of([play(policy, task, episodes=episodes, **options)])


def judge(policy: Policy, task: Task, *, episodes: int, **options: Any) -> Scores:
    """As `evaluate`, with as many episodes as it takes to tell whether the policy succeeds.

    These are 128 where the 95 % interval of their success does not hold 0.95, and else all. The
    worlds are the same: the others are played after the first.

    Args:
        options: of `play`. `before_step` sees the first episodes alone.
    """
    played = play(policy, task, episodes=min(FEWEST, episodes), **options)
    scores = scores_of([played])
    share, n = scores["success"], int(scores["episodes"] or 0)
    low, high = wilson(round((share or 0.0) * n), n)
    if n == episodes or (share is not None and not low <= BAR <= high):
        return scores
    options |= dict(before_step=None, first=n)
    return scores_of([played, play(policy, task, episodes=episodes - n, **options)])


def scores_of(played: list[EpisodeRecord]) -> Scores:
    """The scores of all episodes of one task."""
    task, returns = played[0].task, torch.cat([x.returns for x in played])
    record = {k: torch.cat([x.record[k] for x in played], 1) for k in played[0].record}
    scores = task.score(record)
    check_scores(task, scores)
    # Outside the iteration the host may read: an evaluation runs on it.
    return {**scores, "return": returns.mean().item(), "episodes": len(returns)}


@torch.no_grad()
@torch_threads(1)
def play(
    policy: Policy,
    task: Task,
    *,
    weights: dict[str, float],
    noise: dict[str, float],
    episodes: int,
    steps: int | None = None,
    seed: int = SEED,
    first: int = 0,
    progress: Callable[[str], None] | None = None,
    before_step: Callable[[Env, int], None] | None = None,
) -> EpisodeRecord:
    """Take the mean action in `episodes` worlds, each for the length of one episode.

    A world that fails restarts and goes on; its episode counts once.

    Args:
        policy: on any device.
        task: as trained. What runs is its `evaluation()`.
        steps: control steps; None for those of one episode.
        first: number of the first world, of which its random numbers depend.
        progress: takes a line now and then, if there is no terminal; there, a bar is shown.
        before_step: called with the Env and the number of the step.
    """
    env = evaluation_env(task, episodes, weights=weights, noise=noise, seed=seed, first=first)
    task, measures, act = env.task, Measures(), MeanAction(policy, env.num_rows)
    begun = env.current_state()
    for name in {"terminated", "reward"} & {*task.measure(begun)}:
        raise ValueError(f"{type(task).__name__}: rename the measure {name!r}: it is taken")
    whole, returns = torch.ones(episodes), torch.zeros(episodes)
    steps = steps or task.horizon
    for t in counted(steps, "evaluating", progress) if progress else range(steps):
        if before_step:
            before_step(env, t)
        step = act.step(env, lambda s: measures.add(task.measure(s))).of_worlds(task.agents)
        returns += whole * step.reward
        # only a first episode is whole in every world: later ones are cut by the end
        whole *= (~(failed := step.terminated | step.fault)).float()
        measures.add({"terminated": failed, "reward": step.reward})
    return EpisodeRecord(task, measures.stacked(), returns, begun)


class MeanAction:
    """The mean action of a policy in B rows, and what it remembers of their episodes."""

    def __init__(self, policy: Policy, rows: int):
        self.policy, self.memory = policy, policy.blank_memory(rows)

    def __call__(self, views: Views) -> Tensor:
        """Views (B, …) → actions (B, nu)."""
        action, self.memory = self.policy.act(views, self.memory)
        return action

    def step(self, env: Env, on_step: Callable[[State], None] | None = None) -> Step:
        """Step an Env by the action, and forget the episodes that ended. See `Env.step`."""
        step = env.step(self(env.observation), on_step)
        self.restart(ended(step))
        return step

    def restart(self, rows: Tensor) -> None:
        """Forget the episodes of the rows (B,) bool."""
        self.memory = restarted(self.memory, rows)


class Measures:
    """The measures of every step."""

    def __init__(self) -> None:
        self.values: dict[str, list[Tensor]] = {}

    def add(self, values: dict[str, Tensor]) -> None:
        """Add the measures (B,) of a step. Those of a quarantined world may not be finite."""
        for name, value in values.items():
            value = torch.nan_to_num(value.float(), posinf=0.0, neginf=0.0).clamp(-1e6, 1e6)
            self.values.setdefault(name, []).append(value)

    def stacked(self) -> dict[str, Tensor]:
        """Each measure as (T, B)."""
        return {name: torch.stack(values) for name, values in self.values.items()}


def observe(
    policy: Policy, task: Task, *, weights: dict[str, float], noise: dict[str, float]
) -> dict[str, Tensor]:
    """View → (2048, …) from 64 worlds under the mean action: to check an export on."""
    rows: list[dict[str, Tensor]] = []
    options: dict[str, Any] = dict(weights=weights, noise=noise, seed=STOP_SEED)
    options["before_step"] = lambda env, t: rows.append(
        {name: x.clone() for name, x in env.observation.items()}
    )
    play(policy, task, episodes=64, steps=32, **options)
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def evaluation_env(
    task: Task,
    num_envs: int,
    *,
    weights: dict[str, float],
    noise: dict[str, float],
    seed: int,
    first: int = 0,
) -> Env:
    """The task as it is evaluated, in MuJoCo C."""
    task = task.evaluation()
    settings: dict[str, Any] = dict(device="cpu", fields=task.fields, threads=0)  # all cores
    sim = make_actuated("native", task.physics, num_envs, actuator=task.actuator, **settings)
    return Env(task, sim, seed=seed, weights=weights, noise=noise, first=first, stagger=False)
