"""What the networks see of B worlds: observation terms with noise, offsets, biases and their past; and the critic's view."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.noise import Noise
from gpusim_rl.past import Past
from gpusim_rl.task import State, Task


class Views(NamedTuple):
    """What the networks see of one moment."""

    obs: Tensor  # (B, no)  the actor: what a robot measures, with noise
    critic: Tensor  # (B, nc)  the critic: the same without noise, and what only the simulator knows


class Sight:
    """Writes the views of a state. Terms keep the task's order.

    Args:
        task: its methods are pure, so any state will do.
        state: one, to find widths.
        noise: observation term → half-width of its uniform noise, in the term's unit; terms left out have none.

    `widths` are those of the terms, `spread` (n,) the half-widths of the noise, `past` what the actor sees of earlier steps.
    """

    def __init__(self, task: Task, state: State, noise: dict[str, float]):
        self.task = task
        self.offset, self.biased = "encoder" in task.randomisation.entries, task.randomisation.biased
        self.widths = {name: value.shape[1] for name, value in task.observe(state).items()}
        unknown = sorted(set(noise) - set(self.widths))
        if unknown:
            says = ", ".join(f"{name!r} is no term" for name in unknown)
            raise ValueError(f"observation and noise terms disagree: {says} (terms: {', '.join(self.widths)})")
        self.spread = task.tensor([noise.get(name, 0.0) for name, width in self.widths.items() for _ in range(width)])
        self.bind(lambda fn: fn)
        n = len(state.time)
        self.past = self._recall(n)
        widths = self.past.width if self.past else len(self.spread), self.critic(state).shape[1]
        self.views = Views(*(torch.zeros(n, width, device=self.spread.device) for width in widths))

    def _recall(self, n: int) -> Past | None:
        """What the actors of n worlds see of the past, if they see any."""
        task, read = self.task, self.task.readings
        unknown = sorted(set(task.history) - set(self.widths))
        if unknown:
            raise ValueError(f"task.history: {unknown[0]!r} is no term (terms: {', '.join(self.widths)})")
        if max(task.history.values(), default=1) == 1 and not task.observation_delay[1]:
            return None
        late = {name for name in self.widths if read[name].source not in ("action", "command", "clock")}
        return Past(self.widths, task.history, task.observation_delay, late, n, self.spread.device)

    def bind(self, fuse: Callable[[Any], Any]) -> None:
        """Take the pure functions of a state as fuse returns them: `critic`, its view (B, nc), and the actor's."""
        self.critic, self._actor = fuse(self._all), fuse(self._measurable)

    def _measurable(self, s: State) -> Tensor:
        """(B, no)"""
        return torch.cat(list(self.task.observe(s).values()), dim=1)

    def _all(self, s: State) -> Tensor:
        """(B, nc)"""
        return torch.cat([*self.task.observe(s).values(), *self.task.privileged(s).values()], dim=1)

    def noise(self, term: str) -> Tensor:
        """The half-widths of a term's noise: a view that a curriculum writes to."""
        at = sum(list(self.widths.values())[: list(self.widths).index(term)])
        return self.spread[at : at + self.widths[term]]

    def measured(self, s: State, critic: Tensor | None = None) -> Tensor:
        """(B, n) what the robot measures in a state, with its encoders' offsets and biases, but no noise; critic: its view."""
        seen = (self.critic(s) if critic is None else critic)[:, : len(self.spread)]
        if self.offset:
            seen = self._actor(s.seen(qpos=s.qpos + s.encoder))
        return seen + s.sensor_bias if self.biased else seen

    def write(self, s: State, noise: Noise, began: Tensor | None) -> None:
        """Both views of a state; the actor's has the observation noise. In place.

        began (B,): a new moment, at which these worlds begin an episode; None: the same moment, looked at again.
        """
        views = self.views
        views.critic.copy_(self.critic(s))
        blur = noise.uniform("observe", -self.spread, self.spread)
        torch.add(self.measured(s, views.critic), blur, out=self.past.now if self.past else views.obs)
        if self.past:
            self.past.see(began, noise, views.obs)
