"""What actor and critic observe of B worlds: terms with noise, offsets, biases and history."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.history import History
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task


class Observation(NamedTuple):
    """What the networks observe at one moment."""

    actor: Tensor  # (B, no)  the actor: what a robot measures, with noise
    critic: Tensor  # (B, nc)  the critic: the same without noise, and what only the simulator knows


class Observer:
    """Writes what actor and critic observe of a state. Terms have the order of the task.

    Args:
        task: the task, whose methods are pure.
        state: any state of the worlds; it tells the widths of the terms.
        noise: observation term → half-width of its uniform noise, in the unit of the term.

    Attributes:
        term_widths: observation term → its width.
        amplitudes: (n,) half-widths of the noise.
        history: what the actor observes of earlier steps; None if it observes one step alone.
        observation: the tensors that `write` writes.
    """

    def __init__(self, task: Task, state: State, noise: dict[str, float]):
        self.task = task
        self.offset, self.biased = (
            "encoder" in task.randomization.entries,
            task.randomization.biased,
        )
        self.term_widths = {name: value.shape[1] for name, value in task.observe(state).items()}
        unknown = sorted(set(noise) - set(self.term_widths))
        if unknown:
            problems = ", ".join(f"{name!r} is no term" for name in unknown)
            raise ValueError(
                f"observation and noise terms disagree: {problems} "
                f"(terms: {', '.join(self.term_widths)})"
            )
        self.amplitudes = task.tensor(
            [noise.get(name, 0.0) for name, width in self.term_widths.items() for _ in range(width)]
        )
        self.compile(lambda fn: fn)
        n = len(state.time)
        self.history = self._make_history(n)
        widths = (
            self.history.width if self.history else len(self.amplitudes),
            self.critic(state).shape[1],
        )
        self.observation = Observation(
            *(torch.zeros(n, width, device=self.amplitudes.device) for width in widths)
        )

    def _make_history(self, n: int) -> History | None:
        """The history that the actor observes in n worlds; None if it observes one step alone."""
        task, read = self.task, self.task.readings
        for key, terms in (("hide", task.hide), ("history", task.history)):
            unknown = sorted(set(terms) - set(self.term_widths))
            if unknown:
                known = ", ".join(self.term_widths)
                raise ValueError(f"task.{key}: {unknown[0]!r} is no term (terms: {known})")
        if set(task.hide) == set(self.term_widths):
            raise ValueError("task.hide names every term: the actor would observe nothing")
        if set(task.history.values()) <= {1} and not task.observation_delay[1]:
            return None
        late = {
            name
            for name in self.term_widths
            if read[name].source not in ("action", "command", "clock")
        }
        return History(
            self.term_widths, task.history, task.observation_delay, late, n, self.amplitudes.device
        )

    def compile(self, fuse: Callable[[Any], Any]) -> None:
        """Take the pure functions of a state as `fuse` returns them."""
        self.critic, self._actor = fuse(self._critic_view), fuse(self._actor_view)

    def _actor_view(self, s: State) -> Tensor:
        """(B, no)"""
        return torch.cat(list(self.task.observe(s).values()), dim=1)

    def _critic_view(self, s: State) -> Tensor:
        """(B, nc)"""
        return torch.cat([*self.task.observe(s).values(), *self.task.privileged(s).values()], dim=1)

    def noise_amplitude(self, term: str) -> Tensor:
        """The half-widths of a term's noise: a view that a curriculum writes to."""
        at = sum(list(self.term_widths.values())[: list(self.term_widths).index(term)])
        return self.amplitudes[at : at + self.term_widths[term]]

    def measured(self, s: State, critic: Tensor | None = None) -> Tensor:
        """(B, n) what the robot measures in a state, with offsets and biases, without noise.

        critic: what the critic observes of the state, if that is known.
        """
        seen = (self.critic(s) if critic is None else critic)[:, : len(self.amplitudes)]
        if self.offset:
            seen = self._actor(s.with_(qpos=s.qpos + s.encoder))
        return seen + s.sensor_bias if self.biased else seen

    def add_noise(self, measured: Tensor, rng: Rng, out: Tensor) -> None:
        """Write measured (B, n) and its noise to out (B, n)."""
        noise = rng.uniform("observe", -self.amplitudes, self.amplitudes)
        torch.add(measured, noise, out=out)

    def write(self, s: State, rng: Rng, began: Tensor | None) -> None:
        """Write what both observe of a state; the actor's observation has noise. In place.

        began (B,) bool: the worlds whose episode begins now; None: observe the same moment again.
        """
        observation = self.observation
        observation.critic.copy_(self.critic(s))
        out = self.history.now if self.history else observation.actor
        self.add_noise(self.measured(s, observation.critic), rng, out)
        if self.history:
            self.history.update(began, rng, observation.actor)
