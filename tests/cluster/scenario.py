"""Trainings with actors in other processes, in one Ray: `python -m tests.cluster.scenario FILE`.

It writes what it saw to FILE, which test_cluster.py judges.
"""

import io
import json
import os
import signal
import sys
import time
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch

from gpusim_rl.assembly.iteration import make_iteration as make_alone
from gpusim_rl.cluster.engine import Engine
from gpusim_rl.cluster.iteration import make_iteration
from gpusim_rl.cluster.ledger import identity
from gpusim_rl.config.sections import Config
from gpusim_rl.core.distributed import PeerLost
from gpusim_rl.core.states import copy_state
from gpusim_rl.training.trainer import Trainer
from tests.cluster import planted
from tests.worlds import differing, make_config

WORDS = ("task=cartpole", "num_envs=24", "num_steps=8", "algo.hidden=[16]", "fuse=off")
WORDS += ("device=cpu", "sim=native", "sim.threads=1", "threads=1")
GRU = ("algo.memory=gru", "algo.memory_size=8")
SYNC = ("cluster=ray", "cluster.actors=3", "cluster.sync=true")
EVALUATIONS = ("log=none", "report=false", "eval_every=3", "stop_at=0.8", "iterations=100000")
MANY = 1e9  # samples, beyond those of any policy here
# sums over worlds, whose order of addition differs
SUMS = ("env/sums", "env/term_sums")


def iterate(training: Any, count: int) -> None:
    """So many iterations."""
    for _ in range(count):
        training.iteration()


def kill(training: Any, actor: int, number: int) -> None:
    """Send a signal to the process of an actor."""
    os.kill(training.source.slots[actor].pid, number)


def in_step() -> dict[str, Any]:
    """Three actors in step with the learner, one of them killed, and the same from a checkpoint."""
    words = (*WORDS, *GRU, "reward=rnd")
    one = make_alone(make_config(*words))
    iterate(one, 4)
    middle = one.state()
    iterate(one, 2)
    many = make_iteration(make_config(*words, *SYNC))
    iterate(many, 2)
    kill(many, 1, signal.SIGKILL)
    iterate(many, 4)
    after_death, row = many.state(), many.report()()
    many.load(middle, "one process")
    iterate(many, 2)
    resumed, expected = many.state(), one.state()
    many.close()
    return {
        "after a death": sorted({*differing(after_death, expected)} - {*SUMS}),
        "after a resume": sorted({*differing(resumed, expected)} - {*SUMS}),
        "deaths": many.source.deaths,
        "correction": many.learner.correction,
        "row": row,
    }


def ring_in_step() -> dict[str, Any]:
    """Two actors in step fill the ring of SAC, and the same from a checkpoint of one process."""
    # sixteen worlds an actor: products of twelve rows round differently on some processors
    words = (*WORDS, "num_envs=32", "algo=sac", "algo.batch_size=64", "algo.warmup=512")
    words = (*words, "algo.replay=24")
    one = make_alone(make_config(*words))
    iterate(one, 2)
    middle = one.state()
    iterate(one, 2)
    many = make_iteration(make_config(*words, *SYNC, "cluster.actors=2"))
    iterate(many, 4)
    expected, filled = one.state(), many.state()
    many.load(middle, "one process")
    iterate(many, 2)
    resumed = many.state()
    many.close()
    return {
        "one process": sorted({*differing(filled, expected)} - {*SUMS}),
        "after a resume": sorted({*differing(resumed, expected)} - {*SUMS}),
        "learned": any(x.startswith("policy/actor.net") for x in differing(middle, expected)),
        "rows": int(filled["ring/count"].min()),
    }


def central() -> dict[str, Any]:
    """Two actors in step whose network one server computes; it is killed, and then an actor."""
    words = (*WORDS, *GRU, "num_envs=32")
    one = make_alone(make_config(*words))
    iterate(one, 6)
    many = make_iteration(
        make_config(*words, *SYNC, "cluster.actors=2", "cluster.inference=central")
    )
    source: Any = many.source
    iterate(many, 2)
    for slot in source.slots:
        source.ask(slot)
    os.kill(source.server.pid, signal.SIGKILL)
    iterate(many, 2)
    kill(many, 1, signal.SIGKILL)
    iterate(many, 2)
    filled, served = many.state(), source.exchange.tensors["counts"]["served"].tolist()
    many.close()
    return {
        "one process": sorted({*differing(filled, one.state())} - {*SUMS}),
        "deaths": source.deaths,
        "served": served,
    }


def ring_ahead() -> dict[str, Any]:
    """Two actors ahead of the learner fill a ring with steps that say whose they are, and each is
    killed once: what windows of three steps join."""
    words = ("algo=sac", "algo.replay=96", "cluster.actors=2", "cluster.spread=2.0")
    with planted.training([{"named": 1}], *words, worlds=4) as many:
        many.learner.update = lambda ring: None
        for actor in (0, 1):
            iterate(many, 9)
            kill(many, actor, signal.SIGKILL)
        iterate(many, 5)
        ring: Any = many.ring
        source = many.source
        lags = many.report()()["cluster/lag_max"]
    places = ring.may_begin(3).nonzero()
    windows = ring.windows(places, 3)
    paid, names = windows.returns(1.0), windows.steps().obs[..., :2]
    whole = (paid.valid > 0) & (paid.discount > 0)
    follows = (names[1:, :, 0] == names[0, :, 0]) & (names.diff(dim=0)[..., 1] == 1)
    actions = ring.newest(32).action.view(32, 2, -1)
    return {
        "foreign": int((names[0, :, 0] // 10 != places[:, 1] // 4).sum()),
        "joined": int((whole & ~follows.all(0)).sum()),
        "windows": int(whole.sum()),
        "cut": int((~whole & ~follows.all(0)).sum()),
        "lives": source.ledger.lives,
        "learned": sum(x["learned"] for x in source.ledger.accounts.values()),
        "iterations": many.iterations,
        "lag": lags,
        "deviations": actions.std((0, 2)).tolist(),
    }


def samples(policy: Any) -> float:
    """That the normalizer of a policy has seen, which tells the policies of a training apart."""
    return float(policy.actor.normalizer.count)


def score(evaluated: Any) -> float:
    """The success of a policy, with a last part that tells which one it is: low, low and high."""
    time.sleep(0.5)
    return (0.5 if evaluated.env.success < 0.3 else 0.9) + samples(evaluated.policy) / MANY


def evaluations(cfg: Config, many: Any) -> dict[str, Any]:
    """What a training of a cluster logs of three evaluations, of which the last one ends it.

    The evaluator is killed in the second.
    """
    many.env.success.zero_()
    trainer = Trainer(cfg, lambda cfg, **_: many)
    loop, evaluator, deaths = trainer.loop, many.source.evaluator, many.source.deaths
    loop.evaluate, rows, seen, killed = score, [], {}, 0
    with redirect_stdout(io.StringIO()):
        for row in trainer.steps():
            seen[int(row["iteration"])] = samples(many.policy)
            rows += [row] if "success" in row else []
            if loop.evaluation and len(rows) == 1 and not killed:
                os.kill(evaluator.slot.pid, signal.SIGKILL)
                killed = loop.evaluation.iteration
    trainer.close()
    best = {x["success_of"]: x["success"] for x in rows if x["success"] > 0.8}
    manifest = {int(k[:6]): x["success"] for k, x in trainer.run.checkpoints.manifest().items()}
    return {
        "lateness": [x["iteration"] - x["success_of"] for x in rows],
        "repeated": rows[1]["success_of"] == killed,
        "scores": [x["success"] - seen[x["success_of"]] / MANY for x in rows],
        "deaths": many.source.deaths - deaths,
        "best": best.items() <= manifest.items(),
        "ended": rows[-1]["iteration"] == many.iterations,
    }


def continue_it(many: Any) -> dict[str, Any]:
    """Load a training's own state, and what it has learned: its lives before and after, the mean of
    evaluations, the updates by which earlier packets are older then, and whether sums stay."""
    many.env.success.fill_(0.25)
    state, lives = many.state(), [*many.source.ledger.lives]
    many.env.success.zero_()
    many.load(state, "itself")
    version, sums = many.source.version, many.env.statistics.totals.fill_(7.0).clone()
    many.load_learned(state, "itself")
    return {
        "lives": [lives, [*many.source.ledger.lives]],
        "success": many.env.success.item(),
        "older": many.source.version - version,
        "sums": torch.equal(sums, many.env.statistics.totals),
    }


def on_their_own(folder: Path) -> dict[str, Any]:
    """Two actors ahead of the learner, of which one is killed, and one is stopped for a while."""
    words = (*WORDS, "cluster=ray", "cluster.actors=2", "cluster.max_lag=1")
    many = make_iteration(make_config(*words))
    iterate(many, 4)
    kill(many, 0, signal.SIGKILL)
    iterate(many, 4)
    begun = copy_state(many.learned())
    kill(many, 1, signal.SIGSTOP)
    iterate(many, 4)
    kill(many, 1, signal.SIGCONT)
    while not many.source.ledger.refusals["late"]:
        iterate(many, 1)
    row, broken = many.report()(), send_nan(many)
    lost, deaths = many.source.ledger.lost(), many.source.deaths
    many.source.ask_idle(0)
    kill(many, 1, signal.SIGTERM)
    while many.source.deaths == deaths:
        iterate(many, 1)
    handed_in = many.source.ledger.lost() == lost
    source, refused = many.source, ""
    try:
        other = make_config(*words, "task.weights.upright=0.3")
        source.check_identity(source.slots[1], identity(other))
    except PeerLost as error:
        refused = str(error)
    continued = continue_it(many)
    iterate(many, 2)
    accounts = {str(key): {**x} for key, x in source.ledger.accounts.items()}
    sockets = listening()
    cfg = make_config(*words, *EVALUATIONS, f"run_dir={folder}/run")
    return {
        "evaluated": evaluations(cfg, many),
        "row": row,
        "broken": broken,
        "handed in": handed_in,
        "continued": continued,
        "accounts": accounts,
        "learned": sum(x["learned"] for x in source.ledger.accounts.values()),
        "iterations": many.iterations,
        "correction": many.learner.correction,
        "finite": all(bool(torch.isfinite(x).all()) for x in copy_state(many.learned()).values()),
        "changed": bool(differing(begun, copy_state(many.learned()))),
        "refused": refused,
        "sockets": sockets,
    }


def send_nan(many: Any) -> list[Any]:
    """What becomes of packets with numbers that are not finite, or with too few columns."""
    source, life = many.source, many.source.ledger.lives[0]
    while not source.packets:
        source.ask_idle(0)
        source.receive()
    packet = source.packets[0]  # which stays: one that is taken away is missed as lost
    columns, sums = packet.body["columns"].copy(), packet.sums.copy()
    columns[0, 0] = sums[0] = float("nan")
    changes = [{"body": packet.body | {"columns": columns}}, {"sums": sums}]
    changes += [{"body": packet.body | {"columns": columns[:1]}}, {"sums": sums[:1]}]
    taken = []
    for change in changes:
        where = {"actor": 0, "life": source.ledger.lives[0], "sequence": 1000}
        broken = replace(packet, version=source.version, **where, **change)
        taken.append(source.take(broken, slice(0, 12)))
        source.wait_for(0)
    refusals = source.ledger.refusals
    return [taken, refusals["numbers"], refusals["shape"], source.ledger.lives[0] - life]


def listening() -> list[str]:
    """The addresses at which this process and its children listen."""
    this, addresses = psutil.Process(), set()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended
            sockets = process.net_connections("tcp")
            addresses |= {x.laddr.ip for x in sockets if x.status == psutil.CONN_LISTEN}
    return sorted(addresses)


def main() -> None:
    """Run all, in one Ray, and write what was seen."""
    torch.set_num_threads(1)
    ray = Engine(4, None)
    seen = {"in step": in_step(), "ring": ring_in_step(), "ring ahead": ring_ahead()}
    seen |= {"central": central()}
    seen |= {"on their own": on_their_own(Path(sys.argv[1]).parent)}
    ray.close()
    Path(sys.argv[1]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
