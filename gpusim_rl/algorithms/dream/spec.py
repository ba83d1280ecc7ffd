"""The learner that dreams, as a training knows it."""

from gpusim_rl.algorithms.dream.dream import Dream
from gpusim_rl.algorithms.dream.settings import Settings
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.core.ring import RingSpec

SPEC = LearnerSpec(
    make=Dream,
    make_policy=Dream.make_policy,
    settings=Settings,
    changeable=("gamma", "lam", "target_std", "tau", "learning_rate", "alpha_rate", "model_rate"),
    ring=lambda settings: RingSpec(settings.replay, settings.save_ring),
    dreams=True,
)
