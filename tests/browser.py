"""A headless Chromium that opens a page of mode=web, and the page's controls by their labels."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        script: that runs before those of the page.
    """

    def __init__(self, browser: Any, address: str, script: str = ""):
        self.page, self.errors = browser.new_page(viewport={"width": 640, "height": 400}), []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        self.page.add_init_script(script)
        self.page.goto(f"{address}/?fixedDpr=0.1")  # few pixels are drawn fast
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

    def click(self, name: str) -> None:
        """Click a button."""
        # as a script does it: a page that draws on the processor is never still
        self.page.get_by_role("button", name=name, exact=True).dispatch_event("click")

    def time(self) -> float:
        """Simulated time [s]; 0 before the first step."""
        return float((self.read("state") or "0 s").split()[0])

    def base(self) -> list[float]:
        """The pose of the robot."""
        return [float(x) for x in self.read("base").split()]

    def wait_until(self, seconds: float) -> None:
        """Wait until the simulated time is this late [s]."""
        self.wait("parseFloat(text) >= wanted", "state", seconds)

    def wait_for(self, label: str, text: str) -> None:
        """Wait until a control's field holds a text."""
        self.wait("text.includes(wanted)", label, text)

    def wait(self, condition: str, label: str, wanted: Any) -> None:
        """Wait until what a control's field says fulfills a condition."""
        code = f"""([label, wanted]) => {{
          const row = ({CONTROL})(label);
          const field = row && row.querySelector("input,textarea");
          const text = field ? field.value : "";
          return {condition};
        }}"""
        self.page.wait_for_function(code, arg=[label, wanted], timeout=PATIENCE, polling=100)


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
