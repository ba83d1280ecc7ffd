"""Batched formulas: rotations, error kernels, Gaussian densities.

All are pure functions of tensors. The last axis is the vector.
"""

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
