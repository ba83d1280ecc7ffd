"""Distillation: who acts, what is learned of it, and a run that keeps its teacher."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gpusim_rl.algorithms.distill.spec import SPEC
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.commands.train import configure
from gpusim_rl.runs.run import Run
from gpusim_rl.training.trainer import Trainer
from tests import graphs
from tests.command_lines import TINY
from tests.guard import reads_nothing
from tests.worlds import TASKS, differing, goes_on, join, make_env, make_policy, read

GRU = ("algo=distill", "task.hide=[speeds]", "algo.memory=gru")
SMALL = ("task=cartpole", *TINY, "log=none")


def distilling(name: str = "cartpole", num_envs: int = 8, num_steps: int = 4, **how) -> Iteration:
    """Distillation in short episodes; the teacher's actions lie far beyond what Env takes."""
    hide = ("speeds",) if name in ("cartpole", "quadruped") else ()
    env = make_env(name, num_envs, episode=0.2, hide=hide)
    no, nu = sum(env.term_widths.values()), env.task.action_width
    teacher = make_policy(no, no, nu, hidden=(16,), seed=5).actor.requires_grad_(False)
    for p in teacher.parameters():
        p.mul_(100.0)
    settings = read("algo/distill") | {"hidden": (16,), "num_minibatches": 2} | how
    del settings["name"]
    return join(env, SPEC, settings, num_steps=num_steps, given={"teacher": teacher})


@pytest.mark.parametrize("fuse", ["off", "on"])
def test_who_acts(fuse):
    """In each step a new share of the worlds obeys the teacher, as a reference in NumPy has it."""
    made = distilling(num_envs=400, std=1e-4, min_std=1e-5, share=0.3)
    env, policy, source = made.env, made.policy, made.source
    if fuse == "on":
        source = type(source)(
            env, policy, source.record, graph="off", fuse="on", timer=source.timer
        )
    teacher, clip, _ = policy.guide
    obeyed = []
    for t in range(4):
        obs, critic = (x.clone() for x in env.observation.values())
        with torch.no_grad():
            student = policy.actor(obs).clamp(-clip, clip).numpy()
            target = teacher(critic[:, :5]).numpy()
        assert (np.abs(target) > clip).mean() > 0.5
        target = target.clip(-clip, clip)
        drawn = env.rng.uniform("distill/obeys", 0.0, 1.0).numpy() < 0.3
        source.act()
        expected = np.where(drawn[:, None], target, student)
        np.testing.assert_allclose(env.action.numpy(), expected, atol=1e-3)
        np.testing.assert_allclose(source.record.target[t].numpy(), target, atol=1e-5)
        obeyed.append(drawn)
        env.step_physics()
        source.finish_step()
    share = np.stack(obeyed)
    assert abs(share.mean() - 0.3) < 0.05  # 4 deviations
    assert abs(np.mean(share[0] & share[1]) - 0.09) < 0.06  # a world is drawn anew


def test_the_share_falls():
    """β falls from `share` to 0 on a straight line; the learning rate shrinks by a factor."""
    made, values = distilling(share=0.5, share_iterations=4, lr_decay=0.5), []
    for _ in range(6):
        values.append(made.learner.share.item())
        made.iteration()
    np.testing.assert_allclose(values, [0.5, 0.375, 0.25, 0.125, 0, 0], atol=1e-6)
    assert made.learner.optimizer.all_rates[0].item() == pytest.approx(2e-3 / 2**6)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_loss(memory):
    """The squared error over valid steps with memory, as a loop in NumPy has it."""
    made = distilling(memory=memory, num_steps=6, update_epochs=1, num_minibatches=1, hidden=(8,))
    made.iteration()
    made.collect()
    made.env.sim.qpos[5, 0] = torch.nan
    made.collect()
    r, actor = made.source.record, made.policy.actor
    target, fault = r.target.clone(), r.fault.numpy()
    assert fault.sum() == 1 and r.truncated.any()
    h, total = {k: x.clone() for k, x in r.memory.items()}, 0.0
    for t in range(6):
        with torch.no_grad():
            out = actor(r.obs[t].nan_to_num(), h)
        mean, h = out if memory == "gru" else (out, {})
        error = ((mean - target[t]).numpy() ** 2).mean(1)
        total += error[~fault[t]].sum()
        over = (r.terminated | r.truncated | r.fault)[t]
        h = {k: torch.where(over[:, None], 0.0, x) for k, x in h.items()}
    made.learner.update(r)
    assert made.learner.loss.item() == pytest.approx(total / (~fault).sum(), rel=1e-4)
    assert all(x.isfinite().all() for x in made.policy.state_dict().values())
    assert made.report()()["fault"] > 0


@pytest.mark.parametrize(
    "name, memory",
    [("cartpole", "gru"), ("quadruped", "none")]
    + [pytest.param(x, m, marks=pytest.mark.matrix) for x in TASKS for m in ("none", "gru")],
)
def test_an_iteration_reads_nothing(name, memory):
    """Iterations read nothing, move every weight, and go on from a state bit by bit."""
    made, other = (distilling(name, memory=memory, share_iterations=9) for _ in range(2))
    made.iteration()
    assert reads_nothing(made, 4) == {"min_std", "log_std"}
    assert made.report()()["fault"] == 0
    state = goes_on(made, other, 2)
    assert "distill/sums" in state and ("memory/actor" in state) == (memory == "gru")


def test_ranks_share_the_worlds():
    """Processes take the same worlds as a single one, and who obeys depends on the world."""
    whole = distilling(num_envs=8, num_minibatches=4)
    halves = [distilling(num_envs=4, num_minibatches=4) for _ in range(2)]
    rows = []
    for rank, half in enumerate(halves):
        half.learner.rng.worlds.copy_(torch.arange(4) + 4 * rank)
        half.learner.begin(half.source.record)
        rows.append(half.learner.order + 4 * rank)
    whole.learner.begin(whole.source.record)
    assert torch.equal(torch.cat(rows, 1), whole.learner.order)


def run(*words: str) -> Trainer:
    """A training in this process, which is over and saved."""
    trainer = Trainer(configure(*words))
    for _ in trainer.steps():
        pass
    trainer.close()
    return trainer


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with a teacher of two iterations."""
    monkeypatch.chdir(tmp_path)
    run(*SMALL, "run_dir=teacher", "iterations=2")
    return tmp_path


def state(name: str) -> dict[str, torch.Tensor]:
    """The last checkpoint of a run."""
    return Run(Path(name)).checkpoints.restore(print)[0]


def test_a_run_keeps_its_teacher(folder, capsys):
    """It goes on to the bit, moved and without its teacher's run; PPO begins with the student."""
    words = (*SMALL, *GRU, "teacher=teacher", "num_envs=16", "num_steps=4")
    run(*words, "run_dir=whole", "iterations=4")
    part = run(*words, "run_dir=part", "iterations=2")
    actor = part.loop.iteration.spec.given["teacher"].state_dict()
    assert all(torch.equal(x, state("teacher")[f"policy/actor.{k}"]) for k, x in actor.items())
    del part
    shutil.rmtree("teacher")
    Path("part").rename("moved")
    run("resume=moved", "iterations=4")
    assert differing(state("whole"), state("moved")) == []
    with pytest.raises(ValueError, match="cannot change: teacher"):
        configure("resume=moved", "teacher=whole")
    begun = Trainer(configure(*SMALL, *GRU[1:], "start=moved", "run_dir=ppo")).loop.iteration
    took = "gives actor, log_std, min_std; critic, critic_normalizer begin anew"
    assert took in capsys.readouterr().err
    ours, theirs = begun.state(), state("moved")
    actor = [name for name in ours if name.startswith(("policy/actor.", "policy/log_std"))]
    assert actor and all(torch.equal(ours[name], theirs[name]) for name in actor)
    with pytest.raises(ValueError, match=r"does not fit this run: 'actor\.net\.encoder"):
        Trainer(configure(*SMALL, "start=moved", "run_dir=other"))


def test_mistakes(folder):
    """What does not fit is one line that names it."""
    save_file({"x": torch.zeros(1)}, "bare.safetensors", {"iteration": "1"})
    for name, word in (
        ("hidden", "task.hide=[speeds]"),
        ("past", "task.history={cart:2}"),
        ("memory", "algo.memory=gru"),
    ):
        run(*SMALL, word, f"run_dir={name}", "iterations=1")
    for words, says in (
        ("algo=distill", "algo=distill imitates the policy of a run: name it with teacher=RUN"),
        ("teacher=teacher", "teacher=teacher is for algo=distill, not ppo"),
        ("algo=distill teacher=none", "teacher=none: there is no such file, and no such run"),
        ("task=reach algo=distill teacher=teacher", "with task=cartpole, not reach"),
        ("algo=distill teacher=teacher algo.num_minibatches=3", "does not divide num_envs"),
        ("algo=distill teacher=bare.safetensors", "does not say what it was trained with"),
        ("algo=distill teacher=hidden", r"task.hide=\['speeds'\]: a teacher observes each"),
        ("algo=distill teacher=past", r"task.history=.* a teacher observes each term once"),
        ("algo=distill teacher=memory", "has a memory: choose one with algo.memory=none"),
    ):
        with pytest.raises((ValueError, OSError), match=says):
            Trainer(configure(*SMALL, *words.split(), "run_dir=run", "num_envs=16"))
    assert not Path("run").exists()


def test_no_teacher():
    """A learner that is made from ours is not asked for one by the configuration, but here."""
    iteration: Any = distilling()
    with pytest.raises(ValueError, match="name it with teacher=RUN"):
        SPEC.make(replace(iteration.spec, given={}), iteration.learner.cfg)


@pytest.mark.matrix
@pytest.mark.parametrize("more", [GRU, ("algo=distill", "algo.memory=none")], ids=["gru", "mlp"])
def test_captured_is_eager(folder, more):
    """Iterations with graphs leave the state of eager ones, bit by bit."""
    graphs.captured_is_eager("cpu", "cartpole", *more, "teacher=teacher")
