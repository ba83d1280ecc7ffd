"""Acceptance: the server of policies under load, swaps and hostile clients, on this machine.

    python -m tests.acceptance.serve load [--sessions 200] [--hz 50] [--seconds 60] [--batch-ms 1]
    python -m tests.acceptance.serve swap [the same]      a new version each second
    python -m tests.acceptance.serve full [--sessions 1000]
    python -m tests.acceptance.serve hostile [the same]   beside the load
    python -m tests.acceptance.serve openpi [--seconds 20]

Each prints its figures, and exits with 1 if an answer is lost or is other than `Policy.act`. Times
of the processor are the server's own. Latencies mean something only if the machine has a core for
the server and one for the clients: the load of the machine is printed beside them.

`openpi` needs the package openpi-client, for example in a folder on PYTHONPATH.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from websockets.exceptions import WebSocketException

from gpusim_rl.commands.play_mode import DEMO
from gpusim_rl.deploy.runtime import Policy, readings
from tests.serving import draw_readings, drive, metrics, process, raw, session, write_alias
from tests.serving import other_version as make_other

DISTINCT = 100  # steps of a session, which are sent in turn
SEVERAL = 3  # sessions that are compared with a robot alone; all are compared with a batch


async def load(
    address: str, args: argparse.Namespace, beside: Coroutine[Any, Any, None] | None = None
) -> dict[str, Any]:
    """Drive sessions at a rate; what they were answered, and the figures of the server.

    beside: what is done meanwhile, once all sessions are open, and cancelled at the end.
    """
    policy, rng = Policy(DEMO), np.random.default_rng(0)
    robots = [draw_readings(policy, rng, DISTINCT) for _ in range(args.sessions)]
    async with AsyncExitStack() as stack:
        clients = [
            (await stack.enter_async_context(session(address)))[0] for _ in range(args.sessions)
        ]
        before, began = await asyncio.to_thread(metrics, address), time.process_time()
        task = asyncio.create_task(beside) if beside else None
        jobs = [
            drive(client, steps, args.hz, args.seconds, i / args.sessions)
            for i, (client, steps) in enumerate(zip(clients, robots, strict=True))
        ]
        begin = time.perf_counter()
        results = await asyncio.gather(*jobs)
        wall = time.perf_counter() - begin
        own = time.process_time() - began
        if task:
            task.cancel()
            await asyncio.wait([task])
        after = await asyncio.to_thread(metrics, address)
    used = {key: after[key] - before[key] for key in after if key in before}
    steps = used["gpusim_serve_steps_total"]
    times = 1e3 * np.concatenate([times for _, times in results])
    figures = {
        "answers": sum(len(answers) for answers, _ in results),
        "asked": round(args.hz * args.seconds) * args.sessions,
        "seconds": round(wall, 1),
        "CPU of the server [us a step]": round(1e6 * used["process_cpu_seconds_total"] / steps, 1),
        "CPU of the clients [us a step]": round(1e6 * own / steps, 1),
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


def check_load(args: argparse.Namespace) -> bool:
    """All answers come, and each is that of the runtime."""
    words = (f"onnx={DEMO}", f"serve.batch_ms={args.batch_ms}", f"serve.sessions={args.sessions}")
    with process(*words) as (_, address):
        done = asyncio.run(load(address, args))
    wrong = equal_to_runtime(done["robots"], done["results"], DEMO)
    print(json.dumps(done["figures"] | {"other than Policy.act": wrong}, indent=1))
    return wrong == 0 and done["figures"]["answers"] == done["figures"]["asked"]


def check_swap(args: argparse.Namespace) -> bool:
    """Each second another version drives, and no answer is lost."""
    with tempfile.TemporaryDirectory() as folder:
        files = [DEMO, make_other(DEMO, Path(folder) / "other.onnx")]
        alias = write_alias(Path(folder), files[0])
        words = (f"alias={alias}", "serve.poll=0.1", f"serve.batch_ms={args.batch_ms}")
        with process(*words) as (_, address):

            async def swap() -> None:
                for number in range(1, 10**6):
                    await asyncio.sleep(1)
                    await asyncio.to_thread(write_alias, Path(folder), files[number % 2])

            done = asyncio.run(load(address, args, swap()))
            swaps = metrics(address)["gpusim_serve_swaps_total"]
    versions = [[version for _, version in answers] for answers, _ in done["results"]]
    changes = [sum(a != b for a, b in pairwise(x)) for x in versions]
    counts = Counter(name for x in versions for name in x)
    seen = {"swaps": swaps, "changes that a session saw": [min(changes), max(changes)]}
    print(json.dumps(done["figures"] | seen | {"answers by version": counts}, indent=1))
    return done["figures"]["answers"] == done["figures"]["asked"] and min(changes) >= swaps - 2


def check_full(args: argparse.Namespace) -> bool:
    """The session after the last is refused in one line; then all sessions are driven."""
    with process(f"onnx={DEMO}", f"serve.sessions={args.sessions}") as (_, address):

        async def run() -> str:
            async with AsyncExitStack() as stack:
                for _ in range(args.sessions):
                    await stack.enter_async_context(session(address))
                try:
                    async with session(address):
                        return ""
                except Exception as error:
                    return f"{error}: {error.response.body.decode()!r}"  # type: ignore

        refused = asyncio.run(run())
        done = asyncio.run(load(address, args))
    wrong = equal_to_runtime(done["robots"], done["results"], DEMO)
    print(json.dumps(done["figures"] | {"wrong": wrong, "the next": refused}, indent=1))
    answered = done["figures"]["answers"] == done["figures"]["asked"]
    return answered and wrong == 0 and f"all {args.sessions} sessions are taken" in refused


def annoy(address: str, rng: np.random.Generator) -> None:
    """Connections and messages that are no client's."""
    upgrade = (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    frame = b"\x82\xff" + (1 << 20).to_bytes(8, "big") + b"\0\0\0\0"
    kinds = [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n", b"\0" * 9000, upgrade]
    kinds += [upgrade + frame + b"\0" * (1 << 16), upgrade + b"\x82\x84\0\0\0\0\x93\x93\x93\x93"]
    kinds += [upgrade + b"\x81\x85\0\0\0\0hello", upgrade + b"\xff\xff\xff\xff"]
    for _ in range(20):
        try:
            client = raw(address, kinds[rng.integers(len(kinds))])
            if rng.random() < 0.5:
                client.close()  # at once; others are left to the collector
        except OSError:
            pass


async def annoy_in_session(address: str) -> list[str]:
    """What wrong messages of a session are answered."""
    from tests.serve.test_server import BAD_MESSAGES

    answers = []
    async with session(address) as (client, _):
        for message in BAD_MESSAGES.values():
            await client.send(message)
            answers.append(str(await client.recv()))
    return answers


async def bother(address: str, memory: list[float]) -> None:
    """Be all kinds of no client until it is cancelled; `memory` gets that of the server [bytes]."""
    rng, half_open = np.random.default_rng(1), []
    try:
        for number in range(10**6):
            if number % 50 == 0:
                for client in half_open:
                    client.close()
                tries = [asyncio.to_thread(raw, address) for _ in range(2000)]
                clients = await asyncio.gather(*tries, return_exceptions=True)
                half_open = [x for x in clients if not isinstance(x, BaseException)]
            await asyncio.to_thread(annoy, address, rng)
            with suppress(OSError, WebSocketException):  # there are too many at this moment
                await annoy_in_session(address)
                now = await asyncio.to_thread(metrics, address)
                memory.append(now["process_resident_memory_bytes"] / 1e6)
            await asyncio.sleep(0.1)
    finally:
        for client in half_open:
            client.close()


def check_hostile(args: argparse.Namespace) -> bool:
    """Beside the load, others send what is no message, and open 2,000 connections."""
    memory: list[float] = []

    with tempfile.TemporaryFile("w+") as stderr:
        words = (f"onnx={DEMO}", f"serve.sessions={args.sessions + 100}")
        with process(*words, stderr=stderr) as (_, address):
            done = asyncio.run(load(address, args, bother(address, memory)))
        stderr.seek(0)
        said = stderr.read()
    wrong = equal_to_runtime(done["robots"], done["results"], DEMO)
    about = {"other than Policy.act": wrong, "said on stderr": said}
    about |= {"memory over time [MB]": memory[:: len(memory) // 12 or 1]}
    print(json.dumps(done["figures"] | about, indent=1))
    answered = done["figures"]["answers"] == done["figures"]["asked"]
    return answered and wrong == 0 and not said


def check_openpi(args: argparse.Namespace) -> bool:
    """openpi's client, unchanged, drives the quadruped in simulation, and it does not fall."""
    from openpi_client.websocket_client_policy import WebsocketClientPolicy  # type: ignore

    with process(f"onnx={DEMO}") as (_, address):
        client = WebsocketClientPolicy("127.0.0.1", int(address.rpartition(":")[2]))
        policy = Policy(DEMO)
        policy.reset()
        model = mujoco.MjModel.from_xml_string(policy.mjcf)
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        mujoco.mj_forward(model, data)
        command, wrong, lowest = np.array([0.5, 0, 0], np.float32), 0, 1.0
        for _ in range(round(args.seconds / policy.dt)):
            now = readings(policy, data)
            arrays: dict[str, Any] = {"command": command}
            for name, x in now.items():
                values = [*x.values()] if isinstance(x, dict) else x
                arrays[name] = np.array(values, np.float32)
            answer = client.infer(arrays)
            wrong += not np.array_equal(answer["actions"], policy.act(now, command))
            data.ctrl[:] = answer["actions"]
            mujoco.mj_step(model, data, round(policy.dt / model.opt.timestep))
            lowest = min(lowest, data.xmat[1].reshape(3, 3)[2, 2])
    about = {"seconds": data.time, "walked [m]": data.qpos[0], "least uprightness": lowest}
    print(json.dumps(about | {"other than Policy.act": wrong}, indent=1))
    return wrong == 0 and lowest > 0.8


CHECKS = {
    "load": check_load,
    "swap": check_swap,
    "full": check_full,
    "hostile": check_hostile,
    "openpi": check_openpi,
}


def main() -> None:
    """One of the checks."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--hz", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--batch-ms", type=float, default=1)
    args = parser.parse_args()
    if not CHECKS[args.check](args):
        sys.exit(1)


if __name__ == "__main__":
    main()
