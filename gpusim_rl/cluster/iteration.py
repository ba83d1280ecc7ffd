"""An iteration whose steps come from actors in other processes."""

# torch has no types for some of its members:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.algorithms.iteration import Evaluation, Iteration
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.assembly.iteration import join_learner
from gpusim_rl.assembly.learners import load_learner
from gpusim_rl.cluster.packing import tensor
from gpusim_rl.cluster.source import RemoteSource, ReportSums
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.states import (
    Live,
    check_layout,
    copy_state,
    load_state,
    per_world,
    state_layout,
)
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.curriculum import Curriculum

METRICS = (
    Metric("cluster/lag", "cluster/lag", "updates that a policy was behind, mean", ".2f", "lag"),
    Metric("cluster/lag_max", "cluster/lag_max", "the largest lag", ".0f"),
    Metric("cluster/refused", "cluster/refused", "refused packets, in all", ".0f", "refused"),
    Metric("cluster/deaths", "cluster/deaths", "processes that ended, in all", ".0f"),
    Metric("cluster/missing", "cluster/missing", "actors that give nothing now", ".0f"),
    Metric("cluster/lost", "cluster/lost", "packets that ended with an actor, in all", ".0f"),
    Metric("cluster/bytes", "cluster/bytes", "bytes of a control step on the wire", ".0f"),
    Metric("cluster/idle", "cluster/idle", "share that the busiest actor waited", ".2f"),
    Metric("cluster/slowest", "cluster/slowest", "slowest actor over the median one", ".2f"),
)


class ClusterIteration(Iteration):
    """The iteration of a learner without worlds. Its Env has one, which is never stepped."""

    source: RemoteSource

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.metrics = (*self.metrics, *METRICS)
        self.source.timer = self.timer
        self.source.numbers = {k: x for k, x in self.numbers.items() if k.startswith("task.")}

    def update(self) -> None:
        """Learn from what was collected. In place."""
        if self.ring:
            for worlds in self.source.broken_off:
                self.ring.cut(worlds)
            self.source.broken_off.clear()
        super().update()
        self.source.version += 1

    def sums(self) -> tuple[list[str], Tensor]:
        """Names and sums since the last report, those of the actors."""
        names, values = super().sums()
        spent = self.source.spent
        if spent.steps:
            sums = torch.cat([spent.means, spent.means.new_tensor([spent.steps])])
            sums = self.group.all_reduce(sums)
            values[len(self.env.statistics.totals) :] = sums[:-1] / sums[-1]
        return names, values

    def report(self) -> Callable[[], dict[str, float]]:
        """As `Iteration` has it, with the columns of the cluster."""
        columns, read = self.columns(), super().report()
        self.source.spent = ReportSums()
        return lambda: read() | columns

    def columns(self) -> dict[str, float]:
        """What the log says of packets and actors since the last report, of all ranks."""
        source, spent, group = self.source, self.source.spent, self.group
        figures = [spent.bytes, spent.steps, sum(spent.lags), len(spent.lags), source.missing()]
        figures += [sum(source.ledger.refusals.values()), source.deaths, source.ledger.lost()]
        slots = [[x.seconds, x.idle] for x in source.slots]
        device = self.env.device if group.size > 1 else "cpu"  # where that needs no wait
        parts = (torch.tensor(x, dtype=torch.float64, device=device) for x in ([figures], slots))
        figures, slots = (group.all_gather(x) for x in parts)
        # read on the host here, in a report, outside the iteration
        nbytes, steps, lags, packets, missing, refused, deaths, lost = figures.sum(0).tolist()
        # in step all wait for each other, so what an actor waits says nothing about it
        seconds = sorted(x + y * (not source.sync) for x, y in slots.tolist())
        for slot in source.slots:
            slot.died = False
        return {
            "cluster/lag": lags / max(packets, 1),
            "cluster/lag_max": group.max(max(spent.lags, default=0)),
            "cluster/refused": refused,
            "cluster/deaths": deaths,
            "cluster/lost": lost,
            "cluster/bytes": nbytes / max(steps, 1),
            "cluster/missing": missing,
            "cluster/idle": min(y / max(x + y, 1e-9) for x, y in slots.tolist()),
            "cluster/slowest": seconds[-1] / max(seconds[(len(seconds) - 1) // 2], 1e-9),
        }

    def learned(self) -> dict[str, Live]:
        """As `Iteration` has it, with those of the Env's tensors that the actors do not have."""
        live = self.env.tensors()
        names = "success", *self.env.statistics.sums_by_name()
        ring = self.ring.tensors() if self.ring else {}
        return super().learned() | {f"env/{name}": live[f"env/{name}"] for name in names} | ring

    def worlds(self) -> dict[str, Live]:
        """The live tensors of the actors, by name, as a learner with one world would have them."""
        return self.env.tensors() | per_world("memory/", self.policy.blank_memory(self.env.agents))

    def state(self) -> dict[str, Tensor]:
        """As `Iteration` has it. In sync mode it is that of one process with all worlds."""
        state = copy_state(self.learned() | self.source.tensors(), self.group)
        if self.source.sync:
            states = self.source.states()
            worlds = {name: x.worlds for name, x in self.worlds().items() if name not in state}
            for name, rows in worlds.items():
                parts = [tensor(x[name]).to(self.env.device) for x in states]
                state[name] = self.group.all_gather(torch.cat(parts)) if rows else parts[0]
        return state

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue from what `state` returned, exactly in sync mode. In place, or not at all."""
        source, group = self.source, self.group
        with self.life_of(state):
            learned = self.learned()
            layout = state_layout(learned, group)
            if source.sync:
                worlds, count = self.worlds(), group.size * self.spec.num_rows // self.env.agents
                layout |= {
                    name: ((count * len(x), *x.shape[1:]) if rows else tuple(x.shape), x.dtype)
                    for name, (x, rows) in worlds.items()
                    if name not in layout
                }
                check_layout(state, layout, where)
                source.load(state, {name: rows for name, (_, rows) in worlds.items()})
            else:
                mine = {name: x for name, x in state.items() if name in learned}
                check_layout(mine, layout, where)
                source.begin_again(int(state.get("cluster/lives", torch.zeros(1)).max()))
        self.begin_anew()
        load_state(learned, state, group)
        source.refuse_earlier()
        self.read_counts()

    def load_learned(self, state: dict[str, Tensor], where: str) -> None:
        """As `Iteration` has it. Packets that were collected before are refused."""
        super().load_learned(state, where)
        self.source.refuse_earlier()

    def begin_evaluation(self, evaluate: Callable[[Any], float]) -> Evaluation:
        """As `Iteration` has it; where actors are ahead of the learner, in a process beside it."""
        if self.source.sync:  # it would be waited for
            return super().begin_evaluation(evaluate)
        self.source.evaluator.begin(evaluate, self.env.success.item())
        return self.source.evaluator.result

    def close(self) -> None:
        self.source.close()


def make_iteration(cfg: Config, *, group: ProcessGroup = SINGLE) -> Iteration:
    """The learner of a configuration without worlds, and the actors that have them.

    ValueError in one line if something does not fit.
    """
    if cfg.num_envs % group.size:
        raise ValueError(f"num_envs={cfg.num_envs} does not divide into {group.size} ranks")
    algorithm = load_learner(cfg.algo.name, cfg.algo_code)
    if algorithm.make_source:
        raise ValueError(f"cluster=ray: algo={cfg.algo.name} takes its steps from elsewhere")
    section, ring = cfg.cluster, algorithm.ring is not None
    if section.spread != 1 and (section.sync or not ring):
        says = "for a learner from a ring, with cluster.sync=false"
        raise ValueError(f"cluster.spread={section.spread:g} is {says}: set 1")
    with torch_threads(cfg.threads):
        return join_learner(
            cfg,
            build_env(cfg, group.size, Curriculum(cfg.curriculum), group=group),
            graph="off" if cfg.graph == "off" else "parts",
            make_source=partial(RemoteSource, cfg, own_worlds=ring),
            num_envs=cfg.num_envs // group.size,
            older_policy=cfg.cluster.lag_limit > 0,
            iteration=ClusterIteration,
        )
