"""The worst control step since the last report, kept on the device for inspection."""

from itertools import takewhile
from typing import NamedTuple

import torch
import warp as wp
from torch import Tensor

from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.core.states import Rows
from gpusim_rl.core.streams import launch
from gpusim_rl.sim.actuated import ActuatedSim
from gpusim_rl.sim.base import Sim

# The kernel is Warp's dialect of Python:
# pyright: reportArgumentType=false, reportIndexIssue=false, reportGeneralTypeIssues=false

ROWS = {"force": "sim/force"}  # name here → name among the rows of the worlds
REASONS = ("physics", "capacity", "view or action", "reward")  # what made a step a fault


@wp.kernel(enable_backward=False)
def keep(
    worst: wp.array[wp.int64],
    score: wp.array[float],
    worlds: wp.array[wp.int64],
    step: wp.array[wp.int64],
    numbers: wp.array2d[wp.float64],
    row: wp.array[wp.float64],
):
    """Overwrite the row by that of world worst[0], if its score is larger."""
    i = int(worst[0])
    if wp.float64(score[i]) > row[0]:
        row[0] = wp.float64(score[i])
        row[1] = wp.float64(worlds[i])
        row[2] = wp.float64(step[0])
        for j in range(numbers.shape[1]):
            row[3 + j] = numbers[i, j]


class Failure(NamedTuple):
    """The worst control step of a world, as Python numbers and tensors on the CPU."""

    score: float  # largest |weighted reward term| of the step; infinite for a fault
    world: int  # its global id
    step: int  # of the Env's count
    why: list[str]  # of REASONS; empty if the step was no fault
    terms: list[float]  # weighted reward terms [1/s]
    # Those of `step_tensors`, float64: what a step changes before it, the others during it.
    tensors: dict[str, Tensor]


def step_tensors(sim: Sim, fields: tuple[str, ...], forced: bool) -> dict[str, Tensor]:
    """The tensors (B, …) that decide a Sim's next step, but no warm start; `ctrl` and the model
    fields come last, as the step does not change them. forced: whether forces push."""
    tensors = {"qpos": sim.qpos, "qvel": sim.qvel} | ({"force": sim.force} if forced else {})
    if isinstance(sim, ActuatedSim):
        tensors |= {f"memory/{name}": x for name, x in sim.memory.items()}
    if sim.mocap_pos.numel():
        tensors |= {"mocap_pos": sim.mocap_pos, "mocap_quat": sim.mocap_quat}
    return tensors | {"ctrl": sim.ctrl} | {f"model/{name}": sim.model(name) for name in fields}


# Why: docs/decisions/faults.md
class WorstStep:
    """Keeps the step with the largest reward term of any world; a fault counts as infinite.

    worlds: (B,) int64, their global ids. fields: names of the model fields with a value per world.
    terms: number of reward terms. forced: whether forces push the robot.
    """

    def __init__(
        self,
        sim: Sim,
        worlds: Tensor,
        fields: tuple[str, ...],
        terms: int,
        forced: bool,
        group: ProcessGroup,
    ):
        self.sim, self.worlds, self.num_terms, self.group = sim, worlds, terms, group
        self.live = step_tensors(sim, fields, forced)
        changed = takewhile(lambda name: name != "ctrl", self.live)
        self._before = {name: torch.zeros_like(self.live[name]) for name in changed}
        widths = [3 + len(REASONS) + terms, *(x[0].numel() for x in self.live.values())]
        # float64 holds float32, world ids and step counts exactly
        self.row = torch.zeros(sum(widths), dtype=torch.float64, device=sim.qpos.device)
        self.row[0] = -1.0

    def rows(self) -> Rows:
        """The live rows of the state before the step, and of what the actuators remember."""
        before = {f"before/{name}": x for name, x in self._before.items()}
        return before | {name: x for name, x in self.live.items() if name.startswith("memory/")}

    def begin(self, rows: Rows) -> Rows:
        """The new rows of the state before a step; pure."""
        return {f"before/{name}": rows[ROWS.get(name, name)] for name in self._before}

    def score(self, terms: Tensor, why: Tensor) -> Tensor:
        """(B,) how bad a step was, of terms (B, R), weighted [1/s], and reasons (B, 4) bool."""
        return torch.where(why.any(1), torch.inf, terms.abs().amax(1))

    def numbers(self, rows: Rows, terms: Tensor, why: Tensor) -> Tensor:
        """(B, n) float64, what is kept of each world's step beside its score; pure.

        Rows are those after the step, before any restart.
        """
        names = [f"before/{x}" if x in self._before else x for x in self.live]
        return torch.cat(
            [x.flatten(1).double() for x in (why, terms, *(rows[x] for x in names))], 1
        )

    def record(self, step: Tensor, score: Tensor, numbers: Tensor) -> None:
        """Keep the worst of this step if it is worse than what is kept. In place.

        score (B,) and numbers (B, n) are those of each world.
        """
        if self.is_best(score):
            return
        inputs = [score.argmax(0, keepdim=True), score, self.worlds, step.view(1), numbers]
        launch(keep, 1, inputs, [self.row])

    def is_best(self, score: Tensor) -> bool:
        """Whether no score (B,) is worse than what is kept, as far as the host knows."""
        return score.device.type == "cpu" and is_empty_on_host(score > self.row[0])

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
