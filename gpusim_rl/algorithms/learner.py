"""The protocols of training: a `Source` fills a `Record`, and a `Learner` learns from it.

None of them knows a configuration. A learner knows no Env and no Sim either: it is made from a
`Spec`, so that worlds, a file or another machine may fill its record. What a training knows of an
algorithm before it is made stands in its `LearnerSpec`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.file_keys import FileKey, Given
from gpusim_rl.core.graphs import Graph, PartTimer, capture
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import Columns, Record
from gpusim_rl.core.ring import RingSpec
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Live
from gpusim_rl.core.symmetry import ViewMirrors
from gpusim_rl.networks.policy import Policy

if TYPE_CHECKING:  # a learner knows no Env
    from gpusim_rl.envs.dreams import Dreams
    from gpusim_rl.envs.env import Env


Say = Callable[[str], None]  # tells the user a line


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Shapes, processes and random numbers that a learner is made from."""

    views: Columns  # of a world, by name: `actor` (no,), `critic` (nc,), and a task's own
    action_width: int  # nu
    # view → its terms in their order → how many of its columns each has
    term_widths: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    num_rows: int  # B, rows of this process: worlds, or agents where a world has several
    num_steps: int  # T, control steps of each in an iteration
    horizon: int  # control steps of an episode
    dt: float  # the control period [s]
    worlds: Tensor  # (B,) int64 global ids of the rows
    iteration: Tensor  # () int64, how many are done; whoever iterates counts it
    seed: int  # of every random number
    clip: float  # the largest action: those beyond ± this are clamped to it
    dreams: "Dreams | None" = None  # a control step without its physics; not of a team
    # what keys of files gave: also `demos`, with the section `cloning`, and `teacher`, an actor to
    # imitate, which observes the critic's first columns and its views
    given: Given = field(default_factory=Given)
    # gives those of both views and of the action; ValueError if the task declares a wrong one
    mirrors: Callable[[], ViewMirrors | None] = lambda: None
    group: ProcessGroup = SINGLE  # that learn together, each from its own worlds
    fused: bool = False  # write kernels of pure functions of rows
    captured: bool = False  # record each part of an update in a CUDA graph
    older_policy: bool = False  # steps may be of an older policy than the one that learns
    # (1,) int64, how often it took what another run had learned: it draws other numbers then
    life: Tensor = field(default_factory=partial(torch.zeros, 1, dtype=torch.int64))
    threads: int  # of torch in an update on the CPU: rounding depends on it. 0: as it is
    # takes the names of the parts of an update, which reports show as shares
    timer: PartTimer = field(default_factory=lambda: PartTimer(torch.device("cpu")))

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.worlds.device

    def capture(self, part: Callable[..., None]) -> Graph:
        """A part of an update, as a CUDA graph where that is asked for and can be."""
        return capture(part, self.device, on=self.captured)

    def rng(self, shared: bool = False) -> Rng:
        """Random numbers for what a learner draws. It is drawn by a count of its own.

        shared: of one world, the same in all processes.
        """
        worlds = torch.zeros_like(self.worlds[:1]) if shared else self.worlds
        return Rng(self.seed, worlds, self.life)

    def choose_symmetry(
        self, symmetry: str, hidden: tuple[int, ...], further: bool = False
    ) -> tuple[str, ViewMirrors | None]:
        """`symmetry` for the task, and its mirrors; ValueError if one is asked for that it lacks.

        `auto` is net where the task has a mirror and the networks can commute with it, else none.
        `further`: they remember, or see more than rows, and so cannot.
        """
        auto = symmetry == "auto"
        can = not further and not any(n % 2 for n in hidden)
        if symmetry == "none" or (auto and not can):
            return "none", None
        try:
            mirrors = self.mirrors()
        except ValueError as error:
            if not auto:
                raise
            mirrors = None
            print(f"warning: {error}; algo.symmetry is none", file=sys.stderr, flush=True)
        if mirrors:
            return "net" if auto else symmetry, mirrors
        if auto:
            return "none", None
        says = "this task defines no mirror image: set algo.symmetry=none"
        raise ValueError(f"algo.symmetry={symmetry}: {says}")


class Source(Protocol):
    """Fills a record: a `Collector`, a file of demonstrations, other machines."""

    record: Record  # (T, B, …)

    def collect(self, steps: int) -> None:
        """Write so many steps, T, from the first row on. In place; reads no tensor on the host."""

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        ...


class Learner(Protocol):
    """A policy and its update from a record, as the `make` of a `LearnerSpec` gives it."""

    @property
    def policy(self) -> Policy: ...  # acts, and is evaluated and exported
    @property
    def columns(self) -> Columns: ...  # what it wants of each step: it gets these and no others
    # name of a setting → the learning rates that begin with it, of any shape. A checkpoint holds
    # them: `slow_down` multiplies them, and who changes the setting while it learns writes them
    @property
    def rates(self) -> dict[str, Tensor]: ...
    # of `measures`, in its order. Among them, `bad` counts the iterations in a row that were of no
    # use: after some, training goes back to a checkpoint. Training ends where `done` is not 0
    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def update(self, record: Any, /) -> None:
        """Learn from a `Record` (T, B, …), or from the `Ring` that its spec asks for. In place.

        Reads no tensor on the host.
        """

    def measures(self) -> Tensor:
        """(len(metrics),) on the device. Sums begin anew."""
        ...

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, those of the policy as `policy/…`."""
        ...


class Clone(Learner, Protocol):
    """A learner around another one, whose policy it changes before the first step."""

    def begin(self, record: Any, say: Say, /) -> None:
        """Give the policy what was shown. In place."""


# a `LearnerSpec` calls what takes a learner with those of its own `make`
L = TypeVar("L", bound=Learner, covariant=True)


class RewardModel(Protocol):
    """Rewards beside the task's, such as curiosity or a style: between `collect` and `update`.

    A subclass has `open`, `waits` and `between` from here.
    """

    columns: Columns  # what it wants of each step
    # of `measures`, in its order. Among them, `bonus` is the mean that it adds [1/s]: of
    # reward=NAME the log says where it stays above the task's reward
    metrics: tuple[Metric, ...]

    def open(self, path: Path) -> None:
        """Learn the run's directory, before the first iteration. Nothing unless it is defined."""

    def waits(self, iteration: int) -> str:
        """Why the next iteration cannot begin yet, as a line; empty if it can. Asked on the host
        again and again, of the first process alone.

        iteration: how many are done.
        """
        return ""

    def between(self, iteration: int) -> None:
        """What it does on the host before each iteration, outside any graph, such as reading new
        labels. Nothing unless it is defined."""

    def add_reward(self, record: Record) -> None:
        """Add to `record.reward`. In place."""

    def update(self, record: Record) -> None:
        """Learn from the record, after the learner. In place."""

    def measures(self) -> Tensor:
        """(len(metrics),) on the device."""
        ...

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        ...


@dataclass(frozen=True, kw_only=True)
class LearnerSpec(Generic[L]):
    """An algorithm, as algorithms/<name>/spec.py and a user's own module export it: `SPEC`."""

    make: Callable[[Spec, Any], L]  # of its settings
    make_policy: Callable[[Spec, Any], Policy]  # the networks alone, to play
    settings: type[Any]  # a dataclass, whose fields carry ranges and choices
    changeable: tuple[str, ...] = ()  # settings that may change while it learns, as tensors ()
    files: tuple[FileKey, ...] = ()  # keys that name files, whose contents `Spec.given` has
    ring: Callable[[Any], RingSpec] | None = None  # of its settings; else it is given a rollout
    world_multiple: Callable[[Any], int] | None = None  # that divides a process's worlds
    dreams: bool = False  # it learns with `Spec.dreams`: not of teams, nor from a reward model
    # with demos=, it stands in the learner's place, and begins as their clone
    clone: "Callable[[L, Spec], Clone] | None" = None
    # before the first step, such as a ring with demos=; it may tell what it did
    begin: Callable[[L, Any, Say], None] | None = None
    # what fills the record instead of worlds, of their Env
    make_source: "Callable[[Env, L, Record], Source] | None" = None
    # beside that of reward=
    make_rewards: Callable[[Spec, L], Sequence[RewardModel]] | None = None

    def __post_init__(self) -> None:
        """ValueError for a part of another type, since a user writes them."""
        members = {"changeable": str, "files": FileKey}
        for part in fields(self):
            value: Any = getattr(self, part.name)
            if kind := members.get(part.name):
                entries: list[Any] = [*value] if isinstance(value, tuple) else [None]
                fits = all(isinstance(x, kind) for x in entries)
                wanted = f"tuple of {kind.__name__}"
            elif part.name == "dreams":
                fits, wanted = isinstance(value, bool), "bool"
            elif part.name == "settings":
                fits, wanted = isinstance(value, type) and is_dataclass(value), "dataclass"
            else:
                fits, wanted = callable(value) or value is part.default, "function"
            if not fits:
                raise ValueError(f"SPEC.{part.name} is {value!r}, expected a {wanted}")


@dataclass(frozen=True, kw_only=True)
class RewardSpec:
    """A reward model, as algorithms/rewards/<name>/spec.py exports it: `SPEC`."""

    make: Callable[[Spec, Any, Learner], RewardModel]  # of its settings
    settings: type[Any]
    changeable: tuple[str, ...] = ()
    files: tuple[FileKey, ...] = ()
