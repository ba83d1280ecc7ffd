"""`Task`: the pure functions that a task author fills in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gpusim_rl.core.maths import leaning_rotation, product
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.declarations import Command, Reflection
from gpusim_rl.envs.randomization.entries import without_pushes
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task_model import TaskModel
from gpusim_rl.robots.models import converged


@dataclass(kw_only=True)
class Task(TaskModel):
    """A robot's task: pure methods of the state. They return new tensors; only Env writes.

    Formulas and their signs stand in the subclass. Weights (≥ 0), noise and ranges stand in
    `conf/task/<name>.yaml`. The arguments are those of `TaskModel`.
    """

    def begin(self, n: int, rng: Rng, ended: State | None = None) -> dict[str, Tensor]:
        """What `start` and `next_start` say of n worlds.

        `ended` is the last state of the worlds' episodes; None if there was no episode before.
        """
        start = self.start(n, rng)
        return start if ended is None else self.next_start(start, ended, rng)

    @property
    def command_limit(self) -> Tensor:
        """(n,) the half-widths of the command's ranges, with scheduled numbers as they are now."""
        assert self.command
        largest: Any = self.command.largest
        if isinstance(largest, Tensor):
            return largest
        if any(isinstance(x, Tensor) for x in largest):
            return torch.stack([self.constant(x) for x in largest])
        return self.constant(tuple(largest))

    def draw_command(self, rng: Rng) -> Tensor:
        """(B, n) commands, uniform in their ranges; a rotation is uniform among rotations."""
        command, limit = self.command, self.command_limit
        assert command
        drawn, middle = rng.uniform("command", -limit, limit), self.constant(command.middle)
        if command.lean is None:
            return drawn + middle if command.center else drawn
        turn = leaning_rotation((drawn[:, -4:-1] + 1) / 2, command.lean, command.spin)
        turned = product(middle[-4:].expand_as(turn), turn)
        return torch.cat([drawn[:, :-4] + middle[:-4], turned], 1)

    @property
    def steps_of_command(self) -> int:
        """Control steps between two draws of the command."""
        assert self.command
        return max(1, round(self.command.redraw / self.dt))

    def steps_since_command(self, s: State) -> Tensor:
        """(B,) int64 control steps since the command was to be drawn."""
        return s.time % self.steps_of_command

    # -- what a task overrides ---------------------------------------------------------------------

    @property
    def command(self) -> Command | None:
        """What a user may ask for: the memory entry `command`, if the task has one."""
        return None

    @property
    def mirror(self) -> Reflection | None:
        """How the task is mirrored; None for a task without symmetry."""
        return None

    def start(self, n: int, rng: Rng) -> dict[str, Tensor]:
        """First states of n episodes: `qpos` (n, nq) and `qvel` (n, nv).

        Each further entry (n, …) is the task's memory.
        """
        raise NotImplementedError  # contract

    def next_start(self, start: dict[str, Tensor], ended: State, rng: Rng) -> dict[str, Tensor]:
        """What `start` returned, changed by how the last episode of each world ended.

        Args:
            start: of all worlds; only those whose episode ended take it.
            ended: the last state of that episode. `ended.time >= self.horizon` where it was the
                time limit's. In a world with a fault it may not be finite.
        """
        return start

    @property
    def derived(self) -> dict[str, Callable[[State], Tensor]]:
        """Further entries (B, …) of a state, by name, each computed of it when it is read."""
        return {}

    def update(self, s: State, rng: Rng) -> dict[str, Tensor]:
        """Memory after a step. An entry `kick` (B, nv) is added to `qvel`, to push the robot."""
        return {}

    def control(self, s: State) -> Tensor:
        """`ctrl` (B, nu) from `s.action`, in the units of each actuator."""
        return s.action

    def observe(self, s: State) -> dict[str, Tensor]:
        """What the robot measures: named terms (B, …); the actor sees them in this order."""
        raise NotImplementedError  # contract

    def privileged(self, s: State) -> dict[str, Tensor]:
        """What only the simulator knows: further terms for the critic."""
        return {}

    def reward(self, s: State) -> dict[str, Tensor]:
        """Named terms (B,), each a rate [1/s]: the reward is dt Σ weight · term.

        Those of `bonus` are added to it.
        """
        raise NotImplementedError  # contract

    def bonus(self, s: State) -> dict[str, Tensor]:
        """Further terms (B,) of the reward, each an amount of this step: Σ weight · term, no dt.

        For what happens at a moment, such as reaching a goal or falling.
        """
        return {}

    def terminated(self, s: State) -> Tensor:
        """(B,) bool: the episode ended by a failure or a success, not by the time limit."""
        return torch.zeros_like(s.time, dtype=torch.bool)

    def measure(self, s: State) -> dict[str, Tensor]:
        """Named numbers (B,) of one step, for `score`; their means are logged."""
        return {}

    def score(self, record: dict[str, Tensor]) -> dict[str, float | None]:
        """The numbers of an evaluation, `success` among them; None for what no episode tells.

        record: (T, B) of each measure, of `terminated`, and of `reward`, that of a control step.
        """
        raise NotImplementedError  # contract

    def evaluation(self) -> Self:
        """The task as it is evaluated: on the CPU, with a converged solver, without pushes."""
        exact = dict[str, Any](device="cpu", mjm=converged(self.mjm), training="exact")
        return replace(self, randomise=without_pushes(self.randomise), **exact)
