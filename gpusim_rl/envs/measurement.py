"""What the robots of B worlds measure: readings with offsets, biases, noise and delay."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.history import DelayLine
from gpusim_rl.envs.randomization.joints import encoder_columns
from gpusim_rl.envs.readings import measured
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.tracing import needs, reads, sample_inputs

Update = Callable[[State, Rng], dict[str, Tensor]]  # Task.update


class Measurement:
    """Writes the readings that a task's methods get on a robot, in the order that they use them.

    Args:
        task: the task.
        worlds: B.
        noise: reading → half-width of its uniform noise, in the unit of the reading.

    Attributes:
        widths: reading → its width, of those that `observe` and `control` use.
        filters: entries of the robot's memory that `update` computes of readings.
        readings: reading → (B, width), live: what the robot gets at this moment.
        amplitudes: (n,) half-widths of the noise.
        delay: the readings that are on their way; None if none comes late.

    Raises:
        ValueError: a term reads what no robot measures, or a key names no reading.
    """

    def __init__(self, task: Task, worlds: int, noise: dict[str, float], device: torch.device):
        need, every, random = needs(task), measured(task.mjm), task.randomization
        self.widths = widths = {name: every[name] for name in need.readings}
        if not widths:
            raise ValueError("the actor and `control` use no reading: nothing would be measured")
        check_readings(task, "task.noise", noise, widths)
        check_readings(task, "task.randomise.bias", random.biases, widths)
        updates = reads(task, "update", sample_inputs(task))
        self.filters = [name for name in need.memory if updates.get(name, set()) & set(widths)]
        amplitudes = [noise.get(name, 0.0) for name in widths for _ in range(widths[name])]
        self.amplitudes, n = task.tensor(amplitudes), len(amplitudes)
        offset, biased = "encoder" in random.entries, bool(random.biases)
        self.encoders = encoder_columns(task.mjm, widths, device) if offset else None
        self.biases = bias_columns(random.biases, widths, device) if biased else None
        low, high = task.observation_delay
        self.delay = DelayLine(low, high, worlds, n, device) if high else None
        self._given = torch.zeros(worlds, n, device=device)
        self.readings = self.split(self._given)
        self.compile(lambda fn: fn)

    def compile(self, fuse: Callable[[Any], Any]) -> None:
        """Take the pure functions of a state as `fuse` returns them."""
        self._measured = fuse(self._measure)

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """(B, n) as the columns of each reading, which are views."""
        return dict(zip(self.widths, x.split(list(self.widths.values()), 1), strict=True))

    def _measure(self, s: State) -> Tensor:
        """(B, n) the readings of a state, with offsets and biases, without noise and delay."""
        readings = torch.cat([getattr(s, name) for name in self.widths], 1)
        if self.encoders is not None:
            columns, gear = self.encoders
            readings = readings + s.encoder.index_select(1, columns) * gear
        if self.biases is not None:
            columns, mask = self.biases
            readings = readings + s.sensor_bias.index_select(1, columns) * mask
        return readings

    def noise_amplitude(self, reading: str) -> Tensor:
        """The half-widths of a reading's noise: a view that a curriculum writes to.

        Those of a hidden term's reading, which nobody gets, are a tensor of its own.
        """
        if reading not in self.widths:
            return self.amplitudes.new_zeros(1)
        return self.split(self.amplitudes[None])[reading][0]

    def noise(self, rng: Rng) -> Tensor:
        """(B, n) the noise of this step."""
        return rng.uniform("observe", -self.amplitudes, self.amplitudes)

    def write(self, s: State, rng: Rng, began: Tensor | None) -> State:
        """Write the readings of a state, and return the state as they show it. In place.

        began (B,) bool: the worlds whose episode begins now; None: measure the same moment again.
        """
        delay = self.delay
        torch.add(self._measured(s), self.noise(rng), out=delay.now if delay else self._given)
        if delay:
            delay.push(began)
            if began is not None:
                delay.draw(began, rng)
            self._given.copy_(delay.view(delay.frames))
        return s.with_(**self.readings)

    def updated(self, update: Update, s: State, rng: Rng) -> dict[str, Tensor]:
        """Memory after a step; what the robot's computer keeps is computed of its readings."""
        values = update(s, rng)
        if self.filters:
            own = update(self.preview(s, rng), rng)
            values |= {name: own[name] for name in self.filters}
        return values

    def preview(self, s: State, rng: Rng | None) -> State:
        """What `write` will return in worlds that do not restart; without noise if rng is None."""
        now = self._measured(s)
        now = now if rng is None else now + self.noise(rng)
        if self.delay:
            now = self.delay.view(self.delay.after(now))
        return s.with_(**self.split(now))


def bias_columns(
    biases: dict[str, int], widths: dict[str, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Each reading column's column among the biases (n,) int64, and 1 if it is there (n,)."""
    first, begin = {}, 0
    for name, width in biases.items():
        first[name], begin = begin, begin + width
    columns, mask = [], []
    for name, width in widths.items():
        columns += [first[name] + i if name in first else 0 for i in range(width)]
        mask += [float(name in first)] * width
    return torch.tensor(columns, device=device), torch.tensor(mask, device=device)


def check_readings(task: Task, key: str, names: Iterable[str], widths: dict[str, int]) -> None:
    """ValueError unless all names are readings that the task uses.

    The message for the name of a term tells the readings of that term.
    """
    for name in (name for name in names if name not in widths):
        terms = reads(task, "observe", sample_inputs(task))
        if any(name in terms.get(term, set()) for term in task.hide):
            continue  # the actor would use it, were the term not hidden
        own = [f"{key}.{reading}" for reading in widths if reading in terms.get(name, set())]
        if own:
            new = " and ".join(own)
            raise ValueError(f"{key}.{name}: it belongs to readings, not to terms: say {new}")
        known = ", ".join(widths)
        raise ValueError(f"{key}.{name}: the actor uses no such reading, choose one of {known}")
