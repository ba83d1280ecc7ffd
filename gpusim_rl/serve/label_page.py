"""mode=label of play.py: two clips side by side, and what people say of them.

Each request reads the run's labels anew, and each answer is on the disk before the page goes on. So
several people answer at once, while a training waits or goes on, and a page that is killed loses
nothing.
"""

import base64
import io
import json
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusim_rl.core import errors
from gpusim_rl.core.files import Plain
from gpusim_rl.core.maths import yaw
from gpusim_rl.report.templates import render
from gpusim_rl.robots.free_bodies import free_base
from gpusim_rl.runs.labels import AGAIN, Labels, Pair
from gpusim_rl.runs.run import Run
from gpusim_rl.serve.registry_page import Handler, PageError, TokenServer
from gpusim_rl.viewer.offscreen import Camera

if TYPE_CHECKING:
    from mujoco import MjModel
    from torch import Tensor

TEMPLATE = Path(__file__).with_name("label.html")
PORT = 8080
# the page's own script runs, and pictures are part of what it gets
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
POLICY += "img-src data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'"
SIZE, FPS, QUALITY = (300, 360), 25, 80  # of a clip: height and width [pixels], 1/s, of a JPEG
NEAR = 0.75  # of a film's distance: feet and their shadows tell most of what is asked about
SHADOW_PIXELS = 1024  # that drawing on the processor has time for: MuJoCo's own are 4096
LENT = 120.0  # s for which a pair that is shown to one person is shown to no other
REPEAT = 10  # of so many answers one is of a pair again, sides changed, one of another's pair
FILMS = 16  # of pairs that are kept
LARGEST_ANSWER_BYTES = 2000


class LabelServer(TokenServer):
    """The page of a run's questions: at another host than this machine for all with the address."""

    def __init__(self, run: Run, model: "MjModel", host: str, port: int, most: int):
        self.run, self.labels, self.most, self.model = run, Labels(run.path), most, model
        # pair → who looks at it, since when [s]; nobody if it has no film
        self.lent: dict[str, tuple[str | None, float]] = {}
        self.films: dict[str, Future[list[str]]] = {}
        # a context of OpenGL belongs to one thread
        self.painter, self.camera = ThreadPoolExecutor(1), None
        super().__init__(host, port, LabelHandler)

    def progress(self, who: str) -> Plain:
        """The next pair for a person, if one waits, and how far all are."""
        pairs, waiting, now = self.labels.pairs(), self.labels.waiting(), time.monotonic()
        valid = self.labels.fitting(self.labels.answers(), pairs)
        asked = sum(pair[0].isdecimal() for pair in pairs)  # in this run
        mine = [pair for by, pair in valid if by == who]
        rows = [row for row in self.run.rows()[-1:] if row.get("answers")]
        about = self.labels.report()
        told = {"answered": asked - len(waiting), "asked": asked, "most": self.most}
        told |= {"accuracy": rows[0].get("accuracy") if rows else None, "mine": len(mine)}
        told |= {"consistent": about["consistent"], "agree": about["agree"]}
        with self.lock:
            lent = {x for x, (by, at) in self.lent.items() if by != who and now - at < LENT}
            lent -= {pair for _, pair in valid}
            if (turn := len(mine) % REPEAT) == REPEAT - 1:
                waiting[:0] = [x + AGAIN for x in mine if not x.endswith(AGAIN)]
            elif turn == REPEAT // 2:
                waiting[:0] = [x for _, x in valid if not x.endswith(AGAIN)]
            name = next((x for x in waiting if x not in mine and x not in lent), "")
            self.lent[name] = who, now
        pair = pairs.get(name.removesuffix(AGAIN))
        return told | {"pair": name, "clips": pair.digest if pair else ""}

    def film(self, name: str) -> list[str]:
        """The pictures of a pair, each a JPEG of both clips side by side."""
        pair = self.labels.pairs().get(name.removesuffix(AGAIN))
        if pair is None:
            raise PageError(HTTPStatus.NOT_FOUND, "there is no such pair")
        with self.lock:
            if name not in self.films:
                self.films[name] = self.painter.submit(self.paint, pair, name.endswith(AGAIN))
                for old in list(self.films)[:-FILMS]:
                    del self.films[old]
            film = self.films[name]
        try:
            return film.result()
        except Exception as error:  # of a damaged file, or of OpenGL
            with self.lock:
                self.films.pop(name, None)
                self.lent[name] = None, time.monotonic()
            line = f"{name} has no film: {errors.printable(errors.reason(error))}"
            raise PageError(HTTPStatus.INTERNAL_SERVER_ERROR, line) from None

    def paint(self, pair: Pair, turned: bool) -> list[str]:
        """`film` of a pair; turned: with the sides changed."""
        from PIL import Image

        self.camera = self.camera or ClipCamera(self.model)
        poses = pair.pose.flip(0) if turned else pair.pose
        every = max(1, round(1 / FPS / float(pair.about["dt"])))
        pictures: list[str] = []
        for both in zip(*map(self.camera.pictures, poses[:, ::every]), strict=True):
            image, data = np.hstack(both), io.BytesIO()
            Image.fromarray(image).save(data, "JPEG", quality=QUALITY)
            pictures.append(base64.b64encode(data.getvalue()).decode())
        return pictures

    def stop(self) -> None:
        """Close the port, and the camera after the film that it paints."""
        self.server_close()
        if self.camera:
            self.painter.submit(self.camera.close)
        self.painter.shutdown()


class ClipCamera(Camera):
    """Shows clips with shadows on every machine; a robot with a free base from near, by a camera
    that turns with it."""

    def __init__(self, model: "MjModel"):
        from mujoco import mjtRndFlag

        model.vis.quality.shadowsize = SHADOW_PIXELS
        super().__init__(model, *SIZE)
        self.renderer.scene.flags[mjtRndFlag.mjRND_SHADOW] = True
        self.base = free_base(model)
        if self.base:
            self.camera.distance *= NEAR
            self.azimuth = self.camera.azimuth  # [degrees] at heading 0

    def pictures(self, poses: "Tensor") -> list[np.ndarray]:
        """Those of a clip (T, nq). The camera turns with a robot, evenly from first to last."""
        if not self.base:
            return [self(pose) for pose in poses.numpy()]
        headings = np.unwrap(yaw(poses[:, self.base.qpos][:, 3:]))
        seen: list[np.ndarray] = []
        turn = np.linspace(headings[0], headings[-1], len(poses))
        for pose, heading in zip(poses.numpy(), turn, strict=True):
            self.camera.azimuth = self.azimuth + math.degrees(heading)
            seen.append(self(pose))
        return seen


class LabelHandler(Handler):
    """Answers one request."""

    server: LabelServer  # pyright: ignore[reportIncompatibleVariableOverride]
    paths = ("/", "/next", "/film", "/answer")
    policy, largest, most = POLICY, LARGEST_ANSWER_BYTES, f"{LARGEST_ANSWER_BYTES} bytes"

    def do_GET(self) -> None:
        try:
            query = self.checked_query()
            path, labels = self.path.partition("?")[0], self.server
            if path == "/":
                return self.send(HTTPStatus.OK, render(TEMPLATE, run=labels.run.path.name))
            if path == "/next":
                return self.answer(labels.progress(query.get("who", "")))
            self.answer({"film": labels.film(query.get("pair", "")), "fps": FPS})
        except PageError as error:
            self.refuse(error)
        except (ValueError, OSError) as error:  # of a damaged file; the rest `handle_error` says
            self.refuse(PageError(HTTPStatus.INTERNAL_SERVER_ERROR, errors.reason(error)))

    def do_POST(self) -> None:
        try:
            self.checked_query()
            try:
                said: Any = json.loads(self.body())
                words = [said[x] for x in ("pair", "answer", "who", "clips")]
                self.server.labels.answer(*words)
            except PageError:
                raise
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                line = errors.printable(errors.reason(error))
                raise PageError(HTTPStatus.BAD_REQUEST, line) from None
            except OSError as error:  # such as a full disk: the page says it, and keeps the pair
                raise PageError(HTTPStatus.INTERNAL_SERVER_ERROR, errors.reason(error)) from None
            self.answer({"kept": True})
        except PageError as error:
            self.refuse(error)

    def answer(self, value: Plain) -> None:
        """Answer with JSON."""
        self.send(HTTPStatus.OK, json.dumps(value), "application/json")


def serve(run: Run, model: "MjModel", host: str, port: int | None, most: int) -> None:
    """Show the page until Ctrl-C."""
    server = LabelServer(run, model, host, PORT if port is None else port, most)
    print(f"open {server.address} (Ctrl-C ends it; each answer is kept at once)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()
