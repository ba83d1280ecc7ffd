"""A learner that begins as a clone of demonstrations, and stays near them for a while."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.algorithms.flat_adam import GroupChanges
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.algorithms.returns import recurrence
from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import Record
from gpusim_rl.core.states import Live, shared
from gpusim_rl.core.streams import torch_threads


# Why: docs/decisions/teachers.md
class Cloning:
    """Behavior cloning before the first rollout, then PPO with an anchor that fades.

    The clone minimizes Σ |π(o) - a|² + Σ (V(s) - G)² over the demonstrations, where G are their
    discounted sums of rewards. In the first iterations the critic alone learns. After each
    iteration, steps on Σ |π(o) - a|² draw the actor back: DAPG (arXiv:1709.10087) in turns.

    The learner is PPO without memory, whose weights it changes, or ValueError. Every process has
    the same demonstrations.
    """

    def __init__(self, learner: PPO, spec: Spec):
        settings, demos = spec.given["cloning"], spec.given["demos"]
        if learner.policy.blank_memory(1):
            raise ValueError("demos= is for a policy without memory: set algo.memory=none")
        if settings.std <= float(learner.policy.min_std):
            least = f"must be above algo.min_std={float(learner.policy.min_std):g}"
            raise ValueError(f"cloning.std={settings.std} {least}")
        self.learner, self.demos, self.cfg, self.spec = learner, demos, settings, spec
        self.policy, self.columns, self.rates = learner.policy, learner.columns, learner.rates
        mine = Metric("clone_error", "loss/clone_error", "rms distance from the demonstrations")
        self.metrics = (*learner.metrics, mine)
        optimizer = self.optimizer = learner.optimizer
        self.actor = GroupChanges(optimizer, "actor")
        optimizer.rates["actor"].fill_(settings.rate)
        # of the anchor's optimizer, which changes places with the algorithm's
        self.moments = {name: torch.zeros_like(x) for name, x in optimizer.tensors().items()}
        self.anchor_rates = {name: torch.zeros_like(x) for name, x in optimizer.rates.items()}
        self.error = torch.zeros(1, device=spec.device)
        self.rng = spec.rng(shared=True)
        self._remember, self._anchor = spec.capture(self.actor.remember), spec.capture(self.anchor)
        self._hold = spec.capture(self.hold)

    # -- before the first rollout ------------------------------------------------------------------

    def begin(self, record: Record, say: Callable[[str], None]) -> None:
        """Give the policy the demonstrations' actions, and the critic their returns. In place."""
        with torch_threads(self.spec.threads):
            self._normalize()
            size, cfg, policy = len(self.demos.record), self.cfg, self.policy
            rates, targets = self.optimizer.rates.values(), self.returns()
            before = [x.clone() for x in rates]
            for rate in rates:
                rate.fill_(cfg.learning_rate)
            for epoch in torch.arange(cfg.epochs, device=self.spec.device):
                order = self.rng.permutations("cloning/order", epoch, 1, size)[0, 0]
                for rows in order.split(cfg.batch):
                    self.step(rows, targets)
            for x, first in zip(rates, before, strict=True):
                x.copy_(first)
        for x in self.optimizer.tensors().values():
            x.zero_()
        with torch.no_grad():
            policy.log_std.fill_(cfg.std).sub_(policy.min_std).log_()
        steps = f"{size} steps of {self.demos.episodes} episodes"
        # read on the host once, before the first iteration
        say(f"cloned {steps}: within {self.error.sqrt().item():.3f} of their actions")

    def _normalize(self) -> None:
        """Take the normalizers' statistics from the demonstrations, and hold them. In place."""
        r, policy = self.demos.record, self.policy
        policy.update_normalizers((r.obs, r.critic), torch.ones_like(r.terminated))
        for normalizer in (policy.actor.normalizer, policy.critic_normalizer):
            normalizer.count.fill_(self.cfg.count)

    def returns(self) -> Tensor:
        """(N,) discounted sums of the demonstrations' rewards.

        G_t = r_t + γ (1 - ended_t) G_{t+1} + γ truncated_t r̄ / (1 - γ): what follows a time-out is
        taken for the mean reward r̄ for ever.
        """
        r, gamma = self.demos.record, float(self.learner.cfg.gamma)
        tail = r.reward.mean() / max(1 - gamma, 1e-3)
        delta = r.reward + gamma * tail * r.truncated
        return recurrence(delta[:, None], gamma * (~self.demos.ended).float()[:, None])[:, 0]

    # -- an iteration ------------------------------------------------------------------------------

    def update(self, record: Record) -> None:
        """The algorithm's update, then the anchor; at first of the critic alone. In place."""
        self._remember()
        self.learner.update(record)
        fade = self.fade()
        if not is_empty_on_host((fade > 0)[None]):
            with torch_threads(self.spec.threads):
                self._anchor()
        self._hold()

    def fade(self) -> Tensor:
        """() share of the anchor's rate: from 1 down to 0."""
        later = self.spec.iteration - self.cfg.critic_iterations
        if not (self.cfg.anchor_iterations and self.cfg.anchor_steps):
            return torch.zeros_like(later, dtype=torch.float32)
        return (1 - later / self.cfg.anchor_iterations).clamp(0, 1)

    def hold(self) -> None:
        """Take the actor's changes back in the first iterations. In place."""
        self.actor.take_back(self.spec.iteration < self.cfg.critic_iterations)

    def anchor(self) -> None:
        """Steps of cloning the actor on steps drawn anew. In place."""
        self.rng.draw(self.spec.iteration)
        steps, batch = self.cfg.anchor_steps, self.cfg.batch
        rows = self.rng.integers("cloning/rows", len(self.demos.record), steps * batch)[0]
        self.anchor_rates["actor"].copy_(self.cfg.rate * self.fade())
        self._exchange()
        for part in rows.view(steps, batch):
            self.step(part)
        self._exchange()

    def _exchange(self) -> None:
        """Let the anchor's moments and rates change places with the algorithm's. In place."""
        tensors = [*self.moments.values(), *self.anchor_rates.values()]
        theirs = [*self.optimizer.tensors().values(), *self.optimizer.rates.values()]
        for a, b in zip(tensors, theirs, strict=True):
            first = a.clone()
            a.copy_(b)
            b.copy_(first)

    def step(self, rows: Tensor, targets: Tensor | None = None) -> None:
        """One step on rows (n,) of the demonstrations; of the critic by targets (N,). In place."""
        r, policy, optimizer = self.demos.record, self.policy, self.optimizer
        obs, critic = policy.normalize(r.obs[rows], r.critic[rows])
        seen = policy.actor.features(obs, lambda name: r.column(name)[rows])
        error = (policy.mean(seen) - r.action[rows]).square().mean()
        loss = error
        if targets is not None:
            value = policy.value(critic).squeeze(-1)
            loss = loss + (value - targets[rows]).square().mean()
        # the loss does not need all of them
        unused: Any = dict(allow_unused=True, materialize_grads=True)
        optimizer.write(torch.autograd.grad(loss, [*optimizer.gradients], **unused))
        self.error.copy_(error.detach())
        optimizer.share.fill_(1.0)  # a fused loss has left its own
        optimizer.clip(self.error)
        optimizer.step()

    def measures(self) -> Tensor:
        """(len(metrics),) those of the algorithm, and how far the actor is from what was shown."""
        return torch.cat([self.learner.measures(), self.error.sqrt()])

    def tensors(self) -> dict[str, Live]:
        return self.learner.tensors() | shared("cloning/", self.moments | {"error": self.error})
