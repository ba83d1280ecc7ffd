"""Proximal policy optimization (arXiv:1707.06347), as robot learners expect it."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.ppo.loss import STATS, loss
from gpusim_rl.algorithms.ppo.loss_kernels import FusedLoss, adapt, conclude_update
from gpusim_rl.algorithms.ppo.samples import Minibatches, make_samples, sample_columns
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.core.memory import check_free
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import ENDS, NUMBER, Columns, Record, row_bytes, widths
from gpusim_rl.core.states import Live, shared
from gpusim_rl.core.streams import as_array, launch, torch_threads, warp_stream
from gpusim_rl.networks.distributions import Gaussian
from gpusim_rl.networks.policy import ActorCritic, Memory

# `PPO.skips`: skipped minibatches since the last report and in this iteration; bad iterations.
SKIPPED, SKIPPED_NOW, BAD = range(3)

P = TypeVar("P", bound=ActorCritic)


class PPO:
    """Policy and optimizer: returns of a rollout, epochs of minibatches, then the normalizers.

    Every part of an update is a function of tensors at fixed addresses, so that CUDA can capture
    it: one graph for the returns, for a minibatch and for the normalizers.

    A subclass with another `loss` computes it in torch operations: docs/change-the-algorithm.md.
    ValueError if the kernels are asked for, and the loss is not the one that they compute.
    """

    loss = staticmethod(loss)
    metrics = (
        Metric("policy_loss", "loss/policy", "policy loss"),
        Metric("value_loss", "loss/value", "value loss"),
        Metric("entropy", "loss/entropy", "entropy"),
        Metric("approx_kl", "loss/approx_kl", "KL divergence", ".4f", "KL [nat]"),
        Metric("clipped", "loss/clip_fraction", "clipped share"),
        Metric("actor_norm", "loss/actor_grad_norm", "gradient norm of the actor"),
        Metric("critic_norm", "loss/critic_grad_norm", "gradient norm of the critic"),
        Metric("learning_rate", "loss/learning_rate", "learning rate", ".1e", "learning rate"),
        Metric("std", "loss/action_std", "standard deviation of actions", ".2f", "action std"),
        Metric("skipped", "loss/skipped_minibatches", "skipped minibatches", ".2g", "skipped"),
        Metric("bad", "train/bad_iterations", "bad iterations in a row", ".2g"),
    )

    def __init__(self, spec: Spec, settings: Settings):
        self.spec, self.group = spec, spec.group
        self.cfg = cfg = settings
        if cfg.fused and type(self).loss is not PPO.loss:
            raise ValueError(
                f"algo.fused=true: its kernels compute the loss of PPO, and {type(self).__name__} "
                "has another: set algo.fused=false"
            )
        if cfg.tf32 and spec.device.type != "cpu":
            torch.set_float32_matmul_precision("high")
        # Why: docs/decisions/ppo.md
        auto = "proximal" if spec.older_policy else "none"
        self.correction = auto if cfg.correction == "auto" else cfg.correction
        self.policy = policy = make_policy(spec, cfg)
        ends = {"end": policy.views["critic"], "reward": NUMBER} | ENDS
        self.columns = policy.views | policy.stored | ends
        check_memory(spec, cfg, self.columns, policy)
        self.optimizer = FlatAdam(policy.groups(), cfg.learning_rate, cfg.max_grad_norm)
        self.rates = {"learning_rate": self.optimizer.all_rates}
        self.stats, self.skips = (torch.zeros(n, device=spec.device) for n in (len(STATS), 3))
        self.rng = spec.rng()
        shape, first = (spec.num_steps, spec.num_rows), policy.blank_memory(spec.num_rows)
        self.minibatches = Minibatches(shape, policy, cfg, first)
        self.loss_args: dict[str, Any] = {"copies": self.minibatches.copies, "group": self.group}
        self.fused = self._make_fused_loss() if cfg.fused and policy.family is Gaussian else None
        self.losses = self.fused.stats if self.fused else self.stats[:-2].clone()
        names = "target_kl", "lr_min", "lr_max", "lr_factor", "max_std"
        self.numbers = {name: as_array(getattr(cfg, name), spec.device) for name in names}
        self.valid = torch.zeros(1, dtype=torch.int64, device=spec.device)
        self._adapt, self._conclude_update = self._record_launches()
        parts = self.pack_samples, self.minibatch, self.update_normalizers
        self._pack_samples, self._minibatch, self._update_normalizers = map(spec.capture, parts)

    def _make_fused_loss(self) -> FusedLoss:
        batch, grad = self.minibatches.batch, self.optimizer.gradients[self.policy.log_std]
        places = {"grad_log_std": grad, "share": self.optimizer.share}
        return FusedLoss(self.policy, batch, self.cfg, **places, **self.loss_args)

    def _record_launches(self) -> tuple[Any, Any]:
        """The launch that follows each minibatch's gradients, and the one that ends each update."""
        optimizer, log_std = self.optimizer, self.policy.log_std.detach()
        *numbers, max_std = self.numbers.values()
        inputs = [self.losses, optimizer.norms, *numbers, float(self.minibatches.count)]
        outputs = [*optimizer.counting, self.stats, self.skips[:BAD]]
        after = launch(adapt, 1, inputs, outputs, record=True)
        samples = self.group.size * self.spec.num_steps * self.spec.num_rows
        inputs = [self.valid, samples, float(self.minibatches.count), max_std]
        inputs += [float(self.policy.min_std)]
        outputs = [log_std, self.skips]
        return after, launch(conclude_update, len(log_std), inputs, outputs, record=True)

    def update(self, record: Record) -> None:
        """Returns, all epochs over the rollout, then the normalizers. In place."""
        start = self.spec.timer.start
        with torch_threads(self.spec.threads):
            start("returns")
            self._pack_samples(record)
            start("minibatches")
            for _ in range(self.minibatches.count):
                self._minibatch()
            start("normalizers")
            # last: all epochs see the normalizers of the samples
            self._update_normalizers(record)

    @torch.no_grad()
    def pack_samples(self, rollout: Record) -> None:
        """Write the samples that the minibatches are taken from, in a new order. In place."""
        samples = make_samples(
            *(rollout, self.policy, self.cfg),
            horizon=self.spec.horizon,
            correction=self.correction,
            group=self.group,
        )
        self.minibatches.shuffle(self.rng, self.spec.iteration)
        self.minibatches.fill(samples, rollout.memory)
        self.stats.zero_()
        self.skips[SKIPPED_NOW].zero_()

    def minibatch(self) -> None:
        """One step on the next minibatch, skipped if loss or gradient is not finite. In place."""
        self.minibatches.take()
        self.gradients()
        self.optimizer.clip(self.losses)
        self._adapt.launch(warp_stream(self.spec.device))
        self.optimizer.move()

    def gradients(self) -> None:
        """Write `losses` (5,) of the minibatch, and its gradients / `optimizer.share`. In place."""
        policy, optimizer = self.policy, self.optimizer
        batch, memory = self.minibatches.batch, self.minibatches.memory
        if self.fused:
            self._fused_gradients(self.fused, batch, memory)
        else:
            objective, losses = self.loss(policy, batch, self.cfg, memory, **self.loss_args)
            self.losses.copy_(losses)
            optimizer.write(torch.autograd.grad(objective, list(optimizer.gradients)))
            policy.symmetrize(optimizer.gradients)
        self.group.all_reduce(optimizer.grads)

    def _fused_gradients(self, fused: FusedLoss, batch: Record, memory: Memory) -> None:
        """Gradients by the networks' outputs from the kernels, by the weights from autograd."""
        mean, value = self.policy.outputs(batch, memory)
        fused(mean, value)
        # The kernels have written the gradient of the first parameter, log_std.
        _, *params = self.optimizer.gradients
        slopes = fused.grad_mean, fused.grad_value
        self.optimizer.write(torch.autograd.grad((mean, value), params, slopes), first=1)

    def update_normalizers(self, rollout: Record) -> None:
        """Add the rollout to the normalizers. In place.

        An iteration is bad if most minibatches were skipped or most samples were quarantined.
        """
        r, group = rollout, self.group
        valid = r.column("fault").flatten() == 0
        torch.sum(valid, 0, keepdim=True, out=self.valid)
        group.all_reduce(self.valid)
        self.policy.update_normalizers([x.flatten(0, 1) for x in (r.obs, r.critic)], valid, group)
        self._conclude_update.launch(warp_stream(self.spec.device))

    def measures(self) -> Tensor:
        """(len(metrics),) means over the last update; the count of skipped ones begins anew."""
        rate, std = self.optimizer.rates["actor"], self.policy.std.detach().mean()
        numbers = torch.stack([rate, std, self.skips[SKIPPED], self.skips[BAD]])
        values = torch.cat([self.stats, numbers])
        self.skips[SKIPPED].zero_()
        return values

    def tensors(self) -> dict[str, Live]:
        sums = {"stats": self.stats, "skip_sums": self.skips}
        rates = {f"{name}_rate": rate for name, rate in self.optimizer.rates.items()}
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        return networks | shared("adam/", self.optimizer.tensors()) | shared("ppo/", sums | rates)


def make_policy(spec: Spec, cfg: Any, kind: Callable[..., P] = ActorCritic) -> P:
    """The networks that settings describe; ValueError if they cannot be as symmetric as asked."""
    symmetry, mirrors = spec.choose_symmetry(
        cfg.symmetry, cfg.hidden, cfg.memory != "none" or bool(cfg.encoders)
    )
    shapes = spec.views, spec.action_width
    made = kind(*shapes, cfg, symmetry=symmetry, mirrors=mirrors, seed=spec.seed)
    return made.to(spec.device)


def check_memory(spec: Spec, cfg: Settings, columns: Columns, policy: ActorCritic) -> None:
    """OutOfMemory unless a rollout and its update fit: record, samples and activations."""
    remembered = sum(x.numel() for x in policy.blank_memory(1).values())
    samples = 12 * widths(sample_columns(policy))[torch.float32]  # two copies, for a while
    order = 8 * cfg.update_epochs
    images = 1 + (cfg.symmetry == "augment")
    # of a gated recurrent unit: its gates, their sums and its memory
    activations = 16 * images * sum(cfg.hidden) + 32 * remembered
    size = row_bytes(columns) + samples + order + activations / cfg.num_minibatches
    what = f"{spec.num_rows} rows × num_steps={spec.num_steps}"
    what = f"{what}, with algo.update_epochs={cfg.update_epochs},"
    check_free(what, spec.num_rows * spec.num_steps * size, spec.device)
