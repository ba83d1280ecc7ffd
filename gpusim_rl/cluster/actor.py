"""An actor: worlds and a copy of the policy, which fill a record. It knows no learner."""

import time
from typing import Any

import numpy as np
import torch

from gpusim_rl.algorithms.collector import Collector, choose_columns, step_columns
from gpusim_rl.build import build_env
from gpusim_rl.cluster.packet import Arrays, Packet, digest, host, pack
from gpusim_rl.config.sections import Config
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.provenance import versions
from gpusim_rl.core.record import Columns, Record
from gpusim_rl.core.streams import torch_threads
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.networks.policy import Policy

# What may differ between two machines: the graphics card and the processor
MACHINE = ("gpu", "machine")


def identity(cfg: Config) -> dict[str, str]:
    """What actors and learner must have in common, by its name in a message."""
    packages = {name: x for name, x in versions().items() if name not in MACHINE}
    task = {name: cfg.plain[name] for name in ("task", "robot", "terrain", "sim", "curriculum")}
    return packages | {"task": digest(repr(task))}


class Actor:
    """Some of the worlds of a training.

    Args:
        cfg: of the training.
        policy: a copy of the learner's; columns: that the learner wants of each step.
        actor: its number; life: how often it was begun before.
        first, count: its worlds, by their global ids.
        again: that many times these worlds were begun with other random numbers.
    """

    def __init__(
        self,
        cfg: Config,
        policy: Any,
        columns: Columns,
        *,
        actor: int,
        life: int,
        first: int,
        count: int,
        again: int,
    ):
        self.cfg, self.actor, self.life, self.sequence = cfg, actor, life, 0
        torch.set_num_threads(1)
        schedule = Curriculum(cfg.curriculum)
        keys = [key for key in schedule.plan if key.startswith("task.")]
        with torch_threads(1):
            self.env = env = build_env(cfg, count, schedule, first=first, life=again)
        self.numbers = {key: env.scheduled_number(key) for key in keys}
        self.policy: Policy = policy.to(env.device)
        columns = choose_columns(columns, step_columns(env.dims, self.policy))
        record = Record.zeros(columns, cfg.num_steps, count, device=env.device)
        graph = "off" if cfg.graph == "off" else "parts"
        how = {"graph": graph, "fuse": cfg.fuse, "timer": PartTimer(env.device)}
        self.collector = Collector(env, self.policy, record, **how)
        self.schema = digest(record.schema)
        self.ended = time.monotonic()

    def identity(self) -> dict[str, str]:
        """What the learner compares with its own before it takes anything from here."""
        return identity(self.cfg) | {"columns": self.schema}

    def collect(self, version: int, weights: Arrays, numbers: Arrays) -> Packet:
        """The steps of one iteration, with the policy of a version.

        numbers: of the task, by their keys, as a curriculum has them now.
        """
        begun = time.monotonic()
        weights = {name: torch.from_numpy(np.array(x)) for name, x in weights.items()}
        self.policy.load(weights, f"version {version} of the policy")
        for key, place in self.numbers.items():
            place.copy_(torch.from_numpy(np.array(numbers[key])))
        if self.numbers:
            self.env.update_observations()
        record = self.collector.record
        self.collector.collect(len(record))
        self.collector.timer.read()
        names, sums = self.env.report()
        worst = self.env.worst_step.worst()
        self.env.worst_step.clear()
        idle, self.ended = begun - self.ended, time.monotonic()
        self.sequence += 1
        return Packet(
            schema=self.schema,
            actor=self.actor,
            life=self.life,
            sequence=self.sequence - 1,
            version=version,
            names=tuple(names),
            sums=host(sums),
            worst=host(worst),
            seconds=self.ended - begun,
            idle=idle,
            steps=record.rows.shape[0] * record.rows.shape[1],
            body=pack(record),
        )

    def state(self) -> Arrays:
        """Copies of all that a continuation of these worlds needs."""
        live = self.env.tensors() | self.collector.tensors()
        return {name: host(x.tensor) for name, x in live.items()}

    def load(self, state: Arrays) -> None:
        """Continue exactly from what `state` gave. In place."""
        tensors = {name: torch.from_numpy(np.array(x)) for name, x in state.items()}
        ours = self.collector.tensors()
        with torch.no_grad():
            for name, (x, _) in ours.items():
                x.copy_(tensors[name])
        self.env.load({name: x for name, x in tensors.items() if name not in ours})
        self.env.statistics.totals.zero_()  # the learner has them
