"""The worst control step since the last report, kept on the device: what to look at when a training goes wrong."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.ranks import gather
from gpusim_rl.sim import Sim
from gpusim_rl.sim.driven import Driven

WHY = ("physics", "capacity", "view or action", "reward")  # what made a step a fault


class Found(NamedTuple):
    """An incident, read on the host."""

    score: float  # largest |weighted reward term| of the step; infinite for a quarantined one
    world: int  # its global id
    step: int  # of the Env's count
    why: list[str]  # of WHY; empty if the step was not quarantined
    terms: list[float]  # weighted reward terms [1/s]
    tensors: dict[str, Tensor]  # what `live` names: `moving` before the step, the others during it; float64


def moving(sim: Sim, forced: bool) -> dict[str, Tensor]:
    """What a step changes and its repetition has to know, (B, …) each; the solver's warm start is not among it."""
    memory = sim.memory if isinstance(sim, Driven) else {}
    force = {"force": sim.force} if forced else {}
    return {"qpos": sim.qpos, "qvel": sim.qvel} | force | {f"memory/{name}": value for name, value in memory.items()}


def live(sim: Sim, fields: tuple[str, ...], forced: bool) -> dict[str, Tensor]:
    """The tensors of a Sim that decide its next step; `forced`: forces push."""
    return moving(sim, forced) | {"ctrl": sim.ctrl} | {f"model/{name}": sim.model(name) for name in fields}


class Incident:
    """Keeps the step with the largest reward term of any world; a quarantined step counts as infinite.

    Args:
        sim: whose worlds; worlds: (B,) int64 their global ids; fields: names of its model fields with a value per world;
        terms: how many reward terms; forced: whether forces push.
    """

    def __init__(self, sim: Sim, worlds: Tensor, fields: tuple[str, ...], terms: int, forced: bool = False):
        self.sim, self.worlds, self.num_terms = sim, worlds, terms
        self.live = live(sim, fields, forced)
        self._before = {name: torch.zeros_like(x) for name, x in moving(sim, forced).items()}
        widths = [3 + len(WHY) + terms, *(x[0].numel() for x in self.live.values())]
        self.row = torch.zeros(sum(widths), dtype=torch.float64, device=sim.qpos.device)
        self.row[0] = -1.0

    def begin(self) -> None:
        """Remember where every world was. In place."""
        for name, before in self._before.items():
            before.copy_(self.live[name])

    def look(self, step: Tensor, terms: Tensor, why: Tensor) -> None:
        """Keep the worst of this step, if it is worse than what is kept: terms (B, R), why (B, 4) bool. In place."""
        score = torch.where(why.any(1), torch.inf, terms.abs().amax(1)).double()
        world = score.argmax(0, keepdim=True)
        who = self.worlds.index_select(0, world)
        kept = self.live | self._before
        of_world = [x.index_select(0, world).flatten().double() for x in (why, terms, *kept.values())]
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
