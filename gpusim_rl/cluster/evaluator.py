"""An evaluator: a copy of the policy, judged version by version. It knows no learner."""

from collections.abc import Callable
from typing import Any

import torch

from gpusim_rl.assembly.environment import build_env
from gpusim_rl.cluster.ledger import identity
from gpusim_rl.cluster.packing import Arrays, tensor
from gpusim_rl.config.sections import Config
from gpusim_rl.core.files import Plain
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.networks.policy import Policy


class Evaluator:
    """What an evaluation needs of an iteration: a policy, an Env and a schedule, on the CPU.

    `plain` is the configuration of the training, and the policy a copy of the learner's.
    """

    cores = 0  # of Ray's: it begins even where the actors have all of them

    def __init__(self, plain: Plain, policy: Policy):
        torch.set_num_threads(1)
        self.cfg, self.policy = Config.of(plain | {"device": "cpu"}), policy
        self.schedule = Curriculum(self.cfg.curriculum)
        self.env = build_env(self.cfg, 1, self.schedule)

    def identity(self) -> dict[str, str]:
        """What the learner compares with its own before it takes anything from here."""
        return identity(self.cfg)

    def success(
        self, evaluate: Callable[[Any], float], version: int, weights: Arrays, mean: float
    ) -> float:
        """The success of a version of the policy.

        mean: of the evaluations before, which numbers of the task may follow.
        """
        named = {name: tensor(x) for name, x in weights.items()}
        self.policy.load(named, f"version {version} of the policy")
        self.env.success.fill_(mean)
        return evaluate(self)
