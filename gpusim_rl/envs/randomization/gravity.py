"""Gravity of another magnitude, and tilted from the model's own direction."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


class Gravity:
    """A model's own gravity (3,) [m/s²], and two unit vectors at right angles to it."""

    def __init__(self, nominal: Tensor):
        self.nominal = nominal
        down = normalize(nominal, dim=0)
        axis = [1.0, 0.0, 0.0] if abs(float(down[0])) < 0.9 else [0.0, 1.0, 0.0]
        self.across = normalize(torch.linalg.cross(down, nominal.new_tensor(axis)), dim=0)
        self.ahead = torch.linalg.cross(self.across, down)

    def vector(self, strength: Tensor | None, angles: tuple[Tensor, Tensor] | None) -> Tensor:
        """(B, 3) gravity [m/s²]; (3,) if nothing is drawn.

        strength (B, 1): its magnitude [m/s²]; None: the model's own. angles: the tilt and its
        azimuth (B, 1) each [rad]; None: the model's own direction.
        """
        down = normalize(self.nominal, dim=0)
        size = self.nominal.norm() if strength is None else strength
        if angles is None:
            return size * down
        tilt, azimuth = angles
        side = azimuth.cos() * self.across + azimuth.sin() * self.ahead
        return size * (tilt.cos() * down + tilt.sin() * side)
