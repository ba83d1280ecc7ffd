"""The calibration of a command: an actor observes what makes the robot do what it is told."""

import torch
from torch import Tensor, nn


def features(x: Tensor) -> Tensor:
    """(…, n) → (…, f): 1, x, |x|, x_i |x_j| and, of different numbers, x_i x_j."""
    pairs = [(i, j) for j in range(x.shape[-1]) for i in range(j)]
    products = x[..., [i for i, _ in pairs]] * x[..., [j for _, j in pairs]]
    mixed = (x[..., None] * x[..., None, :].abs()).flatten(-2)
    return torch.cat((torch.ones_like(x[..., :1]), x, x.abs(), mixed, products), -1)


class Calibration(nn.Module):
    """Observation (…, no) → the same with another command: x + clamp(features(x) @ weights)."""

    columns: Tensor  # (m, n) where the observation has the command x, at m moments
    weights: Tensor  # (f, n)
    limit: Tensor  # (n,) the largest change of a command
    place: Tensor  # (m n, no) 1 where the observation has a number of the command

    def __init__(self, columns: Tensor, weights: Tensor, limit: Tensor, width: int):
        super().__init__()
        place = torch.zeros(columns.numel(), width)
        place[torch.arange(columns.numel()), columns.flatten()] = 1.0
        buffers = dict(columns=columns, weights=weights, limit=limit, place=place)
        for name, x in buffers.items():  # not of the state: a training is the same without
            self.register_buffer(name, x.clone(), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        change = features(obs[..., self.columns]) @ self.weights
        change = torch.minimum(torch.maximum(change, -self.limit), self.limit)
        return obs + change.flatten(-2) @ self.place
