"""How many episodes judge a policy at the end of a training."""

import pytest
import torch

from gpusim_rl.evaluation import evaluate as evaluation
from tests.worlds import make_env, numbers

OPTIONS = {"weights": numbers("cartpole")["weights"], "noise": numbers("cartpole")["noise"]}


class Still:
    """A policy of zero actions that remembers nothing."""

    def blank_memory(self, worlds):
        return {}

    def act(self, views, memory):
        return torch.zeros(len(views["actor"]), 1), memory


@pytest.mark.parametrize(
    "share, episodes", [(1.0, 128), (0.2, 128), (0.953, 512), (0.93, 512), (None, 512)]
)
def test_as_many_episodes_as_tell(monkeypatch, share, episodes):
    """128 where their interval does not hold 0.95, else all; the first are watched."""
    task, seen = make_env("cartpole", 2, episode=0.04).task, []
    monkeypatch.setattr(type(task), "score", lambda self, record: {"success": share})
    watch = {"before_step": lambda env, step: seen.append(env.num_envs)}
    scores = evaluation.judge(Still(), task, episodes=512, **OPTIONS, **watch)
    assert scores["episodes"] == episodes and {*seen} == {128}


def test_the_others_are_the_rest_of_the_same_worlds(monkeypatch):
    """In two parts the scores are those of all episodes at once."""
    monkeypatch.setattr(evaluation, "FEWEST", 3)
    task = make_env("cartpole", 2, episode=0.4).task
    monkeypatch.setattr(evaluation, "BAR", 0.0)  # it is in the interval of no success
    parts, whole = (
        rate(Still(), task, episodes=8, **OPTIONS)
        for rate in (evaluation.judge, evaluation.evaluate)
    )
    assert parts == whole and whole["episodes"] == 8
