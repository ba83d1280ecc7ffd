"""Keys with other names in earlier versions: old runs are read, old words are answered."""

import json

import pytest
import torch
import yaml
from safetensors.torch import save as to_bytes

from gpusim_rl.config import compose
from gpusim_rl.config.check_words import merge
from gpusim_rl.config.device_overrides import read_device_overrides
from gpusim_rl.config.renamed_keys import GONE, RENAMED, current_key, rename_keys
from gpusim_rl.config.resume import edits, load_config
from gpusim_rl.config.sections import Config
from gpusim_rl.config.trees import flatten
from gpusim_rl.core.paths import CONF
from gpusim_rl.play.replay_failure import read
from gpusim_rl.report.tables import with_current_keys
from gpusim_rl.runs.run import Run

BASE = compose.build("config", ["task=quadruped"])
OLD = {new: old for old, new in RENAMED.items() if new in flatten(BASE)}


def old_config():
    """The configuration of a quadruped's run of before, whose curriculum moves two old keys."""
    saved = compose.build("config", ["task=quadruped"])
    task = saved["task"]
    for new, old in OLD.items():
        if "randomise" not in new and new.startswith("task."):
            task[old.removeprefix("task.")] = task.pop(new.removeprefix("task."))
    task["randomise"]["centre"] = task["randomise"].pop("center") | {"low": -0.5}
    entry = {"from": 0.0, "to": 1.0, "by": "iteration", "start": 0, "stop": 9}
    plan = {"task.lift": entry, "task.randomise.centre.high": entry}
    return saved | {"curriculum": plan, "compile": True}


def test_a_run_of_before():
    """Its keys and the keys of its curriculum get today's names; its values stay."""
    saved = old_config()
    rename_keys(saved, BASE)
    assert flatten(saved["task"]).keys() == flatten(BASE["task"]).keys()
    assert saved["task"]["swing_height"] == 0.08
    assert saved["task"]["randomise"]["center"]["low"] == -0.5
    assert list(saved["curriculum"]) == ["task.swing_height", "task.randomise.center.high"]
    assert not GONE.keys() & saved.keys()


def test_a_checkpoint_of_before(tmp_path):
    """What it was trained with does not differ from the run's configuration by names."""
    saved = old_config()
    note = {"config": json.dumps(saved)}
    rename_keys(saved, BASE)
    assert edits(note, saved, tmp_path) == {}
    saved["task"]["swing_height"] = 0.09
    assert edits(note, saved, tmp_path) == {"task.swing_height": "task.swing_height 0.08 → 0.09"}


@pytest.mark.parametrize("lag, delay", [(0, 0.04), (1, 2)])
def test_a_delay_in_control_steps(lag, delay):
    """It becomes seconds; beside a lag in timesteps of the model it is refused, and says why."""
    saved = compose.build("config", ["task=quadruped"])
    saved["robot"]["actuator"] |= {"delay": 2, "lag": lag}
    rename_keys(saved, BASE)
    assert saved["robot"]["actuator"]["delay"] == delay
    if lag:
        with pytest.raises(ValueError, match="in seconds, no longer in control steps"):
            merge(BASE, saved)


def test_a_name_that_another_task_has():
    """A key that a task has itself is not taken for an old name."""
    drone = flatten(compose.build("config", ["task=drone"]))
    assert current_key("task.height", drone) == "task.height"
    assert current_key("task.lift", drone) == "task.lift"


@pytest.mark.parametrize("old", OLD.values())
def test_an_old_word(old):
    """The command line answers it in one line with today's name."""
    word = f"{old}.low=0" if old.endswith("centre") else f"{old}=1"
    key = word.partition("=")[0]
    with pytest.raises(ValueError) as error:
        compose.compose_plain("config", ["task=quadruped", word])
    assert str(error.value) == f"{key} has another name now: say {current_key(key, flatten(BASE))}"


def test_a_word_that_is_gone():
    """The command line answers it in one line with what took its place."""
    with pytest.raises(ValueError) as error:
        compose.compose_plain("config", ["compile=true"])
    assert str(error.value) == "compile is gone: fuse=on writes the step as Warp kernels"


def test_a_key_that_is_gone_in_files(tmp_path, monkeypatch):
    """A user's file of a task may say it; a run that kept it is read without it."""
    (tmp_path / "conf" / "task").mkdir(parents=True)
    text = (CONF / "task" / "cartpole.yaml").read_text() + "\ncompile: true\n"
    (tmp_path / "conf" / "task" / "cartpole.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    cfg = compose.compose_plain("config", ["task=cartpole"])
    Config.of(cfg)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump(cfg))
    assert not GONE.keys() & load_config(Run.open(run)).plain.keys()


def test_a_failure_of_before(tmp_path):
    """Its file has old keys, which are read as today's."""
    sections = {key: old_config()[key] for key in ("task", "robot")}
    path = tmp_path / "repro.safetensors"
    path.write_bytes(to_bytes({"x": torch.zeros(1)}, metadata={"gpusim_rl": json.dumps(sections)}))
    assert read(path)[1].task.numbers["swing_height"] == 0.08


def test_a_report_of_before():
    """A report names the keys of an old run as today's, so that they equal the defaults."""
    keys = with_current_keys(old_config() | {"task_code": None})
    assert keys["task.swing_height"] == 0.08 and not {"task.lift", *GONE} & keys.keys()


def test_old_names_in_files():
    """A file of the user's that says an old key, for a GPU or in a curriculum, gets today's."""
    plan = {"task.lift": {"from": 0.0, "to": 1.0, "by": "iteration", "start": 0, "stop": 9}}
    with pytest.raises(ValueError, match=r"curriculum: task.lift .* say task.swing_height"):
        Config.of(BASE | {"curriculum": plan})
    with pytest.raises(ValueError, match=r"gpu: algo.floor has another name now: say algo.min_std"):
        read_device_overrides(BASE | {"gpu": {"algo": {"floor": 0.1}}}, [])


def test_a_key_that_is_unknown():
    """`replace` refuses it by name."""
    with pytest.raises(ValueError, match="unknown key 'num_env'"):
        Config.of(BASE).replace({"num_env": 3})


def test_lists_of_zeros():
    """A run of before lists drop-out and history of all readings and terms, and is read so."""
    base = compose.build("config", ["task=cartpole"])
    lists = {"dropout": {"pole_angle": 0.0}, "history": {"cart": 1, "pole": 2}}
    merged = merge(base, base | {"task": base["task"] | lists})
    assert {key: merged["task"][key] for key in lists} == lists
