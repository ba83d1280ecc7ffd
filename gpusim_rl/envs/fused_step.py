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
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.step import ended
from gpusim_rl.fuse.kernel import Eager, Place, fuse


class PolicyParts(Protocol):
    """A policy's `sample` in three parts; the first and the last are pure, world by world.

    `prepare` takes the views (B, …) of both networks, and `compute` gives a tensor (B, n) and a
    memory. `choose` makes of them what is stored of an action, and the memory of the next step.
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
    streams of the worlds have joined the block.

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
        self.memory, self.inputs = memory, policy.prepare(list(env.observation))
        head, memory = policy.compute(self.inputs, memory, env.rng)
        # rows that one kernel writes for another
        self.scratch = named("policy", self.inputs) | {"step/head": head.clone()}
        policy.choose(head, memory, env.rng)  # its stream joins the block
        self.kernels: dict[str, Eager] = {}
        self.make_kernels()
        for kernel in self.kernels.values() if show else ():
            print(kernel.description, flush=True)
        self.restarted = self.scratch["step/restarted"]

    def make_kernels(self) -> None:
        """Make the kernels for the rows as they lie now."""
        for name in ("before", "after", "views"):
            self.kernels[name] = self._fuse(name, getattr(self, name))
        self.block = self.env.rng.rows()["rng/units"].data_ptr()

    @torch.no_grad()
    def prepare(self) -> None:
        """Observe once more, and prepare the views for normalizers that have changed. In place.

        A training that goes on from a checkpoint observes with torch. So does one that was never
        interrupted, that their bits agree.
        """
        self.env.update_observations()
        for key, value in self.policy.prepare(list(self.env.observation)).items():
            self.inputs[key].copy_(value)

    def _fuse(self, name: str, function: Callable[[Rows], Rows]) -> Eager:
        """A kernel that writes all rows that a function changes."""
        memory = named("policy/memory", self.memory) if name == "before" else {}
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
        columns = named("record", {name: self.record.column(name) for name in self.record.columns})
        places |= {key: Place(columns[key], self.t) for key in results if key in columns}
        kind = type(self.env.task).__name__
        return fuse(f"{kind}: the step's part {name!r}", function, rows, places)

    # -- the parts, each a pure function of rows ---------------------------------------------------

    def before(self, rows: Rows) -> Rows:
        """From what the network gives to the controls."""
        rng = self.env.rng.of_rows(rows)
        memory = {name: rows[f"policy/memory/{name}"] for name in self.memory}
        columns, memory = self.policy.choose(rows["step/head"], memory, rng)
        columns |= dict(obs=rows["view/actor"], critic=rows["view/critic"])
        columns |= kept_rows(self.record, "rows", rows)
        changed = self.env.act(rows, columns["action"]) | named("policy/memory", memory)
        return changed | named("record", columns)

    def after(self, rows: Rows) -> Rows:
        """From the physics to rewards, statistics, and the first states of what restarts."""
        env, worst, rng = self.env, self.env.worst_step, self.env.rng.of_rows(rows)
        end = env.end(rows, rng)
        mask, score = ended(end.step), worst.score(end.terms, end.reasons)
        changed = end.rows | env.begin_episodes(end.rows, end.state, mask, rng)
        numbers = worst.numbers(end.rows, end.terms, end.reasons)
        changed |= {"step/restarted": mask, "step/added": end.added, "step/score": score}
        changed |= {"step/worst": numbers, "step/worse": score > worst.row[0]}
        step = {name: x for name, x in end.step._asdict().items() if x is not None}
        return changed | named("record", step | kept_rows(self.record, "after", rows))

    def views(self, rows: Rows) -> Rows:
        """The observations after the restarts, prepared for the networks."""
        env, rng = self.env, self.env.rng.of_rows(rows)
        changed = env.observer.observe(env.state_of(rows), rows, rng, rows["step/restarted"])
        views = [changed["view/actor"], changed["view/critic"]]
        return changed | named("policy", self.policy.prepare(views))

    # -- a step ------------------------------------------------------------------------------------

    def compute(self) -> Rows:
        """The network, whose result goes to `step/head`; the memory after it. In place."""
        head, memory = self.policy.compute(self.inputs, self.memory, self.env.rng)
        self.scratch["step/head"].copy_(head)
        return memory

    def act(self) -> None:
        """Everything before the physics but the network, whose result is `step/head`. In place."""
        if self.env.rng.rows()["rng/units"].data_ptr() != self.block:
            self.make_kernels()  # a random stream joined, and the numbers lie elsewhere
        self.kernels["before"]()
        self.env.begin_step()

    def finish(self) -> None:
        """Everything after the physics. In place."""
        env, scratch = self.env, self.scratch
        self.kernels["after"]()
        env.worst_step.record(env.step_count, scratch["step/score"], scratch["step/worst"])
        env.statistics.add(scratch["step/added"])
        if not is_empty_on_host(self.restarted):
            env.reset(self.restarted, scratch["start/qpos"], scratch["start/qvel"])
        self.kernels["views"]()


def kept_rows(record: Record, group: str, rows: Rows) -> Rows:
    """The rows of which a record has a column `<group>/<name>`, by the names of the columns."""
    names = {x: x.partition("/") for x in record.columns}
    return {x: rows[name] for x, (first, _, name) in names.items() if first == group}


def named(prefix: str, values: Rows) -> Rows:
    """Values under names that begin with a prefix."""
    return {f"{prefix}/{name}": x for name, x in values.items()}
