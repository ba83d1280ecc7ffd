"""Env: B robots doing one task. One control step, masked restarts, observations, quarantine and metrics."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpusim_rl.incident import Incident
from gpusim_rl.noise import Noise
from gpusim_rl.ranks import gather, share
from gpusim_rl.sight import Sight, Views
from gpusim_rl.sim import LIMIT, Sim
from gpusim_rl.tally import Tally
from gpusim_rl.task import State, Task


class Step(NamedTuple):
    """One control step of B worlds."""

    views: Views  # after the restarts: what to act on next
    end: Tensor  # (B, nc)  the critic's view of the state the step ended in, before any restart
    reward: Tensor  # (B,)
    terminated: Tensor  # (B,) bool  ended by the task
    truncated: Tensor  # (B,) bool  ended by the clock alone
    fault: Tensor  # (B,) bool  quarantined: not finite, beyond LIMIT or over a capacity; not to be learned from


def sound(x: Tensor) -> Tensor:
    """(B, n) → (B,) bool: every entry is a number of at most LIMIT."""
    return torch.linalg.vector_norm(x, torch.inf, dim=1) <= LIMIT  # of NaN it is NaN, which compares as false


class Env:
    """A task in a Sim. No method reads a tensor on the host, and every random number is a function of its coordinates.

    Args:
        task: the task; its device is the Sim's.
        sim: made from task.mjm with task.fields.
        seed: of every random number.
        weights: reward term → weight ≥ 0; the names must be those of task.reward.
        noise: observation term → half-width of its uniform noise, in the term's unit; terms left out have none.
        first: global id of this Env's first world.
        stagger: begin the first episodes at random times, so that time-outs are spread evenly.
        compiled: fuse the task's methods with torch.compile. Rounding may then depend on the number of worlds.
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
        stagger: bool = True,
        compiled: bool = False,
    ):
        self.task, self.sim, self.seed, self.stagger = task, sim, seed, stagger
        self._moved = task.moved
        self.num_envs, self.device = sim.qpos.shape[0], sim.qpos.device
        self.noise = Noise(seed, torch.arange(first, first + self.num_envs, device=self.device))
        self.step_count = torch.zeros((), dtype=torch.int64, device=self.device)
        self.success = torch.zeros((), device=self.device)  # of the last evaluation: what a curriculum may go by
        self.time = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self.action = torch.zeros(self.num_envs, sim.ctrl.shape[1], device=self.device)
        self.previous = torch.zeros_like(self.action)
        model = task.mjm
        self._columns = {
            model.sensor(i).name: slice(int(a), int(a) + int(d))
            for i, (a, d) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True))
        }
        self.memory: dict[str, Tensor] = {}
        self._bind(lambda fn: fn)
        self._begin()
        self._weigh(weights)
        self.sight = Sight(self._moved, self.look(), noise)
        self.views, self.widths, self.past = self.sight.views, self.sight.widths, self.sight.past
        self.see(torch.ones_like(self.time, dtype=torch.bool))
        self._update(self.now, self.noise)  # every stream joins the block now, before anything holds its address
        self._push()
        if compiled:
            fuse = functools.partial(torch.compile, dynamic=False)
            self._bind(fuse)
            self.sight.bind(fuse)
        self.incident = Incident(sim, self.noise.worlds, task.fields, len(self.terms), "force_left" in self.memory)
        self._blind = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.tally = Tally(self.terms, self.num_envs, task.dt, self.device)

    # -- building ------------------------------------------------------------------------------------------------------

    def _bind(self, fuse: Callable[[Any], Any]) -> None:
        """Take the pure functions that make up a step, each as fuse returns it."""
        task = self._moved
        self._start, self._vary = fuse(task.start), fuse(task.vary)
        self._random = fuse(self.task.randomisation.restart)
        self._control, self._update, self._judge = fuse(task.control), fuse(task.update), fuse(self._judgement)

    def _begin(self) -> None:
        """Draw the worlds, start every episode and keep the first views."""
        n, task = self.num_envs, self.task
        once = Noise(self.seed, self.noise.worlds)  # its streams need not be in the block of every step
        for name, value in (task.world(n, once) | task.randomisation.world(once)).items():
            self.write({name: value}, None)
        if task.fields:
            self.sim.refresh()
        start = self._start(n, self.noise)
        self.memory = {k: v.clone() for k, v in start.items() if k not in ("qpos", "qvel")} | task.randomisation.memory(n)
        everyone = torch.ones(n, dtype=torch.bool, device=self.device)
        self._restart(everyone)
        if self.stagger:
            self.time.copy_(once.integers("env/stagger", task.horizon)[:, 0])

    def _weigh(self, weights: dict[str, float]) -> None:
        """Check the names of the weights against the task's terms, once, and keep them as a tensor."""
        terms = list(self._moved.reward(self.look()))
        says = [f"{name!r} has no weight" for name in sorted(set(terms) - set(weights))]
        says += [f"{name!r} is no term" for name in sorted(set(weights) - set(terms))]
        if says:
            raise ValueError(f"reward terms and weights disagree: {', '.join(says)} (terms: {', '.join(terms)})")
        negative = [name for name, weight in weights.items() if weight < 0]
        if negative:
            raise ValueError(f"weights are ≥ 0, signs live in the task: {', '.join(negative)}")
        self.terms = terms
        self._weights = self.task.tensor([weights[name] for name in terms])

    # -- running -------------------------------------------------------------------------------------------------------

    def look(self) -> State:
        """The state as the task sees it now."""
        tensors = {"qpos": self.sim.qpos.float(), "qvel": self.sim.qvel.float(), "ctrl": self.sim.ctrl.float()}
        tensors |= {"action": self.action, "previous": self.previous, "time": self.time} | self.memory
        return State(tensors, self.sim.sensordata.float(), self._columns)

    def step(self, action: Tensor, watch: Callable[[State], None] | None = None) -> Step:
        """Apply action (B, nu) for one control period; restart the worlds whose episode ended.

        `watch` is shown the state before the restarts. The result is the caller's to keep.
        """
        self.act(action)
        self.advance()
        end = self.settle(watch)
        return Step(Views(*(view.clone() for view in self.views)), *end)

    def act(self, action: Tensor) -> None:
        """The first part of a step: the controls for action (B, nu)."""
        self.step_count += 1
        self.noise.draw(self.step_count)
        self.incident.begin()
        self._blind.copy_(~(sound(self.views.obs) & sound(self.views.critic) & sound(action)))
        action = torch.where(self._blind[:, None], 0.0, action)
        self.previous.copy_(self.action)
        torch.clamp(action, -self.task.clip, self.task.clip, out=self.action)
        ctrl = self._control(self.now)
        if "encoder" in self.memory:
            ctrl = self.task.randomisation.servo(ctrl, self.memory["encoder"])
        self.sim.ctrl.copy_(ctrl)

    def advance(self) -> None:
        """The second part of a step: the physics of one control period."""
        self.sim.step(self.task.substeps)

    def settle(self, watch: Callable[[State], None] | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The last part of a step: all that follows from the physics, restarts included; `Step` without its views."""
        task = self.task
        self.time += 1
        self.write(self._update(self.look(), self.noise), None)
        self.write(self._push(), None)

        s = self.look()
        terms, reward, end, failed = self._judge(s)
        why = torch.stack([self.sim.fault(), self.sim.overflow, self._blind | ~sound(end), ~sound(reward[:, None])], 1)
        fault = why.any(1)
        terminated = failed & ~fault
        truncated = (self.time >= task.horizon) & ~terminated & ~fault
        reward = torch.where(fault, 0.0, reward)
        end = torch.where(fault[:, None], 0.0, end)
        if watch:
            watch(s)
        self.incident.look(self.step_count, terms, why)
        self.tally.add(terms, reward, terminated, truncated, fault, self.sim.overflow)
        ended = terminated | truncated | fault
        self._restart(ended)
        self.see(ended)
        return end, reward, terminated, truncated, fault

    def _judgement(self, s: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weighted reward terms (B, R), reward (B,), the critic's view (B, nc) and whether the task ended (B,) bool."""
        # a sum over rows would add in an order that depends on B, and a world would know how many neighbours it has
        task = self._moved
        terms = torch.stack(list(task.reward(s).values()), 1) * self._weights
        return terms, task.dt * terms.sum(1), self.sight.critic(s), task.terminated(s)

    def restart(self) -> None:
        """Begin a new episode in every world, with the random numbers of the next step: for a player, not for training."""
        self.step_count += 1
        self.noise.draw(self.step_count)
        everyone = torch.ones_like(self._blind)
        self._restart(everyone)
        self.tally.restart()
        self.see(everyone)

    def steer(self, name: str, value: Any) -> None:
        """Overwrite a memory entry in every world, such as the command, and look again: for a player, not for training."""
        self.memory[name].copy_(self.task.tensor(value).expand_as(self.memory[name]))
        self.see()

    def write(self, values: dict[str, Tensor], mask: Tensor | None) -> None:
        """Put values into the memory or the model's fields, in the worlds of mask (all for None). In place.

        "geom_friction.0" is component 0 of the field's last axis; "kick" (B, nv) is added to `qvel`,
        "force" (B, nv) is the Sim's. Every write of the task's results is this one.
        """
        for name, value in values.items():
            if name in self.memory:
                target = self.memory[name]
            elif name == "kick":
                target, value = self.sim.qvel, self.sim.qvel + value
            elif name == "force":
                target = self.sim.force
            else:
                field, _, part = name.rpartition(".") if name[-1].isdigit() else (name, "", "")
                target = self.sim.model(field)
                target = target[..., int(part)] if part else target
            value = value.to(target.dtype)
            if mask is not None:
                value = torch.where(mask.view(-1, *[1] * (target.ndim - 1)), value, target)
            target.copy_(value)

    def _push(self) -> dict[str, Tensor]:
        """The pushes of this step."""
        return self.task.randomisation.push(self.noise, self.sim.force, self.memory.get("force_left"))

    def _restart(self, mask: Tensor) -> None:
        """Begin a new episode in the worlds of mask (B,)."""
        start = self._random(self._start(self.num_envs, self.noise), self.noise)
        qpos, qvel = start.pop("qpos").to(self.sim.qpos.dtype), start.pop("qvel").to(self.sim.qvel.dtype)
        self.write(start | self._vary(self.num_envs, self.noise), mask)
        self.sim.reset(mask, qpos, qvel)
        self.time.masked_fill_(mask, 0)
        self.action.masked_fill_(mask[:, None], 0.0)
        self.previous.masked_fill_(mask[:, None], 0.0)

    def number(self, key: str) -> Tensor:
        """The live number of a configuration's key, task.weights.<term> and the like: a view that a curriculum writes to.

        Those of the task itself must have been asked for before this Env was made.
        """
        part, _, name = key.removeprefix("task.").partition(".")
        if not name:
            return self._moved.numbers[part]
        if part == "randomise":
            field, _, which = name.rpartition(".")
            return self.task.randomisation.number(field, which)
        if part == "weights":
            return self._weights[self.terms.index(name)]
        return self.sight.noise(name)

    def see(self, began: Tensor | None = None) -> None:
        """Write both views of the state now.

        began (B,): a new moment, at which these worlds begin an episode; None: the same moment, looked at again.
        """
        self.now = self.look()
        self.sight.write(self.now, self.noise, began)

    # -- metrics -------------------------------------------------------------------------------------------------------

    def report(self) -> tuple[list[str], Tensor]:
        """Names and values (n,) of the sums since the last report, and of the task's measures now."""
        return self.tally.take(self._moved.measure(self.look()))

    def metrics(self) -> dict[str, float]:
        """Means since the last report, read at once: for tests and tools; PPO's own report does not wait."""
        names, values = self.report()
        return self.tally.means(names, values.tolist())  # outside the iteration

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All that changes, by name, as copies; worlds of all ranks."""
        sim = {f"sim/{name}": gather(value) for name, value in self.sim.state().items()}
        own = {name: gather(value) if name in self._per_world else value for name, value in self._own().items()}
        return sim | {name: value.clone() for name, value in own.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned. In place."""
        n = self.num_envs
        self.sim.load({name[4:]: share(value, n) for name, value in state.items() if name.startswith("sim/")})
        for name, target in self._own().items():
            target.copy_(share(state[name], n) if name in self._per_world else state[name])
        self.noise.draw(self.step_count)
        self.see()

    @property
    def _per_world(self) -> set[str]:
        """The names in `_own` that have a row for each world."""
        return self._own().keys() - {"env/step_count", "env/success", "env/term_sums", "env/sums"}

    def _own(self) -> dict[str, Tensor]:
        """Every live tensor but the Sim's."""
        own = {
            "step_count": self.step_count,
            "success": self.success,
            "time": self.time,
            "action": self.action,
            "previous": self.previous,
        }
        own |= {f"memory/{name}": value for name, value in self.memory.items()}
        own |= self.tally.state() | (self.past.state() if self.past else {})
        return {f"env/{name}": value for name, value in own.items()}

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Widths of the actor's view, of the critic's view and of the action."""
        return self.views.obs.shape[1], self.views.critic.shape[1], self.action.shape[1]
