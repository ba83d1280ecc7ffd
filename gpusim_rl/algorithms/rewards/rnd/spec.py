"""Random network distillation, as a training knows it."""

from gpusim_rl.algorithms.learner import RewardSpec
from gpusim_rl.algorithms.rewards.rnd.rnd import RND
from gpusim_rl.algorithms.rewards.rnd.settings import Settings

SPEC = RewardSpec(
    make=lambda spec, settings, learner: RND(spec, settings),
    settings=Settings,
    changeable=("weight",),
)
