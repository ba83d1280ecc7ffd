"""A learner that dreams: the task's own formulas between steps of a learned model."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gpusim_rl.algorithms.dream.model import Model
from gpusim_rl.algorithms.dream.physics import Physics
from gpusim_rl.algorithms.dream.settings import Settings
from gpusim_rl.algorithms.flat_adam import FlatAdam
from gpusim_rl.algorithms.learner import Spec
from gpusim_rl.algorithms.sac.soft import (
    COUNT,
    CRITIC_LOSS,
    ENTROPY,
    SKIPPED,
    VALUE,
    SoftLearner,
)
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import ENDS, NUMBER, Record
from gpusim_rl.core.ring import Ring, cleared
from gpusim_rl.core.states import Live, Rows, shared
from gpusim_rl.envs.dreams import PHYSICS, UNUSED, Dreams
from gpusim_rl.fuse.adjoint import with_gradient
from gpusim_rl.networks.squashed import SoftActorCritic

NAMES = ("qpos", "qvel", "sensordata")  # what the model predicts
TAKEN = [*(f"rows/{x}" for x in NAMES), *(f"after/{x}" for x in (*NAMES, "ctrl")), "fault"]
SAMPLES = 8192  # recorded steps of a regression
USELESS = 3.0  # share of the variance left, from which on nobody follows a model


class Dreamed(NamedTuple):
    """n dreams of T control steps."""

    reward: Tensor  # (T, n)
    log_prob: Tensor  # (T, n) log π of the actions
    views: Tensor  # (T + 1, n, nc) the critic's
    alive: Tensor  # (T + 1, n) 1, and 0 behind a termination


# Why: docs/decisions/dreams.md
class Dream(SoftLearner[Settings]):
    """A ring of rows of the worlds, a model of their physics, and an actor that dreams.

    From recorded states it dreams T control steps: `Dreams.act`, the model, `Dreams.end` and
    `Dreams.observe`, which are the task's own formulas. The actor follows the gradient of λ-returns
    through all of them (SHAC, arXiv:2204.07137; Dreamer, arXiv:1912.01603, equation 6):

        R_t = r_t + γ ((1 - λ) V(s_t+1) + λ R_t+1),  R_T = V(s_T);  none behind a termination
        actor: α log π(a|s) - R_0;  critics: Huber(V(s_t) - R'_t), with R' of their slow copies
        temperature: -α (log π(a|s) + target entropy)

    Rewards are divided by the scale of returns. ValueError if the task or a number does not fit.
    """

    name, window = "dream", 0

    def __init__(self, spec: Spec, settings: Settings):
        if spec.dreams is None:
            raise ValueError("algo=dream needs worlds of its own, of one agent each")
        self.dreams, device = spec.dreams, spec.device
        self.cycles = spec.num_steps * settings.updates
        check_numbers(spec, settings)
        super().__init__(spec, settings, self.make_policy(spec, settings))
        self.columns = self.dreams.columns | self.policy.stored | {"reward": NUMBER} | ENDS
        cfg, rows = settings, spec.num_rows * self.group.size
        self.fits = torch.zeros((), dtype=torch.int64, device=device)
        self.model_rng, self.n = spec.rng(), self.draws * spec.num_rows
        ones = (cfg.model_batch // rows, -(-SAMPLES // rows))
        self.ones_of_fit, self.ones_of_samples = (torch.ones(x, device=device) for x in ones)
        self.numbers = self.dreams.rng(self.n * cfg.steps, spec.life)  # of all steps of the dreams
        self.model, self.carried = self.make_model(), []
        self.before_physics, self.after_physics = self.before, self.after
        rate = torch.as_tensor(cfg.model_rate, dtype=torch.float32, device=device).view(1)
        self.model_adam = FlatAdam({"model": [*self.model.parameters()]}, rate, cfg.max_grad_norm)
        self.rates |= {"model_rate": self.model_adam.all_rates}
        self.left = torch.ones(len(self.model.physics.readings), device=device)
        self.useless = torch.zeros((), dtype=torch.bool, device=device)
        shares = [f"model/{x}" for x in self.model.physics.readings]
        error = Metric("model_error", "loss/model", "variance left", ".2f", "model error")
        self.metrics = (*SoftLearner.metrics, error, *map(Metric, shares, shares))
        self.prepare_dreams()
        flat = terms_without_slope(self.dreams, spec.action_width)
        if flat and self.group.rank == 0:
            says = f"no gradient of the reward terms {', '.join(flat)}: the values alone show them"
            print(f"algo=dream: {says}", flush=True)
        self._regress, self._fit = spec.capture(self.regress), spec.capture(self.fit)

    def make_model(self) -> Model:
        """The model of the worlds' physics, and the images that it learns from, too."""
        cfg, spec, rows = self.cfg, self.spec, self.dreams.rows()
        symmetry, _ = spec.choose_symmetry(cfg.symmetry, cfg.hidden)
        self.images = self.dreams.images() if symmetry == "net" else None
        physics, live = Physics(self.dreams.model, spec.device), {x: rows[x] for x in PHYSICS}
        live = {name: x.float() for name, x in live.items()}
        sizes, hidden = cfg.members, cfg.model_hidden
        model = Model(physics, live, members=sizes, hidden=hidden, seed=spec.seed)
        return model.to(spec.device)

    @staticmethod
    def make_policy(spec: Spec, cfg: Settings) -> SoftActorCritic:
        """The networks of settings; ValueError if they cannot be as symmetric as asked."""
        symmetry, mirrors = spec.choose_symmetry(cfg.symmetry, cfg.hidden)
        return SoftActorCritic(
            spec.views,
            spec.action_width,
            hidden=cfg.hidden,
            activation=cfg.activation,
            bound=cfg.bound,
            std=cfg.std,
            mirrors=mirrors if symmetry == "net" else None,
            of_actions=False,
            seed=spec.seed,
        ).to(spec.device)

    def prepare_dreams(self) -> None:
        """Let all random streams of a dream join their block, and make the kernels of a step."""
        rng, live = self.numbers, self.dreams.rows()
        # rows that one step hands to the next
        kept = [x for x, y in live.items() if not x.startswith(UNUSED) and y.numel()]
        self.carried = [*kept, "env/invalid"]
        n = self.n * self.cfg.steps
        rows = {name: x[:1].expand(n, *x.shape[1:]) for name, x in live.items()}
        action = rng.normal("dream/action", self.spec.action_width)
        with torch.no_grad():
            self.dreams.observe(self.dreams.end(self.dreams.act(rows, action), rng), rng)
        if self.spec.fused:
            self.make_kernels()

    def prepare(self, ring: Ring) -> None:
        """Fit the model. In place."""
        self.spec.timer.start("model")
        self._regress(ring)
        for _ in range(self.spec.num_steps * self.cfg.model_updates):
            self._fit(ring)

    # -- the model ---------------------------------------------------------------------------------

    def transitions(self, ring: Ring, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The model's inputs (n, width), changes (n, k), and 1 where they are valid (n,).

        places: (n,) rows of the ring times the worlds, plus a world. Of a task with a mirror, every
        other group of `members` is mirrored.
        """
        columns = {x: ring.record.column(x).flatten(0, 1).index_select(0, places) for x in TAKEN}
        finite = torch.cat([columns[x] for x in TAKEN if x != "fault"], 1).isfinite().all(1)
        valid = finite & (columns.pop("fault") == 0)
        columns = {name: x.nan_to_num(0.0, 0.0, 0.0) for name, x in columns.items()}
        if self.images:
            other = torch.arange(len(places), device=places.device) // self.cfg.members % 2 == 1
            for name, x in columns.items():
                image = self.images[name.partition("/")[2]](x)
                columns[name] = torch.where(other[:, None], image, x)
        before = {x: columns[f"rows/{x}"] for x in NAMES} | {"ctrl": columns["after/ctrl"]}
        after = {x: columns[f"after/{x}"] for x in NAMES}
        physics = self.model.physics
        return physics.inputs(before), physics.change(before, after), valid.float()

    def choose(self, ring: Ring, stream: str, ones: Tensor) -> Tensor:
        """(n,) places of steps of a stream's choice, as many of each world as there are ones."""
        self.fits.add_(1)
        self.model_rng.draw(self.fits)
        rows, worlds = ring.draw(self.model_rng.uniform(stream, 0.0, ones), 0).places.T
        return rows * len(ring.count) + worlds

    @torch.no_grad()
    def regress(self, ring: Ring) -> None:
        """Judge the model by the newest steps, then fit its regression to the ring. In place."""
        ages = torch.arange(-self.spec.num_steps, 0, device=ring.count.device)[:, None]
        rows = (ring.count + ages).remainder(len(ring))
        newest = (rows * len(ring.count) + ring.worlds).flatten()
        x, change, valid = self.transitions(ring, newest)
        left = self.model.error(x, change, valid, self.group)
        # steps that are all invalid tell nothing
        self.left.copy_(torch.where(self.group.all_reduce(valid.sum()) > 0, left, self.left))
        # before the first fit it predicts nothing
        self.useless.copy_((self.left.median() >= USELESS) & (self.fits > 0))
        places = self.choose(ring, "dream/samples", self.ones_of_samples)
        self.model.regress(*self.transitions(ring, places), self.group)

    def fit(self, ring: Ring) -> None:
        """One step of the model's networks. In place."""
        with torch.no_grad():
            x, change, valid = self.transitions(
                ring, self.choose(ring, "dream/fits", self.ones_of_fit)
            )
        loss = self.model.loss(x, change, valid) / self.cfg.model_batch
        self.step(self.model_adam, loss, torch.ones_like(self.ready))

    # -- dreams ------------------------------------------------------------------------------------

    def before(self, rows: Rows) -> Rows:
        """What a dreamed step changes before the physics, and the model's inputs; pure."""
        acted = self.dreams.act(rows, rows["dream/action"])
        changed = {x: acted[x] for x in self.carried if acted[x] is not rows[x]}
        return changed | {"dream/inputs": self.model.physics.inputs(acted)}

    def after(self, rows: Rows) -> Rows:
        """What it changes from the model's change on, its reward, end and critic's view; pure."""
        rng = self.numbers.of_rows(rows)
        moved = rows | self.model.physics.moved(rows, rows["dream/change"])
        end = self.dreams.end(moved, rng)
        seen, step = self.dreams.observe(end, rng), end.step
        changed = {x: seen[x] for x in self.carried if seen[x] is not rows[x]}
        changed |= {"dream/reward": step.reward, "dream/end": step.end}
        return changed | {"dream/ended": step.terminated | step.fault}

    def make_kernels(self) -> None:
        """Let kernels take the functions of a dreamed step, and their gradients."""
        live = {x: y.float() if y.is_floating_point() else y for x, y in self.dreams.rows().items()}
        live |= {x: y[: self.spec.num_rows] for x, y in self.numbers.rows().items()}
        floats = [x for x in self.carried if live[x].is_floating_point()]
        action = live["action"].new_zeros(self.spec.num_rows, self.spec.action_width)
        given = {"dream/action": action}
        name, by = "a dream's act", [*given, *floats]
        self.before_physics = with_gradient(name, self.before, live | given, by)
        given = {"dream/change": action.new_zeros(self.spec.num_rows, len(self.model.mean))}
        name, by = "a dream's end", [*given, *floats]
        self.after_physics = with_gradient(name, self.after, live | given, by)

    def dream(self, steps: Record, alive: Tensor) -> Dreamed:
        """Dreams from recorded steps (n, …), of which those count where alive (n,) is 1."""
        policy, nu = self.policy, self.spec.action_width
        block = {x: y.view(len(alive), self.cfg.steps, -1) for x, y in self.numbers.rows().items()}
        rows, parts = self.dreams.begin(steps), [list[Tensor]() for _ in Dreamed._fields]
        rewards, log_probs, views, living = parts
        views.append(rows["view/critic"])
        living.append(alive)
        for t in range(self.cfg.steps):
            rows |= {x: y[:, t] for x, y in block.items()}
            obs = torch.where(alive[:, None] > 0, rows["view/actor"], 0.0)
            noise = self.numbers.of_rows(rows).normal("dream/action", nu)
            action, log_prob = policy.draw(policy.actor.normalizer(obs), noise)
            if action.requires_grad:  # one dream that overflows spoils no other
                action.register_hook(finite)  # pyright: ignore[reportUnknownMemberType]
            rows |= self.before_physics(rows | {"dream/action": action * policy.bound})
            change = self.model.predict(rows["dream/inputs"])
            rows |= self.after_physics(rows | {"dream/change": change})
            rewards.append(torch.where(alive > 0, rows["dream/reward"], 0.0))
            log_probs.append(log_prob)
            alive = alive * (~rows["dream/ended"]).float()
            living.append(alive)
            views.append(torch.where(alive[:, None] > 0, rows["dream/end"], 0.0))
        return Dreamed(*map(torch.stack, parts))

    def learn(self, ring: Ring) -> None:
        """One step of actor and temperature, and one of the critics. In place."""
        policy, cfg, group = self.policy, self.cfg, self.group
        with torch.no_grad():
            self.updates.add_(1)
            self.rng.draw(self.updates)
            self.numbers.draw(self.updates)
            places = ring.draw(self.rng.uniform("dream/starts", 0.0, self.ones), 0).places
            steps = ring.take(*places.T)
            valid = (steps.rows.isfinite().all(1) & ~steps.fault).float()
        dream = self.dream(cleared(steps), valid)
        alive, length = dream.alive, cfg.steps
        seen = policy.critic_normalizer(dream.views.flatten(0, 1))
        values = policy.values(policy.critic, seen).mean(0).view(length + 1, -1)
        reward = dream.reward / self.scale
        goes_on = alive[1:]  # 0 behind an end; so is all that follows it
        gain = returns(reward, goes_on, values, cfg.gamma, cfg.lam)[0]
        begun, lived = (group.all_reduce(x.sum()).clamp(min=1) for x in (valid, alive[:-1]))
        entropy = -(dream.log_prob.detach() * alive[:-1]).sum() / lived
        loss = (self.log_alpha.exp().detach() * dream.log_prob * alive[:-1]).sum() / lived
        loss = loss - (gain * valid).sum() / begun + self.temperature_loss(entropy)
        self.step(self.actor, torch.where(self.useless, torch.nan, loss))
        with torch.no_grad():
            slow = policy.values(policy.target, seen).amin(0).view(length + 1, -1)
            target = returns(reward, goes_on, slow, cfg.gamma, cfg.lam).flatten()
        guess = policy.values(policy.critic, seen.detach()[: len(target)])
        error = F.smooth_l1_loss(guess, target.expand_as(guess), reduction="none")
        loss = (error * alive[:-1].flatten()).sum() / lived
        self.step(self.critics, torch.where(self.useless, torch.nan, loss))
        self.target.lerp_(self.critics.weights["critic"].data, cfg.tau)
        self.count(values, entropy)

    @torch.no_grad()
    def count(self, values: Tensor, entropy: Tensor) -> None:
        """Add an update to the sums of the report. In place."""
        warm, size = self.ready, self.group.size
        self.sums[VALUE].add_(values[0].mean() * warm)
        self.sums[CRITIC_LOSS].add_(self.loss[0] * warm)
        self.sums[ENTROPY].add_(entropy * size * warm)
        self.sums[COUNT].add_(warm)
        self.skipped.add_(torch.maximum(self.actor.bad, self.critics.bad) * warm)
        self.sums[SKIPPED].add_((self.actor.bad + self.critics.bad) * warm)

    def measures(self) -> Tensor:
        """(len(metrics),) as `SoftLearner` has them, and the model's error now."""
        return torch.cat([super().measures(), self.left.mean()[None], self.left])

    def tensors(self) -> dict[str, Live]:
        own = {"fits": self.fits, "left": self.left, "model_rate": self.model_adam.all_rates}
        own |= {"useless": self.useless} | self.model.state_dict(keep_vars=True)
        adam = {f"model_{name}": x for name, x in self.model_adam.tensors().items()}
        return super().tensors() | shared("dream/", own) | shared("adam/", adam)


def finite(x: Tensor) -> Tensor:
    """Zeros in the place of what is no number."""
    return x.nan_to_num(0.0, 0.0, 0.0)


def returns(
    reward: Tensor, goes_on: Tensor, values: Tensor, gamma: Tensor | float, lam: Tensor | float
) -> Tensor:
    """λ-returns (T, n) of rewards and of whether a step goes on (T, n), and values (T + 1, n)."""
    total, sums = values[-1], list[Tensor]()
    for r, g, v in zip(reward.flip(0), goes_on.flip(0), values[1:].flip(0), strict=True):
        total = r + gamma * g * torch.lerp(v, total, lam)
        sums.insert(0, total)
    return torch.stack(sums)


def check_numbers(spec: Spec, cfg: Settings) -> None:
    """ValueError as `Dream` has it."""
    rows = spec.num_rows * spec.group.size * cfg.members
    for key in ("batch_size", "model_batch"):
        if (value := getattr(cfg, key)) % rows:
            wanted = f"a multiple of num_envs × algo.members={rows}"
            raise ValueError(f"algo.{key}={value}: expected {wanted}")
    if cfg.bound > spec.clip:
        raise ValueError(f"algo.bound={cfg.bound:g}: expected at most task.clip={spec.clip:g}")
    if spec.num_steps >= cfg.replay:
        raise ValueError(f"algo.replay={cfg.replay}: expected more than num_steps={spec.num_steps}")


def terms_without_slope(dreams: Dreams, action_width: int) -> list[str]:
    """The reward terms whose gradient by the action and by the physics is zero everywhere.

    It is tried in states near those of the worlds now, and farther from them.
    """
    rows, generator = dreams.rows(), torch.Generator().manual_seed(0)
    flat = [name for name, weight in zip(dreams.terms, dreams.weights, strict=True) if weight != 0]

    def near(x: Tensor, width: float) -> Tensor:
        noise = width * torch.randn(x.shape, generator=generator).to(x.device)
        return (x.float() + noise).requires_grad_()

    for far in (1.0, 10.0):
        action = near(rows["action"].new_zeros(len(rows["time"]), action_width), 0.5)
        physics = {x: near(rows[x], far * y) for x, y in zip(NAMES, (0.05, 0.5, 0.1), strict=True)}
        with torch.enable_grad():
            terms = dreams.end(dreams.act(rows, action) | physics, dreams.rng(len(action), 0)).terms
        for name, term in zip(dreams.terms, terms.sum(0), strict=True):
            if not term.requires_grad:  # none has a gradient
                break
            by = [action, *physics.values()]
            slopes: Any = torch.autograd.grad(term, by, retain_graph=True, allow_unused=True)
            if name in flat and any(x is not None and x.any() for x in slopes):
                flat.remove(name)
    return flat
