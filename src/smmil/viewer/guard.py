"""Access control of the viewer: host names, token, read-only methods, and security headers."""

import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from smmil.files import digest

if TYPE_CHECKING:  # _is_loopback is needed where the extra may be missing
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9A-Za-z._-]{1,253}))(?::[0-9]{1,5})?", re.ASCII)
_HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_CLOSED: tuple[int, str, dict[str, str]] = (401, "a token is needed; open the address that smmil view printed", {})


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    return host == "localhost" or ((address := _ip(host)) is not None and address.is_loopback)


def _allowed_hosts(bound: str) -> frozenset[str]:
    """Names a browser may have used to come here: loopback, the host that was bound, and this machine's own."""
    own = {socket.gethostname().lower(), socket.getfqdn().lower()} if _is_wildcard(bound) else set()
    return _LOOPBACK | {bound.lower()} | own


def _is_wildcard(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class _Guard:
    """Wraps the application; with a token, everything but the page with `?token=` needs the cookie it gives.

    The cookie is SameSite=Lax: a link to the viewer in a mail or a wiki works, but no other site can load parts of it.

    bound  the host that was bound, which decides on the names accepted in the Host header: a web site whose name is
           made to point at this machine (DNS rebinding) sends its own name and is refused
    """

    app: "ASGIApp"
    bound: str = "127.0.0.1"
    token: str | None = None
    hosts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", _allowed_hosts(self.bound))

    @property
    def cookie(self) -> str:
        """Its name: cookies are shared between the ports of a host, so every server has its own."""
        return f"smmil_view_{digest(self.token or '')[:8]}"

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # web sockets are not served
        refusal = self._refusal(scope)
        app = self.app if refusal is None else _response(*refusal)
        await app(scope, receive, _with_headers(send))

    def _refusal(self, scope: "Scope") -> tuple[int, str, dict[str, str]] | None:
        """Status, sentence and headers of what is answered instead; None lets the request through."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET and HEAD are answered", {"allow": "GET, HEAD"}
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        if not self._host_is_ours([value for name, value in headers if name == "host"]):
            return 400, "this host name is not served; use the address that smmil view printed", {}
        query = scope["query_string"].decode("latin-1") if scope["path"] == "/" else ""
        if tokens := parse_qs(query, keep_blank_values=True).get("token"):
            return self._redirect_with_cookie(tokens[0], headers)
        if self.token is not None and not self._knows_token(headers):
            return _CLOSED
        # a line break at the end would pass for the address without it
        return None if scope["path"].isprintable() else (404, "nothing at this address", {})

    def _redirect_with_cookie(self, token: str, headers: Iterable[tuple[str, str]]) -> tuple[int, str, dict[str, str]]:
        """Redirect `/?token=…` to `/` and set the session cookie, so that the token does not stay in the address."""
        sentence, there = "go on without the token in the address", {"location": "/"}
        if self.token is not None and self._same(token):
            cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Lax; Path=/"
            return 303, sentence, {**there, "set-cookie": cookie}
        return (303, sentence, there) if self.token is None or self._knows_token(headers) else _CLOSED

    def _host_is_ours(self, stated: list[str]) -> bool:
        found = _HOST.fullmatch(stated[0]) if len(stated) == 1 else None
        if found is None:
            return False
        name = (found[1] or found[2]).lower().rstrip(".")
        # bound to every address, the machine may be called by any of them, but only by number
        return name in self.hosts or (_is_wildcard(self.bound) and _ip(name) is not None)

    def _knows_token(self, headers: Iterable[tuple[str, str]]) -> bool:
        for name, value in headers:
            if name == "authorization" and value.startswith("Bearer ") and self._same(value[7:]):
                return True
            # what other servers on this machine left in the header may look like anything
            pairs = (part.strip().partition("=") for part in value.split(";") if name == "cookie")
            if any(key == self.cookie and self._same(given) for key, _, given in pairs):
                return True
        return False

    def _same(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())


def _with_headers(send: "Send") -> "Send":
    async def with_headers(message: "Message") -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return with_headers


def _response(status: int, sentence: str, headers: dict[str, str]) -> "ASGIApp":
    from starlette.responses import Response

    body = f'{{"error": "{sentence}"}}'
    return Response(body, status, {"cache-control": "no-store", **headers}, "application/json")
