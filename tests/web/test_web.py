"""The web page: who may open it, and that it shows what a film shows."""

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import msgspec
import mujoco
import numpy as np
import pytest
import torch
import viser
from viser import _messages
from viser.infra import ClientId
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from gpusim_rl.commands import play_mode
from gpusim_rl.config import compose
from gpusim_rl.deploy import exported
from gpusim_rl.play import player
from gpusim_rl.play.rollouts import FileRollout, RunRollout, velocity_of_base
from gpusim_rl.runs.run import find_run
from gpusim_rl.viewer.gamepad import Change
from gpusim_rl.viewer.ghost import OPACITY
from gpusim_rl.viewer.stage import choose_ground, contrast
from gpusim_rl.viewer.window import tour
from gpusim_rl.web import requirements, share
from gpusim_rl.web.app import Web, serve
from gpusim_rl.web.controls import LONGEST_NAME, Sliders, numbers, short
from gpusim_rl.web.policy_panel import labelled, run_choices
from gpusim_rl.web.scene import GROUNDS, SHADING, Scene
from gpusim_rl.web.server import (
    LARGEST_MESSAGE_BYTES,
    AccessControl,
    free_port,
    open_server,
    quiet,
    refusal,
)
from tests.browser import CHROMIUM, WebPage, chromium, listening
from tests.command_lines import environment, first_line, one_line, start_server
from tests.worlds import ROOT, Stateless, composed, make_task

# a browser's gamepad at rest, which nobody has
GAMEPAD = """window.pad = {connected: true, mapping: "standard", axes: [0, 0, 0, 0],
  buttons: Array.from({length: 17}, () => ({pressed: false}))};
navigator.getGamepads = () => [null, pad];"""
PROTOCOL = f"viser-v{viser.__version__}"
COMMAND = [0.5, 0.0, 0.2]
UPGRADE = b"Host: 127.0.0.1\r\nConnection: Upgrade\r\n" + 2 * b"Upgrade: websocket\r\n"
PLANAR = {  # what a file says of a command
    "names": ["x", "y"],
    "units": ["m", "m"],
    "trained": {"low": [-1.0, -2.0], "high": [1.0, 2.0]},
}
SENT = {  # to the server, by what is no browser
    "nothing": b"",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "POST": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
    "two upgrades": b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n",
}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[viser.ViserServer, str]]:
    """A server without anything to show, and its address."""
    server, address, _ = open_server(0)
    yield server, address
    with quiet():
        server.stop()


def settings(*words: str) -> dict[str, Any]:
    """A configuration of play.py."""
    return compose.compose_plain("play", ["mode=web", *words])


def send(server: viser.ViserServer, kind: str, **fields: Any) -> None:
    """Send a message of a page through the guard to viser, if it lets it pass."""
    guard = AccessControl()
    guard.controls = server.gui._gui_input_handle_from_uuid
    checked = guard.checked(msgspec.msgpack.encode({"type": kind, **fields}))
    if checked:
        message = _messages.Message.deserialize(checked)
        asyncio.run(server.gui._websock_interface._handle_incoming_message(ClientId(0), message))


def update(server: viser.ViserServer, control: Any, **updates: Any) -> None:
    """Let a page ask for new properties of a control."""
    send(server, "GuiUpdateMessage", uuid=control._impl.uuid, updates=updates)


@contextlib.contextmanager
def opened(address: str, protocol: str = PROTOCOL, path: str = "") -> Iterator[Any]:
    """A WebSocket of the server's own page."""
    at, headers = address.replace("http", "ws") + path, {"Origin": address}
    with connect(at, subprotocols=[protocol], additional_headers=headers) as page:  # type: ignore
        yield page


@pytest.fixture
def show(served) -> Iterator[Callable[..., Web]]:
    """Shows runs and files as a process would serve them; they are removed at the end."""
    shown: list[Web] = []

    def make(*policies: Path, **keys: Any) -> Web:
        cfg = settings(f"command={COMMAND}", *(f"{key}={x}" for key, x in keys.items()))
        shown.append(Web(cfg, [*map(str, policies)], served[0]))
        return shown[-1]

    yield make
    for panel in (panel for web in shown for panel in web.policies):
        panel.scene.remove()


@pytest.fixture
def web(show, trained) -> Web:
    """The page of the trained run, at a fixed command."""
    return show(trained, worlds=2)


@pytest.fixture
def sliders(served) -> Sliders:
    """Those of a command of two numbers, on a tour of ten seconds."""
    sliders = Sliders(served[0], SimpleQueue(), [], 10.0)
    sliders.rebuild([PLANAR])
    return sliders


# -- who may open it -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/gamepad"])
def test_pages_of_other_origins_are_refused(served, path):
    """A WebSocket opens for the server's own page alone, and under no other name of the machine."""
    _, address = served
    at, authority = address.replace("http", "ws") + path, address.removeprefix("http://")

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


@pytest.mark.parametrize("host", ["localhost:9", "[::1]:9", "127.0.0.1", "LOCALHOST:80"])
@pytest.mark.parametrize("other", ["192.168.0.7:9", "example.com:9", "localhost.example.com", ""])
def test_names_of_this_machine(host, other):
    """Its loopback address is answered, under no other name, and not two at once."""
    assert refusal(Headers(Host=host)) == ""
    assert refusal(Headers(Host=other)) == refusal(Headers()) == "this host is not served"
    assert refusal(Headers([("Host", host), ("Host", host)])) == "this host is not served"


def test_a_message_of_a_page_sets_what_its_control_offers(web):
    """viser takes any value of any property from a page; here it has to be one that is offered."""
    controls, (panel,) = web.controls, web.policies
    says = (
        (controls.speed, ["99", "1/10"]),
        (panel.pick, ["../evil", 5]),
        (panel.iteration, ["../../../../../etc/passwd", None, ["last"], "000000"]),
        (controls.robot, [float("nan"), "1", -5, 99]),
        (controls.follow, ["", 3, False]),
        (controls.state, ["evil"]),
    )
    for control, values in says:
        for value in values:
            update(web.server, control, value=value)
    update(web.server, panel.iteration, _impl=0, value="last")
    update(web.server, panel.iteration, removed=True)
    assert (controls.speed.value, panel.iteration.value) == ("1/10", "000000")
    assert panel.words[panel.pick.value] == panel.word
    assert (controls.robot.value, controls.follow.value, controls.state.value) == (1, False, "")
    update(web.server, controls.robot, value=-5)
    assert controls.robot.value == 0
    web.step()
    web.draw()


def test_messages_of_a_gamepad(monkeypatch):
    """Six values of their kinds are taken, all else is ignored; closing lets go."""
    server, address, access = open_server(0)
    said: SimpleQueue[Change] = SimpleQueue()
    access.gamepad = said.put
    with opened(address, path="/gamepad") as page:
        held = dict(axes=[0, -1, 0.1, 5e3], buttons=[True, False])
        wrong = [b"\xff", "[]", "{}", held | {"axes": [0]}, held | {"axes": ["1"] * 4}]
        wrong += [held | {"buttons": [1, 0]}, held | {"more": 1}, held | {"axes": [1e400] * 4}]
        for message in (*wrong, held):
            page.send(message if isinstance(message, str | bytes) else json.dumps(message))
        sticks, pause, restart = said.get(timeout=10)
        assert page.ping().wait(10) and said.empty()
    assert sticks is not None
    assert (sticks.tolist(), pause, restart) == ([1, 0, 0], True, False)
    assert said.get(timeout=10).sticks.tolist() == [0, 0, 0]  # type: ignore[union-attr]
    with quiet():
        server.stop()


def test_files_and_tunnels_are_refused(web, monkeypatch):
    """A page cannot upload a file into a control, nor let viser open a tunnel to the internet."""
    opened, server, control = [], web.server, web.controls.speed
    monkeypatch.setattr(server, "request_share_url", lambda: opened.append(1))
    names = ("source_component_uuid", "transfer_uuid", "filename", "mime_type")
    for parts in (0, 1):
        file = dict.fromkeys(names, control._impl.uuid) | {"part_count": parts, "size_bytes": 0}
        send(server, "FileTransferStartUpload", **file)
    send(server, "ShareUrlRequest")
    assert (control.value, server.gui._current_file_upload_states, opened) == ("1", {}, [])
    web.step()


CAMERA = {
    "type": "ViewerCameraMessage",
    "wxyz": [1, 0, 0, 0],
    **dict.fromkeys(("position", "look_at", "up_direction"), (0, 0, 1.5)),
    **dict.fromkeys(("fov", "near", "far", "image_height", "image_width"), 1),
}
ESCAPE = "\x1b]0;PWNED\x07\x1b[31m"  # sets the terminal's title, and its color


def test_no_text_of_a_page_reaches_the_terminal(served, caplog, capfd):
    """viser would print what is no number, and broken messages."""
    server, address = served
    before, encode = len(server.get_clients()), msgspec.msgpack.encode
    with warnings.catch_warnings(record=True) as warned, opened(address) as page:
        warnings.simplefilter("always")
        for name in ("wxyz", "position", "fov"):
            for value in (ESCAPE, [ESCAPE] * 4, None, float("nan")):
                page.send(encode(CAMERA | {name: value}))
        page.send(encode(CAMERA | {ESCAPE: 1}))
        page.send(encode({"type": ESCAPE}))
        page.send(encode({"type": "GuiUpdateMessage", "uuid": [], "updates": 5}))
        page.send(b"\x91" * 10000)
        page.send(ESCAPE)
        page.send(encode(CAMERA))
        until = time.monotonic() + 10
        while len(server.get_clients()) == before and time.monotonic() < until:
            time.sleep(0.01)
        assert len(server.get_clients()) == before + 1
    said = capfd.readouterr()
    assert (warned, caplog.text, said.out, said.err) == ([], "", "", "")


def test_a_page_that_goes_leaves_no_memory(monkeypatch):
    """What a page took is given back to the system when it goes: the allocator would keep it."""
    gone = threading.Event()
    monkeypatch.setattr("gpusim_rl.web.server.trim_heap", gone.set)
    server, address, _ = open_server(0)  # pages of other tests would go from `served` meanwhile
    with opened(address):
        while gone.wait(0.5):  # pages of other tests go late
            gone.clear()
    assert gone.wait(10)
    with quiet():
        server.stop()


def test_a_page_of_another_version_is_closed_without_a_line(served, capfd):
    """It is told so by the code that it understands; viser would print two lines for each."""
    with opened(served[1], "viser-v0.0.0") as page, pytest.raises(ConnectionClosedError) as error:
        page.recv(timeout=10)
    assert error.value.rcvd.code == 1002
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_large_messages_are_refused(served):
    """More than 64 kB ends the connection: viser would keep 50 MB of each page in memory."""
    with opened(served[1]) as page:
        page.send(bytes(LARGEST_MESSAGE_BYTES))
        assert page.ping().wait(10)
        page.send(bytes(LARGEST_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosedError) as error:
            while True:
                page.recv(timeout=10)
    assert error.value.rcvd.code == 1009


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


def test_a_port_that_is_taken():
    """If the last port is taken, there is one line, which says so."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # of another program, which has it
            stack.enter_context(socket.create_server(("127.0.0.1", 65535)))
        with pytest.raises(OSError, match="port=65535: "):
            free_port(65535)


# -- what it shows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["run", "onnx"])
def test_page_and_film_agree(trained, show, source):
    """After each of 120 steps the page's robot stands where the film's does: the same numbers."""
    path = trained if source == "run" else trained / "policy.onnx"
    web = show(path, seed=3)
    (panel,) = web.policies
    if source == "run":
        cfg = settings(f"run={path}", "seed=3")
        run = find_run(cfg)
        rollout = player.run_rollout(run, *player.load_run(run, cfg), cfg)
    else:
        rollout = FileRollout(path)
    frames = player.frames_of(rollout, lambda t: np.array(COMMAND))
    for i in range(120):
        web.step()
        t, qpos = next(frames)
        np.testing.assert_array_equal(panel.rollout.pose()[0], qpos, err_msg=f"step {i}")
        assert panel.time == pytest.approx(t)
    web.draw()
    web.show_numbers()
    assert [float(x) for x in panel.base.value.split()] == pytest.approx(qpos[:7], abs=6e-4)
    assert panel.base.value == " ".join(f"{x:.3f}" for x in qpos[:7])


def test_a_ghost_is_where_the_robot_should_be(served):
    """Each body of the clip's frame is on the page once, translucent, and moves with it."""
    task, zero = make_task("imitate"), Stateless(lambda obs: torch.zeros(len(obs), 12))
    weights, noise = (composed("task=imitate")["task"][x] for x in ("weights", "noise"))
    rollout = RunRollout(zero, task, 2, weights=weights, noise=noise, seed=1)  # type: ignore
    scene = Scene(served[0], "/followed", rollout)
    try:
        assert len(scene.ghosts) == 13 and {x.opacity for _, x in scene.ghosts} == {OPACITY}
        for _ in range(70):
            rollout.step(None)
        scene.draw(1, None)
        trunk = next(x for body, x in scene.ghosts if task.mjm.body(body).name == "trunk")
        place = task.frames.place[70].numpy() + scene.places[0]
        assert trunk.position == pytest.approx(place, abs=1e-5) and place[0] > 0.2
    finally:
        scene.remove()


def test_time_and_pushes(web):
    """A push adds its velocity, a step is one control step, and a reset begins at time zero."""
    (panel,) = web.policies
    dt, before = panel.rollout.dt, panel.rollout.env.sim.qvel.clone()
    web.push(np.array([0.0, 1.5]))
    added = panel.rollout.env.sim.qvel - before
    assert added[:, 1].tolist() == [1.5, 1.5] and added.abs().sum() == 3
    web.controls.step_once()
    assert (web.controls.paused, web.controls.steps, web.controls.pause.label) == (True, 1, "go on")
    web.step()
    assert (web.controls.steps, panel.time) == (0, dt)
    web.restart()
    assert panel.time == 0 and panel.rollout.env.time.tolist() == [0, 0]


def test_a_slider_that_is_dragged_does_not_stop_the_time(web):
    """A hundred requests that wait are answered at once, and then a step is due."""
    done: list[int] = []
    for i in range(100):
        web.requests.put(lambda i=i: done.append(i))
    assert web.answer(0.0) and done == [*range(100)]
    assert not web.answer(0.0)


def test_checkpoints(web, capsys):
    """The chosen checkpoint acts, where the robots are; one that is not whole is a note."""
    (panel,) = web.policies
    assert panel.checkpoints() == ("last", "000002", "000000")
    weights, before = panel.trained.policy.actor, panel.rollout.pose()
    last = next(weights.parameters()).clone()
    panel.iteration.value = "000000"
    web.change_checkpoint(panel)
    assert panel.note.value == "after 0 iterations"
    assert not np.array_equal(next(weights.parameters()).detach(), last.detach())
    assert np.array_equal(panel.rollout.pose(), before)
    options = panel.iteration.options
    panel.iteration.options = (*options, "000001")
    panel.iteration.value = "000001"
    web.change_checkpoint(panel)
    assert "000001.safetensors is not a whole checkpoint" in panel.note.value
    assert panel.note.value in capsys.readouterr().err
    assert (panel.iteration.value, panel.iteration.options[: len(options)]) == ("000000", options)


def test_the_page_names_the_checkpoint_that_acts(web, trained, tmp_path):
    """Another run begins with its last one; one of the command line is named, or its path."""
    (panel,) = web.policies
    panel.iteration.value = "000000"
    web.change_checkpoint(panel)
    other = shutil.copytree(trained, tmp_path / "other")
    panel.words["other"], panel.pick.options = str(other), (*panel.pick.options, "other")
    panel.pick.value = "other"
    web.change_run(panel)
    assert (panel.word, panel.iteration.value) == (str(other), "last")
    assert panel.first_checkpoint(f"{other}/checkpoints/000000.safetensors") == "000000"
    assert panel.first_checkpoint(f"{trained}/checkpoints/000000.safetensors") != "000000"
    panel.acting = "000007"  # training has removed it
    panel.look_for_checkpoints()
    before = panel.iteration.options
    panel.look_for_checkpoints()
    assert "000007" in before and panel.iteration.options is before


def test_another_policy_leaves_nothing_of_the_first(web, trained):
    """The environment of a run is freed when a file is chosen, and so are its curves."""
    (panel,) = web.policies
    for _ in range(20):
        web.step()
    web.show_numbers()
    first = weakref.ref(panel.rollout.env)
    assert first() and all(plot.chart for plot in panel.plots)
    panel.words["file"] = str(trained / "policy.onnx")
    panel.pick.options = (*panel.pick.options, "file")
    panel.pick.value = "file"
    web.change_run(panel)
    assert first() is None and not any(plot.chart for plot in panel.plots)
    for _ in range(20):
        web.step()
    web.show_numbers()
    assert [bool(plot.chart) for plot in panel.plots] == [False, False, True]


def test_runs_to_choose_from(tmp_path, elsewhere):
    """Runs of a multirun are offered, and a run that is shown is offered once."""
    swept = [f"runs/multirun/today/seed_{i}" for i in (1, 2)]
    for run in ("runs/ant/a", "runs/b", *swept):
        Path(run, "checkpoints").mkdir(parents=True)
        Path(run, "config.yaml").touch()
    assert {*run_choices(["runs/ant/a"])} == {"runs/ant/a", "runs/b", *swept}
    words = [f"{tmp_path}/runs/ant/a", "runs/b/"]
    assert sorted(run_choices(words)) == sorted([*words, *swept])


@pytest.mark.parametrize(
    "word, name",
    [
        ("/home/me/robots/runs/quadruped/2026-11-26-s1", "quadruped/2026-11-26-s1"),
        ("runs/multirun/today/seed_1/", "multirun/today/seed_1"),
        ("/data/of/others/best", "best"),
        ("/data/of/others/best/policy.onnx", "best/policy.onnx"),
        ("/data/runs", "runs"),
    ],
)
def test_a_run_has_a_name(word, name):
    """What stands below runs/, else the last part; two paths with the same end have two labels."""
    assert list(labelled([word])) == [name]
    long = [f"{i}/{'x' * 2 * LONGEST_NAME}" for i in range(3)]
    assert list(labelled(long).values()) == long


@pytest.mark.parametrize("shade, ground", [(0.06, 0), (0.2, 0), (0.95, 1)])
def test_a_robot_stands_out(trained, shade, ground):
    """A dark robot stands on the pale ground of the page, and a pale one on the dark ground."""
    model = FileRollout(trained / "policy.onnx").model
    for rgba in (model.geom_rgba, model.mat_rgba):
        rgba[:, :3] = shade
    assert choose_ground(model, SHADING) == ground
    assert contrast(np.full(3, shade), np.array(GROUNDS[0][ground]) / 255) > 5


def test_what_is_asked_and_what_is_measured(web):
    """Each number of the command has a plot of both, and terms above and below 0 one each."""
    (panel,) = web.policies
    for _ in range(30):
        web.step()
    web.show_numbers()
    titles = [plot.title for plot in panel.answers]
    assert titles == ["forward [m/s]", "left [m/s]", "turn [rad/s]"]
    plot: Any
    for plot, command in zip(panel.answers, COMMAND, strict=True):
        assert plot.names == ["asked", "measured"] and plot.chart.height == 130
        assert {row[1] for row in plot.rows} == {command}
    measured = [plot.rows[-1][2] for plot in panel.answers]
    assert measured == pytest.approx(panel.rollout.followed.tolist()) and any(measured)
    gains, costs, _ = panel.plots
    assert {*gains.names} | {*costs.names} == {*panel.rollout.terms}
    assert "velocity" in gains.names and "action_rate" in costs.names


def test_measured_of_a_file(show, trained):
    """A file has no task: the velocity is that of the base, in its own frame."""
    web = show(trained / "policy.onnx")
    rollout = web.policies[0].rollout
    rollout.data.qpos[3:7] = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]  # it looks along y
    rollout.data.qvel[:6] = [0.0, 0.5, 0.0, 0.0, 0.0, 0.3]
    mujoco.mj_kinematics(rollout.model, rollout.data)
    measured = velocity_of_base(rollout.description, rollout.data)
    assert measured is not None
    np.testing.assert_allclose(measured, [0.5, 0.0, 0.3], atol=1e-12)
    assert velocity_of_base({"units": ["m"]}, rollout.data) is None
    web.step()
    assert rollout.followed is not None and rollout.followed.shape == (3,)


def wait_for_file(web: Web) -> None:
    """Wait until what is made for a page is sent, at most two minutes."""
    until = time.monotonic() + 120
    files = web.policies[0].files
    while files.making and time.monotonic() < until:
        time.sleep(0.1)
        files.look()


class Client:
    """A page that takes files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def send_file_download(self, name: str, content: bytes, save_immediately: bool) -> None:
        """Take a file, as the browser saves it."""
        assert save_immediately
        self.files[name] = content


def test_a_page_gets_the_policy(web, trained, monkeypatch):
    """The run's own file if its last checkpoint acts, else one that play.py exports."""
    (panel,), page = web.policies, Client()
    web.share(panel, "ONNX", page)
    name = f"{trained.name}.onnx"
    assert page.files == {name: (trained / "policy.onnx").read_bytes()}
    assert panel.note.visible and panel.note.value == f"{name} is sent to the browser"
    exported = trained / "policy.onnx"
    now = exported.stat().st_mtime_ns
    os.utime(exported, (0, 0))  # so the training went on after its export
    assert panel.exported() is None
    os.utime(exported, ns=(now, now))
    panel.acting, words = "000000", []
    monkeypatch.setattr(share, "start_play", lambda w, *_, **__: words.append(w) or ended(0))
    web.share(panel, "ONNX", page)
    assert panel.note.value == f"{name} is being made"
    web.share(panel, "film", page)
    assert panel.note.value == f"{name} is still being made" and len(words) == 1
    assert f"run='{trained}'" in words[0] and "mode=export" in words[0]
    assert f"checkpoint='{trained}/checkpoints/000000.safetensors'" in words[0]
    wait_for_file(web)
    assert panel.note.value == f"{name} is not made: its process ended with 0"
    panel.tell("")
    assert not panel.note.visible


def test_a_page_gets_a_film(web, trained, monkeypatch):
    """Of the command of the sliders; what fails says why, and what is left is ended."""
    (panel,), page, words = web.policies, Client(), []

    def play(line: list[str], errors: Any, lowest: bool) -> Any:
        words.append(line)
        film = next(x for x in line if x.startswith("video=")).split("'")[1]
        Path(film).write_bytes(b"film")
        errors.write(b"a warning\nerror: no screen\n")
        return ended(len(words) - 1)

    monkeypatch.setattr(share, "start_play", play)
    web.share(panel, "film", page)
    wait_for_file(web)
    assert page.files == {f"{trained.name}.mp4": b"film"}
    assert "command=[0.5,0,0.2]" in words[0] and "seconds=10" in words[0]
    assert not Path(words[0][-2].split("'")[1]).parent.exists()
    web.sliders.touring.value = True
    web.share(panel, "film", page)
    wait_for_file(web)
    assert panel.note.value == f"{trained.name}.mp4 is not made: no screen"
    assert not [word for word in words[1] if word.startswith("command=")]
    web.share(panel, "film", page)
    web.stop()
    assert panel.files.making is None


def ended(code: int) -> Any:
    """A process that ends with a code."""
    return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])


def test_sliders_follow_the_tour(served, sliders):
    """They show its command, until a page moves one; to choose the tour lets it move them again."""
    requests, about = sliders.requests, PLANAR

    def shown() -> list[float]:
        return [slider.value for slider in sliders.sliders.values()]

    for t, command in ((0.1, [0.8, 0.0]), (4.1, [-0.8, 0.0]), (2.1, [0.0, 1.6])):
        sliders.follow(about, sliders.command(about, t))
        assert shown() == command
    assert requests.empty() and sliders.touring.value
    update(served[0], sliders.sliders["x"], value=0.5)
    sliders.follow(about, sliders.command(about, 0.1))  # before the loop has seen it
    assert shown() == [0.5, 1.6]
    sliders.moved(SimpleNamespace(client_id=0))  # what a page's message does
    requests.get_nowait()()
    command = sliders.command(about, 0.1)
    assert command is not None and command.tolist() == [0.5, 1.6] and not sliders.touring.value
    sliders.touring.value = True
    sliders.follow(about, sliders.command(about, 0.1))
    assert shown() == [0.8, 0.0] and requests.empty()


def test_sliders_follow_a_rotation(sliders):
    """The three angles are those of which the command is made."""
    center, lows = [np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0], [-1.0] * 4
    about = {"names": ["qw", "qx", "qy", "qz"], "units": ["1"] * 4, "center": center, "lean": 0.6}
    about["trained"] = {"low": lows, "high": [1.0] * 4}
    sliders.rebuild([about])
    for t in (0.0, 4.0):
        command = tour(about, 10.0)(t)
        sliders.follow(about, command)
        sliders.touring.value = False
        again = sliders.command(about, t)
        sliders.touring.value = True
        assert again is not None
        assert abs(abs(command @ again) - 1) < 2e-3 and sliders.sliders["lean"].value > 0.4


def test_what_is_a_file(trained, tmp_path):
    """A policy is known by being a file: its name may lack .onnx, which a run's may have."""
    shutil.copy(trained / "policy.onnx", tmp_path / "policy")
    (tmp_path / "dir.onnx").mkdir()
    assert exported.is_file(str(tmp_path / "policy")) and exported.is_file("missing.onnx")
    assert not exported.is_file(str(tmp_path / "dir.onnx")) and not exported.is_file("missing")


def test_compare(trained, show):
    """A run and a file stand side by side, follow one command, and keep the same time."""
    web = show(trained, trained / "policy.onnx")
    for _ in range(20):
        web.step()
    web.draw()
    first, second = web.policies
    assert first.time == second.time == pytest.approx(20 * first.rollout.dt)
    apart = second.scene.places[0] - first.scene.places[0]
    assert apart[1] > first.scene.reach and apart[0] == 0
    assert [x.rollout.command.tolist() for x in web.policies] == [COMMAND, COMMAND]


def test_sliders(sliders):
    """A command is a tour until a slider moves, and then stays in the range of each policy."""
    about, narrow = PLANAR, PLANAR | {"trained": {"low": [-0.5, -2.0], "high": [0.5, 2.0]}}
    sliders.rebuild([about, narrow])
    assert sliders.command({}, 0.0) is None
    assert sliders.command(about, 0.1).tolist() == [0.8, 0.0]
    sliders.sliders["x"].value = 0.9
    sliders.take_over()
    assert not sliders.touring.value
    assert sliders.command(about, 2.1).tolist() == [0.9, 0.0]
    assert sliders.command(narrow, 2.1).tolist() == [0.5, 0.0]


def test_sticks_move_the_sliders(sliders):
    """From where a number rests to the ends of its slider; a stick ends the tour."""
    sliders.sliders["x"].value = 0.9
    sliders.follow_sticks(np.array([-0.5, 1.0, 1.0]))
    assert [x.value for x in sliders.sliders.values()] == [-0.5, 2.0]
    assert not sliders.touring.value
    sliders.follow_sticks(np.zeros(3))
    assert sliders.command(PLANAR, 0.0).tolist() == [0.0, 0.0]


def test_sliders_of_a_rotation(sliders):
    """A rotation has a slider for its turn and its lean, and is a unit quaternion."""
    about = {
        "names": ["z", "qw", "qx", "qy", "qz"],
        "units": ["m", "1", "1", "1", "1"],
        "trained": {"low": [0.0, -1, -1, -1, -1], "high": [1.0, 1, 1, 1, 1]},
        "center": [0.5, 1.0, 0.0, 0.0, 0.0],
        "lean": 0.4,
    }
    assert [row[0] for row in numbers(about)] == ["z", "turn", "lean", "lean towards"]
    sliders.rebuild([about])
    sliders.sliders["lean"].value = 0.4
    sliders.take_over()
    command = sliders.command(about, 0.0)
    assert command[0] == 0.5 and np.linalg.norm(command[1:]) == pytest.approx(1)
    assert 2 * np.arccos(command[1]) == pytest.approx(0.4)


def test_names_of_strangers():
    """A stranger's name is one line without control characters, and not longer than the page."""
    assert short("a\nb\x1b[2J\x9b2J") == "a b\\x1b[2J\\x9b2J"
    assert len(short("x" * 10**6)) == LONGEST_NAME


WRONG = {
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
    "onnx=nope": "no ONNX file nope",
    "onnx=nope.onnx": "no ONNX file nope.onnx",
    "video=walk.mp4": "video= is not shown by mode=web",
    "repro=r.safetensors": "repro= is not shown by mode=web",
    "mode=video port=80": "port=80 needs mode=web",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_words(line):
    """A wrong word of mode=web is refused in one line that names it."""
    with one_line(WRONG[line]):
        play_mode.choose_mode(settings(*line.split()))


def test_without_viser(monkeypatch):
    """Without the extra, one line says how to install it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(requirements, "find_spec", lambda name: name != "viser" and find(name))
    with pytest.raises(ValueError, match=r"python -m pip install -e '.*\[web\]'$"):
        play_mode.choose_mode(settings())


def test_a_viser_that_is_another(monkeypatch, capsys):
    """One that lacks what the page uses is one line with both versions, and no server is left."""
    monkeypatch.setattr(AccessControl, "installed", lambda _: contextlib.nullcontext())
    left = threading.active_count()
    with pytest.raises(SystemExit):
        serve(settings("port=0"), ["run"], os.getppid())
    said = capsys.readouterr().err
    assert said.startswith(f"error: mode=web cannot use viser {viser.__version__} and mjviser ")
    assert ", it needs viser>=1.1,<1.2 and mjviser>=" in said and "cannot be checked" in said
    assert said.count("\n") == 1 and threading.active_count() <= left


# -- as a process ----------------------------------------------------------------------------------


def start_parent(tmp_path: Path, code: str, *words: str) -> subprocess.Popen[str]:
    """A process that runs code, with words in sys.argv."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_server_ends_with_its_parent(tmp_path, trained):
    """It listens at 127.0.0.1 alone, and ends when the process that started it is killed."""
    words = [str(ROOT / "play.py"), "mode=web", f"onnx={trained}/policy.onnx", "port=0"]
    code = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
    parent = start_parent(tmp_path, code, *words)
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


@pytest.mark.slow
def test_a_parent_that_ends_while_the_server_starts(tmp_path, trained):
    """The parent is the one at the begin of the program, also if it has ended before the page."""
    line = [sys.executable, str(ROOT / "play.py"), "mode=web", f"onnx={trained}/policy.onnx"]
    # numpy is loaded long before the page
    code = f"""import subprocess, time
child = subprocess.Popen({[*line, "port=0"]})
print(child.pid, flush=True)
while "numpy" not in open(f"/proc/{{child.pid}}/maps").read():
    time.sleep(0.01)"""
    parent = start_parent(tmp_path, code)
    child = int(first_line(parent))
    try:
        said, _ = parent.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.communicate()
        raise
    assert said.endswith("ended with the process that started it\n")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
def test_a_page_in_a_browser(tmp_path, trained):
    """Buttons pause and step, so does a gamepad, whose sticks move sliders; Ctrl-C ends it."""
    line = (str(ROOT / "play.py"), "mode=web", f"onnx={trained}/policy.onnx", "port=0")
    process = start_server(r"open (http://\S+) ", *line, env=environment(tmp_path / "home"))
    with process as (server, address), chromium() as browser:
        page = WebPage(browser, address, GAMEPAD)
        page.wait_until(0.1)
        sliders = ("forward [m/s]", "left [m/s]", "turn [rad/s]")
        page.page.evaluate("pad.axes = [0, -1, -1, 0]")  # left stick up, right stick to the left
        page.wait("field && !field.checked", "tour", None)
        page.wait("parseFloat(text) > 0.3", "turn [rad/s]", None)
        moved = [float(page.read(label)) for label in sliders]
        assert moved[0] > 0.3 and moved[1] == 0
        page.page.evaluate("pad.axes = [0.1, 0, 0, 0.1]")  # let go, in the dead zone
        page.wait("parseFloat(text) === 0", "turn [rad/s]", None)
        page.page.evaluate("pad.buttons[0].pressed = true")
        page.wait_for("state", "paused")
        time_before = page.time()
        page.page.evaluate("pad.buttons[1].pressed = true")
        page.wait("parseFloat(text) < wanted", "state", time_before)
        page.click("go on")
        page.wait_until(0.1)
        page.click("pause")
        page.wait_for("state", "paused")
        page.set("forward [m/s]", 0.4)
        before, base = page.time(), page.base()
        page.click("+x")  # so that the base moves by more than what is shown of it
        page.click("step")
        page.wait_until(before + 0.015)
        assert page.time() == pytest.approx(before + 0.02, abs=0.011)
        assert len(page.base()) == 7 and page.base() != base
        assert page.errors == []
        server.send_signal(signal.SIGINT)
        said, _ = server.communicate(timeout=20)
    assert (server.returncode, said) == (0, f"ended: {address} is closed\n")
