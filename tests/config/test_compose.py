"""Composition from files that are read once gives what Hydra gives."""

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from gpusim_rl.config import check_words, command_line
from gpusim_rl.config.compose import compose_plain, compose_words
from gpusim_rl.config.nested_dict import flatten
from gpusim_rl.core.paths import CONF


@pytest.mark.parametrize(
    "name, words",
    [
        ("config", []),
        ("config", ["task=humanoid", "seed=3", "task.weights.action_rate=0.5"]),
        ("config", ["task.noise={gyro: 0.1}", "task=quadruped_rough", "algo.hidden=[8]"]),
        ("config", ["sim=warp", "log=none", "recipe=robot", "++curriculum.task.clip.stop=3"]),
        ("config", ["algo=sac", "algo.gamma=0.9", "~task"]),
        ("play", ["run=here", "mode=gate"]),
    ],
)
def test_words_are_applied_as_hydra_does(name, words):
    """Twice the same, so that nothing is left in the files that are kept."""
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        expected = OmegaConf.to_container(compose(name, overrides=words), resolve=True)
        assert compose_words(name, words) == expected == compose_words(name, words)


def test_a_changed_file_is_read_again(tmp_path, elsewhere):
    """A file of the working directory that is written anew is composed anew."""
    file = tmp_path / "conf" / "task" / "mine.yaml"
    file.parent.mkdir(parents=True)
    seen = []
    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        for number in (1, 22):
            file.write_text(f"# @package _global_\ndefaults: [cartpole]\nnum_envs: {number}\n")
            seen.append(compose_words("config", ["task=mine"])["num_envs"])
    assert seen == [1, 22]


def test_cfg_prints_what_is_trained(capsys):
    """--cfg job has the numbers of the recipe, and a curriculum of the command line."""
    plan = "curriculum={task.clip: {from: 4.0, to: 2.0, by: iteration, start: 3, stop: 9}}"
    with pytest.raises(SystemExit):
        command_line.check("config", ["task=drone", "recipe=robot", plan, "--cfg", "job"])
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["iterations"] == 800 and shown["task"]["observation_delay"] == [0, 3]
    assert shown["curriculum"]["task.clip"]["stop"] == 9


@pytest.mark.parametrize("group", ["task", "ranges"])
@pytest.mark.parametrize("text", ["# @package _global_\nnum_envs: 3\n", "# @package _global_\n"])
def test_a_file_without_a_name_is_said(group, text, tmp_path, elsewhere):
    """A file of the working directory that has no section of its group is one line."""
    file = tmp_path / "conf" / group / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"conf/{group}/mine.yaml lacks the key {group}.name"):
        compose_plain("config", [f"{group}=mine"])


def test_suggestions_for_keys_of_other_libraries_exist():
    """Each is a key of PPO or of SAC."""
    ppo, sac = (flatten(compose_plain("config", [f"algo={name}"])) for name in ("ppo", "sac"))
    assert check_words.ALIASES.keys() <= ppo.keys() | sac.keys()
