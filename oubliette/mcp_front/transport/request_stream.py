"""One HTTP request on its way through the SDK, and the way past it for events.

The SDK carries a notification through four memory streams and as many tasks, all of a handshake
session's answers through one of them: a listener that stops reading would hold up the others.
So events are written as whole server-sent events straight onto the open response. Each write is
one chunk, so they can stand between those of the SDK (its answer, its keep-alive comments).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.errors import OublietteError
from oubliette.mcp_front.transport.http_protocol import STATE_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from starlette.types import Message, Scope, Send

    from oubliette.mcp_front.auth import AuthenticatedKey
    from oubliette.mcp_front.quotas import CallSlot
    from oubliette.mcp_front.transport.http_protocol import GuardedProtocol

SCOPE_KEY: Final = "oubliette.exchange"


class StreamClosed(OublietteError, ConnectionError):
    """The client's side of the stream is gone, or the answer was sent."""

    code = "stream_closed"


class RequestStream:
    """A request that was let in, until its response ended."""

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
        """Its place among the calls in flight; GET streams have none."""
        self.method: str = scope["method"]
        self._connection: GuardedProtocol = scope["state"][STATE_KEY]
        self.status = 0
        """HTTP status of the response; 0 until it began."""
        self._send = send
        self._answer_due = False
        self._opened: asyncio.Future[None] | None = None
        self._ended = False
        self._on_end: list[Callable[[], None]] = []

    async def send(self, message: Message) -> None:
        """What the SDK sends through: notes that the response began, and that it has a body."""
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
        transport = self._connection.corked
        transport.cork()
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            transport.uncork()

    def answer_comes(self) -> None:
        """The handler is through: the next event that the SDK writes is the answer."""
        self._answer_due = True

    def _is_answer(self, message: Message) -> bool:
        # The end of a stream comes later than the event with the answer, which is all that the
        # client waits for. Lines with a colon in front are comments that keep a stream open.
        if not message.get("more_body"):
            return True
        return self._answer_due and not message["body"].startswith(b":")

    def _is_open(self, kind: str, message: Message) -> bool:
        # A GET stream is open with its head; a POST stream with its first event, which the SDK
        # writes: what is written past it before would stand in front of that one.
        if self.method == "GET":
            return kind == "http.response.start" and self.status == 200
        return kind == "http.response.body" and bool(message.get("more_body"))

    def expect_open(self) -> asyncio.Future[None]:
        """Done once `push` may be used; call it before the SDK is told to begin the stream."""
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            if self._ended:
                self._opened.set_exception(StreamClosed("the request has ended"))
        return self._opened

    async def push(self, chunk: bytes) -> None:
        """Write whole server-sent events; waits while the client does not take them.

        Raises:
            StreamClosed: nobody is there to take them.
        """
        if not self._ended:
            try:
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            except RuntimeError as error:  # uvicorn: the response was complete already
                raise StreamClosed("the response was sent") from error
        # uvicorn drops in silence what is sent to a client that is gone.
        if self._ended or self._connection.gone:
            raise StreamClosed("the client is gone")

    @contextlib.contextmanager
    def when_gone(self, callback: Callable[[], None]) -> Generator[None]:
        """Call this if the client goes meanwhile."""
        if self._connection.gone:
            callback()
        self._connection.when_lost = callback
        try:
            yield
        finally:
            self._connection.when_lost = None

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call this when the request has ended, for whatever reason; at once if it has."""
        if self._ended:
            callback()
        else:
            self._on_end.append(callback)

    def end(self) -> None:
        """The response was sent, or the client is gone."""
        self._ended = True
        if self.place is not None:
            self.place.end()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(StreamClosed("the request has ended"))
            self._opened.exception()  # looked at: nobody may be waiting any more
        for callback in self._on_end:
            callback()
        self._on_end.clear()


def of(scope: Scope) -> RequestStream:
    """The exchange that a handler of the SDK belongs to."""
    exchange: RequestStream = scope[SCOPE_KEY]
    return exchange
