"""The worst control step since the last report, kept on the device: what to look at when a training goes wrong."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.ranks import gather
from gpusim_rl.sim import Sim

WHY = ("physics", "capacity", "view or action", "reward")  # what made a step a fault


class Found(NamedTuple):
    """An incident, read on the host."""

    score: float  # largest |weighted reward term| of the step; infinite for a quarantined one
    world: int  # its global id
    step: int  # of the Env's count
    why: list[str]  # of WHY; empty if the step was not quarantined
    terms: list[float]  # weighted reward terms [1/s]
    tensors: dict[str, Tensor]  # what `live` names: before the step; ctrl and model/<field> during it; float64


def live(sim: Sim, fields: tuple[str, ...], forced: bool) -> dict[str, Tensor]:
    """The tensors of a Sim that decide its next step, those that change within it first; `force` where forces push."""
    force = {"force": sim.force} if forced else {}
    model = {f"model/{name}": sim.model(name) for name in fields}
    return {"qpos": sim.qpos, "qvel": sim.qvel} | force | {"ctrl": sim.ctrl} | model


class Incident:
    """Keeps the step with the largest reward term of any world; a quarantined step counts as infinite.

    Args:
        sim: whose worlds; worlds: (B,) int64 their global ids; fields: names of its model fields with a value per world;
        terms: how many reward terms; forced: whether forces push.
    """

    def __init__(self, sim: Sim, worlds: Tensor, fields: tuple[str, ...], terms: int, forced: bool = False):
        self.sim, self.worlds, self.num_terms = sim, worlds, terms
        self.live = live(sim, fields, forced)
        self._before = [torch.zeros_like(x) for x in list(self.live.values())[: 3 if forced else 2]]
        widths = [3 + len(WHY) + terms, *(x[0].numel() for x in self.live.values())]
        self.row = torch.zeros(sum(widths), dtype=torch.float64, device=sim.qpos.device)
        self.row[0] = -1.0

    def begin(self) -> None:
        """Remember where every world was. In place."""
        for before, now in zip(self._before, self.live.values(), strict=False):
            before.copy_(now)

    def look(self, step: Tensor, terms: Tensor, why: Tensor) -> None:
        """Keep the worst of this step, if it is worse than what is kept: terms (B, R), why (B, 4) bool. In place."""
        score = torch.where(why.any(1), torch.inf, terms.abs().amax(1)).double()
        world = score.argmax(0, keepdim=True)
        who = self.worlds.index_select(0, world)
        during = list(self.live.values())[len(self._before) :]
        of_world = [x.index_select(0, world).flatten().double() for x in (why, terms, *self._before, *during)]
        row = torch.cat([score.index_select(0, world), who.double(), step.double()[None], *of_world])
        self.row.copy_(torch.where(row[0] > self.row[0], row, self.row))

    def clear(self) -> None:
        """Begin anew. In place."""
        self.row[0].fill_(-1.0)

    def worst(self) -> Tensor:
        """A copy of the row, or of that of the rank whose step was the worst."""
        rows = gather(self.row[None])
        return rows.index_select(0, rows[:, 0].argmax(0, keepdim=True))[0]

    def read(self, row: Tensor) -> Found:
        """What `worst`, on the host, says."""
        head, why, terms, rest = row.split([3, len(WHY), self.num_terms, len(row) - 3 - len(WHY) - self.num_terms])
        parts = rest.split([x[0].numel() for x in self.live.values()])
        tensors = {name: part.view(x.shape[1:]) for (name, x), part in zip(self.live.items(), parts, strict=True)}
        score, world, step = head.tolist()
        reasons = [name for name, flag in zip(WHY, why.tolist(), strict=True) if flag]
        return Found(score, int(world), int(step), reasons, terms.tolist(), tensors)
