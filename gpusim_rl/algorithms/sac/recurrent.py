"""Soft actor-critic whose actor remembers, after R2D2 (Kapturowski et al., ICLR 2019)."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.sac.sac import SAC, Batch
from gpusim_rl.algorithms.sac.settings import Settings
from gpusim_rl.core.record import Column, Record
from gpusim_rl.core.ring import Draw, Ring
from gpusim_rl.networks.squashed import SoftActorCritic
from gpusim_rl.networks.squashed_memory import RecurrentActorCritic


class Steps(NamedTuple):
    """Steps in a row of n sequences, whose features the actor computes anew."""

    rows: Record  # (T, n, …)
    memory: Tensor  # (n, …) before the first
    begins: Tensor  # (T, n) 1 where an episode begins


class RecurrentSAC(SAC):
    """An update learns from sequences, of `sequence` windows in a row each.

    The actor goes through `burn_in` steps before them, without a gradient, to renew a memory that
    an older policy has left in the ring. Attention remembers no more than it observed, so its
    memory begins blank, and its burn-in has all steps that it sees.

    ValueError as `SAC` has it, or if sequences do not fit a batch.
    """

    def __init__(self, spec: Spec, settings: Settings):
        super().__init__(spec, settings)
        self.burn_in, train = settings.steps_before, settings.sequence
        if self.draws % train:
            wanted = f"a divisor of batch_size / (num_envs × agents), which is {self.draws}"
            raise ValueError(f"algo.sequence={train}: expected {wanted}")
        if settings.memory == "gru":  # what it remembered before each step
            memory = Column((settings.memory_size,), torch.float16)
            self.columns = self.columns | {"memory/actor": memory}

    @staticmethod
    def make_policy(spec: Spec, cfg: Settings) -> SoftActorCritic:  # type: ignore[override]
        """As `SAC` has it, with a memory."""
        return SAC.make_policy(spec, cfg, partial(RecurrentActorCritic, memory=cfg))

    def add_steps(self, ring: Ring) -> None:
        super().add_steps(ring)
        self.ready.logical_and_(ring.written >= self.cfg.sequence_rows)

    def choose_batch(self, ring: Ring, unit: Tensor) -> Batch:
        """The windows of the sequences that every `sequence`-th number chooses."""
        burn_in, train, n = self.burn_in, self.cfg.sequence, self.cfg.window
        length = train - 1 + n
        drawn = ring.draw(unit[:, ::train], length, burn_in)
        sequences = ring.windows(drawn.places, length, burn_in)
        rows = sequences.rows[:, burn_in : burn_in + train]
        places = torch.stack([rows, sequences.worlds.expand_as(rows)], -1).flatten(0, 1)
        batch = self.read_batch(ring, Draw(places, drawn.weights.repeat_interleave(train)))
        steps = sequences.steps()
        begins, memory = steps.first_steps(), self.memories(steps, burn_in + n)

        def part(i: int) -> Steps:
            rows = {dtype: x[i : i + train] for dtype, x in steps.parts.items()}
            return Steps(Record(steps.columns, rows), memory[i], begins[i : i + train])

        return batch._replace(first=part(burn_in), then=part(burn_in + n))

    @torch.no_grad()
    def memories(self, steps: Record, last: int) -> Tensor:
        """(last + 1, n, …) what the actor of now remembers before each of the first steps."""
        encoder = self.policy.actor.net.encoder
        if "memory/actor" in steps.columns:
            memory = steps.column("memory/actor")[0].float()
        else:
            memory = encoder.blank(steps.rows.shape[1])
        x, begins = super().features(steps)[:last], steps.first_steps()[:last]
        _, after = encoder.unroll(x, memory, begins)
        return torch.cat([memory[None], after.unflatten(0, x.shape[:2])])

    def features(self, steps: Steps) -> Tensor:
        """(n T, size) of sequences one after the other, as their windows lie."""
        x = super().features(steps.rows)
        y, _ = self.policy.actor.net.encoder.unroll(x, steps.memory, steps.begins)
        return y.unflatten(0, x.shape[:2]).transpose(0, 1).flatten(0, 1)
