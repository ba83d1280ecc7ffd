"""The page of mode=label: who may open it, and that it keeps what people answer in a browser."""

import base64
import contextlib
import io
import json
import math
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import torch
from PIL import Image

from gpusim_rl.runs.labels import AGAIN, Labels
from gpusim_rl.runs.run import Run
from gpusim_rl.serve import label_page
from gpusim_rl.serve.label_page import LabelServer
from tests.browser import CHROMIUM, PATIENCE, chromium
from tests.command_lines import refused, start_server, succeed
from tests.worlds import ROOT

MODEL = """<mujoco><worldbody><body name="b"><joint type="slide" axis="1 0 0"/>
<geom size="0.1"/></body></worldbody></mujoco>"""
KEYS = {"ArrowLeft": "left", "ArrowRight": "right", "ArrowDown": "same", "ArrowUp": "unclear"}


def ask(run: Path, count: int, iteration: int = 3) -> Labels:
    """A run in which so many pairs of two steps wait for an answer."""
    labels = Labels(run)
    g = torch.Generator().manual_seed(iteration)
    view, pose = torch.randn(count, 2, 2, 3, generator=g), torch.zeros(count, 2, 2, 1)
    labels.ask(iteration, view, pose, {"dt": "0.02", "terms": "{}", "drawn": f"{count}"})
    return labels


@contextlib.contextmanager
def serving(run: Path) -> Iterator[LabelServer]:
    """The page of a run, in a thread of the test."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    server = LabelServer(Run(run), model, "127.0.0.1", 0, 40)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.stop()


def get(
    server: LabelServer | SimpleNamespace, path: str, body: object = None, **headers: str
) -> dict:
    """The JSON of a path with a query, or what a POST gives."""
    at, _, token = server.address.partition("/?")
    path += f"{'&' if '?' in path else '?'}{token}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{at}{path}", data, headers)) as answer:
        return json.loads(answer.read())


def status(address: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as page:
            assert "script-src" in page.headers["Content-Security-Policy"]
            return page.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_both_robots_are_seen_from_one_side(monkeypatch):
    """The camera turns with a robot, evenly, also across ±π."""
    free, seen = MODEL.replace('joint type="slide" axis="1 0 0"', "freejoint"), []

    def see(camera, pose):
        seen.append(camera.camera.azimuth)

    monkeypatch.setattr(label_page.ClipCamera, "__call__", see)
    camera = label_page.ClipCamera(mujoco.MjModel.from_xml_string(free))
    turn = torch.tensor([3.0, 3.3, 3.2, 3.6])
    poses = torch.zeros(4, 7)
    poses[:, 3], poses[:, 6] = (turn / 2).cos(), (turn / 2).sin()
    assert len(camera.pictures(poses)) == 4
    far = label_page.Camera(camera.model, *label_page.SIZE)
    assert camera.camera.distance == pytest.approx(label_page.NEAR * far.camera.distance)
    assert camera.renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW]
    camera.close()
    far.close()
    expected = [math.degrees(x) for x in (3.0, 3.2, 3.4, 3.6)]
    assert [x - camera.azimuth for x in seen] == pytest.approx(expected)


def test_a_pair_that_comes_again_has_its_sides_changed(tmp_path):
    """Of pictures in gray, as bright as a clip's pose says."""

    def pictures(poses):
        return [np.full((8, 8, 3), round(float(x)), np.uint8) for x in poses[:, 0]]

    labels = Labels(tmp_path)
    pose = torch.tensor([40.0, 200.0]).view(1, 2, 1, 1).expand(1, 2, 2, 1)
    labels.ask(3, torch.zeros(1, 2, 2, 3), pose, {"dt": "0.04", "terms": "{}", "drawn": "1"})
    with serving(tmp_path) as server:
        server.camera = SimpleNamespace(pictures=pictures, close=lambda: None)
        (pair,) = labels.pairs().values()
        for turned, sides in ((False, [40, 200]), (True, [200, 40])):
            film = [Image.open(io.BytesIO(base64.b64decode(x))) for x in server.paint(pair, turned)]
            seen = [np.asarray(x)[4, [3, 12], 0] for x in film]
            assert len(film) == 2 and np.allclose(seen, sides, atol=8)


def test_who_may_open_it(tmp_path):
    """Whoever has the address: without its token, by another name or from another site nobody."""
    ask(tmp_path, 1)
    with serving(tmp_path) as server:
        address, host = server.address, server.address.split("/")[2]
        assert status(address) == 200
        assert status(address[:-1]) == status(address, Host="example.com") == 403
        assert status(address, Origin="http://example.com") == 403
        assert status(address, Origin=f"http://{host}") == 200
        assert status(address.replace("/?", "/etc?")) == 404
        assert server.server_address[0] == "127.0.0.1"


def test_two_people_get_different_pairs(tmp_path):
    """A pair is shown to one of them; an answer counts at once, and an undo brings it back."""
    labels = ask(tmp_path, 3)
    with serving(tmp_path) as server:
        anna, bert = (get(server, f"/next?who={who}") for who in ("anna", "bert"))
        assert {anna["pair"], bert["pair"]} == {"000003:0", "000003:1"}
        assert anna["asked"] == 3 and anna["answered"] == 0 and anna["most"] == 40
        said = {"pair": anna["pair"], "answer": "left", "who": "anna", "clips": anna["clips"]}
        get(server, "/answer", said)
        assert get(server, "/next?who=anna")["pair"] == "000003:2"
        get(server, "/answer", said | {"answer": "undo"})
        assert get(server, "/next?who=anna") | {"mine": 0} == anna
        for wrong in ({"answer": "up"}, {"who": "\x1b"}, {"clips": 3}, {"pair": None}):
            with pytest.raises(urllib.error.HTTPError) as error:
                get(server, "/answer", said | wrong)
            with error.value as answer:
                assert answer.code == 400 and answer.read().count(b"\n") == 1
    assert [row["answer"] for row in labels.answers().rows] == ["left", "undo"]


def test_a_person_sees_a_pair_again_with_its_sides_changed(tmp_path, monkeypatch):
    """After nine answers; what was said of both is the person's consistency."""
    labels = ask(tmp_path, 12)
    with serving(tmp_path) as server:
        paint = lambda pair, turned: ["turned" if turned else "as it was"]  # noqa: E731
        monkeypatch.setattr(server, "paint", paint)
        for _ in range(9):
            x = get(server, "/next?who=anna")
            labels.answer(x["pair"], "left", "anna", x["clips"])
        x = get(server, "/next?who=anna")
        assert x["pair"] == f"000003:0{AGAIN}" and x["consistent"] is None
        assert get(server, f"/film?pair={x['pair']}")["film"] == ["turned"]
        labels.answer(x["pair"], "right", "anna", x["clips"])
        x = get(server, "/next?who=anna")
        assert x["pair"] == "000003:9" and x["consistent"] == 1.0


def test_a_person_sees_what_another_answered(tmp_path):
    """The sixth of ten: else nobody knows how often people agree."""
    labels = ask(tmp_path, 12)
    with serving(tmp_path) as server:
        for who in ("anna", "bert"):
            for _ in range(6):
                x = get(server, f"/next?who={who}")
                labels.answer(x["pair"], "left", who, x["clips"])
        x = get(server, "/next?who=bert")
        assert x["agree"] == 1.0 and x["answered"] == 11 and x["mine"] == 6


def test_a_pair_without_a_film_is_skipped(tmp_path, monkeypatch, capfd):
    """A line says so, the next pair comes, and the film is tried again."""
    labels = ask(tmp_path, 2)
    g = torch.zeros(1, 2, 2, 3)
    labels.ask(2, g, torch.zeros(1, 2, 2, 1), {"terms": "{}"})  # without dt
    with serving(tmp_path) as server:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError) as error:
                get(server, "/film?pair=000002:0")
            with error.value as answer:
                assert answer.code == 500 and b"has no film: KeyError: 'dt'" in answer.read()
        assert not server.films and get(server, "/next?who=anna")["pair"] == "000003:0"
        labels.file.mkdir()
        with pytest.raises(urllib.error.HTTPError) as error:
            get(server, "/next?who=anna")
        error.value.close()
        assert error.value.code == 500
    assert "Traceback" not in capfd.readouterr().err


def test_a_long_answer_is_not_read(tmp_path):
    """It is refused by its length."""
    ask(tmp_path, 1)
    with serving(tmp_path) as server, pytest.raises(urllib.error.HTTPError) as error:
        get(server, "/answer", "x" * label_page.LARGEST_ANSWER_BYTES)
    with error.value as answer:
        assert answer.code == 413 and b"2000 bytes" in answer.read()


def test_a_disk_that_is_full_is_said(tmp_path, monkeypatch):
    """The page gets the line, so that the person can answer again."""
    ask(tmp_path, 1)

    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    with serving(tmp_path) as server:
        x = get(server, "/next?who=anna")
        monkeypatch.setattr(server.labels, "answer", full)
        with pytest.raises(urllib.error.HTTPError) as error:
            said = {"pair": x["pair"], "answer": "left", "who": "anna", "clips": x["clips"]}
            get(server, "/answer", said)
        with error.value as answer:
            assert answer.code == 500 and b"No space left" in answer.read()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")
def test_people_answer_in_browsers(tmp_path):
    """Twenty pairs by their keys in two browsers at once, of which one is undone."""
    labels, people = ask(tmp_path, 20), ("anna", "bert")
    with serving(tmp_path) as server, chromium() as browser:
        # the driver's own conditions are scripts that the page's policy refuses
        pages, errors, said = [browser.new_page(bypass_csp=True) for _ in people], [], {}
        for who, page in zip(people, pages, strict=True):
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.add_init_script(f"localStorage.setItem('who', '{who}')")
            page.goto(server.address, timeout=PATIENCE)

        def press(turn: int, key: str) -> None:
            """Press a key when a film is there, and wait until its answer is kept."""
            page, before = pages[turn % 2], labels.answers().lines
            page.wait_for_function("!busy && shown && film.length", polling=50, timeout=PATIENCE)
            said[people[turn % 2], page.evaluate("shown.pair")] = KEYS[key]
            page.keyboard.press(key)
            page.wait_for_function("!busy && last", polling=50, timeout=PATIENCE)
            assert labels.answers().lines == before + 1

        for turn in range(20):
            press(turn, [*KEYS][turn % len(KEYS)])
            if turn == 4:
                pages[0].keyboard.press("u")
                pages[0].wait_for_function("!busy && !last", polling=50, timeout=PATIENCE)
                assert labels.answers().rows[-1]["answer"] == "undo"
                press(turn, "ArrowRight")
        page = browser.new_page(bypass_csp=True)  # of one who gives no name
        page.goto(server.address, timeout=PATIENCE)
        assert page.evaluate("who()").startswith("me-") and page.evaluate("who().length") > 5
        pages[0].wait_for_function("!busy && film.length", polling=50, timeout=PATIENCE)
        for held in ("repeat", "altKey"):
            event = f"new KeyboardEvent('keydown', {{key: 'ArrowLeft', {held}: true}})"
            pages[0].evaluate(f"document.dispatchEvent({event}) && busy")
            assert not pages[0].evaluate("busy")
        assert labels.answers().valid() == said and len(said) == 20 and not errors
        # the tenth of each was a pair that they had seen, the sixth one of the other's
        assert sum(pair.endswith(AGAIN) for _, pair in said) == 2
        assert labels.report()["agree"] is not None
        pictures = pages[0].evaluate("film.length")  # of two steps of 20 ms, at 25 a second
        assert pictures == 1


@pytest.mark.slow
def test_a_killed_page_loses_no_answer(tmp_path, trained):
    """mode=label of a run that asks; SIGKILL, and the answers are there, also as CSV."""
    words = ("task=quadruped", "num_envs=16", "num_steps=4", "episodes=4", "export=none")
    words += ("report=false", "fuse=off", "algo.hidden=[16]", "sim=native", "sim.threads=1")
    words += ("task.episode=0.4",)
    taste = ("reward=preference", f"start={trained}", "reward.seconds=0.1", "reward.first=2")
    taste += ("reward.wait=false", "reward.answers=2", "iterations=4", "run_dir=run")
    succeed("train.py", *words, *taste, cwd=tmp_path)
    run = tmp_path / "run"
    says = r"open (http://127\.0\.0\.1:\d+/\?token=\S+) \(Ctrl-C ends it"
    line = (str(ROOT / "play.py"), "mode=label", "run=run", "port=0")
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with start_server(says, *line, cwd=tmp_path, env=env) as (process, address):
        server = SimpleNamespace(address=address)
        x = get(server, "/next?who=anna")
        film = get(server, f"/film?pair={x['pair']}")["film"]
        assert len(film) == 4 and len(set(film)) > 1
        get(
            server,
            "/answer",
            {"pair": x["pair"], "answer": "left", "who": "anna", "clips": x["clips"]},
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert Labels(run).answers().valid() == {("anna", x["pair"]): "left"}
    said = succeed("play.py", "mode=label", "run=run", "out=answers.csv", cwd=tmp_path)
    assert json.loads(said)["answers"] == {"anna": 1}
    assert (tmp_path / "answers.csv").read_text().count("left,anna") == 1
    line = refused("play.py", "mode=label", f"run={trained}", cwd=tmp_path)
    assert "asks nothing: train with reward=preference start=RUN" in line


def test_others_are_told_a_name_that_they_can_open(tmp_path):
    """0.0.0.0 is no address; a host that is none is named."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    server = LabelServer(Run(tmp_path), model, "0.0.0.0", 0, 4)
    server.stop()
    assert server.address.startswith(f"http://{socket.gethostname()}:{server.server_port}/?token=")
    with pytest.raises(OSError, match=r"serve\.host=203\.0\.113\.1 port=0: "):
        LabelServer(Run(tmp_path), model, "203.0.113.1", 0, 4)


def test_the_port_is_taken(tmp_path):
    """It is named in one line."""
    with serving(tmp_path) as server, pytest.raises(OSError, match=f"port={server.server_port}: "):
        LabelServer(Run(tmp_path), server.model, "127.0.0.1", server.server_port, 4)
    assert label_page.PORT == 8080
