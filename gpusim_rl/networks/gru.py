"""A network that remembers: a gated recurrent unit before a multi-layer perceptron."""

import torch
from torch import Tensor, nn

from gpusim_rl.core import ranges
from gpusim_rl.networks.mlp import mlp, mlp_forward


class GRU(nn.Module):
    """Gated recurrent unit (arXiv:1406.1078, with the gates of torch.nn.GRUCell).

        r = σ(W_r x + U_r h),  z = σ(W_z x + U_z h),  n = tanh(W_n x + r ⊙ U_n h)
        h' = n + z ⊙ (h - n)

    W and U are orthogonal at first, each gate by itself, and the biases zero.

    Args:
        width: of x; size: of h.
        generator: of the first weights.
    """

    def __init__(self, width: int, size: int, generator: torch.Generator):
        super().__init__()
        ranges.check({"memory_size": size}, "algo")
        self.input, self.recurrent = nn.Linear(width, 3 * size), nn.Linear(size, 3 * size)
        for layer in (self.input, self.recurrent):
            for gate in layer.weight.detach().chunk(3):
                nn.init.orthogonal_(gate, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """x (B, width) and h (B, size) → h' (B, size)."""
        return self.step(self.input(x), h)

    def step(self, gates: Tensor, h: Tensor) -> Tensor:
        """`forward` for gates (B, 3 size) = W x."""
        reset, update, new = gates.chunk(3, -1)
        u_reset, u_update, u_new = self.recurrent(h).chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(reset + u_reset) * u_new)
        return candidate + torch.sigmoid(update + u_update) * (h - candidate)


class Recurrent(nn.Module):
    """x (B, width) and h (B, size) → y (B, out) and h' (B, size).

    Args:
        size: of h; width: of x; hidden: widths of the layers between h' and y; out: of y.
        activation, gain, generator: as `mlp` has them.
    """

    def __init__(
        self,
        size: int,
        width: int,
        hidden: tuple[int, ...],
        out: int,
        activation: str,
        gain: float,
        generator: torch.Generator,
    ):
        super().__init__()
        self.size = size
        self.gru = GRU(width, size, generator)
        self.head = mlp(size, hidden, out, activation, gain, generator)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = self.gru(x, h)
        return self.head(h), h

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences x (T, B, width) from h (B, size) → y and h', (T B, …) each.

        begins (T, B) is 1 where an episode begins: h is blank before that step.
        """
        gates, keeps, states = self.gru.input(x), begins[..., None] == 0, []
        for gate, keep in zip(gates, keeps, strict=True):
            h = self.gru.step(gate, torch.where(keep, h, 0.0))
            states.append(h)
        after = torch.cat(states)
        return mlp_forward(self.head, after), after
