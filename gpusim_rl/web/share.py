"""Files of a policy that a page asks for: a film, or the policy as ONNX."""

import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import IO, NamedTuple

import viser

from gpusim_rl.core.paths import quoted
from gpusim_rl.training.films import last_line, start_play

FILM, ONNX = "film", "ONNX"  # what the button offers
SECONDS = 10  # of a film
LARGEST_FILE_BYTES = 2**28  # bytes of a file that is sent

Send = Callable[[str, bytes], None]


class Making(NamedTuple):
    """A file that is being made."""

    process: Popen[bytes]
    errors: IO[bytes]  # what it writes to stderr
    path: Path
    send: Send
    ends: ExitStack  # removes the folder of the file, and closes `errors`


class Share:
    """Sends files of policies to the page that asked, one at a time, as play.py makes them."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.making: Making | None = None

    def send_file(self, path: Path, name: str, send: Send) -> None:
        """Send a file that there is; OSError or ValueError if it cannot be."""
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise ValueError(f"{name} is too large for the page")
        send(name, path.read_bytes())
        self.say(f"{name} is sent to the browser")

    def make(self, words: list[str], kind: str, name: str, send: Send) -> None:
        """Begin to make a FILM or a policy as ONNX, and send it when it is ready.

        words: of play.py: the policy, and how it acts. name: of the file, without its ending.
        """
        if self.making:
            return self.say(f"{self.making.path.name} is still being made")
        with ExitStack() as ends:
            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="gpusim_rl-"))
            errors = ends.enter_context(tempfile.TemporaryFile())
            path = Path(folder) / f"{name}.{'mp4' if kind == FILM else 'onnx'}"
            film = [quoted("video", path), f"seconds={SECONDS}"]
            words = [*words, *(film if kind == FILM else ["mode=export", quoted("out", path)])]
            process = start_play(words, errors, lowest=False)
            self.making = Making(process, errors, path, send, ends.pop_all())
        self.say(f"{path.name} is being made")

    def look(self) -> None:
        """Send the file that is ready, or say why it is none."""
        if not self.making or self.making.process.poll() is None:
            return
        made, self.making = self.making, None
        with made.ends:
            code = made.process.returncode
            why = last_line(made.errors) or f"its process ended with {code}"
            if code or not made.path.is_file():
                return self.say(f"{made.path.name} is not made: {why}")
            try:
                self.send_file(made.path, made.path.name, made.send)
            except (OSError, ValueError) as error:
                self.say(str(error))

    def stop(self) -> None:
        """End what is being made."""
        made, self.making = self.making, None
        if made:
            made.process.kill()
            made.process.wait()
            made.ends.close()


def file_name(label: str) -> str:
    """A file's name for a policy that the page calls so, such as `quadruped-s1`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", label.removesuffix(".onnx")).strip("-.") or "policy"


def sender(client: viser.ClientHandle | None) -> Send:
    """What sends a file to a page, which saves it; a page that is gone gets none."""

    def send(name: str, content: bytes) -> None:
        if client:
            client.send_file_download(name, content, save_immediately=True)

    return send
