"""The web server of the page: viser's, which answers pages of its own address only."""

import contextlib
import functools
import http
import io
import ipaddress
import logging
import math
import socket
from collections.abc import Iterator
from typing import Any

import viser
import websockets.asyncio.server
from viser import _messages
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

LOOPBACK = "127.0.0.1"
PORT = 8080
# Why: docs/decisions/0058-a-page-for-one-machine.md
# Nothing is loaded from elsewhere, and no other page may hold this one in a frame.
POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:;"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def is_loopback(host: str) -> bool:
    """Whether an address or a name means this machine alone."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def hostname(authority: str) -> str:
    """The host in `host:port`, without brackets."""
    host, colon, port = authority.rpartition(":")
    return (host if colon and port.isdigit() else authority).strip("[]").lower()


def refusal(headers: Headers, host: str) -> str:
    """Why a request is refused; empty if it is answered.

    The name that the browser asked for has to be this machine's: another site's name may be made to
    point here. A WebSocket has to come from a page that this server sent.

    Args:
        headers: of the request.
        host: address that the server is bound to.
    """
    hosts = headers.get_all("Host")
    named = hostname(hosts[0]) if len(hosts) == 1 else ""
    if not is_loopback(named) and (is_loopback(host) or not is_own(named, host)):
        return "this host is not served"
    if "Upgrade" in headers and headers.get_all("Origin") != [f"http://{hosts[0]}"]:
        return "other origins are refused"
    return ""


def is_own(named: str, host: str) -> bool:
    """Whether a name is an address, or that of this machine."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(named))
    return named in (host, socket.gethostname().lower())


@contextlib.contextmanager
def checked_requests(host: str) -> Iterator[list[str]]:
    """Let servers that are started now check their requests. viser has no setting for this.

    Yields a list that is not empty once a server was started this way.
    """
    module, started = websockets.asyncio.server, list[str]()
    serve, silent = module.serve, logging.Logger("page", logging.CRITICAL)

    @functools.wraps(serve)
    def serve_checked(handler: Any, *where: Any, process_request: Any, **others: Any) -> Any:
        def check(connection: Any, request: Request) -> Response | None:
            if why := refusal(request.headers, host):
                return connection.respond(http.HTTPStatus.FORBIDDEN, f"{why}\n")
            response = process_request(connection, request)
            if response is not None:
                response.headers["Content-Security-Policy"] = POLICY
                response.headers["X-Content-Type-Options"] = "nosniff"
            return response

        started.append(host)
        # It would print a traceback for each connection that is no request.
        return serve(handler, *where, process_request=check, logger=silent, **others)

    module.serve = serve_checked
    try:
        yield started
    finally:
        module.serve = serve


def check_messages(server: viser.ViserServer) -> None:
    """Take two kinds of messages from a page: its camera, and a control's value that is offered.

    viser would also take files, let a page set any property of a control, and open a tunnel to the
    internet. It has no setting for it.

    Raises ImportError if this version of viser takes messages in another way.
    """
    try:
        interface, update = server.gui._websock_interface, server.gui._handle_gui_updates
        controls, loop = server.gui._gui_input_handle_from_uuid, server._event_loop
        on_connect = server._websock_server.on_client_connect
        interface.unregister_handler(_messages.GuiUpdateMessage, update)
        interface._incoming_handlers.clear()
    except (AttributeError, AssertionError, ValueError) as error:
        raise ImportError(str(error)) from None

    async def checked(client: Any, message: _messages.GuiUpdateMessage) -> None:
        control = controls.get(message.uuid)
        if control is None or [*message.updates] != ["value"]:
            return
        value = offered(control, message.updates["value"])
        if value is not None:
            await update(client, _messages.GuiUpdateMessage(message.uuid, {"value": value}))

    interface.register_handler(_messages.GuiUpdateMessage, checked)
    on_connect(keep_camera)
    loop.set_exception_handler(lambda *_: None)  # of messages that are not what they should be


def keep_camera(connection: Any) -> None:
    """Let a new connection take messages of its camera alone."""
    for kind in {*connection._incoming_handlers} - {_messages.ViewerCameraMessage}:
        connection.unregister_handler(kind)


def offered(control: Any, value: Any) -> bool | int | float | str | None:
    """The value that a page may set a control to, in its range; None if it offers no such one."""
    if not control.visible or control.disabled:
        return None
    if hasattr(control, "options"):
        return value if isinstance(value, str) and value in control.options else None
    if hasattr(control, "min"):
        number = type(value) in (int, float) and math.isfinite(value)
        return min(max(value, control.min), control.max) if number else None
    return value if type(value) is bool else None


def open_server(host: str, port: int) -> tuple[viser.ViserServer, str]:
    """A server of the page, and its address.

    Args:
        host: address to bind to.
        port: the first of a hundred that are tried; 0 for any that is free.

    Raises OSError if there is no such address on this machine, or no free port. Raises ImportError
    if this version of viser cannot be made safe.
    """
    port = free_port(host, port)
    with checked_requests(host) as started, quiet():
        server = viser.ViserServer(host=host, port=port, label="gpusim_rl", verbose=False)
    try:
        if not started:  # a later viser may start its server in another way
            raise ImportError("it starts its server unchecked")
        check_messages(server)
    except ImportError:
        with quiet():
            server.stop()
        raise
    server.gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
    server.gui.main_panel.dock_right()
    everywhere = host != "localhost" and ipaddress.ip_address(host).is_unspecified
    name = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
    return server, f"http://{name}:{server.get_port()}"


def free_port(host: str, first: int) -> int:
    """The first of a hundred ports that is free at an address; OSError if none is.

    viser would try a thousand of them, and wait for ever if all fail.
    """
    family, wrong = socket.AF_INET6 if ":" in host else socket.AF_INET, ""
    for port in range(first, min(first + 100, 65536)):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return probe.getsockname()[1]
        except OSError as error:
            wrong = error.strerror or str(error)
    raise OSError(f"host={host} port={first}: {wrong}")


def quiet() -> contextlib.redirect_stdout[io.StringIO]:
    """Drop what viser prints."""
    return contextlib.redirect_stdout(io.StringIO())
