"""The web page: who may open it, and that it shows what a film shows."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import viser
from viser import _messages
from viser.infra import ClientId
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gpusim_rl.commands import play_mode
from gpusim_rl.config import compose
from gpusim_rl.play import player
from gpusim_rl.web import requirements
from gpusim_rl.web import server as web_server
from gpusim_rl.web.app import Web, serve
from gpusim_rl.web.controls import LONGEST, Sliders, numbers, short
from gpusim_rl.web.policy_panel import known_runs, labelled
from gpusim_rl.web.server import (
    check_messages,
    free_port,
    is_own,
    open_server,
    quiet,
    refusal,
)
from tests.browser import CHROMIUM, WebPage, WebServer, chromium, first_line, listening
from tests.command_lines import environment
from tests.worlds import ROOT

PROTOCOL = f"viser-v{viser.__version__}"
COMMAND = [0.5, 0.0, 0.2]
UPGRADE = b"Host: 127.0.0.1\r\nConnection: Upgrade\r\n" + 2 * b"Upgrade: websocket\r\n"
SENT = {  # to the server, by what is no browser
    "nothing": b"",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "POST": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
    "two upgrades": b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n",
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[viser.ViserServer, str]]:
    """A server without anything to show, and its address."""
    server, address = open_server("127.0.0.1", 0)
    yield server, address
    with quiet():
        server.stop()


def settings(*words: str) -> dict[str, Any]:
    """A configuration of play.py."""
    return compose.compose_plain("play", ["mode=web", *words])


def send(server: viser.ViserServer, control: Any, **updates: Any) -> None:
    """Let a page of a browser ask for new properties of a control."""
    take(server, _messages.GuiUpdateMessage(control._impl.uuid, updates))


def take(server: viser.ViserServer, message: _messages.Message) -> None:
    """Let a server take a message of a page."""
    asyncio.run(server.gui._websock_interface._handle_incoming_message(ClientId(0), message))


@pytest.fixture
def web(trained) -> Iterator[Web]:
    """The page of the trained run, at a fixed command, as a process would serve it."""
    server, _ = open_server("127.0.0.1", 0)
    yield Web(settings(f"run={trained}", f"command={COMMAND}", "worlds=2"), [str(trained)], server)
    with quiet():
        server.stop()


# -- who may open it -------------------------------------------------------------------------------


def test_pages_of_other_origins_are_refused(served):
    """A WebSocket opens for the server's own page alone, and under no other name of the machine."""
    _, address = served
    at, authority = address.replace("http", "ws"), address.removeprefix("http://")

    def status(**headers: str) -> int:
        try:
            with connect(at, subprotocols=[PROTOCOL], additional_headers=headers):  # type: ignore
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    assert status(Origin=address) == 101
    assert status() == 403
    others = ("http://example.com", "null", "https://" + authority, address + "0", address + "/")
    assert [status(Origin=origin) for origin in others] == [403] * len(others)
    for name in ("example.com", f"example.com:{authority[-4:]}", "127.0.0.1.example.com"):
        assert status(Origin=f"http://{name}", Host=name) == 403


def test_the_page_is_served_under_its_own_name_alone(served):
    """Another site's name that points here gets no page, and no site may frame or feed ours."""
    _, address = served
    with urllib.request.urlopen(address) as page:
        policy = page.headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in policy and "connect-src 'self'" in policy
    other = urllib.request.Request(address, headers={"Host": "example.com"})
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(other)
    assert error.value.code == 403
    error.value.close()


@pytest.mark.parametrize(
    "host, bound, answered",
    [
        ("localhost:9", "127.0.0.1", True),
        ("[::1]:9", "127.0.0.1", True),
        ("192.168.0.7:9", "127.0.0.1", False),
        ("192.168.0.7:9", "0.0.0.0", True),
        ("example.com:9", "0.0.0.0", False),
        ("localhost:9", "0.0.0.0", True),
    ],
)
def test_names_of_this_machine(host, bound, answered):
    """Addresses are answered where host= is given, names of other sites never."""
    from websockets.datastructures import Headers

    assert (refusal(Headers(Host=host), bound) == "") == answered


def test_a_message_of_a_page_sets_what_its_control_offers(web):
    """viser takes any value of any property from a page; here it has to be one that is offered."""
    controls, (shown,) = web.controls, web.policies
    says = (
        (controls.speed, ["99", "1/10"]),
        (shown.pick, ["../evil", 5]),
        (shown.iteration, ["../../../../../etc/passwd", None, ["last"], "000000"]),
        (controls.robot, [float("nan"), "1", -5, 99]),
        (controls.follow, ["", 3, False]),
        (controls.state, ["evil"]),
    )
    for control, values in says:
        for value in values:
            send(web.server, control, value=value)
    send(web.server, shown.iteration, _impl=0, value="last")
    send(web.server, shown.iteration, removed=True)
    assert (controls.speed.value, shown.iteration.value) == ("1/10", "000000")
    assert shown.words[shown.pick.value] == shown.word
    assert (controls.robot.value, controls.follow.value, controls.state.value) == (1, False, "")
    send(web.server, controls.robot, value=-5)
    assert controls.robot.value == 0
    web.step()
    web.draw()


def test_files_and_tunnels_are_refused(web, monkeypatch):
    """A page cannot upload a file into a control, nor let viser open a tunnel to the internet."""
    asked, server, control = [], web.server, web.controls.speed
    monkeypatch.setattr(server, "request_share_url", lambda: asked.append(1))
    for parts in (0, 1):
        file = ("f", "text/plain", parts, 0)
        uuid = control._impl.uuid
        take(server, _messages.FileTransferStartUpload(uuid, f"transfer {parts}", *file))
    take(server, _messages.ShareUrlRequest())
    assert (control.value, server.gui._current_file_upload_states, asked) == ("1", {}, [])
    web.step()


def test_a_connection_takes_its_camera_alone(served, caplog):
    """It drops viser's other kinds of messages, and one that is broken leaves no traceback."""
    server, address = served
    opened: list[Any] = []
    server._websock_server.on_client_connect(opened.append)
    at, headers = address.replace("http", "ws"), {"Origin": address}
    with connect(at, subprotocols=[PROTOCOL], additional_headers=headers) as page:  # type: ignore
        page.send(msgspec.msgpack.encode({"type": "GuiUpdateMessage", "uuid": [], "updates": 5}))
        assert page.ping().wait(10)
        assert {*opened[0]._incoming_handlers} == {_messages.ViewerCameraMessage}
    assert caplog.text == ""


@pytest.mark.parametrize("sent", SENT.values(), ids=[*SENT])
def test_what_is_no_request_of_a_page(served, caplog, monkeypatch, sent):
    """Whoever connects without HTTP, or with a wrong request, prints nothing into the terminal."""
    # viser's filter, which is there after the first request
    monkeypatch.setattr(logging.getLogger("websockets.server"), "filters", [])
    port = int(served[1].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as other:
        other.sendall(sent)
        other.shutdown(socket.SHUT_WR)
        while other.recv(4096):
            pass
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), served[0]._event_loop).result()
    assert caplog.text == ""


def test_an_address_of_another_machine():
    """host= that is no address of this machine, and a port that is taken, get one line."""
    with pytest.raises(OSError, match=r"host=192\.0\.2\.1 port=0: "):
        open_server("192.0.2.1", 0)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # of another program, which has it
            stack.enter_context(socket.create_server(("127.0.0.1", 65535)))
        with pytest.raises(OSError, match=r"host=127\.0\.0\.1 port=65535: "):
            free_port("127.0.0.1", 65535)


def test_the_address_of_a_server_for_other_machines():
    """A server at all addresses prints this machine's name, which it answers."""
    server, address = open_server("0.0.0.0", 0)
    with quiet():
        server.stop()
    name = address.removeprefix("http://").rpartition(":")[0]
    assert name == socket.gethostname() and is_own(name.lower(), "0.0.0.0")


# -- what it shows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["run", "onnx"])
def test_page_and_film_agree(trained, served, source):
    """After each of 120 steps the page's robot stands where the film's does: the same numbers."""
    path = trained if source == "run" else trained / "policy.onnx"
    cfg = settings(f"{source}={path}", f"command={COMMAND}", "seed=3")
    web = Web(cfg, [str(path)], served[0])

    def choose(_: Any) -> Any:
        return lambda t: np.array(COMMAND)

    if source == "run":
        run = player.find_run(cfg)
        rollout = player.run_rollout(run, *player.load_run(run, cfg), cfg)
    else:
        rollout = player.file_rollout(path)
    frames = player.frames_of(rollout, choose)
    for i in range(120):
        web.step()
        t, qpos = next(frames)
        shown = web.policies[0]
        np.testing.assert_array_equal(shown.rollout.qpos()[0], qpos, err_msg=f"step {i}")
        assert shown.time == pytest.approx(t)
    web.draw()
    web.show_numbers()
    assert [float(x) for x in shown.base.value.split()] == pytest.approx(qpos[:7], abs=1e-7)
    shown.scene.remove()


def test_time_and_pushes(web):
    """A push adds its velocity, a step is one control step, and a reset begins at time zero."""
    (shown,) = web.policies
    dt, before = shown.rollout.dt, shown.rollout.env.sim.qvel.clone()
    web.push(np.array([0.0, 1.5]))
    added = shown.rollout.env.sim.qvel - before
    assert added[:, 1].tolist() == [1.5, 1.5] and added.abs().sum() == 3
    web.controls.step_once()
    assert (web.controls.paused, web.controls.steps, web.controls.pause.label) == (True, 1, "go on")
    web.step()
    assert (web.controls.steps, shown.time) == (0, dt)
    web.restart()
    assert shown.time == 0 and shown.rollout.env.time.tolist() == [0, 0]


def test_a_slider_that_is_dragged_does_not_stop_the_time(web):
    """A hundred requests that wait are answered at once, and then a step is due."""
    done: list[int] = []
    for i in range(100):
        web.requests.put(lambda i=i: done.append(i))
    assert web.answer(0.0) and done == [*range(100)]
    assert not web.answer(0.0)


def test_checkpoints(web, capsys):
    """The chosen checkpoint acts, where the robots are; one that is not whole is a note."""
    (shown,) = web.policies
    assert shown.checkpoints() == ("last", "000002", "000000")
    weights, before = shown.ppo.policy.actor, shown.rollout.qpos()
    last = next(weights.parameters()).clone()
    shown.iteration.value = "000000"
    web.change_checkpoint(shown)
    assert shown.note.value == "after 0 iterations"
    assert not np.array_equal(next(weights.parameters()).detach(), last.detach())
    assert np.array_equal(shown.rollout.qpos(), before)
    options = shown.iteration.options
    shown.iteration.options = (*options, "000001")
    shown.iteration.value = "000001"
    web.change_checkpoint(shown)
    assert "000001.safetensors is not a whole checkpoint" in shown.note.value
    assert shown.note.value in capsys.readouterr().err
    assert (shown.iteration.value, shown.iteration.options[: len(options)]) == ("000000", options)


def test_the_page_names_the_checkpoint_that_acts(web, trained, tmp_path):
    """Another run begins with its last one; one of the command line is named, or its path."""
    (shown,) = web.policies
    shown.iteration.value = "000000"
    web.change_checkpoint(shown)
    other = shutil.copytree(trained, tmp_path / "other")
    shown.words["other"], shown.pick.options = str(other), (*shown.pick.options, "other")
    shown.pick.value = "other"
    web.change_run(shown)
    assert (shown.word, shown.iteration.value) == (str(other), "last")
    assert shown.first_checkpoint(f"{other}/checkpoints/000000.safetensors") == "000000"
    assert shown.first_checkpoint(f"{trained}/checkpoints/000000.safetensors") != "000000"
    shown.acting = "000007"  # training has removed it
    shown.look_for_checkpoints()
    before = shown.iteration.options
    shown.look_for_checkpoints()
    assert "000007" in before and shown.iteration.options is before


def test_another_policy_leaves_nothing_of_the_first(web, trained):
    """The environment of a run is freed when a file is chosen, and so are its curves."""
    (shown,) = web.policies
    for _ in range(20):
        web.step()
    web.show_numbers()
    first = weakref.ref(shown.rollout.env)
    assert first() and all(plot.chart for plot in shown.plots)
    shown.words["file"] = str(trained / "policy.onnx")
    shown.pick.options = (*shown.pick.options, "file")
    shown.pick.value = "file"
    web.change_run(shown)
    assert first() is None and not any(plot.chart for plot in shown.plots)
    for _ in range(20):
        web.step()
    web.show_numbers()
    assert [bool(plot.chart) for plot in shown.plots] == [False, True]


def test_runs_to_choose_from(tmp_path, monkeypatch):
    """Runs of a multirun are offered, and a run that is shown is offered once."""
    monkeypatch.chdir(tmp_path)
    swept = [f"runs/multirun/today/seed_{i}" for i in (1, 2)]
    for run in ("runs/ant/a", "runs/b", *swept):
        Path(run, "checkpoints").mkdir(parents=True)
        Path(run, "config.yaml").touch()
    assert {*known_runs(["runs/ant/a"])} == {"runs/ant/a", "runs/b", *swept}
    words = [f"{tmp_path}/runs/ant/a", "runs/b/"]
    assert sorted(known_runs(words)) == sorted([*words, *swept])


def test_labels_of_runs():
    """Two paths with the same end have two labels."""
    words = [f"{i}/{'x' * 2 * LONGEST}" for i in range(3)]
    assert list(labelled(words).values()) == words


def test_what_is_a_file(trained, tmp_path):
    """A policy is known by being a file: its name may lack .onnx, which a run's may have."""
    shutil.copy(trained / "policy.onnx", tmp_path / "policy")
    (tmp_path / "dir.onnx").mkdir()
    assert player.is_file(str(tmp_path / "policy")) and player.is_file("missing.onnx")
    assert not player.is_file(str(tmp_path / "dir.onnx")) and not player.is_file("missing")


def test_compare(trained, served):
    """A run and a file stand side by side, follow one command, and keep the same time."""
    words = [str(trained), str(trained / "policy.onnx")]
    web = Web(settings(f"compare=[{','.join(words)}]", f"command={COMMAND}"), words, served[0])
    for _ in range(20):
        web.step()
    web.draw()
    first, second = web.policies
    assert first.time == second.time == pytest.approx(20 * first.rollout.dt)
    apart = second.scene.places[0] - first.scene.places[0]
    assert apart[1] > first.scene.reach and apart[0] == 0
    assert [x.rollout.command.tolist() for x in web.policies] == [COMMAND, COMMAND]


def test_sliders(served):
    """A command is a tour until a slider moves, and then stays in the range of each policy."""
    ranges = {"low": [-1.0, -2.0], "high": [1.0, 2.0]}
    about = {"names": ["x", "y"], "units": ["m", "m"], "trained": ranges}
    narrow = about | {"trained": {"low": [-0.5, -2.0], "high": [0.5, 2.0]}}
    sliders = Sliders(served[0], SimpleQueue(), [], 10.0)
    sliders.rebuild([about, narrow])
    assert sliders.command({}, 0.0) is None
    assert sliders.command(about, 2.1).tolist() == [0.8, 0.0]
    sliders.sliders["x"].value = 0.9
    sliders.take_over()
    assert not sliders.touring.value
    assert sliders.command(about, 2.1).tolist() == [0.9, 0.0]
    assert sliders.command(narrow, 2.1).tolist() == [0.5, 0.0]


def test_sliders_of_a_rotation(served):
    """A rotation has a slider for its turn and its lean, and is a unit quaternion."""
    about = {
        "names": ["z", "qw", "qx", "qy", "qz"],
        "units": ["m", "1", "1", "1", "1"],
        "trained": {"low": [0.0, -1, -1, -1, -1], "high": [1.0, 1, 1, 1, 1]},
        "center": [0.5, 1.0, 0.0, 0.0, 0.0],
        "lean": 0.4,
    }
    assert [row[0] for row in numbers(about)] == ["z", "turn", "lean", "lean towards"]
    sliders = Sliders(served[0], SimpleQueue(), [], 10.0)
    sliders.rebuild([about])
    sliders.sliders["lean"].value = 0.4
    sliders.take_over()
    asked = sliders.command(about, 0.0)
    assert asked[0] == 0.5 and np.linalg.norm(asked[1:]) == pytest.approx(1)
    assert 2 * np.arccos(asked[1]) == pytest.approx(0.4)


def test_names_of_strangers():
    """A stranger's name is one line without control characters, and not longer than the page."""
    assert short("a\nb\x1b[2J") == "a b\\x1b[2J"
    assert len(short("x" * 10**6)) == LONGEST


WRONG = {
    "host=": "host='': expected an address",
    "host=5": "host=5: expected an address",
    "host=[1]": "host=[1]: expected an address",
    "host=127.0.0.256": "expected an address of this machine",
    "port=-1": "port=-1: expected a whole number from 0 to 65535",
    "port=http": "port='http': expected a whole number",
    "port=1.5": "port=1.5: expected a whole number",
    "compare=a": "compare=a: expected two run directories",
    "compare=[a,b,c]": "expected two run directories or .onnx files",
    "compare=[a,3]": "expected two run directories or .onnx files",
    "compare=[a,b] run=a": "compare= names both policies: not with run=",
    "compare=[a,b] onnx=p.onnx": "compare= names both policies: not with onnx=",
    "compare=[a,b] worlds=4": "compare= names both policies: not with worlds=",
    "compare=[a,b] checkpoint=c": "compare= names both policies: not with checkpoint=",
    "worlds=65": "worlds=65: expected a whole number from 1 to 64",
    "worlds=4 onnx=p.onnx": "worlds=4 needs run=",
    "onnx=nope": "no ONNX file nope",
    "onnx=nope.onnx": "no ONNX file nope.onnx",
    "video=walk.mp4": "video= is not shown by mode=web",
    "repro=r.safetensors": "repro= is not shown by mode=web",
    "command=fast": "command=fast: expected numbers",
    "seconds=0": "seconds=0: expected a whole number",
    "mode=video port=80": "port=80 needs mode=web",
    "mode=video host=0.0.0.0": "host=0.0.0.0 needs mode=web",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_words(line):
    """A wrong word of mode=web is refused in one line that names it."""
    with pytest.raises((ValueError, OSError), match=re.escape(WRONG[line])) as error:
        play_mode.choose_mode(settings(*line.split()))
    assert "\n" not in str(error.value)


def test_without_viser(monkeypatch):
    """Without the extra, one line says how to install it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(requirements, "find_spec", lambda name: name != "viser" and find(name))
    with pytest.raises(ValueError, match=r"pip install 'gpusim_rl\[web\]'"):
        play_mode.choose_mode(settings())


def test_a_viser_that_is_another(monkeypatch, capsys):
    """One that lacks what the page uses is one line with both versions, and no server is left."""
    monkeypatch.setattr(
        web_server,
        "check_messages",
        lambda _: check_messages(SimpleNamespace(gui=SimpleNamespace())),
    )
    left = threading.active_count()
    with pytest.raises(SystemExit):
        serve(settings("port=0"), ["run"], os.getppid())
    said = capsys.readouterr().err
    assert said.startswith(f"error: mode=web cannot use viser {viser.__version__} and mjviser ")
    assert ", it needs viser>=1.1,<1.2 and mjviser>=" in said and "_websock_interface" in said
    assert said.count("\n") == 1 and threading.active_count() <= left


# -- as a process ----------------------------------------------------------------------------------


def test_the_server_ends_with_its_parent(tmp_path, trained):
    """It listens at 127.0.0.1 alone, and ends when the process that started it is killed."""
    words = ["mode=web", f"onnx={trained}/policy.onnx", "port=0"]
    code = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT / "play.py"), *words],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        stdout=subprocess.PIPE,
        text=True,
    )
    child = 0
    try:
        said = first_line(parent)
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0])
        port = int(re.search(r":(\d+) ", said)[1])  # type: ignore[index]
        assert listening(child) == {f"0100007F:{port:04X}"}
        parent.kill()
        assert parent.communicate(timeout=60)[0] == "ended with the process that started it\n"
        child = 0
    finally:
        parent.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_a_parent_that_ends_while_the_server_starts(tmp_path, trained):
    """The parent is the one at the begin of the program, also if it has ended before the page."""
    line = [sys.executable, str(ROOT / "play.py"), "mode=web", f"onnx={trained}/policy.onnx"]
    # numpy is loaded long before the page
    code = f"""import subprocess, time
child = subprocess.Popen({[*line, "port=0"]})
print(child.pid, flush=True)
while "numpy" not in open(f"/proc/{{child.pid}}/maps").read():
    time.sleep(0.01)"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(first_line(parent))
    try:
        said, _ = parent.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()
        raise
    assert said.endswith("ended with the process that started it\n")


@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
def test_a_page_in_a_browser(tmp_path, trained):
    """Chromium shows the page; its buttons pause and step; Ctrl-C ends it in one line."""
    with WebServer(f"onnx={trained}/policy.onnx", cwd=tmp_path) as server, chromium() as browser:
        page = WebPage(browser, server.address)
        page.wait_until(0.1)
        page.click("pause")
        page.wait_for("state", "paused")
        page.set("forward [m/s]", 0.4)
        before, base = page.time(), page.base()
        page.click("step")
        page.wait_until(before + 0.015)
        assert page.time() == pytest.approx(before + 0.02, abs=0.011)
        assert len(page.base()) == 7 and page.base() != base
        assert page.errors == []
        code, said = server.end()
    assert (code, said) == (0, f"ended: {server.address} is closed\n")
