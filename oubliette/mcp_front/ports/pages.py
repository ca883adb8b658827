"""Pages that this server itself shows under the host name of a port: a heading and a sentence."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Send

    from oubliette.mcp_front.ports.headers import Headers

TITLES: Final = {
    303: "Open",
    400: "Bad request",
    401: "Not let in",
    403: "Refused",
    404: "Not found",
    405: "Method not allowed",
    421: "Not here",
    502: "Nothing answers",
    503: "Not now",
    504: "Nothing answers in time",
}


async def show(send: Send, status: int, sentence: str, headers: Headers | None = None) -> None:
    """Answer with a page that states the reason."""
    title = TITLES[status]
    body = (
        f"<!doctype html><meta charset=utf-8><title>{status} {title}</title>"
        f"<h1>{title}</h1><p>{escape(sentence)}</p>\n"
    ).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"text/html; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
                (b"content-security-policy", b"default-src 'none'"),
                (b"cache-control", b"no-store"),
                (b"referrer-policy", b"no-referrer"),
                *(headers or []),
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})
