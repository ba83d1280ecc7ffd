"""The page of a registry: `gpusim registry page`.

Each request reads the registry anew. What changes it is a command line in a process of its own,
which is the one that the terminal has. So the same is refused, in the same line, and a damaged file
that somebody sends harms no page.
"""

import hmac
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode

from gpusim_rl.core import errors
from gpusim_rl.core.paths import search_path
from gpusim_rl.report.templates import render
from gpusim_rl.serve.registry import SHORT, Registry, Row, Verb, check_name
from gpusim_rl.serve.settings import is_loopback

TEMPLATE = Path(__file__).with_name("registry.html")
LOOPBACK, LAST_PORT = "127.0.0.1", 65535
# -P: no module comes from the working directory
PROGRAM = ("-P", "-m", "gpusim_rl", "registry")
LARGEST_UPLOAD_BYTES = 1 << 26  # bytes of a form and its file
DRAINED = 1 << 30  # bytes of a larger one that are read, so that a browser shows the answer
LONGEST_FIELD = 1000  # characters of a field
PATIENCE = 30.0  # s for a slow client
ROW_LIMIT = 100  # versions and events of a policy, the newest
LINES = 60  # of what a command said
# Why: docs/decisions/web.md
# Nothing is loaded from elsewhere, no script runs, and no other page holds this one in a frame.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
STATES = {None: "running", 0: "done", 1: "refused"}  # by exit code; others are a mistake
Form = dict[str, bytes]


class PageError(ValueError):
    """What is wrong with a request, in a line, and the status that answers it."""

    def __init__(self, status: HTTPStatus, line: str):
        super().__init__(line)
        self.status = status


class Job(NamedTuple):
    """A command line that runs, or ran, and the name of the file that came with it."""

    words: list[str]
    process: subprocess.Popen[bytes]
    file_name: str


class TokenServer(ThreadingHTTPServer):
    """A page at a port, 0 for any; OSError if there is no such host, or the port is taken.

    Each request shows the token. It is part of the address, so that only who started the page may
    use it, and not another user of the machine or another site in the browser.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: "type[Handler]"):
        self.token, self.lock = secrets.token_urlsafe(24), Lock()  # of what its threads share
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            place = "" if host == LOOPBACK else f"serve.host={host} "
            raise OSError(f"{place}port={port}: {error.strerror or error}") from None

    @property
    def address(self) -> str:
        """The address that opens it."""
        host = str(self.server_address[0])
        name = socket.gethostname() if host == "0.0.0.0" else host
        return f"http://{name}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing of a client that went away, and a line instead of a traceback of all else."""
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError | TimeoutError):
            errors.warn(f"warning: {errors.reason(error)}")


class PageServer(TokenServer):
    """The page of a registry, for this machine."""

    def __init__(self, folder: Path, port: int, verbs: Mapping[str, Verb]):
        self.folder, self.verbs = folder, verbs
        self.job: Job | None = None
        super().__init__(LOOPBACK, port, Handler)
        self.draft = tempfile.TemporaryDirectory(prefix="gpusim_rl-")
        # the file of the last form, and what its command says
        self.upload, self.output = (Path(self.draft.name) / x for x in ("policy.onnx", "said"))

    def start(self, form: Form, file_name: str) -> None:
        """Run the command line of a form; ValueError if it is none, or the last has not ended."""
        words = command_line(form, self.upload, self.verbs)
        with self.lock:
            if self.job and self.job.process.poll() is None:
                raise PageError(HTTPStatus.CONFLICT, "wait until the command before has ended")
            self.upload.write_bytes(form.get("file", b""))
            line = [sys.executable, *PROGRAM, *words, f"registry={self.folder}"]
            env = os.environ | {"PYTHONPATH": search_path()}
            with open(self.output, "wb") as said:
                process = subprocess.Popen(
                    line, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
                )
            self.job = Job(words, process, file_name)

    def current_job(self) -> Row | None:
        """What the page says of the last command; None if there was none."""
        with self.lock:
            if not (job := self.job):
                return None
            state = STATES.get(job.process.poll(), "not done")
            lines = self.output.read_text(errors="replace").splitlines()[-LINES:]
        lines = [f"gpusim registry {shlex.join(job.words)}", *lines]
        # the file has the name that the browser calls it by
        shown = (errors.printable(x.replace(str(self.upload), job.file_name)) for x in lines)
        return {"command": next(shown), "state": state, "lines": [*shown]}

    def stop(self) -> None:
        """End what runs, and close the port."""
        self.server_close()
        if self.job:
            self.job.process.kill()
            self.job.process.wait()
        self.draft.cleanup()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout, policy, paths = PATIENCE, POLICY, ("/",)
    largest, most = LARGEST_UPLOAD_BYTES, "64 MiB: use the command line"  # bytes of a form
    server_version, sys_version = "gpusim_rl", ""

    def do_GET(self) -> None:
        """Show the page, or what is wrong with the request."""
        try:
            self.send(HTTPStatus.OK, self.page(self.checked_query()))
        except PageError as error:
            self.refuse(error)

    def do_POST(self) -> None:
        """Start the command of a form, and let the browser show the page."""
        try:
            query = self.checked_query()
            try:
                form, file_name = parse_form(self.headers["Content-Type"] or "", self.body())
                self.server.start(form, file_name)
            except (ValueError, OSError) as error:
                status = error.status if isinstance(error, PageError) else HTTPStatus.BAD_REQUEST
                return self.send(status, self.page(query, errors.reason(error)))
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", f"/?{urlencode(query)}")
            self.end_headers()
        except PageError as error:
            self.refuse(error)

    def checked_query(self) -> dict[str, str]:
        """The query of a request that this page's user sent, from this page if from any.

        PageError if the host is another's name for this machine, another site in the browser sent
        it, the token is missing, or there is no such page.
        """
        hosts, origins = (self.headers.get_all(x) or [] for x in ("Host", "Origin"))
        here = is_loopback(f"{self.server.server_address[0]}")
        if len(hosts) != 1 or (here and not is_loopback(hosts[0])):
            raise PageError(HTTPStatus.FORBIDDEN, "this host is not served")
        if any(x != f"http://{hosts[0]}" for x in origins):
            raise PageError(HTTPStatus.FORBIDDEN, "forms of other sites are refused")
        path, _, words = self.path.partition("?")
        query = {key: values[-1] for key, values in parse_qs(words).items()}
        token = query.get("token", "").encode(errors="replace")
        if not hmac.compare_digest(token, self.server.token.encode()):
            raise PageError(HTTPStatus.FORBIDDEN, "open the address that the command printed")
        if path not in self.paths:
            raise PageError(HTTPStatus.NOT_FOUND, "there is no such page")
        return query

    def body(self) -> bytes:
        """The content of a request; PageError if it is too large, or its length is not known."""
        lengths = self.headers.get_all("Content-Length") or []
        if len(lengths) != 1 or not re.fullmatch(r"\d{1,15}", lengths[0]):
            raise PageError(HTTPStatus.LENGTH_REQUIRED, "the length of the form is missing")
        if (length := int(lengths[0])) > self.largest:
            for _ in range(min(length, DRAINED) >> 16):
                if not self.rfile.read(1 << 16):
                    break
            line = f"a form with its file has at most {self.most}"
            raise PageError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, line)
        if len(data := self.rfile.read(length)) < length:
            raise PageError(HTTPStatus.BAD_REQUEST, "the form is not whole")
        return data

    def page(self, query: dict[str, str], message: str = "") -> str:
        """The page of one policy: that of the query, or the first."""
        where = {"token": self.server.token}
        try:
            words = contents(self.server.folder, query.get("name", ""))
            job = self.server.current_job()
        except ValueError as error:
            raise PageError(HTTPStatus.NOT_FOUND, errors.reason(error)) from None
        except OSError as error:
            raise PageError(HTTPStatus.INTERNAL_SERVER_ERROR, errors.reason(error)) from None
        here = f"/?{urlencode(where | {'name': words['name']})}"
        links = {name: f"/?{urlencode(where | {'name': name})}" for name in words["names"]}
        context = {"folder": self.server.folder, "here": here, "links": links}
        return render(TEMPLATE, job=job, message=errors.printable(message), **context, **words)

    def refuse(self, error: PageError) -> None:
        """Answer with a line."""
        self.send(error.status, f"{error}\n", "text/plain")

    def send(self, status: HTTPStatus, text: str, kind: str = "text/html") -> None:
        """Answer with a text."""
        data = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        """Also say what a browser may do with any answer."""
        # without the token's address for other sites
        headers = {"Content-Security-Policy": self.policy, "Referrer-Policy": "same-origin"}
        headers |= {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        for name, value in headers.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing of a request."""


def contents(folder: Path, name: str) -> Row:
    """What the page shows of a registry: the names in it, and all about one, or ValueError."""
    if not (folder / "registry.db").is_file():  # the first file that is added makes it
        return {"names": [], "name": "", "versions": [], "older": 0, "aliases": {}, "events": []}
    registry = Registry(folder)
    names = [x["name"] for x in registry.rows("select distinct name from version order by name")]
    name = name or (names[0] if names else "")
    rows = registry.list(name)[::-1]
    events = registry.history(name)[::-1] if names else []
    aliases = {alias: row["version"] for row in rows for alias in row["aliases"]}
    shown = rows[:ROW_LIMIT] + [row for row in rows[ROW_LIMIT:] if row["aliases"]]
    return {
        "names": names,
        "name": name,
        "versions": [version_words(row) for row in shown],
        "older": len(rows) - len(shown),
        "aliases": aliases,
        "events": [event_words(row) for row in events[:ROW_LIMIT]],
    }


def version_words(row: Row) -> Row:
    """A version as the page's table says it."""
    lineage = {key: str(x) for key, x in row["lineage"].items()}
    short = {key: lineage.get(key, "")[:SHORT] for key in ("commit", "labels", "parent")}
    run = " ".join(lineage[key] for key in ("run", "imported") if key in lineage)
    return printable(row | short | {"run": run, "digest": row["digest"][:SHORT]})


def event_words(row: Row) -> Row:
    """An event as the page's table says it."""
    evidence = "; ".join(f"{key.replace('_', ' ')}: {x}" for key, x in row["evidence"].items())
    return printable(row | {"evidence": evidence})


def printable(row: Row) -> Row:
    """A row without control characters, and its time as people write it."""
    row = row | {"at": row["at"].removesuffix("+00:00").replace("T", " ")}
    return {key: errors.printable(x) if isinstance(x, str) else x for key, x in row.items()}


def command_line(form: Form, file: Path, verbs: Mapping[str, Verb]) -> list[str]:
    """The command line of a form, without the registry; ValueError if the form is none of ours."""
    fields = {key: x.decode(errors="replace").strip() for key, x in form.items() if key != "file"}
    if (long := max(fields.values(), key=len, default="")) and len(long) > LONGEST_FIELD:
        raise ValueError(f"{long[:20]}… is too long: expected at most {LONGEST_FIELD} characters")
    verbs = {name: verb for name, verb in verbs.items() if verb.form is not None}
    if (name := fields.get("verb", "")) not in verbs:
        raise ValueError(f"verb={name}: choose one of {', '.join(verbs)}")
    verb, words = verbs[name], [name]
    for field in verb.words:
        if field == "file":
            if not form.get("file"):
                raise ValueError("choose an .onnx file first")
            words.append(str(file))
        else:
            check_name(field, fields.get(field, ""))
            words.append(fields[field])
    words += [f"{key}={fields[key]}" for key in verb.form or () if fields.get(key)]
    settings = shlex.split(fields.get("settings", "")) if verb.settings else []
    if wrong := [word for word in settings if not re.match(r"[a-z_.]+=", word)]:
        raise ValueError(f"settings: {wrong[0]!r} is not KEY=VALUE")
    # as ${oc.env:…} it would show the environment of who started the page; Hydra takes $\{ as ${
    if wrong := [word for word in settings if "$" in word]:
        raise ValueError(f"settings: {wrong[0]!r} has a $, which no setting has")
    return words + settings


def parse_form(kind: str, body: bytes) -> tuple[Form, str]:
    """The fields of multipart/form-data, of RFC 7578, and the name of its file; ValueError."""
    boundary = re.fullmatch(r'multipart/form-data; *boundary="?([^\s";]{1,70})"?', kind)
    if not boundary:
        raise ValueError("a form of this page is expected")
    form, file_name = {}, ""
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        names = dict(re.findall(r'[; ](name|filename)="([^"]*)"', head.decode(errors="replace")))
        form[names.get("name", "")] = content
        file_name = names.get("filename") or file_name
    return form, file_name


def serve(folder: Path, port: str, verbs: Mapping[str, Verb]) -> None:
    """Show the page until Ctrl-C, SIGTERM or SIGHUP; ValueError unless the port is a number."""
    if not port.isdecimal() or int(port) > LAST_PORT:
        raise ValueError(f"port={port}: expected a number from 0 to {LAST_PORT}")
    server = PageServer(folder, int(port), verbs)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    print(f"open {server.address} (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    finally:
        server.stop()
