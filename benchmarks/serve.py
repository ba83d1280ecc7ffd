"""The server of policies under load and while versions change, on this machine.

    python -m benchmarks.serve load [sessions=200] [hz=50] [seconds=60] [batch_ms=1]
    python -m benchmarks.serve swap [the same]      a new version each second

Each prints its figures, and exits with 1 if an answer is lost, or is other than `Policy.act` where
only one version answers. Times of the processor are the server's own. Latencies mean something only
if the machine has a core for the server and one for the clients: the load of the machine is printed
beside them.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import program
from gpusim_rl.commands.modes import DEMO
from gpusim_rl.deploy.runtime import Policy
from tests.serving import draw_readings, drive, metrics, process, session, write_alias
from tests.serving import other_version as make_other

DISTINCT = 100  # steps of a session, which are sent in turn
SEVERAL = 3  # sessions that are compared with a robot alone; all are compared with a batch


async def load(
    address: str, own: SimpleNamespace, beside: Coroutine[Any, Any, None] | None = None
) -> dict[str, Any]:
    """Drive sessions at a rate; what they were answered, and the figures of the server.

    beside: what is done meanwhile, once all sessions are open, and cancelled at the end.
    """
    policy, rng = Policy(DEMO), np.random.default_rng(0)
    robots = [draw_readings(policy, rng, DISTINCT) for _ in range(own.sessions)]
    async with AsyncExitStack() as stack:
        clients = [
            (await stack.enter_async_context(session(address)))[0] for _ in range(own.sessions)
        ]
        before, began = await asyncio.to_thread(metrics, address), time.process_time()
        task = asyncio.create_task(beside) if beside else None
        jobs = [
            drive(client, steps, own.hz, own.seconds, i / own.sessions)
            for i, (client, steps) in enumerate(zip(clients, robots, strict=True))
        ]
        begin = time.perf_counter()
        results = await asyncio.gather(*jobs)
        wall = time.perf_counter() - begin
        spent = time.process_time() - began
        if task:
            task.cancel()
            await asyncio.wait([task])
        after = await asyncio.to_thread(metrics, address)
    used = {key: after[key] - before[key] for key in after if key in before}
    steps = used["gpusim_serve_steps_total"]
    times = 1e3 * np.concatenate([times for _, times in results])
    figures = {
        "answers": sum(len(answers) for answers, _ in results),
        "asked": round(own.hz * own.seconds) * own.sessions,
        "seconds": round(wall, 1),
        "CPU of the server [us a step]": round(1e6 * used["process_cpu_seconds_total"] / steps, 1),
        "CPU of the clients [us a step]": round(1e6 * spent / steps, 1),
        "mean batch": round(steps / used["gpusim_serve_batches_total"], 1),
        "p50, p99, p99.9 [ms]": np.round(np.percentile(times, [50, 99, 99.9]), 2).tolist(),
        "memory [MB]": round(after["process_resident_memory_bytes"] / 1e6, 1),
        "load of the machine": os.getloadavg()[0],
    }
    return {"robots": robots, "results": results, "figures": figures}


def equal_to_runtime(robots: list[Any], results: list[Any], file: Path) -> int:
    """Answers that differ from `Policy.act`: of all robots in a batch, and of some alone."""
    policy, wrong, steps = Policy(file), 0, len(results[0][0])
    policy.reset(len(robots))
    for k in range(steps):
        now = [robot[k % DISTINCT] for robot in robots]
        together = {name: np.stack([step[name] for step in now]) for name in now[0]}
        targets = policy.act(together, together["command"])
        wrong += sum(
            target.tobytes() != answers[k][0]
            for target, (answers, _) in zip(targets, results, strict=True)
        )
    for robot, (answers, _) in [*zip(robots, results, strict=True)][:SEVERAL]:
        policy.reset()
        for k in range(steps):
            step = robot[k % DISTINCT]
            wrong += policy.act(step, step["command"]).tobytes() != answers[k][0]
    return wrong


def check_load(own: SimpleNamespace) -> bool:
    """All answers come, and each is that of the runtime."""
    words = (f"onnx={DEMO}", f"serve.batch_ms={own.batch_ms}", f"serve.sessions={own.sessions}")
    with process(*words) as (_, address):
        done = asyncio.run(load(address, own))
    wrong = equal_to_runtime(done["robots"], done["results"], DEMO)
    print(json.dumps(done["figures"] | {"other than Policy.act": wrong}, indent=1))
    return wrong == 0 and done["figures"]["answers"] == done["figures"]["asked"]


def check_swap(own: SimpleNamespace) -> bool:
    """Each second another version drives, and no answer is lost."""
    with tempfile.TemporaryDirectory() as folder:
        files = [DEMO, make_other(DEMO, Path(folder) / "other.onnx")]
        alias = write_alias(Path(folder), files[0])
        words = (f"alias={alias}", "serve.poll=0.1", f"serve.batch_ms={own.batch_ms}")
        with process(*words) as (_, address):

            async def swap() -> None:
                for number in range(1, 10**6):
                    await asyncio.sleep(1)
                    await asyncio.to_thread(write_alias, Path(folder), files[number % 2])

            done = asyncio.run(load(address, own, swap()))
            swaps = metrics(address)["gpusim_serve_swaps_total"]
    versions = [[version for _, version in answers] for answers, _ in done["results"]]
    changes = [sum(a != b for a, b in pairwise(x)) for x in versions]
    counts = Counter(name for x in versions for name in x)
    seen = {"swaps": swaps, "changes that a session saw": [min(changes), max(changes)]}
    print(json.dumps(done["figures"] | seen | {"answers by version": counts}, indent=1))
    return done["figures"]["answers"] == done["figures"]["asked"] and min(changes) >= swaps - 2


def main(words: list[str]) -> None:
    """One of the checks, or both."""
    keys = dict(sessions=200, hz=50.0, seconds=60.0, batch_ms=1.0)
    own, names = program.split_words(__doc__, words, **keys)
    checks = {"load": check_load, "swap": check_swap}
    raise SystemExit(not all([checks[name](own) for name in program.choose(names, checks)]))


if __name__ == "__main__":
    main(sys.argv[1:])
