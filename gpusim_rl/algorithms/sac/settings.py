"""The numbers of soft actor-critic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusim_rl.core.ranges import COUNT, POSITIVE, SHARE, WIDTH, Range
from gpusim_rl.core.sections import check, number, word
from gpusim_rl.networks.settings import MemorySettings

BURN_IN = 8  # control steps, for a gated recurrent unit


@dataclass(kw_only=True, frozen=True)
class SoftSettings:
    """Numbers of all learners from a ring, with a temperature. What a curriculum changes is a
    tensor ()."""

    gamma: float = number(SHARE)
    replay: int = number(COUNT)
    save_ring: bool
    warmup: int = number(COUNT)
    updates: int = number(COUNT)
    batch_size: int = number(COUNT)
    learning_rate: float = number(POSITIVE)
    alpha: float = number(POSITIVE)
    alpha_rate: float = number(POSITIVE)
    target_std: float = number(POSITIVE)
    tau: float = number(Range(0, 1, above=True))
    bound: float = number(POSITIVE)
    std: float = number(Range(0.01, 2.0))
    max_grad_norm: float = number(POSITIVE)
    symmetry: str = word("auto", "none", "net")
    tf32: bool
    hidden: tuple[int, ...] = number(WIDTH)
    activation: str

    def __post_init__(self) -> None:
        check(self, "algo")


@dataclass(kw_only=True, frozen=True)
class Settings(MemorySettings, SoftSettings):
    """What conf/algo/sac.yaml explains."""

    policy_delay: int = number(COUNT)
    window: int = number(COUNT)
    encoders: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    draw: str = word("uniform", "prioritized")
    priority_exponent: float = number(SHARE)
    importance_exponent: float = number(SHARE)
    burn_in: int | None = number(Range(0, whole=True, null=True, single=True))
    sequence: int = number(COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window >= self.replay:
            raise ValueError(f"algo.window={self.window}: expected less than algo.replay")
        if self.memory == "none" and self.burn_in is not None:
            raise ValueError(f"algo.burn_in={self.burn_in} needs algo.memory=gru")
        if self.memory == "attention" and self.burn_in is not None:
            says = "attention sees algo.memory_frames, and they are its burn-in: set null"
            raise ValueError(f"algo.burn_in={self.burn_in}: {says}")
        if self.memory != "none" and self.sequence_rows > self.replay:
            what = f"burn_in={self.steps_before}, algo.sequence={self.sequence}"
            wanted = f"at least {self.sequence_rows}, for algo.{what} and algo.window={self.window}"
            raise ValueError(f"algo.replay={self.replay}: expected {wanted}")

    @property
    def steps_before(self) -> int:
        """Control steps before a sequence that renew the memory."""
        frames = self.memory_frames - 1
        default = frames if self.memory == "attention" else BURN_IN
        return default if self.burn_in is None else self.burn_in

    @property
    def sequence_rows(self) -> int:
        """Rows of the ring that a sequence reads, with those that renew the memory."""
        return self.steps_before + self.sequence + self.window
