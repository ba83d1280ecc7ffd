"""The samples of a rollout, which PPO learns from, and the minibatches taken from them."""

import torch
from torch import Tensor

from gpusim_rl.algorithms.ppo.settings import Settings
from gpusim_rl.algorithms.returns import end_values, gae, normalize_advantages, vtrace
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.record import NUMBER, Columns, Record, packed
from gpusim_rl.core.rng import Rng
from gpusim_rl.networks.policy import ActorCritic

WEIGHT_MAX = 2.0  # of π/μ; why 2: docs/decisions/ppo.md


def sample_columns(policy: ActorCritic) -> Columns:
    """The columns of a sample.

    - `obs` (no,), `critic` (nc,): normalized observations of actor and critic; and the further
      views that the actor sees, as they are;
    - `action` (nu,), and its `logp` and distribution under the policy to compare with;
    - `advantage`, normalized, and weighted if steps are corrected for; `target`, the return that
      the critic should predict;
    - `value` that it predicted; `valid`: 1, or 0 for a quarantined sample;
    - `begins`, for a policy that remembers: 1 where an episode begins after the first step.
    """
    remembers = bool(policy.blank_memory(1))
    numbers = ("advantage", "target", "value", "valid", *["begins"] * remembers)
    return policy.views | policy.stored | dict.fromkeys(numbers, NUMBER)


def clear_faults(rollout: Record, policy: ActorCritic) -> None:
    """Write zeros where a step was quarantined, and ones for its distribution. In place."""
    fault, columns = rollout.fault[..., None], policy.family.columns
    rollout.span("obs", "logp").masked_fill_(fault, 0.0)  # NaN times zero is NaN
    rollout.span(columns[0], columns[-1]).masked_fill_(fault, 1.0)
    for name, view in policy.actor.views.items():
        rollout.column(name).masked_fill_(fault.view(*fault.shape, *[1] * (len(view.shape) - 1)), 0)


@torch.no_grad()
def make_samples(
    rollout: Record,
    policy: ActorCritic,
    cfg: Settings,
    *,
    horizon: int,
    correction: str,
    group: ProcessGroup = SINGLE,
) -> dict[str, Tensor]:
    """The samples (T, B, …) of a rollout, with the normalizers of the policy.

    Clears what quarantined steps hold. `horizon` is that of an episode in control steps.

    Args:
        correction: of steps that an older policy than π took, with which the update begins. none:
            ratio, clip and KL divergence compare with the policy μ that acted. proximal: they
            compare with π, and advantages have the weights π/μ of Hilton et al. 2021, decoupled
            objective (arXiv:2110.00641). A bound of WEIGHT_MAX is ours. vtrace: as none, and the
            targets of the value function are those of π (Espeholt et al. 2018, section 4.1).
    """
    r, first = rollout, rollout.memory  # of the policy before the first step
    clear_faults(r, policy)
    obs, critic = policy.normalize(r.obs, r.critic)
    views = {name: r.column(name) for name in policy.actor.views}
    truncated, fault = r.truncated, r.fault
    begins = {"begins": r.first_steps()} if first else {}
    value, after = policy.values(critic, first, **begins)
    ends = end_values(value, [r.end, *after], truncated, policy.evaluate, horizon=horizon)
    steps = (r.reward, value, ends, r.terminated, truncated, fault)
    options = {"gamma": cfg.gamma, "lam": cfg.gae_lambda}
    valid = (~fault).float()
    reference = newest = {name: getattr(r, name) for name in policy.stored}
    if correction != "none":
        seen = policy.actor.features(obs, r.column)
        newest = policy.describe(policy.distributions(seen, first, **begins), r.action)
    if correction == "vtrace":
        advantage, change = vtrace(*steps, likelihood_ratio(newest, r), **options)
    else:
        advantage = change = gae(*steps, **options)
    advantage = normalize_advantages(advantage, valid, group)
    if correction == "proximal":
        advantage = advantage * likelihood_ratio(newest, r).clamp(max=WEIGHT_MAX)
        reference = newest
    numbers = dict(advantage=advantage, target=value + change, value=value, valid=valid)
    return dict(obs=obs, critic=critic) | views | reference | numbers | begins


def likelihood_ratio(newest: dict[str, Tensor], rollout: Record) -> Tensor:
    """(T, B) how much likelier the newest policy finds an action than the one that acted, π/μ."""
    return (newest["logp"] - rollout.logp).exp()


class Minibatches:
    """Samples in, minibatches out. All tensors are allocated once and written in place.

    Args:
        shape: (T, B) of the rollouts.
        policy: with symmetry=augment, a minibatch holds n samples and then their n mirror images.
        cfg: update_epochs are passes over the rollout, each in num_minibatches parts.
        first: a blank memory of the policy, name → (B, …). With it a minibatch holds whole worlds,
            T steps of each in their order.

    Attributes:
        samples: (T B, …) the numbers of all samples; beside: those of other types, by name;
            batch: (copies n, …) the current minibatch.
        order: (count, n) int64 rows of each of an update's minibatches.
        memory: of the worlds of the current minibatch, name → (n / T, …).
    """

    def __init__(
        self, shape: tuple[int, int], policy: ActorCritic, cfg: Settings, first: dict[str, Tensor]
    ):
        columns, device = sample_columns(policy), policy.min_std.device
        self.num_steps, self.num_rows = shape
        self.epochs, self.num_minibatches = cfg.update_epochs, cfg.num_minibatches
        mirrors = policy.mirrors if policy.symmetry == "augment" else None
        self.copies, parts = 2 if mirrors else 1, cfg.num_minibatches
        self.first, self.count = first, self.epochs * parts
        what, size = ("num_envs × agents", shape[1]) if first else ("num_steps", shape[0])
        if size % parts:
            raise ValueError(f"algo.num_minibatches={parts} does not divide {what}={size}")
        self.memory = {name: torch.zeros_like(x[: size // parts]) for name, x in first.items()}
        n = self.num_steps * self.num_rows // parts
        numbers = {name: x for name, x in columns.items() if x.storage == torch.float32}
        self.samples = Record.zeros(numbers, parts * n, device=device)
        self.beside: dict[str, Tensor] = {}
        self.batch = Record.zeros(columns, self.copies * n, device=device)
        self.mirror = None
        if mirrors:
            flips = mirrors._asdict() | policy.family.flips(mirrors.action)
            self.mirror = self.batch.mirror(flips).to(device)
        self._originals, self._images = self.batch.rows[:n], self.batch.rows[n:]
        self.order = torch.zeros(self.count, n, dtype=torch.int64, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._worlds = torch.arange(self.num_rows, device=device)[:, None]

    def fill(self, samples: dict[str, Tensor], first: dict[str, Tensor]) -> None:
        """Pack samples (T, B, …), to be taken from the first row of `order` on. In place.

        Of `first`, the policy's memory before the rollout, and of `beside` no copy is made.
        """
        self.first = first
        rows = {name: x.flatten(0, 1) for name, x in samples.items()}
        self.beside = {name: rows.pop(name) for name in samples if name not in self.samples.columns}
        packed(rows, out=self.samples.rows)
        self._next.zero_()

    def take(self) -> None:
        """Write the next minibatch to `batch`. In place."""
        rows = self.order.index_select(0, self._next)[0]
        torch.index_select(self.samples.rows, 0, rows, out=self._originals)
        for name, x in self.beside.items():
            self.batch.column(name).copy_(x.index_select(0, rows))
        for name, x in self.memory.items():  # the first rows are those of step 0
            torch.index_select(self.first[name], 0, rows[: len(x)], out=x)
        if self.mirror:
            self._images.copy_(self.mirror(self._originals))
        self._next += 1

    # Why: docs/decisions/ppo.md
    def shuffle(self, rng: Rng, iteration: Tensor) -> None:
        """Write a random order of the samples for each epoch to `order`. In place.

        Every minibatch has as many samples of each world, on whichever process it is. With memory
        the order is one of whole worlds, T rows of each, time first.
        """
        name, epochs, parts = "ppo/order", self.epochs, self.num_minibatches
        if self.first:
            worlds = draw_worlds(rng, name, iteration, epochs, parts, self.num_rows)
            steps = torch.arange(self.num_steps, device=worlds.device)[:, None] * self.num_rows
            torch.add(steps, worlds[:, None], out=self.order.view(self.count, *steps.shape[:1], -1))
            return
        steps = rng.permutations(name, iteration, epochs, self.num_steps)  # (epochs, B, T)
        steps = steps.view(epochs, self.num_rows, parts, -1).transpose(1, 2)
        order = self.order.view(steps.shape)
        torch.add(self._worlds, steps, alpha=self.num_rows, out=order)


def draw_worlds(
    rng: Rng, name: str, iteration: Tensor, epochs: int, parts: int, worlds: int
) -> Tensor:
    """(epochs parts, worlds / parts) int64: a random order of whole worlds for each epoch.

    Of `parts` neighbors each part has one, on whichever process they are.
    """
    drawn = rng.permutations(name, iteration, epochs, parts)[:, ::parts]
    drawn = drawn + torch.arange(0, worlds, parts, device=drawn.device)[:, None]
    return drawn.transpose(1, 2).reshape(epochs * parts, -1)
