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

    `prepare` takes the views of rows, `actor` and `critic`. `compute` takes what it made of them
    and the other views by their names; it gives a tensor (B, n) and the next memory. `choose` makes
    of the tensor what is stored of an action.
    """

    def prepare(self, views: Any) -> Rows: ...
    def compute(self, inputs: Rows, memory: Rows) -> tuple[Tensor, Rows]: ...
    def choose(self, head: Tensor, rng: Rng) -> Rows: ...


class WholeSample:
    """The parts of any policy with float32 columns alone: `sample` stands outside the kernels."""

    def __init__(self, policy: Any, env: Env):
        self.policy, self.env = policy, env

    def prepare(self, views: Any) -> Rows:
        """Nothing: `sample` takes the views as they are."""
        return {}

    def compute(self, inputs: Rows, memory: Rows) -> tuple[Tensor, Rows]:
        """What `sample` gives, side by side, and the next memory."""
        columns, memory = self.policy.sample(self.env.observation, memory, self.env.rng)
        return packed(columns), memory

    def choose(self, head: Tensor, rng: Rng) -> Rows:
        """The columns of `compute`."""
        columns = self.policy.stored
        widths = [math.prod(x.shape) for x in columns.values()]
        parts = zip(columns.items(), head.split(widths, 1), strict=True)
        return {name: part.reshape(-1, *x.shape) for (name, x), part in parts}


# Why: docs/decisions/step-kernels.md
class FusedStep:
    """Steps an Env with a policy. Every kernel computes what `Env` computes with torch.

    The products of the network stand before the first kernel, and the physics after it. A kernel
    writes the rows of the worlds, those of the record, and what the other kernels need. All random
    streams of the worlds have joined the block.

    memory: what the policy remembers, as it is at first. record: (R, B, …) takes what a step gives,
    at row t (1,). show: print what each kernel replaces, and the file of its source.

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
        self.inputs = policy.prepare(env.observation)
        head, _ = policy.compute(self.inputs | env.observer.further, memory)
        # rows that one kernel writes for another
        self.scratch = named("policy", self.inputs) | {"step/head": head.clone()}
        policy.choose(head, env.rng)  # its stream joins the block
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
        for key, value in self.policy.prepare(self.env.observation).items():
            self.inputs[key].copy_(value)

    def _fuse(self, name: str, function: Callable[[Rows], Rows]) -> Eager:
        """A kernel that writes all rows that a function changes."""
        rows = self.env.rows() | self.scratch
        results = function(rows)
        for key, value in results.items():
            if key not in rows and not key.startswith("record/"):
                self.scratch[key] = torch.zeros_like(value)
        rows = self.env.rows() | self.scratch
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
        columns = self.policy.choose(rows["step/head"], rng)
        columns |= dict(obs=rows["view/actor"], critic=rows["view/critic"])
        return self.env.act(rows, columns["action"]) | named("record", columns)

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
        return changed | named("record", step)

    def views(self, rows: Rows) -> Rows:
        """The observations after the restarts, prepared for the networks."""
        env, rng = self.env, self.env.rng.of_rows(rows)
        changed = env.observer.observe(env.state_of(rows), rows, rng, rows["step/restarted"])
        views = {name: changed[f"view/{name}"] for name in env.observer.rows_seen}
        return changed | named("policy", self.policy.prepare(views))

    # -- a step ------------------------------------------------------------------------------------

    def compute(self, memory: Rows) -> Rows:
        """The network, whose result goes to `step/head`; the next memory. In place."""
        further = self.env.observer.further
        head, memory = self.policy.compute(self.inputs | further, memory)
        self.record.put(self.t, further)
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
        env.write_views()


def named(prefix: str, values: Rows) -> Rows:
    """Values under names that begin with a prefix."""
    return {f"{prefix}/{name}": x for name, x in values.items()}
