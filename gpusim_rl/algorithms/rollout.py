"""The (T, B, …) record of a rollout and the two halves of a step that fill it."""

import torch
from torch import Tensor

from gpusim_rl.envs.env import Env
from gpusim_rl.networks.actor_critic import Policy


class Rollout:
    """T control steps of B worlds. Allocated once, written in place; the device counts the step.

    Attributes:
        obs: (T, B, no) the actor's observation before the action.
        critic: (T, B, nc) the critic's observation before the action.
        mean, action: (T, B, nu).
        end: (T, B, nc) the critic's observation at the end of the step, before any restart.
        reward: (T, B).
        terminated, truncated, fault: (T, B) bool.
    """

    def __init__(self, env: Env, policy: Policy, num_steps: int):
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: a rollout has at least one step")
        self.env, self.policy, self.num_steps = env, policy, num_steps
        no, nc, nu = env.dims
        before, after = [no, nc, nu, nu], [nc, 1, 1, 1, 1]
        self._before, self._after = (
            torch.zeros(num_steps, env.num_envs, sum(widths), device=env.device)
            for widths in (before, after)
        )
        self._t = torch.zeros(1, dtype=torch.int64, device=env.device)
        self.obs, self.critic, self.mean, self.action = self._before.split(before, dim=2)
        self.end, *rest = self._after.split(after, dim=2)
        self.reward, self._terminated, self._truncated, self._fault = (x.squeeze(2) for x in rest)

    @property
    def terminated(self) -> Tensor:
        return self._terminated != 0

    @property
    def truncated(self) -> Tensor:
        return self._truncated != 0

    @property
    def fault(self) -> Tensor:
        return self._fault != 0

    def clear_faults(self) -> None:
        """Write zeros where a step was quarantined: NaN times zero is NaN. In place."""
        self._before.masked_fill_(self.fault[..., None], 0.0)

    @torch.no_grad()
    def act(self) -> None:
        """The part of a step before the physics: sample an action from the policy."""
        env, policy, observation = self.env, self.policy, self.env.observation
        mean = policy.act(observation.actor)
        action = mean + policy.std * env.rng.normal("policy/action", mean.shape[1])
        self._before.index_copy_(0, self._t, torch.cat([*observation, mean, action], dim=1)[None])
        env.act(action)

    @torch.no_grad()
    def settle(self) -> None:
        """The part after the physics."""
        end, *rest = self.env.settle()
        self._after.index_copy_(0, self._t, torch.cat([end, torch.stack(rest, 1)], dim=1)[None])
        self._t.add_(1).remainder_(self.num_steps)
