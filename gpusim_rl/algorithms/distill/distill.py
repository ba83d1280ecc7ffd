"""Distillation: a student learns to act as a teacher does that observes more (arXiv:1011.0686)."""

from functools import partial

import torch
from torch import Tensor

from gpusim_rl.algorithms.distill.settings import Settings
from gpusim_rl.algorithms.distill.student import Student
from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.ppo import ppo
from gpusim_rl.algorithms.ppo.samples import draw_worlds
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import ENDS, Record, vector
from gpusim_rl.core.states import Live, shared
from gpusim_rl.core.streams import torch_threads


class Distill:
    """DAgger: the student visits states, the teacher says what it would do there.

    L = Σ valid · |π(o) - clamp(π*(s))|² / (nu Σ valid)
    β = share · max(0, 1 - iteration / share_iterations)
    """

    metrics = (
        Metric("imitation_loss", "loss/imitation", "squared error of the student's actions"),
        Metric("share", "loss/teacher_share", "share of worlds in which the teacher acts", ".2f"),
        Metric("bad", "train/bad_iterations", "bad iterations in a row", ".2g"),
    )

    def __init__(self, spec: Spec, settings: Settings):
        self.spec, self.cfg = spec, settings
        if "teacher" not in spec.given:
            raise ValueError("a distillation imitates a run's policy: name it with teacher=RUN")
        epochs, parts, rows = settings.update_epochs, settings.num_minibatches, spec.num_rows
        if rows % parts:
            raise ValueError(
                f"algo.num_minibatches={parts} does not divide num_envs × agents={rows}"
            )
        self.sums = torch.zeros(len(self.metrics), device=spec.device)
        self.loss, self.share, self.bad = self.sums
        self.share.copy_(self.teacher_share(spec.iteration))
        self.policy = make_policy(spec, settings, self.share)
        target = vector(spec.action_width)
        self.seen = {"obs": spec.views["actor"]} | self.policy.actor.views
        self.columns = self.seen | dict(target=target) | ENDS
        norm = settings.max_grad_norm
        self.optimizer = FlatAdam(self.policy.groups(), settings.learning_rate, norm)
        self.rates = {"learning_rate": self.optimizer.all_rates}
        self.rng, self.count = spec.rng(), epochs * parts
        self.next = torch.zeros(1, dtype=torch.int64, device=spec.device)
        self.order = self.next.new_zeros(self.count, rows // parts)
        parts = self.begin, self.minibatch, self.finish
        self._begin, self._minibatch, self._finish = map(spec.capture, parts)

    def update(self, record: Record) -> None:
        """All epochs over the rollout, then what changes between rollouts. In place."""
        with torch_threads(self.spec.threads):
            self.spec.timer.start("minibatches")
            self._begin(record)
            for _ in range(self.count):
                self._minibatch(record)
            self.spec.timer.start("normalizers")
            self._finish(record)

    @torch.no_grad()
    def begin(self, record: Record) -> None:
        """Draw the order of the worlds, and clear what quarantined steps hold. In place."""
        fault = record.fault
        for name in (*self.seen, "target"):
            mask = fault.view(*fault.shape, *[1] * len(self.columns[name].shape))
            record.column(name).masked_fill_(mask, 0)
        options = self.cfg.update_epochs, self.cfg.num_minibatches, self.spec.num_rows
        self.order.copy_(draw_worlds(self.rng, "distill/order", self.spec.iteration, *options))
        self.next.zero_()
        self.loss.zero_()

    def minibatch(self, record: Record) -> None:
        """One step of the optimizer on the next worlds, skipped if a number is bad. In place."""
        worlds = self.order.index_select(0, self.next)[0]
        views = {name: record.column(name).index_select(1, worlds) for name in self.seen}
        target, fault = (record.column(x).index_select(1, worlds) for x in ("target", "fault"))
        memory = {name: x.index_select(0, worlds) for name, x in record.memory.items()}
        begins = record.first_steps().index_select(1, worlds)
        valid = 1 - fault
        share = valid / self.spec.group.all_reduce(valid.sum()).clamp(min=1)
        error = (self.policy.unroll(views, memory, begins) - target).square().mean(-1)
        loss, optimizer = (error * share).sum(), self.optimizer
        optimizer.write(torch.autograd.grad(loss, list(optimizer.gradients)))
        self.spec.group.all_reduce(optimizer.grads)
        with torch.no_grad():
            loss = self.spec.group.all_reduce(loss)
            optimizer.clip(loss[None])
            self.loss.add_(torch.where(optimizer.bad > 0, 0.0, loss / self.count))
            optimizer.step()
            self.next.add_(1)

    @torch.no_grad()
    def finish(self, record: Record) -> None:
        """Add the rollout to the normalizer, and lower share and learning rate. In place."""
        valid, group = ~record.fault.flatten(), self.spec.group
        most_invalid = group.all_reduce(2 * (~valid).sum() - len(valid)) > 0
        bad = most_invalid | (self.optimizer.bad > 0)
        self.bad.copy_(torch.where(bad, self.bad + 1, 0.0))
        self.policy.actor.normalizer.update(record.obs.flatten(0, 1), valid, group)
        self.share.copy_(self.teacher_share(self.spec.iteration + 1))
        self.optimizer.all_rates.mul_(self.cfg.lr_decay)

    def teacher_share(self, iteration: Tensor) -> Tensor:
        """() β of an iteration."""
        return self.cfg.share * (1 - iteration / self.cfg.share_iterations).clamp(min=0)

    def measures(self) -> Tensor:
        """(len(metrics),) of the last update."""
        return self.sums.clone()

    def tensors(self) -> dict[str, Live]:
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        entries = {"sums": self.sums, "rate": self.optimizer.all_rates[0]}
        return networks | shared("adam/", self.optimizer.tensors()) | shared("distill/", entries)


def make_policy(spec: Spec, settings: Settings, share: Tensor | None = None) -> Student:
    """The student; its teacher acts in a `share` () of the worlds, for who learns."""
    guide = spec.given.get("teacher"), spec.clip, share
    return ppo.make_policy(spec, settings, partial(Student, *guide))
