"""The page of a registry: its commands by real requests, and requests that others may send."""

import http.client
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from gpusim_rl import registry
from gpusim_rl.commands import registry as commands
from gpusim_rl.serve import registry_page
from gpusim_rl.serve.registry_page import (
    LARGEST_UPLOAD_BYTES,
    ROW_LIMIT,
    PageServer,
    command_line,
    parse_form,
)
from tests.command_lines import start_server
from tests.serving import NAME, PASS
from tests.worlds import ROOT

BOUNDARY = "----of-a-browser"
KIND = f"multipart/form-data; boundary={BOUNDARY}"
SCRIPT = "<script>alert('slips')</script>"


PROMOTE = {"verb": "promote", "name": NAME, "version": "1", "alias": "x"}


def form(file: bytes = b"", /, **fields: str) -> bytes:
    """A form as a browser sends it."""
    parts = {f'name="{key}"': x.encode() for key, x in fields.items()}
    if file:
        parts |= {'name="file"; filename="walk.onnx"\r\nContent-Type: x/y': file}
    lines = [
        b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n"
        % (BOUNDARY.encode(), head.encode(), content)
        for head, content in parts.items()
    ]
    return b"".join([*lines, f"--{BOUNDARY}--\r\n".encode()])


def post(address: str, data: bytes, **headers: str) -> tuple[int, str]:
    """(status, page) of a form that is sent; a browser goes where the answer says."""
    request = urllib.request.Request(address, data, {"Content-Type": KIND} | headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def get(address: str) -> str:
    """A page."""
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode()


def outcome(address: str) -> tuple[str, str]:
    """(state, lines) of the last command, once it has ended."""
    for _ in range(400):
        state, said = re.findall(r"<b>([a-z ]+)</b> <code>.*\n<pre>([^<]*)</pre>", get(address))[0]
        if state != "running":
            return state, unescape(said).strip()
        time.sleep(0.1)
    raise TimeoutError("the command has not ended")


@pytest.fixture
def page(tmp_path) -> Iterator[PageServer]:
    """The page of the store, in a thread of the test."""
    server = PageServer(tmp_path / "store", 0, commands.VERBS)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.stop()


@contextmanager
def page_process(folder: Path) -> Iterator[str]:
    """The address of a page in a process of its own, which ends as SIGTERM asks."""
    line = ("-m", "gpusim_rl", "registry", "page", "port=0")
    says = r"open (http://127\.0\.0\.1:\d+/\?token=\S+) \(Ctrl-C ends it\)\n$"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with start_server(says, *line, cwd=folder, env=env) as (process, address):
        yield address
        process.terminate()
        assert process.stdout and process.wait(10) == 143 and process.stdout.read() == ""


def test_a_release_from_a_browser(tmp_path, files):
    """Files are added, promoted and rolled back, the history says so, and refusals are one line."""
    first, second = (file.read_bytes() for file in files[:2])
    alias = {"name": NAME, "alias": "candidate"}
    back = form(verb="rollback", **alias)
    refused = "error: candidate of quadruped had no version before"
    steps = [
        (form(first, verb="add", note="no. 1"), "done", "quadruped version 1, .*"),
        (form(second, verb="add"), "done", "quadruped version 2, .*"),
        (form(verb="promote", **alias, version="1"), "done", "candidate: quadruped version 1, .*"),
        (form(verb="promote", **alias, version="2", why=SCRIPT), "done", "candidate: .*"),
        (back, "done", "candidate: quadruped version 1, .*"),
        (back, "not done", refused),
        (form(first[:-9], verb="add"), "not done", r"error: walk\.onnx is not an ONNX file.*"),
    ]
    with page_process(tmp_path) as address:
        assert "Promote" not in get(address)
        for data, state, line in steps:
            assert post(address, data)[0] == 200
            ended, said = outcome(address)
            assert ended == state and re.fullmatch(line, said), said
        shown = get(address)
    events = registry.history(tmp_path / "registry", NAME)
    expected = [("promote", 1), ("promote", 2), ("rollback", 1)]
    assert [(x["action"], x["version"]) for x in events] == expected
    rows = re.findall(r"<td class=\"keep\">(\w+) candidate to version (\d)<td>(.*)<td>", shown)
    assert [(x, int(y)) for x, y, _ in rows] == expected[::-1]
    assert unescape(rows[1][2]) == SCRIPT and "<script" not in shown
    assert events[0]["by"] in shown and "no. 1" in shown and events[0]["at"][:10] in shown
    assert [*(tmp_path / "registry").glob("*.candidate.json")]


def test_a_long_command_shows_how_far_it_is(store, page, monkeypatch):
    """Its lines are shown while it runs, the page comes again by itself, and another one waits."""
    script = "import time; print('normal: 40%, 0:20 left', flush=True); time.sleep(100)"
    monkeypatch.setattr(registry_page, "PROGRAM", ("-c", script))
    release = form(verb="promote", name=NAME, version="1", alias="released")
    assert post(page.address, release)[0] == 200
    while "normal: 40%, 0:20 left" not in (shown := get(page.address)):
        time.sleep(0.02)
    assert "running" in shown and 'http-equiv="refresh"' in shown
    status, shown = post(page.address, release)
    assert status == 409 and "<b>wait until the command before has ended</b>" in shown
    assert page.job and page.job.words == ["promote", NAME, "1", "released"]


def test_a_gate_with_other_limits_is_shown(store, page):
    """A version that passed other limits or scenarios than usual is no plain pass on the page."""
    assert "pass,changed" not in get(page.address)
    weak = PASS | {"changed": {"reported": ["delay 2"]}}
    store.record_judgement(store.version(NAME, 1)["digest"], weak, "")
    assert '<td class="pass">pass,changed<td>' in get(page.address)


def test_a_release_that_is_refused(store, page):
    """The settings reach the gate, whose refusal is the line that the command line has."""
    fail = PASS | {"verdict": "fail", "complaints": ["normal: falls 0.5"]}
    settings = commands.key_of(commands.configuration(("gate.robots=16",)), "gate")
    store.record_judgement(store.version(NAME, 1)["digest"], fail, settings)
    release = {"verb": "promote", "name": NAME, "version": "1", "alias": "released"}
    post(page.address, form(**release, settings="gate.robots=16"))
    line = "error: version 1 of quadruped fails the gate: normal: falls 0.5"
    assert outcome(page.address) == ("refused", line)
    assert store.history(NAME) == [] and 'class="fail"' in get(page.address)


def test_other_sites_and_users_are_refused(store, page):
    """Without the token, by another host or from another site nothing is shown or done."""
    host, token = urlsplit(page.address).netloc, page.token
    data = form(verb="promote", name=NAME, version="1", alias="candidate")
    wrong: list[tuple[str, dict[str, str]]] = [
        ("/", {}),
        ("/?token=", {}),
        (f"/?token={token[:-1]}", {}),
        (f"/?token={token}%F0", {}),
        (f"/?token={token}", {"Host": "evil.com"}),
        (f"/?token={token}", {"Host": "127.0.0.1.evil.com"}),
        (f"/?token={token}", {"Host": ""}),
        (f"/?token={token}", {"Origin": "http://evil.com"}),
        (f"/?token={token}", {"Origin": "null"}),
        (f"/?token={token}", {"Origin": "http://127.0.0.1:1"}),
    ]
    for path, headers in wrong:
        for method, body in (("GET", None), ("POST", data)):
            link = http.client.HTTPConnection(host, timeout=10)
            link.request(method, path, body, {"Content-Type": KIND} | headers)
            answer = link.getresponse()
            assert (answer.status, NAME in answer.read().decode()) == (403, False), (path, headers)
            link.close()
    assert page.job is None and store.history(NAME) == []
    with urllib.request.urlopen(page.address) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert post(page.address, data, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "data, status, says",
    [
        (b"x" * (LARGEST_UPLOAD_BYTES + 1), 413, "at most 64 MiB: use the command line"),
        (b"", 400, "verb=: choose one of add, promote, rollback, compare"),
        (form(verb="retain"), 400, "verb=retain: choose one of add, promote, rollback, compare"),
        (form(verb="add"), 400, "choose an .onnx file first"),
        (form(verb="add", note="x" * 2000), 400, "xxx… is too long: expected at most 1000"),
        (form(verb="rollback", name=NAME), 400, "alias=: expected at most 64 letters"),
        (form(verb="rollback", name="a=b", alias="x"), 400, "name=a=b: expected at most 64"),
        (form(verb="rollback", name="--help", alias="x"), 400, "name=--help: expected at most"),
        (form(verb="rollback", name=NAME, alias="x", why="a\0b"), 400, "embedded null byte"),
        (form(**PROMOTE, settings="'"), 400, "No closing quotation"),
        (form(**PROMOTE, settings="--help"), 400, "settings: '--help' is not KEY=VALUE"),
        (form(verb="rollback", name=NAME, alias=SCRIPT), 400, "alias=<script>"),
        *(
            (form(**PROMOTE, settings=f"gate.robots={x}"), 400, "has a $, which no setting has")
            for x in ("${oc.env:HOME}", r"'$\{oc.env:HOME\}'", "'[$'{oc.env:HOME}]", "${seed}")
        ),
    ],
)
def test_forms_that_make_no_sense(store, page, data, status, says):
    """Each is answered by a line on the page, and starts nothing."""
    got, shown = post(page.address, data)
    assert got == status and "<script" not in shown
    (line,) = re.findall(r'refused"><b>(.*)</b>', shown)
    assert says in unescape(line) and "Error" not in line
    assert page.job is None


def test_requests_that_are_not_whole(store, page):
    """A form without a length, cut or of another kind is refused, and so are other paths."""
    host = urlsplit(page.address).netloc
    data = form(verb="rollback", name=NAME, alias="released")
    cases: list[tuple[dict[str, str], bytes, str]] = [
        ({}, b"", "411"),
        ({"Content-Length": "-1"}, b"", "411"),
        ({"Content-Length": str(len(data) + 9)}, data, "400"),
        ({"Content-Length": str(len(data)), "Content-Type": "text/plain"}, data, "400"),
    ]
    for headers, body, status in cases:
        link = http.client.HTTPConnection(host, timeout=10)
        link.putrequest("POST", f"/?token={page.token}")
        for name, x in ({"Content-Type": KIND} | headers).items():
            link.putheader(name, x)
        link.endheaders(body)
        assert link.sock
        link.sock.shutdown(1)
        assert link.sock.makefile("rb").readline().split()[1].decode() == status, headers
        link.close()
    assert page.job is None
    assert post(page.address.replace("/?", "/etc?"), data)[0] == 404
    assert post(f"{page.address}&name=walk", data)[0] == 404


def test_a_form_is_read_byte_by_byte():
    """A file comes as it is, whatever is in it."""
    file = bytes(range(256)) * 3 + b"\r\n--\r\n\r\n--" + BOUNDARY[:-1].encode() + b"\r\n\n\r"
    fields, name = parse_form(KIND, form(file, verb="add", note="ü"))
    assert name == "walk.onnx"
    assert fields == {"verb": b"add", "note": "ü".encode(), "file": file}
    assert command_line(fields, Path("f"), commands.VERBS) == ["add", "f", "note=ü"]


def test_many_versions_are_not_all_shown(store, page):
    """The newest are, and what an alias is; the rest is a command."""
    store.promote(NAME, 1, "candidate")
    row = store.version(NAME, 1) | {"lineage": "{}"}
    for number in range(4, ROW_LIMIT + 4):
        row |= {"version": number, "digest": f"{number:064}"}
        marks = ", ".join("?" * len(row))
        store.db.execute(
            f"insert into version ({', '.join(row)}) values ({marks})", [*row.values()]
        )
    shown = get(page.address)
    assert shown.count('<tr><td class="number">') == ROW_LIMIT + 1
    assert "2 older ones: <code>gpusim registry list quadruped</code>" in shown
    assert '<tr><td class="number">1<' in shown and '<tr><td class="number">2<' not in shown


@pytest.mark.parametrize("word", ["port=x", "port=70000", "port=-1"])
def test_a_wrong_port_is_one_line(word, tmp_path):
    """A port is a number."""
    with pytest.raises(ValueError, match=f"{word}: expected a number from 0 to 65535"):
        registry_page.serve(tmp_path, word.removeprefix("port="), {})


def test_a_port_that_is_taken(page, tmp_path):
    """It is named."""
    with pytest.raises(OSError, match=f"^port={page.server_port}: Address already in use$"):
        PageServer(tmp_path, page.server_port, {})
