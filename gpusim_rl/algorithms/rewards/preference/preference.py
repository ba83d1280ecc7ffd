"""A reward that is learned from answers to pairs of clips (Christiano et al., arXiv:1706.03741)."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpusim_rl.algorithms.flat_adam import FlatAdam, GroupChanges
from gpusim_rl.algorithms.learner import Learner, RewardModel, Spec
from gpusim_rl.algorithms.ppo.ppo import PPO
from gpusim_rl.algorithms.rewards.preference.judges import Judge, load_judge, named_terms
from gpusim_rl.algorithms.rewards.preference.pairs import choose_pairs, term_columns
from gpusim_rl.algorithms.rewards.preference.settings import Settings
from gpusim_rl.core import errors
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import ENDS, NUMBER, Columns, Record, vector
from gpusim_rl.core.states import Live, shared
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.networks.encoders import HiddenLayers, mlp
from gpusim_rl.runs.labels import AGAIN, CHOICES, Labels, Pair, turned

POOL = 128  # worlds, the first ones of all, whose last steps are kept as clips
BATCH = 64  # answers in a step of the ensemble
STRIDE = 3  # of a clip the ensemble learns from each third step: those between tell little
SCALE = 10.0  # how far the mean reward of a clip tells two of them apart
SMOOTH = 0.05  # chance that the ensemble leaves to the other answer
LEAST, MOST = 1e-3, 1e3  # bounds of the coefficient
WINDOWS = 3, 20  # iterations over which the task's reward and its falls are averaged
KEPT = 0.95  # of both: below it success was 0.86 to 0.97 of that before, above it 0.92 or more


# Why: docs/decisions/teachers.md
class Preference(RewardModel):
    """Fine-tunes a policy by an ensemble of reward models r̂, within a distance of where it began.

        P(left is better) = σ(R(left) - R(right)),   R = 10 mean_t r̂(s_t)          (Bradley–Terry)
        r_t = w_task r_task + dt (w ẑ_t - β d_t² / budget²) - fall,   d_t² = mean |J (μ - μ_ref)|²

    ẑ is the ensemble's mean in units of its deviation in the rollout. d is the distance of the
    joint targets J μ [rad] of policy and reference. For n joints n d² / (2 budget²) is KL(π ||
    π_ref) of Gaussians as wide as the budget. β follows what is allowed: it grows with e^(gain ·
    off) while d is above.

    The actor is held while the critic learns the new reward, and for good once d is above the
    budget: then `done` is 1.
    """

    metrics = (
        Metric("distance", "reward_model/distance", "distance [rad]", ".4f", "moved by [rad]"),
        Metric("coefficient", "reward_model/coefficient", "coefficient of the distance", ".2f"),
        Metric("taste", "reward_model/taste", "learned reward of a step", ".3f"),
        Metric("kept", "reward_model/task_kept", "task's reward and whole episodes kept", ".2f"),
        Metric("accuracy", "reward_model/accuracy", "accuracy on new answers", ".2f", "accuracy"),
        Metric("unsure", "reward_model/disagreement", "disagreement about new pairs", ".3f"),
        Metric("answers", "reward_model/answers", "answers", ".0f", "answers"),
        Metric("done", "reward_model/spent", "whether the budget is spent", ".0f"),
    )

    def __init__(self, spec: Spec, settings: Settings, learner: Learner):
        if not isinstance(learner, PPO) or learner.policy.blank_memory(1):
            raise ValueError("reward=preference tunes algo=ppo without memory, and no clone")
        if spec.dreams is None:
            raise ValueError("reward=preference shows one robot of a world: these have several")
        self.spec, self.cfg, self.policy = spec, settings, learner.policy
        critic, pose, device = spec.views["critic"], spec.dreams.columns["after/qpos"], spec.device
        nu = vector(spec.action_width)
        own: Columns = {"mean": nu, "end": critic, "after/qpos": pose, "reward": NUMBER}
        self.columns = learner.policy.views | own | ENDS
        self.alike = torch.tensor(term_columns(spec, settings.alike), device=device).long()
        generator = torch.Generator().manual_seed(spec.seed + (3 << 32))  # not that of the policy
        layers = HiddenLayers(tuple(settings.hidden), "silu", generator)
        (width,), (nq,) = critic.shape, pose.shape
        nets = (mlp(width, 1, layers, 0.3) for _ in range(settings.members))
        self.ensemble: Any = nn.ModuleList(nets).to(device)
        self.mirror: Any = learner.policy.critic_mirror
        self.fitting = FlatAdam({"all": [*self.ensemble.parameters()]}, settings.learning_rate)
        # of the policy at the start
        self.actor: Any = copy.deepcopy(learner.policy.actor).requires_grad_(False)
        self.normalizer: Any = copy.deepcopy(learner.policy.critic_normalizer)
        self.targets = control_slope(spec).T  # (action_width, nu)
        self.rollouts = -(-round(settings.seconds / spec.dt) // spec.num_steps)  # of a clip
        # views, poses and whether an episode ended, of the last steps and of the first policy's
        self.clips = torch.zeros(
            self.rollouts * spec.num_steps, POOL, width + nq + 1, device=device
        )
        self.first, self.lately = torch.zeros_like(self.clips), self.clips.new_zeros(2)
        self.before = self.lately.clone()  # the task's reward and the falls of a step, as lately
        self.values = self.clips.new_zeros(len(self.metrics))
        self.value("coefficient").fill_(settings.coefficient)
        self.paid = torch.zeros((), dtype=torch.int64, device=device)  # iterations with answers
        learner.optimizer.rates["actor"].fill_(settings.rate)
        self.changes, self.rng = GroupChanges(learner.optimizer, "actor"), spec.rng(shared=True)
        self.labels, self.warned = None, False
        self.judge = load_judge(settings.judge) if settings.judge else None
        self.ours = (spec.worlds < POOL).nonzero().flatten()

    def value(self, name: str) -> Tensor:
        """() one of `metrics`, live."""
        return self.values[[metric.key for metric in self.metrics].index(name)]

    def rewards(self, x: Tensor) -> Tensor:
        """(members, …) r̂ of normalized views (…, nc): of a symmetric policy, the mean of both
        mirror images."""
        views = x[None] if self.mirror is None else torch.stack([x, self.mirror(x)])
        return torch.stack([net(views)[..., 0].mean(0) for net in self.ensemble])

    # -- an iteration, on the device ---------------------------------------------------------------

    @torch.no_grad()
    def add_reward(self, record: Record) -> None:
        """Write the reward in place of the task's. In place."""
        r, cfg, group, dt = record, self.cfg, self.spec.group, self.spec.dt
        self.changes.remember()
        r.rows.nan_to_num_(0.0, 0.0, 0.0)  # a world that failed may hold any number
        self.keep_clips(r)
        valid = (~r.fault).float()
        seen = self.actor.features(self.actor.normalizer(r.obs), r.column)
        mean, clip = self.actor.net(seen), self.spec.clip
        moved = (r.mean.clamp(-clip, clip) - mean.clamp(-clip, clip)) @ self.targets
        apart = moved.square().mean(-1)  # (T, B) [rad²]
        taste = self.rewards(self.normalizer(r.end)).mean(0)
        steps = [valid, taste, taste.square(), apart, r.reward, r.column("terminated")]
        sums = group.all_reduce((torch.stack(steps) * valid).sum((1, 2)))
        center, squares, far = (sums / sums[0].clamp(min=1))[1:4]
        spread = (squares - center.square()).clamp(min=1e-12).sqrt()
        answered = (self.value("answers") > 0).float()
        self.paid.add_(answered.long())
        goes = (self.paid > cfg.warm).float()
        self.adapt(far.sqrt(), goes)
        self.compare((sums / sums[0].clamp(min=1))[4:], goes)
        pay = cfg.weight * answered * (taste - center) / spread.clamp(min=1e-6)
        pay = pay - self.value("coefficient") * apart / cfg.budget**2
        fell = cfg.fall * r.column("terminated")
        r.reward.copy_((cfg.task * r.reward + dt * pay - fell) * valid)
        self.value("taste").copy_(center)

    def adapt(self, distance: Tensor, goes: Tensor) -> None:
        """Let the coefficient follow the distance (); goes: whether the actor learns. In place."""
        cfg, beta, done = self.cfg, self.value("coefficient"), self.value("done")
        allowed = cfg.budget * ((self.paid - cfg.warm) / cfg.ramp).clamp(1 / cfg.ramp, 1)
        off = (distance / allowed - 1).clamp(-1, 1)
        beta.mul_((cfg.gain * off * goes).exp()).clamp_(LEAST, MOST)
        done.copy_(torch.maximum(done, goes * (distance > cfg.budget)))
        self.value("distance").copy_(distance)

    def compare(self, task: Tensor, goes: Tensor) -> None:
        """Compare the task's reward and the falls of a step (2,) with those before: falls at a rate
        f leave e^(-f T) of the episodes of T steps whole. In place."""
        # before: of the last rollout, as episodes that have just begun earn less
        earned = 1 - goes * (1 - 1 / WINDOWS[0])
        rates = torch.stack([earned, 1 / (self.spec.iteration + 1).clamp(max=WINDOWS[1])])
        self.lately.lerp_(task, rates)
        self.before.copy_(torch.where(goes > 0, self.before, self.lately))
        reward, falls = self.lately - self.before
        whole = (-falls * self.spec.horizon).exp()
        self.value("kept").copy_(whole * (1 + reward / self.before[0].abs().clamp(min=1e-6)))

    def keep_clips(self, record: Record) -> None:
        """Keep the steps of the first worlds as the newest of their clips. In place."""
        ended = torch.stack([record.column(x) for x in ENDS]).amax(0)[..., None]
        steps = [record.end, getattr(record, "after/qpos"), ended]
        rows = torch.cat([x.index_select(1, self.ours) for x in steps], -1)
        new = self.clips.new_zeros(len(rows), *self.clips.shape[1:])
        new.index_copy_(1, self.spec.worlds[self.ours], rows)
        self.spec.group.all_reduce(new)
        self.clips.copy_(torch.cat([self.clips[len(new) :], new]))

    @torch.no_grad()
    def update(self, record: Record) -> None:
        """Take the actor's changes back while the critic learns alone, and at the end. In place."""
        self.changes.take_back((self.paid <= self.cfg.warm) | (self.value("done") > 0))

    # -- between iterations, on the host -----------------------------------------------------------

    def open(self, path: Path) -> None:
        self.labels = Labels(path)
        if self.cfg.labels and self.spec.group.rank == 0:
            self.labels.adopt(Path(self.cfg.labels))
            if not self.pairs():
                says = "its clips have other terms or another length, by reward.seconds, num_steps"
                raise ValueError(f"reward.labels={self.cfg.labels}: {says}")

    @property
    def terms(self) -> str:
        """The terms of the critic's view, as files of questions have them."""
        return json.dumps(self.spec.term_widths["critic"])

    def pairs(self, before: float = float("inf")) -> dict[str, Pair]:
        """The pairs that were asked before an iteration, of clips like those of this training."""
        assert self.labels
        like = 2, len(self.clips), self.spec.views["critic"].shape[0], self.terms
        found = self.labels.pairs(before)
        return {k: x for k, x in found.items() if (*x.view.shape, x.about.get("terms")) == like}

    def waits(self, iteration: int) -> str:
        """Which questions the training waits for, once it has asked them."""
        if self.labels is None or not self.round(iteration):
            return ""
        self.ask(iteration)
        if self.cfg.wait and not self.judge and (left := len(self.labels.waiting(iteration))):
            run = self.labels.path.parent
            return f"{left} pairs wait for an answer: play.py run={run} mode=label"
        self.labels.answers_at(iteration)
        return ""

    def round(self, iteration: int) -> int:
        """The number of the round before this iteration, from 1; 0 if none is due."""
        since = iteration - self.rollouts
        return 1 + since // self.cfg.every if since >= 0 and since % self.cfg.every == 0 else 0

    def between(self, iteration: int) -> None:
        """Take the reference at the start; in a round ask, read answers and learn from them."""
        if iteration == 0:  # now `start=` has given the weights
            self.actor.load_state_dict(self.policy.actor.state_dict())
            self.normalizer.load_state_dict(self.policy.critic_normalizer.state_dict())
        if iteration == self.rollouts:
            self.first.copy_(self.clips)
        if self.labels is None or not self.round(iteration):
            return
        if leads := self.spec.group.rank == 0:
            self.ask(iteration)
        if data := self.spec.group.broadcast(self.read(iteration) if leads else None):
            with torch_threads(self.spec.threads):
                self.learn(*data)
        kept = float(self.value("kept"))
        if leads and kept < KEPT and not self.warned:
            self.warned = True
            says = f"the task's reward and whole episodes are {kept:.2f} of what they were"
            ways = "lower reward.budget, or raise reward.task or reward.fall"
            errors.warn(f"warning: iteration {iteration}: {says}: {ways}")

    def ask(self, iteration: int) -> None:
        """Choose the pairs of a round and write them; a judge that is a program answers them."""
        assert self.labels
        rounds, cfg = self.round(iteration), self.cfg
        before = {name for name in self.pairs(iteration) if name[0].isdecimal()}  # of this run
        count = cfg.asked(rounds) - len(before)
        if count > 0 and f"{iteration:06d}:0" not in before:
            doubt = self.doubt if cfg.ask == "disagreement" and self.value("answers") > 0 else None
            chance = torch.Generator().manual_seed(self.spec.seed + (iteration << 32))
            now, first, alike = (x.cpu() for x in (self.clips, self.first, self.alike))
            chosen = choose_pairs(now, first, alike, count, cfg.across, doubt, chance)
            if chosen is None:
                says = "no two robots were told the same for a whole clip, see reward.alike"
                return errors.warn_once(f"warning: nothing is asked: {says}")
            asked, drawn = chosen
            width = self.spec.views["critic"].shape[0]
            about = {"dt": str(self.spec.dt), "terms": self.terms, "seed": str(self.spec.seed)}
            about |= {"policy": digest_of(self.policy), "drawn": str(drawn)}
            self.labels.ask(iteration, asked[..., :width], asked[..., width:-1], about)
        if self.judge:
            self.let_judge(self.judge, self.pairs(iteration))

    def doubt(self, pairs: Tensor) -> Tensor:
        """(n,) deviation of the ensemble's chances of pairs of clips (n, 2, T, …), on the CPU."""
        views = pairs[..., : self.spec.views["critic"].shape[0]].to(self.spec.device)
        return self.advantage(self.normalizer(views)).sigmoid().std(0).cpu()

    def let_judge(self, function: Judge, pairs: dict[str, Pair]) -> None:
        """Let a program answer the pairs that it has not answered."""
        assert self.labels and self.cfg.judge
        name = self.cfg.judge
        done = {pair for who, pair in self.labels.answers().valid() if who == name}
        for key, pair in pairs.items():
            if key in done:
                continue
            answer: Any = function(*named_terms(pair))
            if not isinstance(answer, str) or answer not in CHOICES:
                says = f"expected one of {', '.join(CHOICES)}"
                raise ValueError(f"reward.judge={name} answers {answer!r}: {says}")
            self.labels.answer(key, answer, name, pair.digest)

    def read(self, iteration: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Clips (n, 2, T, nc) of all answers, that the left is better (n,), and new ones (n,).

        Of the new ones, those count that were drawn by chance.
        """
        assert self.labels
        pairs, before = self.pairs(iteration), self.labels.lines_before(iteration)
        fit = self.labels.fitting(self.labels.answers_at(iteration), pairs)
        old = self.labels.answers(before).valid()
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for (who, name), answer in fit.items():
            pair, again = pairs[name.removesuffix(AGAIN)], name.endswith(AGAIN)
            chance = CHOICES[turned(answer) if again else answer]
            if chance is not None:
                fresh = (who, name) not in old and bool(pair.about["drawn"])
                counts = fresh and chance != 0.5
                found.append((pair.view, torch.tensor(chance), torch.tensor(counts)))
        stacks = [torch.stack(x) for x in zip(*found, strict=True)]
        return (stacks[0], stacks[1], stacks[2]) if stacks else None

    def learn(self, views: Tensor, wanted: Tensor, new: Tensor) -> None:
        """Fit the ensemble to all answers, after it was asked about the new ones. In place."""
        device, n, cfg = self.spec.device, len(wanted), self.cfg
        x, y = self.normalizer(views[:, :, ::STRIDE].to(device)), wanted.to(device)
        with torch.no_grad():
            if new.any():
                left = self.advantage(x[new]).sigmoid()
                right = ((left.mean(0) > 0.5).float() == y[new]).float()
                self.value("accuracy").copy_(right.mean())
                self.value("unsure").copy_(left.std(0).mean())
        self.value("answers").fill_(n)
        members = torch.arange(cfg.members, device=device)[:, None]
        # each member is without one answer of some: they differ where these do not tell
        seen = (torch.arange(n, device=device) % (cfg.members + 2) != members).float()
        orders = self.rng.permutations("preference/order", self.spec.iteration, cfg.epochs, n)
        target = y * (1 - 2 * SMOOTH) + SMOOTH
        for rows in (part for order in orders[:, 0] for part in order.split(BATCH)):
            self.step(x[rows], target[rows], seen[:, rows])

    def advantage(self, x: Tensor) -> Tensor:
        """(members, n) R(left) - R(right) of normalized clips (n, 2, T, nc): its sigmoid is P."""
        total = SCALE * self.rewards(x).mean(-1)
        return total[..., 0] - total[..., 1]

    @torch.enable_grad()
    def step(self, x: Tensor, target: Tensor, seen: Tensor) -> None:
        """One step on clips (n, 2, T, nc), and the answers that each member sees. In place."""
        left, wanted = self.advantage(x), target.expand_as(seen)
        losses = F.binary_cross_entropy_with_logits(left, wanted, seen, reduction="none")
        loss = losses.sum() / len(target)
        self.fitting.write(torch.autograd.grad(loss, list(self.fitting.gradients)))
        self.fitting.clip(loss.detach()[None])
        self.fitting.step()

    # -- what a training asks for ------------------------------------------------------------------

    def measures(self) -> Tensor:
        """(len(metrics),) of the last iteration."""
        return self.values.clone()

    def tensors(self) -> dict[str, Live]:
        nets = nn.ModuleDict(dict(ensemble=self.ensemble, actor=self.actor, norm=self.normalizer))
        own = {"paid": self.paid, "before": self.before, "lately": self.lately}
        own |= {"clips": self.clips, "first": self.first, "values": self.values}
        own |= nets.state_dict(keep_vars=True) | self.fitting.tensors()
        return shared("preference/", own)


def control_slope(spec: Spec) -> Tensor:
    """(nu, action_width) how the controls follow actions, in their units: rad of servos."""
    assert spec.dreams
    rows, n = spec.dreams.rows(), spec.action_width
    action = torch.zeros_like(rows["action"])
    rest = spec.dreams.act(rows, action)["ctrl"]
    ones = torch.eye(n, device=spec.device)
    moved = [spec.dreams.act(rows, (action + x).view_as(action))["ctrl"] - rest for x in 0.1 * ones]
    return torch.stack(moved, -1).mean(0) / 0.1


def digest_of(module: Any) -> str:
    """A hash of the weights of a module."""
    data = hashlib.sha256()
    for x in module.state_dict().values():
        data.update(x.detach().cpu().contiguous().numpy().tobytes())
    return data.hexdigest()[:16]
