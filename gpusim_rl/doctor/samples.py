"""What the worlds of a task did under zero and under random actions, for `play.findings`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.waiting import counted
from gpusim_rl.envs.agents import folded
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.state import State

Series = dict[str, list[Tensor]]
HOPELESS = 10  # steps one after another in which every world is at fault


@dataclass
class Wrong:
    """Numbers that are not finite, where they were first seen."""

    where: str  # method and entry, such as `reward: the term 'near'`
    step: int  # the control step, from 1 on; 0 at the start
    share: float  # of the worlds at that step


@dataclass
class Samples:
    """T control steps of B worlds. The first B / 2 took zero actions, the others random ones."""

    # name → (T, B, …), of the true state after each step; with an axis for several agents
    observed: dict[str, Tensor]
    privileged: dict[str, Tensor]
    terms: dict[str, Tensor]  # weighted [1/s]
    measures: dict[str, Tensor]
    # `reward`, `time` [control steps], `terminated`, `truncated`, `fault`, and `physics`: a fault
    # of the simulator; each (T, B)
    numbers: dict[str, Tensor]
    action: Tensor  # (T, B, *action_shape) before it is clamped
    ctrl: Tensor  # (T, B, nu)
    qpos: Tensor  # (T, B, nq)
    wrong: list[Wrong]  # the numbers that are not finite, by method and entry

    @property
    def valid(self) -> Tensor:
        """(T, B) bool: steps without a fault."""
        return ~self.numbers["fault"]


class Recorder:
    """Notes what the methods of a task return in each step of an Env."""

    def __init__(self, env: Env):
        self.env, self.task = env, env.scheduled_task
        self.weights = dict(zip(env.terms, env.weights, strict=True))
        self.series: dict[str, Series] = {}
        self.wrong: dict[str, Wrong] = {}
        self.steps = 0

    def check(self, where: str, x: Tensor, healthy: Tensor) -> None:
        """Note the first step in which x (B, …) is not finite where healthy (B,) is true."""
        if where in self.wrong or not x.is_floating_point() or bool(x.isfinite().all()):
            return
        bad = ~x.isfinite().reshape(len(x), -1).all(1)
        if share := (bad & healthy).float().mean().item():
            self.wrong[where] = Wrong(where, self.steps, share)

    def check_state(self, s: State) -> None:
        """Note what is not finite in the first states or in the memory."""
        method, every = "update" if self.steps else "start", s.time >= 0
        entries = {} if self.steps else {"qpos": s.qpos, "qvel": s.qvel}
        for name, x in (entries | {name: getattr(s, name) for name in self.env.memory}).items():
            if f"start: {name!r}" not in self.wrong:
                self.check(f"{method}: {name!r}", x, every)

    def note(self, part: str, name: str, x: Tensor) -> None:
        self.series.setdefault(part, {}).setdefault(name, []).append(x)

    def take(self, s: State) -> None:
        """Call the methods on the state of a step, before any restart."""
        task, healthy = self.task, ~self.env.sim.fault()
        self.steps += 1
        self.check_state(s)
        methods = [
            ("observed", "observe: the term", task.observe(s)),
            ("privileged", "privileged: the term", task.privileged(s)),
            ("terms", "reward: the term", task.reward(s)),
            ("terms", "bonus: the term", {k: x / task.dt for k, x in task.bonus(s).items()}),
            ("measures", "measure:", task.measure(s)),
        ]
        for part, where, values in methods:
            for name, x in values.items():
                self.check(f"{where} {name!r}", x, healthy)
                self.note(part, name, x * self.weights[name] if part == "terms" else x)
        self.check("control", s.ctrl, s.time >= 0)  # its NaN is the cause of a fault
        self.note("state", "ctrl", s.ctrl)
        self.note("state", "qpos", s.qpos)
        self.note("numbers", "time", s.time)
        self.note("numbers", "physics", ~healthy)

    def samples(self, action: Tensor) -> Samples:
        """All that was noted, as tensors on the CPU. action: (T, B, *action_shape)."""
        parts: dict[str, Any] = {
            part: {name: torch.stack(x).cpu() for name, x in self.series.get(part, {}).items()}
            for part in ("observed", "privileged", "terms", "measures", "numbers", "state")
        }
        state = parts.pop("state")
        return Samples(**parts, **state, action=action, wrong=[*self.wrong.values()])


@torch.no_grad()
def sample(env: Env, steps: int, std: float, doing: str, say: Callable[[str], None]) -> Samples:
    """Step the worlds of an Env, half of them by zero actions, half by random ones.

    It ends early where every world is at fault again and again.

    Args:
        env: an even number of worlds whose episodes begin now.
        std: standard deviation of the random actions.
        doing, say: as of `counted`.
    """
    recorder, faults = Recorder(env), 0
    generator = torch.Generator().manual_seed(env.seed)
    action = std * torch.randn(steps, env.num_envs, *env.task.action_shape, generator=generator)
    action[:, : env.num_envs // 2] = 0.0
    recorder.check_state(env.current_state())
    done = 0
    for t in counted(steps, doing, say):
        taken = folded(action[t].to(env.device), env.agents)
        step = env.step(taken, recorder.take).of_worlds(env.agents)
        for name in ("reward", "terminated", "truncated", "fault"):
            recorder.note("numbers", name, getattr(step, name))
        faults, done = (faults + 1) * int(step.fault.all()), t + 1
        if faults == HOPELESS:
            break
    return recorder.samples(action[:done])
