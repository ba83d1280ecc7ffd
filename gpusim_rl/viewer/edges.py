"""Smooth edges of a picture that a processor has rendered, where multisampling takes too long."""

import numpy as np

CONTRAST = 12  # of 255: the least difference of neighbors that is an edge
SPAN = 8.0  # pixels: how far along an edge colors are blended, at most


def smooth_edges(picture: np.ndarray) -> np.ndarray:
    """The picture (height, width, 3) uint8 with edges that are blended along their direction.

    This is fast approximate antialiasing: T. Lottes, "FXAA", NVIDIA 2009, with four samples. Only
    pixels at edges are computed, which are a few percent.
    """
    luma = brightness(picture.astype(np.int16)) >> 2
    corners = luma[:-2, :-2], luma[:-2, 2:], luma[2:, :-2], luma[2:, 2:]
    low = high = luma[1:-1, 1:-1]
    for corner in corners:
        low, high = np.minimum(low, corner), np.maximum(high, corner)
    at = np.nonzero(high - low > np.maximum(CONTRAST, high >> 3))
    nw, ne, sw, se = (corner[at].astype(np.float32) for corner in corners)
    # along the edge, in rows and columns: the gradient of the corners, turned by 90 degrees
    step = np.stack([ne + se - nw - sw, nw + ne - sw - se], 1)
    weakest = np.maximum((nw + ne + sw + se) / 32, 1.0)
    step = np.clip(step / (abs(step).min(1) + weakest)[:, None], -SPAN, SPAN)
    place = np.stack(at, 1) + np.float32(1)
    near = (sample(picture, place - step / 6) + sample(picture, place + step / 6)) / 2
    far = (sample(picture, place - step / 2) + sample(picture, place + step / 2)) / 4 + near / 2
    inside = (brightness(far) / 4 >= low[at]) & (brightness(far) / 4 <= high[at])
    result = picture.copy()
    result[1:-1, 1:-1][at] = np.where(inside[:, None], far, near) + 0.5
    return result


def brightness(color: np.ndarray) -> np.ndarray:
    """(…,) four times the brightness of colors (…, 3)."""
    return color[..., 0] + 2 * color[..., 1] + color[..., 2]


def sample(picture: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(n, 3) colors between pixels, at places (n, 2) of row and column."""
    height, width, _ = picture.shape
    place = np.clip(place, 0, np.array([height - 1.001, width - 1.001], np.float32))
    row, column = corner = place.astype(np.int32).T
    down, right = (place.T - corner).astype(np.float32)[..., None]
    colors, first = picture.reshape(-1, 3), row * width + column
    upper, lower = colors.take(first, 0), colors.take(first + width, 0)
    upper = upper + right * (colors.take(first + 1, 0).astype(np.float32) - upper)
    lower = lower + right * (colors.take(first + width + 1, 0).astype(np.float32) - lower)
    return upper + down * (lower - upper)
