"""The whole control step of a robot as one torch module, made of the task's own methods."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpusim_rl.core.record import Columns
from gpusim_rl.core.states import beside
from gpusim_rl.envs import tracing
from gpusim_rl.envs.agents import folded, of_each, unfolded
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.robots.servos import safe_controls

COMMAND, RESTART = "command", "restart"  # inputs beside the readings
TARGETS, FAULT = "targets", "fault"  # outputs; the last targets are remembered, too
MEMORY, NEXT = "memory.", "next."  # before the names of a memory: as input, as output
PAST = "history."  # before the name of a term whose earlier values are remembered
Memory = dict[str, Tensor]


# Why: docs/decisions/controller.md
class Controller(nn.Module):
    """Readings, command, views and memory in; targets, fault and the next memory out.

    The task's `update`, `observe` and `control` do what they do in `Env`, in its order. Where an
    episode goes on, `update` first advances the memory to this control step. Where one begins, the
    memory is used as it is, and the history of each term is filled with its first value.

    `fault` is true for a robot with an input or a result that is not finite. Its targets are then
    those of its last step without a fault, at first `safe_controls`. Its memory does not change.

    ValueError if the task needs what no robot measures: see `needs`.

    Args:
        task: on the CPU.
        actor: (obs (B, no), memory, views) → (mean action (B, nu), next memory), of B rows.
            The controller of a team is that of all agents.
        actor_memory: the actor's own memory at the start of an episode, name → (A, …).
        views: the further views that the actor sees, which a program gives in their types.

    Attributes:
        needs: what is measured and remembered.
        start: memory at the start of an episode, name → (1, …).
        inputs, outputs: names of the arguments and results of `forward`, in order.
    """

    def __init__(
        self,
        task: Task,
        actor: nn.Module,
        actor_memory: Memory | None = None,
        views: Columns | None = None,
    ):
        super().__init__()
        self.views = views or {}
        self.task, self.actor, self.needs = task, actor, tracing.needs(task)
        memory = actor_memory or {}
        memory = {name: unfolded(x, task.agents) for name, x in memory.items()}
        self.actor_memory = list(memory)
        sample = {name: x[:1] for name, x in tracing.sample_inputs(task).items()}
        own = (1, *task.action_shape[:-1])
        given = {k: torch.zeros(*own, *x.shape, dtype=x.dtype) for k, x in self.views.items()}
        self.blank = sample | given  # values of what the targets do not depend on
        self.start = start_values(task, self.needs.memory, sample) | memory
        check_names((*self.needs.readings, *self.views), self.start)
        self.safe = torch.tensor(safe_controls(task.mjm)[None], dtype=torch.float32)
        self.start |= {TARGETS: self.safe}
        command = (COMMAND,) if self.needs.command else ()
        self.readings = (*self.needs.readings, *command, *self.views)
        self.inputs = [*self.readings, RESTART, *(MEMORY + name for name in self.start)]
        self.outputs = [TARGETS, FAULT, *(NEXT + name for name in self.start)]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input for one robot, without the batch."""
        return {
            **{name: tuple(self.blank[name].shape[1:]) for name in self.readings},
            RESTART: (),
            **{MEMORY + name: tuple(x.shape[1:]) for name, x in self.start.items()},
        }

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The `outputs` for the `inputs`; all have B rows, `restart` and `fault` (B,) are bool."""
        values = dict(zip(self.inputs, args, strict=True))
        restart, readings = values[RESTART], {name: values[name] for name in self.readings}
        memory = {name: values[MEMORY + name] for name in self.start}
        # Why: docs/decisions/controller.md
        fault = ~finite(readings | memory)  # the task gets blank values instead
        sound = {name: where(fault, self.blank[name], x) for name, x in readings.items()}
        before = {name: where(fault, self.start[name], x) for name, x in memory.items()}
        after = self.step(sound, before, restart)
        fault = fault | ~finite(after)
        held = memory[TARGETS].where(memory[TARGETS].isfinite(), self.safe)
        after = {name: where(fault, memory[name], x) for name, x in after.items()}
        targets = where(fault, held, after[TARGETS])
        return (targets, fault, *(after[name] for name in self.start))

    def step(self, readings: Memory, memory: Memory, restart: Tensor) -> Memory:
        """The next memory, the targets (B, nu) among it."""
        state = self.advanced(self.state(readings, memory, restart.shape[0]), memory, restart)
        obs, past = self.observed(state, memory, restart)
        views = {name: readings[name] for name in self.views}
        action, remembered = self.act(obs, memory, views)
        clamped = action.clamp(-self.task.clip, self.task.clip)
        action = clamped.where(action.isfinite(), torch.nan)  # an infinite one is a fault, too
        targets = self.task.control(state.with_(action=action, previous=state.action))
        after = {name: getattr(state, name) for name in self.needs.memory}
        after |= {"action": action, "previous": state.action, TARGETS: targets} | past | remembered
        return {name: after[name] for name in self.start}

    def state(self, readings: dict[str, Tensor], memory: Memory, rows: int) -> State:
        """The state of the task, with blank values for names that it does not read."""
        values = readings | {name: x for name, x in memory.items() if name in self.blank}
        blank = {name: x for name, x in self.blank.items() if name not in values}
        values |= {name: x.expand(rows, *x.shape[1:]) for name, x in blank.items()}
        return State(values, self.task.sensor_columns)

    def advanced(self, s: State, memory: Memory, restart: Tensor) -> State:
        """The state with the memory of this control step, where no episode begins."""
        half = torch.full_like(restart, 0.5, dtype=torch.float32)
        later = s.with_(time=s.time + 1)
        new = {"time": later.time} | self.task.update(later, tracing.MidpointRng(half))  # pyright: ignore
        new = {name: new[name] for name in self.needs.memory if name in new}
        return s.with_(**{name: where(restart, memory[name], x) for name, x in new.items()})

    def observed(self, s: State, memory: Memory, restart: Tensor) -> tuple[Tensor, Memory]:
        """(B, no) the observation, and the history of its terms for the next step."""
        seen, past = [], {}
        for name, now in self.task.observe(s).items():
            if self.task.history.get(name, 1) == 0:  # only the critic sees it
                continue
            if PAST + name in memory:
                steps = memory[PAST + name]  # (B, steps - 1, …, width), oldest first
                steps = where(restart, now[:, None].expand_as(steps), steps)
                now = torch.cat([steps, now[:, None]], 1)
                past[PAST + name], now = now[:, 1:], now.movedim(1, -2).flatten(-2)
            seen.append(of_each(now, self.task.agents, 2))
        return torch.cat(seen, -1), past

    def user(self, operator: str) -> str:
        """Where the task uses an operator of torch: method, file, line; empty if it does not."""
        for method in ("observe", "update", "control"):
            try:
                tracing.reads(self.task, method, tracing.sample_inputs(self.task), operator)
            except ValueError as where:
                return str(where)
        return ""

    def act(self, obs: Tensor, memory: Memory, views: Memory) -> tuple[Tensor, Memory]:
        """The actor's mean action (B, …, nu), and its own memory for the next step."""
        agents = self.task.agents
        own = {name: folded(memory[name], agents) for name in self.actor_memory}
        views = {name: folded(x, agents) for name, x in views.items()}
        out = self.actor(folded(obs, agents), *((own, views) if views else (own,) if own else ()))
        action, after = out if own else (out, {})
        return unfolded(action, agents), {k: unfolded(x, agents) for k, x in after.items()}


def check_names(readings: Iterable[str], start: Memory) -> None:
    """ValueError unless names are left for our own, and the memory at the start is finite."""
    taken = {COMMAND, RESTART, TARGETS, FAULT} & {*readings}
    if taken:
        raise ValueError(f"export: a sensor must not be called {taken.pop()!r}: rename it")
    if TARGETS in start:
        raise ValueError(f"export: memory must not be called {TARGETS!r}: rename it")
    for name, x in start.items():
        if not finite({name: x}):
            raise ValueError(f"export: the memory {name!r} does not start with finite numbers")


def finite(values: Memory) -> Tensor:
    """(B,) whether all numbers of a robot are finite."""
    rows = [x.reshape(x.shape[0], -1).float() for x in values.values()]
    return torch.cat(rows, 1).isfinite().all(1)


def where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Rows of `yes` where mask (B,) is true, of `no` elsewhere."""
    return torch.where(beside(mask, yes), yes, no)


def start_values(task: Task, names: tuple[str, ...], sample: dict[str, Tensor]) -> Memory:
    """The memory (1, …) of these names at the start: each draw at its midpoint, no action yet.

    It has the history of each term that has one, too, which a restart fills. `sample` is an input
    of each name, with one row.
    """
    first = tracing.first_memory(task, sample[tracing.RNG])
    start = {name: torch.zeros_like(sample[name]) for name in names if name in tracing.ACTIONS}
    start |= {name: first[name] for name in names if name in first}
    terms = task.observe(State(sample, task.sensor_columns))
    for name, term in terms.items():
        steps = task.history.get(name, 1) - 1
        if steps > 0:
            start[PAST + name] = term.new_zeros(1, steps, *term.shape[1:])
    return start
