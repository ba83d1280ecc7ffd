"""Steps an Env with a policy and writes what happens to a record, captured in CUDA graphs."""

from functools import partial

import torch
from torch import Tensor

from gpusim_rl.core.graphs import Phases, capture
from gpusim_rl.core.record import FLAG, NUMBER, Record
from gpusim_rl.core.states import Live, per_world
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.step import ended
from gpusim_rl.networks.policy import Policy, restarted


def step_widths(env: Env, policy: Policy) -> dict[str, int]:
    """The columns of a control step.

    - `obs` (no,), `critic` (nc,): what actor and critic observe before the action;
    - what `policy.sample` stores, such as `action` (nu,);
    - `end` (nc,): the critic's observation at the end of the step, before any restart;
    - `reward`, `terminated`, `truncated`, `fault`.
    """
    no, nc, _ = env.dims
    ends = dict(end=nc, reward=NUMBER, terminated=FLAG, truncated=FLAG, fault=FLAG)
    return dict(obs=no, critic=nc) | policy.stored | ends


class Collector:
    """Steps B worlds with a policy. Everything is written in place; the device counts the step.

    Args:
        env: the environment; policy: on env's device.
        record: (T, B, …) with the columns of `step_widths`; after T steps it begins anew.
        graph: "parts" captures each part of a step. The physics of a Sim that is not capturable
            stays outside, and so does the rest of the step.

    Attributes:
        memory: what the policy remembers, name → (B, …). A restart makes a world's zero.
        first: the memory before the first of the T steps.
        phases: the time that each part takes.
    """

    def __init__(self, env: Env, policy: Policy, record: Record, *, graph: str):
        self.env, self.policy, self.record = env, policy, record
        self.memory = policy.blank_memory(env.num_envs)
        self.first = policy.blank_memory(env.num_envs)
        self.phases = Phases(env.device)
        self._t = torch.zeros(1, dtype=torch.int64, device=env.device)
        on = partial(capture, device=env.device, on=graph == "parts" and env.sim.capturable)
        parts = {"act": self.act, "physics": env.advance, "settle": self.settle}
        self.parts = {name: on(part) for name, part in parts.items()}

    def collect(self) -> None:
        """T control steps with the stochastic policy. In place."""
        write(self.first, self.memory)
        # Tiny tensors gain nothing from threads, and the physics needs the cores.
        with torch_threads(1):
            for _ in range(len(self.record.rows)):
                for name, part in self.parts.items():
                    self.phases.mark(name)
                    part()
        self.phases.mark("")

    @torch.no_grad()
    def act(self) -> None:
        """The part of a step before the physics: sample an action from the policy. In place."""
        env, observation = self.env, self.env.observation
        sampled, memory = self.policy.sample(observation, self.memory, env.rng)
        self.record.put(self._t, dict(obs=observation.actor, critic=observation.critic) | sampled)
        write(self.memory, memory)
        self.phases.mark("control")  # in a graph it is a part of `act`
        env.act(sampled["action"])

    @torch.no_grad()
    def settle(self) -> None:
        """The part after the physics. In place."""
        end = self.env.settle()
        self.record.put(self._t, end._asdict())
        if self.memory:
            write(self.memory, restarted(self.memory, ended(end)))
        self._t.add_(1).remainder_(len(self.record.rows))

    def tensors(self) -> dict[str, Live]:
        """The live tensors that a continuation needs, by their names in a checkpoint."""
        return self.env.tensors() | per_world("memory/", self.memory)


def write(places: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Copy tensors by name. In place."""
    for name, place in places.items():
        place.copy_(values[name])
