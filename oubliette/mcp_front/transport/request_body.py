"""Bodies of requests, read before they are passed on: a client may go away in the middle of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Message, Receive


async def read_body(receive: Receive, read: list[Message], most: int) -> bytes | None:
    """Return the body; None if it is not complete, or longer than `most` bytes.

    Args:
        receive: Of the request.
        read: Is appended what was received: the body as one piece, however small a client cuts it.
        most: Bytes after which nothing more is read.
    """
    body = bytearray()
    more = True
    while more and len(body) <= most:
        message = await receive()
        if message["type"] != "http.request":
            read += (_piece(body, more=True), message)
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    read.append(_piece(body, more=more))
    return None if len(body) > most else read[-1]["body"]


def _piece(body: bytearray, *, more: bool) -> Message:
    return {"type": "http.request", "body": bytes(body), "more_body": more}


def is_cut(read: list[Message]) -> bool:
    """Whether the client went away before the end of its body."""
    return bool(read) and read[-1]["type"] == "http.disconnect"


def replay(read: list[Message], receive: Receive) -> Receive:
    """Return a `receive` that returns what was read, then the rest."""

    async def again() -> Message:
        return read.pop(0) if read else await receive()

    return again
