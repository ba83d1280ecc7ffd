"""The (T, B, …) record of a rollout and the two halves of a step that fill it."""

import torch
from torch import Tensor

from gpusim_rl.env import Env
from gpusim_rl.policy import Policy


class Rollout:
    """T control steps of B worlds; allocated once, written in place, at a row that the device counts.

    `obs` (T, B, no), `critic` (T, B, nc) and `end` (T, B, nc) are views of the states before the action, and at the end of
    the step before any restart; `mean` and `action` (T, B, nu); `reward` (T, B); `terminated`, `truncated`, `fault`
    (T, B) bool.
    """

    def __init__(self, env: Env, policy: Policy, num_steps: int):
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: a rollout has at least one step")
        self.env, self.policy, self.num_steps = env, policy, num_steps
        no, nc, nu = env.sizes
        self._before, self._after = (
            torch.zeros(num_steps, env.num_envs, width, device=env.device) for width in (no + nc + 2 * nu, nc + 4)
        )
        self._t = torch.zeros(1, dtype=torch.int64, device=env.device)
        self.obs, self.critic, self.mean, self.action = self._before.split([no, nc, nu, nu], dim=2)
        self.end, rest = self._after.split([nc, 4], dim=2)
        self.reward, *self._flags = rest.unbind(2)

    @property
    def terminated(self) -> Tensor:
        return self._flags[0] != 0

    @property
    def truncated(self) -> Tensor:
        return self._flags[1] != 0

    @property
    def fault(self) -> Tensor:
        return self._flags[2] != 0

    def blank(self) -> None:
        """Zeros in place of whatever a quarantined step holds: not even times zero may it be multiplied. In place."""
        self._before.masked_fill_(self.fault[..., None], 0.0)

    @torch.no_grad()
    def act(self) -> None:
        """The part of a step before the physics: the stochastic policy chooses."""
        env, policy, views = self.env, self.policy, self.env.views
        mean = policy.act(views.obs)
        action = mean + policy.std * env.noise.normal("policy/action", mean.shape[1])
        self._before.index_copy_(0, self._t, torch.cat([*views, mean, action], dim=1)[None])
        env.act(action)

    @torch.no_grad()
    def settle(self) -> None:
        """The part after the physics."""
        end, *rest = self.env.settle()
        self._after.index_copy_(0, self._t, torch.cat([end, torch.stack(rest, 1)], dim=1)[None])
        self._t.add_(1).remainder_(self.num_steps)
