"""The scores of an evaluation, against what its record says by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gpusim_rl.evaluation.evaluate import evaluate, play
from gpusim_rl.tasks.common.scores import walking_scores
from tests.worlds import Stateless, make_task, numbers

STEPS, DT, GAIT = 100, 0.02, 2.0
MOST = {"getup": 0.095, "reach": 0.095, "reach_pose": 0.09, "humanoid": 0.0}  # of successes


def walked(
    tracked: list[float], terminated: list[bool], commanded: list[float]
) -> dict[str, Tensor]:
    """The record of some robots: 0.1 m/s and 0.2 rad/s off, at 0.5 m/s, with feet at 5 cm."""
    worlds = len(tracked)
    every = torch.ones(STEPS, worlds)
    counted = every * torch.tensor(tracked)
    fell = torch.zeros(STEPS, worlds, dtype=torch.bool)
    fell[-1] = torch.tensor(terminated)
    return {
        "tracked": counted,
        "velocity_error": 0.01 * counted,
        "yaw_error": 0.04 * counted,
        "terminated": fell,
        "commanded": every * torch.tensor(commanded),
        "power": 60 * every,
        "speed": 0.5 * every,
        "x": 0.01 * torch.arange(STEPS)[:, None] * every,
        "y": 0 * every,
        "foot_FL": 0.05 * every,
        "foot_FR": 0.06 * every,
    }


def test_scores_of_robots_that_walk():
    """Errors of those that did something, energy of those that walked, and each cause by itself."""
    walk = walked([1, 1, 0], [False, True, True], [1, 1, 0])
    scores = walking_scores(walk, DT, GAIT)
    wanted = {"success": 1 / 3, "velocity_rmse": 0.1, "yaw_rmse": 0.2, "falls_per_episode": 2 / 3}
    wanted |= {"foot_lift": 0.05, "energy_per_metre": 120.0}
    wanted |= {"fell": 2 / 3, "off_velocity": 0.0, "off_yaw": 0.0}
    assert scores.pop("drift_still") is None
    assert scores == pytest.approx(wanted, rel=1e-5, abs=1e-12)
    strict = walking_scores(walk, DT, GAIT, 0.15)  # the yaw rates are off, too
    causes = [strict[name] for name in ("fell", "off_velocity", "off_yaw", "success")]
    assert causes == pytest.approx([2 / 3, 0.0, 2 / 3, 0.0])


def test_causes_on_rough_ground_are_those_of_its_success():
    """A robot fails that falls or makes too little way; errors of velocity and yaw are no cause."""
    record = walked([1, 1, 1], [False, True, False], [1, 1, 1])
    record |= {f"foot_{name}": record["foot_FL"] for name in ("RL", "RR")}
    record |= {"velocity_error": 4 * record["tracked"], "wanted": torch.ones(STEPS, 3)}
    record["progress"] = torch.tensor([0.8, 0.8, 0.7]).expand(STEPS, 3)
    scores = make_task("quadruped_rough").score(record)
    causes = {name: scores.get(name) for name in ("success", "fell", "off_distance")}
    assert causes == pytest.approx({name: 1 / 3 for name in causes})
    assert not {"off_velocity", "off_yaw"} & scores.keys()


def test_who_falls_at_once_has_no_errors():
    """Nothing is known of a robot that fell before its errors count: they are not 0."""
    scores = walking_scores(walked([0, 0], [True, True], [1, 0]), DT, GAIT)
    assert scores["success"] == 0 and scores["falls_per_episode"] == 1
    for name in ("velocity_rmse", "yaw_rmse", "foot_lift", "energy_per_metre", "drift_still"):
        assert scores[name] is None, name


def test_who_stands_drifts():
    """The drift of those that were told to stand is distance over time, without a second."""
    scores = walking_scores(walked([1], [False], [0]), DT, GAIT)
    assert scores["foot_lift"] is scores["energy_per_metre"] is None
    torch.testing.assert_close(scores["drift_still"], 0.5, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["reward", "terminated"])
def test_a_measure_has_a_name_of_its_own(name):
    """A measure with the name of what every evaluation records is refused before it begins."""
    task = make_task("cartpole")
    task.__class__ = type("Named", (type(task),), {"measure": lambda self, s: {name: s.qpos[:, 0]}})
    policy: Any = Stateless(lambda obs: torch.zeros(len(obs), 1))
    weights = numbers("cartpole")["weights"]
    with pytest.raises(ValueError, match=f"Named: rename the measure '{name}'"):
        play(policy, task, weights=weights, noise={}, episodes=2)


@pytest.mark.slow
@pytest.mark.parametrize("name, most", MOST.items())
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_chance_reaches_a_tenth_at_most(name, most, scale):
    """Actions of zero, and random ones, reach a tenth of the threshold at most."""
    task, generator = make_task(name), torch.Generator().manual_seed(0)
    nu, how = task.mjm.nu, {key: numbers(name)[key] for key in ("weights", "noise")}
    policy: Any = Stateless(lambda obs: scale * torch.randn(len(obs), nu, generator=generator))
    episodes = 128 if most else 32  # a single one that stands fails: 32 are enough
    scores = evaluate(policy, task, episodes=episodes, **how)
    assert scores["success"] is not None and scores["success"] <= most
    assert most or scores["fell"] == 1
