"""`Task`: the model, the numbers and the pure functions that a task author fills in."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Self

import mujoco
import torch
from torch import Tensor

from gpusim_rl.core import ranges
from gpusim_rl.core.ranges import Range
from gpusim_rl.core.rng import Rng
from gpusim_rl.envs.declarations import Command, Reflection, check_scheduled
from gpusim_rl.envs.randomization.entries import without_pushes
from gpusim_rl.envs.randomization.joints import joint_ranges
from gpusim_rl.envs.randomization.randomization import Randomization
from gpusim_rl.envs.readings import measured
from gpusim_rl.envs.state import JointColumns, State, joint_columns, sensor_columns
from gpusim_rl.envs.terrain.patches import Patches
from gpusim_rl.envs.training_physics import check_times, coarse, description
from gpusim_rl.robots.free_bodies import FreeBody, free_base, free_objects
from gpusim_rl.robots.model_files import read_mjcf
from gpusim_rl.robots.models import compile_mjcf, converged, find_mjcf
from gpusim_rl.sim.actuator_spec import Actuator

Scores = dict[str, float | None]  # of an evaluation; None: no episode says anything about it
# What `Task.drive_limits` has of a command unless it says otherwise: the error that a drive may
# have, as a share of the command, and in its units.
ERRORS = {"relative": 0.08, "least": 0.03}


@dataclass(kw_only=True)
class Task:
    """A robot's task: pure methods of the state. They return new tensors; only Env writes.

    Formulas and their signs stand in the subclass. Weights (≥ 0), noise and ranges stand in
    `conf/task/<name>.yaml`.

    Args:
        mjcf: the model file; a bare name is looked up in tasks/assets.
        dt: control period [s], a whole number of the model's timesteps.
        episode: time-out [s].
        device: where the task's constants live.
        history: observation term → control steps of it that the actor sees; 1 unless given.
        hide: observation terms that the critic observes and the actor does not.
        observation_delay: least and largest age [control steps] of the readings of sensors and
            joints that the actor sees. It is drawn for each episode.
        dropout: reading → probability that it is not delivered in a control step; 0 unless given.
        share_at_ends: share of a number's commands that are at an end of its range.
        mjm, text: the compiled model and its MJCF; those of the file unless given.
        randomise: field → entry, as `fields.FIELDS` says (docs/randomisation.md).
        drive_limits: of one of `drives`: `relative` and `least` of the error of its command, and
            measure → the largest mean.
        actuator: what makes torques of `control`'s targets.
        training: how the physics differs while learning: `timestep` [s], `integrator`, and
            `joint_friction`, whether joints have the model's dry friction. "exact": not at all.
    """

    # The shape of robots that robot= may give the task, one of `robots.load.SHAPES`; "": none.
    takes_robot: ClassVar[str] = ""
    # Whether terrain= may give its worlds rough ground: tasks with `OnTerrain`.
    takes_terrain: ClassVar[bool] = False
    # Agents of a world, which share one policy; `control` puts their actions together. Terms,
    # rewards and actions are then (B, A, …), and a term without that axis is of every agent.
    agents: ClassVar[int] = 1
    # What the numbers that a task adds may be; `core.ranges` has those of all tasks.
    ranges: ClassVar[dict[str, Range]] = {}
    mjcf: str
    dt: float
    episode: float
    device: str = "cpu"
    clip: float  # actions are clamped to ± this before the task sees them
    history: dict[str, int] = field(default_factory=dict)
    hide: tuple[str, ...] = ()
    observation_delay: tuple[int, int]
    dropout: dict[str, float] = field(default_factory=dict)
    share_at_ends: float
    mjm: Any = field(default=None, repr=False)
    text: str = field(default="", repr=False)
    drive_limits: dict[str, float] = field(default_factory=dict)
    actuator: Actuator
    randomise: dict[str, Any] = field(default_factory=dict, repr=False)
    training: dict[str, Any] | str = "exact"

    def __post_init__(self) -> None:
        self.history = self.history | dict.fromkeys(self.hide, 0)  # the actor sees no step of them
        self._nominal: dict[str, Tensor] = {}
        self.traced: Any = None  # what `tracing.needs` says, once it was asked
        self._constants: dict[Any, Tensor] = {}  # no graph may copy a number from the host
        self.scheduled_numbers: dict[str, Tensor] = {}
        if self.mjm is None:
            self.mjm = compile_mjcf(self.mjcf, self.change_spec)
        numbers = {key: x for key, x in vars(self).items() if key != "history"}  # a hidden term: 0
        ranges.check(numbers, "task")
        ranges.check(numbers, "task", {f"task.{key}": x for key, x in self.ranges.items()})
        check_times(self.dt, self.episode, self.mjm, self.physics)

    # -- the model and what follows from it --------------------------------------------------------

    def change_spec(self, spec: mujoco.MjSpec) -> mujoco.MjSpec:
        """The mujoco.MjSpec that is compiled, from that of the file; it may be changed in place."""
        return spec

    @cached_property
    def randomization(self) -> Randomization:
        """Randomization of this model by `randomise`; ValueError if it does not fit the model."""
        return Randomization(
            self.mjm,
            self.randomise,
            actuator=self.actuator,
            dt=self.dt,
            readings=self.measured,
            device=self.device,
        )

    @cached_property
    def patches(self) -> Patches | None:
        """The ground of the worlds, where each has its own."""
        return None

    @cached_property
    def base(self) -> FreeBody | None:
        """The free body that carries the actuated joints or rotors; None if the robot is fixed."""
        return free_base(self.mjm)

    @cached_property
    def objects(self) -> tuple[FreeBody, ...]:
        """The free bodies that are not the base, such as a cube that an arm moves."""
        return free_objects(self.mjm)

    @property
    def fields(self) -> tuple[str, ...]:
        """Model fields with a value per world."""
        ground = self.patches.fields if self.patches else ()
        return tuple(dict.fromkeys((*self.randomization.fields, *ground)))

    @property
    def measured(self) -> dict[str, int]:
        """Readings that a robot of this task can measure: name → width."""
        further = {name: len(entry["units"]) for name, entry in self.estimated.items()}
        return measured(self.mjm) | further

    @property
    def estimated(self) -> dict[str, dict[str, Any]]:
        """Readings that no sensor of the model gives → `units` of each number, and more about it.

        `Task.derived` computes them in simulation. On a robot a program does.
        """
        return {}

    @cached_property
    def sensor_columns(self) -> dict[str, slice]:
        """Sensor of the model → its columns in `sensordata`."""
        return sensor_columns(self.mjm)

    @cached_property
    def joint_columns(self) -> JointColumns:
        """Where the actuated joints are in `qpos` and `qvel`, in the order of ctrl."""
        return joint_columns(self.mjm, self.device)

    @cached_property
    def joint_limits(self) -> Tensor:
        """(2, nu) least and greatest positions of the actuated joints; infinite without a limit."""
        low, high = joint_ranges(self.mjm)
        columns = self.joint_columns.qpos
        return torch.stack([low.to(self.device)[columns], high.to(self.device)[columns]])

    @cached_property
    def physics(self) -> mujoco.MjModel:
        """The model that is stepped: `mjm`, or what `training` makes of it."""
        if isinstance(self.training, str):
            return self.mjm
        return coarse(self.mjm, self.actuator, self.randomise, **self.training)

    @property
    def difference(self) -> str:
        """How `physics` differs from the model's own, in words; empty if it does not."""
        return description(self.mjm, self.physics)

    @property
    def substeps(self) -> int:
        """Timesteps in a control step."""
        return round(self.dt / self.physics.opt.timestep)

    @property
    def horizon(self) -> int:
        """Control steps in an episode."""
        return round(self.episode / self.dt)

    def tensor(self, values: Any) -> Tensor:
        """A float32 constant on the task's device."""
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def nominal(self, name: str) -> Tensor:
        """The model's own value of a field, float32. Do not write to it: it is kept."""
        if name not in self._nominal:
            self._nominal[name] = self.tensor(attrgetter(name)(self.mjm))
        return self._nominal[name]

    def scheduled_number(self, name: str) -> Tensor:
        """The tensor that holds a number while it is scheduled; a curriculum writes to it.

        Raises ValueError for a field whose type is not `Scheduled`.
        """
        check_scheduled(type(self), name)
        return self.scheduled_numbers.setdefault(name, self.tensor(getattr(self, name)))

    @property
    def with_scheduled_numbers(self) -> Self:
        """A copy with the tensor of each scheduled number; this task itself if there are none.

        `__post_init__` must not compute other attributes from these numbers.
        """
        if not self.scheduled_numbers:
            return self
        twin = copy.copy(self)
        vars(twin).update(self.scheduled_numbers)
        return twin

    def constant(self, value: Any) -> Tensor:
        """A number or a tuple of numbers as a tensor, made once; a tensor as it is."""
        if isinstance(value, Tensor):
            return value
        if value not in self._constants:
            self._constants[value] = self.tensor(value)
        return self._constants[value]

    def mjcf_text(self) -> str:
        """The MJCF of the model, with the files that it includes."""
        return self.text or read_mjcf(find_mjcf(self.mjcf))

    # -- episodes and commands ---------------------------------------------------------------------

    def begin(self, n: int, rng: Rng, ended: State | None = None) -> dict[str, Tensor]:
        """First values of n worlds, from `start` and `next_start`.

        `ended` is the last state of the worlds' episodes; None if there was no episode before.
        """
        start = self.start(n, rng)
        return start if ended is None else self.next_start(start, ended, rng)

    @property
    def command_limit(self) -> Tensor:
        """(n,) the half-widths of the command's ranges, with scheduled numbers as they are now."""
        assert self.command
        first, *others = self.command.parts
        if isinstance(first.largest, Tensor) and not others:
            return first.largest
        largest = self.command.largest
        if any(isinstance(x, Tensor) for x in largest):
            return torch.stack([self.constant(x) for x in largest])
        return self.constant(largest)

    def draw_command(self, rng: Rng) -> Tensor:
        """(B, n) commands, uniform in their ranges; a rotation is uniform among rotations.

        A share `share_at_ends` of the draws of each number is at an end of its range instead.
        """
        command, limit = self.command, self.command_limit
        assert command
        x = rng.uniform("command", -limit, limit)
        if self.share_at_ends:
            x = (x / (1 - self.share_at_ends)).clamp(-limit, limit)
        return command.draw(x, self.constant)

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
        """The command that a user may give: the memory entry `command`, if the task has one."""
        return None

    @property
    def mirror(self) -> Reflection | None:
        """How the task is mirrored; None for a task without symmetry."""
        return None

    def start(self, n: int, rng: Rng) -> dict[str, Tensor]:
        """First states of n episodes: `qpos` (n, nq) and `qvel` (n, nv).

        `mocap_pos` (n, m, 3) [m] and `mocap_quat` (n, m, 4) place the m mocap bodies of the model.
        Each further entry (n, …) is the task's memory.
        """
        raise NotImplementedError  # contract

    def next_start(self, start: dict[str, Tensor], ended: State, rng: Rng) -> dict[str, Tensor]:
        """Values of `start`, changed by how the last episode of each world ended.

        Args:
            start: of all worlds; only those whose episode ended take it.
            ended: the last state of that episode. `ended.time >= self.horizon` where it was the
                time limit's. In a world with a fault it may not be finite.
        """
        return start

    # Why: docs/decisions/observations.md
    @property
    def derived(self) -> dict[str, Callable[[State], Tensor]]:
        """Further entries (B, …) of a state, by name, each computed of it when it is read."""
        return {}

    @property
    def action_width(self) -> int:
        """How many numbers the action of an agent has: one for each of its actuators, unless
        `control` maps others."""
        return self.mjm.nu // self.agents

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of a world's action: (action_width,), or (A, action_width) of a team."""
        return (*[self.agents] * (self.agents > 1), self.action_width)

    def update(self, s: State, rng: Rng) -> dict[str, Tensor]:
        """Memory after a step. An entry `kick` (B, nv) is added to `qvel`, to push the robot.

        `mocap_pos` and `mocap_quat` move mocap bodies, if `start` places them.
        """
        return {}

    def control(self, s: State) -> Tensor:
        """`ctrl` (B, nu) from `s.action` (B, *action_shape), in the units of each actuator."""
        return s.action.flatten(1)

    def observe(self, s: State) -> dict[str, Tensor]:
        """Named terms (B, …) that the robot measures; the actor sees them in this order."""
        raise NotImplementedError  # contract

    def views(self, s: State) -> dict[str, Tensor]:
        """Further views (B, …) of any type, such as a picture, for encoders of the actor.

        They are computed in torch beside the kernels, and stored once, in their type.
        """
        return {}

    def privileged(self, s: State) -> dict[str, Tensor]:
        """Further terms for the critic, which only the simulator knows."""
        return {}

    def reward(self, s: State) -> dict[str, Tensor]:
        """Named terms (B,), each a rate [1/s]: the reward is dt Σ weight · term.

        Those of `bonus` are added to it.
        """
        raise NotImplementedError  # contract

    # Why: docs/decisions/observations.md
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

    def ghost(self, s: State) -> Tensor | None:
        """(B, nq) where the robots should be, which pictures show translucent; None: nowhere."""
        return None

    def score(self, record: dict[str, Tensor]) -> Scores:
        """The numbers of an evaluation, `success` among them; None for what no episode tells.

        record: (T, B) of each measure, of `terminated`, and of `reward`, that of a control step.
        """
        raise NotImplementedError  # contract

    @property
    def drives(self) -> Tensor | None:
        """(n, width) commands at which an evaluation drives the nominal robot; None: it does not.

        A task that has them says in `followed` how they are carried out.
        """
        return None

    def on_level_ground(self) -> Self:
        """The task whose nominal robot is driven: this one, unless its ground is rough."""
        return self

    def followed(self, s: State) -> Tensor:
        """(B, width) what the robot does of a command, in its units."""
        raise NotImplementedError  # contract

    def evaluation(self) -> Self:
        """The task as it is evaluated: on the CPU, with a converged solver, without pushes."""
        model, quiet = converged(self.mjm), without_pushes(self.randomise)
        return replace(self, device="cpu", mjm=model, training="exact", randomise=quiet)


def check_drive_limits(task: Task, s: State) -> None:
    """ValueError if one of the limits is of no measure of a task."""
    names = [*ERRORS, *(task.measure(s) if task.drive_limits else ())]
    for name in task.drive_limits:
        if name not in names:
            raise ValueError(
                f"task.drive_limits: {name!r} is no measure: choose of {', '.join(names)}"
            )


def reward_terms(task: Task, s: State) -> dict[str, Tensor]:
    """Named terms (B,), each a rate [1/s]: those of `reward`, and those of `bonus` over dt.

    Raises:
        ValueError: both have a term of the same name.
    """
    rates, amounts = task.reward(s), task.bonus(s)
    for name in amounts:
        if name in rates:
            raise ValueError(f"{type(task).__name__}: reward and bonus both have a term {name!r}")
    return rates | {name: amount / task.dt for name, amount in amounts.items()}


def ordered_weights(terms: list[str], weights: dict[str, float]) -> list[float]:
    """The weights in the order of the terms.

    Raises:
        ValueError: a term has no weight, a weight has no term, or a weight is below 0.
    """
    faults = [f"{name!r} has no weight" for name in sorted(set(terms) - set(weights))]
    faults += [f"{name!r} is no term" for name in sorted(set(weights) - set(terms))]
    if faults:
        raise ValueError(
            f"reward terms and weights disagree: {', '.join(faults)} (terms: {', '.join(terms)})"
        )
    negative = [name for name, weight in weights.items() if weight < 0]
    if negative:
        raise ValueError(
            f"task.weights.{negative[0]}={weights[negative[0]]}: expected at least 0, "
            "for the sign of a reward term is in the task's formula"
        )
    return [weights[name] for name in terms]
