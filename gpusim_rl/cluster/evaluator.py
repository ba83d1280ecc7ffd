"""Evaluations beside the learner, in a process of their own, each of the policy of one version."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpusim_rl.build.environment import build_env
from gpusim_rl.cluster.actor import identity
from gpusim_rl.cluster.engine import ProcessLost
from gpusim_rl.config.sections import Config
from gpusim_rl.core.packing import Arrays, tensor
from gpusim_rl.envs.curriculum import Curriculum

if TYPE_CHECKING:
    from gpusim_rl.cluster.source import RemoteSource


class Evaluator:
    """What an evaluation needs of an iteration: a policy, an Env and a schedule, on the CPU.

    Args:
        plain: the configuration of the training; policy: a copy of the learner's.
    """

    cores = 0  # of Ray's: it begins even where the actors have all of them

    def __init__(self, plain: dict[str, Any], policy: Any):
        torch.set_num_threads(1)
        self.cfg, self.policy = Config.of(plain), policy
        self.schedule = Curriculum(self.cfg.curriculum)
        self.env = build_env(self.cfg.replace({"device": "cpu"}), 1, self.schedule)

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


# Why: docs/decisions/0107-evaluations-beside-the-learner.md
class RemoteEvaluator:
    """Has policies evaluated in another process, one after the other.

    The process is started for the first of them. If it ends, the next one repeats what it was at.

    Args:
        source: whose engine starts it, and whose weights are evaluated.

    Attributes:
        pid: of the process, once it has begun; 0 before.
    """

    def __init__(self, source: "RemoteSource"):
        self.source, self.process, self.pid, self.deaths = source, None, 0, 0

    def begin(self, evaluate: Callable[[Any], float], mean: float) -> None:
        """Let the policy of now be evaluated."""
        self.request = evaluate, self.source.version, self.source.weights(), mean
        self.send()

    def send(self) -> None:
        """Ask the process, or a new one if there is none."""
        engine = self.source.engine
        if not self.process:
            self.process, self.begun = engine.start(Evaluator, {}, *self.source.about[:2])
        self.asked = engine.call(self.process, "success", *self.request)

    def result(self, wait: bool) -> float | None:
        """The success of what was begun last; None if it is not known yet.

        Raises:
            ValueError: the process is of another version or task.
            PeerLost: it ends again and again.
        """
        engine, name = self.source.engine, "the evaluator"
        while engine.ready([self.begun], wait):
            try:
                self.pid, about = engine.get(self.begun)
                self.source.check_identity(name, self.process, about)
                if not engine.ready([self.asked], wait):
                    break
                success, self.deaths = engine.get(self.asked), 0
                return success
            except ProcessLost as error:
                self.deaths += 1
                self.source.count_death(name, self.pid, self.deaths, "has ended", error)
                self.process, self.pid = None, 0
                self.send()
        return None
