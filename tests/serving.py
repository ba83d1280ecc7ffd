"""Clients of the server of policies, for the tests."""

import asyncio
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from gpusim_rl.commands.modes import DEMO
from gpusim_rl.config.compose import compose_plain
from gpusim_rl.core.files import write_whole
from gpusim_rl.deploy.onboard.verdict import digest
from gpusim_rl.deploy.runtime import Policy, unsealed
from gpusim_rl.serve.follow import Alias
from gpusim_rl.serve.messages import pack, unpack
from gpusim_rl.serve.pool import Version
from gpusim_rl.serve.server import Server, open_listener
from tests.command_lines import start_server
from tests.worlds import ROOT

NAME = "quadruped"  # of the demo in a registry
PASS = {"verdict": "pass", "success": 0.99, "changed": {}, "complaints": []}


def settings(**keys: Any) -> dict[str, Any]:
    """The section `serve` of a configuration."""
    return compose_plain("play", [])["serve"] | keys


@asynccontextmanager
async def open_server(
    policy: Path | None, *, alias: Path | None = None, token: str = "", **keys: Any
) -> AsyncIterator[tuple[Server, str]]:
    """A server on the loop of the test, and its address."""
    version = Version(policy) if policy else None
    server = Server(version, Alias(alias) if alias else None, settings(**keys), token)
    listener = open_listener("127.0.0.1", 0)
    async with server.listen(listener):
        yield server, f"ws://127.0.0.1:{listener.getsockname()[1]}"


def process(
    *words: str, **options: Any
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """play.py mode=serve in a process of its own with any free port, and its address."""
    line = (str(ROOT / "play.py"), "mode=serve", "port=0", *words)
    return start_server(r"serving (ws://\S+)", *line, **{"stderr": subprocess.PIPE} | options)


@asynccontextmanager
async def session(address: str, token: str = "") -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """A client's session, and the metadata that it begins with."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with connect(address, compression=None, additional_headers=headers) as client:
        yield client, unpack(await client.recv())


async def ask(client: ClientConnection, values: dict[str, Any]) -> Any:
    """The answer to a message; a text of the server's is a RuntimeError, as of openpi's client."""
    await client.send(pack(values))
    answer = await client.recv()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return unpack(answer)


def draw_readings(policy: Policy, rng: np.random.Generator, steps: int) -> list[dict[str, Any]]:
    """Readings and a command for some steps of a robot."""
    widths = policy.needs | ({"command": len(policy.command["names"])} if policy.command else {})
    return [
        {name: rng.normal(0, 0.3, width).astype(np.float32) for name, width in widths.items()}
        for _ in range(steps)
    ]


def runtime_targets(policy: Policy, steps: Sequence[dict[str, Any]]) -> list[np.ndarray]:
    """The targets (nu,) of one robot that runs the file itself."""
    policy.reset()
    return [policy.act(step, step.get("command")) for step in steps]


def get(address: str, path: str, token: str = "") -> tuple[int, str]:
    """Status and text of a page of a server, as Prometheus asks for it."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(address.replace("ws", "http", 1) + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(address: str, token: str = "") -> dict[str, float]:
    """Name of each metric without labels → its value."""
    lines = get(address, "/metrics", token)[1].splitlines()
    pairs = [line.split() for line in lines if not line.startswith("#") and "{" not in line]
    return {name: float(value) for name, value in pairs}


async def drive(
    client: Any, steps: Sequence[dict[str, Any]], hz: float, seconds: float, offset: float
) -> tuple[list[tuple[bytes, str]], list[float]]:
    """Send steps at a rate, in turn: (targets, version) of each answer, and its time [s].

    offset: share of a period by which this client begins later.
    """
    messages, answers, times = [pack(step) for step in steps], [], []
    begin, k = time.perf_counter() + offset / hz, 0
    while k < round(seconds * hz):
        if (wait := begin + k / hz - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        sent = time.perf_counter()
        await client.send(messages[k % len(messages)])
        answer = await client.recv()
        times.append(time.perf_counter() - sent)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        answers.append(answer)
        k += 1
    decoded = [(x["actions"].tobytes(), x["version"]) for x in map(unpack, answers)]
    return decoded, times


def raw(address: str, data: bytes = b"") -> socket.socket:
    """A connection that has sent some bytes."""
    host, _, port = address.removeprefix("ws://").rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=30)
    client.sendall(data)
    return client


def other_version(file: Path, out: Path, **about: Any) -> Path:
    """A file with weights that differ by a little, and with another description if `about` is."""
    import onnx

    from gpusim_rl.deploy.to_onnx import sealed  # loads torch

    data = unsealed(file.read_bytes(), file)
    model = onnx.load_model_from_string(data)
    weights = max(model.graph.initializer, key=lambda x: len(x.raw_data))
    values = np.frombuffer(weights.raw_data, np.float32)
    weights.raw_data = (values * np.float32(0.99)).tobytes()
    for entry in model.metadata_props:
        if entry.key == "gpusim_rl":
            entry.value = json.dumps(json.loads(entry.value) | about)
    out.write_bytes(sealed(model))
    return out


def demo_with(folder: Path, number: int, **further: Any) -> Path:
    """The demo with another lineage and other entries of its description: another controller."""
    import onnx

    from gpusim_rl.deploy.to_onnx import sealed  # loads torch
    from gpusim_rl.gate.variants import without_checksums

    model, path = onnx.load(DEMO), folder / f"policy-{number}.onnx"
    notes = {x.key: x.value for x in without_checksums(model).metadata_props}
    about = json.loads(notes["gpusim_rl"]) | further
    about["lineage"] |= {"iteration": number}
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, notes | {"gpusim_rl": json.dumps(about)})
    path.write_bytes(sealed(model))
    return path


def write_alias(folder: Path, policy: Path, **about: Any) -> Path:
    """The file of an alias that names a policy, which is copied beside it as a registry does."""
    key = digest(policy.read_bytes())
    (folder / "policies").mkdir(exist_ok=True)
    copy = folder / "policies" / f"{key}.onnx"
    if not copy.is_file():
        copy.write_bytes(policy.read_bytes())
    alias = folder / "quadruped.released.json"
    text = json.dumps({"sha256": key, "file": f"policies/{key}.onnx"} | about)
    write_whole(alias, text.encode())
    return alias
