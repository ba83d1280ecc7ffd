"""An actor: worlds and a copy of the policy, which fill a record. It knows no learner."""

import time

import torch

from gpusim_rl.algorithms.collector import Collector, choose_columns, step_columns
from gpusim_rl.assembly.environment import build_env
from gpusim_rl.cluster.central import CentralCompute, Exchange
from gpusim_rl.cluster.ledger import Packet, digest, identity
from gpusim_rl.cluster.packing import Arrays, host, pack, tensor
from gpusim_rl.config.sections import Config
from gpusim_rl.core.files import Plain
from gpusim_rl.core.graphs import PartTimer
from gpusim_rl.core.record import Columns, Record
from gpusim_rl.envs.curriculum import Curriculum
from gpusim_rl.networks.policy import Policy


class Actor:
    """Some of the worlds of a training, whose configuration is `plain`.

    Args:
        policy: a copy of the learner's; columns: that the learner wants of each step.
        exchange: where the network is computed, if not here.
        actor: its number; life: how often it was begun before.
        first, count: its worlds, by their global ids.
        again: the life of these worlds, which chooses their random numbers.
    """

    cores = 1  # of Ray's that its process takes

    def __init__(
        self,
        plain: Plain,
        policy: Policy,
        columns: Columns,
        exchange: Exchange | None = None,
        *,
        actor: int,
        life: int,
        first: int,
        count: int,
        again: int,
    ):
        torch.set_num_threads(1)
        self.cfg = cfg = Config.of(plain | {"device": plain["cluster"]["device"]})
        self.actor, self.life, self.sequence = actor, life, 0
        schedule = Curriculum(cfg.curriculum)
        self.env = env = build_env(cfg, count, schedule, first=first, life=again)
        keys = [key for key in schedule.plan if key.startswith("task.")]
        self.numbers = {key: env.scheduled_number(key) for key in keys}
        self.policy = policy.to(env.device)
        if (section := cfg.cluster).spread != 1:  # of a policy that learns from a ring
            # of all ranks' actors, from the one that explores least to the one that does most
            place = 2 * (first // count) / (section.actors - 1) - 1 if section.actors > 1 else 0
            self.policy.noise_factor = section.spread**place  # type: ignore[attr-defined]
        columns = choose_columns(columns, step_columns(env, policy))
        record = Record.zeros(columns, cfg.num_steps, env.num_rows, device=env.device)
        self.schema, self.ended = digest(record.schema), time.monotonic()
        graph = "off" if cfg.graph == "off" else "parts"
        timer = PartTimer(env.device)
        self.collector = Collector(env, policy, record, graph=graph, fuse=cfg.fuse, timer=timer)
        self.central = CentralCompute(exchange, actor, life) if exchange else None
        if self.central:
            self.policy.compute = self.central  # type: ignore[attr-defined]

    def identity(self) -> dict[str, str]:
        """What the learner compares with its own before it takes anything from here."""
        return identity(self.cfg) | {"columns": self.schema}

    def collect(
        self, version: int, weights: Arrays, numbers: Arrays, with_state: bool
    ) -> tuple[Packet, Arrays]:
        """The steps of one iteration with a policy, and perhaps the state of the worlds after it.

        numbers: of the task, by their keys, as a curriculum has them now.
        """
        start, record, env = time.monotonic(), self.collector.record, self.env
        named = {name: tensor(x) for name, x in weights.items()}
        self.policy.load(named, f"version {version} of the policy")
        if self.central:
            self.central.version, self.central.waited = version, 0.0
        for key, place in self.numbers.items():
            place.copy_(tensor(numbers[key]))
        if self.numbers:
            env.update_observations()
        self.collector.collect(len(record))
        self.collector.timer.read()
        _, sums = env.report()
        worst = host(env.worst_step.worst())
        env.worst_step.clear()
        waited = self.central.waited if self.central else 0.0
        idle, self.ended = start - self.ended + waited, time.monotonic()
        packet = Packet(
            *(self.schema, self.actor, self.life, self.sequence, version, host(sums), worst),
            *(
                self.ended - start - waited,
                idle,
                record.rows.shape[0] * record.rows.shape[1],
                pack(record),
            ),
        )
        self.sequence += 1
        return packet, self.state() if with_state else {}

    def state(self) -> Arrays:
        """Copies of all that a continuation of these worlds needs."""
        live = self.env.tensors() | self.collector.tensors()
        return {name: host(x.tensor) for name, x in live.items()}

    def load(self, state: Arrays) -> None:
        """Continue exactly from what `state` gave. In place."""
        own = self.collector.tensors()
        for name, (x, _) in own.items():
            x.copy_(tensor(state[name]))
        self.env.load({name: tensor(x) for name, x in state.items() if name not in own})
        self.env.statistics.totals.zero_()  # the learner has them
