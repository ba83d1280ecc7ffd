"""Soft actor-critic, as a training knows it."""

from functools import partial

from gpusim_rl.algorithms.cloning.settings import FILES
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.algorithms.sac.recurrent import RecurrentSAC
from gpusim_rl.algorithms.sac.sac import SAC
from gpusim_rl.algorithms.sac.settings import Settings
from gpusim_rl.core.priorities import Prioritized
from gpusim_rl.core.ring import RingSpec, Uniform


def learner_class(cfg: Settings) -> type[SAC]:
    """The class of the learner, which has a memory or not."""
    return SAC if cfg.memory == "none" else RecurrentSAC


def make_ring(cfg: Settings) -> RingSpec:
    """The ring, and how windows are drawn from it."""
    numbers = dict(exponent=cfg.priority_exponent, importance=cfg.importance_exponent)
    sampler = partial(Prioritized, **numbers) if cfg.draw == "prioritized" else Uniform
    return RingSpec(cfg.replay, cfg.save_ring, sampler)


SPEC = LearnerSpec(
    make=lambda spec, cfg: learner_class(cfg)(spec, cfg),
    make_policy=lambda spec, cfg: learner_class(cfg).make_policy(spec, cfg),
    settings=Settings,
    files=FILES,
    changeable=("gamma", "target_std", "tau", "learning_rate", "alpha_rate", "max_grad_norm"),
    ring=make_ring,
    begin=SAC.begin,
)
