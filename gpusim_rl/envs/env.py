"""`Env`: B robots that do one task, in control steps with restarts and observations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Live, Rows, copy_state, load_state, per_world, shared, store
from gpusim_rl.envs.check_methods import check_outputs, check_start
from gpusim_rl.envs.observation import Observation, Observer
from gpusim_rl.envs.state import State
from gpusim_rl.envs.statistics import Statistics
from gpusim_rl.envs.step import Step, StepEnd, fault_reasons, is_valid, quarantined
from gpusim_rl.envs.task import Task, check_drive_limits, ordered_weights, reward_terms
from gpusim_rl.envs.worlds import Worlds
from gpusim_rl.envs.worst_step import WorstStep
from gpusim_rl.sim.base import Sim


class End(NamedTuple):
    """The end of a control step of B worlds, before any restart."""

    rows: Rows  # all rows as they are then
    state: State
    terms: Tensor  # (B, R) weighted reward terms [1/s]
    reasons: Tensor  # (B, 4) bool, in the order of `worst_step.REASONS`
    step: StepEnd
    added: Tensor  # (B, n) what the step adds to the statistics


# Why: docs/decisions/code.md
class Env(Worlds):
    """A task in a Sim. On a GPU no method reads a tensor on the host, except `metrics`.

    Every random number is a function of the seed, its name, the step and the world. The constructor
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
        ids = {"first": first, "life": life}
        super().__init__(task, sim, seed=seed, **ids, stagger=stagger, group=group)
        self.shows_end = False  # whether a step gives the actor's view of the end, too
        self.success = torch.zeros((), device=self.device)  # mean of evaluations: see Curriculum
        self._invalid = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        state = self.current_state()
        once = Rng(seed, self.rng.worlds, life)  # its streams need not be in the block of a step
        check_outputs(self.scheduled_task, state, once)
        self.terms = list(reward_terms(self.scheduled_task, state))
        self.weights = task.tensor(ordered_weights(self.terms, weights))
        check_drive_limits(task, state)
        self.observer = Observer(self.scheduled_task, state, noise)
        self.observation, self.term_widths = self.observer.observation, self.observer.term_widths
        self.measurement, self.readings = (x := self.observer.measurement), x.readings
        terms, forced = len(self.terms), "force_left" in self.memory
        self.worst_step = WorstStep(sim, self.rng.worlds, task.fields, terms, forced, group)
        self.statistics = Statistics(self.terms, self.num_envs, task.dt, self.device, group)
        self.update_observations(torch.ones_like(self._invalid))
        # Each random stream joins the block now, before a graph holds the address of the block.
        end = self.end(self.rows(), self.rng)
        begun = self.scheduled_task.begin(self.num_envs, self.rng, end.state)
        check_start(task, begun, self.num_envs, "next_start")
        self.first_states(end.state, self.rng)

    def rows(self) -> Rows:
        """As `Worlds` has it, with what observations, episodes and the worst step need."""
        env_tensors = {f"env/{name}": x for name, x in self.statistics.episodes_by_name().items()}
        env_tensors |= (
            self.observer.rows() | self.worst_step.rows() | {"env/invalid": self._invalid}
        )
        return self.world_rows() | env_tensors

    def step(self, action: Tensor, on_step: Callable[[State], None] | None = None) -> Step:
        """Apply action (B, nu) for one control period, and restart worlds whose episode ended.

        The action is clamped to ± `task.clip`. `on_step` is called with the state before the
        restarts. No later step changes the result.
        """
        self.apply_action(action)
        self.step_physics()
        end = self.finish_step(on_step)
        return Step(Observation(*(view.clone() for view in self.observation)), *end[:-1])

    def begin_step(self) -> None:
        """Count the step, and draw its random numbers. In place."""
        self.step_count += 1
        self.rng.draw(self.step_count)

    def apply_action(self, action: Tensor) -> None:
        """The first part of a step: the controls for action (B, nu)."""
        self.begin_step()
        live = self.rows()
        store(live, self.act(live, action))

    def act(self, rows: Rows, action: Tensor) -> Rows:
        """The new rows for action (B, nu), before the physics; pure."""
        valid = is_valid(rows["view/actor"]) & is_valid(rows["view/critic"]) & is_valid(action)
        clip = self.task.clip
        # a zero keeps NaN out of the engine; `end` counts the fault
        action = torch.where(valid[:, None], action, 0.0).clamp(-clip, clip)
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
            final = torch.where(fault[:, None], 0.0, self.observer.final(s, rows))
            ended = ended._replace(end_obs=final)
        counted = self.statistics.count(rows, terms, ended)
        added = counted.pop("statistics/added")
        return End(rows | counted, s, terms, reasons, ended, added)

    def outcome(self, s: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weighted reward terms (B, R), reward (B,), the critic's view (B, nc), terminated (B,)."""
        task = self.scheduled_task
        terms = torch.stack(list(reward_terms(task, s).values()), 1) * self.weights
        # Summed over columns: the order of a sum over rows would depend on the number of worlds.
        return terms, task.dt * terms.sum(1), self.observer.critic(s), task.terminated(s)

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
        else:
            store(live, changed)
            self.restart_worlds(restarted, end.state)
            self.update_observations(restarted)
        return ended

    def restart(self) -> None:
        """Begin a new episode in every world, with the random numbers of the next step."""
        self.begin_step()
        every = torch.ones_like(self._invalid)
        self.restart_worlds(every)
        self.statistics.restart()
        self.update_observations(every)

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

    def report(self) -> tuple[list[str], Tensor]:
        """Names and values (n,) of the sums since the last report, and of the measures now."""
        return self.statistics.take(self.scheduled_task.measure(self.current_state()))

    def metrics(self) -> dict[str, float]:
        """Means since the last report. It waits for the device; training reads `report` later."""
        names, values = self.report()
        return self.statistics.means(names, values.tolist())

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        sums = {"success": self.success} | self.statistics.sums_by_name()
        env_tensors = per_world("env/", self.statistics.episodes_by_name() | self.observer.state())
        return self.world_tensors() | env_tensors | shared("env/", sums)

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
        self.rng.draw(self.step_count)
        self.update_observations()

    @property
    def dims(self) -> tuple[int, int, int]:
        """Widths of the actor's observation, of the critic's and of the action: no, nc, nu."""
        actor, critic = self.observation
        return actor.shape[1], critic.shape[1], self.action.shape[1]
