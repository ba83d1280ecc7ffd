"""Steps an Env with a policy and writes what happens to a record, captured in CUDA graphs."""

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.core.graphs import PartTimer, capture
from gpusim_rl.core.record import ENDS, NUMBER, Column, Columns, Record, view_columns
from gpusim_rl.core.states import Live, per_world
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.dreams import row_columns
from gpusim_rl.envs.env import Env
from gpusim_rl.envs.fused_step import FusedStep, WholeSample, kept_rows
from gpusim_rl.envs.step import ended
from gpusim_rl.networks.policy import Policy, SampleInParts, restarted


def step_columns(env: Env, policy: Policy) -> Columns:
    """The columns that a control step of an Env can give, in the order in which it gives them.

    - `obs` (no,), `critic` (nc,): what actor and critic observe before the action; and the further
      views of the task, by their names;
    - `memory/…`: what the policy remembers before the action;
    - what `policy.sample` stores, such as `action` (nu,);
    - `end` (nc,): the critic's observation at the end of the step, before any restart;
    - `reward`, `terminated`, `truncated`, `fault`;
    - `end_obs` (no,): the actor's observation at the end, without noise;
    - `rows/…` and `after/…`, as `Dreams` has them.
    """
    views = env.views
    ends = dict(end=views["critic"], reward=NUMBER) | ENDS | dict(end_obs=views["actor"])
    blank = policy.blank_memory(1)
    memory = {f"memory/{name}": Column(tuple(x.shape[1:])) for name, x in blank.items()}
    return view_columns(views) | memory | policy.stored | ends | row_columns(env)


def choose_columns(requested: Columns, available: Columns) -> Columns:
    """The requested columns, in the order in which a step gives them; ValueError if one is not.

    A memory may be asked for in half precision.
    """
    for name, column in requested.items():
        exact = column._replace(dtype=torch.float32) if name.startswith("memory/") else column
        if available.get(name) != exact:
            choices = ", ".join(f"{k} {x.shape}" for k, x in available.items() if "/" not in k)
            raise ValueError(
                f"the learner wants the column {name!r} {column.shape} of {column.dtype}, "
                f"which a control step does not give: choose of {choices} or spec.dreams.columns"
            )
    return {name: requested[name] for name in available if name in requested}


class Collector:
    """Steps an Env with a policy. Everything is written in place; the device counts the step.

    Args:
        record: (T, B, …) of the Env's B rows, with columns of `step_columns`; after T steps it
            begins anew.
        graph: "parts" captures each part of a step. The physics of a Sim that is not capturable
            stays outside, and so does the rest of the step.
        timer: takes the time of each part.

    Attributes:
        row: (1,) int64, the one of the record that is written next.
        memory: what the policy remembers, name → (B, …). A restart makes a world's zero.
            `record.memory` is that before the first of the steps of the last `collect`.
    """

    def __init__(
        self,
        env: Env,
        policy: Policy,
        record: Record,
        *,
        graph: str,
        fuse: str = "off",
        timer: PartTimer,
    ):
        self.env, self.policy, self.record, self.timer = env, policy, record, timer
        self.memory = policy.blank_memory(env.num_rows)
        record.memory = policy.blank_memory(env.num_rows)
        env.shows_end = "end_obs" in record.columns
        self.row = torch.zeros(1, dtype=torch.int64, device=env.device)
        self.fused: FusedStep | None = None
        others = [name for name, x in policy.stored.items() if x.dtype != torch.float32]
        if fuse != "off" and others:
            reason = f"the policy stores {others[0]} as {policy.stored[others[0]].dtype}"
            print(f"a control step runs as torch: {reason}", file=sys.stderr, flush=True)
        elif fuse != "off":
            # it may be of the user's own
            whole = getattr(type(policy), "sample", None) is not SampleInParts.sample
            parts: Any = WholeSample(policy, env) if whole else policy
            show, memory = fuse == "show", self.memory
            self.fused = FusedStep(env, parts, memory, record, self.row, show=show)
        on = partial(capture, device=env.device, on=graph == "parts" and env.sim.capturable)
        self._prepare = on(self.fused.prepare) if self.fused else None
        parts = {"act": self.act, "physics": env.step_physics, "settle": self.finish_step}
        self.parts = {name: on(part) for name, part in parts.items()}

    def collect(self, steps: int) -> None:
        """So many control steps with the stochastic policy. In place."""
        # from here a learner unrolls the memory through the rollout
        write(self.record.memory, self.memory)
        if self._prepare:
            self._prepare()
        # Tiny tensors gain nothing from threads, and the physics needs the cores.
        with torch_threads(1):
            for _ in range(steps):
                for name, part in self.parts.items():
                    self.timer.start(name)
                    part()
        self.timer.start("")

    @torch.no_grad()
    def act(self) -> None:
        """The part of a step before the physics: sample an action from the policy. In place."""
        env, observation = self.env, self.env.observation
        self.record.put(self.row, {f"memory/{name}": x for name, x in self.memory.items()})
        if self.fused:
            write(self.memory, self.fused.compute())
            self.timer.start("control")
            return self.fused.act()
        sampled, memory = self.policy.sample(observation, self.memory, env.rng_of_agents)
        views = view_columns(observation)
        self.record.put(self.row, views | sampled | kept_rows(self.record, "rows", env.rows()))
        write(self.memory, memory)
        self.timer.start("control")  # in a graph it is a part of `act`
        env.apply_action(sampled["action"])

    @torch.no_grad()
    def finish_step(self) -> None:
        """The part after the physics. In place."""
        if self.fused:
            began = self.fused.finish()
        else:
            self.record.put(self.row, kept_rows(self.record, "after", self.env.rows()))
            end = self.env.finish_step()
            self.record.put(self.row, end._asdict())
            began = ended(end)
        if self.memory:
            write(self.memory, restarted(self.memory, began))
        # on the device, so that a replayed graph writes another row each time
        self.row.add_(1).remainder_(len(self.record))

    def tensors(self) -> dict[str, Live]:
        """The live tensors that a continuation needs beside the Env's, by name."""
        return per_world("memory/", self.memory)


def write(places: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Copy tensors by name. In place."""
    for name, place in places.items():
        place.copy_(values[name])
