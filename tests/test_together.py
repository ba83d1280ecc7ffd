"""All that makes a robot real, at once."""

import pytest
import torch

from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.config.sections import Config
from gpusim_rl.deploy.export_policy import export_policy
from gpusim_rl.evaluation.evaluate import evaluate
from gpusim_rl.sim.actuated import engine
from tests.command_lines import TINY
from tests.guard import guard
from tests.worlds import SIMS, goes_on, make_config

ON = (
    *("robot.actuator.kind=dc", "robot.actuator.no_load=21", "robot.actuator.delay=[0.01,0.03]"),
    *("algo.symmetry=net", "task.history.joints=3", "task.observation_delay=[0,2]"),
    *("task.dropout.gyro=0.1", "task.dropout.joint_pos=0.05"),
    *(
        f"task.randomise.{field}.kind=uniform"
        for field in ("payload", "strength", "gravity", "encoder", "force", "bias.gyro")
    ),
    *("task.randomise.joint_friction.kind=log_uniform", "task.randomise.joint_friction.how=set"),
    *("task.randomise.force.every=0.5", "task.randomise.bias.gyro.high=0.05"),
    "curriculum={task.randomise.push.high:{from:0,to:0.5,by:iteration,start:0,stop:3}}",
)


def configured(sim: str) -> Config:
    """A small quadruped's training with all of it."""
    small = [word for word in TINY if not word.startswith("sim")]
    return make_config("task=quadruped", *small, f"sim={sim}", *ON)


@pytest.mark.parametrize("sim", SIMS)
def test_it_reads_nothing_and_resumes_to_the_bit(sim):
    """The guard around an iteration, and two more of a PPO given its state."""
    cfg = configured(sim)
    first, second = make_iteration(cfg), make_iteration(cfg)
    assert float(second.env.scheduled_number("task.randomise.push.high")[0]) == 0.0
    first.iteration()
    inner = engine(first.env.sim)  # native's is on the host by nature
    with guard(*([] if inner.capturable else [(inner, "step"), (inner, "reset")])) as switch:
        first.iteration()
    assert switch.seen > 1000
    goes_on(first, second, 2)
    assert float(first.env.scheduled_number("task.randomise.push.high")[0]) == 0.5


def test_gains_are_the_actuators():
    """Randomized gains and strengths are the motor's; each world has its own."""
    env = make_iteration(configured("native")).env
    nominal = env.task.actuator.gains(env.task.mjm)
    for name, spread in (("kp", 0.1), ("kd", 0.1), ("strength", 0.2)):
        share = env.sim.model(name) / torch.as_tensor(nominal[name])
        assert (share >= 1 - spread - 1e-6).all() and (share <= 1 + spread + 1e-6).all()
        assert (
            share[:, 0].unique().numel() == env.num_envs
            and (share - share[:, :1]).abs().max() < 1e-6
        )


@pytest.mark.slow  # it is exported for 10 s
def test_what_acted_is_exported_and_judged(tmp_path):
    """The trained network, with its actuators, delays and history."""
    cfg = configured("native")
    ppo = make_iteration(cfg)
    ppo.iteration()
    assert export_policy(ppo, cfg, tmp_path) < 1e-5
    weights, noise = cfg.task.weights, cfg.task.noise
    scores = evaluate(ppo.policy, ppo.env.task, weights=weights, noise=noise, episodes=4)
    again = evaluate(ppo.policy, ppo.env.task, weights=weights, noise=noise, episodes=4)
    assert scores == again and 0 <= scores["success"] <= 1
