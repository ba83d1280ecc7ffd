"""Measurements of the robots of B worlds: readings with offsets, biases, noise, delay, drop-out."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows
from gpusim_rl.envs.history import DelayLine
from gpusim_rl.envs.randomization.joints import encoder_columns
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.envs.tracing import needs, reads, sample_inputs

Update = Callable[[State, Rng], dict[str, Tensor]]  # Task.update


# Why: docs/decisions/observations.md
class Measurement:
    """Computes the readings that a task's methods get on a robot, in the order that they use them.

    Its methods are pure. They take the rows of the worlds: live tensors (B, …) by name. The
    constructor raises ValueError if a term reads what no robot measures, or a key names no reading.
    noise: reading → half-width of its uniform noise, in the unit of the reading.

    Attributes:
        widths: reading → its width, of those that `observe` and `control` use.
        filters: entries of the robot's memory that `update` computes of readings or the command.
        readings: reading → (B, width), live: what the robot gets at this moment.
        amplitudes: (n,) half-widths of the noise.
        delay: the readings that are on their way; None if none comes late.
        dropout: what is not delivered; None if everything is.
    """

    def __init__(self, task: Task, worlds: int, noise: dict[str, float], device: torch.device):
        need, every, random = needs(task), task.measured, task.randomization
        self.widths = widths = {name: every[name] for name in need.readings}
        if not widths:
            raise ValueError("the actor and `control` use no reading: nothing would be measured")
        check_readings(task, "task.noise", noise, widths)
        check_readings(task, "task.randomise.bias", random.biases, widths)
        self.filters = need.filters
        amplitudes = [noise.get(name, 0.0) for name in widths for _ in range(widths[name])]
        self.amplitudes, n = task.tensor(amplitudes), len(amplitudes)
        offset, biased = "encoder" in random.entries, bool(random.biases)
        self.encoders = encoder_columns(task.mjm, widths, device) if offset else None
        self.biases = bias_columns(random.biases, widths, device) if biased else None
        low, high = task.observation_delay
        self.delay = DelayLine(low, high, worlds, n, device) if high else None
        check_readings(task, "task.dropout", task.dropout, widths)
        lost = {name: task.dropout.get(name, 0.0) for name in widths}
        self.dropout = Dropout(lost, widths, device) if any(lost.values()) else None
        self._latest = torch.zeros(worlds, n, device=device)
        self.readings = self.split(self._latest)
        # what nobody uses need not be computed: it is the reading of a hidden term alone
        self.unused = {
            name: torch.zeros(1, every[name], device=device)
            for name in task.estimated
            if name not in widths
        }

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """(B, n) as the columns of each reading, which are views."""
        return dict(zip(self.widths, x.split(list(self.widths.values()), 1), strict=True))

    def _measure(self, s: State) -> Tensor:
        """(B, n) the readings of a state with offsets and biases: no noise, delay or drop-out."""
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

    def delivered(self, s: State, x: Tensor) -> State:
        """The state as readings x (B, n) show it."""
        unused = {name: zero.expand(len(x), -1) for name, zero in self.unused.items()}
        return s.with_(**unused, **self.split(x))

    def measure(self, s: State, rows: Rows, rng: Rng, began: Tensor | None) -> Rows:
        """The new `env/readings` (B, n) of a state, and the new rows of delay and drop-out.

        began (B,) bool: the worlds whose episode begins now; None: measure the same moment again.
        """
        delay, dropout, changed = self.delay, self.dropout, {}
        now = self._measure(s) + self.noise(rng)
        if delay:
            # a restart fills all frames, so that any age that is drawn next is valid
            frames = delay.pushed(rows["delay/frames"], now, began, s.time == 0)
            age = rows["delay/age"] if began is None else delay.drawn(rows["delay/age"], began, rng)
            changed = {"delay/frames": frames, "delay/age": age}
            now = delay.view(frames, age)
        if dropout:
            now = dropout.hold(now, rows["env/readings"], rng, began)
        return changed | {"env/readings": now}

    def updated(self, update: Update, s: State, rows: Rows, rng: Rng) -> dict[str, Tensor]:
        """Memory after a step.

        What the robot's computer keeps is computed of its readings and of the command, as it gets
        both before its next action.
        """
        values = update(s, rng)
        # Why: docs/decisions/observations.md
        if self.filters:
            delivered = self.preview(s, rows, rng)
            if "command" in values:
                delivered = delivered.with_(command=values["command"])
            remembered = update(delivered, rng)
            values |= {name: remembered[name] for name in self.filters}
        return values

    def preview(self, s: State, rows: Rows, rng: Rng | None) -> State:
        """The state as `measure` will show it in worlds that do not restart.

        If rng is None, it is without noise and drop-out.
        """
        now = self._measure(s)
        now = now if rng is None else now + self.noise(rng)
        if self.delay:
            frames = self.delay.after(rows["delay/frames"], now)
            now = self.delay.view(frames, rows["delay/age"])
        if self.dropout and rng is not None:
            now = self.dropout.hold(now, rows["env/readings"], rng, None)
        return self.delivered(s, now)

    def rows(self) -> Rows:
        """The live rows that `measure` writes."""
        return {"env/readings": self._latest} | (self.delay.state() if self.delay else {})

    def state(self) -> dict[str, Tensor]:
        """Every live tensor that later readings depend on, by name; B rows each."""
        held = {"dropout/given": self._latest} if self.dropout else {}
        return (self.delay.state() if self.delay else {}) | held


class Dropout:
    """Readings that are not delivered: the robot keeps the last one, as a driver does.

    chances: reading → probability that it is not delivered in a control step, below 1. All columns
    of a reading are delivered or lost together.
    """

    def __init__(self, chances: dict[str, float], widths: dict[str, int], device: torch.device):
        columns = [i for i, name in enumerate(widths) for _ in range(widths[name])]
        self.columns = torch.tensor(columns, device=device)
        self.chances = torch.tensor([chances[name] for name in widths], device=device)
        self.unit = torch.zeros_like(self.chances), torch.ones_like(self.chances)

    def hold(self, now: Tensor, last: Tensor, rng: Rng, began: Tensor | None) -> Tensor:
        """(B, n) now where it is delivered, and last elsewhere.

        began (B,) bool: the worlds whose first readings these are, which all arrive.
        """
        lost = rng.uniform("observe/dropout", *self.unit) < self.chances
        if began is not None:
            lost = lost & ~began[:, None]
        return torch.where(lost.index_select(1, self.columns), last, now)


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
        keys = [f"{key}.{reading}" for reading in widths if reading in terms.get(name, set())]
        if keys:
            new = " and ".join(keys)
            raise ValueError(f"{key}.{name}: it belongs to readings, not to terms: say {new}")
        names = ", ".join(widths)
        raise ValueError(f"{key}.{name}: the actor uses no such reading, choose one of {names}")
