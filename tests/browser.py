"""A headless Chromium that opens a page of mode=web, and the page's controls by their labels."""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.command_lines import environment
from tests.worlds import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# WebGL on the processor; Chromium's sandbox does not start for root.
FLAGS = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
PATIENCE = 300_000  # ms: drawing on a busy processor is slow
CONTROL = """label => {
  const labels = [...document.querySelectorAll("label")];
  const own = labels.find(x => x.textContent === label);
  return own && own.closest(".mantine-Flex-root");
}"""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser of playwright's, which is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


class WebPage:
    """A page of mode=web in a browser. Errors of its scripts and in its console are kept in
    `errors`.

    Args:
        browser: of `chromium`.
        address: of the page.
        width, height: of the window [pixels].
        detail: pixels that are drawn for each of them in each direction; few are drawn fast.
        script: that runs before those of the page.
    """

    def __init__(
        self,
        browser: Any,
        address: str,
        width: int = 640,
        height: int = 400,
        detail: float = 0.1,
        script: str = "",
    ):
        self.page, self.errors = browser.new_page(viewport={"width": width, "height": height}), []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        self.page.add_init_script(script)
        self.page.goto(f"{address}/?fixedDpr={detail}")
        self.page.get_by_text("state", exact=True).wait_for(timeout=PATIENCE)

    def control(self, label: str) -> Any:
        """The row of a control with a label."""
        return self.page.wait_for_function(
            CONTROL, arg=label, timeout=30000, polling=100
        ).as_element()

    def read(self, label: str) -> str:
        """What a control's field says."""
        return self.control(label).query_selector("input,textarea").input_value()

    def set(self, label: str, value: float) -> None:
        """Type a number into the field of a slider."""
        field = self.control(label).query_selector_all("input")[-1]
        field.fill(str(value))
        field.press("Enter")

    def choose(self, label: str, option: str) -> None:
        """Choose an option of a dropdown."""
        self.control(label).query_selector("input").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def click(self, name: str) -> None:
        """Click a button."""
        # as a script does it: a page that draws on the processor is never still
        self.page.get_by_role("button", name=name, exact=True).dispatch_event("click")

    def close_notes(self) -> None:
        """Close notes such as that of a browser that draws on the processor."""
        for button in self.page.query_selector_all(".mantine-Notification-closeButton"):
            button.click()
        self.page.wait_for_timeout(1000)

    def plots(self) -> list[str]:
        """The picture of each plot."""
        code = "[...document.querySelectorAll('.uplot canvas')].map(x => x.toDataURL())"
        return self.page.evaluate(code)

    def time(self) -> float:
        """Simulated time [s]; 0 before the first step."""
        return float((self.read("state") or "0 s").split()[0])

    def rate(self) -> float:
        """Simulated seconds in a second; 0 while paused."""
        said = re.search(r"([\d.]+) × real time", self.read("state"))
        return float(said[1]) if said else 0.0

    def base(self) -> list[float]:
        """The pose of the robot."""
        return [float(x) for x in self.read("base").split()]

    def wait_until(self, seconds: float) -> None:
        """Wait until the simulated time is this late [s]."""
        self.wait("parseFloat(text) >= wanted", "state", seconds)

    def wait_for(self, label: str, text: str) -> None:
        """Wait until a control's field holds a text."""
        self.wait("text.includes(wanted)", label, text)

    def ask(self, label: str, value: float) -> None:
        """Move a slider of the command, and wait until the tour is over."""
        self.set(label, value)
        self.wait("field && !field.checked", "tour", None)

    def wait(self, condition: str, label: str, wanted: Any) -> None:
        """Wait until what a control's field says fulfills a condition."""
        code = f"""([label, wanted]) => {{
          const row = ({CONTROL})(label);
          const field = row && row.querySelector("input,textarea");
          const text = field ? field.value : "";
          return {condition};
        }}"""
        self.page.wait_for_function(code, arg=[label, wanted], timeout=PATIENCE, polling=100)


class WebServer:
    """play.py mode=web in a process of its own, with any free port.

    Args:
        words: further words of the command line.
        cwd: where it runs.
    """

    def __init__(self, *words: str, cwd: Path):
        line = [sys.executable, str(ROOT / "play.py"), "mode=web", "port=0", *words]
        env = environment(cwd.parent / f"{cwd.name}-home")
        pipes = dict[str, Any](stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.process = subprocess.Popen(line, cwd=cwd, env=env, **pipes)
        try:
            self.first = first_line(self.process)
            said = re.match(r"open (http://\S+) ", self.first)
            assert said, self.first + self.process.communicate(timeout=20)[0]
        except BaseException:
            self.process.kill()
            raise
        self.address = said[1]

    @property
    def port(self) -> int:
        """The port that it has printed."""
        return int(self.address.rpartition(":")[2])

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C. Returns the exit code and what was printed after the address."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGINT)
        rest, _ = self.process.communicate(timeout=20)
        return self.process.returncode, rest

    def __enter__(self) -> "WebServer":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.end()
        self.process.kill()


def first_line(process: Any, patience: float = 120.0) -> str:
    """What a process prints first. TimeoutError unless it does within this time [s]."""
    if not select.select([process.stdout], [], [], patience)[0]:
        raise TimeoutError(f"nothing was printed within {patience:g} s")
    return process.stdout.readline()


def listening(pid: int) -> set[str]:
    """Addresses at which a process listens, of /proc/net/tcp and tcp6, as hexadecimal numbers."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    addresses = set()
    for table in ("tcp", "tcp6"):
        rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        for row in map(str.split, rows):
            if row[3] == "0A" and row[9] in sockets:  # LISTEN
                addresses.add(row[1])
    return addresses
