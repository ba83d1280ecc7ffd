"""Soft actor-critic, as a training knows it."""

from gpusim_rl.algorithms.cloning.settings import FILES
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.algorithms.sac.sac import SAC
from gpusim_rl.algorithms.sac.settings import Settings
from gpusim_rl.core.ring import RingSpec

SPEC = LearnerSpec(
    make=SAC,
    make_policy=SAC.make_policy,
    settings=Settings,
    files=FILES,
    changeable=("gamma", "target_std", "tau", "learning_rate", "alpha_rate", "max_grad_norm"),
    ring=lambda settings: RingSpec(settings.replay, settings.save_ring),
    begin=SAC.begin,
)
