"""Adversarial motion priors, as a training knows it."""

from gpusim_rl.algorithms.learner import RewardSpec
from gpusim_rl.algorithms.rewards.amp.amp import AMP
from gpusim_rl.algorithms.rewards.amp.settings import FILES, Settings

SPEC = RewardSpec(
    make=lambda spec, settings, learner: AMP(spec, settings),
    settings=Settings,
    changeable=("weight",),
    files=FILES,
)
