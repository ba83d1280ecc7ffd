"""Left and right: the mirror images of observations and actions."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Flip(NamedTuple):
    """Column i of the image is signs[i] times column order[i]. Done twice it is the identity."""

    order: tuple[int, ...]
    signs: tuple[float, ...]


class ViewMirrors(NamedTuple):
    """How the actor's view, the critic's view and the action look in a mirror."""

    obs: Flip
    critic: Flip
    action: Flip


def unmoved(*signs: float) -> Flip:
    """Columns that stay where they are, with these signs."""
    return Flip(tuple(range(len(signs))), signs)


def concatenated(flips: Iterable[Flip]) -> Flip:
    """Flips of adjacent columns as one."""
    order, signs = list[int](), list[float]()
    for flip in flips:
        order += [len(signs) + i for i in flip.order]
        signs += flip.signs
    return Flip(tuple(order), tuple(signs))


def view_mirrors(
    flips: dict[str, Flip], observed: Iterable[str], history: dict[str, int]
) -> ViewMirrors:
    """Mirrors of whole views, from those of terms: a term's steps of history mirror alike."""
    observed = list(observed)
    privileged = [flip for term, flip in flips.items() if term not in observed and term != "action"]
    obs = [flips[term] for term in observed for _ in range(history.get(term, 1))]
    return ViewMirrors(
        concatenated(obs),
        concatenated([*(flips[term] for term in observed), *privileged]),
        flips["action"],
    )


class MirrorModule(nn.Module):
    """x (…, n) → its image (…, n). The tensors are no parameters, and no checkpoint holds them."""

    order: Tensor
    signs: Tensor

    def __init__(self, flip: Flip):
        super().__init__()
        order, signs = flip
        if any(order[j] != i or signs[j] != signs[i] for i, j in enumerate(order)):
            raise ValueError(f"a mirror image of a mirror image is not the original: {flip}")
        self.register_buffer("order", torch.tensor(order), persistent=False)
        self.register_buffer("signs", torch.tensor(signs), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(-1, self.order) * self.signs

    def symmetrized(self, x: Tensor) -> Tensor:
        """½ (x + its image): its own image, to the last bit."""
        return 0.5 * (x + self(x))

    def symmetrized_magnitudes(self, x: Tensor) -> Tensor:
        """½ (x + its image), where columns have no sign, such as variances."""
        return 0.5 * (x + x.index_select(-1, self.order))
