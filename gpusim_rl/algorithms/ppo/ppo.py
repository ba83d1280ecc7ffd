"""Proximal policy optimization (arXiv:1707.06347), as robot learners expect it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.ppo.gradients import autograd_gradients, fused_gradients
from gpusim_rl.algorithms.ppo.loss import APPROX_KL, STATS
from gpusim_rl.algorithms.ppo.loss_kernels import FusedLoss
from gpusim_rl.algorithms.ppo.minibatches import Minibatches
from gpusim_rl.algorithms.ppo.samples import make_samples
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.core.distributed import ProcessGroup
from gpusim_rl.core.graphs import capture
from gpusim_rl.core.record import Record
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Live, shared
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.networks.distributions import Gaussian
from gpusim_rl.networks.policy import ActorCritic

# `PPO.skips`: skipped minibatches since the last report and in this iteration; bad iterations.
SKIPPED, SKIPPED_NOW, BAD = range(3)


class PPO:
    """Policy and optimizer: returns of a rollout, then epochs of minibatches.

    Every part of an update is a function of tensors at fixed addresses, so that CUDA can capture
    it. Graphs: one for the returns, for a minibatch and the normalizers.

    Args:
        policy: the policy.
        rollout: (T, B, …) with the columns of `step_widths`.
        first: the policy's memory before the rollout.
        cfg: the numbers; those of `numbers` are written by a curriculum.
        horizon: of an episode, in control steps.
        rng: of the order of samples.
        captured: capture each part.
        threads: of torch in an update on the CPU: rounding depends on it. None or 0: those of the
            process.
    """

    metrics = (*STATS, "learning_rate", "std", "skipped", "bad")

    def __init__(
        self,
        policy: ActorCritic,
        rollout: Record,
        first: dict[str, Tensor],
        cfg: Settings,
        *,
        numbers: dict[str, Tensor],
        horizon: int,
        rng: Rng,
        group: ProcessGroup,
        captured: bool,
        threads: int | None = None,
    ):
        self.policy, self.rollout, self.first, self.numbers = policy, rollout, first, numbers
        self.horizon, self.rng, self.group, self.threads = horizon, rng, group, threads
        self.cfg = cfg = replace(cfg, **numbers)  # tensors in place of numbers
        device = rollout.rows.device
        self.optimizer = FlatAdam(policy.groups(), cfg.learning_rate)
        self.rates = list(self.optimizer.rates.values())
        self.iteration_count = torch.zeros((), dtype=torch.int64, device=device)
        self.stats, self.skips = (torch.zeros(n, device=device) for n in (len(STATS), 3))
        self.minibatches = Minibatches(rollout, policy, cfg, first)
        self.loss_args = {"copies": self.minibatches.copies, "group": group}
        self.fused = self._make_fused_loss() if cfg.fused and policy.family is Gaussian else None
        on = partial(capture, device=device, on=captured)
        self._pack_samples, self._minibatch = on(self.pack_samples), on(self.minibatch)
        self._update_normalizers = on(self.update_normalizers)

    def _make_fused_loss(self) -> FusedLoss:
        """The kernels of the current minibatch's loss."""
        batch, grad = self.minibatches.batch, self.optimizer.gradients[self.policy.log_std]
        return FusedLoss(self.policy, batch, self.cfg, grad_log_std=grad, **self.loss_args)

    def update(self, mark: Callable[[str], None]) -> None:
        """Returns, all epochs over the rollout, then the normalizers. In place."""
        with torch_threads(self.threads or 0):
            mark("returns")
            self._pack_samples()
            mark("minibatches")
            for _ in range(self.minibatches.count):
                self._minibatch()
            mark("normalizers")
            self._update_normalizers()
            mark("")

    @torch.no_grad()
    def pack_samples(self) -> None:
        """Write the samples that the minibatches are taken from, in a new order. In place."""
        given = self.rollout, self.policy, self.cfg, self.first
        samples = make_samples(*given, horizon=self.horizon, group=self.group)
        order = self.minibatches.shuffle(self.rng, self.iteration_count)
        self.minibatches.fill(samples, order)
        self.stats.zero_()
        self.skips[SKIPPED_NOW].zero_()

    def minibatch(self) -> None:
        """One step of the optimizer on the next minibatch. In place.

        If the loss or a gradient is not finite, the minibatch is skipped and counted.
        """
        optimizer = self.optimizer
        self.minibatches.take()
        stats = self.gradients()
        norms = optimizer.clip(self.cfg.max_grad_norm, stats)
        skip = optimizer.bad.bool()
        self.adapt_learning_rate(stats[APPROX_KL], skip)
        optimizer.step()
        mean = torch.cat([stats, norms]) / self.minibatches.count
        self.stats += torch.where(skip, 0.0, mean)
        self.skips[:BAD] += optimizer.bad

    def gradients(self) -> Tensor:
        """Write the gradients of the minibatch's loss. Returns its statistics (5,). In place."""
        policy, optimizer, taken = self.policy, self.optimizer, self.minibatches
        given = policy, optimizer, taken.batch, self.cfg, taken.memory
        if self.fused:
            stats = fused_gradients(self.fused, *given)
        else:
            stats = autograd_gradients(*given, **self.loss_args)
        policy.symmetrize(optimizer.gradients)
        return stats

    def adapt_learning_rate(self, kl: Tensor, skip: Tensor) -> None:
        """Shrink the actor's learning rate where the KL () is large, grow it where it is small."""
        cfg = self.cfg
        grow = torch.where(kl < cfg.target_kl / 2, cfg.lr_factor, 1.0)
        factor = torch.where(kl > 2 * cfg.target_kl, 1 / cfg.lr_factor, grow)
        rate = self.optimizer.rates["actor"]
        rate.mul_(torch.where(skip, 1.0, factor)).clamp_(cfg.lr_min, cfg.lr_max)

    def update_normalizers(self) -> None:
        """Add the rollout to the normalizers, and count the iteration. In place.

        An iteration is bad if most minibatches were skipped or most samples were quarantined.
        """
        r, policy, group = self.rollout, self.policy, self.group
        valid = ~r.fault.flatten()
        most_skipped = 2 * self.skips[SKIPPED_NOW] > self.minibatches.count
        most_invalid = group.all_reduce(2 * (~valid).sum() - len(valid)) > 0
        bad = most_skipped | most_invalid
        self.skips[BAD].copy_(torch.where(bad, self.skips[BAD] + 1, 0.0))
        policy.update_normalizers([x.flatten(0, 1) for x in (r.obs, r.critic)], valid, group)
        self.iteration_count += 1

    def measures(self) -> Tensor:
        """(len(metrics),) means since they were cleared."""
        own = [self.optimizer.rates["actor"], self.policy.std.detach().mean()]
        own += [self.skips[SKIPPED], self.skips[BAD]]
        return torch.cat([self.stats, torch.stack(own)])

    def clear_measures(self) -> None:
        """Begin new means. In place."""
        self.skips[SKIPPED].zero_()

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        optimizer, own = self.optimizer, {"stats": self.stats, "skips": self.skips}
        own |= {f"{name}_rate": rate for name, rate in optimizer.rates.items()}
        own["iteration"] = self.iteration_count
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        return networks | shared("adam/", optimizer.tensors()) | shared("ppo/", own)
