"""The worst control step since the last report, kept on the device for inspection."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.sim.actuated import ActuatedSim
from gpusim_rl.sim.base import Sim

REASONS = ("physics", "capacity", "view or action", "reward")  # what made a step a fault


class Failure(NamedTuple):
    """The worst control step of a world, as Python numbers and tensors on the CPU."""

    score: float  # largest |weighted reward term| of the step; infinite for a fault
    world: int  # its global id
    step: int  # of the Env's count
    why: list[str]  # of REASONS; empty if the step was no fault
    terms: list[float]  # weighted reward terms [1/s]
    # Those of `step_tensors`, float64: `changed_tensors` before the step, the others during it.
    tensors: dict[str, Tensor]


def changed_tensors(sim: Sim, forced: bool) -> dict[str, Tensor]:
    """The tensors (B, …) that a step changes and its repetition needs, but no warm start."""
    memory = sim.memory if isinstance(sim, ActuatedSim) else {}
    force = {"force": sim.force} if forced else {}
    return (
        {"qpos": sim.qpos, "qvel": sim.qvel}
        | force
        | {f"memory/{name}": value for name, value in memory.items()}
    )


def step_tensors(sim: Sim, fields: tuple[str, ...], forced: bool) -> dict[str, Tensor]:
    """The tensors of a Sim that decide its next step; `forced`: whether forces push."""
    return (
        changed_tensors(sim, forced)
        | {"ctrl": sim.ctrl}
        | {f"model/{name}": sim.model(name) for name in fields}
    )


# Why: docs/decisions/0021-the-worst-step.md
class WorstStep:
    """Keeps the step with the largest reward term of any world; a fault counts as infinite.

    Args:
        sim: the worlds.
        worlds: (B,) int64, their global ids.
        fields: names of the model fields with a value per world.
        terms: number of reward terms.
        forced: whether forces push the robot.
        group: the processes that share the worlds.
    """

    def __init__(
        self,
        sim: Sim,
        worlds: Tensor,
        fields: tuple[str, ...],
        terms: int,
        forced: bool = False,
        group: ProcessGroup = SINGLE,
    ):
        self.sim, self.worlds, self.num_terms, self.group = sim, worlds, terms, group
        self.live = step_tensors(sim, fields, forced)
        self._before = {
            name: torch.zeros_like(x) for name, x in changed_tensors(sim, forced).items()
        }
        widths = [3 + len(REASONS) + terms, *(x[0].numel() for x in self.live.values())]
        # float64 holds float32, world ids and step counts exactly
        self.row = torch.zeros(sum(widths), dtype=torch.float64, device=sim.qpos.device)
        self.row[0] = -1.0

    def begin(self) -> None:
        """Copy the tensors that the next step changes. In place."""
        for name, before in self._before.items():
            before.copy_(self.live[name])

    def record(self, step: Tensor, terms: Tensor, why: Tensor) -> None:
        """Keep the worst of this step if it is worse than what is kept. In place.

        terms (B, R) are weighted [1/s], why (B, 4) bool is in the order of REASONS.
        """
        score = torch.where(why.any(1), torch.inf, terms.abs().amax(1))
        if is_empty_on_host(score > self.row[0]):
            return
        world = score.argmax(0, keepdim=True)
        who = self.worlds.index_select(0, world)
        values = self.live | self._before
        # Concatenation turns whole numbers and float32 into the row's float64.
        head = [score.index_select(0, world).double(), who, step[None]]
        of_world = [x.index_select(0, world).flatten() for x in (why, terms, *values.values())]
        row = torch.cat([*head, *of_world])
        self.row.copy_(torch.where(row[0] > self.row[0], row, self.row))

    def clear(self) -> None:
        """Forget the worst step. In place."""
        self.row[0].fill_(-1.0)

    def worst(self) -> Tensor:
        """A copy of the row of the worst step of all ranks."""
        rows = self.group.all_gather(self.row[None])
        return rows.index_select(0, rows[:, 0].argmax(0, keepdim=True))[0]

    def read(self, row: Tensor) -> Failure:
        """The failure in a row of `worst` that was copied to the CPU."""
        head, why, terms, rest = row.split(
            [3, len(REASONS), self.num_terms, len(row) - 3 - len(REASONS) - self.num_terms]
        )
        parts = rest.split([x[0].numel() for x in self.live.values()])
        tensors = {
            name: part.view(x.shape[1:])
            for (name, x), part in zip(self.live.items(), parts, strict=True)
        }
        score, world, step = head.tolist()
        reasons = [name for name, flag in zip(REASONS, why.tolist(), strict=True) if flag]
        return Failure(score, int(world), int(step), reasons, terms.tolist(), tensors)
