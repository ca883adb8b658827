"""CORS headers for trusted pages in a browser (Fetch standard).

Origins are checked before (`host_and_origin`). A page does not get a key from the browser and
cookies are never read, so these headers permit nothing that a key would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Message, Send

_ALLOWED: Final = (
    b"authorization, content-type, accept, mcp-protocol-version, mcp-session-id, mcp-method,"
    b" mcp-name, last-event-id"
)
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", _ALLOWED),
    (b"access-control-max-age", b"600"),
)


def open_to(origin: bytes, send: Send) -> Send:
    """A `send` that allows pages of `origin` to read the answer."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
                (b"vary", b"origin"),
            ]
        await send(message)

    return tell


async def answer_preflight(send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": [*_PREFLIGHT]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
