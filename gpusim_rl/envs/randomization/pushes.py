"""Pushes at random times: sudden changes of the base's velocity, and forces that last."""

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.randomization.entries import Entry
from gpusim_rl.envs.randomization.sampling import Block, zero_padded


class Pushes:
    """Draws the pushes of each control step, for the entries `push` and `force`.

    dt: control period [s]. first: column of `qvel` with the velocity of the base along x. nv: width
    of `qvel`.
    """

    def __init__(self, entries: dict[str, Entry], dt: float, first: int, nv: int, device: str):
        self.dt, self.first, self.nv = dt, first, nv
        timed = {name: e for name, e in entries.items() if "every" in e}
        self.every = {
            name: torch.as_tensor(e["every"], dtype=torch.float32, device=device)
            for name, e in timed.items()
        }
        self.blocks: dict[str, Block] = {}
        for name, e in timed.items():
            parts = [(name, e["kind"], e["low"], e["high"], 2), ("chance", "uniform", 0.0, 1.0, 1)]
            parts += [("hold", "uniform", *e["hold"], 1)] if "hold" in e else []
            self.blocks[name] = Block(f"randomise/{name}", parts, device)

    def __call__(self, rng: Rng, force: Tensor, left: Tensor | None) -> dict[str, Tensor]:
        """`kick` and `force` (B, nv), and `force_left` (B,). Call it once in each control step.

        force (B, nv) is the force of the last step, left (B,) int64 the control steps it has left.
        """
        values: dict[str, Tensor] = {}
        if "push" in self.blocks:
            values["kick"] = zero_padded(self._draw("push", rng)[0], self.first, self.nv)
        if "force" in self.blocks and left is not None:
            new, begins, hold = self._draw("force", rng)
            left = (left - 1).clamp(min=0)
            begins = begins & (left == 0)
            steps = (hold / self.dt).round().clamp(min=1).long()
            new = zero_padded(new, self.first, self.nv).to(force.dtype)
            values["force"] = torch.where(begins[:, None], new, force * (left > 0)[:, None])
            values["force_left"] = torch.where(begins, steps, left)
        return values

    def _draw(self, name: str, rng: Rng) -> tuple[Tensor, Tensor, Tensor]:
        """x and y (B, 2), 0 where no push begins; whether one does (B,); seconds it lasts (B,)."""
        block = self.blocks[name]
        drawn = block(rng)
        # a chance of dt / every in each step: times between pushes are geometric
        begins = drawn[:, block.place["chance"]] * self.every[name] < self.dt
        hold = drawn[:, block.place["hold"]] if "hold" in block.place else begins
        return drawn[:, block.place[name]] * begins, begins[:, 0], hold[:, 0]
