"""A control step as three kernels: before the physics, after it, and the views that follow."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from gpusim_rl.core.graphs import is_empty_on_host
from gpusim_rl.core.record import Record, packed
from gpusim_rl.core.rng import Rng
from gpusim_rl.core.states import Rows
from gpusim_rl.envs.agents import folded, of_each, unfolded
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.step import ended
from gpusim_rl.fuse.kernel import Eager, Place, fuse


class PolicyParts(Protocol):
    """A policy's `sample` in three parts; the first and the last are pure, world by world.

    `prepare` takes the views of rows, `actor` and `critic`. `compute` takes what it made of them
    and the other views by their names; it gives a tensor (B, n) and a memory. `choose` makes of
    them what is stored of an action, and the memory of the next step.
    """

    def prepare(self, views: Any) -> Rows: ...
    def compute(self, inputs: Rows, memory: Rows, rng: Rng) -> tuple[Tensor, Rows]: ...
    def choose(self, head: Tensor, memory: Rows, rng: Rng) -> tuple[Rows, Rows]: ...


class WholeSample:
    """The parts of any policy with float32 columns alone: `sample` stands outside the kernels."""

    def __init__(self, policy: Any, env: Env):
        self.policy, self.env = policy, env

    def prepare(self, views: Any) -> Rows:
        """Nothing: `sample` takes the views as they are."""
        return {}

    def compute(self, inputs: Rows, memory: Rows, rng: Rng) -> tuple[Tensor, Rows]:
        """What `sample` gives, side by side, and the next memory."""
        columns, memory = self.policy.sample(self.env.observation, memory, rng)
        return packed(columns), memory

    def choose(self, head: Tensor, memory: Rows, rng: Rng) -> tuple[Rows, Rows]:
        """The columns of `compute`, and the memory as it is."""
        columns = self.policy.stored
        widths = [math.prod(x.shape) for x in columns.values()]
        parts = zip(columns.items(), head.split(widths, 1), strict=True)
        return {name: part.reshape(-1, *x.shape) for (name, x), part in parts}, memory


# Why: docs/decisions/step-kernels.md
class FusedStep:
    """Steps an Env with a policy. Every kernel computes what `Env` computes with torch.

    The products of the network stand before the first kernel, and the physics after it. A kernel
    writes the rows of the worlds, those of the record, and what the other kernels need. All random
    streams of the worlds have joined the block. A thread is a world. What the policy does of a row
    stands in its kernel once for each agent.

    memory: what the policy remembers, live. record: (R, B, …) takes what a step gives, at row
    t (1,). show: print what each kernel replaces, and the file of its source.

    Attributes:
        inputs: what `PolicyParts.prepare` made of the views.
        restarted: (B,) bool, the worlds that began an episode in the last step.
        kernels: by their names, `before`, `after` and `views`.
    """

    @torch.no_grad()
    def __init__(
        self,
        env: Env,
        policy: PolicyParts,
        memory: Rows,
        record: Record,
        t: Tensor,
        *,
        show: bool = False,
    ):
        self.env, self.policy, self.record, self.t = env, policy, record, t
        self.memory, self.inputs = memory, policy.prepare(env.observation)
        head, memory = policy.compute(self.inputs | env.observer.further, memory, env.rng_of_agents)
        # rows that one kernel writes for another, and those of the agents
        self.head = head.clone()
        self.scratch = named("policy", self._of_worlds(self.inputs))
        self.scratch |= {"step/head": unfolded(self.head, env.agents)}
        policy.choose(head, memory, env.rng_of_agents)  # its stream joins the block
        self.kernels: dict[str, Eager] = {}
        self.make_kernels()
        for kernel in self.kernels.values() if show else ():
            print(kernel.description, flush=True)
        self.restarted = self.scratch["step/restarted"]

    def _of_worlds(self, rows: Rows, axis: int = 0) -> Rows:
        """Rows along an axis as those of worlds: (B·A, …) → (B, A, …), views."""
        return {name: unfolded(x, self.env.agents, axis) for name, x in rows.items()}

    def make_kernels(self) -> None:
        """Make the kernels for the rows as they lie now."""
        for name in ("before", "after", "views"):
            self.kernels[name] = self._fuse(name, getattr(self, name))
        self.blocks = self._blocks()

    def _blocks(self) -> list[int]:
        """Where the random numbers of the worlds and of the agents lie."""
        of_both = self.env.rng, self.env.rng_of_agents
        return [rng.rows()["rng/units"].data_ptr() for rng in of_both]

    @torch.no_grad()
    def prepare(self) -> None:
        """Observe once more, and prepare the views for normalizers that have changed. In place.

        A training that goes on from a checkpoint observes with torch. So does one that was never
        interrupted, that their bits agree.
        """
        self.env.update_observations()
        for key, value in self.policy.prepare(self.env.observation).items():
            self.inputs[key].copy_(value)

    def _fuse(self, name: str, function: Callable[[Rows], Rows]) -> Eager:
        """A kernel that writes all rows that a function changes."""
        memory = self._of_worlds(named("policy/memory", self.memory)) if name == "before" else {}
        rows = self.env.rows() | self.scratch | memory
        results = function(rows)
        for key, value in results.items():
            if key not in rows and not key.startswith("record/"):
                self.scratch[key] = torch.zeros_like(value)
        rows = self.env.rows() | self.scratch | memory
        places = {
            key: Place(rows[key], mask_name="step/worse" if key == "step/worst" else "")
            for key, value in results.items()
            if key in rows and value is not rows[key]
        }
        columns = {name: self.record.column(name) for name in self.record.columns}
        columns = named("record", self._of_worlds(columns, 1))
        places |= {key: Place(columns[key], self.t) for key in results if key in columns}
        places = {key: place for key, place in places.items() if place.tensor.numel()}
        kind = type(self.env.task).__name__
        return fuse(f"{kind}: the step's part {name!r}", function, rows, places)

    # -- the parts, each a pure function of rows ---------------------------------------------------

    def before(self, rows: Rows) -> Rows:
        """From what the network gives to the controls."""
        env = self.env
        values = {name: rows[name] for name in ("step/head", *named("policy/memory", self.memory))}
        chosen = self._by_agent(self.choose, values | env.numbers_of_agents(rows))
        views = dict(obs=rows["view/actor"], critic=rows["view/critic"])
        views |= kept_rows(self.record, "rows", rows)
        return env.act(rows, chosen["record/action"]) | chosen | named("record", views)

    def choose(self, rows: Rows) -> Rows:
        """What the policy stores of one agent's action, and what changes of its memory."""
        rng = self.env.rng_of_agents.of_rows(rows)
        memory = {name: rows[f"policy/memory/{name}"] for name in self.memory}
        columns, after = self.policy.choose(rows["step/head"], memory, rng)
        after = {name: x for name, x in after.items() if x is not memory[name]}
        return named("record", columns) | named("policy/memory", after)

    def _by_agent(self, function: Callable[[Rows], Rows], rows: Rows) -> Rows:
        """A function of the rows of one agent, for each of them: (B, A, …) → (B, A, …)."""
        if self.env.agents == 1:
            return function(rows)
        each = range(self.env.agents)
        parts = [function({name: x[:, a] for name, x in rows.items()}) for a in each]
        return {name: torch.stack([part[name] for part in parts], 1) for name in parts[0]}

    def after(self, rows: Rows) -> Rows:
        """From the physics to rewards, statistics, and the first states of what restarts."""
        env, worst, rng = self.env, self.env.worst_step, self.env.rng.of_rows(rows)
        end = env.end(rows, rng)
        mask, score = ended(end.step), worst.score(end.terms, end.reasons)
        changed = end.rows | env.begin_episodes(end.rows, end.state, mask, rng)
        numbers = worst.numbers(end.rows, end.terms, end.reasons)
        changed |= {"step/restarted": mask, "step/added": end.added, "step/score": score}
        changed |= {"step/worst": numbers, "step/worse": score > worst.row[0]}
        step = end.step.of_each(env.agents)._asdict()
        step = {name: x for name, x in step.items() if x is not None}
        return changed | named("record", step | kept_rows(self.record, "after", rows))

    def views(self, rows: Rows) -> Rows:
        """The observations after the restarts, prepared for the networks."""
        env, rng = self.env, self.env.rng.of_rows(rows)
        changed = env.observer.observe(env.state_of(rows), rows, rng, rows["step/restarted"])
        views = {name: changed[f"view/{name}"] for name in env.observer.rows_seen}
        prepared = self._by_agent(self.policy.prepare, views)
        return changed | named("policy", prepared)

    # -- a step ------------------------------------------------------------------------------------

    def compute(self) -> Rows:
        """The network, whose result goes to `step/head`; the memory after it. In place."""
        env, further = self.env, self.env.observer.further
        head, memory = self.policy.compute(self.inputs | further, self.memory, env.rng_of_agents)
        self.record.put(self.t, further)
        self.head.copy_(head)
        return memory

    def act(self) -> None:
        """Everything before the physics but the network, whose result is `step/head`. In place."""
        if self._blocks() != self.blocks:
            self.make_kernels()  # a random stream joined, and the numbers lie elsewhere
        self.kernels["before"]()
        self.env.begin_step()

    def finish(self) -> Tensor:
        """Everything after the physics: (B·A,) bool, the rows that begin an episode. In place."""
        env, scratch = self.env, self.scratch
        self.kernels["after"]()
        env.worst_step.record(env.step_count, scratch["step/score"], scratch["step/worst"])
        env.statistics.add(scratch["step/added"])
        if not is_empty_on_host(self.restarted):
            env.reset(self.restarted, scratch["start/qpos"], scratch["start/qvel"])
        self.kernels["views"]()
        env.write_views()
        return folded(of_each(self.restarted, env.agents), env.agents)


def kept_rows(record: Record, group: str, rows: Rows) -> Rows:
    """The rows of which a record has a column `<group>/<name>`, by the names of the columns."""
    names = {x: x.partition("/") for x in record.columns}
    return {x: rows[name] for x, (first, _, name) in names.items() if first == group}


def named(prefix: str, values: Rows) -> Rows:
    """Values under names that begin with a prefix."""
    return {f"{prefix}/{name}": x for name, x in values.items()}
