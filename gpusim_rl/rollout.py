"""The (T, B, …) record of a rollout and the loop that fills it."""

import torch

from gpusim_rl.env import Env
from gpusim_rl.maths import log_prob
from gpusim_rl.policy import Policy


class Rollout:
    """T control steps of B worlds; allocated once, written in place.

    `obs` (T, B, no), `critic` (T, B, nc) and `end` (T, B, nc) are views of the states before the action, and at the end of
    the step before any restart; `mean` and `action` (T, B, nu); `logp`, `reward` (T, B); `terminated`, `truncated`, `fault`
    (T, B) bool.
    """

    def __init__(self, env: Env, num_steps: int):
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: a rollout has at least one step")
        shape, device = (num_steps, env.num_envs), env.device
        no, nc, nu = env.views.obs.shape[1], env.views.critic.shape[1], env.action.shape[1]
        self.obs = torch.zeros(*shape, no, device=device)
        self.critic = torch.zeros(*shape, nc, device=device)
        self.end = torch.zeros(*shape, nc, device=device)
        self.mean = torch.zeros(*shape, nu, device=device)
        self.action = torch.zeros(*shape, nu, device=device)
        self.logp, self.reward = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.terminated, self.truncated, self.fault = (torch.zeros(shape, dtype=torch.bool, device=device) for _ in range(3))

    @torch.no_grad()
    def collect(self, env: Env, policy: Policy) -> None:
        """Act with the stochastic policy for T steps. In place."""
        std = policy.std
        for t in range(len(self.reward)):
            views = env.views
            mean = policy.actor(views.obs)
            action = mean + std * env.noise.normal("policy/action", mean.shape[1])
            for buffer, value in (
                (self.obs, views.obs),
                (self.critic, views.critic),
                (self.mean, mean),
                (self.action, action),
            ):
                buffer[t].copy_(value)
            step = env.step(action)
            for buffer, value in (
                (self.end, step.end),
                (self.reward, step.reward),
                (self.terminated, step.terminated),
                (self.truncated, step.truncated),
                (self.fault, step.fault),
            ):
                buffer[t].copy_(value)
        self.logp.copy_(log_prob(self.action, self.mean, std))
