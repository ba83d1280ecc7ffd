"""Results of a control step, and the quarantine of worlds with a fault."""

from typing import NamedTuple

import torch
from torch import Tensor

from gpusim_rl.core.states import Rows, beside
from gpusim_rl.envs.agents import folded, of_each, of_world, unfolded
from gpusim_rl.envs.observation import Observation
from gpusim_rl.sim.base import LIMIT


# Why: docs/decisions/records.md
class StepEnd(NamedTuple):
    """How a control step of B worlds ended, or in `rows` of B·A agents.

    Before, views and reward are (B, A, …) in worlds of several agents.
    """

    end: Tensor  # (B, nc)  what the critic sees of the state at the end, before any restart
    reward: Tensor  # (B,)
    terminated: Tensor  # (B,) bool  ended by the task
    truncated: Tensor  # (B,) bool  ended by the time limit alone
    fault: Tensor  # (B,) bool  quarantined: not finite, beyond LIMIT or over a capacity
    end_obs: Tensor | None = None  # (B, no)  what the actor sees of that state, if it is asked for

    def of_each(self, agents: int) -> "StepEnd":
        """The end of each agent's step: (B, A, …) for several agents."""
        terminated, truncated, fault = (of_each(x, agents) for x in self[2:5])
        return self._replace(terminated=terminated, truncated=truncated, fault=fault)

    def rows(self, agents: int) -> "StepEnd":
        """The same in rows (B·A, …)."""
        each = self.of_each(agents)._asdict().items()
        return self._replace(**{k: folded(x, agents) for k, x in each if x is not None})


class Step(NamedTuple):
    """One control step of B rows, an agent each: `StepEnd`, and what to act on next."""

    observation: Observation  # after the restarts
    end: Tensor  # (B, nc)
    reward: Tensor  # (B,)
    terminated: Tensor  # (B,) bool
    truncated: Tensor  # (B,) bool
    fault: Tensor  # (B,) bool

    def of_worlds(self, agents: int) -> "Step":
        """The same with reward, the mean of the agents, and flags of worlds (B / A,)."""
        reward = of_world(unfolded(self.reward, agents), agents)
        return Step(*self[:2], reward, *(x[::agents] for x in self[3:]))


def ended(step: StepEnd | Step) -> Tensor:
    """(B,) bool: the worlds that began a new episode, whatever ended the old one."""
    return step.terminated | step.truncated | step.fault


def is_valid(x: Tensor) -> Tensor:
    """(B, …, n) → (B,) bool: every entry is finite and at most LIMIT."""
    # The maximum of a row with NaN is NaN, which compares as false.
    return x.abs().flatten(1).amax(1) <= LIMIT


def fault_reasons(rows: Rows, end: Tensor, reward: Tensor) -> Tensor:
    """(B, 4) bool: why a step is a fault, in the order of `worst_step.REASONS`.

    Of the rows, `env/invalid` says that the observation or the action at the start of the step was
    not valid.
    """
    views, rewards = rows["env/invalid"] | ~is_valid(end), ~is_valid(reward[..., None])
    return torch.stack([rows["sim/fault"], rows["sim/overflow"], views, rewards], 1)


# Why: docs/decisions/faults.md
def quarantined(
    end: Tensor, reward: Tensor, failed: Tensor, timed_out: Tensor, fault: Tensor
) -> StepEnd:
    """The end of a step. In the worlds of fault (B,) bool it is zero, and ends no episode."""
    terminated = failed & ~fault
    # never both: a fall in the last step has no value behind it
    truncated = timed_out & ~terminated & ~fault
    reward = torch.where(beside(fault, reward), 0.0, reward)
    end = torch.where(beside(fault, end), 0.0, end)
    return StepEnd(end, reward, terminated, truncated, fault)
