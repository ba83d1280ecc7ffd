"""Two algorithms of a user's own, as the files of a working directory: see
tests/algorithms/test_own_algorithms.py."""

from pathlib import Path

REINFORCE = '''
"""REINFORCE: each action is made likelier by the rewards that follow it."""
import torch
from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.returns import recurrence
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import FLAG, NUMBER, vector
from gpusim_rl.core.states import shared
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.networks.settings import NetworkSettings

NETWORK = dict(activation="tanh", min_std=0.05, amp=None)
NETWORK |= dict(memory="none", memory_size=1, memory_frames=2)


class Reinforce:
    """Williams, "Simple statistical gradient-following algorithms", 1992."""

    live = ("gamma",)
    metrics = (Metric("gain", "loss/gain", "mean gain of an action", ".3f", "gain"),)

    def __init__(self, spec, *, gamma, learning_rate, hidden):
        self.spec, self.gamma, self.length = spec, gamma, spec.num_steps
        networks = NetworkSettings(hidden=tuple(hidden), std=0.6, **NETWORK)
        self.policy = ActorCritic(spec.dims, networks, seed=spec.seed).to(spec.device)
        no, nc, nu = spec.dims
        self.columns = dict(obs=vector(no), critic=vector(nc), action=vector(nu))
        self.columns |= dict(reward=NUMBER, terminated=FLAG, truncated=FLAG, fault=FLAG)
        self.optimizer = FlatAdam(self.policy.groups(), learning_rate)
        self.rates = tuple(self.optimizer.rates.values())
        self.gain = torch.zeros(1, device=spec.device)
        self._learn = spec.capture(self.learn)

    def update(self, record):
        self._learn(record)

    def learn(self, r):
        over = r.terminated | r.truncated | r.fault
        to_go = recurrence(r.reward, self.gamma * (~over).float())  # (T, B)
        advantage = (to_go - to_go.mean()) / (to_go.std() + 1e-6)
        views = r.obs.flatten(0, 1), r.critic.flatten(0, 1)
        obs, _ = self.policy.normalize(*views)
        acted = self.policy.distribution(self.policy.mean(obs))
        gain = (acted.log_prob(r.action.flatten(0, 1)) * advantage.flatten()).mean()
        parameters = self.policy.groups()["actor"]
        self.optimizer.write(
            (*torch.autograd.grad(-gain, parameters),
             *(torch.zeros_like(p) for p in self.policy.groups()["critic"]))
        )
        self.optimizer.step()
        self.gain.copy_(gain.detach())
        self.policy.update_normalizers(views, ~r.fault.flatten(), self.spec.group)

    def measures(self):
        return self.gain.clone()

    def tensors(self):
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        own = self.optimizer.tensors() | {f"rate{i}": x for i, x in enumerate(self.rates)}
        return networks | shared("mine/", own | {"gain": self.gain})
'''

REINFORCE_YAML = """
name: mine
gamma: 0.95
learning_rate: 0.01
hidden: [32]
"""

CLONE = '''
"""Behavior cloning: its record is filled from a file, and no world is stepped."""
import torch
from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import vector
from gpusim_rl.core.states import shared
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.networks.settings import NetworkSettings
from safetensors.torch import load_file

NETWORK = dict(activation="tanh", min_std=0.05, amp=None)
NETWORK |= dict(memory="none", memory_size=1, memory_frames=2)


class Demonstrations:
    """A source: the recorded steps of a file, in their order, again and again."""

    def __init__(self, file, record):
        self.record, self.steps = record, load_file(file)
        self.next = torch.zeros(1, dtype=torch.int64)

    def collect(self, steps):
        for t in range(steps):
            place = self.next % len(self.steps["obs"])
            values = {name: x.index_select(0, place)[0] for name, x in self.steps.items()}
            self.record.put(torch.full((1,), t), values)
            self.next += 1

    def tensors(self):
        return shared("file/", {"next": self.next})


def make_source(env, learner, record):
    return Demonstrations(learner.file, record)


class Clone:
    """Least squares on the actions of a file."""

    live = ()
    metrics = (Metric("miss", "loss/miss", "mean squared error of actions", ".5f", "miss"),)

    def __init__(self, spec, *, file, learning_rate, hidden):
        self.spec, self.file, self.length = spec, file, spec.num_steps
        networks = NetworkSettings(hidden=tuple(hidden), std=0.6, **NETWORK)
        self.policy = ActorCritic(spec.dims, networks, seed=spec.seed)
        no, _, nu = spec.dims
        self.columns = dict(obs=vector(no), action=vector(nu))
        self.optimizer = FlatAdam({"actor": [*self.policy.actor.parameters()]}, learning_rate)
        self.rates = tuple(self.optimizer.rates.values())
        self.miss = torch.zeros(1)

    def update(self, record):
        miss = (self.policy.mean(record.obs.flatten(0, 1)) - record.action.flatten(0, 1)) ** 2
        parameters = [*self.policy.actor.parameters()]
        self.optimizer.write(torch.autograd.grad(miss.mean(), parameters))
        self.optimizer.step()
        self.miss.copy_(miss.detach().mean())

    def measures(self):
        return self.miss.clone()

    def tensors(self):
        own = self.optimizer.tensors() | {f"rate{i}": x for i, x in enumerate(self.rates)}
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        return networks | shared("clone/", own | {"miss": self.miss})
'''

CLONE_YAML = """
name: clone
file: demonstrations.safetensors
learning_rate: 0.01
hidden: [32]
"""


def write(folder: Path) -> None:
    """Write both and their numbers into a directory."""
    for part in ("conf/algo", "algorithms"):
        (folder / part).mkdir(parents=True)
    for name, code, numbers in (
        ("mine", REINFORCE, REINFORCE_YAML),
        ("clone", CLONE, CLONE_YAML),
    ):
        (folder / "algorithms" / f"{name}.py").write_text(code)
        (folder / "conf" / "algo" / f"{name}.yaml").write_text(numbers)
