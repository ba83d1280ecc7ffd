"""mode=serve of play.py: a WebSocket for each robot, and one run of the policy for all of them.

A control loop that stabilises a robot belongs on the robot, with `deploy/runtime.py`. This is for
robots in simulation, benches, and computers beside a robot.
"""

import asyncio
import hmac
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import Event, State

from gpusim_rl.core import errors
from gpusim_rl.core.files import read_text
from gpusim_rl.serve.follow import Alias, alias_file
from gpusim_rl.serve.messages import pack, unpack
from gpusim_rl.serve.metrics import Metrics
from gpusim_rl.serve.pool import Pool, Rows, Version
from gpusim_rl.serve.settings import is_loopback

PORT = 8000  # of openpi's servers
# of a token, in any case by RFC 9110; openpi's client says the second
SCHEMES = ("bearer", "api-key")
LEAST_TOKEN = 16  # characters
SPARE = 256  # connections beside the sessions: some that open, and those that ask for metrics
OPENING, CLOSING = 5.0, 2.0  # s that a client has for its half of either
ACCEPTED = 16  # new connections between two batches, so that many at once delay nobody
WAITING = 1024  # connections that the system holds until then
QUEUE = 4  # messages of a session that are read before their turn
FRAGMENTS = 1000  # of a message: an empty one takes memory, but none of message_bytes
TRY_LATER = 1013  # code of a WebSocket that is closed, RFC 6455


class Step(NamedTuple):
    """A control step that waits for the next batch."""

    pool: Pool
    rows: Rows
    answer: asyncio.Future[bytes | str]
    at: float  # [s], on the clock of the loop


class Server:
    """Sessions of clients, and the batches that answer them.

    version: the policy; None until one is released. alias: what names it from then on; None for
    always the same. token: that each request has to show; empty for none.
    """

    def __init__(
        self, version: Version | None, alias: Alias | None, settings: dict[str, Any], token: str
    ):
        self.alias, self.settings, self.token = alias, settings, token
        self.window = settings["batch_ms"] / 1000
        self.pool = Pool(version, settings["sessions"]) if version else None
        self.older: list[Pool] = []  # of older versions, while they have sessions
        self.queue: list[Step] = []
        self.last = 0.0  # beginning of the last batch [s]
        self.metrics = Metrics(self)

    # -- sessions ----------------------------------------------------------------------------------

    @property
    def pools(self) -> list[Pool]:
        """Those that drive sessions; new ones open in the first."""
        return [*([self.pool] if self.pool else []), *self.older]

    @property
    def sessions(self) -> int:
        """How many are open."""
        return sum(pool.sessions for pool in self.pools)

    def session_refusal(self, robots: int | None = None) -> str:
        """Why no further session of so many robots is opened, in a line; empty if one may be."""
        if self.pool is None:
            return "no policy is released yet"
        limit, left = self.settings["sessions"], self.settings["sessions"] - self.sessions
        if left <= 0:
            return f"all {limit} sessions are taken"
        return f"{left} of {limit} sessions are left" if (robots or 1) > left else ""

    async def session(self, connection: ServerConnection) -> None:
        """Answer the messages of one client, step by step, until it ends."""
        assert connection.request
        if why := self.session_refusal(robots := robots_of(connection.request.path)):
            self.metrics.refused_sessions += 1
            return await connection.close(TRY_LATER, why)
        assert self.pool is not None
        pool, rows = self.pool, self.pool.open(robots)
        try:
            await connection.send(pack(pool.version.metadata()))
            async for message in connection:
                await connection.send(await self.step(pool, rows, message))
        except ConnectionClosed:
            pass
        finally:
            pool.close(rows)
            if pool is not self.pool and not pool.sessions:
                self.older.remove(pool)

    async def step(self, pool: Pool, rows: Rows, message: bytes | str) -> bytes | str:
        """The answer to a message of a session: msgpack, or the text of what is wrong with it."""
        try:
            pool.write(rows, unpack(message))
        except (ValueError, TypeError, OverflowError) as error:
            self.metrics.bad_messages += 1
            return errors.printable(errors.reason(error))
        loop = asyncio.get_running_loop()
        step = Step(pool, rows, loop.create_future(), loop.time())
        if not self.queue:
            wait = self.last + self.window - step.at
            loop.call_later(wait, self.flush) if wait > 0 else loop.call_soon(self.flush)
        self.queue.append(step)
        return await step.answer

    def flush(self) -> None:
        """Answer all steps that wait: one run of the file for each version that drives some."""
        loop, steps = asyncio.get_running_loop(), self.queue
        self.queue, self.last = [], loop.time()
        for pool in {id(step.pool): step.pool for step in steps}.values():
            batch = [step for step in steps if step.pool is pool]
            counts = [np.size(step.rows) for step in batch]
            try:
                targets, faults = pool.step(np.hstack([step.rows for step in batch]))
            except ValueError as error:
                for step in batch:
                    if not step.answer.done():
                        step.answer.set_result(errors.printable(errors.reason(error)))
                continue
            name, first = pool.version.name, 0
            for step, count in zip(batch, counts, strict=True):
                at = first if isinstance(step.rows, int) else slice(first, first + count)
                first += count
                answer = {"actions": targets[at], "fault": faults[at].tolist(), "version": name}
                if not step.answer.done():  # the server may be ending
                    step.answer.set_result(pack(answer))
            since = np.repeat([step.at for step in batch], counts)
            self.metrics.count(loop.time(), since, int(faults.sum()))

    # -- versions ----------------------------------------------------------------------------------

    def swap(self, version: Version) -> None:
        """Let another version drive from the next batch on; ValueError if it does not fit.

        Sessions stay with their version until they end if the settings say `drain`, and either
        version has a network with a memory.
        """
        pool, size = self.pool, self.settings["sessions"]
        if pool is None:
            self.pool = Pool(version, size)
        elif self.settings["swap"] == "drain" and pool.version.network | version.network:
            pool.carried_memory(version)
            self.pool = Pool(version, size)
            self.older += [pool] if pool.sessions else []
        else:
            pool.swap(version)
        self.metrics.swaps += 1

    async def follow(self, alias: Alias) -> None:
        """Swap whenever the alias names another version; what is wrong with one is a warning."""
        while True:
            await asyncio.sleep(self.settings["poll"])
            try:
                version = await asyncio.to_thread(alias.look)  # loading takes many steps
                if version and (self.pool is None or self.pool.version.digest != version.digest):
                    self.swap(version)
                    print(f"version {version.name} drives from now on", flush=True)
            except (ValueError, OSError) as error:
                self.metrics.refused_swaps += 1
                errors.warn(f"warning: not followed: {errors.reason(error)}")

    # -- requests ----------------------------------------------------------------------------------

    def request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a request; None lets it open a session."""
        path, busy = request.path.partition("?")[0], self.session_refusal()
        if why := self.request_refusal(request):
            return connection.respond(HTTPStatus.FORBIDDEN, f"{why}\n")
        if path == "/health":
            if self.pool is None:
                return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{busy}\n")
            return connection.respond(HTTPStatus.OK, f"ok, version {self.pool.version.name}\n")
        if not self.is_allowed(request.headers.get_all("Authorization")):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "a token is needed\n")
        if path == "/metrics":
            return connection.respond(HTTPStatus.OK, self.metrics.text())
        try:
            busy = self.session_refusal(robots_of(request.path))
        except ValueError as error:
            return connection.respond(HTTPStatus.BAD_REQUEST, f"{error}\n")
        if busy:
            self.metrics.refused_sessions += 1
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{busy}\n")
        return None

    def request_refusal(self, request: Request) -> str:
        """Why a request is refused whoever sends it; empty if it is not."""
        # a page of a browser has an origin, and robots have none
        if "Origin" in request.headers:
            return "pages of browsers are refused"
        hosts = request.headers.get_all("Host")  # a page's own name may be made to point here
        if self.token or (len(hosts) == 1 and is_loopback(hosts[0])):
            return ""
        return "this host is not served"

    def is_allowed(self, headers: list[str]) -> bool:
        """Whether the headers `Authorization` of a request show the token."""
        scheme, _, shown = (headers[0] if len(headers) == 1 else "").partition(" ")
        same = hmac.compare_digest(shown.strip().encode(errors="replace"), self.token.encode())
        return not self.token or (scheme.lower() in SCHEMES and same)

    # -- the loop ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def listen(self, listener: socket.socket) -> AsyncIterator[None]:
        """Answer what comes to a socket, and follow the alias, within a `with`."""
        connections: dict[ServerConnection, Any] = {}  # in the order in which they came
        most = self.settings["sessions"] + SPARE

        class Connection(ServerConnection):
            """One connection, for which the oldest that has not opened goes if there are many."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                connections[self] = transport
                if len(connections) > most:
                    opening = (y for x, y in connections.items() if x.state is State.CONNECTING)
                    next(y for y in opening if not y.is_closing()).abort()

            def process_event(self, event: Event) -> None:
                if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
                    more = event.opcode is Opcode.CONT
                    self.fragments = self.fragments + 1 if more else 0
                    if self.fragments > FRAGMENTS:
                        self.protocol.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
                        self.send_data()
                        return self.transport.close()
                super().process_event(event)

            def connection_lost(self, exc: Exception | None) -> None:
                connections.pop(self, None)
                super().connection_lost(exc)

        # it would print a traceback for each connection that is cut
        options: dict[str, Any] = dict(logger=logging.Logger("serve", logging.CRITICAL + 1))
        options |= dict(max_size=self.settings["message_bytes"], max_queue=QUEUE)
        options |= dict(open_timeout=OPENING, close_timeout=CLOSING, compression=None)
        options |= dict(create_connection=Connection, process_request=self.request)
        async with serve(self.session, sock=listener, backlog=ACCEPTED, **options):
            listener.listen(WAITING)
            follow = asyncio.create_task(self.follow(self.alias)) if self.alias else None
            try:
                yield
            finally:
                if follow:
                    follow.cancel()

    async def run(self, listener: socket.socket) -> None:
        """Serve until a signal ends it."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda _, context: errors.warn(error_line(context)))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end.set)
        async with self.listen(listener):
            await end.wait()


def robots_of(path: str) -> int | None:
    """How many robots a session's address asks for with `?robots=`; None if it does not say."""
    query = parse_qs(path.partition("?")[2], keep_blank_values=True)
    if "robots" not in query:
        return None
    count = query["robots"][-1]
    if not (count.isascii() and count.isdecimal() and len(count) < 8 and int(count) > 0):
        raise ValueError("robots= is no number of robots: expected 1 or more")
    return int(count)


def error_line(context: dict[str, object]) -> str:
    """What the loop says of an error that nobody expected, in a line without its traceback."""
    return f"warning: {context['message']}: {context.get('exception')!r}"


def read_token(file: str | None, host: str) -> str:
    """The token in a file; ValueError unless it is a long word, or none is needed."""
    if file is None:
        if not is_loopback(host):
            needed = "serve.token_file=FILE needs a token"
            raise ValueError(f"serve.host={host} lets others in: {needed}")
        return ""
    token = read_text(Path(file)).strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise ValueError(f"{file} holds no token: expected a word of {LEAST_TOKEN} letters or more")
    return token


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens; OSError, which names the address, if it cannot."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"serve.host={host} port={port}: {error.strerror or error}") from None


def allow_files(sessions: int) -> None:
    """Let this process have a connection for each session; ValueError if it may not."""
    needed, (soft, hard) = sessions + 2 * SPARE, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"serve.sessions={sessions} needs {needed} open files"
        raise ValueError(f"{what}, but `ulimit -n` is {hard}")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def run_server(cfg: dict[str, Any]) -> None:
    """mode=serve: serve onnx=, or what an alias names, until Ctrl-C or SIGTERM."""
    settings = cfg["serve"]
    with errors.one_line_errors():
        token = read_token(settings["token_file"], settings["host"])
        alias = None
        if cfg["onnx"]:
            version = Version(Path(cfg["onnx"]))
        else:
            alias = Alias(alias_file(cfg["registry"], cfg["alias"] or "released"))
            version = alias.look()
        server = Server(version, alias, settings, token)
        allow_files(settings["sessions"])
        port = PORT if cfg["port"] is None else cfg["port"]
        listener = open_listener(settings["host"], port)
    host, port = listener.getsockname()[:2]
    state = server.session_refusal()
    if version:
        state = f"version {version.name}, {version.policy.description['task']}"
    address = f"ws://{f'[{host}]' if ':' in host else host}:{port}"
    print(errors.printable(f"serving {address} (Ctrl-C ends it): {state}"), flush=True)
    asyncio.run(server.run(listener))
    print(f"ended: {address} is closed", flush=True)
