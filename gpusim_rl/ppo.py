"""Proximal policy optimisation (arXiv:1707.06347) as robot learners expect it: one iteration, its update, its state."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gpusim_rl.curriculum import Curriculum
from gpusim_rl.env import Env
from gpusim_rl.fused import FusedLoss
from gpusim_rl.graph import Phases, capture, fetch
from gpusim_rl.loss import STATS, Batch, Settings, asymmetry, loss
from gpusim_rl.maths import log_prob, total
from gpusim_rl.policy import Policy
from gpusim_rl.ranks import ranks
from gpusim_rl.returns import gae
from gpusim_rl.rollout import Rollout
from gpusim_rl.vectors import Vectors

SHARES = {  # what the log shows of an iteration, of the parts that are timed
    "physics": ("physics",),
    "policy": ("act", "settle"),
    "update": ("returns", "minibatches", "normalisers"),
}
REST = ("learning_rate", "std", "skipped", "bad")


@contextmanager
def torch_threads(n: int):
    """Run torch's CPU operations on n threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class PPO:
    """Policy, optimiser and one training iteration: rollout → returns → update.

    Every part of an iteration is a function of fixed tensors, so that it may be captured: the host counts, and on CUDA
    replays few graphs: three for a control step (before the physics, the physics, after it), one for the returns, one for
    a minibatch, one for the normalisers.

    Args:
        env: the environment; policy: on env's device.
        num_steps: T of a rollout.
        cfg: the numbers.
        graph: "parts" captures these functions, "whole" an iteration in one graph, "off" nothing. What a Sim that is not
            capturable does stays outside.
        schedule: numbers that change from iteration to iteration.
    """

    def __init__(
        self,
        env: Env,
        policy: Policy,
        *,
        num_steps: int,
        cfg: Settings,
        graph: str = "parts",
        schedule: Curriculum | None = None,
    ):
        if graph not in ("parts", "whole", "off"):
            raise ValueError(f"graph={graph!r}: choose one of parts, whole, off")
        self.env, self.policy, self.schedule = env, policy, schedule or Curriculum()
        self.moving = self.schedule.prepare(cfg, partial(torch.tensor, dtype=torch.float32, device=env.device))
        self.cfg = cfg = replace(cfg, **self.moving)  # a tensor where the formulas have a number
        self.rollout = Rollout(env, policy, num_steps)
        self.size = num_steps * env.num_envs
        self.parts = cfg.update_epochs * cfg.num_minibatches
        if num_steps % cfg.num_minibatches:
            raise ValueError(f"algo.num_minibatches={cfg.num_minibatches} does not divide num_steps={num_steps}")
        device = env.device
        new = partial(torch.zeros, device=device)
        self.iteration_count = new((), dtype=torch.int64)
        self.vectors = Vectors(policy, cfg.learning_rate)
        self._allocate(device)
        self.stats = new(len(STATS))
        self.skips = new(3)  # minibatches skipped since the last report, and of this iteration; bad iterations in a row
        self.iterations = 0  # the host's own count
        self.logged = 0  # iterations at the last report
        self.phases = Phases(device)
        whole = graph == "whole" and env.sim.capturable
        on = partial(capture, device=device, on=graph == "parts" and env.sim.capturable)
        self._act, self._advance, self._settle = on(self.rollout.act), on(env.advance), on(self.rollout.settle)
        on = partial(capture, device=device, on=graph != "off" and not whole)
        self._prepare, self._minibatch, self._absorb = on(self.prepare), on(self.minibatch), on(self.absorb)
        self.graph = graph
        self._run = capture(self.run, device, on=whole)

    def _allocate(self, device: torch.device) -> None:
        """Everything else that an update writes: the record, the minibatch, the order of the samples."""
        cfg, policy, (no, nc, nu) = self.cfg, self.policy, self.env.sizes
        self.packed = torch.zeros(self.size, no + nc + 2 * nu + 5, device=device)
        n, self.copies = self.size // cfg.num_minibatches, 2 if policy.symmetry == "augment" else 1
        self.rows = torch.zeros(self.copies * n, self.packed.shape[1], device=device)
        self.chosen, self.images = self.rows[:n], self.rows[n:]
        self.reflect = policy.reflection(5) if self.copies == 2 else None
        self.batch = Batch(self.rows, no, nc, nu)
        self.order = torch.zeros(self.parts, n, dtype=torch.int64, device=device)
        self.part = torch.zeros(1, dtype=torch.int64, device=device)
        self.old_std = torch.zeros(nu, device=device)
        self.fused = None
        if cfg.fused:
            self.fused = FusedLoss(
                self.rows,
                first=no + nc,
                log_std=policy.log_std.detach(),
                grad_log_std=self.vectors.places[0],
                floor=float(policy.floor),
                old_std=self.old_std,
                clip_coef=cfg.clip_coef,
                clip_value=cfg.clip_value,
                ent_coef=cfg.ent_coef,
                copies=self.copies,
            )

    def iteration(self) -> None:
        """Collect a rollout and learn from it. Nothing here reads a tensor on the host."""
        self.schedule.write(self, self.iterations)
        self.phases.mark("iteration" if self.graph == "whole" else "")
        self._run()
        self.phases.mark("")
        self.iterations += 1

    def number(self, key: str) -> Tensor:
        """The live number of a configuration's key, for a curriculum to write to: one of `curriculum.ALGO`, or the Env's."""
        return self.moving[key[5:]] if key.startswith("algo.") else self.env.number(key)

    def run(self) -> None:
        """An iteration in its parts. In place."""
        self.collect()
        self.update()

    def collect(self) -> None:
        """Fill the record: act with the stochastic policy for T steps. In place."""
        mark = self.phases.mark
        with torch_threads(1):  # tiny tensors gain nothing from threads, and the engine's own need the cores
            for _ in range(self.rollout.num_steps):
                mark("act")
                self._act()
                mark("physics")
                self._advance()
                mark("settle")
                self._settle()
        mark("")

    def update(self) -> None:
        """All epochs over the record; then the normalisers absorb it. In place."""
        # A team of OpenMP threads waits for its slowest: one on every core stalls whenever anything else runs.
        with torch_threads(max(1, torch.get_num_threads() // 2)):
            self.phases.mark("returns")
            self._prepare()
            self.phases.mark("minibatches")
            for _ in range(self.parts):
                self._minibatch()
            self.phases.mark("normalisers")
            self._absorb()
        self.phases.mark("")

    @torch.no_grad()
    def prepare(self) -> None:
        """Write what the minibatches are taken from: the columns of `Batch` (T B, …), and the order of the samples.

        Advantages are normalised over the global batch, views normalised as when acting.
        """
        r, policy, cfg = self.rollout, self.policy, self.cfg
        r.blank()
        self.old_std.copy_(policy.std)
        obs, critic = policy.actor.normaliser(r.obs), policy.seer(r.critic)
        value, fault, truncated = policy.value(critic).squeeze(-1), r.fault, r.truncated
        ends = self.end_values(value, truncated)
        advantage = gae(r.reward, value, ends, r.terminated, truncated, fault, gamma=cfg.gamma, lam=cfg.gae_lambda)
        target = value + advantage
        valid = (~fault).float()
        count = total(valid.sum()).clamp(min=1)
        mean = total((advantage * valid).sum()) / count
        var = total(((advantage - mean) ** 2 * valid).sum()) / count
        advantage = (advantage - mean) / (var.sqrt() + 1e-8)
        rest = torch.stack([log_prob(r.action, r.mean, self.old_std), advantage, target, value, valid], dim=-1)
        torch.cat([x.flatten(0, 1) for x in (obs, critic, r.action, r.mean, rest)], dim=-1, out=self.packed)
        self.order.copy_(self.shuffle())
        self.part.zero_()
        self.stats.zero_()
        self.skips[1].zero_()

    def shuffle(self) -> Tensor:
        """(parts, size / num_minibatches) int64: the rows of each minibatch, of every world as many, whoever simulates it.

        A sample is in one minibatch of each epoch, drawn anew for its world in each.
        """
        n, worlds, epochs = self.rollout.num_steps, self.env.num_envs, self.cfg.update_epochs
        steps = self.env.noise.permutations("ppo/order", self.iteration_count, epochs, n)  # (epochs, B, T)
        rows = steps * worlds + torch.arange(worlds, device=steps.device)[:, None]
        return rows.view(epochs, worlds, self.cfg.num_minibatches, -1).transpose(1, 2).reshape(self.parts, -1)

    def end_values(self, value: Tensor, truncated: Tensor) -> Tensor:
        """V (T, B) of the states that steps ended in, from `value` (T, B) of those they began in.

        A step ends where the next begins, unless the world was restarted: the critic is asked at the time-outs, of which
        a world has few, and at the last step. Where a step terminated or is quarantined the number means nothing.
        """
        r, last = self.rollout, self.rollout.num_steps - 1
        ends = value.roll(-1, 0)
        few = min(last, -(-r.num_steps // self.env.task.horizon))  # time-outs of a world in a rollout, at most
        rows = truncated[:-1].float().topk(few, 0).indices  # and other rows, where there are fewer
        rows = torch.cat([rows, rows.new_full((1, value.shape[1]), last)])
        views = r.end.gather(0, rows[:, :, None].expand(-1, -1, r.end.shape[2]))
        return ends.scatter_(0, rows, self.policy.value(self.policy.seer(views)).squeeze(-1))

    def minibatch(self) -> None:
        """One step of the optimiser on the next minibatch, and of the actor's learning rate. In place.

        If loss or gradient is not finite, nothing moves: the minibatch is skipped, and counted.
        """
        cfg, vectors = self.cfg, self.vectors
        torch.index_select(self.packed, 0, self.order.index_select(0, self.part)[0], out=self.chosen)
        if self.reflect:
            self.images.copy_(self.reflect(self.chosen))
        self.part += 1
        stats = self.gradients()
        norms = vectors.clip(cfg.max_grad_norm, stats)
        skip, kl = vectors.bad.bool(), stats[3]
        factor = torch.where(kl > 2 * cfg.target_kl, 1 / cfg.lr_factor, torch.where(kl < cfg.target_kl / 2, cfg.lr_factor, 1.0))
        vectors.actor_rate.mul_(torch.where(skip, 1.0, factor)).clamp_(cfg.lr_min, cfg.lr_max)
        vectors.optimiser.step()
        self.stats += torch.where(skip, 0.0, torch.cat([stats, norms]) / self.parts)
        self.skips[:2] += vectors.bad

    def gradients(self) -> Tensor:
        """Those of the minibatch's loss, to their places; its statistics, as `loss.STATS` has them. In place."""
        cfg, policy, batch, vectors, fused = self.cfg, self.policy, self.batch, self.vectors, self.fused
        if fused:
            mean, value = policy.mean(batch.obs), policy.value(batch.critic)
            with torch.no_grad():
                fused.mean.copy_(mean)
                fused.value.copy_(value)
            fused()
            results, slopes = [mean, value], [fused.grad_mean, fused.grad_value]
            if policy.symmetry == "loss":
                results.append(cfg.mirror_coef * asymmetry(policy, batch, mean))
                slopes.append(torch.ones_like(results[-1]))
            vectors.write(torch.autograd.grad(results, vectors.params[1:], slopes), first=1)
            stats = fused.stats
            total(vectors.grads).mul_(fused.share)
        else:
            objective, stats = loss(policy, batch, self.old_std, cfg, self.copies)
            vectors.write(torch.autograd.grad(objective, vectors.params))
            total(vectors.grads)
        policy.even(vectors.places[0])
        return stats

    def absorb(self) -> None:
        """The end of an iteration: the normalisers absorb the rollout. In place.

        The iteration was a bad one if most of its minibatches were skipped, or most of its samples quarantined.
        """
        r, policy = self.rollout, self.policy
        valid = ~r.fault.flatten()
        bad = (2 * self.skips[1] > self.parts) | (total(2 * (~valid).sum() - len(valid)) > 0)
        self.skips[2].copy_(torch.where(bad, self.skips[2] + 1, 0.0))
        policy.actor.normaliser.absorb(r.obs.flatten(0, 1), valid)
        policy.seer.absorb(r.critic.flatten(0, 1), valid)
        self.iteration_count += 1

    # -- outside the iteration: what is logged, saved and shown --------------------------------------------------------

    def report(self) -> Callable[[], dict[str, float]]:
        """Begin to read the means since the last report; the function returned waits for them, and for no later work."""
        env, steps = self.env, (self.iterations - self.logged) * self.size
        self.logged = self.iterations
        names, sums = env.report()
        rest = torch.stack([self.vectors.actor_rate, self.policy.std.detach().mean(), self.skips[0], self.skips[2]])
        values, spent = fetch(torch.cat([sums, self.stats, rest])), self.phases.take()
        self.skips[0].zero_()

        def read() -> dict[str, float]:
            found, parts = values(), spent()
            shares = {share: sum(parts.get(part, 0.0) for part in its) for share, its in SHARES.items()}
            metrics = env.tally.means(names, found) | dict(zip((*STATS, *REST), found[len(names) :], strict=True))
            seconds = max(sum(parts.values()), 1e-9)
            metrics |= {"steps_per_s": ranks() * steps / seconds}
            return metrics | {f"share/{share}": value / seconds for share, value in shares.items()}

        return read

    def metrics(self) -> dict[str, float]:
        """Means since the last report, at once."""
        return self.report()()

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        """The deterministic policy on CPU observations, wherever it lives."""
        return self.policy.actor(obs.to(self.env.device)).cpu()

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, flat, as copies: a checkpoint."""
        return self.env.state() | {name: value.detach().clone() for name, value in self._own().items()}

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue exactly from what `state` returned. In place, or not at all: ValueError names what does not fit."""
        mine = self.state()
        for name in mine.keys() | state.keys():
            ours, theirs = mine.get(name), state.get(name)
            if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                what = ["nothing" if x is None else f"{tuple(x.shape)} {x.dtype}" for x in (theirs, ours)]
                raise ValueError(f"{where} does not fit this run: {name!r} is {what[0]} there and {what[1]} here")
        self.env.load(state)
        with torch.no_grad():
            for name, target in self._own().items():
                target.copy_(state[name])
        self.iterations = self.logged = int(self.iteration_count)

    def load_policy(self, state: dict[str, Tensor], where: str) -> None:
        """Take the networks alone from a checkpoint of any number of worlds; ValueError if they do not fit."""
        networks = {name[7:]: value for name, value in state.items() if name.startswith("policy/")}
        try:
            self.policy.load_state_dict(networks)
        except RuntimeError as error:
            raise ValueError(f"{where} does not fit this task and network: {' '.join(str(error).split())}") from None

    def _own(self) -> dict[str, Tensor]:
        """Every live tensor of policy and optimiser."""
        own = {f"policy/{name}": value for name, value in self.policy.state_dict(keep_vars=True).items()}
        own |= {f"adam/{name}": value for name, value in self.vectors.state().items()}
        rates = dict(zip(("ppo/actor_rate", "ppo/critic_rate"), self.vectors.rates, strict=True))
        own |= rates | {"ppo/stats": self.stats}
        return own | {"ppo/skips": self.skips, "ppo/iteration": self.iteration_count}
