"""Soft actor-critic (arXiv:1812.05905) for many worlds, in the manner of FastSAC."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.sac.settings import Settings
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import ENDS, NUMBER, view_columns
from gpusim_rl.core.ring import Draw, Returns, Ring
from gpusim_rl.core.states import Live, per_world, shared
from gpusim_rl.core.streams import as_array, torch_threads
from gpusim_rl.networks.squashed import SoftActorCritic
from gpusim_rl.runs.demonstrations import Demonstrations

# `SAC.sums`: since the last report
VALUE, CRITIC_LOSS, ENTROPY, SKIPPED, COUNT = range(5)
SCALE_FORGET_RATE = 0.02  # share of the scale of returns that an iteration forgets
LEAST_RETURN_SCALE = 0.3  # costs of a policy that is paid nothing yet are not magnified


class Batch(NamedTuple):
    """n windows that an update learns from."""

    draw: Draw
    critic: Tensor  # (n, nc) the critic's normalized view before the first step
    action: Tensor  # (n, nu) the first
    paid: Returns
    after: Tensor  # (n, nc) the critic's normalized view behind the last step
    first: Any  # the first steps (n, …), of which `features` makes what the policy's `draw` takes
    then: Any  # the steps behind the last ones


class SAC:
    """A ring of steps, from which windows are drawn to fit two critics, an actor, a temperature.

    For a window of n steps from s to s', with G their discounted rewards (arXiv:1812.05905,
    equations 3, 7 and 18, with n steps as in arXiv:1602.01783):

        y = G + γⁿ (mean Q'(s', a') - α log π(a'|s')),  a' ~ π(s')
        critics: Huber(Q(s, a) - y);  actor: α log π(a|s) - mean Q(s, a)
        temperature: -α (log π(a|s) + target entropy)

    Rewards are divided by the scale of returns, so that α means the same for every task. Windows
    that a time limit or a fault cuts are left out.

    Every part of an update is a function of tensors at fixed addresses, which CUDA can capture.
    ValueError if numbers do not fit those of the worlds, or of the steps of an iteration.
    """

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

    def __init__(self, spec: Spec, settings: Settings):
        self.spec, self.group, self.cfg = spec, spec.group, settings
        cfg, device, nu = settings, spec.device, spec.action_width
        self.cycles = check_numbers(spec, cfg)
        self.draws = cfg.batch_size // (spec.num_rows * self.group.size)  # windows of each world
        if cfg.tf32 and device.type != "cpu":
            torch.set_float32_matmul_precision("high")
        self.policy = policy = self.make_policy(spec, cfg)
        views = {x: spec.views[x] for x in ("actor", "critic", *cfg.encoders)}
        self.columns = view_columns(views) | policy.stored | {"reward": NUMBER} | ENDS
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

    @staticmethod
    def make_policy(
        spec: Spec, cfg: Settings, kind: Callable[..., SoftActorCritic] = SoftActorCritic
    ) -> SoftActorCritic:
        """The networks that settings describe; ValueError if they cannot be as symmetric as asked.

        kind: makes them, where a subclass has others.
        """
        symmetry, mirrors = spec.choose_symmetry(cfg.symmetry, cfg.hidden, bool(cfg.encoders))
        return kind(
            spec.views,
            spec.action_width,
            hidden=cfg.hidden,
            activation=cfg.activation,
            bound=cfg.bound,
            std=cfg.std,
            mirrors=mirrors if symmetry == "net" else None,
            encoders=cfg.encoders,
            seed=spec.seed,
        ).to(spec.device)

    def begin(self, ring: Ring, say: Callable[[str], None]) -> None:
        """Begin a ring with the demonstrations, if there are any. In place.

        ValueError if they are too many, or their actions larger than `bound`.
        """
        demos: Demonstrations | None = self.spec.given.get("demos")
        if demos is None:
            return
        size, worlds = len(demos.record), self.spec.num_rows * self.group.size
        rows, bound = max(self.cfg.window + 1, -(-size // worlds)), self.policy.bound
        # an Env takes none beyond its limit
        largest = min(float(demos.record.action.abs().max()), self.spec.clip)
        if rows + self.spec.num_steps > len(ring):
            raise ValueError(f"demos: they take {rows} rows, too many for algo.replay={len(ring)}")
        if largest > bound:
            raise ValueError(f"demos: actions up to {largest:.3g}, beyond algo.bound={bound:g}")
        slab = demos.steps(ring.record.columns, rows, self.spec.worlds)
        slab.action.clamp_(-bound, bound)
        views = [x.flatten(0, 1) for x in (slab.obs, slab.critic)]
        valid = slab.fault.new_ones(rows * self.spec.num_rows)
        self.policy.update_normalizers(views, valid, self.group)
        ring.write(slab)

    def update(self, ring: Ring) -> None:
        """The newest steps to normalizers and scale, then all updates. In place."""
        start = self.spec.timer.start
        with torch_threads(self.spec.threads):
            start("normalizers")
            self._add_steps(ring)
            start("minibatches")
            for _ in range(self.cycles):
                self._learn(ring)

    @torch.no_grad()
    def add_steps(self, ring: Ring) -> None:
        """Add the newest steps to the normalizers and to the scale. In place."""
        written, worlds = ring.written, self.spec.num_rows * self.group.size
        self.stored.copy_(written.clamp(max=len(ring)))
        self.ready.copy_((written * worlds >= self.cfg.warmup) & (written > self.cfg.window))
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
        """`policy_delay` updates of the critics, and one of actor and temperature. In place."""
        for _ in range(self.cfg.policy_delay - 1):
            self.learn_values(ring)
        self.learn_policy(*self.learn_values(ring))

    def choose_batch(self, ring: Ring, unit: Tensor) -> Batch:
        """The windows that numbers (B, draws) in [0, 1) choose."""
        return self.read_batch(ring, ring.draw(unit, self.cfg.window))

    def read_batch(self, ring: Ring, draw: Draw) -> Batch:
        """The windows that were drawn."""
        policy, n = self.policy, self.cfg.window
        windows = ring.windows(draw.places, n)
        first, then = windows.at(0), windows.at(n)
        critic, after = (policy.critic_normalizer(x.critic) for x in (first, then))
        paid = windows.returns(self.cfg.gamma)
        return Batch(draw, critic, first.action, paid, after, first, then)

    def learn_values(self, ring: Ring) -> tuple[Any, Tensor, Tensor]:
        """One step of the critics. In place; the first steps of the batch, what the critics see of
        them, and noise (n, nu)."""
        policy, cfg = self.policy, self.cfg
        with torch.no_grad():
            self.updates.add_(1)
            self.rng.draw(self.updates)
            unit = self.rng.uniform("sac/windows", 0.0, self.ones)
            noise = self.rng.normal("sac/actions", 2 * policy.nu * self.draws)
            noise, later = noise.view(-1, 2 * policy.nu).chunk(2, 1)
            batch = self.choose_batch(ring, unit)
            draw, paid = batch.draw, batch.paid
            action, log_prob = policy.draw(self.features(batch.then), later)
            value = policy.values(policy.target, batch.after, action).mean(0)
            value = value - self.log_alpha.exp() * log_prob
            target = paid.gain / self.scale + paid.discount * value
        taken = policy.values(policy.critic, batch.critic, batch.action / policy.bound)
        error = F.smooth_l1_loss(taken, target.expand_as(taken), reduction="none")
        self.step(self.critics, (error * (paid.valid * draw.weights)).sum() / cfg.batch_size)
        ring.update(draw.places, (taken.detach() - target) * paid.valid)
        self.target.lerp_(self.critics.weights["critic"].data, cfg.tau)
        self.sums[CRITIC_LOSS].add_(self.loss[0] * self.ready)
        self.sums[SKIPPED].add_(self.critics.bad * self.ready)
        return batch.first, batch.critic, noise

    def features(self, steps: Any) -> Any:
        """(n, width) what the actor's layers are given in some steps (n, …)."""
        actor = self.policy.actor
        return actor.features(actor.normalizer(steps.obs), steps.column)

    def learn_policy(self, first: Any, critic: Tensor, noise: Tensor) -> None:
        """One step of actor and temperature, on the first steps of the last batch. In place."""
        policy, n = self.policy, self.cfg.batch_size
        action, log_prob = policy.draw(self.features(first), noise)
        value = policy.values(policy.critic, critic, action).mean(0)
        alpha = self.log_alpha.exp()
        target = self.entropy_of_width + policy.nu * self.target_std.log()
        entropy = -log_prob.detach().sum() / n  # this process's part of the mean
        temperature = alpha.sum() * (entropy - target / self.group.size)
        loss = (alpha.detach() * log_prob - value).sum() / n + temperature
        self.step(self.actor, loss)
        warm, size = self.ready, self.group.size
        self.sums[VALUE].add_(value.detach().sum() / n * size * warm)
        self.sums[ENTROPY].add_(entropy * size * warm)
        self.sums[COUNT].add_(warm)
        self.skipped.add_(torch.maximum(self.actor.bad, self.critics.bad) * warm)
        self.sums[SKIPPED].add_(self.actor.bad * warm)

    def step(self, optimizer: FlatAdam, loss: Tensor) -> None:
        """One step of an optimizer, none before the warm-up's end. In place."""
        optimizer.write(torch.autograd.grad(loss, [*optimizer.gradients]))
        self.group.all_reduce(optimizer.grads)
        with torch.no_grad():
            self.loss.copy_(loss.detach().view(1))
            self.group.all_reduce(self.loss)
            # a loss that is no number is skipped by the kernels that clip
            optimizer.clip(torch.where(self.ready, self.loss, torch.nan))
        optimizer.step()

    def measures(self) -> Tensor:
        """(len(metrics),) means since the last report, whose sums begin anew."""
        sums, updates = self.sums, self.sums[COUNT].clamp(min=1)
        means = torch.stack([sums[VALUE], sums[CRITIC_LOSS] / self.cfg.policy_delay, sums[ENTROPY]])
        now = [self.log_alpha.detach()[0].exp(), self.scale, self.critics.rates["critic"]]
        values = torch.stack([*(means / updates), sums[SKIPPED], *now, self.stored, self.bad])
        sums.zero_()
        return values

    def tensors(self) -> dict[str, Live]:
        networks = shared("policy/", self.policy.state_dict(keep_vars=True))
        rates = self.critics.rates | self.actor.rates
        entries = {f"{name}_rate": x for name, x in rates.items()}
        entries |= {"log_alpha": self.log_alpha, "updates": self.updates, "sums": self.sums}
        entries |= {"returns": self.returns, "scale": self.scale, "bad": self.bad}
        entries |= {"skipped": self.skipped}
        adam = self.critics.tensors() | self.actor.tensors()
        tensors = networks | shared("adam/", adam) | shared("sac/", entries)
        return tensors | per_world("sac/", {"running": self.running})


def check_numbers(spec: Spec, cfg: Settings) -> int:
    """How many cycles of `policy_delay` updates an iteration has; ValueError as `SAC` has it."""
    rows, updates = spec.num_rows * spec.group.size, spec.num_steps * cfg.updates
    if cfg.batch_size % rows:
        wanted = f"a multiple of num_envs × agents={rows}"
        raise ValueError(f"algo.batch_size={cfg.batch_size}: expected {wanted}")
    if updates % cfg.policy_delay:
        wanted = f"a divisor of num_steps × algo.updates, which is {updates}"
        raise ValueError(f"algo.policy_delay={cfg.policy_delay}: expected {wanted}")
    if cfg.bound > spec.clip:
        raise ValueError(f"algo.bound={cfg.bound:g}: expected at most task.clip={spec.clip:g}")
    if spec.num_steps >= cfg.replay:
        raise ValueError(f"algo.replay={cfg.replay}: expected more than num_steps={spec.num_steps}")
    return updates // cfg.policy_delay
