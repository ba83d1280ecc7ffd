"""Observations of actor and critic in B worlds.

The actor's terms are computed of what the robot measures, the critic's of the truth.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.declarations import check_shown_by
from gpusim_rl.envs.history import History
from gpusim_rl.envs.measurement import Measurement
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task


class Observation(NamedTuple):
    """Observations of the networks at one moment."""

    actor: Tensor  # (B, no)  the actor: terms of what a robot measures, with their history
    critic: Tensor  # (B, nc)  the critic: the true terms, and what only the simulator knows


class Observer:
    """Writes what actor and critic observe of a state. Terms have the order of the task.

    Args:
        task: the task, whose methods are pure.
        state: any state of the worlds; it tells the widths of the terms.
        noise: reading → half-width of its uniform noise, in the unit of the reading.

    Attributes:
        measurement: what the robots measure.
        term_widths: observation term → its width.
        history: what the actor observes of earlier steps; None if it observes one step alone.
        observation: the tensors that `write` writes.

    Raises:
        ValueError: a term reads what no robot measures, or a key names no reading or term.
    """

    def __init__(self, task: Task, state: State, noise: dict[str, float]):
        self.task, n, device = task, len(state.time), state.time.device
        self.term_widths = {name: value.shape[1] for name, value in task.observe(state).items()}
        self._check_terms()
        self.measurement = Measurement(task, n, noise, device)
        multiple = not set(task.history.values()) <= {1}
        self.history = History(self.term_widths, task.history, n, device) if multiple else None
        no = self.history.width if self.history else sum(self.term_widths.values())
        self.observation = Observation(
            *(torch.zeros(n, width, device=device) for width in (no, self.critic(state).shape[1]))
        )

    def _check_terms(self) -> None:
        """ValueError if a key names no term or body, or every term is hidden."""
        task = self.task
        check_shown_by(task.command, task.mjm)
        for key, terms in (("hide", task.hide), ("history", task.history)):
            unknown = sorted(set(terms) - set(self.term_widths))
            if unknown:
                names = ", ".join(self.term_widths)
                raise ValueError(f"task.{key}: {unknown[0]!r} is no term (terms: {names})")
        if set(task.hide) == set(self.term_widths):
            raise ValueError("task.hide names every term: the actor would observe nothing")

    def _actor(self, s: State) -> Tensor:
        """(B, n)"""
        return torch.cat(list(self.task.observe(s).values()), dim=1)

    def critic(self, s: State) -> Tensor:
        """(B, nc) what the critic observes of a state."""
        return torch.cat([*self.task.observe(s).values(), *self.task.privileged(s).values()], dim=1)

    def write(self, s: State, rng: Rng, began: Tensor | None, critic: Tensor | None = None) -> None:
        """Write what both observe of a state, and what the robot measures of it. In place.

        began (B,) bool: the worlds whose episode begins now; None: observe the same moment again.
        critic: (B, nc) what the critic observes of this state, if it is known.
        """
        observation, history = self.observation, self.history
        observation.critic.copy_(self.critic(s) if critic is None else critic)
        now = self._actor(self.measurement.write(s, rng, began))
        if history is None:
            observation.actor.copy_(now)
        else:
            history.now.copy_(now)
            history.push(began, s.time == 0)
            observation.actor.copy_(history.view(history.frames))

    def final(self, s: State) -> Tensor:
        """(B, no) what the actor would observe, without noise, of a state before its restart."""
        now = self._actor(self.measurement.preview(s, None))
        return self.history.view(self.history.after(now)) if self.history else now

    def state(self) -> dict[str, Tensor]:
        """Every live tensor that a later observation depends on, by name; B rows each."""
        return self.measurement.state() | (self.history.state() if self.history else {})
