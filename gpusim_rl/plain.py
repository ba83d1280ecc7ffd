"""PPO's update as it is usually written, one torch operation after another: what `bench` measures the fused one against.

CleanRL's and rsl_rl's way on the same record: every tensor gathered for itself, views normalised in each minibatch,
torch.distributions, autograd through the whole loss, one gradient tensor a parameter, Adam as torch has it by default, and
the learning rate a number of the host's, which reads the KL for it.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from gpusim_rl.ppo import PPO


class Plain:
    """`update()` does to the policy of a PPO what its own does, quarantined samples aside; moments of Adam are its own."""

    def __init__(self, ppo: PPO):
        self.ppo, policy = ppo, ppo.policy
        self.groups = [*policy.actor.parameters(), policy.log_std], list(policy.critic.parameters())
        self.optimiser = torch.optim.Adam([{"params": params} for params in self.groups], lr=ppo.cfg.learning_rate, eps=1e-5)

    def update(self) -> None:
        """All epochs over the rollout; then the normalisers absorb it. In place."""
        ppo, r, policy = self.ppo, self.ppo.rollout, self.ppo.policy
        # read here, once: the minibatches of this way wait for the device anyway, and not for these numbers too
        cfg = replace(ppo.cfg, **{name: value.item() for name, value in ppo.moving.items()})
        with torch.no_grad():
            value, end = (policy.critic(policy.seer(view)).squeeze(-1) for view in (r.critic, r.end))
            advantage = self.advantage(value, end)
            target = advantage + value
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            old = Normal(r.mean, policy.std.clone(), validate_args=False)
            logp = old.log_prob(r.action).sum(-1)
        columns = r.obs, r.critic, r.action, r.mean, old.stddev, logp, advantage, target, value
        columns = [x.flatten(0, 1) for x in columns]
        order = ppo.shuffle()
        for rows in order:
            obs, critic, action, mean, std, logp, advantage, target, value = (x[rows] for x in columns)
            new = Normal(policy.actor(obs), policy.std, validate_args=False)
            ratio = (new.log_prob(action).sum(-1) - logp).exp()
            surrogate = torch.min(advantage * ratio, advantage * ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef))
            guess = policy.critic(policy.seer(critic)).squeeze(-1)
            near = value + (guess - value).clamp(-cfg.clip_value, cfg.clip_value)
            value_loss = 0.5 * torch.max((guess - target) ** 2, (near - target) ** 2)
            loss = -surrogate.mean() + value_loss.mean() - cfg.ent_coef * new.entropy().sum(-1).mean()
            with torch.no_grad():
                kl = kl_divergence(Normal(mean, std, validate_args=False), new).sum(-1).mean().item()
            factor = 1 / cfg.lr_factor if kl > 2 * cfg.target_kl else cfg.lr_factor if kl < cfg.target_kl / 2 else 1.0
            group = self.optimiser.param_groups[0]
            group["lr"] = min(max(group["lr"] * factor, cfg.lr_min), cfg.lr_max)
            self.optimiser.zero_grad()
            loss.backward()
            for params in self.groups:
                nn.utils.clip_grad_norm_(params, cfg.max_grad_norm)
            self.optimiser.step()
        everything = torch.ones(ppo.size, dtype=torch.bool, device=order.device)
        policy.actor.normaliser.absorb(columns[0], everything)
        policy.seer.absorb(columns[1], everything)

    def advantage(self, value: Tensor, end: Tensor) -> Tensor:
        """GAE (T, B), a step at a time."""
        r, cfg = self.ppo.rollout, self.ppo.cfg
        done, going = (r.terminated | r.truncated).float(), (~r.terminated).float()
        advantage, following = torch.zeros_like(value), torch.zeros_like(value[0])
        for t in reversed(range(len(value))):
            delta = r.reward[t] + cfg.gamma * going[t] * end[t] - value[t]
            following = delta + cfg.gamma * cfg.gae_lambda * (1 - done[t]) * following
            advantage[t] = following
        return advantage
