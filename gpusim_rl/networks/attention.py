"""An encoder that attends to the last frames of an episode."""

# torch has no types for some of its functions:
# pyright: reportUnknownVariableType=false

import torch
from torch import Tensor, nn

from gpusim_rl.core.ranges import FRAMES

HEADS = 2
RECENCY_LOGIT = 3.0  # of p at first: three quarters of eight frames


# Why: docs/decisions/networks.md
class Attention(nn.Module):
    """One causal layer of attention (arXiv:1706.03762) over the last K frames of an episode.

        e_t = W x_t + b
        a_tj = softmax_j(q_t · k_j / √c + p_{t-j}),  j = t-K+1 … t
        y_t = [e_t, Σ_j a_tj v_j]

    q, k and v are linear in e, for each of two heads of c numbers, and p is a parameter for each
    age of a frame (arXiv:1910.10683). All matrices are orthogonal at first, and b and p zero. But
    the first head favors the frame before, since two frames make a speed.

    The memory h (B, K - 1, width + 1) holds the frames before the present one, the oldest first.
    The last number of each is 1, and 0 in a blank one, which has no part in the softmax.

    Args:
        width: of x; size: of y, a multiple of 4; frames: K.
    """

    def __init__(self, width: int, size: int, generator: torch.Generator, frames: int):
        super().__init__()
        FRAMES.check("algo.memory_frames", frames)
        if size < 2 * HEADS or size % (2 * HEADS):
            what = f"expected a multiple of {2 * HEADS} for attention"
            raise ValueError(f"algo.memory_size={size}: {what}")
        self.width, self.size, self.frames, d = width, size, frames, size // 2
        self.embed = nn.Linear(width, d)
        # No bias: that of a key changes no softmax, and Adam would follow its rounding.
        self.query, self.key, self.value = (nn.Linear(d, d, bias=False) for _ in range(3))
        for layer in (self.embed, self.query, self.key, self.value):
            nn.init.orthogonal_(layer.weight, generator=generator)
        nn.init.zeros_(self.embed.bias)
        self.position = nn.Parameter(torch.zeros(HEADS, frames))  # oldest first
        self.position.data[0, -2] = RECENCY_LOGIT

    def blank(self, worlds: int) -> Tensor:
        """As `Encoder` has it: (worlds, K - 1, width + 1)."""
        return self.position.new_zeros(worlds, self.frames - 1, self.width + 1)

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """x (…, width) and h (…, K - 1, width + 1) → y (…, size), and h with x as its newest."""
        frames = torch.cat([h, mark(x)[..., None, :]], -2)
        return self.attend(frames, frames[..., None, :, -1] == 1)[..., 0, :], frames[..., 1:, :]

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """As `Encoder` has it, without a loop: every step attends to its own frames at once."""
        past = self.frames - 1
        frames = torch.cat([h, mark(x).transpose(0, 1)], 1)  # (B, F, width + 1), F = K - 1 + T
        episode = torch.cat([torch.zeros_like(h[..., 0]), begins.cumsum(0).t()], 1)  # its number
        present = episode[:, past:, None]
        columns = torch.arange(frames.shape[1], device=x.device)
        age = columns[past:, None] - columns  # (T, F)
        near = (age >= 0) & (age <= past)
        y = self.attend(
            frames, near & (present == episode[:, None]) & (frames[:, None, :, -1] == 1)
        )
        rows, numbers = (z.unfold(1, self.frames, 1)[..., 1:] for z in (frames, episode))
        after = torch.where((present == numbers)[:, :, None], rows, 0.0).permute(1, 0, 3, 2)
        return y.transpose(0, 1).flatten(0, 1), after.flatten(0, 1)

    def attend(self, frames: Tensor, seen: Tensor) -> Tensor:
        """y (…, T, size) of the last T of frames (…, F, width + 1); seen (…, T, F) masks them."""
        e = self.embed(frames[..., :-1])
        now = e[..., self.frames - 1 :, :]
        query, key, value = (
            layer(z).unflatten(-1, (HEADS, -1)).transpose(-3, -2)  # (…, heads, T or F, c)
            for layer, z in ((self.query, now), (self.key, e), (self.value, e))
        )
        position = shifted(self.position[:, None].expand(-1, now.shape[-2], -1))
        score = query @ key.mT / query.shape[-1] ** 0.5 + position
        score = score.masked_fill(~seen[..., None, :, :], -torch.inf)
        # An ended episode may have left NaN, and zero times NaN is NaN. That of now is in e.
        y = score.softmax(-1) @ value.nan_to_num()
        return torch.cat([now, y.transpose(-3, -2).flatten(-2)], -1)


def shifted(x: Tensor) -> Tensor:
    """(…, T, T + K - 1) with row t of x (…, T, K) in its columns t to t + K - 1, among zeros."""
    steps, columns = x.shape[-2], x.shape[-2] + x.shape[-1] - 1
    flat = nn.functional.pad(x, (0, steps)).flatten(-2)
    return flat[..., : steps * columns].unflatten(-1, (steps, columns))


def mark(x: Tensor) -> Tensor:
    """Frames (…, width + 1) of observations x (…, width): their last number says that they are."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
