"""Proximal policy optimization (arXiv:1707.06347), as robot learners expect it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gpusim_rl.algorithms.collector import Collector, step_widths
from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.ppo.gradients import autograd_gradients, fused_gradients
from gpusim_rl.algorithms.ppo.loss import APPROX_KL, STATS
from gpusim_rl.algorithms.ppo.loss_kernels import FusedLoss
from gpusim_rl.algorithms.ppo.minibatches import Minibatches
from gpusim_rl.algorithms.ppo.report import report
from gpusim_rl.algorithms.ppo.samples import make_samples
from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.core.graphs import capture
from gpusim_rl.core.record import Record
from gpusim_rl.core.states import Live, check_layout, copy_state, load_state, shared, state_layout
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.schedule import Curriculum
from gpusim_rl.networks.actor_critic import Policy

# `PPO.skips`: skipped minibatches since the last report and in this iteration; bad iterations.
SKIPPED, SKIPPED_NOW, BAD = range(3)


class PPO:
    """Policy, optimizer and one training iteration: rollout → returns → update.

    Every part of an iteration is a function of tensors at fixed addresses, so that CUDA can capture
    it. Graphs: three for a control step, one for the returns, for a minibatch and the normalizers.

    Args:
        env: the environment; policy: on env's device.
        num_steps: T of a rollout.
        cfg: the numbers.
        graph: "parts" captures each part, "whole" an iteration in one graph, "off" nothing. The
            physics of a Sim that is not capturable stays outside.
        schedule: numbers that change from iteration to iteration.
        threads: of torch in an update on the CPU: rounding depends on it. None or 0: those of the
            process.
    """

    def __init__(
        self,
        env: Env,
        policy: Policy,
        *,
        num_steps: int,
        cfg: Settings,
        graph: str,
        schedule: Curriculum | None = None,
        threads: int | None = None,
    ):
        if graph not in ("parts", "whole", "off"):
            raise ValueError(f"graph={graph!r}: choose one of parts, whole, off")
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: a rollout has at least one step")
        self.env, self.policy, self.schedule = env, policy, schedule or Curriculum()
        self.group, self.graph, self.threads = env.group, graph, threads
        new = partial(torch.tensor, dtype=torch.float32, device=env.device)
        self.scheduled = self.schedule.prepare(cfg, new)
        self.cfg = cfg = replace(cfg, **self.scheduled)  # tensors in place of numbers
        shape = num_steps, env.num_envs
        self.rollout = Record.zeros(step_widths(env, policy), *shape, device=env.device)
        self.collector = Collector(env, policy, self.rollout, graph=graph)
        self.phases = self.collector.phases
        self.size = num_steps * env.num_envs
        self.optimizer = FlatAdam(policy, cfg.learning_rate)
        self.iteration_count = torch.zeros((), dtype=torch.int64, device=env.device)
        self.stats, self.skips = (torch.zeros(n, device=env.device) for n in (len(STATS), 3))
        self.minibatches = Minibatches(shape, policy, cfg, self.collector.first)
        self.loss_args = {"copies": self.minibatches.copies, "group": self.group}
        self.fused = self._make_fused_loss() if cfg.fused else None
        self.iterations = 0  # the same as iteration_count, known to the host
        self.logged = 0  # iterations at the last report
        self._capture()

    def _make_fused_loss(self) -> FusedLoss:
        """The kernels of the current minibatch's loss."""
        batch, grad = self.minibatches.batch, self.optimizer.log_std_grad
        return FusedLoss(self.policy, batch, self.cfg, grad_log_std=grad, **self.loss_args)

    def _capture(self) -> None:
        """Wrap the parts of an update for capture, as `graph` says; or the whole iteration."""
        whole = self.graph == "whole" and self.env.sim.capturable
        on = partial(capture, device=self.env.device, on=self.graph != "off" and not whole)
        self._pack_samples, self._minibatch = on(self.pack_samples), on(self.minibatch)
        self._update_normalizers = on(self.update_normalizers)
        self._collect_and_update = capture(self.collect_and_update, self.env.device, on=whole)

    def iteration(self) -> None:
        """Collect a rollout and learn from it. Nothing here reads a tensor on the host."""
        self.schedule.write(self, self.iterations)
        self.phases.mark("iteration" if self.graph == "whole" else "")
        self._collect_and_update()
        self.phases.mark("")
        self.iterations += 1

    def scheduled_number(self, key: str) -> Tensor:
        """The live number of a configuration key, which a curriculum writes: ours or the Env's."""
        return (
            self.scheduled[key[5:]] if key.startswith("algo.") else self.env.scheduled_number(key)
        )

    def collect_and_update(self) -> None:
        """One iteration. In place."""
        self.collector.collect()
        self.update()

    def update(self) -> None:
        """Returns, all epochs over the rollout, then the normalizers. In place."""
        with torch_threads(self.threads or 0):
            self.phases.mark("returns")
            self._pack_samples()
            self.phases.mark("minibatches")
            for _ in range(self.minibatches.count):
                self._minibatch()
            self.phases.mark("normalizers")
            self._update_normalizers()
            self.phases.mark("")

    @torch.no_grad()
    def pack_samples(self) -> None:
        """Write the samples that the minibatches are taken from, in a new order. In place."""
        horizon = self.env.task.horizon
        first = self.collector.first
        samples = make_samples(
            self.rollout, self.policy, self.cfg, first, horizon=horizon, group=self.group
        )
        order = self.minibatches.shuffle(self.env.rng, self.iteration_count)
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
        policy.symmetrize_gradient(optimizer.log_std_grad)
        return stats

    def adapt_learning_rate(self, kl: Tensor, skip: Tensor) -> None:
        """Shrink the actor's learning rate where the KL () is large, grow it where it is small."""
        cfg = self.cfg
        grow = torch.where(kl < cfg.target_kl / 2, cfg.lr_factor, 1.0)
        factor = torch.where(kl > 2 * cfg.target_kl, 1 / cfg.lr_factor, grow)
        rate = self.optimizer.actor_rate
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
        policy.actor.normalizer.update(r.obs.flatten(0, 1), valid, group)
        policy.critic_normalizer.update(r.critic.flatten(0, 1), valid, group)
        self.iteration_count += 1

    def report(self) -> Callable[[], dict[str, float]]:
        """Begin to read the means since the last report.

        The function returned gives them. It waits for the device to have computed them, and for no
        later work.
        """
        own = [self.optimizer.actor_rate, self.policy.std.detach().mean()]
        own += [self.skips[SKIPPED], self.skips[BAD]]
        scheduled = self.schedule.numbers(self)
        values = torch.cat([self.stats, torch.stack([*own, *scheduled.values()])])
        steps = self.group.size * (self.iterations - self.logged) * self.size
        read = report(self.env, values, [*scheduled], self.phases.take(), steps)
        self.logged = self.iterations
        self.skips[SKIPPED].zero_()
        return read

    def metrics(self) -> dict[str, float]:
        """Means since the last report, at once."""
        return self.report()()

    def slow_down(self, factor: float) -> None:
        """Multiply the learning rates. In place."""
        for rate in self.optimizer.rates:
            rate.mul_(factor)

    def tensors(self) -> dict[str, Live]:
        """Every live tensor that a continuation needs, by its name in a checkpoint."""
        optimizer, own = self.optimizer, {"stats": self.stats, "skips": self.skips}
        own["actor_rate"], own["critic_rate"] = optimizer.rates
        own["iteration"] = self.iteration_count
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        learned = networks | shared("adam/", optimizer.tensors()) | shared("ppo/", own)
        return self.collector.tensors() | learned

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, flat, as copies: a checkpoint."""
        return copy_state(self.tensors(), self.group)

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue exactly from what `state` returned. In place, or not at all.

        Raises:
            ValueError: the state does not fit. `where` says what it was read from.
        """
        live = self.tensors()
        check_layout(state, state_layout(live, self.group), where)
        ours = live.keys() - self.env.tensors().keys()
        load_state({name: live[name] for name in ours}, state, self.group)
        self.env.load({name: x for name, x in state.items() if name not in ours})
        self.iterations = self.logged = int(self.iteration_count)
