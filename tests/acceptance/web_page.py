"""Chromium drives the page of play.py mode=web, in two windows at once.

    python -m tests.acceptance.web_page runs/quadruped/A runs/quadruped/B out

A and B are finished runs of the quadruped. Screenshots are written to the folder out/: look at
them. It takes about two minutes on two quiet cores.
"""

import argparse
import json
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from gpusim_rl.commands import play, play_mode
from gpusim_rl.config import compose
from tests.browser import PATIENCE, WebPage, WebServer, chromium, listening

WALK = [0.6, 0.0, 0.0]  # command
SHOT = (1280, 800)  # pixels
ATTACK = "<img src=x onerror=window.hacked=1>"


def filmed(run: Path, seed: int, seconds: float) -> dict[float, np.ndarray]:
    """Time → qpos, of the frames that play.py would film."""
    states: dict[float, np.ndarray] = {}

    def film(model: Any, frames: Any, *_: Any, **__: Any) -> None:
        for t, qpos in frames:
            states[round(t, 6)] = qpos
            if t > seconds:
                return

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        words = [f"run={run}", f"command={WALK}", f"seed={seed}", f"video={folder}/x.mp4"]
        before, play_mode.film = play_mode.film, film
        try:
            play.play(compose.compose_plain("play", words))
        finally:
            play_mode.film = before
    return states


def check_film(browser: Any, run: Path, cwd: Path) -> str:
    """The page's robot after at least 5 s, and the film's at that time."""
    with WebServer(f"run={run}", f"command={WALK}", "seed=3", cwd=cwd) as server:
        page = WebPage(browser, server.address)
        page.wait_until(5.0)
        page.click("pause")
        page.wait_for("state", "paused")
        t, base = page.time(), np.array(page.base())
        page.page.close()
    states = filmed(run, 3, t)
    error = np.abs(states[round(t, 6)][:7] - base).max()
    assert t >= 5 and error <= 6e-4, (t, error)
    return f"page and film at {t:.2f} s differ by {error:.1e} (the page shows three decimals)"


def check_controls(browser: Any, run: Path, cwd: Path, out: Path) -> list[str]:
    """Slider, push, slow motion, checkpoint, run and reset, in one of two open pages."""
    said = []
    with WebServer(f"run={run}", cwd=cwd) as server:
        assert listening(server.process.pid) == {f"0100007F:{server.port:04X}"}
        said.append("bound to 127.0.0.1 alone")
        page, other = (WebPage(browser, server.address, 400, 300) for _ in range(2))
        page.ask("forward [m/s]", 0.8)
        for other_number in ("left [m/s]", "turn [rad/s]"):  # where the tour has put them
            page.set(other_number, 0.0)
        page.wait_until(page.time() + 1)
        begun, base = page.time(), page.base()
        page.wait_until(begun + 4)
        moved = np.hypot(*(np.array(page.base()) - base)[:2])
        said.append(f"0.8 m/s by the slider: {moved:.2f} m in {page.time() - begun:.1f} s")
        assert moved > 0.5
        other.wait_for("forward [m/s]", "")  # it is there
        assert other.control("forward [m/s]").query_selector_all("input")[-1].input_value() == "0.8"
        said.append("the second page shows the slider of the first")
        said += [check_push(page), check_speed(page), check_checkpoint(page)]
        page.click("pause")
        page.wait_for("state", "paused")
        other.wait_for("state", "paused")
        page.click("reset")
        page.wait_for("state", "0.00 s")
        said.append("reset: time 0, paused in both pages")
        other.page.close()
        shot(browser, server.address, out / "one.png")
        assert page.errors == [] and other.errors == []
        code, ended = server.end()
        assert (code, ended.count("\n")) == (0, 1)
        said.append(f"Ctrl-C: {ended.strip()!r}, exit code 0")
    return said


def check_push(page: WebPage) -> str:
    """A push moves the robot sideways."""
    page.set("forward [m/s]", 0.0)
    page.wait_until(page.time() + 2)
    page.click("pause")
    page.wait_for("state", "paused")
    before = page.base()[1]
    page.set("velocity [m/s]", 1.5)
    page.click("+y")
    for _ in range(10):
        at = page.time()
        page.click("step")
        page.wait_until(at + 0.005)
    moved = page.base()[1] - before
    assert moved > 0.1, moved
    page.click("go on")
    return f"a push of 1.5 m/s: {moved:.2f} m sideways in ten steps"


def check_speed(page: WebPage) -> str:
    """Slow motion is slow."""
    page.choose("× real time", "1/4")
    page.wait_until(page.time() + 1.5)
    slow = page.rate()
    page.choose("× real time", "1")
    page.wait_until(page.time() + 3)
    assert slow < 0.35, slow
    return f"slow motion: {slow:.2f} × real time; then {page.rate():.2f} ×"


def check_checkpoint(page: WebPage) -> str:
    """Another checkpoint acts."""
    page.control("checkpoint").query_selector("input").click()
    option = page.page.get_by_role("option").nth(2)
    name = option.inner_text()
    option.dispatch_event("click")
    page.wait_for("note", "iterations")
    return f"checkpoint {name}: {page.read('note')!r}"


def shot(browser: Any, address: str, path: Path) -> None:
    """A screenshot of a new, larger page."""
    page = WebPage(browser, address, *SHOT, detail=1.0)
    page.page.wait_for_timeout(20000)  # it fades in
    page.close_notes()
    page.page.screenshot(path=path, timeout=PATIENCE)
    assert page.errors == []
    page.page.close()


def check_picture(browser: Any, cwd: Path, path: Path, *words: str) -> str:
    """A screenshot of the robots after three seconds."""
    with WebServer(*words, cwd=cwd) as server:
        page = WebPage(browser, server.address)
        page.wait_until(3.0)
        rate = page.rate()
        page.click("pause")
        page.wait_for("state", "paused")
        page.page.close()
        shot(browser, server.address, path)
    return f"{path.name}: {' '.join(words)}, {rate:.2f} × real time beside the browser"


def check_strangers(browser: Any, run: Path, cwd: Path, out: Path) -> str:
    """HTML in the description of a stranger's file is text on the page."""
    model = onnx.load(run / "policy.onnx")
    entry = next(x for x in model.metadata_props if x.key == "gpusim_rl")
    about = json.loads(entry.value)
    command = next(x for x in about["inputs"] if x["name"] == "command")
    command["names"][0], command["units"][1] = ATTACK, "<b>**bold**</b>"
    entry.value = json.dumps(about)
    folder = cwd / f"{ATTACK.replace('/', '')}"
    folder.mkdir()
    onnx.save(model, folder / "policy.onnx")
    with WebServer(f"onnx='{folder}/policy.onnx'", cwd=cwd) as server:
        page = WebPage(browser, server.address)
        page.wait_until(1.0)
        page.page.wait_for_timeout(3000)
        assert page.page.evaluate("window.hacked") is None
        assert page.page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
        label = page.page.get_by_text(ATTACK[:20]).first
        assert "<img src=x" in label.inner_text()
        page.click("pause")
        page.wait_for("state", "paused")
        page.page.close()
        shot(browser, server.address, out / "strange.png")
    return "HTML in names is shown as text, and no script of it ran"


def main(first: Path, second: Path, out: Path) -> None:
    """Run all checks, and print a line of each."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        cwd = Path(folder) / "here"
        cwd.mkdir()
        print(check_film(browser, first, cwd), flush=True)
        for line in check_controls(browser, first, cwd, out):
            print(line, flush=True)
        pictures = {"grid": [f"run={first}", "worlds=16"], "two": [f"compare=[{first},{second}]"]}
        for name, words in pictures.items():
            print(check_picture(browser, cwd, out / f"{name}.png", *words), flush=True)
        print(check_strangers(browser, first, cwd, out), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("first", "second", "out"):
        parser.add_argument(name, type=lambda word: Path(word).resolve())
    main(**vars(parser.parse_args()))
