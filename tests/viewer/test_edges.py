"""Edges of a picture are blended along their direction."""

import numpy as np

from gpusim_rl.viewer.edges import smooth_edges


def slanted(size: int = 40) -> np.ndarray:
    """A picture whose edge rises by one pixel in three."""
    row, column = np.mgrid[:size, :size]
    above = (3 * row < column + size)[..., None]
    return np.where(above, [200, 180, 40], [20, 60, 90]).astype(np.uint8)


def test_steps_of_an_edge_are_blended():
    """Only pixels beside the edge change, to colors between the two."""
    picture = slanted()
    smooth = smooth_edges(picture)
    changed = (smooth != picture).any(2)
    row, column = np.nonzero(changed)
    assert 20 < len(row) and (np.abs(3 * row - column - 40) <= 4).all()
    assert ((smooth >= picture.min((0, 1))) & (smooth <= picture.max((0, 1)))).all()


def test_a_turned_picture_is_smoothed_alike():
    """Neither rows nor columns are preferred, nor a direction."""
    picture = slanted()
    smooth = smooth_edges(picture).astype(int)
    for turn in (lambda x: x.transpose(1, 0, 2), lambda x: x[::-1], lambda x: x[:, ::-1]):
        turned = smooth_edges(np.ascontiguousarray(turn(picture))).astype(int)
        assert abs(turned - turn(smooth)).max() <= 1
