"""Soft actor-critic (arXiv:1812.05905) for many worlds, in the manner of FastSAC."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.sac.settings import Settings
from gpusim_rl.algorithms.sac.soft import COUNT, CRITIC_LOSS, ENTROPY, SKIPPED, VALUE, SoftLearner
from gpusim_rl.core.record import ENDS, NUMBER, view_columns
from gpusim_rl.core.ring import Draw, Returns, Ring
from gpusim_rl.networks.squashed import SoftActorCritic
from gpusim_rl.runs.demonstrations import Demonstrations


class Batch(NamedTuple):
    """n windows that an update learns from."""

    draw: Draw
    critic: Tensor  # (n, nc) the critic's normalized view before the first step
    action: Tensor  # (n, nu) the first
    paid: Returns
    after: Tensor  # (n, nc) the critic's normalized view behind the last step
    first: Any  # the first steps (n, …), of which `features` makes what the policy's `draw` takes
    then: Any  # the steps behind the last ones


class SAC(SoftLearner[Settings]):
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

    name = "sac"

    def __init__(self, spec: Spec, settings: Settings):
        self.cycles, self.window = check_numbers(spec, settings), settings.window
        self.value_updates = settings.policy_delay
        super().__init__(spec, settings, self.make_policy(spec, settings))
        views = {x: spec.views[x] for x in ("actor", "critic", *settings.encoders)}
        self.columns = view_columns(views) | self.policy.stored | {"reward": NUMBER} | ENDS

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
        ring.update(draw.places, (taken.detach() - target) * (paid.valid * self.ready))
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
        entropy = -log_prob.detach().sum() / n  # this process's part of the mean
        loss = (self.log_alpha.exp().detach() * log_prob - value).sum() / n
        loss = loss + self.temperature_loss(entropy)
        self.step(self.actor, loss)
        warm, size = self.ready, self.group.size
        self.sums[VALUE].add_(value.detach().sum() / n * size * warm)
        self.sums[ENTROPY].add_(entropy * size * warm)
        self.sums[COUNT].add_(warm)
        self.skipped.add_(torch.maximum(self.actor.bad, self.critics.bad) * warm)
        self.sums[SKIPPED].add_(self.actor.bad * warm)


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
