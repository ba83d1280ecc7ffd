"""PPO's update beside the same as it is usually written: one torch operation after another.

    python -m benchmarks.reference_ppo [KEY=VALUE …]

The keys are those of `python -m benchmarks.levels`. Both update from one rollout, in turn,
`repeats` times after `warmup` iterations. The reference is the way of CleanRL and rsl_rl. Every
tensor is gathered for itself, and observations are normalized in each minibatch. The loss is
autograd through torch.distributions, with one gradient tensor for each parameter and torch's
default Adam. The host reads the KL to set the learning rate.
"""

import sys
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from benchmarks import program
from benchmarks.levels import make_training, measure_seconds
from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.core.errors import exit_with_error

Samples = tuple[Tensor, ...]  # obs, critic, action, mean, std, logp, advantage, target, value


class Plain:
    """`update()` changes the policy of a PPO as its own update does, quarantined samples aside."""

    def __init__(self, ppo: Iteration):
        self.ppo = ppo
        self.learner: Any = ppo.learner
        self.policy = policy = self.learner.policy
        self.groups = [*policy.actor.parameters(), policy.log_std], list(policy.critic.parameters())
        self.adam = torch.optim.Adam(
            [{"params": params} for params in self.groups],
            lr=self.learner.cfg.learning_rate,
            eps=1e-5,
        )

    def update(self) -> None:
        """All epochs over the rollout, then the normalizers. In place."""
        learner, policy = self.learner, self.policy
        # The host reads these numbers once. It waits for the device in each minibatch anyway.
        settings = {k: x for k, x in vars(learner.cfg).items() if isinstance(x, Tensor)}
        cfg = replace(learner.cfg, **{name: x.item() for name, x in settings.items()})
        samples = self.samples()
        learner.minibatches.shuffle(learner.rng, learner.spec.iteration)
        order = learner.minibatches.order
        for rows in order:
            self.minibatch(tuple(x[rows] for x in samples), cfg)
        everything = torch.ones(self.ppo.size, dtype=torch.bool, device=order.device)
        obs, critic, *_ = samples
        policy.actor.normalizer.update(obs, everything)
        policy.critic_normalizer.update(critic, everything)

    @torch.no_grad()
    def samples(self) -> Samples:
        """The columns of the rollout, each (T B, …)."""
        r: Any = self.ppo.source.record
        policy = self.policy
        value, end = (
            policy.critic(policy.critic_normalizer(obs)).squeeze(-1) for obs in (r.critic, r.end)
        )
        advantage = self.advantage(value, end)
        target = advantage + value
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        columns = r.obs, r.critic, r.action, r.mean, r.std, r.logp, advantage, target, value
        return tuple(x.flatten(0, 1) for x in columns)

    def minibatch(self, samples: Samples, cfg: Any) -> None:
        """One step of Adam. In place."""
        policy = self.policy
        obs, critic, action, mean, std, logp, advantage, target, value = samples
        new = Normal(policy.actor(obs), policy.std, validate_args=False)
        ratio = (new.log_prob(action).sum(-1) - logp).exp()
        surrogate = torch.min(
            advantage * ratio, advantage * ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)
        )
        guess = policy.critic(policy.critic_normalizer(critic)).squeeze(-1)
        near = value + (guess - value).clamp(-cfg.clip_value, cfg.clip_value)
        value_loss = 0.5 * torch.max((guess - target) ** 2, (near - target) ** 2)
        bonus = cfg.ent_coef * new.entropy().sum(-1).mean()
        loss = -surrogate.mean() + value_loss.mean() - bonus
        with torch.no_grad():
            old = Normal(mean, std, validate_args=False)
            self.adapt(kl_divergence(old, new).sum(-1).mean().item(), cfg)
        self.adam.zero_grad()
        loss.backward()
        for params in self.groups:
            nn.utils.clip_grad_norm_(params, cfg.max_grad_norm)
        self.adam.step()

    def adapt(self, kl: float, cfg: Any) -> None:
        """Set the actor's learning rate for a KL [nat]."""
        group, factor = self.adam.param_groups[0], 1.0
        if kl > 2 * cfg.target_kl:
            factor = 1 / cfg.lr_factor
        elif kl < cfg.target_kl / 2:
            factor = cfg.lr_factor
        group["lr"] = min(max(group["lr"] * factor, cfg.lr_min), cfg.lr_max)

    def advantage(self, value: Tensor, end: Tensor) -> Tensor:
        """GAE (T, B), a step at a time."""
        r: Any = self.ppo.source.record
        cfg = self.learner.cfg
        done, going = (r.terminated | r.truncated).float(), (~r.terminated).float()
        advantage, following = torch.zeros_like(value), torch.zeros_like(value[0])
        for t in reversed(range(len(value))):
            delta = r.reward[t] + cfg.gamma * going[t] * end[t] - value[t]
            following = delta + cfg.gamma * cfg.gae_lambda * (1 - done[t]) * following
            advantage[t] = following
        return advantage


def main(words: list[str]) -> None:
    """Measure both updates, print the ratio and write out=."""
    own, words = program.split_words(__doc__, words, repeats=5, warmup=10, out=None)
    training, cfg = make_training(words)
    algo = cfg["algo"]
    for key, known in {"name": "ppo", "symmetry": "none", "memory": "none"}.items():
        if algo[key] != known:
            exit_with_error(f"algo.{key}={algo[key]}: the reference has algo.{key}={known}")
    for _ in range(own.warmup):
        training.iteration()
    updates = {"ours": training.update, "plain": Plain(training).update}
    milliseconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(own.repeats):
        start = training.state()
        for name, update in updates.items():
            training.load(start, "the start of a rollout")
            training.collect()
            milliseconds[name].append(1e3 * measure_seconds(training.env.device, update)[0])
    ratios = [b / a for a, b in zip(*milliseconds.values(), strict=True)]
    lines = [
        f"{name}: {median(x):.4g} ms ({min(x):.4g} to {max(x):.4g})"
        for name, x in milliseconds.items()
    ]
    lines.append(f"plain/ours: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    results = {"task": cfg["task"]["name"], "milliseconds": milliseconds, "ratios": ratios}
    program.finish(program.make_console(), results, lines, own.out)


if __name__ == "__main__":
    main(sys.argv[1:])
