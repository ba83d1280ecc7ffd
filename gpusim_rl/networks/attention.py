"""An encoder that attends to the last frames of an episode."""

import torch
from torch import Tensor, nn

from gpusim_rl.core.ranges import FRAMES

HEADS = 2


class Attention(nn.Module):
    """One causal layer of attention (arXiv:1706.03762) over the last K frames of an episode.

        e_t = W x_t + b
        a_tj = softmax_j(q_t · (k_j + p_{t-j}) / √c),  j = t-K+1 … t
        y_t = [e_t, Σ_j a_tj v_j]

    q, k and v are linear in e, for each of two heads of c numbers. p is a parameter for each age
    (arXiv:1803.02155). All matrices are orthogonal at first, and b and p zero.

    The memory h (B, K - 1, width + 1) holds the frames before the present one, the oldest first.
    The last number of each is 1, and 0 in a blank one, which has no part in the softmax.

    Args:
        width: of x; size: of y, a multiple of 4.
        generator: of the first weights.
        frames: K.
    """

    def __init__(self, width: int, size: int, generator: torch.Generator, frames: int):
        super().__init__()
        FRAMES.check("algo.memory_frames", frames)
        if size < 2 * HEADS or size % (2 * HEADS):
            raise ValueError(
                f"algo.memory_size={size}: expected a multiple of {2 * HEADS} for attention"
            )
        self.width, self.size, self.frames, d = width, size, frames, size // 2
        self.embed = nn.Linear(width, d)
        # No bias: that of a key changes no softmax, and Adam would follow its rounding.
        self.query, self.key, self.value = (nn.Linear(d, d, bias=False) for _ in range(3))
        for layer in (self.embed, self.query, self.key, self.value):
            nn.init.orthogonal_(layer.weight, generator=generator)
        nn.init.zeros_(self.embed.bias)
        self.position = nn.Parameter(torch.zeros(frames, HEADS, d // HEADS))  # oldest first

    def blank(self, worlds: int) -> Tensor:
        """h (worlds, K - 1, width + 1) as an episode begins: zeros."""
        return self.position.new_zeros(worlds, self.frames - 1, self.width + 1)

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """x (…, width) and h (…, K - 1, width + 1) → y (…, size), and h with x as its newest."""
        frames = torch.cat([h, mark(x)[..., None, :]], -2)
        e = self.embed(frames[..., :-1])
        y = self.attend(e[..., -1, :], self.key(e), self.value(e), frames[..., -1] == 1)
        return y, frames[..., 1:, :]

    def unroll(self, x: Tensor, h: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """As `Encoder` has it, without a loop: every step attends to its own window at once."""
        frames = torch.cat([h.movedim(1, 0), mark(x)])  # (K - 1 + T, B, width + 1)
        episode = torch.cat([torch.zeros_like(frames[: self.frames - 1, :, 0]), begins.cumsum(0)])
        number = self.windows(episode)
        same = number == number[..., -1:]  # (T, B, K) frames of the present episode
        remembered = torch.where(same[..., None], self.windows(frames), 0.0)
        e = self.embed(frames[..., :-1])
        key, value = self.windows(self.key(e)), self.windows(self.value(e))
        y = self.attend(e[self.frames - 1 :], key, value, remembered[..., -1] == 1)
        return y.flatten(0, 1), remembered[:, :, 1:].flatten(0, 1)

    def windows(self, x: Tensor) -> Tensor:
        """(T, B, K, …) the K rows up to each step, of rows x (K - 1 + T, B, …). A view."""
        return x.unfold(0, self.frames, 1).movedim(-1, 2)

    def attend(self, e: Tensor, key: Tensor, value: Tensor, there: Tensor) -> Tensor:
        """y (…, size) for the newest e (…, d), all keys and values (…, K, d), and there (…, K)."""
        # Of an ended episode even NaN may be in a window, and zero times NaN is NaN.
        key, value = (
            torch.where(there[..., None], x, 0.0).unflatten(-1, (HEADS, -1)) for x in (key, value)
        )
        query = self.query(e).unflatten(-1, (HEADS, -1))[..., None, :, :]
        score = (query * (key + self.position)).sum(-1) / query.shape[-1] ** 0.5  # (…, K, heads)
        share = score.masked_fill(~there[..., None], -torch.inf).softmax(-2)
        return torch.cat([e, (share[..., None] * value).sum(-3).flatten(-2)], -1)


def mark(x: Tensor) -> Tensor:
    """Frames (…, width + 1) of observations x (…, width): their last number says that they are."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)
