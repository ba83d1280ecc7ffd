"""Central inference, after SEED (arXiv:1910.06591): a process computes the network of all actors.

An actor writes what the network takes to memory that the processes of a machine share, and waits
for what it gives. Noise and restarts are its own. The policy's memory goes along, so the server
keeps nothing between two requests, and may end at any time.
"""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import copy
import mmap
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpusim_rl.cluster.ledger import identity
from gpusim_rl.config.sections import Config
from gpusim_rl.core.files import Plain
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows
from gpusim_rl.envs.env import Env
from gpusim_rl.networks.policy import Policy, SampleInParts

ASKED, ANSWERED, VERSION = range(3)  # of a ticket: number of a request, and its policy


# Why: docs/decisions/cluster.md
class Exchange:
    """Tensors and pipes that the processes of a machine share. They end with the one that made it.

    ValueError unless the policy has the parts of `SampleInParts`.

    Args:
        env, policy: of the learner. rows: those of each actor. versions: of the policy, at once.

    Attributes:
        tensors: `inputs`, `memory`, `head` and `after`, name → (B, …) for the rows of all actors;
            `policy`, name → (versions, …); `counts`: `tickets` (actors, 3), and `served` (2,)
            requests and products.
        files: descriptors of the memory, of the pipe of requests, and of each actor's of answers.
    """

    def __init__(self, env: Env, policy: Policy, rows: Sequence[slice], versions: int):
        parts = SampleInParts  # a policy that samples otherwise would not ask
        if not isinstance(policy, parts) or type(policy).sample is not parts.sample:
            kind = type(policy).__name__
            raise ValueError(f"cluster.inference=central: {kind} has no `prepare` and `compute`")
        views, memory = env.observation, policy.blank_memory(env.num_rows)
        inputs = policy.prepare(views) | {
            x: views[x] for x in views if x not in ("actor", "critic")
        }
        with torch.no_grad():
            head, after = policy.compute(inputs, memory, env.rng_of_agents)
        of_rows = {"inputs": inputs, "memory": memory, "after": after, "head": {"head": head}}
        groups = [(name, layout(part, rows[-1].stop)) for name, part in of_rows.items()]
        groups += [
            ("policy", layout({k: x[None] for k, x in policy.state_dict().items()}, versions))
        ]
        groups += [("counts", [("tickets", np.int64, (len(rows), 3)), ("served", np.int64, 2)])]
        self.rows, self.layout = rows, np.dtype(groups, align=True)
        self.files = [os.memfd_create("gpusim_rl")]
        os.truncate(self.files[0], self.layout.itemsize)
        for _ in range(1 + len(rows)):
            end, other = os.pipe()
            self.files.append(end)  # which others open for writing, too
            os.close(other)
        self.tensors = self.map_tensors()

    def map_tensors(self) -> dict[str, Rows]:
        """The tensors in the shared memory, by group and name."""
        (memory,) = np.frombuffer(mmap.mmap(self.files[0], 0), self.layout)
        names = {group: memory[group].dtype.names or () for group in self.layout.names or ()}
        return {x: {y: torch.from_numpy(memory[x][y]) for y in names[x]} for x in names}

    def __getstate__(self) -> tuple[object, ...]:
        return self.rows, self.layout, [f"/proc/{os.getpid()}/fd/{x}" for x in self.files]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.rows, self.layout, paths = state
        self.files = [os.open(path, os.O_RDWR) for path in paths]
        self.tensors = self.map_tensors()

    def put(self, version: int, weights: dict[str, Tensor]) -> None:
        """Share a version of the policy, instead of the oldest one. In place."""
        for name, place in self.tensors["policy"].items():
            place[version % len(place)] = weights[f"policy/{name}"].detach()

    def close(self) -> None:
        while self.files:
            os.close(self.files.pop())


def layout(tensors: Rows, count: int) -> np.dtype[Any]:
    """That of so many rows as tensors (n, …) have."""
    rows = {name: x.detach().cpu().numpy() for name, x in tensors.items()}
    return np.dtype([(k, x.dtype, (count, *x.shape[1:])) for k, x in rows.items()], align=True)


class CentralCompute:
    """`PolicyParts.compute` of an actor in one of its lives, by the server."""

    def __init__(self, exchange: Exchange, actor: int, life: int):
        self.actor, self.version, rows = actor, 0, exchange.rows[actor]
        self.requests, self.answers = exchange.files[1], exchange.files[2 + actor]
        self.ticket = exchange.tensors["counts"]["tickets"][actor].numpy()
        groups = ("inputs", "memory", "head", "after")
        self.mine = {x: {k: y[rows] for k, y in exchange.tensors[x].items()} for x in groups}
        self.waited = 0.0  # s for answers
        self.number = life << 32  # an answer to an earlier life is none to this one

    def __call__(self, inputs: Rows, memory: Rows, rng: Rng) -> tuple[Tensor, Rows]:
        for places, values in (self.mine["inputs"], inputs), (self.mine["memory"], memory):
            for name, place in places.items():
                place.copy_(values[name])
        self.number += 1
        self.ticket[VERSION], self.ticket[ASKED] = self.version, self.number
        os.write(self.requests, np.uint16(self.actor).tobytes())
        start = time.monotonic()
        while self.ticket[ANSWERED] != self.number:
            os.read(self.answers, 64)
        self.waited += time.monotonic() - start
        return self.mine["head"]["head"], self.mine["after"]


class InferenceServer:
    """Answers actors, whoever asks at once in one product.

    `plain` is the configuration of the training, and the policy a copy of the learner's.
    """

    cores = 0  # of Ray's: it begins even where the actors have all of them

    def __init__(self, plain: Plain, policy: SampleInParts, exchange: Exchange, device: str):
        torch.set_num_threads(1)
        self.cfg, self.exchange, self.device = Config.of(plain), exchange, device
        self.rows = [torch.arange(x.start, x.stop) for x in exchange.rows]
        self.weights = exchange.tensors["policy"]
        count, policy = len(next(iter(self.weights.values()))), policy.to(torch.device(device))
        self.policies = [copy.deepcopy(policy) for _ in range(count)]
        self.versions = [-1] * count  # that they have

    def identity(self) -> dict[str, str]:
        """What the learner compares with its own before it takes anything from here."""
        return identity(self.cfg)

    def serve(self) -> None:
        """Answer requests for ever."""
        _, requests, *answers = self.exchange.files
        self.answer(range(len(answers)))  # those that a server before took and did not answer
        for pipe in answers:  # or did without a word
            os.write(pipe, b"x")
        while True:
            actors = np.frombuffer(os.read(requests, 4096), np.uint16)
            self.answer(sorted({*actors.tolist()}))

    @torch.no_grad()
    def answer(self, actors: Iterable[int]) -> None:
        """Answer those of some actors that wait. In place."""
        tensors, waiting = self.exchange.tensors, defaultdict[int, list[tuple[int, int]]](list)
        tickets = tensors["counts"]["tickets"].numpy()
        for actor in actors:
            asked, answered, version = tickets[actor].tolist()
            if asked != answered:
                waiting[version].append((actor, asked))
        for version, group in waiting.items():
            rows = torch.cat([self.rows[actor] for actor, _ in group])
            taken = {name: x[rows].to(self.device) for name, x in tensors["inputs"].items()}
            memory = {name: x[rows].to(self.device) for name, x in tensors["memory"].items()}
            # without random numbers, which `choose` draws
            head, after = self.policy_of(version).compute(taken, memory, None)
            tensors["head"]["head"][rows] = head.to("cpu")
            for name, place in tensors["after"].items():
                place[rows] = after[name].to("cpu")
            tensors["counts"]["served"] += torch.tensor([len(group), 1])
            for actor, asked in group:
                tickets[actor, ANSWERED] = asked
                os.write(self.exchange.files[2 + actor], b"x")

    def policy_of(self, version: int) -> SampleInParts:
        """A version of the policy."""
        i = version % len(self.policies)
        if self.versions[i] != version:
            named = {f"policy/{name}": x[i] for name, x in self.weights.items()}
            self.policies[i].load(named, f"version {version} of the policy")
            self.versions[i] = version
        return self.policies[i]
