"""What a control step costs where each actor computes the network, and where one server does.

    python -m benchmarks.inference [KEY=VALUE …] [worlds=[64,512]] [actors=2] [steps=400]

KEY=VALUE are words of train.py; task=cartpole unless given. Each actor is a process with so many
worlds, and there is no learner. Prints a line for each way: processor time of a control step of a
world in actors and server, requests that a product answers, how long an actor waits for it, and a
hash of all that the actors recorded.
"""

import hashlib
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, cast

import torch
import torch.multiprocessing as mp

from benchmarks import program
from benchmarks.cluster_kills import cpu_seconds
from gpusim_rl.assembly.iteration import make_iteration
from gpusim_rl.cluster.actor import Actor
from gpusim_rl.cluster.central import Exchange, InferenceServer
from tests.worlds import make_config

WORDS = ("device=cpu", "sim=native", "sim.threads=1", "threads=1", "log=none", "cluster=ray")
ROLLOUT = 20  # control steps
WARM_UP = 2  # rollouts that are not counted


def act(place: dict[str, int], rollouts: int, about: tuple[Any, ...], pipe: Connection) -> None:
    """Step the worlds of an actor. Sends its CPU seconds, those that it waited, and a hash."""
    actor, waited, bits = Actor(*about, **place), 0.0, hashlib.sha256()
    record, policy = actor.collector.record, cast(Any, actor.policy)
    compute, used = policy.compute, time.process_time()

    def timed(*inputs: Any) -> Any:
        nonlocal waited
        begun = time.perf_counter()
        result = compute(*inputs)
        waited += time.perf_counter() - begun
        return result

    policy.compute = timed
    for i in range(WARM_UP + rollouts):
        if i == WARM_UP:
            pipe.send(None)
            pipe.recv()
            waited, used = 0.0, time.process_time()
        actor.collector.collect(ROLLOUT)
        bits.update(record.rows.numpy().tobytes())
    pipe.send((time.process_time() - used, waited, bits.hexdigest()[:12]))


def serve(plain: Any, policy: Any, exchange: Exchange) -> None:
    """Be the server until this process is ended."""
    InferenceServer(plain, policy, exchange, "cpu").serve()


def measure(words: tuple[str, ...], worlds: int, actors: int, steps: int, central: bool) -> str:
    """A line on one way."""
    cfg, processes = make_config(*WORDS, *words, f"num_steps={ROLLOUT}"), mp.get_context("spawn")
    it, server, rows = make_iteration(cfg, 1), None, worlds * make_iteration(cfg, 1).env.agents
    about: tuple[Any, ...] = cfg.plain, it.policy, it.source.record.columns
    exchange = None
    if central:
        parts = [slice(i * rows, (i + 1) * rows) for i in range(actors)]
        exchange = Exchange(it.env, it.policy, parts, 1)
        exchange.put(
            0, {k: x.tensor for k, x in it.learner.tensors().items() if k[:7] == "policy/"}
        )
        server = processes.Process(target=serve, args=(*about[:2], exchange))
        server.start()
    pipes, count = [processes.Pipe() for _ in range(actors)], max(steps // ROLLOUT, 1)
    each = []
    for i, (_, pipe) in enumerate(pipes):
        place = dict(actor=i, life=0, first=i * worlds, count=worlds, again=0)
        each.append(processes.Process(target=act, args=(place, count, (*about, exchange), pipe)))
        each[-1].start()
    for pipe, _ in pipes:
        pipe.recv()
    used = cpu_seconds(server.pid or 0) if server else 0.0
    served = exchange.tensors["counts"]["served"].clone() if exchange else torch.zeros(2)
    for pipe, _ in pipes:
        pipe.send(None)
    results, calls = [pipe.recv() for pipe, _ in pipes], count * ROLLOUT * actors
    cost, waited = (1e6 * sum(x[i] for x in results) / calls for i in (0, 1))
    line = f"{worlds} worlds, {'central' if central else 'local'}: actors {cost / worlds:.1f} µs"
    if server and exchange:
        used, (asked, products) = (
            cpu_seconds(server.pid or 0) - used,
            exchange.tensors["counts"]["served"] - served,
        )
        line += f", server {1e6 * used / (count * ROLLOUT * actors * worlds):.1f} µs"
        line += f", {asked / products:.2f} requests a product"
        server.kill()
        exchange.close()
    line += f", {waited:.0f} µs for the network of a step; recorded {[x[2] for x in results]}"
    for process in each:
        process.join()
    return line


def main(words: list[str]) -> None:
    """Measure both ways."""
    own, more = program.split_words(__doc__, words, worlds=[64, 512], actors=2, steps=400)
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    for worlds in own.worlds:
        for central in (False, True):
            print(measure((*(more or ("task=cartpole",)),), worlds, own.actors, own.steps, central))


if __name__ == "__main__":
    main(sys.argv[1:])
