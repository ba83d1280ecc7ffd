"""A policy that learns from a teacher: who acts, and what is stored of it."""

# torch has no types for some of its members:
# pyright: reportUnknownVariableType=false

from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.record import Columns, vector
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows
from gpusim_rl.networks.policy import ActorCritic, Memory, Views, blank_memory


class Student(ActorCritic):
    """The actor of an `ActorCritic`. While it learns, a teacher acts in a share of the worlds.

    The teacher's observation is the first columns of the critic's, and any view of the task. It
    acts in a world at a step with a probability `share`, β (). `clip` is the largest action.
    """

    def __init__(self, teacher: Any, clip: float, share: Any, *network: Any, **symmetry: Any):
        super().__init__(*network, **symmetry)
        del self.critic, self.critic_normalizer  # a student has a teacher instead
        self.guide = teacher, clip, share  # as a tuple, it is no part of the module's state

    @property
    def stored(self) -> Columns:
        """The action that was taken, and the one that the teacher wanted."""
        return dict.fromkeys(("action", "target"), vector(len(self.log_std)))

    def groups(self) -> dict[str, Any]:
        """The parameters that learn: the standard deviation stays as it is."""
        return {"actor": list(self.actor.parameters())}

    def blank_memory(self, worlds: int) -> Memory:
        """The memory as an episode begins, name → (worlds, …): zeros."""
        return blank_memory(worlds, actor=self.actor.net)

    def prepare(self, views: Views) -> dict[str, Tensor]:
        """Normalized observations; the teacher's terms are the first of the critic's."""
        normalizer = self.guide[0].normalizer
        seen = views["critic"][:, : len(normalizer.mean)]
        return {"obs": self.actor.normalizer(views["actor"]), "teacher": normalizer(seen)}

    def compute(self, inputs: dict[str, Tensor], memory: Memory, rng: Rng) -> tuple[Tensor, Memory]:
        """The networks: the mean actions of student and teacher (B, 2 nu), and the next memory."""
        teacher = self.guide[0]
        target = teacher.net(teacher.features(inputs["teacher"], inputs.__getitem__))
        x = self.actor.features(inputs["obs"], inputs.__getitem__)
        if not memory:
            return torch.cat((self.mean(x), target), 1), memory
        mean, after = self._run(self.actor.net, x, memory["actor"])
        return torch.cat((mean, target), 1), memory | {"actor": after}

    def choose(self, mean: Tensor, memory: Memory, rng: Rng) -> tuple[dict[str, Tensor], Memory]:
        """a = π*(s) + σ ε with probability β, else π(o) + σ ε; and π*(s) within the limits."""
        student, teacher = mean.chunk(2, 1)
        # what Env takes: a mean of the teacher may lie far beyond it
        _, clip, share = self.guide
        target = teacher.clamp(-clip, clip)
        obeys = rng.uniform("distill/obeys", 0.0, 1.0) < share
        noise = self.std * rng.normal("policy/action", student.shape[1])
        action = torch.where(obeys[:, None], target, student) + noise
        return dict(action=action, target=target), memory

    def unroll(self, views: Rows, memory: Memory, begins: Tensor) -> Tensor:
        """Mean actions (T, B, nu) of columns `obs` (T, B, no) and further views, from the memory
        before the first."""
        steps, rows = begins.shape, {name: x.flatten(0, 1) for name, x in views.items()}
        x = self.actor.features(self.actor.normalizer(rows["obs"]), rows.__getitem__)
        if not memory:
            return self.mean(x).unflatten(0, steps)
        x = x.view(*steps, -1)
        return self._run(self.actor.net.unroll, x, memory["actor"], begins)[0]
