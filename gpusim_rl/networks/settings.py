"""The numbers of the networks of an `ActorCritic`, which several learners have."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import FRAMES, POSITIVE, WIDTH
from gpusim_rl.core.sections import number, word


@dataclass(kw_only=True, frozen=True)
class NetworkSettings:
    """Layers, memory and noise of a policy, which conf/algo/ppo.yaml explains."""

    hidden: tuple[int, ...] = number(WIDTH)
    activation: str  # one of `LAYERS`
    memory: str = word("none", "gru", "attention")  # one of `ENCODERS`, or none
    memory_size: int = number(WIDTH)
    memory_frames: int = number(FRAMES)
    std: float = number(POSITIVE)
    min_std: float = number(POSITIVE)
    amp: str | None  # the weights stay float32
