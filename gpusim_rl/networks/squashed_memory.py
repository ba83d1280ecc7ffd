"""The policy of soft actor-critic whose actor remembers an episode."""

from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.record import Columns
from gpusim_rl.core.rng import Rng
from gpusim_rl.networks.encoders import HiddenLayers, MemoryMLP, make_memory
from gpusim_rl.networks.ensembles import Ensemble
from gpusim_rl.networks.normalizer import Normalizer
from gpusim_rl.networks.policy import Actor, Memory, blank_memory
from gpusim_rl.networks.settings import MemorySettings
from gpusim_rl.networks.squashed import LAST_GAIN, SoftActorCritic, Squashed


class RecurrentActorCritic(SoftActorCritic):
    """The actor has an encoder with memory before its layers. The critics observe the state.

    So they need no memory. With mirrors they are symmetric, and the actor is not.

    memory: its kind and size; further: as `SoftActorCritic` has them.
    """

    def __init__(
        self,
        views: Columns,
        action_width: int,
        *,
        memory: MemorySettings,
        seed: int,
        **further: Any,
    ):
        super().__init__(views, action_width, seed=seed, **further)
        generator = torch.Generator().manual_seed(seed + 1)
        layers = HiddenLayers(further["hidden"], further["activation"], generator)
        (no,), seen = views["actor"].shape, self.actor.encoders
        width = no + sum(encoder.size for encoder in seen.values())
        encoder = make_memory(memory, width, generator)
        net = Ensemble(1, encoder.size, 2 * action_width, layers, LAST_GAIN)
        head = Squashed(net, further["bound"], further["std"])
        self.actor = Actor(Normalizer(no), MemoryMLP(encoder, head), seen)

    @property
    def head(self) -> Squashed:
        """The actor's layers behind its memory."""
        return self.actor.net.head

    def blank_memory(self, worlds: int) -> Memory:
        """As `Policy` has it: of the actor."""
        return blank_memory(worlds, actor=self.actor.net)

    def compute(self, inputs: dict[str, Tensor], memory: Memory, rng: Rng) -> tuple[Tensor, Memory]:
        """As `SoftActorCritic` has it, and the next memory."""
        x = self.actor.features(inputs["obs"], inputs.__getitem__)
        y, after = self.actor.net.encoder.step(x, memory["actor"])
        return torch.cat(self.head.heads(y), -1), {"actor": after}
