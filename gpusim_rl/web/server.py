"""The web server of the page: viser's, which answers pages of its own address only.

`AccessControl` holds all that is replaced of viser: it has no setting for any of it.
"""

import contextlib
import functools
import http
import io
import logging
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import viser
import websockets.asyncio.server
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from gpusim_rl.core.memory import trim_heap
from gpusim_rl.viewer.gamepad import REST, Change, Gamepad

LOOPBACK = "127.0.0.1"
PORT = 8080
# Why: docs/decisions/web.md
# Nothing is loaded from elsewhere, and no other page may hold this one in a frame.
POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:;"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
NAMES = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)  # of this machine
LARGEST_MESSAGE_BYTES = 2**16  # a page sends some hundred, and viser would take 50 MB
GAMEPAD = "/gamepad"  # path of a WebSocket of the page's script
SCRIPT = Path(__file__).with_name("gamepad.js")
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Vector = tuple[Number, Number, Number]


class CameraMessage(msgspec.Struct, tag="ViewerCameraMessage", forbid_unknown_fields=True):
    """Where the camera of a page is: viser's message of this name, and its fields are numbers."""

    wxyz: tuple[Number, Number, Number, Number]
    position: Vector
    fov: Number
    near: Number
    far: Number
    image_height: Number
    image_width: Number
    look_at: Vector
    up_direction: Vector


class UpdateMessage(msgspec.Struct, tag="GuiUpdateMessage", forbid_unknown_fields=True):
    """New properties of a control, of which its value is taken: viser's message of this name."""

    uuid: str
    updates: dict[Literal["value"], bool | Number | str]


class GamepadMessage(msgspec.Struct, forbid_unknown_fields=True):
    """Axes of both sticks of a page's gamepad, and its first two buttons."""

    axes: tuple[Number, Number, Number, Number]
    buttons: tuple[bool, bool]


PAD_DECODER = msgspec.json.Decoder(GamepadMessage)
DECODER = msgspec.msgpack.Decoder(CameraMessage | UpdateMessage)


class AccessControl:
    """Decides what of the network reaches viser: its own pages, and two of their messages.

    A page's gamepad has a WebSocket of its own, which does not reach viser.
    """

    def __init__(self) -> None:
        # of the page, by their ids; to be set once viser has made them
        self.controls: dict[str, Any] | None = None
        # takes what a page's gamepad asks for, in the server's thread; to be set
        self.gamepad: Callable[[Change], object] = lambda _: None
        self.serves = False  # whether a server was started with it

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put itself before each server that is started meanwhile."""
        module, serve = websockets.asyncio.server, websockets.asyncio.server.serve
        module.serve = functools.partial(self._serve, serve)
        try:
            yield
        finally:
            module.serve = serve

    def _serve(self, serve: Any, handler: Any, *where: Any, **options: Any) -> Any:
        """`websockets.asyncio.server.serve`, with this guard before viser's two functions."""
        self.serves = True
        answer = functools.partial(self._answer, options["process_request"])
        # it would print a traceback for each connection that is no request
        logger = logging.Logger("page", logging.CRITICAL)
        options |= dict(process_request=answer, max_size=LARGEST_MESSAGE_BYTES, logger=logger)
        return serve(functools.partial(self._handle, handler), *where, **options)

    def _answer(self, answer: Any, connection: Any, request: Request) -> Response | None:
        """Answer a request; None lets it open a WebSocket."""
        if why := refusal(request.headers):
            return connection.respond(http.HTTPStatus.FORBIDDEN, f"{why}\n")
        if request.path == f"{GAMEPAD}.js":
            response = connection.respond(http.HTTPStatus.OK, SCRIPT.read_text("utf-8"))
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = "text/javascript; charset=utf-8"
        else:
            if "Accept-Encoding" in request.headers:  # the page is changed below
                del request.headers["Accept-Encoding"]
            response = answer(connection, request)
        if response is not None:
            add_script(response)
            response.headers["Content-Security-Policy"] = POLICY
            response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def _handle(self, handler: Any, connection: Any) -> None:
        """Let viser handle a WebSocket, which gives it checked messages alone."""
        if connection.request.path == GAMEPAD:
            return await self._read_gamepad(connection)
        if connection.subprotocol != f"viser-v{viser.__version__}":
            # viser would print two lines; a page of another version understands this code
            return await connection.close(1002, "another version of viser")
        receive = connection.recv

        async def receive_checked() -> bytes:
            while True:
                if message := self.checked(await receive()):
                    return message

        connection.recv = receive_checked
        try:
            await handler(connection)
        finally:
            trim_heap()  # pages that come and go would else leave 60 to 180 kB each

    async def _read_gamepad(self, connection: Any) -> None:
        """Hand on what a gamepad asks for; its sticks are let go when its page closes."""
        pad = Gamepad()
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                try:
                    said = PAD_DECODER.decode(message)
                except Exception:  # whatever is wrong with it
                    continue
                self.gamepad(pad.read(said.axes, said.buttons))
        self.gamepad(pad.read(*REST))

    def checked(self, message: bytes | str) -> bytes | None:
        """A message of a page as viser may read it; None of all but two kinds.

        viser would also take files, let a page set any property of a control, and open a tunnel to
        the internet. It warns of a camera's fields that are no numbers, with what the page sent:
        so a page could write control characters into the terminal.
        """
        try:
            checked = DECODER.decode(message)  # type: ignore[arg-type]  # a str is no message
        except Exception:  # whatever is wrong with it
            return None
        if isinstance(checked, UpdateMessage):
            control = (self.controls or {}).get(checked.uuid)
            value = offered(control, checked.updates.get("value"))
            if value is None:
                return None
            checked.updates["value"] = value
        return msgspec.msgpack.encode(checked)


def add_script(response: Response) -> None:
    """Let viser's page load the script of gamepads. In place."""
    head, end, rest = response.body.rpartition(b"</head>")
    if end:
        response.body = head + f'<script src="{GAMEPAD}.js"></script>'.encode() + end + rest
        del response.headers["Content-Length"]
        response.headers["Content-Length"] = str(len(response.body))


def refusal(headers: Headers) -> str:
    """Why a request is refused; empty if it is answered.

    The name that the browser asked for has to be this machine's: another site's name may be made to
    point here. A WebSocket has to come from a page that this server sent.
    """
    hosts = headers.get_all("Host")
    if len(hosts) != 1 or not NAMES.fullmatch(hosts[0]):
        return "this host is not served"
    if "Upgrade" in headers and headers.get_all("Origin") != [f"http://{hosts[0]}"]:
        return "other origins are refused"
    return ""


def offered(control: Any, value: Any) -> bool | float | str | None:
    """The value that a page may set a control to, in its range; None if it offers no such one."""
    if control is None or not control.visible or control.disabled:
        return None
    if hasattr(control, "options"):
        return value if isinstance(value, str) and value in control.options else None
    if hasattr(control, "min"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return min(max(value, control.min), control.max) if number else None
    return value if type(value) is bool else None


def open_server(port: int) -> tuple[viser.ViserServer, str, AccessControl]:
    """A server of the page, its address and its guard; ImportError if viser cannot be guarded.

    port: the first of a hundred that are tried; 0 for any that is free. OSError if none is.
    """
    port, access = free_port(port), AccessControl()
    with access.installed(), quiet():
        server = viser.ViserServer(host=LOOPBACK, port=port, label="gpusim_rl", verbose=False)
    access.controls = getattr(server.gui, "_gui_input_handle_from_uuid", None)
    if not access.serves or access.controls is None:  # a later viser may do this in another way
        with quiet():
            server.stop()
        raise ImportError("its messages cannot be checked")
    server.gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
    server.gui.main_panel.dock_right()
    return server, f"http://{LOOPBACK}:{server.get_port()}", access


def free_port(first: int) -> int:
    """The first of a hundred ports that is free; OSError if none is."""
    # viser would try a thousand of them, and wait for ever if all fail
    wrong = ""
    for port in range(first, min(first + 100, 65536)):
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((LOOPBACK, port))
                return probe.getsockname()[1]
        except OSError as error:
            wrong = error.strerror or str(error)
    raise OSError(f"port={first}: {wrong}")


def quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Drop what viser prints."""
    return contextlib.redirect_stdout(io.StringIO())
