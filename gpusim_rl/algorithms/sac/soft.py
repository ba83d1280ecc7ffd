"""What learners share that draw from a ring and learn a squashed Gaussian with a temperature."""

import math
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.sac.settings import SoftSettings
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.ring import Ring
from gpusim_rl.core.states import Live, per_world, shared
from gpusim_rl.core.streams import as_array, torch_threads
from gpusim_rl.networks.squashed import SoftActorCritic

# `SoftLearner.sums`: since the last report
VALUE, CRITIC_LOSS, ENTROPY, SKIPPED, COUNT = range(5)
SCALE_FORGET_RATE = 0.02  # share of the scale of returns that an iteration forgets
LEAST_RETURN_SCALE = 0.3  # costs of a policy that is paid nothing yet are not magnified

S = TypeVar("S", bound=SoftSettings)


class SoftLearner(Generic[S]):
    """A policy and its critics, their optimizers, the temperature and the scale of returns.

    An iteration has `cycles` calls of `learn`, which a subclass defines. A window of its has
    `window` steps. The scale of returns divides rewards, so that the temperature α means the same
    for every task.

    Every part of an update is a function of tensors at fixed addresses, which CUDA can capture.
    """

    window: int
    cycles: int
    value_updates = 1  # of the critics in a cycle
    name: str  # begins those of its tensors in a checkpoint
    metrics = (
        Metric("value", "loss/value_mean", "value of the policy's actions", ".2f", "value"),
        Metric("critic_loss", "loss/critic", "critic loss", ".2g", "critic loss"),
        Metric("entropy", "loss/entropy", "entropy", ".2f", "entropy [nat]"),
        Metric("skipped", "loss/skipped_minibatches", "skipped minibatches", ".2g", "skipped"),
        Metric("alpha", "loss/alpha", "temperature", ".2g", "temperature"),
        Metric("scale", "loss/return_scale", "scale of returns", ".2g", "scale"),
        Metric("learning_rate", "loss/learning_rate", "learning rate", ".1e", "learning rate"),
        Metric("stored", "train/stored_steps", "steps of each world in the ring", ".0f"),
        Metric("bad", "train/bad_iterations", "bad iterations in a row", ".2g"),
    )

    def __init__(self, spec: Spec, settings: S, policy: SoftActorCritic):
        self.spec, self.group = spec, spec.group
        self.cfg = cfg = settings
        device, nu = spec.device, spec.action_width
        self.draws = cfg.batch_size // (spec.num_rows * self.group.size)  # windows of each world
        if cfg.tf32 and device.type != "cpu":
            torch.set_float32_matmul_precision("high")
        self.policy = policy
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(cfg.alpha), device=device))
        critics = {"critic": [*policy.critic.parameters()]}
        actor = {"actor": [*policy.actor.parameters()], "temperature": [self.log_alpha]}
        rates = torch.tensor(2 * [cfg.learning_rate] + [cfg.alpha_rate], device=device)
        self.rates = {"learning_rate": rates[:2], "alpha_rate": rates[2:]}
        self.critics = FlatAdam(critics, rates[:1], cfg.max_grad_norm)
        self.actor = FlatAdam(actor, rates[1:], cfg.max_grad_norm)
        self.target = self.critics.target("critic", [*policy.target.parameters()])
        self.rng = spec.rng()
        zeros, ones = partial(torch.zeros, device=device), partial(torch.ones, device=device)
        self.updates, self.stored = (zeros((), dtype=torch.int64) for _ in range(2))
        # whether the ring holds the samples that updates wait for
        self.ready = zeros((), dtype=torch.bool)
        self.ones, self.scale, self.bad = ones(self.draws), ones(()), zeros(())
        # discounted sums so far; their mean, mean absolute deviation and weight
        self.running, self.returns = zeros(spec.num_rows), zeros(3)
        self.sums, self.loss = zeros(5), zeros(1)
        self.skipped = zeros(())  # cycles of this iteration
        self.target_std = as_array(cfg.target_std, device)[0]
        self.entropy_of_width = nu * 0.5 * math.log(2 * math.pi * math.e)
        self._add_steps, self._learn = spec.capture(self.add_steps), spec.capture(self.learn)

    def update(self, ring: Ring) -> None:
        """The newest steps to normalizers and scale, then all updates. In place."""
        start = self.spec.timer.start
        with torch_threads(self.spec.threads):
            start("normalizers")
            self._add_steps(ring)
            self.prepare(ring)
            start("minibatches")
            for _ in range(self.cycles):
                self._learn(ring)

    def prepare(self, ring: Ring) -> None:
        """What comes before the cycles of an update; nothing here. In place."""

    @torch.no_grad()
    def add_steps(self, ring: Ring) -> None:
        """Add the newest steps to the normalizers and to the scale. In place."""
        written, worlds = ring.written, self.spec.num_rows * self.group.size
        self.stored.copy_(written.clamp(max=len(ring)))
        self.ready.copy_((written * worlds >= self.cfg.warmup) & (written > self.window))
        new = ring.newest(self.spec.num_steps)
        fault = new.fault
        views = [x.flatten(0, 1) for x in (new.obs, new.critic)]
        self.policy.update_normalizers(views, ~fault.flatten(), self.group)
        keep = 1.0 - (fault | new.terminated | new.truncated).float()
        rewards = torch.where(fault, 0.0, new.reward.nan_to_num(0.0, 0.0, 0.0))
        values: list[Tensor] = []
        for reward, goes_on in zip(rewards, keep, strict=True):
            self.running.mul_(self.cfg.gamma).add_(reward)
            values.append(self.running.clone())
            self.running.mul_(goes_on)
        self.measure_returns(torch.stack(values))
        most_invalid = self.group.all_reduce(2 * fault.sum() - fault.numel()) > 0
        most_skipped = 2 * self.skipped > self.cycles  # of the iteration before
        self.bad.copy_(torch.where(most_invalid | most_skipped, self.bad + 1, 0.0))
        self.skipped.zero_()

    def measure_returns(self, values: Tensor) -> None:
        """Let the scale of returns follow discounted sums (T, B). In place."""
        # their mean absolute deviation, which few large penalties hardly change
        n, (mean, _, weight) = values.numel() * self.group.size, self.returns
        weight.mul_(1 - SCALE_FORGET_RATE).add_(n)
        share = n / weight
        mean.lerp_(self.group.all_reduce(values.sum()) / n, share)
        deviation = self.group.all_reduce((values - mean).abs().sum()) / n
        self.returns[1].lerp_(deviation, share)
        self.scale.copy_(self.returns[1].clamp(min=LEAST_RETURN_SCALE))

    def learn(self, ring: Ring) -> None:
        """One cycle of updates. In place."""
        raise NotImplementedError

    def step(self, optimizer: FlatAdam, loss: Tensor, ready: Tensor | None = None) -> None:
        """One step of an optimizer, none unless `ready`: before the warm-up's end. In place."""
        optimizer.write(torch.autograd.grad(loss, [*optimizer.gradients]))
        self.group.all_reduce(optimizer.grads)
        with torch.no_grad():
            self.loss.copy_(loss.detach().view(1))
            self.group.all_reduce(self.loss)
            # a loss that is no number is skipped by the kernels that clip
            ready = self.ready if ready is None else ready
            optimizer.clip(torch.where(ready, self.loss, torch.nan))
        optimizer.step()

    def measures(self) -> Tensor:
        """(len(metrics),) means since the last report, whose sums begin anew."""
        sums, updates = self.sums, self.sums[COUNT].clamp(min=1)
        means = torch.stack([sums[VALUE], sums[CRITIC_LOSS] / self.value_updates, sums[ENTROPY]])
        now = [self.log_alpha.detach()[0].exp(), self.scale, self.critics.rates["critic"]]
        values = torch.stack([*(means / updates), sums[SKIPPED], *now, self.stored, self.bad])
        sums.zero_()
        return values

    def temperature_loss(self, entropy: Tensor) -> Tensor:
        """That of α, of this process's part of the policy's mean entropy ()."""
        target = self.entropy_of_width + self.policy.nu * self.target_std.log()
        return self.log_alpha.exp().sum() * (entropy - target / self.group.size)

    def tensors(self) -> dict[str, Live]:
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        rates = self.critics.rates | self.actor.rates
        entries = {f"{name}_rate": x for name, x in rates.items()}
        entries |= {"log_alpha": self.log_alpha, "updates": self.updates, "sums": self.sums}
        entries |= {"returns": self.returns, "scale": self.scale, "bad": self.bad}
        entries |= {"skipped": self.skipped}
        adam = self.critics.tensors() | self.actor.tensors()
        tensors = networks | shared("adam/", adam) | shared(f"{self.name}/", entries)
        return tensors | per_world(f"{self.name}/", {"running": self.running})
