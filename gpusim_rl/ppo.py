"""Proximal policy optimisation (arXiv:1707.06347) as robot learners expect it: loss, update and one iteration."""

from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from gpusim_rl.env import Env
from gpusim_rl.maths import entropy, log_prob, total
from gpusim_rl.policy import Policy
from gpusim_rl.returns import gae
from gpusim_rl.rollout import Rollout

STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipped", "actor_norm", "critic_norm")


@dataclass(kw_only=True)
class Settings:
    """The numbers of PPO, in CleanRL's names.

    Args:
        gamma, gae_lambda: of the returns.
        clip_coef: ε of the clipped surrogate.
        clip_value: how far a value may move in one update, in units of the return.
        ent_coef: weight of the entropy bonus.
        update_epochs, num_minibatches: passes over a rollout, and parts of each.
        learning_rate, lr_min, lr_max: of the actor; it adapts between the bounds. The critic keeps learning_rate.
        target_kl: the rate shrinks by lr_factor above twice this KL [nat] and grows below half of it.
        max_grad_norm: for the actor and for the critic.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    clip_value: float = 1.0
    ent_coef: float = 0.003
    update_epochs: int = 5
    num_minibatches: int = 4
    learning_rate: float = 1e-3
    lr_min: float = 1e-5
    lr_max: float = 1e-2
    lr_factor: float = 1.2
    target_kl: float = 0.01
    max_grad_norm: float = 1.0


class Batch:
    """A minibatch: columns (n,) or (n, width) of one packed tensor, so that one gather serves all. Views are normalised."""

    def __init__(self, packed: Tensor, no: int, nc: int, nu: int):
        self.obs, self.critic, self.action, self.mean, rest = packed.split([no, nc, nu, nu, 5], dim=1)
        self.logp, self.advantage, self.target, self.value, self.valid = rest.unbind(1)


def loss(policy: Policy, batch: Batch, old_std: Tensor, cfg: Settings) -> tuple[Tensor, Tensor]:
    """The loss to descend and the sums of its statistics (5,): each a sum over valid samples over their global count.

    L = Σ valid · [ max(-A ρ, -A clip(ρ, 1 ± ε)) + ½ max((V - R)², (V_clip - R)²) - c_H H ] / Σ valid
    """
    share = batch.valid / total(batch.valid.sum()).clamp(min=1)
    mean, std = policy.actor.net(batch.obs), policy.std
    log_ratio = log_prob(batch.action, mean, std) - batch.logp
    ratio = log_ratio.exp()
    surrogate = torch.minimum(batch.advantage * ratio, batch.advantage * ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef))
    value = policy.critic(batch.critic).squeeze(-1)
    near = batch.value + (value - batch.value).clamp(-cfg.clip_value, cfg.clip_value)
    value_loss = 0.5 * torch.maximum((value - batch.target) ** 2, (near - batch.target) ** 2)
    bonus = entropy(std)
    policy_loss, value_loss = -(surrogate * share).sum(), (value_loss * share).sum()
    with torch.no_grad():
        # KL(old ‖ new) of two diagonal Gaussians, exact: far less noisy than an estimate from the ratios
        spread = (old_std**2 + (batch.mean - mean) ** 2) / (2 * std**2)
        kl = ((std.log() - old_std.log() + spread - 0.5).sum(-1) * share).sum()
        clipped = (((ratio - 1).abs() > cfg.clip_coef) * share).sum()
        stats = total(torch.stack([policy_loss, value_loss, bonus * share.sum(), kl, clipped]))
    return policy_loss + value_loss - cfg.ent_coef * bonus * share.sum(), stats


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

    Args:
        env: the environment; policy: on env's device.
        num_steps: T of a rollout.
        cfg: the numbers.
    """

    def __init__(self, env: Env, policy: Policy, *, num_steps: int, cfg: Settings):
        self.env, self.policy, self.cfg = env, policy, cfg
        self.rollout = Rollout(env, num_steps)
        self.size = num_steps * env.num_envs
        if self.size % cfg.num_minibatches:
            raise ValueError(f"algo.num_minibatches={cfg.num_minibatches} does not divide num_steps × num_envs = {self.size}")
        device = env.device
        self.iteration_count = torch.zeros((), dtype=torch.int64, device=device)
        self.actor_rate = torch.tensor(cfg.learning_rate, device=device)
        self.critic_rate = torch.tensor(cfg.learning_rate, device=device)
        self.actor_params = [*policy.actor.parameters(), policy.log_std]
        self.critic_params = list(policy.critic.parameters())
        groups = [
            {"params": self.actor_params, "lr": self.actor_rate},
            {"params": self.critic_params, "lr": self.critic_rate},
        ]
        self.optimiser = torch.optim.Adam(groups, eps=1e-5, fused=True, capturable=device.type == "cuda")
        self.stats = torch.zeros(len(STATS), device=device)
        self.iterations = 0  # the host's own count
        self.seconds = {"rollout": 0.0, "update": 0.0}

    def iteration(self) -> None:
        """Collect a rollout and learn from it. Nothing here reads a tensor on the host."""
        start = perf_counter()
        with torch_threads(1):  # tiny tensors gain nothing from threads, and the engine's own need the cores
            self.rollout.collect(self.env, self.policy)
        middle = perf_counter()
        # A team of OpenMP threads waits for its slowest: one on every core stalls whenever anything else runs.
        with torch_threads(max(1, torch.get_num_threads() // 2)):
            self.update()
        self.iteration_count += 1
        self.iterations += 1
        self.seconds["rollout"] += middle - start
        self.seconds["update"] += perf_counter() - middle

    def update(self) -> None:
        """All epochs over the rollout; then the normalisers absorb it. In place."""
        packed = self.pack()
        old_std = self.policy.std.detach().clone()
        cfg, (no, nc, nu) = (
            self.cfg,
            (x.shape[-1] for x in (self.rollout.obs, self.rollout.critic, self.rollout.action)),
        )
        order = self.env.noise.permutations("ppo/order", self.iteration_count, cfg.update_epochs, self.size)
        self.stats.zero_()
        for part in order.view(cfg.update_epochs * cfg.num_minibatches, -1):
            self.minibatch(Batch(packed.index_select(0, part), no, nc, nu), old_std)
        self.stats /= cfg.update_epochs * cfg.num_minibatches
        valid = ~self.rollout.fault.flatten()
        self.policy.actor.normaliser.absorb(self.rollout.obs.flatten(0, 1), valid)
        self.policy.seer.absorb(self.rollout.critic.flatten(0, 1), valid)

    @torch.no_grad()
    def pack(self) -> Tensor:
        """(T B, …) the columns of `Batch`: advantages normalised over the global batch, views normalised as when acting."""
        r, policy, cfg = self.rollout, self.policy, self.cfg
        obs, critic = policy.actor.normaliser(r.obs), policy.seer(r.critic)
        value = policy.critic(critic).squeeze(-1)
        ends = (r.terminated, r.truncated, r.fault)
        advantage = gae(r.reward, value, policy.value(r.end), *ends, gamma=cfg.gamma, lam=cfg.gae_lambda)
        target = value + advantage
        valid = (~r.fault).float()
        count = total(valid.sum()).clamp(min=1)
        mean = total((advantage * valid).sum()) / count
        var = total(((advantage - mean) ** 2 * valid).sum()) / count
        advantage = (advantage - mean) / (var.sqrt() + 1e-8)
        rest = torch.stack([r.logp, advantage, target, value, valid], dim=-1)
        return torch.cat([obs, critic, r.action, r.mean, rest], dim=-1).flatten(0, 1)

    def minibatch(self, batch: Batch, old_std: Tensor) -> None:
        """One step of the optimiser, and of the actor's learning rate. In place."""
        cfg = self.cfg
        self.optimiser.zero_grad(set_to_none=False)
        objective, stats = loss(self.policy, batch, old_std, cfg)
        objective.backward()
        norms = []
        for params in (self.actor_params, self.critic_params):
            for p in params:
                assert p.grad is not None
                total(p.grad)
            norms.append(nn.utils.clip_grad_norm_(params, cfg.max_grad_norm, foreach=True))
        kl = stats[3]
        factor = torch.where(kl > 2 * cfg.target_kl, 1 / cfg.lr_factor, torch.where(kl < cfg.target_kl / 2, cfg.lr_factor, 1.0))
        self.actor_rate.mul_(factor).clamp_(cfg.lr_min, cfg.lr_max)
        self.optimiser.step()
        self.stats += torch.cat([stats, torch.stack(norms)])

    # -- outside the iteration: what is logged, saved and shown --------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Means since the last call, read from the device once."""
        rest = torch.cat([self.stats, torch.stack([self.actor_rate, self.policy.std.detach().mean()])]).tolist()
        metrics = self.env.metrics() | dict(zip([*STATS, "learning_rate", "std"], rest, strict=True))
        rollout, update, physics = self.seconds["rollout"], self.seconds["update"], self.env.physics_seconds
        spent = max(rollout + update, 1e-9)
        metrics |= {"steps_per_s": self.env.steps_taken * self.env.num_envs / spent}
        metrics |= {
            "share/physics": physics / spent,
            "share/policy": (rollout - physics) / spent,
            "share/update": update / spent,
        }
        self.seconds = {"rollout": 0.0, "update": 0.0}
        self.env.physics_seconds, self.env.steps_taken = 0.0, 0
        return metrics

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
        self.iterations = int(self.iteration_count)

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
        for i, p in enumerate([*self.actor_params, *self.critic_params]):
            slot = self.optimiser.state[p]
            if not slot:  # as Adam would make it at its first step
                slot |= {"step": torch.zeros((), device=p.device), "exp_avg": torch.zeros_like(p)}
                slot["exp_avg_sq"] = torch.zeros_like(p)
            own |= {f"adam/{i}/{key}": value for key, value in slot.items()}
        own |= {"ppo/actor_rate": self.actor_rate, "ppo/critic_rate": self.critic_rate, "ppo/stats": self.stats}
        return own | {"ppo/iteration": self.iteration_count}
