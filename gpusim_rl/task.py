"""What a task author reads: `State`, what a task sees of B worlds, and `Task`, the pure functions it fills in."""

import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Self
from xml.etree import ElementTree

import mujoco
import torch
from torch import Tensor

from gpusim_rl.actuator import Actuator
from gpusim_rl.bundle import include
from gpusim_rl.mirror import Flip
from gpusim_rl.noise import Noise
from gpusim_rl.randomise import Randomisation
from gpusim_rl.variety import calm

ASSETS = Path(__file__).parent.parent / "tasks" / "assets"


class State:
    """Float32 tensors of B worlds, by name.

    `qpos`, `qvel`, `ctrl`; each `<sensor>` of the model; `action` (B, nu) of this control step and `previous` of the one
    before; `time` (B,) int64 control steps since the restart; each entry of the task's own memory.
    """

    def __init__(self, tensors: dict[str, Tensor], sensors: Tensor, columns: dict[str, slice]):
        self._tensors, self._sensors, self._columns = tensors, sensors, columns

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._tensors:
            return self._tensors[name]
        return self._sensors[:, self._find(name)]

    def span(self, first: str, last: str) -> Tensor:
        """(B, …) adjacent sensors as one tensor, from the first to the last in the model's order."""
        return self._sensors[:, self._find(first).start : self._find(last).stop]

    def seen(self, **tensors: Tensor) -> "State":
        """The same state with other tensors of these names."""
        return State(self._tensors | tensors, self._sensors, self._columns)

    def _find(self, name: str) -> slice:
        if name not in self._columns:
            known = ", ".join(sorted([*self._tensors, *self._columns]))
            raise ValueError(f"the task reads {name!r}, which no sensor or memory of this model has: {known}")
        return self._columns[name]


@dataclass(kw_only=True)
class Reading:
    """What an observation term measures: `gpusim_rl.deploy` builds the term from this on a robot's computer.

    Args:
        source: sensor | joint_pos | joint_vel | action | command | clock.
        width: of the term.
        unit: of its entries.
        names: the sensor's name, or joint names in order for joint_pos and joint_vel.
        offset: subtracted from the reading; empty for none.
        form: "" as it is, or "cos_sin": cosines then sines of the entries (of the clock's angle, for clock).
    """

    source: str
    width: int
    unit: str
    names: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()
    form: str = ""


@dataclass(kw_only=True)
class Drive:
    """How an action becomes controls: ctrl = offset + scale · action + moving · bend · max(0, sin 2π(φ + lag)).

    Args:
        names: of the joints, in the order of ctrl.
        unit: of ctrl.
        scale, offset: (nu,) each.
        delay: control steps between an action and its effect, 0 or 1.
        bend, lag: (nu,) what the clock adds, in ctrl's unit, and its shift [turns]; empty without a clock.
    """

    names: tuple[str, ...]
    unit: str
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    delay: int = 0
    bend: tuple[float, ...] = ()
    lag: tuple[float, ...] = ()


@dataclass(kw_only=True)
class Clock:
    """A gait clock φ [turns] that advances by frequency · dt each control step, and is heeded where |command| > gate."""

    frequency: float  # Hz
    gate: float


@dataclass(kw_only=True)
class Command:
    """What a user may ask of the robot: ranges it was trained for."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(kw_only=True)
class Task:
    """A robot's task: pure methods of the state. They return new tensors; only Env writes.

    Formula and sign live in the subclass, weights (≥ 0), noise and ranges in `conf/task/<name>.yaml`.

    Args:
        mjcf: the model file; a bare name is looked up in tasks/assets.
        dt: control period [s], a whole number of the model's timesteps.
        episode: time-out [s].
        device: where the task's constants live.
        history: observation term → control steps of it that the actor sees, oldest first; 1 unless given.
        observation_delay: least and largest age [control steps] of what it sees of sensors and joints, drawn for each episode.
        mjm, text: the compiled model and its MJCF; those of the file unless given.
        randomise: field → entry, as `variety.FIELDS` says (docs/randomisation.md).
        actuator: what makes torques of `control`'s targets; the model's own servos unless given.
    """

    # field that a curriculum may move → the attribute in which methods read it: a float32 tensor () or (n,) while it moves, so
    # only for what formulas take alike, and nothing that `__post_init__` has derived other attributes from
    moves: ClassVar[dict[str, str]] = {}

    mjcf: str
    dt: float = 0.02
    episode: float = 20.0
    device: str = "cpu"
    clip: float = 4.0  # actions are clamped to ± this before the task sees them
    history: dict[str, int] = field(default_factory=dict)
    observation_delay: tuple[int, int] = (0, 0)
    mjm: Any = field(default=None, repr=False)
    text: str = field(default="", repr=False)
    actuator: Actuator = field(default_factory=Actuator)
    randomise: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._nominal: dict[str, Tensor] = {}
        self.numbers: dict[str, Tensor] = {}
        if self.mjm is None:
            self.mjm = compile_mjcf(self.mjcf)
        if not self.clip > 0:
            raise ValueError(f"task.clip={self.clip}: expected more than 0")
        steps = self.dt / self.mjm.opt.timestep
        if not 0.5 < steps < 1000 or abs(steps - round(steps)) > 1e-6:
            says = f"is not a whole number, from 1 to 1000, of the model's timestep {self.mjm.opt.timestep} s"
            raise ValueError(f"task.dt={self.dt} s {says}")
        if not 0.5 < self.episode / self.dt < 2**31:
            raise ValueError(f"task.episode={self.episode} s: expected 1 to 2³¹ control steps of {self.dt} s")

    @cached_property
    def randomisation(self) -> Randomisation:
        """What `randomise` does to this model; ValueError in one line if it does not fit it."""
        terms = {term: reading.width for term, reading in self.readings.items()} if self.randomise.get("bias") else {}
        return Randomisation(self.mjm, self.randomise, actuator=self.actuator, dt=self.dt, terms=terms, device=self.device)

    @property
    def fields(self) -> tuple[str, ...]:
        """Model fields with a value per world; a task that writes others adds them."""
        return self.randomisation.fields

    @property
    def substeps(self) -> int:
        """Timesteps in a control step."""
        return round(self.dt / self.mjm.opt.timestep)

    @property
    def horizon(self) -> int:
        """Control steps in an episode."""
        return round(self.episode / self.dt)

    def tensor(self, values: Any) -> Tensor:
        """A float32 constant on the task's device."""
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def nominal(self, name: str) -> Tensor:
        """The model's own value of a field, float32; copied to the device once, so not to be written."""
        if name not in self._nominal:
            self._nominal[name] = self.tensor(attrgetter(name)(self.mjm))
        return self._nominal[name]

    def number(self, name: str) -> Tensor:
        """What `moved` reads instead of a field, to be written at any time; ValueError for one that `moves` does not list."""
        if name not in self.moves:
            known = ", ".join(self.moves) or "none"
            raise ValueError(
                f"curriculum: task.{name} cannot be scheduled: choose of this task's numbers ({known}), or a term's"
            )
        return self.numbers.setdefault(name, self.tensor(getattr(self, name)))

    @property
    def moved(self) -> Self:
        """The task whose methods an Env calls: ourselves, or a copy with each `number` that was asked for in its place."""
        if not self.numbers:
            return self
        twin = copy.copy(self)
        for name, value in self.numbers.items():
            if not hasattr(self, self.moves[name]):
                raise ValueError(f"{type(self).__name__}.moves: {name!r} is read in {self.moves[name]!r}, which there is not")
            setattr(twin, self.moves[name], value)
        return twin

    def mjcf_text(self) -> str:
        """The model's MJCF, whole: `<include>`s resolved."""
        if self.text:
            return self.text
        file = find_mjcf(self.mjcf)
        text = file.read_text(encoding="utf-8")
        if "<include" not in text:
            return text
        root = ElementTree.fromstring(text)
        include(root, file.parent)  # MjSpec.to_xml would round every number to six digits
        return ElementTree.tostring(root, encoding="unicode")

    # -- what a task fills in ------------------------------------------------------------------------------------------

    @property
    def readings(self) -> dict[str, Reading]:
        """Observation term → what it measures."""
        raise NotImplementedError  # contract

    @property
    def drive(self) -> Drive:
        """How `control` makes controls of an action."""
        raise NotImplementedError  # contract

    @property
    def clock(self) -> Clock | None:
        """The gait clock, if the task has one."""
        return None

    @property
    def asks(self) -> Command | None:
        """The ranges of the memory entry `command`, if the task has one: what a user may ask for."""
        return None

    @property
    def mirror(self) -> dict[str, Flip] | None:
        """How each term of `observe`, of `privileged`, and the `action` look in a mirror; None for a task without symmetry."""
        return None

    def start(self, n: int, noise: Noise) -> dict[str, Tensor]:
        """First states of n episodes: `qpos` (n, nq), `qvel` (n, nv), and the task's memory, one entry (n, …) each."""
        raise NotImplementedError  # contract

    def world(self, n: int, noise: Noise) -> dict[str, Tensor]:
        """Model fields (n, …) drawn once per world, beside those of `randomise`."""
        return {}

    def vary(self, n: int, noise: Noise) -> dict[str, Tensor]:
        """Model fields (n, …) drawn anew for each episode, beside those of `randomise`."""
        return {}

    def update(self, s: State, noise: Noise) -> dict[str, Tensor]:
        """Memory after a step; also `kick` (B, nv), added to `qvel` to push the robot."""
        return {}

    def control(self, s: State) -> Tensor:
        """`ctrl` (B, nu) from `s.action`, in the units of each actuator."""
        return s.action

    def observe(self, s: State) -> dict[str, Tensor]:
        """What the robot measures: named terms (B, …), concatenated in this order for the actor."""
        raise NotImplementedError  # contract

    def privileged(self, s: State) -> dict[str, Tensor]:
        """What only the simulator knows: further terms for the critic."""
        return {}

    def reward(self, s: State) -> dict[str, Tensor]:
        """Named terms (B,), each a rate [1/s]: the reward is dt Σ weight · term."""
        raise NotImplementedError  # contract

    def terminated(self, s: State) -> Tensor:
        """(B,) bool: the episode ended in a failure (or a success) of its own, not by the clock."""
        return torch.zeros_like(s.time, dtype=torch.bool)

    def measure(self, s: State) -> dict[str, Tensor]:
        """Named readings (B,) of one step, of which `score` makes the evaluation; their means are also logged."""
        return {}

    def score(self, record: dict[str, Tensor]) -> dict[str, float]:
        """The evaluation, from (T, B) records of each measure, `reward`, `terminated` and `time`. Must hold `success`."""
        raise NotImplementedError  # contract

    def evaluation(self) -> Self:
        """The task as it is evaluated: MuJoCo C on the CPU, a converged solver, no pushes or other training aids."""
        return replace(self, device="cpu", mjm=converged(self.mjm), randomise=calm(self.randomise))


def find_mjcf(path: str) -> Path:
    """The file at path, or of that name in tasks/assets; FileNotFoundError naming those if there is none."""
    file = Path(path) if Path(path).exists() else ASSETS / path
    if not file.is_file():
        known = ", ".join(sorted(p.name for p in ASSETS.glob("*.xml")))
        raise FileNotFoundError(f"task.mjcf: no file {path!r}, here or among {known}")
    return file


def compile_mjcf(path: str) -> mujoco.MjModel:
    """The compiled model of an MJCF file; ValueError or FileNotFoundError in one line if it cannot be."""
    file = find_mjcf(path)
    try:
        return mujoco.MjModel.from_xml_path(str(file))
    except ValueError as error:
        raise ValueError(f"task.mjcf: {file}: {' '.join(str(error).split())}") from None


def converged(mjm: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of the model whose solver runs to convergence."""
    model = copy.copy(mjm)
    model.opt.iterations, model.opt.ls_iterations = 100, 50
    return model
