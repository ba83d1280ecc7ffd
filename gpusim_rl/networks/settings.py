"""The numbers of the networks of an `ActorCritic`, which several learners have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusim_rl.core.ranges import FRAMES, POSITIVE, WIDTH
from gpusim_rl.core.sections import number, word


@dataclass(kw_only=True, frozen=True)
class MemorySettings:
    """What a policy remembers of an episode, which conf/algo/ppo.yaml explains."""

    memory: str = word("none", "gru", "attention")  # one of `ENCODERS`, or none
    memory_size: int = number(WIDTH)
    memory_frames: int = number(FRAMES)


@dataclass(kw_only=True, frozen=True)
class NetworkSettings(MemorySettings):
    """Layers, memory and noise of a policy, which conf/algo/ppo.yaml explains."""

    hidden: tuple[int, ...] = number(WIDTH)
    activation: str  # one of `LAYERS`
    std: float = number(POSITIVE)
    min_std: float = number(POSITIVE)
    amp: str | None  # the weights stay float32
    # view of the task → channels of the actor's convolutions on it
    encoders: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
