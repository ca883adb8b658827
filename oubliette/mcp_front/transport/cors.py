"""Trusted pages in a browser: what they need to be told to be let near (CORS, Fetch standard).

Which Origins are trusted is decided before (`auth.Names`). A page has no key of ours by itself and
no cookie is ever looked at, so these headers open nothing that a key would not.
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
    """`send`, telling the browser that pages of `origin` may read the answer."""

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
    """Answer the browser's question whether the page may ask."""
    await send({"type": "http.response.start", "status": 204, "headers": [*_PREFLIGHT]})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
