"""A training iteration never reads a tensor on the host: the guard around all of it, and proof that
the guard sees."""

import numpy as np
import pytest
import torch
import warp as wp
from torch.distributions import Normal

from gpusim_rl.algorithms.ppo.ppo import PPO
from tests.guard import HostRead, exempt, guard, reads_nothing
from tests.worlds import TASKS, make_env, make_ppo

# Every kind of host read, each a function of a float vector x with no entry at zero.
READS = {
    "item": lambda x: x[0].item(),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x[0] > 0 else 2,
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "index": lambda x: "abc"[x[0].long() * 0],
    "range": lambda x: range(x.long()[0]),
    "in": lambda x: 3.0 in x,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "np.asarray": lambda x: np.asarray(x),
    "cpu": lambda x: x.cpu(),
    "print": lambda x: str(x),
    "format": lambda x: f"{x[0]:.2f}",
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "mask read": lambda x: x[x > 0],
    "mask write": lambda x: x.clone().__setitem__(x > 0, x[:1]),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: x.unique_consecutive(),
    "bincount": lambda x: x.long().abs().bincount(),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones_like(x).long()),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "distribution": lambda x: Normal(x, x.abs() + 1, validate_args=True),
    "torch.tensor(list)": lambda x: torch.tensor([1.0, 2.0]),
    "torch.tensor(number)": lambda x: torch.tensor(1.0),
    "torch.as_tensor(list)": lambda x: torch.as_tensor([1.0]),
    "torch.as_tensor(number)": lambda x: torch.as_tensor(1.0),
    "torch.as_tensor(array)": lambda x: torch.as_tensor(np.ones(2)),
    "torch.from_numpy": lambda x: torch.from_numpy(np.ones(2)),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "randperm": lambda x: torch.randperm(4),
    "list read": lambda x: x[[0, 0]],
    "list read in a tuple": lambda x: x[None][:, [0, 0]],
    "array read": lambda x: x[np.zeros(2, int)],
    "list write": lambda x: x.clone().__setitem__([0], 1.0),
    "wp.array.numpy": lambda x: wp.zeros(3, device="cpu").numpy(),
    "wp.array.list": lambda x: wp.zeros(3, device="cpu").list(),
    "wp.array of a list": lambda x: wp.array([1.0, 2.0], dtype=float, device="cpu"),
    "wp.capture_if": lambda x: wp.capture_if(wp.zeros(1, dtype=int, device="cpu")),
    "wp.synchronize": lambda x: wp.synchronize(),
    "wp.synchronize_device": lambda x: wp.synchronize_device("cpu"),
    "wp.synchronize_stream": lambda x: wp.synchronize_stream("cpu"),
    "wp.synchronize_event": lambda x: wp.synchronize_event(None),
}
# What the guard must let through: the fixed-shape ways to say the same.
CHOICES = {
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "gather": lambda x: x[torch.zeros_like(x).long()],
    "slice": lambda x: x[None, ..., -1:],
    "write a number": lambda x: x.clone().__setitem__(0, 3.0),
    "constants": lambda x: torch.arange(4) + torch.full((4,), 2) + torch.ones(4),
    "of a tensor": lambda x: torch.as_tensor(x),
    "iterate": lambda x: [y + 1 for y in x],
    "repeat": lambda x: x.repeat_interleave(2),
    "sort": lambda x: x.argsort(stable=True),
    "wp.empty": lambda x: wp.zeros(3, device="cpu"),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_iteration_reads_nothing(name):
    """Rollout with restarts and update read nothing but step and reset of the engine."""
    ppo = make_ppo(make_env(name, 8, episode=0.2), num_steps=12)
    ppo.iteration()
    assert reads_nothing(ppo) == {"min_std"} and ppo.source.record.truncated.any()
    assert ppo.report()()["fault"] == 0  # and reading works again


@pytest.fixture(scope="module")
def ppo() -> PPO:
    """An iteration that the plants below grow in."""
    ppo = make_ppo(make_env(num_envs=4), num_steps=2, num_minibatches=2, update_epochs=1)
    ppo.iteration()
    return ppo


@pytest.mark.parametrize("kind", READS)
def test_a_planted_read_is_caught(ppo, monkeypatch, kind):
    """A host read of each kind, planted in the reward of a task, stops the iteration."""
    reward = ppo.env.task.reward

    def planted(s):
        READS[kind](s.qpos[:, 2])
        return reward(s)

    monkeypatch.setattr(ppo.env.task, "reward", planted)
    with pytest.raises(HostRead), guard(*exempt(ppo)):
        ppo.iteration()


@pytest.mark.parametrize("where", ["sim.fault", "minibatch", "normalizer", "optimizer"])
def test_a_read_anywhere_is_caught(ppo, monkeypatch, where):
    """So is one in the Sim, in the update, in the normalizer and in the optimizer."""
    owner, name = {
        "sim.fault": (ppo.env.sim, "fault"),
        "minibatch": (ppo.learner, "_minibatch"),
        "normalizer": (ppo.policy.critic_normalizer, "update"),
        "optimizer": (ppo.learner.optimizer, "move"),
    }[where]
    method = getattr(owner, name)

    def planted(*args, **kwargs):
        ppo.learner.optimizer.rates["actor"].item()
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(HostRead), guard(*exempt(ppo)):
        ppo.iteration()


class Backward(torch.autograd.Function):
    """The identity, whose gradient looks at its value."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * grad.sum().item()


def test_a_read_in_backward_is_caught(ppo, monkeypatch):
    """The guard holds while autograd runs."""
    value = ppo.policy.value
    monkeypatch.setattr(ppo.policy, "value", lambda x: Backward.apply(value(x)))
    with pytest.raises(HostRead), guard(*exempt(ppo)):
        ppo.iteration()


def test_constants_are_copied_once(ppo):
    """A field of the model, or noise between two numbers, copies nothing again."""
    env = ppo.env
    nominal, drawn = env.task.nominal("body_mass"), env.rng.uniform("test/numbers", 0.5, 1.5)
    with guard():
        env.rng.draw(env.step_count)
        again = env.task.nominal("body_mass"), env.rng.uniform("test/numbers", 0.5, 1.5)
    assert again[0] is nominal and torch.equal(again[1], drawn)


def test_a_read_inside_warp_is_caught():
    """Its conditional loop copies a counter to the host before every solver iteration."""
    env = make_env(num_envs=4, sim="warp")
    env.step(torch.zeros_like(env.action))
    env.sim.m.opt.graph_conditional = True
    with pytest.raises(HostRead, match="capture_while"), guard():
        env.step(torch.zeros_like(env.action))


def test_native_reads_in_step(ppo):
    """The exemption is no wider than asked for: native's own step or reset is refused."""
    for part in (0, 1):
        with pytest.raises(HostRead), guard(exempt(ppo)[part]):
            ppo.iteration()


@pytest.mark.parametrize("kind", CHOICES)
def test_fixed_shapes_pass(kind):
    """The guard lets choices by mask, gathers, slices and constants through."""
    x = torch.tensor([1.0, -2.0, 3.0])
    with guard() as switch:
        CHOICES[kind](x)
    assert switch.on


def test_guard_leaves_no_trace():
    """After the guard, also after an error under it, reading is free and nothing stays replaced."""
    before = torch.from_numpy, wp.array.numpy, wp.array.__init__, wp.synchronize
    with pytest.raises(HostRead), guard():
        torch.ones(2).tolist()
    assert (torch.from_numpy, wp.array.numpy, wp.array.__init__, wp.synchronize) == before
    assert torch.ones(2).tolist() == [1, 1] and wp.ones(2, device="cpu").numpy().sum() == 2
