"""`Env`: B robots that do one task, in control steps with restarts and observations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.core.record import Column, Columns
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import (
    Live,
    Rows,
    beside,
    copy_state,
    load_state,
    per_world,
    shared,
    store,
)
from gpusim_rl.envs.agents import folded, of_each, of_world, unfolded
from gpusim_rl.envs.check_methods import check_outputs, check_start
from gpusim_rl.envs.observation import Observer
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.envs.state import MOCAP, State
from gpusim_rl.envs.statistics import Statistics
from gpusim_rl.envs.step import Step, StepEnd, fault_reasons, is_valid, quarantined
from gpusim_rl.envs.task import Task, check_drive_limits, ordered_weights, reward_terms
from gpusim_rl.envs.worst_step import WorstStep
from gpusim_rl.sim.base import Sim


class End(NamedTuple):
    """The end of a control step of B worlds, before any restart."""

    rows: Rows  # all rows as they are then
    state: State
    terms: Tensor  # (B, R) weighted reward terms [1/s], means of the agents
    reasons: Tensor  # (B, 4) bool, in the order of `worst_step.REASONS`
    step: StepEnd
    added: Tensor  # (B, n) what the step adds to the statistics


# Why: docs/decisions/code.md
class Env:
    """A task in a Sim. On a GPU no method reads a tensor on the host, except `metrics`.

    Outside, all is in `num_rows` rows: B worlds × A agents, of `agents.py`. For A = 1 these are the
    worlds. Inside, the tensors of worlds with several agents have an axis for them: (B, A, …).

    Every random number is a function of the seed, its name, the step and the world. That of an
    agent is one of its row's number among all worlds. The constructor
    raises ValueError if weights or noise name something else than the task's terms.

    Args:
        task: the task; its device is the Sim's.
        sim: made from `task.physics` with `task.fields`.
        seed: of every random number.
        weights: reward term → weight ≥ 0, for each term of `task.reward` and `task.bonus`.
        noise: reading → half-width of its uniform noise, in the unit of the reading.
        first: global id of this Env's first world; life: how often they were begun before.
        stagger: begin the first episodes at random times, so that time limits are spread evenly.
        group: the processes that share the worlds; this Env has those of its rank.
    """

    def __init__(
        self,
        task: Task,
        sim: Sim,
        *,
        seed: int,
        weights: dict[str, float],
        noise: dict[str, float],
        first: int = 0,
        life: int = 0,
        stagger: bool = True,
        group: ProcessGroup = SINGLE,
    ):
        self.task, self.sim, self.seed, self.group = task, sim, seed, group
        self.scheduled_task = task.with_scheduled_numbers
        n = self.num_envs = sim.qpos.shape[0]
        self.device = sim.qpos.device
        self.rng = Rng(seed, torch.arange(first, first + n, device=self.device), life)
        self.agents, self.num_rows = task.agents, n * task.agents
        ids = torch.arange(self.num_rows, device=self.device) + first * task.agents
        self.rng_of_agents = Rng(seed, ids, life) if task.agents > 1 else self.rng
        self.step_count = torch.zeros((), dtype=torch.int64, device=self.device)
        self.time = torch.zeros(n, dtype=torch.int64, device=self.device)
        self.action = torch.zeros(n, *task.action_shape, device=self.device)
        self.previous = torch.zeros_like(self.action)
        self.memory: dict[str, Tensor] = {}
        once = Rng(seed, self.rng.worlds, life)  # its streams need not be in the block of a step
        self._start(once, stagger)
        self.shows_end = False  # whether a step gives the actor's view of the end, too
        self.success = torch.zeros((), device=self.device)  # mean of evaluations: see Curriculum
        self._invalid = torch.zeros(n, dtype=torch.bool, device=self.device)
        state = self.current_state()
        check_outputs(self.scheduled_task, state, once)
        self.terms = list(reward_terms(self.scheduled_task, state))
        self.weights = task.tensor(ordered_weights(self.terms, weights))
        check_drive_limits(task, state)
        self.observer = Observer(self.scheduled_task, state, noise)
        self.observation, self.term_widths = self.observer.observation, self.observer.term_widths
        self.measurement, self.readings = (x := self.observer.measurement), x.readings
        terms, forced = len(self.terms), "force_left" in self.memory
        self.worst_step = WorstStep(sim, self.rng.worlds, task.fields, terms, forced, group)
        self.statistics = Statistics(self.terms, n, task.dt, self.device, group)
        self.update_observations(torch.ones_like(self._invalid))
        # Each random stream joins the block now, before a graph holds the address of the block.
        end = self.end(self.rows(), self.rng)
        begun = self.scheduled_task.begin(n, self.rng, end.state)
        check_start(task, begun, n, "next_start")
        self.first_states(end.state, self.rng)

    def _start(self, once: Rng, stagger: bool) -> None:
        """Draw the fields of the worlds, and start an episode in each."""
        n, task = self.num_envs, self.task
        self.write(task.randomization.world(once))
        if task.fields:
            self.sim.refresh()
        check_start(task, start := task.begin(n, self.rng), n)
        self.memory = task_memory(task, start) | task.randomization.memory(n)
        self.restart_worlds(self.time == 0)
        if stagger:
            self.time.copy_(once.integers("env/stagger", task.horizon)[:, 0])

    # -- the state ---------------------------------------------------------------------------------

    def world_rows(self) -> Rows:
        """The live tensors (B, …) that a step reads and writes, by name.

        Those of a `State` have its names, the fields of the model begin with `model/`.
        """
        sim = self.sim
        live = dict(qpos=sim.qpos, qvel=sim.qvel, ctrl=sim.ctrl, sensordata=sim.sensordata)
        live |= {"sim/force": sim.force, "sim/fault": sim.fault(), "sim/overflow": sim.overflow}
        if self.task.mjm.nmocap:
            live |= dict(mocap_pos=sim.mocap_pos, mocap_quat=sim.mocap_quat)
        live |= dict(action=self.action, previous=self.previous, time=self.time) | self.memory
        live |= {f"model/{name}": sim.model(name) for name in self.task.fields}
        numbers = self.rng_of_agents.rows()
        live |= {self._of_agents(x): unfolded(numbers[x], self.agents) for x in numbers}
        return live | self.rng.rows()

    def _of_agents(self, name: str) -> str:
        """The name of a row of the agents' random numbers."""
        return f"agents/{name}" if self.agents > 1 else name

    def numbers_of_agents(self, rows: Rows) -> Rows:
        """The rows of the agents' random numbers, as `Rng.of_rows` takes them."""
        return {name: rows[self._of_agents(name)] for name in self.rng_of_agents.rows()}

    def state_of(self, rows: Rows) -> State:
        """The state that rows make up. Numbers that are float32 already are shared, not copied."""
        named = {
            name: x.float() if x.is_floating_point() else x
            for name, x in rows.items()
            if "/" not in name
        }
        task = self.scheduled_task
        return State(named, task.sensor_columns, task.joint_columns, task.derived)

    def current_state(self) -> State:
        """The state at this moment, as copies that no later step changes."""
        return self.state_of(self.world_rows()).clone()

    def changed(self, rows: Rows, values: Rows, mask: Tensor | None = None) -> Rows:
        """The rows that values (B, …) by name change, in the worlds of mask (B,) bool; None: all.

        A name is an entry of the memory, one of `MOCAP`, or a model field of the Sim.
        "geom_friction.0" is component 0 of the last axis of a field. `kick` (B, nv) is added to
        `qvel`; `force` (B, nv) is the Sim's.
        """
        changed: Rows = {}
        for name, value in values.items():
            key, part = self._row_of(name)
            old = changed.get(key, rows[key])
            place = old if part is None else old[..., part]
            value = (old + value if name == "kick" else value).to(old.dtype)
            if mask is not None:
                value = torch.where(beside(mask, place), value, place)
            if part is not None:
                whole = old.clone()
                whole[..., part] = value
                value = whole
            changed[key] = value.expand_as(old)
        return changed

    def _row_of(self, name: str) -> tuple[str, int | None]:
        """The row that a task means by a name, and the component of its last axis."""
        if name in self.memory or name in MOCAP:
            return name, None
        if name in ("kick", "force"):
            return {"kick": "qvel", "force": "sim/force"}[name], None
        field, _, part = name.rpartition(".") if name[-1].isdigit() else (name, "", "")
        return f"model/{field}", int(part) if part else None

    def write(self, values: Rows, mask: Tensor | None = None) -> None:
        """Write values (B, …), named as in `changed`, to worlds of mask (B,) bool. In place."""
        live = self.world_rows()
        for key, _ in map(self._row_of, values):
            if key not in live:  # a field of the Sim that the task does not name
                live[key] = self.sim.model(key.removeprefix("model/"))
        store(live, self.changed(live, values, mask))

    def rows(self) -> Rows:
        """As `world_rows` has it, with what observations, episodes and the worst step need."""
        env_tensors = {f"env/{name}": x for name, x in self.statistics.episodes_by_name().items()}
        env_tensors |= (
            self.observer.rows() | self.worst_step.rows() | {"env/invalid": self._invalid}
        )
        return self.world_rows() | env_tensors

    # -- a control step ----------------------------------------------------------------------------

    def step(self, action: Tensor, on_step: Callable[[State], None] | None = None) -> Step:
        """Apply actions (rows, nu) for one control period, restart worlds whose episode ended.

        The action is clamped to ± `task.clip`. `on_step` is called with the state before the
        restarts. No later step changes the result. ValueError for an action of another shape.
        """
        expected = self.num_rows, self.task.action_width
        if not isinstance(action, Tensor) or action.shape != expected:
            given = f"{type(action).__name__} {[*getattr(action, 'shape', ())]}"
            raise ValueError(f"action is a {given}, expected a tensor of shape {[*expected]}")
        self.apply_action(action)
        self.step_physics()
        end = self.finish_step(on_step)
        return Step({name: view.clone() for name, view in self.observation.items()}, *end[:-1])

    def begin_step(self) -> None:
        """Count the step, and draw its random numbers. In place."""
        self.step_count += 1
        self._draw()

    def _draw(self) -> None:
        """Draw the random numbers of this step. In place."""
        self.rng.draw(self.step_count)
        if self.agents > 1:
            self.rng_of_agents.draw(self.step_count)

    def apply_action(self, action: Tensor) -> None:
        """The first part of a step: the controls for actions (rows, nu)."""
        self.begin_step()
        live = self.rows()
        store(live, self.act(live, unfolded(action, self.agents)))

    def act(self, rows: Rows, action: Tensor) -> Rows:
        """The new rows for action (B, *action_shape), before the physics; pure."""
        valid = is_valid(rows["view/actor"]) & is_valid(rows["view/critic"]) & is_valid(action)
        clip = self.task.clip
        # a zero keeps NaN out of the engine; `end` counts the fault
        action = torch.where(beside(valid, action), action, 0.0).clamp(-clip, clip)
        s = self.measurement.delivered(self.state_of(rows), rows["env/readings"])
        ctrl = self.scheduled_task.control(s.with_(action=action, previous=s.action))
        if "encoder" in self.memory:
            ctrl = self.task.randomization.servo(ctrl, rows["encoder"])
        changed = {"action": action, "previous": rows["action"], "ctrl": ctrl}
        # before the action: a repetition begins with the state in which it was taken
        return changed | {"env/invalid": ~valid} | self.worst_step.begin(rows)

    def step_physics(self) -> None:
        """The second part of a step: the physics of one control period."""
        self.sim.step(self.task.substeps)

    def end(self, rows: Rows, rng: Rng) -> End:
        """How a step ended, of the rows after the physics; pure."""
        task = self.scheduled_task
        rows = rows | {"time": rows["time"] + 1}
        # Why: docs/decisions/observations.md
        values = self.measurement.updated(task.update, self.state_of(rows), rows, rng)
        rows |= self.changed(rows, values)
        push = self.task.randomization.push(rng, rows["sim/force"], rows.get("force_left"))
        rows |= self.changed(rows, push)
        s = self.state_of(rows)
        terms, reward, end, failed = self.outcome(s)
        reasons = fault_reasons(rows, end, reward)
        timed_out, fault = rows["time"] >= self.task.horizon, reasons.any(1)
        ended = quarantined(end, reward, failed, timed_out, fault)
        if self.shows_end:
            final = self.observer.final(s, rows)
            ended = ended._replace(end_obs=torch.where(beside(fault, final), 0.0, final))
        terms = of_world(terms, self.agents)
        mean = of_world(ended.reward, self.agents)
        counted = self.statistics.count(rows, terms, ended._replace(reward=mean))
        added = counted.pop("statistics/added")
        return End(rows | counted, s, terms, reasons, ended, added)

    def outcome(self, s: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weighted reward terms (B, R), reward (B,), the critic's view (B, nc), terminated (B,)."""
        task = self.scheduled_task
        terms = [of_each(x, self.agents) for x in reward_terms(task, s).values()]
        terms = torch.stack(terms, -1) * self.weights
        # Summed over columns: the order of a sum over rows would depend on the number of worlds.
        return terms, task.dt * terms.sum(-1), self.observer.critic(s), task.terminated(s)

    def finish_step(self, on_step: Callable[[State], None] | None = None) -> StepEnd:
        """The last part of a step: reward, terminations, restarts and observations."""
        live = self.rows()
        end = self.end(live, self.rng)
        ended, worst = end.step, self.worst_step
        if on_step:
            on_step(end.state.clone())
        score = worst.score(end.terms, end.reasons)
        if not worst.is_best(score):
            worst.record(self.step_count, score, worst.numbers(end.rows, end.terms, end.reasons))
        self.statistics.add(end.added)
        changed = {name: x for name, x in end.rows.items() if x is not live[name]}
        restarted = ended.terminated | ended.truncated | ended.fault
        # where nothing began, the critic's view of the end is that of now
        if is_empty_on_host(restarted):
            seen = self.observer.observe(end.state, end.rows, self.rng, restarted, critic=ended.end)
            store(live, changed | seen)
            self.write_views()
        else:
            store(live, changed)
            self.restart_worlds(restarted, end.state)
            self.update_observations(restarted)
        return ended.rows(self.agents)

    # -- episodes ----------------------------------------------------------------------------------

    def first_states(self, ended: State | None, rng: Rng) -> Rows:
        """First values of a new episode of each world, by name; pure.

        ended: the last state of the episodes; None if there was none before.
        """
        worlds = self.num_envs if ended is None else len(ended.time)
        start = self.scheduled_task.begin(worlds, rng, ended)
        start = self.task.randomization.restart(start, rng)
        patches = self.task.patches
        return patches.scale_friction(start) if patches else start

    def begin_episodes(self, rows: Rows, ended: State | None, mask: Tensor, rng: Rng) -> Rows:
        """The rows as new episodes begin in the worlds of mask (B,) bool; pure.

        `start/qpos` and `start/qvel` are first states of all worlds, for `reset`.
        """
        start = self.first_states(ended, rng)
        begun = {f"start/{name}": start.pop(name).to(rows[name].dtype) for name in ("qpos", "qvel")}
        begun |= self.changed(rows, start, mask)
        begun["time"] = rows["time"].masked_fill(mask, 0)
        for name in ("action", "previous"):
            begun[name] = rows[name].masked_fill(beside(mask, rows[name]), 0.0)
        return begun

    def restart_worlds(self, mask: Tensor, ended: State | None = None) -> None:
        """Begin a new episode in the worlds of mask (B,) bool, as `first_states` says. In place."""
        live = self.world_rows()
        store(live, begun := self.begin_episodes(live, ended, mask, self.rng))
        self.reset(mask, begun["start/qpos"], begun["start/qvel"])

    def reset(self, mask: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Begin the episodes in the Sim, once the rows of `begin_episodes` are written. In place.

        Args: as `Sim.reset` has them.
        """
        if self.task.patches:
            self.task.patches.write(self.sim, self.memory["patch"], mask)
        # after the model fields: sensors of restarted worlds depend on ground and masses
        self.sim.reset(mask, qpos, qvel)

    def restart(self) -> None:
        """Begin a new episode in every world, with the random numbers of the next step."""
        self.begin_step()
        every = torch.ones_like(self._invalid)
        self.restart_worlds(every)
        self.statistics.restart()
        self.update_observations(every)

    # -- what others read and write ----------------------------------------------------------------

    def set_memory(self, name: str, value: Any) -> None:
        """Overwrite an entry of the memory in every world, such as `command`, and observe again."""
        self.memory[name].copy_(self.task.tensor(value).expand_as(self.memory[name]))
        self.update_observations()

    def scheduled_number(self, key: str) -> Tensor:
        """The live tensor that holds the number of a key `task.….`; a curriculum writes to it.

        A number of the task itself must have been asked of `Task.scheduled_number` before the Env
        was made.
        """
        part, _, name = key.removeprefix("task.").partition(".")
        if not name:
            return self.task.scheduled_numbers[part]
        if part == "randomise":
            field, _, which = name.rpartition(".")
            return self.task.randomization.scheduled_number(field, which)
        if part == "weights":
            return self.weights[self.terms.index(name)]
        return self.measurement.noise_amplitude(name)

    def update_observations(self, began: Tensor | None = None) -> None:
        """Write what actor and critic see of the state at this moment.

        began (B,) bool: the worlds whose episode begins now; None: observe the same moment again.
        """
        live = self.rows()
        store(live, self.observer.observe(self.state_of(live), live, self.rng, began))
        self.write_views()

    def write_views(self) -> None:
        """Write the further views of the task, of the state at this moment, in torch."""
        if further := self.observer.further:
            views = self.scheduled_task.views(self.state_of(self.world_rows()))
            for name, place in further.items():
                place.copy_(folded(views[name], self.agents))

    def report(self) -> tuple[list[str], Tensor]:
        """Names and values (n,) of the sums since the last report, and of the measures now."""
        return self.statistics.take(self.scheduled_task.measure(self.current_state()))

    def metrics(self) -> dict[str, float]:
        """Means since the last report. It waits for the device; training reads `report` later."""
        names, values = self.report()
        return self.statistics.means(names, values.tolist())

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        rows = dict(time=self.time, action=self.action, previous=self.previous)
        rows |= {f"memory/{name}": x for name, x in self.memory.items()}
        rows |= self.statistics.episodes_by_name() | self.observer.state()
        sums = {"step_count": self.step_count, "success": self.success}
        sums |= self.statistics.sums_by_name()
        of_sim = per_world("sim/", self.sim.tensors())
        return of_sim | per_world("env/", rows) | shared("env/", sums)

    def state(self) -> dict[str, Tensor]:
        """Copies of all that changes, by name, with the worlds of all ranks."""
        return copy_state(self.tensors(), self.group)

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned, each process the rows of its worlds. In place."""
        rows, live = self.group.rows, self.tensors()
        # The Sim derives other values from its tensors.
        self.sim.load({name[4:]: rows(x) for name, x in state.items() if name.startswith("sim/")})
        env_tensors = {name: entry for name, entry in live.items() if not name.startswith("sim/")}
        load_state(env_tensors, state, self.group)
        # the observations below are made with this step's numbers
        self._draw()
        self.update_observations()

    @property
    def views(self) -> Columns:
        """The shapes and types of the views of a row, by name."""
        views = self.observation.items()
        return {name: Column(tuple(x.shape[1:]), x.dtype) for name, x in views}


def task_memory(task: Task, start: dict[str, Tensor]) -> dict[str, Tensor]:
    """The memory of a task, as its `start` returned it.

    Raises:
        ValueError: an entry has the name of something else that a `State` has.
    """
    memory = {name: x.clone() for name, x in start.items() if name not in ("qpos", "qvel", *MOCAP)}
    reserved = {"ctrl", "sensordata", "action", "previous", "time", "kick", "force", *JOINTS}
    taken = memory.keys() & {*reserved, *task.sensor_columns, *task.randomization.memory(0)}
    if taken:
        where = f"{type(task).__name__}.start"
        raise ValueError(f"{where}: memory must not be called {taken.pop()!r}: a state has that")
    return memory
