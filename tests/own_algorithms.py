"""Algorithms of a user's own, as files of a working directory."""

from pathlib import Path

from tests.docs.examples import files
from tests.worlds import write_files

CLONE = '''
"""Behavior cloning: its record is filled from a file, and no world is stepped."""
from dataclasses import dataclass

import torch
from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.core.ranges import POSITIVE
from gpusim_rl.core.sections import number
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import vector
from gpusim_rl.core.states import shared
from gpusim_rl.networks.policy import ActorCritic
from gpusim_rl.networks.settings import NetworkSettings
from safetensors.torch import load_file


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
    return Demonstrations(learner.cfg.file, record)


@dataclass(kw_only=True, frozen=True)
class Settings(NetworkSettings):
    file: str
    learning_rate: float = number(POSITIVE)


def make_policy(spec, cfg):
    return ActorCritic(spec.views, spec.action_width, cfg, seed=spec.seed)


class Clone:
    """Least squares on the actions of a file."""

    metrics = (Metric("miss", "loss/miss", "mean squared error of actions", ".5f", "miss"),)

    def __init__(self, spec, cfg):
        self.cfg, self.policy = cfg, make_policy(spec, cfg)
        action = vector(spec.action_width)
        self.columns = dict(obs=spec.views["actor"], action=action)
        self.optimizer = FlatAdam({"actor": [*self.policy.actor.parameters()]}, cfg.learning_rate)
        self.rates = {"learning_rate": self.optimizer.all_rates}
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
        own = self.optimizer.tensors() | self.rates
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        return networks | shared("clone/", own | {"miss": self.miss})


SPEC = LearnerSpec(
    make=Clone, make_policy=make_policy, settings=Settings, make_source=make_source
)
'''

CLONE_YAML = """
name: clone
file: demonstrations.safetensors
learning_rate: 0.01
hidden: [32]
activation: tanh
std: 0.6
min_std: 0.05
memory: none
memory_size: 1
memory_frames: 2
amp: null
"""


def write(folder: Path) -> None:
    """Write those of docs/change-the-algorithm.md and this one into a directory."""
    own = {"algorithms/clone.py": CLONE, "conf/algo/clone.yaml": CLONE_YAML}
    write_files(folder, files("docs/change-the-algorithm.md") | own)
