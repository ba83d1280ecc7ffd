"""The server of policies: what it answers, to whom, and that a swap loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from gpusim_rl.commands.modes import DEMO
from gpusim_rl.deploy.runtime import Policy
from gpusim_rl.serve.messages import pack, unpack
from gpusim_rl.serve.pool import Pool, Version
from gpusim_rl.serve.server import Server
from tests.serving import (
    ask,
    draw_readings,
    drive,
    get,
    metrics,
    open_server,
    other_version,
    process,
    raw,
    runtime_targets,
    session,
    write_alias,
)

TOKEN = "a-token-of-some-length"
# As openpi_client.msgpack_numpy 0.1.2 packs a dict with an array, a number of NumPy and a list.
OPENPI = (
    b"\x83\xa2up\x84\xc4\x0b__ndarray__\xc3\xc4\x04data\xc4"
    b"\x0c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80?\xc4\x05dtype\xa3<f4\xc4\x05"
    b"shape\x91\x03\xa1n\x83\xc4\r__npgeneric__\xc3"
    b"\xc4\x04data\xcb@\x04\x00\x00\x00\x00\x00\x00\xc4\x05dtype\xa3<f4"
    b"\xa7command\x93\xcb?\xe0\x00\x00\x00\x00\x00\x00\x00\x00"
)


def good_step(seed: int = 0) -> dict[str, Any]:
    """Readings and a command of the demo."""
    return draw_readings(Policy(DEMO), np.random.default_rng(seed), 1)[0]


async def ended(server: Server) -> None:
    """Wait until no session is open."""
    while server.sessions:
        await asyncio.sleep(0.01)


async def closed_as_too_large(client: Any) -> None:
    """The server closes a session with the code of a message that is too large."""
    with pytest.raises(ConnectionClosedError) as closed:
        await client.recv()
    assert closed.value.rcvd and closed.value.rcvd.code == 1009


def array_like(**fields: Any) -> bytes:
    """A message whose gyro is a map that claims to be an array."""
    about = {"__ndarray__": True, "data": b"\0" * 12, "dtype": "<f4", "shape": [3]} | fields
    return pack(good_step() | {"gyro": {key.encode(): x for key, x in about.items()}})


BAD_MESSAGES = {  # name → what a session may send, and is answered with a line
    "text": "hello",
    "nothing": b"",
    "no msgpack": b"\xc1\xc1",
    "a list": pack([1, 2]),
    "two messages": pack({}) * 2,
    "nested": b"\x91" * 5000,
    "long list": b"\xdd\xff\xff\xff\xff",
    "missing": pack({"gyro": [0, 0, 0]}),
    "wide": pack(good_step() | {"gyro": np.zeros(4, np.float32)}),
    "column": pack(good_step() | {"gyro": np.zeros((3, 1), np.float32)}),
    "words": pack(good_step() | {"gyro": "\x1b[31mred"}),
    "ragged": pack(good_step() | {"gyro": [[1, 2], 3]}),
    "no command": pack({k: x for k, x in good_step().items() if k != "command"}),
    "map": pack(good_step() | {"joint_pos": {"FL_hip": 1.0}}),
    "object": array_like(dtype="|O"),
    "type": array_like(dtype=["<f4"]),
    "short": array_like(data=b"\0" * 4),
    "shape": array_like(shape=[1 << 62, 1 << 62]),
    "no shape": array_like(shape="three"),
}


# -- answers ---------------------------------------------------------------------------------------


async def test_answers_are_those_of_the_runtime():
    """Of sessions that come and go, at once and one by one, each answer is that of `Policy.act`."""
    policy, rng = Policy(DEMO), np.random.default_rng(0)

    async def client(address: str, steps: list[Any], pause: float) -> list[np.ndarray]:
        await asyncio.sleep(pause)
        async with session(address) as (connection, about):
            assert about["readings"] == policy.needs and about["actions"]["kp"]
            return [(await ask(connection, step))["actions"] for step in steps]

    async with open_server(DEMO) as (server, address):
        robots = [draw_readings(policy, rng, 5 + i) for i in range(12)]
        jobs = [client(address, steps, i % 3 * 0.02) for i, steps in enumerate(robots)]
        for steps, answers in zip(robots, await asyncio.gather(*jobs), strict=True):
            np.testing.assert_array_equal(answers, runtime_targets(policy, steps))
        assert server.metrics.steps == sum(map(len, robots))
        assert server.metrics.batches < server.metrics.steps and server.sessions == 0


async def test_many_robots_share_a_message():
    """?robots=3 has a row for each, with the bits of `Policy.act`; `restart` is of some."""
    policy, rng = Policy(DEMO), np.random.default_rng(0)
    robots = [draw_readings(policy, rng, 3) for _ in range(3)]
    rows = [
        {k: np.stack([x[k] for x in step]) for k in step[0]} for step in zip(*robots, strict=True)
    ]
    async with open_server(DEMO, sessions=5) as (server, address), AsyncExitStack() as stack:
        many, one = [
            (await stack.enter_async_context(session(address + end)))[0]
            for end in ("/?robots=3", "")
        ]
        answers = []
        for step, other in zip(rows, robots[0], strict=True):
            both = await asyncio.gather(ask(many, step), ask(one, other))
            answers.append(both[0]["actions"])
            np.testing.assert_array_equal(both[0]["actions"][0], both[1]["actions"])
        for i, steps in enumerate(robots):
            expected = runtime_targets(policy, steps)
            np.testing.assert_array_equal([x[i] for x in answers], expected)
        assert server.sessions == 4 and server.metrics.steps == 12
        gyro = rows[0]["gyro"].copy()
        gyro[1] = np.nan
        some = {"gyro": gyro, "restart": np.array([True, True, False])}
        again = await ask(many, rows[0] | some | {"command": rows[0]["command"][0]})
        assert again["fault"] == [False, True, False]
        np.testing.assert_array_equal(again["actions"][0], answers[0][0])
        for wrong in ({"gyro": gyro[:2]}, {"up": [0, 0, 1]}, {"restart": np.ones(2, bool)}):
            with pytest.raises(RuntimeError, match="has shape"):
                await ask(many, rows[0] | wrong)
        for count, status, line in (("2", 503, "1 of 5"), ("x", 400, "no number"), ("0", 400, "")):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{address}/?robots={count}")
            response = refused.value.response
            assert response.status_code == status and line in response.body.decode()


async def test_readings_come_in_any_form():
    """Lists, float64 and joints by name count as in `Policy.act`; `restart` begins an episode."""
    policy, first = Policy(DEMO), good_step()
    names = policy.reads["joint_pos"]
    forms = first | {
        "gyro": first["gyro"].tolist(),
        "up": first["up"].astype(float)[None],
        "joint_pos": dict(zip(names, first["joint_pos"].tolist(), strict=True)),
        "more": "which no policy reads",
    }
    async with open_server(DEMO, batch_ms=0) as (_, address), session(address) as (client, _):
        answers = [(await ask(client, x))["actions"] for x in (first, forms)]
        np.testing.assert_array_equal(answers, runtime_targets(policy, [first, first]))
        again = await ask(client, forms | {"restart": True})
        np.testing.assert_array_equal(again["actions"], answers[0])


def test_messages_are_those_of_openpi():
    """A message of openpi's client is read, and an answer has the same form, byte by byte."""
    values = {"up": np.array([0, 0, 1], np.float32), "n": np.float32(2.5), "command": [0.5, 0, 0]}
    message = unpack(OPENPI)
    np.testing.assert_array_equal(message.pop("up"), values["up"])
    assert message == {"n": 2.5, "command": [0.5, 0, 0]}
    assert pack(values) == OPENPI


async def test_a_fault_is_of_one_session():
    """A reading that is not finite holds the targets of its robot; others go on."""
    policy, step = Policy(DEMO), good_step()
    async with open_server(DEMO) as (server, address), AsyncExitStack() as stack:
        a, b = [(await stack.enter_async_context(session(address)))[0] for _ in "ab"]
        before, bad = await ask(a, step), step | {"gyro": np.full(3, np.nan, np.float32)}
        held, other = await asyncio.gather(ask(a, bad), ask(b, step))
        assert held["fault"] and not other["fault"] and server.metrics.faults == 1
        np.testing.assert_array_equal(held["actions"], before["actions"])
        np.testing.assert_array_equal(other["actions"], before["actions"])
        after = await ask(a, step)
        np.testing.assert_array_equal(after["actions"], runtime_targets(policy, [step] * 2)[1])


# -- who is answered -------------------------------------------------------------------------------


async def test_bad_messages_are_answered_in_a_line(silent):
    """Each is a text of one line, the session goes on, and nothing is printed."""
    policy, step = Policy(DEMO), good_step()

    async with open_server(DEMO, batch_ms=0) as (server, address):
        async with session(address) as (client, _):
            for name, message in BAD_MESSAGES.items():
                await client.send(message)
                answer = await client.recv()
                assert isinstance(answer, str) and answer.isprintable(), name
            assert server.metrics.bad_messages == len(BAD_MESSAGES)
            answer = await ask(client, step)
            (expected,) = runtime_targets(policy, [step])
            np.testing.assert_array_equal(answer["actions"], expected)


async def test_what_is_no_client_disturbs_nobody(silent):
    """Damaged requests, a message that is too large: others are answered, nothing is printed."""
    policy, rng = Policy(DEMO), np.random.default_rng(2)
    steps = draw_readings(policy, rng, 40)

    async with open_server(DEMO, message_bytes=4096) as (server, address):
        sent = [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nHost: [x\r\nUpgrade: \xff\r\n\r\n"]
        sockets = [raw(address, data) for data in sent * 20]
        for client in sockets[::2]:
            client.close()
        async with session(address) as (good, _), session(address) as (bad, _):
            driving = asyncio.create_task(drive(good, steps, 100, 0.4, 0))
            await bad.send(b"\0" * 5000)
            await closed_as_too_large(bad)
            answers, _ = await driving
            expected = runtime_targets(policy, steps)
            assert [x for x, _ in answers] == [x.tobytes() for x in expected]
        for client in sockets:
            client.close()
        await ended(server)


async def test_a_message_of_many_fragments_is_closed(monkeypatch, silent):
    """Empty fragments are no bytes; a few are answered, many close with 1009."""
    monkeypatch.setattr("gpusim_rl.serve.server.FRAGMENTS", 50)

    async def fragments(count: int) -> AsyncIterator[bytes]:
        data = pack(good_step())
        for i in range(count):
            yield data if i == count // 2 else b""

    async def endless(client: Any) -> AsyncIterator[bytes]:
        while True:
            yield b""
            await client.ping()
            await asyncio.sleep(0)  # else a megabyte is sent before the server has its turn

    async with open_server(DEMO, batch_ms=0) as (server, address):
        async with session(address) as (client, _), session(address) as (other, _):
            for _ in range(3):
                await client.send(fragments(40))
                assert not unpack(await client.recv())["fault"]
            sending = asyncio.create_task(client.send(endless(client)))
            await closed_as_too_large(client)
            with pytest.raises(ConnectionClosedError):
                await sending
            assert not (await ask(other, good_step()))["fault"]
        await ended(server)


NUMBERS = {"2": 1e300, "4": 1e300, "8": float("nan")}  # bytes of a float → a number


@pytest.mark.parametrize("kind", NUMBERS)
async def test_numbers_beyond_their_type_are_faults(silent, kind):
    """They become infinite, and a signaling NaN a NaN, without a warning of NumPy's."""
    number = {b"__npgeneric__": True, b"data": NUMBERS[kind], b"dtype": f"<f{kind}"}
    signaling = np.array([0x7FF0000000000001] * 3, "<u8").view("<f8")
    beyond = np.full(3, 1e300)

    async with open_server(DEMO, batch_ms=0) as (_, address), session(address) as (client, _):
        for gyro in ([number, 0.0, 0.0], signaling, beyond):
            assert (await ask(client, good_step() | {"gyro": gyro}))["fault"]


async def test_half_open_connections_keep_nobody_out(monkeypatch):
    """Of too many that never ask for anything the oldest goes, and a new session is opened."""
    monkeypatch.setattr("gpusim_rl.serve.server.SPARE", 4)
    async with open_server(DEMO, sessions=2) as (_, address), session(address) as (first, _):
        sockets = [await asyncio.to_thread(raw, address) for _ in range(30)]
        async with session(address) as (second, _):
            for client in (first, second):
                assert not (await ask(client, good_step()))["fault"]
        assert await asyncio.to_thread(sockets[0].recv, 1) == b""
        for client in sockets:
            client.close()


async def test_a_session_too_many_is_refused_in_a_line():
    """The answer is 503 with a line; a place that is left is free at once."""
    async with open_server(DEMO, sessions=2) as (server, address):
        async with session(address), session(address):
            with pytest.raises(InvalidStatus) as refused:
                await connect(address)
            answer = refused.value.response
            assert (answer.status_code, answer.body) == (503, b"all 2 sessions are taken\n")
            assert (server.sessions, server.metrics.refused_sessions) == (2, 1)
        await ended(server)
        async with session(address) as (client, _):
            assert not (await ask(client, good_step()))["fault"]


async def test_who_may_ask():
    """All but /health needs a token, in any case of its scheme; no browser, no other host."""

    async def status(address: str, **headers: str) -> int:
        try:
            async with connect(address, additional_headers=headers):
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    async with open_server(DEMO, token=TOKEN) as (_, address):
        for word in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer \xfc"):
            assert await status(address, Authorization=word) == 401, word
        for scheme in ("Bearer", "bearer", "BEARER", "Api-Key", "api-key"):
            assert await status(address, Authorization=f"{scheme} {TOKEN}") == 101
        pages = [("/health", ""), ("/metrics", ""), ("/metrics", TOKEN)]
        answers = [await asyncio.to_thread(get, address, *page) for page in pages]
        assert [code for code, _ in answers] == [200, 401, 200]
        browser = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://127.0.0.1"}
        assert await status(address, **browser) == 403
    async with open_server(DEMO) as (_, address):
        port = address.rpartition(":")[2]
        for host, code in (("evil.com", 403), (f"localhost:{port}", 101), ("[::1]", 101)):
            headers = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            with await asyncio.to_thread(raw, address, headers) as client:
                first = await asyncio.to_thread(client.recv, 12)
            assert first.endswith(b"403" if code == 403 else b"200"), host


async def test_metrics_are_those_of_prometheus():
    """Its own parser reads them, and they count what happened."""
    async with open_server(DEMO) as (_, address), session(address) as (client, _):
        for _ in range(3):
            await ask(client, good_step())
        _, text = await asyncio.to_thread(get, address, "/metrics")
    families = {x.name: x for x in text_string_to_metric_families(text)}
    values = {name: x.samples[0].value for name, x in families.items()}
    assert values["gpusim_serve_steps"] == 3 and values["gpusim_serve_sessions"] == 1
    buckets = families["gpusim_serve_step_seconds"].samples
    assert buckets[-2].value == 3 and buckets[-1].value > 0
    (version,) = families["gpusim_serve_version"].samples
    assert version.labels == {"version": Version(DEMO).name} and version.value == 1
    assert values["process_cpu_seconds"] > 0


# -- swaps -----------------------------------------------------------------------------------------


async def test_a_swap_loses_nothing(other, tmp_path):
    """While versions take turns, each step is answered by one of them, with the memory carried."""
    files, rng = {Version(path).name: path for path in (DEMO, other)}, np.random.default_rng(3)
    policies = {name: Policy(path) for name, path in files.items()}
    robots = [draw_readings(policies[Version(DEMO).name], rng, 60) for _ in range(6)]

    alias = write_alias(tmp_path, DEMO)
    async with open_server(DEMO, alias=alias, poll=0.05) as (server, address):
        async with AsyncExitStack() as stack:
            clients = [(await stack.enter_async_context(session(address)))[0] for _ in robots]
            jobs = [
                asyncio.create_task(drive(client, steps, 30, 2, 0))
                for client, steps in zip(clients, robots, strict=True)
            ]
            for path in (other, DEMO, other):
                swaps = server.metrics.swaps
                await asyncio.sleep(0.3)
                await asyncio.to_thread(write_alias, tmp_path, path)
                while server.metrics.swaps == swaps:
                    await asyncio.sleep(0.02)
            results = await asyncio.gather(*jobs)
            assert server.metrics.swaps == 3
    for steps, (answers, _) in zip(robots, results, strict=True):
        names = [name for _, name in answers]
        assert len(answers) == len(steps) and {*names} == {*files}
        policy = policies[names[0]]
        policy.reset()
        for step, (targets, name) in zip(steps, answers, strict=True):
            after, before = policies[name], policy
            if after is not before:
                after.reset()
                after.memory, after._begins = before.memory, before._begins
            policy = after
            assert policy.act(step, step["command"]).tobytes() == targets


@pytest.mark.parametrize("swap", ["reset", "drain"])
async def test_the_memory_of_a_network_is_not_carried(tmp_path, swap):
    """It begins anew with the new version, or the session keeps the old one until it ends."""
    action, *rest = Policy(DEMO).description["memory"]
    about = {"memory": [action | {"name": "actor", "of": "actor"}, *rest]}
    recurrent = other_version(DEMO, tmp_path / "old.onnx", **about)
    path = other_version(recurrent, tmp_path / "new.onnx")
    old, new = Policy(recurrent), Policy(path)
    first, second = draw_readings(old, np.random.default_rng(4), 2)
    assert Version(recurrent).network == {"actor"}
    async with open_server(recurrent, swap=swap) as (server, address):
        async with session(address) as (client, _):
            before = (await ask(client, first))["actions"]
            server.swap(Version(path))
            after = (await ask(client, second))["actions"]
            async with session(address) as (newcomer, _):
                fresh = (await ask(newcomer, first))["actions"]
        np.testing.assert_array_equal(fresh, runtime_targets(new, [first])[0])
        np.testing.assert_array_equal(before, runtime_targets(old, [first])[0])
        driver = old
        if swap == "reset":
            new.reset()
            new.memory = old.memory | {"actor": new.start["actor"]}
            new._begins, driver = old._begins, new
        np.testing.assert_array_equal(after, driver.act(second, second["command"]))
        await ended(server)
        assert server.older == []


async def test_what_does_not_fit_is_refused(other, tmp_path, capsys):
    """Another interface, another file than named, a damaged alias: a warning, and it goes on."""
    foreign = other_version(DEMO, tmp_path / "foreign.onnx", robot="another", dt=0.01)
    alias = write_alias(tmp_path, DEMO)
    bad = [
        lambda: write_alias(tmp_path, foreign),
        lambda: write_alias(tmp_path, other, sha256="0" * 64),
        lambda: write_alias(tmp_path, other, file="../policy.onnx"),
        lambda: write_alias(tmp_path, other, file="policies/none.onnx"),
        lambda: alias.write_text("{"),
        lambda: alias.write_text("[1]"),
    ]

    async with open_server(DEMO, alias=alias, poll=0.05) as (server, address):
        async with session(address) as (client, _):
            for number, write in enumerate(bad, 1):
                write()
                while server.metrics.refused_swaps < number:
                    await asyncio.sleep(0.02)
                assert (await ask(client, good_step()))["version"] == Version(DEMO).name
            write_alias(tmp_path, other)
            while not server.metrics.swaps:
                await asyncio.sleep(0.02)
            assert (await ask(client, good_step()))["version"] == Version(other).name
            assert server.metrics.refused_swaps == len(bad)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(bad) and all(x.startswith("warning: not followed: ") for x in lines)
    assert "has another interface: robot, dt" in lines[0]


async def test_a_server_waits_for_the_first_release(tmp_path):
    """Until then it is not healthy and refuses sessions in a line; then it serves."""
    alias = tmp_path / "quadruped.released.json"
    async with open_server(None, alias=alias, poll=0.05) as (_, address):
        answer = await asyncio.to_thread(get, address, "/health")
        assert answer == (503, "no policy is released yet\n")
        with pytest.raises(InvalidStatus):
            await connect(address)
        write_alias(tmp_path, DEMO)
        while (await asyncio.to_thread(get, address, "/health"))[0] != 200:
            await asyncio.sleep(0.05)
        async with session(address) as (client, _):
            assert not (await ask(client, good_step()))["fault"]


def test_memory_of_all_sessions_is_limited(monkeypatch):
    """A file that remembers or sees much is refused for many sessions, in a line."""
    monkeypatch.setattr("gpusim_rl.serve.pool.LARGEST_MEMORY_BYTES", 1000)
    with pytest.raises(ValueError, match=r"serve\.sessions=20: each remembers 244 bytes"):
        Pool(Version(DEMO), 20)


# -- the program -----------------------------------------------------------------------------------


def test_the_program_serves_until_it_is_ended(tmp_path):
    """With a registry and a token, as a process: it answers, and SIGTERM ends it with 0."""
    write_alias(tmp_path, DEMO)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    words = (f"registry={tmp_path}", f"serve.token_file={tmp_path}/token")
    with process(*words) as (server, address):

        async def run() -> Any:
            async with session(address, TOKEN) as (client, _):
                return await ask(client, good_step())

        (expected,) = runtime_targets(Policy(DEMO), [good_step()])
        np.testing.assert_array_equal(asyncio.run(run())["actions"], expected)
        assert metrics(address, TOKEN)["gpusim_serve_steps_total"] == 1
        server.terminate()
        out, err = server.communicate(timeout=60)
    assert (server.returncode, out, err) == (0, f"ended: {address} is closed\n", "")
