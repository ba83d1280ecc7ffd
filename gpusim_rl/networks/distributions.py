"""Distributions of actions, as a network's output makes them; each is a value, not a module."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from torch import Tensor

from gpusim_rl.core.maths import entropy, log_prob
from gpusim_rl.core.record import Record
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.symmetry import Flip


class Distribution(Protocol):
    """A distribution of actions (…, nu), as far as every learner needs it."""

    # its parameters by name, each with nu numbers, which may all be 1. A record stores them, so
    # that `kl` can compare with that of another policy
    columns: ClassVar[tuple[str, ...]]

    @classmethod
    def from_record(cls, record: Record) -> Self: ...  # the one that its columns hold
    @classmethod
    def flips(cls, action: Flip) -> dict[str, Flip]: ...  # how columns look in an action's mirror
    @property
    def mode(self) -> Tensor: ...  # (…, nu) the action without noise: what is exported
    def sample(self, rng: Rng) -> Tensor: ...  # (B, nu) an action for each world
    def log_prob(self, x: Tensor) -> Tensor: ...  # (…) of actions x (…, nu)
    def entropy(self) -> Tensor: ...  # (…) [nat], or () where it is the same in every state
    def kl(self, old: Self) -> Tensor: ...  # (…) KL(old ‖ self) [nat]


@dataclass(frozen=True)
class Gaussian:
    """N(mean, diag std²): mean (…, nu), and std that broadcasts with it."""

    mean: Tensor
    std: Tensor
    columns: ClassVar[tuple[str, ...]] = ("mean", "std")

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """The Gaussian of a record's columns `mean` and `std`."""
        return cls(record.mean, record.std)

    @classmethod
    def flips(cls, action: Flip) -> dict[str, Flip]:
        """The mean is mirrored as actions are. A deviation changes places, but has no sign."""
        return dict(mean=action, std=Flip(action.order, tuple(abs(sign) for sign in action.signs)))

    @property
    def mode(self) -> Tensor:
        """(…, nu) the mean."""
        return self.mean

    def sample(self, rng: Rng) -> Tensor:
        """(B, nu) mean + std ε."""
        return self.mean + self.std * rng.normal("policy/action", self.mean.shape[1])

    def log_prob(self, x: Tensor) -> Tensor:
        """(…) log-density at x (…, nu)."""
        return log_prob(x, self.mean, self.std)

    def entropy(self) -> Tensor:
        """Differential entropy [nat], of the shape of std without its last axis."""
        return entropy(self.std)

    def kl(self, old: Self) -> Tensor:
        """(…) KL(old ‖ self) = Σ log σ/σ_old + (σ_old² + (μ_old - μ)²) / 2σ² - ½."""
        spread = (old.std**2 + (old.mean - self.mean) ** 2) / (2 * self.std**2)
        return (self.std.log() - old.std.log() + spread - 0.5).sum(-1)
