"""Trainings with actors in other processes, in one Ray: `python -m tests.cluster.scenario FILE`.

It writes what it saw to FILE, which test_cluster.py judges.
"""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpusim_rl.build.iteration import make_iteration as make_alone
from gpusim_rl.cluster.actor import identity
from gpusim_rl.cluster.engine import Engine
from gpusim_rl.cluster.iteration import ClusterIteration, make_iteration
from gpusim_rl.core.states import copy_state
from tests.worlds import differing, make_config

WORDS = ("task=cartpole", "num_envs=24", "num_steps=8", "algo.hidden=[16]", "fuse=off")
WORDS += ("device=cpu", "sim=native", "sim.threads=1", "threads=1")
GRU = ("algo.memory=gru", "algo.memory_size=8")
SYNC = ("cluster=ray", "cluster.actors=3", "cluster.sync=true")
# sums over worlds, whose order of addition differs
SUMS = ("env/sums", "env/term_sums")


def iterate(training: Any, count: int) -> None:
    """So many iterations."""
    for _ in range(count):
        training.iteration()


def kill(training: ClusterIteration, actor: int, number: int) -> None:
    """Send a signal to the process of an actor."""
    os.kill(training.source.seats[actor].pid, number)


def in_step() -> dict[str, Any]:
    """Three actors in step with the learner, one of them killed, and the same from a checkpoint."""
    one = make_alone(make_config(*WORDS, *GRU))
    iterate(one, 4)
    middle = one.state()
    iterate(one, 2)
    many = make_iteration(make_config(*WORDS, *GRU, *SYNC))
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
        "row": row,
    }


def on_their_own() -> dict[str, Any]:
    """Two actors ahead of the learner, of which one is killed, and one is stopped for a while."""
    words = (*WORDS, "cluster=ray", "cluster.actors=2", "cluster.max_lag=1")
    many = make_iteration(make_config(*words, "algo.correction=vtrace"))
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
    state, lives = many.state(), [*many.source.ledger.lives]
    many.load(state, "itself")
    iterate(many, 2)
    source = many.source
    accounts = {str(key): {**x} for key, x in source.ledger.accounts.items()}
    other = make_config(*words, "task.weights.upright=0.3")
    try:
        source.check_identity(1, identity(other) | {"columns": source.ledger.schema})
        refused = ""
    except ValueError as error:
        refused = str(error)
    sockets = listening(os.getpid())
    many.close()
    return {
        "row": row,
        "broken": broken,
        "handed in": handed_in,
        "lives": [lives, source.ledger.lives],
        "accounts": accounts,
        "learned": sum(x["learned"] for x in source.ledger.accounts.values()),
        "updates": source.version,
        "iterations": many.iterations,
        "finite": all(bool(torch.isfinite(x).all()) for x in copy_state(many.learned()).values()),
        "changed": bool(differing(begun, copy_state(many.learned()))),
        "refused": refused,
        "sockets": sockets,
    }


def send_nan(many: Any) -> list[Any]:
    """A packet of the first actor with a number that is not finite: what becomes of both."""
    source, life = many.source, many.source.ledger.lives[0]
    while not source.packets:
        source.ask_idle(0)
        source.receive()
    packet = source.packets.pop()
    columns = packet.body["columns"].copy()
    columns[0, 0] = float("nan")
    where = {"actor": 0, "life": life, "sequence": 1000, "version": source.version}
    body = packet.body | {"columns": columns}
    taken = source.take(replace(packet, body=body, **where), slice(0, 12))
    return [taken, source.ledger.refusals["numbers"], source.ledger.lives[0] - life]


def listening(root: int) -> list[str]:
    """The addresses, as hexadecimal words of /proc, at which a process and its children listen."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    inodes = set()
    for pid in tree:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes |= {*re.findall(r"socket:\[(\d+)\]", os.readlink(link))}
            except OSError:
                continue
    text = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for line in text.splitlines() if "local_address" not in line]
    return sorted({x[1].partition(":")[0] for x in rows if x[3] == "0A" and x[9] in inodes})


def main() -> None:
    """Run all, in one Ray, and write what was seen."""
    torch.set_num_threads(1)
    ray = Engine(4, None)
    seen = {"in step": in_step(), "on their own": on_their_own()}
    ray.close()
    Path(sys.argv[1]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
