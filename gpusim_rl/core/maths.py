"""Batched formulas: rotations, error kernels, Gaussian densities, statistics.

All are pure functions of tensors. The last axis is the vector.
"""

# torch has no types for some of its functions:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


def rotate(q: Tensor, v: Tensor) -> Tensor:
    """v (…, 3) turned by the unit quaternion q (…, 4) = (w, x, y, z): body frame to world frame."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(u, t)


def unrotate(q: Tensor, v: Tensor) -> Tensor:
    """v (…, 3) turned by the inverse of the unit quaternion q (…, 4): world frame to body frame."""
    w, u = q[..., :1], q[..., 1:]
    t = 2 * torch.linalg.cross(u, v)
    return v - w * t + torch.linalg.cross(u, t)


def to_matrix(q: Tensor) -> Tensor:
    """(…, 3, 3) the rotation of unit quaternions q (…, 4) = (w, x, y, z), as MuJoCo computes it."""
    w, x, y, z = q.unbind(-1)
    rows = (
        (w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z),
    )
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Unit quaternion (…, 4) of the intrinsic z-y-x angles yaw, pitch, roll [rad], each (…)."""
    (cr, sr), (cp, sp), (cy, sy) = (((a / 2).cos(), (a / 2).sin()) for a in (roll, pitch, yaw))
    return torch.stack(
        [
            cr * cp * cy + sr * sp * sy,
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
        ],
        dim=-1,
    )


def product(p: Tensor, q: Tensor) -> Tensor:
    """The Hamilton product pq (…, 4) of quaternions: the rotation by q, then by p."""
    (a, u), (b, v) = ((x[..., :1], x[..., 1:]) for x in (p, q))
    scalar = a * b - (u * v).sum(-1, keepdim=True)
    return torch.cat([scalar, a * v + b * u + torch.linalg.cross(u, v)], -1)


def conjugate(q: Tensor) -> Tensor:
    """(…, 4) the conjugate: of a unit quaternion, the inverse rotation."""
    return torch.cat([q[..., :1], -q[..., 1:]], -1)


def log(q: Tensor) -> Tensor:
    """(…, 3) the rotation vector of unit quaternions q (…, 4): the axis times the angle [rad].

    The angle is at most π: of the two ways round, the shorter one. It is smooth at no rotation.
    """
    q = torch.where(q[..., :1] < 0, -q, q)
    square = squared(q[..., 1:])[..., None]
    # below it the factor is 2 in float32
    small = square < 1e-8
    sine = torch.where(small, 1.0, square).sqrt()  # of 1 where it is not used: no NaN in a gradient
    whole = 2 * torch.atan2(sine, q[..., :1]) / sine
    return torch.where(small, 2.0, whole) * q[..., 1:]


def from_axis_angle(axis: Tensor, angle: Tensor) -> Tensor:
    """Unit quaternion (…, 4) of a turn by angle (…) [rad] about the unit vector axis (…, 3)."""
    half = angle[..., None] / 2
    return torch.cat([half.cos(), half.sin() * axis], -1)


def to_6d(q: Tensor) -> Tensor:
    """(…, 6) the first two columns of the rotation's matrix, one after the other.

    They are continuous in the rotation, as no four numbers are (Zhou et al., arXiv:1812.07035).
    """
    return to_matrix(q)[..., :2].transpose(-1, -2).flatten(-2)


def uniform_rotation(unit: Tensor) -> Tensor:
    """Unit quaternions (…, 4), uniform over all rotations, of numbers (…, 3) uniform in [0, 1).

    Shoemake, "Uniform random rotations", Graphics Gems III (1992), p. 124.
    """
    share, first, second = unit.unbind(-1)
    near, far = (1 - share).sqrt(), share.sqrt()
    a, b = 2 * math.pi * first, 2 * math.pi * second
    return torch.stack([far * b.cos(), near * a.sin(), near * a.cos(), far * b.sin()], -1)


def leaning_rotation(unit: Tensor, lean: float, spin: float = math.pi) -> Tensor:
    """Unit quaternions (…, 4), uniform over all rotations that tilt z by at most lean [rad].

    They are of numbers unit (…, 3), uniform in [0, 1). The image of z is uniform on a cap of the
    sphere, so its height is uniform. The turn about it is uniform, too: by at most spin [rad] in
    each direction, where that is less than half a turn.
    """
    height, way, turn = unit.unbind(-1)
    half = torch.acos(1 - height * (1 - math.cos(lean))) / 2
    way, turn = 2 * math.pi * way, min(spin, math.pi) * turn  # half of the angle of the turn
    turn = turn - spin / 2 if spin < math.pi else turn
    zero = torch.zeros_like(half)
    tilt = torch.stack([half.cos(), half.sin() * way.cos(), half.sin() * way.sin(), zero], -1)
    return product(tilt, torch.stack([turn.cos(), zero, zero, turn.sin()], -1))


def yaw(q: Tensor) -> Tensor:
    """(…) the angle about the world's z [rad] by which unit quaternions turn x, in (-π, π]."""
    w, x, y, z = q.unbind(-1)
    return torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def yaw_frame(q: Tensor) -> Tensor:
    """(…, 4) the rotation about the world's z alone by `yaw`: a frame that stays level."""
    half = yaw(q) / 2
    return torch.stack([half.cos(), 0 * half, 0 * half, half.sin()], -1)


def wrap(angle: Tensor) -> Tensor:
    """An angle [rad], moved by whole turns into [-π, π)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def tolerance(x: Tensor, low: float, high: float, margin: float) -> Tensor:
    """1 where low ≤ x ≤ high, falling to 0.1 at a distance `margin`, by a Gaussian.

    The kernel of dm_control's rewards (Tassa et al., arXiv:1801.00690, section 2.2).
    """
    beyond = torch.relu(low - x) + torch.relu(x - high)
    return torch.exp(math.log(0.1) * (beyond / margin) ** 2)


def squared(v: Tensor) -> Tensor:
    """|v|² over the last axis: (…, n) → (…)."""
    return (v * v).sum(-1)


def gauss(error: Tensor, sigma: float | Tensor) -> Tensor:
    """exp(-|e|²/σ²) over the last axis: 1 at no error, 0.37 at |e| = σ; (…, n) → (…)."""
    return torch.exp(squared(error) * (-1 / sigma**2))


def log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; mean, diag std²), summed over the last axis: (…, n) → (…)."""
    z = (x - mean) / std
    return (-0.5 * z * z - std.log() - 0.5 * LOG_2PI).sum(-1)


def entropy(std: Tensor) -> Tensor:
    """Differential entropy [nat] of N(·, diag std²): Σ (½ + ½ log 2π + log σ), (…, n) → (…)."""
    return (0.5 + 0.5 * LOG_2PI + std.log()).sum(-1)


def wilson(count: int, of: int) -> tuple[float, float]:
    """Least and greatest chance of an event that happened `count` times `of` all, at 95 %.

    The score interval of Wilson (1927), https://doi.org/10.1080/01621459.1927.10502953.
    """
    if not of:
        return 0.0, 1.0
    # 1.96: the 97.5 % quantile of the normal distribution
    z2, share = 1.96**2, count / of
    center = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = math.sqrt(z2 * share * (1 - share) / of + (z2 / (2 * of)) ** 2) / (1 + z2 / of)
    return max(center - half, 0.0), min(center + half, 1.0)


def mean_of(x: Tensor, which: Tensor) -> float | None:
    """The mean of x (B,) over the rows of which (B,) bool; None if there are none."""
    return x[which].mean().item() if which.any() else None
