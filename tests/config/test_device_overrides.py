"""The section `gpu`: what a training does otherwise on a GPU, and how many worlds fit there."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gpusim_rl.commands.train import configure
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.config.device_overrides import choose_device_overrides
from gpusim_rl.config.resume import check_training
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import SINGLE
from gpusim_rl.core.memory import OutOfMemory
from gpusim_rl.runs.run import Run
from gpusim_rl.sim import factory
from gpusim_rl.training import memory
from tests.command_lines import one_line, refused_here, run_here
from tests.worlds import TASKS, make_config

SMALL = ("num_envs=8", "num_steps=4", "iterations=2", "episodes=4", "log=none")
SMALL += ("export=none", "report=false", "fuse=off")


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `device=auto` be a GPU, as far as the choice of a recipe goes."""
    monkeypatch.setattr(factory, "choose", lambda name, device: ("warp", "cuda"))


def configured(section: Any, *words: str) -> Config:
    """The configuration of a command line, with another section `gpu` in the task's file."""
    cfg = compose_plain("config", ["task=cartpole", *words])
    return check_training(cfg | {"gpu": section}, ["task=cartpole", *words])


def test_a_schedule_has_other_iterations_on_a_gpu(monkeypatch):
    """The section's numbers replace an entry's, but no command line's own."""
    section = {"curriculum": {"algo.max_std": {"start": 3, "stop": 7}}}
    word = "curriculum={algo.max_std: {from: 1.0, to: 0.5, by: iteration, start: 10, stop: 20}}"
    base = compose_plain("config", ["task=cartpole", word])
    cfg = check_training(base | {"gpu": section}, ["task=cartpole"])
    assert choose_device_overrides(cfg)[0].curriculum["algo.max_std"]["start"] == 10
    on_a_gpu(monkeypatch)
    there, given = choose_device_overrides(cfg)
    plan = {"from": 1.0, "to": 0.5, "by": "iteration", "start": 3, "stop": 7}
    assert there.plain["curriculum"] == {"algo.max_std": plan}
    assert given == {"curriculum.algo.max_std.start": 3, "curriculum.algo.max_std.stop": 7}
    assert choose_device_overrides(configured(section))[1] == {}
    assert choose_device_overrides(configured(section, word))[1] == {}
    with pytest.raises(ValueError, match=r"gpu: .*max_std"):
        check_training(
            base | {"gpu": {"curriculum": {"algo.max_std": {"start": "soon"}}}}, ["task=cartpole"]
        )


@pytest.mark.parametrize("task", TASKS)
def test_a_gpu_has_its_own_numbers(monkeypatch, task):
    """On a GPU the section replaces the file's numbers and nothing else; on the CPU nothing."""
    cfg = configure(f"task={task}")
    threads = torch.get_num_threads()
    bare = cfg.replace({"gpu": {}, "recipe": {"name": "fast"}, "threads": threads})
    if not cfg.gpu:  # nothing pays there, as far as is known
        on_a_gpu(monkeypatch)
        assert choose_device_overrides(cfg) == (bare, {})
        return
    here, given = choose_device_overrides(cfg)
    assert here == bare and given == {}
    on_a_gpu(monkeypatch)
    there, given = choose_device_overrides(cfg)
    assert there.num_envs == given["num_envs"] == cfg.plain["gpu"]["num_envs"] > cfg.num_envs
    assert there.task == cfg.task and there.gpu == {}
    assert there.num_steps % there.plain["algo"]["num_minibatches"] == 0


def test_the_command_line_wins(monkeypatch):
    """A key of the line is as it says; a group of the line replaces all of the section's."""
    on_a_gpu(monkeypatch)
    section = {"num_envs": 4096, "num_steps": 16, "algo": {"update_epochs": 7, "gamma": 0.9}}
    cfg, given = choose_device_overrides(configured(section, "num_envs=64", "algo.gamma=0.95"))
    assert (cfg.num_envs, cfg.num_steps, cfg.plain["algo"]["gamma"]) == (64, 16, 0.95)
    assert given == {"num_steps": 16, "algo.update_epochs": 7}
    assert cfg.plain["algo"]["update_epochs"] == 7 and cfg.plain["algo"]["hidden"] == [64, 64]
    assert configured(section, "algo=ppo").gpu == {"num_envs": 4096, "num_steps": 16}
    assert choose_device_overrides(configure("task=cartpole", "gpu.num_envs=99"))[0].num_envs == 99


@pytest.mark.parametrize(
    "section, says",
    [
        ({"num_env": 4}, "gpu.num_env: expected a key of a training: num_envs, num_steps"),
        ({"task": {"dt": 0.1}}, "gpu.task: expected a key of a training"),
        ({"algo": {"gama": 0.9}}, "gpu: unknown key algo.gama"),
        ({"num_envs": 0}, "gpu: num_envs=0: expected a whole number from 1 to"),
        ({"num_envs": "many"}, "gpu: num_envs='many': expected a whole number"),
        (5, "gpu=5: expected keys with values"),
    ],
)
def test_a_wrong_section_is_one_line(section, says):
    """On every machine, also where there is no GPU."""
    with one_line(says):
        configured(section)


def test_a_run_keeps_its_own_numbers(elsewhere, monkeypatch, capsys):
    """config.yaml holds what was chosen; a run of the CPU keeps its worlds on a GPU."""
    _, said, _ = run_here("train.py", "task=cartpole", "--cfg", "job", capsys=capsys)
    shown = yaml.safe_load(said)
    assert shown["gpu"]["num_envs"] != shown["num_envs"]
    words = ("task=cartpole", *SMALL, "run_dir=run", "device=cpu", "sim.threads=1")
    assert run_here("train.py", *words, capsys=capsys)[0] == 0
    kept = Run(Path("run")).config
    assert kept["gpu"] == {} and kept["num_envs"] == 8
    said = refused_here("train.py", "resume=run", "gpu.num_envs=16", capsys=capsys)
    assert "gpu.num_envs" in said
    on_a_gpu(monkeypatch)
    cfg, given = choose_device_overrides(configure("resume=run", "device=auto"))
    assert cfg.num_envs == 8 and given == {}
    # a scheduler starts the same line again
    again = ("task=cartpole", "auto_resume=true", "run_dir=run", "gpu.num_envs=16")
    cfg, given = choose_device_overrides(configure(*again))
    assert cfg.num_envs == 8 and given == {}


def limited(make_ppo: Any, most: int, cfg: Config, worlds: int | None = None, **keys: Any):
    """`make_ppo` on a device where `most` worlds fit."""
    worlds = worlds or cfg.num_envs
    if worlds > most:
        raise OutOfMemory(f"out of memory with num_envs={worlds}")
    return make_ppo(cfg, worlds, **keys)


def test_as_many_worlds_as_fit(monkeypatch, capsys):
    """Worlds of the section that do not fit become the most that do; a user's number is kept."""
    cfg = make_config("task=cartpole", *SMALL, "device=cpu", "num_envs=4096")
    own, chosen = memory.make_iteration, {"num_envs": 4096}
    monkeypatch.setattr(memory, "choose_device_overrides", lambda cfg: (cfg, chosen))
    monkeypatch.setattr(memory, "make_iteration", partial(limited, own, 1000))
    plan = memory.Plan(*(dict.fromkeys(memory.PARTS, x) for x in (0.0, 1.0)), free=4000)
    monkeypatch.setattr(memory, "measure", lambda build, unit: plan)
    ppo, fitting, _ = memory.make_on_device(cfg, SINGLE)
    assert ppo.env.num_envs == fitting.num_envs == plan.largest == 600
    said = capsys.readouterr().err
    assert said == (
        "warning: out of memory with num_envs=4096; so num_envs=600, the most that fit\n"
    )
    with pytest.raises(OutOfMemory, match="num_envs=4096"):
        chosen = {"num_steps": 4}
        memory.make_on_device(cfg, SINGLE)


@pytest.mark.slow
def test_the_plan_is_measured_where_little_fits(monkeypatch):
    """Where the larger of the two measured numbers does not fit, smaller ones are measured."""
    cfg = make_config("task=cartpole", *SMALL, "device=cpu")
    monkeypatch.setattr(memory, "FEW", {"cpu": 64})
    free = partial(memory.make_iteration, cfg)
    tight = partial(limited, memory.make_iteration, 100, cfg)
    all_fit, few_fit = memory.measure_plan(free), memory.measure_plan(tight)
    for part in memory.PARTS:
        assert few_fit.bytes(4096)[part] == pytest.approx(all_fit.bytes(4096)[part], rel=0.1), part
    with pytest.raises(OutOfMemory):
        memory.measure_plan(partial(limited, memory.make_iteration, 2, cfg), world_multiple=2)
