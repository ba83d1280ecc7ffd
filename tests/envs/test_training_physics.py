"""Physics while learning: what differs, where it does not, and what a user is told."""

import mujoco
import pytest
import torch

from gpusim_rl.adapters import common
from gpusim_rl.assembly import environment
from gpusim_rl.commands.train import configure
from gpusim_rl.evaluation.evaluate import evaluation_env
from gpusim_rl.training.trainer import Trainer
from tests.worlds import SIMS, make_actuator, make_config, make_env, make_task, numbers, refusal

FRICTION = int(mujoco.mjtDisableBit.mjDSBL_FRICTIONLOSS)
COARSE = {"timestep": 0.01, "joint_friction": False}


@pytest.mark.parametrize("sim", SIMS)
def test_coarse_physics_is_stepped(sim):
    """Env steps the coarse model for a control step's time, without dry friction."""
    coarse, exact = (make_env(num_envs=4, sim=sim, training=t) for t in (COARSE, "exact"))
    assert (coarse.task.substeps, exact.task.substeps) == (2, 4)
    assert coarse.task.physics.opt.disableflags & FRICTION
    assert coarse.task.physics.opt.timestep == 0.01 and coarse.task.mjm.opt.timestep == 0.005
    assert exact.task.physics is exact.task.mjm
    drops = []
    for env in (coarse, exact):
        up = env.sim.qpos.clone()
        up[:, 2] = 2.0  # a free fall, which ends in the same second
        env.sim.reset(torch.ones(4, dtype=torch.bool), up, torch.zeros_like(env.sim.qvel))
        for _ in range(10):
            env.apply_action(torch.zeros(4, 12))
            env.step_physics()
        drops.append(2.0 - env.sim.qpos[:, 2])
    # ½ g t², with an error of a timestep times half the speed
    torch.testing.assert_close(*drops, rtol=0, atol=0.5 * 0.005 * 2.0)
    assert (drops[0] > 0.15).all()


def test_what_is_judged_is_exact():
    """Evaluation, adapters and the model that is exported have the model's own physics."""
    task = make_task(training=COARSE)
    judged = task.evaluation()
    assert judged.physics is judged.mjm
    weights, noise = (numbers("quadruped")[key] for key in ("weights", "noise"))
    env = evaluation_env(task, 2, weights=weights, noise=noise, seed=1)
    assert env.task.physics.opt.timestep == 0.005 and env.task.substeps == 4
    assert common.compose_config("quadruped", 2, [], {}).plain["task"]["training"] == "exact"
    chosen = ["task.training.timestep=0.01"]
    own = common.compose_config("quadruped", 2, chosen, {}).plain["task"]["training"]
    assert own["timestep"] == 0.01  # unless it is asked for


def test_what_stays_exact():
    """Torques of each timestep keep it, a delay does not; friction that is wanted stays."""
    for keys, timestep in ((dict(kind="pd"), 0.005), (dict(delay=0.01), 0.01)):
        task = make_task(training=COARSE, actuator=make_actuator(**keys))
        assert task.physics.opt.timestep == timestep
    drawn = numbers("quadruped")["randomise"]
    drawn["joint_friction"] = drawn["joint_friction"] | {"kind": "uniform"}
    for keys in (dict(randomise=drawn), dict(actuator=make_actuator(friction=0.1))):
        assert not make_task(training=COARSE, **keys).physics.opt.disableflags & FRICTION
    config = make_config("task.training={timestep: null}")
    assert environment.make_task(config, "cpu").physics.opt.timestep == 0.005
    with pytest.raises(ValueError, match=r"task\.dt=0\.02 s is not a whole .* task\.training"):
        make_task(training={"timestep": 0.003, "joint_friction": True})


def test_a_user_is_told():
    """The difference in words, and one line for what makes no sense."""
    task = make_task(training=COARSE)
    assert task.difference == (
        "physics while learning: timesteps of 10 ms, not 5 ms, and no dry joint friction"
    )
    assert make_task().difference == ""
    euler = make_task(training=COARSE | {"timestep": None, "integrator": "euler"})
    assert euler.physics.opt.integrator == mujoco.mjtIntegrator.mjINT_EULER
    assert euler.difference == (
        "physics while learning: EULER, not IMPLICITFAST, and no dry joint friction"
    )
    for word, says in (
        ("task.training=fast", "expected keys with values"),
        ("task.training.timestep=-1", "expected a number above 0, or null"),
        ("task.training.timestep=soon", "expected"),
        ("task.training.integrator=RK4", "expected one of euler, implicit, implicitfast, or null"),
        ("task.training.joint_friction=1", "expected true or false"),
        ("task.training.friction=1", "unknown key"),
    ):
        assert says in refusal(word)


def test_a_run_keeps_its_physics(tmp_path, monkeypatch):
    """A run cannot change its physics when it is continued."""
    monkeypatch.chdir(tmp_path)
    tiny = ("num_envs=2", "num_steps=4", "iterations=1", "episodes=2", "task.episode=0.1")
    words = [*tiny, "sim=native", "log=none", "algo.hidden=[8]"]
    for name, training in (("exact", "exact"), ("coarse", "{timestep: 0.01}")):
        Trainer(configure(*words, f"run_dir={name}", f"task.training={training}")).train()
    for run, word in (
        ("exact", "task.training.timestep=0.01"),
        ("coarse", "task.training=exact"),
        ("coarse", "task.training.timestep=0.005"),
    ):
        with pytest.raises(ValueError, match=r"resume= continues a run as it was.*task\.training"):
            configure(f"resume={run}", "iterations=2", word)
    both = configure("task.training.timestep=0.005", "task.training=exact")
    assert both.plain["task"]["training"] == "exact"  # the later word
