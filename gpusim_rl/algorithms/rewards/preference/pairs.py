"""Which pairs of clips are worth a question."""

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from gpusim_rl.algorithms.learner import Spec

CANDIDATES = 10  # pairs that are looked at for each one that is asked about
NEIGHBORS = 4  # clips with the nearest commands, of which one is taken
STEADY = 1e-3  # how much a command may change within a clip


def term_columns(spec: Spec, names: list[str]) -> list[int]:
    """The columns of the critic's view that hold some terms; ValueError names an unknown one."""
    widths = spec.term_widths["critic"]
    if unknown := [name for name in names if name not in widths]:
        raise ValueError(f"reward.alike: no term {unknown[0]!r}: choose of {', '.join(widths)}")
    ends = dict(zip(widths, accumulate(widths.values()), strict=True))
    return [x for name in names for x in range(ends[name] - widths[name], ends[name])]


@torch.no_grad()
def choose_pairs(
    clips: Tensor,
    older: Tensor,
    alike: Tensor,
    count: int,
    across: float,
    doubt: Callable[[Tensor], Tensor] | None,
    generator: torch.Generator,
) -> tuple[Tensor, int] | None:
    """Pairs (n, 2, T, …) of whole clips with nearly the same commands, and how many are drawn by
    chance: these come first. None if there are too few clips.

    Args:
        clips, older: (T, worlds, width + 1) of now and of the first policy; the last column is 1
            where an episode ended.
        alike: columns of the command.
        across: share of pairs whose second clip is an older one.
        doubt: of pairs (n, 2, T, …), the larger the more a question tells: half are chosen by it.
    """
    left, right = (steady_worlds(x, alike) for x in (clips, older))
    if len(left) < 2:
        return None
    n = CANDIDATES * count
    mine = left[torch.randint(len(left), (n,), generator=generator)]
    wanted = clips[0, mine][:, alike]
    other = nearest(wanted, clips[0][:, alike], mine, left, generator)
    if len(right):
        far = nearest(wanted, older[0][:, alike], mine, right, generator)
        other = torch.where(torch.rand(n, generator=generator) < across, -1 - far, other)
    both = torch.stack([mine, other], 1)
    places: list[list[int]] = both.numpy().tolist()
    first = {(min(x), max(x)): i for i, x in reversed([*enumerate(places)])}
    mine, other = both[sorted(first.values())].T  # a pair is asked once
    second = torch.where((other < 0)[:, None], older[:, -1 - other], clips[:, other])
    pairs, n = torch.stack([clips[:, mine], second]), len(mine)
    swap = torch.rand(n, generator=generator) < 0.5
    pairs = torch.where(swap[:, None], pairs.flip(0), pairs).permute(2, 0, 1, 3)
    count = min(count, n)
    drawn = count if doubt is None else count - count // 2
    chosen = pairs[:drawn]
    if doubt is not None:
        unsure = doubt(pairs[drawn:]).topk(count - drawn).indices
        chosen = torch.cat([chosen, pairs[drawn:][unsure]])
    return chosen, drawn


def steady_worlds(clips: Tensor, alike: Tensor) -> Tensor:
    """The worlds whose clip (T, worlds, …) is whole, and has one command."""
    whole = (clips[..., -1].sum(0) == 0) & (clips != 0).any(-1).all(0)
    commands = clips[..., alike]
    change = commands.amax(0) - commands.amin(0)
    return (whole & (change.sum(-1) < STEADY)).nonzero().flatten()


def nearest(
    wanted: Tensor, commands: Tensor, mine: Tensor, choices: Tensor, generator: torch.Generator
) -> Tensor:
    """(n,) worlds, of `choices` without `mine` (n,), whose commands are near the wanted (n, k)."""
    apart = torch.cdist(wanted, commands[choices])
    apart = apart.masked_fill(mine[:, None] == choices, torch.inf)
    # among equally near ones, as without commands, chance decides
    apart += 1e-6 * torch.rand(apart.shape, generator=generator)
    near = apart.topk(min(NEIGHBORS, max(len(choices) - 1, 1)), largest=False).indices
    taken = torch.randint(near.shape[1], (len(mine), 1), generator=generator)
    return choices[near.gather(1, taken)[:, 0]]
