"""RequestStream, one HTTP request with its response, to which events are written directly.

The SDK passes a notification through four memory streams and as many tasks, and all answers of a
handshake session through one of them: a listener that stops reading would delay the others. So
events are written as whole server-sent events to the open response. Each write is one chunk, so
they can stand between those of the SDK (its answer, its keep-alive comments).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oubliette.errors import OublietteError
from oubliette.mcp_front.transport.http_protocol import connection_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Scope, Send

    from oubliette.mcp_front.auth import AuthenticatedKey
    from oubliette.mcp_front.quotas import CallSlot

SCOPE_KEY: Final = "oubliette.exchange"


class StreamClosed(OublietteError, ConnectionError):
    """The client has disconnected, or the answer was sent."""

    code = "stream_closed"


class RequestStream:
    """An admitted request, until its response has ended."""

    __slots__ = (
        "_answer_due",
        "_connection",
        "_ended",
        "_on_end",
        "_opened",
        "_send",
        "method",
        "place",
        "status",
        "who",
    )

    def __init__(
        self, who: AuthenticatedKey, scope: Scope, send: Send, place: CallSlot | None = None
    ) -> None:
        self.who = who
        self.place = place
        """Its slot among the calls in flight; GET streams have none."""
        self.method: str = scope["method"]
        self._connection = connection_of(scope)
        self.status = 0
        """HTTP status of the response; 0 until it begins."""
        self._send = send
        self._answer_due = False
        self._opened: asyncio.Future[None] | None = None
        self._ended = False
        self._on_end: list[Callable[[], None]] = []

    async def send(self, message: Message) -> None:
        """Send for the SDK; record that the response has begun and that it has a body."""
        kind = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
        await self._send(message)
        if kind == "http.response.body" and self._is_answer(message) and self.place is not None:
            self.place.end()
        opened = self._opened
        if opened is not None and not opened.done() and self._is_open(kind, message):
            opened.set_result(None)

    async def send_document(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Answer with a document, head and body in one write."""
        connection = self._connection
        if self._opened is None and connection.send_document(self._send, status, headers, body):
            self.status = status
            if self.place is not None:
                self.place.end()
            return
        transport = connection.corked
        transport.cork()
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            transport.uncork()

    def answer_comes(self) -> None:
        """Record that the handler has ended: the next event that the SDK writes is the answer."""
        self._answer_due = True

    def _is_answer(self, message: Message) -> bool:
        # The end of a stream comes later than the event with the answer, which is all that the
        # client waits for. Lines with a colon in front are comments that keep a stream open.
        if not message.get("more_body"):
            return True
        return self._answer_due and not message["body"].startswith(b":")

    def _is_open(self, kind: str, message: Message) -> bool:
        # A GET stream is open with its head; a POST stream with its first event, which the SDK
        # writes: an event written directly before that would precede it.
        if self.method == "GET":
            return kind == "http.response.start" and self.status == 200
        return kind == "http.response.body" and bool(message.get("more_body"))

    def expect_open(self) -> asyncio.Future[None]:
        """Return a future, done once `push` may be used; call this before the stream begins."""
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            if self._ended:
                self._opened.set_exception(StreamClosed("the request has ended"))
        return self._opened

    async def push(self, chunk: bytes) -> None:
        """Write whole server-sent events; wait while the client does not read them.

        Raises:
            StreamClosed: the client has disconnected.
        """
        if not self._ended:
            try:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            except RuntimeError as error:  # uvicorn: the response was complete already
                raise StreamClosed("the response was sent") from error
        # uvicorn silently drops what is sent to a client that has disconnected.
        if self._ended or self._connection.gone:
            raise StreamClosed("the client is gone")

    def cut(self) -> None:
        """End the request at once, whether or not its client is there."""
        self._connection.transport.abort()

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` if the client disconnects, at once if it has; None: no longer."""
        connection = self._connection
        if callback is not None and connection.gone:
            callback()
        connection.when_lost = callback

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the request has ended, for any reason; at once if it has."""
        if self._ended:
            callback()
        else:
            self._on_end.append(callback)

    def end(self) -> None:
        """Record the end: the response was sent, or the client has disconnected."""
        self._ended = True
        if self.place is not None:
            self.place.end()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(StreamClosed("the request has ended"))
            self._opened.exception()  # retrieved, because there may be no waiter any more
        for callback in self._on_end:
            callback()
        self._on_end.clear()


def of(scope: Scope) -> RequestStream:
    """The exchange that a handler of the SDK belongs to."""
    exchange: RequestStream = scope[SCOPE_KEY]
    return exchange
