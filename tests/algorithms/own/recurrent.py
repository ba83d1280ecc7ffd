"""SAC whose actor remembers: a GRU before its layers. The critics see the state instead."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.algorithms.sac import settings, spec
from gpusim_rl.algorithms.sac.sac import SAC
from gpusim_rl.core.ranges import COUNT, WIDTH
from gpusim_rl.core.record import vector
from gpusim_rl.core.ring import Draw
from gpusim_rl.core.sections import number
from gpusim_rl.networks.encoders import GRU, HiddenLayers, MemoryMLP
from gpusim_rl.networks.ensembles import Ensemble
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.policy import Actor, blank_memory
from gpusim_rl.networks.squashed import LAST_GAIN, SoftActorCritic, Squashed, squashed_log_prob


@dataclass(kw_only=True, frozen=True)
class Settings(settings.Settings):
    memory_size: int = number(WIDTH)
    burn: int = number(COUNT)
    train: int = number(COUNT)


class Steps(NamedTuple):
    """Steps of n sequences, whose features an actor computes anew."""

    obs: Tensor  # (T, n, no) normalized
    h: Tensor  # (n, size) before the first
    begins: Tensor  # (T, n) 1 where an episode begins


class RecurrentPolicy(SoftActorCritic):
    """The critics of SAC, which may be symmetric, and an actor that is not and remembers."""

    def __init__(self, views, nu, *, size, hidden, activation, bound, std, seed, **how):
        networks = dict(hidden=hidden, activation=activation, seed=seed)
        super().__init__(views, nu, bound=bound, std=std, **networks, **how)
        layers = HiddenLayers(hidden, activation, torch.Generator().manual_seed(seed + 1))
        net = Squashed(Ensemble(1, size, 2 * nu, layers, LAST_GAIN), bound, std)
        encoder = GRU(*views["actor"].shape, size, layers.generator)
        self.actor = Actor(Normalizer(*views["actor"].shape), MemoryMLP(encoder, net))
        self.size = size

    @property
    def stored(self):
        return super().stored | {"h": vector(self.size)}

    def blank_memory(self, worlds):
        return blank_memory(worlds, actor=self.actor.net)

    def compute(self, inputs, memory, rng):
        y, after = self.actor.net.encoder.step(inputs["obs"], memory["actor"])
        return torch.cat([*self.actor.net.head.heads(y), memory["actor"]], -1), {"actor": after}

    def choose(self, head, memory, rng):
        head, h = head[:, : 2 * self.nu], head[:, 2 * self.nu :]
        columns, memory = super().choose(head, memory, rng)
        return columns | {"h": h}, memory

    def draw(self, x, noise):
        """As SAC has it, of the steps of sequences, one sequence after the other."""
        y, _ = self.actor.net.encoder.unroll(*x)
        y = y.unflatten(0, x.begins.shape).transpose(0, 1).flatten(0, 1)
        mean, log_std = self.actor.net.head.heads(y)
        free = mean + log_std.exp() * noise
        return torch.tanh(free), squashed_log_prob(free, noise, log_std)


class RecurrentSAC(SAC):
    """An update learns from `train` windows in a row, after `burn` steps that renew the memory."""

    def __init__(self, spec, cfg):
        super().__init__(spec, cfg)
        if self.draws % cfg.train:
            wanted = f"a divisor of batch_size / (num_envs × agents), which is {self.draws}"
            raise ValueError(f"algo.train={cfg.train}: expected {wanted}")

    @staticmethod
    def make_policy(spec, cfg):
        return SAC.make_policy(spec, cfg, partial(RecurrentPolicy, size=cfg.memory_size))

    def add_steps(self, ring):
        super().add_steps(ring)
        self.ready.logical_and_(ring.written > self.cfg.burn + self.cfg.train + self.cfg.window)

    def features(self, steps):
        return steps

    def choose_batch(self, ring, unit):
        burn, train, n = self.cfg.burn, self.cfg.train, self.cfg.window
        length = train - 1 + n
        drawn = ring.draw(unit[:, ::train], length, burn)
        sequences = ring.windows(drawn.places, length, burn)
        rows = sequences.rows[:, burn : burn + train]
        places = torch.stack([rows, sequences.worlds.expand_as(rows)], -1).flatten(0, 1)
        batch = self.read_batch(ring, Draw(places, drawn.weights.repeat_interleave(train)))
        steps = sequences.steps()
        obs, begins = self.policy.actor.normalizer(steps.obs), steps.first_steps()
        before = slice(burn + n)
        _, after = self.policy.actor.net.encoder.unroll(obs[before], steps.h[0], begins[before])
        h = after.unflatten(0, (burn + n, -1))

        def part(i):
            return Steps(obs[i : i + train], h[i - 1], begins[i : i + train])

        return batch._replace(first=part(burn), then=part(burn + n))


make = dict(make=RecurrentSAC, make_policy=RecurrentSAC.make_policy)
SPEC = replace(spec.SPEC, settings=Settings, **make)
