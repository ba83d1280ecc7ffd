"""What a command line with another learner of ours than PPO is composed to."""

import pytest

from gpusim_rl.config import compose
from tests.worlds import check_words, composed


def test_a_task_has_numbers_for_a_learner():
    """Its discount and its section `sac` count, its numbers for PPO do not; the line wins."""
    cfg = check_words("task=quadruped", "algo=sac")
    assert cfg.algo.name == "sac" and cfg.algo.settings.bound == 2.0
    assert cfg.algo.settings.gamma == composed("task=quadruped")["algo"]["gamma"] != 0.99
    assert (cfg.num_envs, cfg.num_steps, cfg.iterations) == (64, 16, 500)
    assert cfg.gpu == {} and "sac" not in cfg.plain
    # those of its section, none of PPO's
    own = ["task.weights.alive", "algo.target_std", "algo.learning_rate"]
    assert [*(cfg.curriculum or {})] == own
    fixed = check_words("task=quadruped", "algo=sac", "algo.target_std=0.1")
    assert [*(fixed.curriculum or {})] == [own[0], own[2]]
    words = ("task=quadruped", "algo=sac", "num_envs=32", "algo.bound=1.0", "algo.gamma=0.9")
    cfg = check_words(*words)
    assert (cfg.num_envs, cfg.algo.settings.bound, cfg.algo.settings.gamma) == (32, 1.0, 0.9)


def test_a_recipe_has_the_tasks_numbers_alone():
    """recipe=robot makes the task harder; how long PPO trains then is no matter of SAC."""
    cfg = check_words("task=drone", "algo=sac", "recipe=robot")
    assert cfg.task.numbers["observation_delay"] == [0, 3]
    assert cfg.iterations == check_words("task=drone", "algo=sac").iterations == 300


@pytest.mark.parametrize(
    "words, says",
    [
        (["algo.clip_coef=0.1"], "unknown key 'algo.clip_coef'"),
        (["sac.num_envs=8"], "unknown key 'sac.num_envs'"),
        (["algo.symmetry=augment"], "algo.symmetry=augment: choose one of auto, none, net"),
        (["algo.tau=0"], "algo.tau=0"),
    ],
)
def test_keys_that_it_has_not(words, says):
    """One line names them."""
    with pytest.raises(ValueError, match=says):
        check_words("task=cartpole", "algo=sac", *words)


def test_a_section_changes_no_task(tmp_path, elsewhere):
    """A user's file may have the section, and a key that it may not change is named."""
    folder = tmp_path / "conf" / "task"
    folder.mkdir(parents=True)
    text = "# @package _global_\ndefaults: [cartpole]\nsac: {%s}\n"
    (folder / "mine.yaml").write_text(text % "iterations: 7")
    assert compose.compose_plain("config", ["task=mine", "algo=sac"])["iterations"] == 7
    assert compose.compose_plain("config", ["task=mine"])["iterations"] == 80
    compose.build_cached.cache_clear()
    (folder / "mine.yaml").write_text(text % "task: {dt: 0.1}")
    with pytest.raises(ValueError, match=r"sac\.task\.dt: this section cannot change"):
        compose.compose_plain("config", ["task=mine", "algo=sac"])
