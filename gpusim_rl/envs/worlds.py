"""`Worlds`: B robots of a task as live tensors: state, memory, episodes, checkpoints."""

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Live, Rows, per_world, shared, store
from gpusim_rl.envs.check_methods import check_start
from gpusim_rl.envs.readings import JOINTS
from gpusim_rl.envs.state import State
from gpusim_rl.envs.task import Task
from gpusim_rl.sim.base import Sim


class Worlds:
    """A task in a Sim, without rewards and observations.

    Args:
        task: the task; its device is the Sim's.
        sim: made from `task.physics` with `task.fields`.
        seed: of every random number.
        first: global id of the first world; life: how often these worlds were begun before.
        stagger: begin the first episodes at random times, so that time limits are spread evenly.
        group: the processes that share the worlds; these are of its rank.
    """

    def __init__(
        self,
        task: Task,
        sim: Sim,
        *,
        seed: int,
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
        self.step_count = torch.zeros((), dtype=torch.int64, device=self.device)
        self.time = torch.zeros(n, dtype=torch.int64, device=self.device)
        self.action = torch.zeros(n, task.action_width, device=self.device)
        self.previous = torch.zeros_like(self.action)
        self.memory: dict[str, Tensor] = {}
        self._start(stagger)

    def _start(self, stagger: bool) -> None:
        """Draw the fields of the worlds, and start an episode in each."""
        n, task = self.num_envs, self.task
        # its streams need not be in the block of every step
        once = Rng(self.seed, self.rng.worlds, self.rng.life)
        self.write(task.randomization.world(once))
        if task.fields:
            self.sim.refresh()
        check_start(task, start := task.begin(n, self.rng), n)
        memory = task_memory(task, start)
        self.memory = memory | task.randomization.memory(n)
        every = self.time == 0
        self.restart_worlds(every)
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
        live |= dict(action=self.action, previous=self.previous, time=self.time) | self.memory
        live |= {f"model/{name}": sim.model(name) for name in self.task.fields}
        return live | self.rng.rows()

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

        A name is an entry of the memory or a model field of the Sim. "geom_friction.0" is component
        0 of the last axis of a field. `kick` (B, nv) is added to `qvel`; `force` (B, nv) is the
        Sim's.
        """
        changed: Rows = {}
        for name, value in values.items():
            key, part = self._row_of(name)
            old = changed.get(key, rows[key])
            place = old if part is None else old[..., part]
            value = (old + value if name == "kick" else value).to(old.dtype)
            if mask is not None:
                value = torch.where(mask.view(-1, *[1] * (place.ndim - 1)), value, place)
            if part is not None:
                whole = old.clone()
                whole[..., part] = value
                value = whole
            changed[key] = value.expand_as(old)
        return changed

    def _row_of(self, name: str) -> tuple[str, int | None]:
        """The row that a task means by a name, and the component of its last axis."""
        if name in self.memory:
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
            begun[name] = rows[name].masked_fill(mask[:, None], 0.0)
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

    # -- checkpoints -------------------------------------------------------------------------------

    def world_tensors(self) -> dict[str, Live]:
        """The live tensors of the worlds that a continuation needs."""
        env_rows = dict(time=self.time, action=self.action, previous=self.previous)
        env_rows = per_world("env/", env_rows) | per_world("env/memory/", self.memory)
        common = shared("env/", {"step_count": self.step_count})
        return per_world("sim/", self.sim.tensors()) | env_rows | common


def task_memory(task: Task, start: dict[str, Tensor]) -> dict[str, Tensor]:
    """The memory of a task, as its `start` returned it.

    Raises:
        ValueError: an entry has the name of something else that a `State` has.
    """
    memory = {name: x.clone() for name, x in start.items() if name not in ("qpos", "qvel")}
    reserved = {"ctrl", "sensordata", "action", "previous", "time", "kick", "force", *JOINTS}
    taken = memory.keys() & {*reserved, *task.sensor_columns, *task.randomization.memory(0)}
    if taken:
        where = f"{type(task).__name__}.start"
        raise ValueError(f"{where}: memory must not be called {taken.pop()!r}: a state has that")
    return memory
