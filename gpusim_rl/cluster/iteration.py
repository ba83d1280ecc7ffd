"""An iteration whose steps come from actors in other processes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpusim_rl.algorithms.iteration import Iteration
from gpusim_rl.algorithms.learner import Learner
from gpusim_rl.build.environment import build_env
from gpusim_rl.build.joining import join
from gpusim_rl.build.learners import load_learner
from gpusim_rl.cluster.source import RemoteSource, Spent
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import SINGLE, ProcessGroup
from gpusim_rl.core.metrics import Metric
from gpusim_rl.core.record import Record
from gpusim_rl.core.states import check_layout, copy_state, load_state, per_world, state_layout
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.envs.env import Env

METRICS = (
    Metric("cluster/lag", "cluster/lag", "updates that a policy was behind, mean", ".2f", "lag"),
    Metric("cluster/lag_max", "cluster/lag_max", "the largest lag", ".0f"),
    Metric("cluster/refused", "cluster/refused", "refused packets, in all", ".0f", "refused"),
    Metric("cluster/deaths", "cluster/deaths", "actors that ended, in all", ".0f"),
    Metric("cluster/missing", "cluster/missing", "actors that give nothing now", ".0f"),
    Metric("cluster/lost", "cluster/lost", "packets that ended with an actor, in all", ".0f"),
    Metric("cluster/bytes", "cluster/bytes", "bytes of a control step on the wire", ".0f"),
    Metric(
        "cluster/idle", "cluster/idle", "share of the time that the busiest actor waited", ".2f"
    ),
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
        super().update()
        self.source.version += 1

    def sums(self) -> tuple[list[str], Tensor]:
        """Names and sums since the last report, those of the actors."""
        names, values = super().sums()
        spent = self.source.spent
        if spent.steps:
            totals = len(self.env.statistics.totals)
            values = torch.cat([values[:totals], spent.means / spent.steps])
        return names, values

    def report(self) -> Callable[[], dict[str, float]]:
        """As `Iteration` has it, with the columns of the cluster."""
        columns, read = self.columns(), super().report()
        self.source.spent = Spent()
        return lambda: read() | columns

    def columns(self) -> dict[str, float]:
        """What the log says of packets and actors since the last report."""
        source, spent = self.source, self.source.spent
        # in step all wait for each other, so what an actor waits says nothing about it
        seconds = sorted(x.seconds + x.idle * (not source.sync) for x in source.seats)
        idle = min(x.idle / max(x.idle + x.seconds, 1e-9) for x in source.seats)
        values = {
            "cluster/lag": sum(spent.lags) / max(len(spent.lags), 1),
            "cluster/lag_max": max(spent.lags, default=0),
            "cluster/refused": sum(source.ledger.refusals.values()),
            "cluster/deaths": source.deaths,
            "cluster/lost": source.ledger.lost(),
            "cluster/bytes": spent.bytes / max(spent.steps, 1),
            "cluster/missing": source.missing(),
            "cluster/idle": idle,
            "cluster/slowest": seconds[-1] / max(seconds[(len(seconds) - 1) // 2], 1e-9),
        }
        for seat in source.seats:
            seat.died = False
        return values

    def state(self) -> dict[str, Tensor]:
        """As `Iteration` has it. In sync mode it is that of one process with all worlds."""
        state = copy_state(self.learned() | self.source.tensors())
        if self.source.sync:
            worlds = self.source.state()
            state |= {name: x.to(self.env.device) for name, x in worlds.items()}
            state |= copy_state({name: self.env.tensors()[name] for name in self.ours()})
        return state

    def ours(self) -> list[str]:
        """Names of the Env's tensors that the learner has, and not the actors."""
        return ["env/success", *(f"env/{name}" for name in self.env.statistics.sums_by_name())]

    def load(self, state: dict[str, Tensor], where: str) -> None:
        """Continue from what `state` returned, exactly in sync mode. In place, or not at all."""
        learned, source = self.learned(), self.source
        worlds = self.env.tensors() | per_world("memory/", self.policy.blank_memory(1))
        if source.sync:
            expected = {
                name: ((self.spec.num_envs, *x.shape[1:]) if rows else tuple(x.shape), x.dtype)
                for name, (x, rows) in worlds.items()
            }
            check_layout(state, state_layout(learned) | expected, where)
            load_state({name: worlds[name] for name in self.ours()}, state)
            source.load(state, {name: x.worlds for name, x in worlds.items()})
        else:
            mine = {name: x for name, x in state.items() if name in learned}
            check_layout(mine, state_layout(learned), where)
            lives = state.get("cluster/lives", torch.zeros(0, dtype=torch.int64))
            source.begin_again(lives.tolist())
        load_state(learned, state)
        source.version += 1 + source.ledger.max_lag  # what was collected before is too old
        self.iterations = self.logged = int(self.spec.iteration)

    def close(self) -> None:
        """End the actors."""
        self.source.close()


def make_iteration(cfg: Config, *, group: ProcessGroup = SINGLE) -> Iteration:
    """The learner of a configuration without worlds, and the actors that have them.

    Raises:
        ValueError: something does not fit, in one line.
    """
    if group.size > 1:
        raise ValueError("cluster=ray works in one process: leave torchrun out")
    schedule = Curriculum(cfg.curriculum)
    kind, module = load_learner(cfg)
    if hasattr(module, "make_source"):
        raise ValueError(f"cluster=ray: algo={cfg.algo.name} takes its steps from elsewhere")
    with torch_threads(cfg.threads):
        return join(
            build_env(cfg, 1, schedule),
            kind,
            cfg.algo.settings,
            num_steps=cfg.num_steps,
            schedule=schedule,
            graph="off" if cfg.graph == "off" else "parts",
            threads=cfg.threads,
            make_source=partial(make_source, cfg),
            make_rewards=getattr(module, "make_rewards", None),
            num_envs=cfg.num_envs,
            kind_of_iteration=ClusterIteration,
        )


def make_source(cfg: Config, env: Env, learner: Learner, record: Record) -> RemoteSource:
    """The actors that fill a record. ValueError if it is a ring of steps."""
    if learner.length != cfg.num_steps:
        ring = f"{learner.length} steps and not from the last {cfg.num_steps}"
        raise ValueError(f"cluster=ray: algo={cfg.algo.name} learns from {ring}: choose algo=ppo")
    return RemoteSource(cfg, env, learner, record)
