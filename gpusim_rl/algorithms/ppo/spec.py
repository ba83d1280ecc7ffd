"""Proximal policy optimization, as a training knows it."""

from gpusim_rl.algorithms.cloning.cloning import Cloning
from gpusim_rl.algorithms.learner import LearnerSpec
from gpusim_rl.algorithms.ppo.ppo import PPO, make_policy
from gpusim_rl.algorithms.ppo.settings import Settings

SPEC = LearnerSpec(
    make=PPO,
    make_policy=make_policy,
    settings=Settings,
    changeable=(
        *("gamma", "gae_lambda", "clip_coef", "clip_value", "ent_coef", "target_kl"),
        *("max_std", "learning_rate", "lr_min", "lr_max", "lr_factor", "max_grad_norm"),
    ),
    # a policy that remembers is trained by whole worlds, so that minibatches divide them
    world_multiple=lambda x: x.num_minibatches if x.memory != "none" else 1,
    clone=Cloning,
)
