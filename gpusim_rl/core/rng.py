"""Counter-based random numbers.

Each is a pure function of (seed, stream, step, global world id, column).

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
key (seed, stream), counter (world, column / 4, step low, step high). There is no generator state,
so there is none to save, to split over devices or to get out of step. Integers and uniforms are
bit-equal on every device, normals to 1e-6.
"""

# The kernel is Warp's dialect of Python:
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false
# pyright: reportAssignmentType=false, reportGeneralTypeIssues=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportAttributeAccessIssue=false

import copy
import hashlib
import math
from typing import Any

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.streams import launch, start_warp, warp_stream

LOW = 0xFFFFFFFF
# the increments of the paper's table 2; its multipliers stand in the kernel
WEYL0, WEYL1 = wp.constant(wp.uint32(0x9E3779B9)), wp.constant(wp.uint32(0xBB67AE85))


@wp.func
def philox_words(counter: wp.vec4ui, key: wp.vec2ui):
    """Philox4x32-10: four words for a counter of four words and a key of two."""
    c0, c1, c2, c3 = counter[0], counter[1], counter[2], counter[3]
    k0, k1 = key[0], key[1]
    for _ in range(10):
        p0, p1 = wp.uint64(c0) * wp.uint64(0xD2511F53), wp.uint64(c2) * wp.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            wp.uint32(p1 >> wp.uint64(32)) ^ c1 ^ k0,
            wp.uint32(p1),
            wp.uint32(p0 >> wp.uint64(32)) ^ c3 ^ k1,
            wp.uint32(p0),
        )
        k0, k1 = k0 + WEYL0, k1 + WEYL1
    return wp.vec4ui(c0, c1, c2, c3)


@wp.kernel(enable_backward=False)
def philox_block(
    world: wp.array[wp.int64],
    step: wp.array[wp.int64],
    seed: wp.uint32,
    stream: wp.array[wp.int64],
    column: wp.array[wp.int64],
    words_out: wp.array2d[wp.int64],
    units_out: wp.array2d[wp.float32],
):
    """`philox_words` for every world and group of four columns, and multiples of 2⁻²⁴ in [0, 1)."""
    i, g = wp.tid()
    low, high = wp.uint32(step[0]), wp.uint32(step[0] >> wp.int64(32))
    words = philox_words(
        wp.vec4ui(wp.uint32(world[i]), wp.uint32(column[g]), low, high),
        wp.vec2ui(seed, wp.uint32(stream[g])),
    )
    for j in range(4):
        words_out[i, 4 * g + j] = wp.int64(words[j])
        units_out[i, 4 * g + j] = wp.float32(words[j] >> wp.uint32(8)) * 5.9604644775390625e-08


@wp.kernel(enable_backward=False)
def philox_keys(
    world: wp.array[wp.int64],
    step: wp.array[wp.int64],
    seed: wp.uint32,
    stream: wp.uint32,
    keys_out: wp.array3d[wp.int64],
):
    """The first 63 bits of `philox_words` for every row, world and item of keys (count, B, n)."""
    row, i, item = wp.tid()
    column = wp.uint32(row * keys_out.shape[2] + item)
    low, high = wp.uint32(step[0]), wp.uint32(step[0] >> wp.int64(32))
    words = philox_words(wp.vec4ui(column, wp.uint32(world[i]), low, high), wp.vec2ui(seed, stream))
    # 63 bits, as a set sign bit of int64 would sort first
    keys_out[row, i, item] = (wp.int64(words[0]) << wp.int64(31)) | wp.int64(
        words[1] >> wp.uint32(1)
    )


def stream_id(name: str) -> int:
    """The 32-bit key word of a stream, from its name alone: adding one stream changes no other."""
    # not hash(), which Python salts anew in each process
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), "little")


# Why: docs/decisions/noise.md
class Rng:
    """Named random streams for B worlds.

    `draw(step)` makes one block of numbers that serves every stream of that step. A stream joins
    the block when it is first asked for. From then on its numbers come with the others at no extra
    call. Asking twice in one step gives the same numbers twice. Widths are fixed per name.

    Args:
        seed: 32-bit.
        worlds: (B,) int64, global ids. Two devices with half of the ids each draw what one device
            with all of them draws.
        life: how often these worlds were begun before, below 2¹⁵, or a live tensor (1,) int64 of
            it. It stands in the upper bits of the step, so that a process that starts again draws
            no number a second time.
    """

    def __init__(self, seed: int, worlds: Tensor, life: Tensor | int = 0):
        start_warp()
        self.seed, self.worlds, self.device = seed & LOW, worlds, worlds.device
        self.life = torch.as_tensor(life, device=self.device).view(1)
        self.step = self.life << 48
        self._place: dict[str, tuple[int, int]] = {}  # stream → first group of four columns, width
        self._groups: list[tuple[int, int]] = []  # (stream id, column / 4) of each group
        self._words = self._units = torch.empty(len(worlds), 0, device=self.device)
        self._launch: Any = None

    def draw(self, step: Tensor) -> None:
        """Make the numbers of `step` (0-d int64, on the device) for all streams, in place."""
        torch.add(step, self.life, alpha=1 << 48, out=self.step)
        if self._launch:
            self._launch.launch(warp_stream(self.device))

    def rows(self) -> dict[str, Tensor]:
        """The block of this step as live rows: the words, and the numbers in [0, 1) of them."""
        return {"rng/words": self._words, "rng/units": self._units}

    def of_rows(self, rows: dict[str, Tensor]) -> "Rng":
        """The same streams, which have all joined the block, of one that stands in other rows."""
        twin = copy.copy(self)
        twin._words, twin._units = rows["rng/words"], rows["rng/units"]
        return twin

    def uniform(self, name: str, low: Tensor | float, high: Tensor | float) -> Tensor:
        """(B, *shape) float32 in [low, high), 24 random bits each; rounding may give `high` itself.

        Bounds are numbers, or tensors of the shape wanted.
        """
        wide = low if isinstance(low, Tensor) else high
        shape = wide.shape if isinstance(wide, Tensor) else ()
        _, unit = self._take(name, math.prod(shape))
        return low + (high - low) * unit.view(-1, *shape)

    def normal(self, name: str, width: int) -> Tensor:
        """(B, width) float32 standard normals, each pair from two words (Box and Muller, 1958)."""
        half = (width + 1) // 2
        unit = self._take(name, 2 * half)[1]
        radius = torch.sqrt(-2 * torch.log1p(-unit[:, :half]))  # finite, because unit < 1
        angle = 2 * math.pi * unit[:, half:]
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :width]

    def integers(self, name: str, high: int, width: int = 1) -> Tensor:
        """(B, width) int64 in [0, high): the high half of word × high, biased by < high / 2³²."""
        return (self._take(name, width)[0] * high) >> 32

    def permutations(self, name: str, step: Tensor, count: int, n: int) -> Tensor:
        """(count, B, n) int64, rows that are permutations of 0 … n-1, by step, row and world."""
        keys = torch.empty(count, len(self.worlds), n, dtype=torch.int64, device=self.device)
        step = torch.add(step, self.life, alpha=1 << 48)
        inputs = [self.worlds, step, self.seed, stream_id(name)]
        launch(philox_keys, tuple(keys.shape), inputs, [keys])
        return torch.argsort(keys, dim=2, stable=True)

    def _take(self, name: str, width: int) -> tuple[Tensor, Tensor]:
        """(B, width) of a stream now: int64 words, and float32 multiples of 2⁻²⁴ in [0, 1)."""
        if name not in self._place:
            self._place[name] = (len(self._groups), width)
            self._groups += [(stream_id(name), column) for column in range((width + 3) // 4)]
            self._lay_out()
        first, held = self._place[name]
        if width != held:
            raise ValueError(f"noise stream {name!r} has width {held}, asked for {width}")
        columns = slice(4 * first, 4 * first + width)
        return self._words[:, columns], self._units[:, columns]

    def _lay_out(self) -> None:
        """Allocate the block for the groups there are, prepare the kernel's launch, and run it."""
        shape = len(self.worlds), 4 * len(self._groups)
        self._words = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._units = torch.zeros(shape, device=self.device)
        groups = torch.tensor(self._groups, dtype=torch.int64, device=self.device).T.contiguous()
        inputs, out = [self.worlds, self.step, self.seed, *groups], [self._words, self._units]
        dim = shape[0], len(self._groups)
        self._launch = launch(philox_block, dim, inputs, out, record=True)
        self._launch.launch(warp_stream(self.device))
        self._group_numbers = groups  # the launch holds addresses alone
