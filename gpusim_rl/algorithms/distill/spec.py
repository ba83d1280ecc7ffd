"""Distillation, as a training knows it."""

from gpusim_rl.algorithms.distill.distill import Distill, make_policy
from gpusim_rl.algorithms.distill.settings import FILES, Settings
from gpusim_rl.algorithms.learner import LearnerSpec

SPEC = LearnerSpec(
    make=Distill,
    make_policy=make_policy,
    settings=Settings,
    files=FILES,
    changeable=("share", "learning_rate", "max_grad_norm"),
    world_multiple=lambda settings: settings.num_minibatches,  # minibatches are of whole worlds
)
