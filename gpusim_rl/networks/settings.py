"""The numbers of the networks of an `ActorCritic`, which several learners have."""

from dataclasses import dataclass

from gpusim_rl.core.ranges import FRAMES, POSITIVE, WIDTH
from gpusim_rl.core.sections import number, word


@dataclass(kw_only=True, frozen=True)
class NetworkSettings:
    """Layers, memory and noise of a policy.

    Args:
        hidden: widths of the hidden layers of both networks; activation: one of `LAYERS`.
        memory: puts an encoder of `ENCODERS` before the layers of each network; "none" does not.
            memory_size: numbers of its features. memory_frames: what attention sees.
        std: standard deviation of the actions, at first; min_std: the smallest that it becomes.
        amp: "bf16" multiplies matrices in bfloat16 while training. The weights stay float32.
    """

    hidden: tuple[int, ...] = number(WIDTH)
    activation: str
    memory: str = word("none", "gru", "attention")
    memory_size: int = number(WIDTH)
    memory_frames: int = number(FRAMES)
    std: float = number(POSITIVE)
    min_std: float = number(POSITIVE)
    amp: str | None
