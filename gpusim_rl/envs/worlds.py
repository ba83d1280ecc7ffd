"""`Worlds`: B robots of a task as live tensors: state, memory, episodes, checkpoints."""

import torch
from torch import Tensor

from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Live, per_world, shared
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
        self._now = self.current_state()  # overwritten by `_refreshed`

    def _start(self, stagger: bool) -> None:
        """Draw the fields of the worlds, and start an episode in each."""
        n, task = self.num_envs, self.task
        once = Rng(
            self.seed, self.rng.worlds, self.rng.life
        )  # its streams need not be in the block of every step
        self.write(task.randomization.world(once))
        if task.fields:
            self.sim.refresh()
        memory = task_memory(task, task.begin(n, self.rng))
        self.memory = memory | task.randomization.memory(n)
        self.write_start(self.first_states(None), self.time == 0)
        if stagger:
            self.time.copy_(once.integers("env/stagger", task.horizon)[:, 0])

    # -- the state ---------------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, Tensor]:
        """The live tensors whose values make up a `State`."""
        sim = self.sim
        live = dict(qpos=sim.qpos, qvel=sim.qvel, ctrl=sim.ctrl, sensordata=sim.sensordata)
        ours = dict(action=self.action, previous=self.previous, time=self.time)
        return live | ours | self.memory

    def current_state(self) -> State:
        """The state at this moment, as copies that no later step changes."""
        live, t = self.state_tensors(), self.task
        return State.copied(live, t.sensor_columns, t.joint_columns, self.scheduled_task.derived)

    def _refreshed(self) -> State:
        """The state at this moment, in tensors of fixed addresses, which later steps overwrite."""
        self._now.copy_(self.state_tensors())
        return self._now.with_()  # what it computes is not kept: it may lie in a graph's memory

    def write(self, values: dict[str, Tensor], mask: Tensor | None = None) -> None:
        """Write values (B, …) by name, in the worlds of mask (B,) bool; None means all. In place.

        A name is an entry of the memory or a model field of the Sim. "geom_friction.0" is component
        0 of the last axis of a field. `kick` (B, nv) is added to `qvel`; `force` (B, nv) is the
        Sim's.
        """
        for name, value in values.items():
            if name == "kick":
                value = self.sim.qvel + value
            target = self._target(name)
            value = value.to(target.dtype)
            if mask is None:
                target.copy_(value)
            else:
                torch.where(mask.view(-1, *[1] * (target.ndim - 1)), value, target, out=target)

    def _target(self, name: str) -> Tensor:
        """The live tensor that a task means by a name."""
        if name in self.memory:
            return self.memory[name]
        if name in ("kick", "force"):
            return self.sim.qvel if name == "kick" else self.sim.force
        field, _, part = name.rpartition(".") if name[-1].isdigit() else (name, "", "")
        target = self.sim.model(field)
        return target[..., int(part)] if part else target

    # -- episodes ----------------------------------------------------------------------------------

    def first_states(self, ended: State | None) -> dict[str, Tensor]:
        """First values of a new episode of each world, by name; pure.

        ended: the last state of the episodes; None if there was none before.
        """
        start = self.scheduled_task.begin(self.num_envs, self.rng, ended)
        start = self.task.randomization.restart(start, self.rng)
        patches = self.task.patches
        return patches.scale_friction(start) if patches else start

    def write_start(self, start: dict[str, Tensor], mask: Tensor) -> None:
        """Begin the episodes of `first_states` in the worlds of mask (B,) bool. In place."""
        sim, patches = self.sim, self.task.patches
        qpos, qvel = (start.pop(name).to(sim.qpos.dtype) for name in ("qpos", "qvel"))
        self.write(start, mask)
        if patches:
            patches.write(sim, self.memory["patch"], mask)
        # after the model fields: sensors of restarted worlds depend on ground and masses
        sim.reset(mask, qpos, qvel)
        self.time.masked_fill_(mask, 0)
        self.action.masked_fill_(mask[:, None], 0.0)
        self.previous.masked_fill_(mask[:, None], 0.0)

    # -- checkpoints -------------------------------------------------------------------------------

    def world_tensors(self) -> dict[str, Live]:
        """The live tensors of the worlds that a continuation needs."""
        ours = dict(time=self.time, action=self.action, previous=self.previous)
        ours = per_world("env/", ours) | per_world("env/memory/", self.memory)
        common = shared("env/", {"step_count": self.step_count})
        return per_world("sim/", self.sim.tensors()) | ours | common


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
