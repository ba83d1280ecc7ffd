"""The network that acts: what ONNX holds is exactly this."""

from typing import Any

from torch import Tensor, nn

from gpusim_rl.networks.gru import Recurrent
from gpusim_rl.networks.normalizer import Normalizer

Memory = dict[str, Tensor]  # what networks remember of B episodes, name → (B, …)


class Actor(nn.Module):
    """Observation (B, no) → mean action (B, nu), normalizer included. This module is exported.

    With memory it is (obs, memory) → (action, next memory), as `blank_memory` has it.

    Args:
        normalizer: of the observations.
        net: normalized observation → mean action.
    """

    def __init__(self, normalizer: Normalizer, net: nn.Module):
        super().__init__()
        self.normalizer, self.net = normalizer, net

    def blank_memory(self, worlds: int) -> Memory:
        """What it remembers as an episode begins, name → (worlds, size): zeros; {} for most."""
        if not isinstance(self.net, Recurrent):
            return {}
        return {"actor_gru": self.normalizer.mean.new_zeros(worlds, self.net.size)}

    def forward(self, obs: Tensor, memory: Memory | None = None) -> Any:
        x = self.normalizer(obs)
        if not isinstance(self.net, Recurrent):
            return self.net(x)
        assert memory
        action, after = self.net(x, memory["actor_gru"])
        return action, {"actor_gru": after}
