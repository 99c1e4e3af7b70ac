"""MCP over HTTP: loopback unless told otherwise, a bearer token always, Host and Origin checked."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import sys
from typing import TYPE_CHECKING

from logdiff.errors import InputError

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "LOGDIFF_TOKEN"


def parse_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT, :PORT or PORT.

    Raises:
        InputError: no port, or an address that stands for every interface (the Host check could not hold).
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError("not an address", value=text, hint="such as --http 127.0.0.1:8000")
    try:
        every = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        every = False
    if every:
        raise InputError(
            "an address of every interface is refused", value=text, hint="name one address, such as 127.0.0.1:8000"
        )
    return host, int(port)


def serve_http(server: MCPServer, host: str, port: int) -> None:
    """Serve until interrupted. The token comes from LOGDIFF_TOKEN, or is made and printed on standard error."""
    import uvicorn

    token = os.environ.get(TOKEN)
    if not token:
        token = secrets.token_urlsafe(24)
        sys.stderr.write(f"logdiff: token (set {TOKEN} to choose one): {token}\n")
    shown = f"[{host}]" if ":" in host else host
    sys.stderr.write(f"logdiff: serving http://{shown}:{port}/mcp; send `Authorization: Bearer <token>`\n")
    sys.stderr.flush()
    uvicorn.run(asgi_app(server, host, port, token), host=host, port=port, log_level="warning", access_log=False)


def asgi_app(server: MCPServer, host: str, port: int, token: str) -> ASGIApp:
    """The application: the token first, then the SDK's own Host and Origin checks, then MCP at `/mcp`."""
    from mcp.server.transport_security import TransportSecuritySettings

    names = {host, "127.0.0.1", "localhost", "[::1]"} if _loopback(host) else {host}
    hosts = sorted(f"[{n}]:{port}" if ":" in n and not n.startswith("[") else f"{n}:{port}" for n in names)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=hosts,
        allowed_origins=[f"http://{h}" for h in hosts],
    )
    app = server.streamable_http_app(host=host, transport_security=security)
    return _RequireToken(app, token)


class _RequireToken:
    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                from starlette.responses import PlainTextResponse

                refusal = PlainTextResponse(
                    "a bearer token is required", status_code=401, headers={"WWW-Authenticate": "Bearer"}
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
