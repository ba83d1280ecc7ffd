"""Observations of actor and critic in B worlds.

The actor's terms are computed of what the robot measures, the critic's of the truth.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows
from gpusim_rl.envs.agents import folded, of_each, unfolded
from gpusim_rl.envs.declarations import check_shown_by
from gpusim_rl.envs.history import History
from gpusim_rl.envs.measurement import Measurement
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task

# What is observed at one moment, in rows: B of them are B / A worlds. Name of a view → (B, …).
# `actor` (B, no) are terms of what a robot measures, with their history; `critic` (B, nc) the true
# terms, and what only the simulator knows; the others are those of `Task.views`.
Observation = dict[str, Tensor]


class Observer:
    """Computes what actor and critic observe of a state. Terms have the order of the task.

    The constructor raises ValueError if a term reads what no robot measures, or a key names no
    reading or term. Any state of the worlds tells it the widths of the terms.

    Attributes:
        measurement: what the robots measure.
        term_widths: observation term → its width.
        view_terms: view → its terms in their order → how many of its columns each has.
        history: what the actor observes of earlier steps; None if it observes one step alone.
        observation: the live tensors of the last observations; further: those of `Task.views`.
    """

    def __init__(self, task: Task, state: State, noise: dict[str, float]):
        self.task, n, device = task, len(state.time), state.time.device
        self.agents = task.agents
        self.term_widths = {name: value.shape[-1] for name, value in task.observe(state).items()}
        further = {name: value.shape[-1] for name, value in task.privileged(state).items()}
        seen = {name: n * task.history.get(name, 1) for name, n in self.term_widths.items()}
        self.view_terms = {"actor": seen, "critic": self.term_widths | further}
        self._check_terms()
        self.measurement = Measurement(task, n, noise, device)
        multiple = not set(task.history.values()) <= {1}
        shape = n, *task.action_shape[:-1]
        self.history = History(self.term_widths, task.history, shape, device) if multiple else None
        no = self.history.width if self.history else sum(self.term_widths.values())
        widths, rows = dict(actor=no, critic=self.critic(state).shape[-1]), n * task.agents
        views = {name: folded(x, self.agents) for name, x in task.views(state).items()}
        self.further = {name: torch.zeros_like(x) for name, x in views.items()}
        self.rows_seen = {name: torch.zeros(rows, x, device=device) for name, x in widths.items()}
        self.observation: Observation = self.rows_seen | self.further

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

    def actor(self, s: State) -> Tensor:
        """(B, n), or (B, A, n) of a team."""
        return self._joined(self.task.observe(s).values())

    def _joined(self, terms: Iterable[Tensor]) -> Tensor:
        return torch.cat([of_each(x, self.agents, 2) for x in terms], dim=-1)

    def columns(self, term: str) -> Tensor:
        """(k, width) the actor's columns of a term, at each of the k moments that it observes."""
        names, widths = list(self.term_widths), list(self.term_widths.values())
        at = names.index(term)
        begin, width, total = sum(widths[:at]), widths[at], sum(widths)
        columns = self.history.columns.cpu() % total if self.history else torch.arange(total)
        of_term = (columns >= begin) & (columns < begin + width)
        return of_term.nonzero()[:, 0].view(-1, width)

    def critic(self, s: State) -> Tensor:
        """(B, nc), or (B, A, nc) of a team."""
        return self._joined([*self.task.observe(s).values(), *self.task.privileged(s).values()])

    def observe(
        self, s: State, rows: Rows, rng: Rng, began: Tensor | None, critic: Tensor | None = None
    ) -> Rows:
        """The new rows of a state: what both observe of it, and what the robot measures; pure.

        began (B,) bool: the worlds whose episode begins now; None: observe the same moment again.
        critic: (B, nc) what the critic observes of this state, if it is known.
        """
        history = self.history
        changed = self.measurement.measure(s, rows, rng, began)
        now = self.actor(self.measurement.delivered(s, changed["env/readings"]))
        if history:
            frames = history.pushed(rows["history/frames"], now, began, s.time == 0)
            changed["history/frames"], now = frames, history.view(frames)
        critic = self.critic(s) if critic is None else critic
        return changed | {"view/actor": now, "view/critic": critic}

    def final(self, s: State, rows: Rows) -> Tensor:
        """(B, no) what the actor would observe, without noise, of a state before its restart."""
        now = self.actor(self.measurement.preview(s, rows, None))
        history = self.history
        return history.view(history.after(rows["history/frames"], now)) if history else now

    def rows(self) -> Rows:
        """The live rows that `observe` changes."""
        views = self.rows_seen.items()
        views = {f"view/{name}": unfolded(x, self.agents) for name, x in views}
        history = self.history.state() if self.history else {}
        return self.measurement.rows() | history | views

    def state(self) -> dict[str, Tensor]:
        """Every live tensor that a later observation depends on, by name; B rows each."""
        return self.measurement.state() | (self.history.state() if self.history else {})
