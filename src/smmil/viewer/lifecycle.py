"""Start and stop the viewer's server: on this machine only, or on another host with a token."""

import contextlib
import errno
import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smmil.errors import ConfigError, MissingExtra
from smmil.viewer.data import ViewerData
from smmil.viewer.guard import _is_loopback

_LOWEST_CACHE_MB, _HIGHEST_CACHE_MB = 1, 65_536
_PATIENCE = 10.0


def serve(
    places: Sequence[str | Path],
    *,
    slides: str | Path | None = None,
    bags: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_browser: bool = False,
    threshold: float | None = None,
    column: int | None = None,
    by: str = "case",
    max_cache_mb: int = 256,
    title: str = "smmil view",
    announce: Callable[[str], None] = lambda url: None,
    remark: Callable[[str], None] = lambda line: None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Show runs or folders of predictions in the browser until it is interrupted (Ctrl-C).

    slides        folder of slides and scans named like the cases, or CSV table (id, slide)
    bags          manifest of the bags, for patches that look alike
    by            patient: the cases of a patient stand together
    port          0: any free one
    max_cache_mb  memory for tiles that were shown lately
    announce      called with the URL to open, with its token when one is needed
    remark        called with a line for each prediction that could not be read and was left out
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as missing:
        raise MissingExtra(str(missing.name), "view", "smmil view") from None
    if not _LOWEST_CACHE_MB <= max_cache_mb <= _HIGHEST_CACHE_MB:
        raise ConfigError(f"--max-cache-mb {max_cache_mb}: must be from {_LOWEST_CACHE_MB} to {_HIGHEST_CACHE_MB}")
    with _bind(host, port) as listening:
        options = {"threshold": threshold, "cache_bytes": max_cache_mb * 2**20, "title": title}
        study = ViewerData.read(places, slides=slides, bags=bags, column=column, by=by, progress=progress, **options)
        for problem in study.problems:
            remark(f"left out: {problem}")
        address, bound_port = listening.getsockname()[:2]
        token = None if _is_loopback(address) else secrets.token_urlsafe(32)
        url = _address_to_open(host, bound_port, token)
        announce(url)
        if open_browser:
            webbrowser.open(url)
        _run(study, host, token, listening)


def _run(study: ViewerData, host: str, token: str | None, listening: socket.socket) -> None:
    import uvicorn

    from smmil.viewer.server import _create_app

    try:
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop
            uvicorn.Server(_config(_create_app(study, host=host, token=token))).run(sockets=[listening])
    finally:
        study.close()


def _config(app: Any, patience: float = _PATIENCE, **options: Any) -> Any:
    """Settings of the server; it hangs up on clients that do not finish a request within about `patience` seconds."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class _ImpatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(patience, self._look_again, None)

        def _look_again(self, before: Any) -> None:
            """Hang up when no request was completed since the last look and none is being answered."""
            if self.cycle is before and (before is None or before.response_complete):
                self.transport.close()
            elif not self.transport.is_closing():
                self.loop.call_later(patience, self._look_again, self.cycle)

    # no log of requests: addresses may carry the token
    quiet = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
    return uvicorn.Config(app, http=_ImpatientProtocol, timeout_graceful_shutdown=3, **{**quiet, **options})


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket; an error with the reason when that is not possible."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: must be from 0 (any free one) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {host}: is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all") from None
    # only with the protocol named does asyncio send at once; else tiles wait 40 ms for the receipt of the last one
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(128)
    except OSError as problem:
        listening.close()
        why = problem.strerror
        if problem.errno in (errno.EADDRINUSE, errno.EACCES):
            text = f"--port {port}: cannot be used on {host} ({why}); choose another with --port (0: any free one)"
        else:
            hint = "use 127.0.0.1, or 0.0.0.0 for all addresses of this machine"
            text = f"--host {host}: cannot be used on this machine ({why}); {hint}"
        raise ConfigError(text) from None
    return listening


def _address_to_open(host: str, port: int, token: str | None) -> str:
    """What to type into a browser; for a server on all addresses the name of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + ("" if token is None else f"?token={token}")
