"""The direct path: plain calls of tools, answered without the SDK.

A call through the SDK passes two task groups, four memory streams and as many models. Here it is
decoded, handed to the tool table and answered as one document. Everything else, and whatever is
not understood whole, goes to the SDK with its body as it came (`plain_call` says what is plain).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from oubliette.mcp_front.direct_path import plain_answer, plain_call
from oubliette.mcp_front.protocol import (
    CONNECTION_CLOSED,
    REQUEST_CANCELLED,
    SESSION_HEADER,
    RequestId,
    correlated,
)
from oubliette.mcp_front.transport.error_responses import INTERNAL_ERROR, tool_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Receive, Scope

    from oubliette.mcp_front.calls import ToolCalls
    from oubliette.mcp_front.direct_path.plain_call import PlainCall
    from oubliette.mcp_front.sdk import Sdk
    from oubliette.mcp_front.transport.request_stream import RequestStream

SILENCE: Final = 15.0
"""Seconds without an answer after which a stream is begun: proxies cut idle connections."""
_PING: Final = b": ping\r\n\r\n"
_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream")
_UNCACHED: Final = (b"cache-control", b"no-cache, no-transform")

Key = tuple[str, RequestId]
"""MCP session, request id."""


class Handover:
    """A request that the SDK answers."""

    __slots__ = ("cancels", "receive")

    def __init__(self, receive: Receive, cancels: Key | None = None) -> None:
        self.receive = receive
        """Gives what was read already, then the rest."""
        self.cancels = cancels
        """A call that is to end, if the SDK accepts the notification."""


class _Flight:
    """A call that is being answered."""

    __slots__ = ("ended_by", "exchange", "session_id", "task")

    def __init__(
        self, task: asyncio.Task[object], exchange: RequestStream, session_id: str | None
    ) -> None:
        self.task = task
        self.exchange = exchange
        self.session_id = session_id
        """Its MCP session; None in the newer generation."""
        self.ended_by: tuple[int, int, str] | None = None
        """(HTTP status, code, message) of the error that is its answer."""

    def end(self, status: int, code: int, message: str) -> None:
        """Stop the tool, and answer with this."""
        if self.ended_by is None:
            self.ended_by = (status, code, message)
            self.task.cancel()

    def client_gone(self) -> None:
        """What the generation says about a client that drops its connection."""
        if self.session_id is None:
            self.end(0, 0, "")  # it is how a call is cancelled; nobody is there to be told
        elif self.exchange.place is not None:
            self.exchange.place.end()  # the call goes on: dropping a connection cancels nothing


class DirectPath:
    """Answers plain calls. One for each front."""

    def __init__(self, calls: ToolCalls, sdk: Sdk, max_body: int) -> None:
        self._calls = calls
        self._sdk = sdk
        self._max_body = max_body
        self._flights: set[_Flight] = set()
        self._by_id: dict[Key, _Flight] = {}
        self._silences = _Silences()

    async def answer(
        self, scope: Scope, receive: Receive, exchange: RequestStream
    ) -> Handover | None:
        """Answer this POST if it is a plain call; else what the SDK needs to do so."""
        head = plain_call.heads(scope["headers"])
        kind = None if head is None else plain_call.generation(head)
        if head is None or kind is None:
            return Handover(receive)
        read: list[Message] = []
        body = await self._body(receive, read)
        rest = _replay(read, receive)
        if body is None:
            return Handover(rest)
        call = plain_call.read(body, kind, head, sdk=self._sdk.loaded)
        if kind == "modern":
            if call is None or not self._calls.is_plain(call.params.name):
                return Handover(rest)
            await self._fly(exchange, call, None)
            return None
        session_id = head[SESSION_HEADER].decode("latin-1")
        if call is None:
            request_id = plain_call.cancelled(body)
            return Handover(rest, None if request_id is None else _key(session_id, request_id))
        if not self._calls.is_plain(call.params.name):
            return Handover(rest)
        sessions = self._sdk.sessions
        if sessions is None:
            return Handover(rest)
        session = sessions.enter(session_id, exchange.who.context.principal)
        if session is None:
            return Handover(rest)
        try:
            await self._fly(exchange, call, session_id)
        finally:
            sessions.leave(session)
        return None

    async def _body(self, receive: Receive, read: list[Message]) -> bytes | None:
        body = b""
        while True:
            message = await receive()
            read.append(message)
            if message["type"] != "http.request":
                return None
            body = body + message["body"] if body else message["body"]
            if len(body) > self._max_body:
                return None
            if not message["more_body"]:
                return body

    # ------------------------------------------------------------ ends
    def cancel(self, key: Key) -> None:
        """The client gave this call up."""
        flight = self._by_id.get(key)
        if flight is not None:
            flight.end(200, REQUEST_CANCELLED, "Request cancelled")

    def session_over(self, session_id: str) -> None:
        """The client ended its MCP session."""
        for flight in [each for each in self._flights if each.session_id == session_id]:
            flight.end(500, INTERNAL_ERROR, "Session terminated before the request completed")

    def stop(self) -> None:
        """End the calls that are left."""
        for flight in list(self._flights):
            flight.end(200, CONNECTION_CLOSED, "Connection closed")
        self._silences.stop()

    # ------------------------------------------------------------ a call
    async def _fly(self, exchange: RequestStream, call: PlainCall, session_id: str | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        flight = _Flight(task, exchange, session_id)
        key = None if session_id is None else _key(session_id, call.id)
        self._flights.add(flight)
        if key is not None:
            self._by_id[key] = flight
        common = () if session_id is None else _of_session(session_id)
        stream = _Stream(exchange, common)
        self._silences.add(stream)
        status = 200
        try:
            with exchange.when_gone(flight.client_gone):
                document = await self._run(exchange, call, session_id)
        except asyncio.CancelledError:
            if flight.ended_by is None:
                raise
            task.uncancel()
            status, code, message = flight.ended_by
            told = call.id if status == 200 else None
            document = plain_answer.with_error(told, code, message)
        finally:
            self._flights.discard(flight)
            if key is not None and self._by_id.get(key) is flight:
                del self._by_id[key]
            self._silences.remove(stream)
            begun = stream.close()
        if not status:
            return
        if begun:
            await stream.finish(document)
            return
        length = (b"content-length", b"%d" % len(document))
        await exchange.send_document(status, [_JSON, length, *common], document)

    async def _run(self, exchange: RequestStream, call: PlainCall, session_id: str | None) -> bytes:
        name, modern = call.params.name, session_id is None
        try:
            answer = await self._calls.ask(exchange, session_id, name, call.arguments)
            return plain_answer.answered(call.id, answer, modern=modern)
        except Exception as error:
            return plain_answer.with_result(call.id, tool_failure(error, name), modern=modern)


class _Stream:
    """Begins a stream of comments where an answer takes long; closed when it is there."""

    __slots__ = ("_begun", "_exchange", "_headers", "_pings")

    def __init__(self, exchange: RequestStream, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._exchange = exchange
        self._headers = headers
        self._begun = False
        self._pings: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin it; once."""
        self._pings = asyncio.get_running_loop().create_task(self._ping())

    async def _ping(self) -> None:
        headers = [_EVENTS, *(self._headers or (_UNCACHED,)), (b"x-accel-buffering", b"no")]
        await self._exchange.send(
            {"type": "http.response.start", "status": 200, "headers": headers}
        )
        self._begun = True
        while True:
            await self._send(_PING)
            await asyncio.sleep(SILENCE)

    def close(self) -> bool:
        """Begin none any more; whether one was begun."""
        if self._pings is not None:
            self._pings.cancel()
        return self._begun

    async def finish(self, document: bytes) -> None:
        """Send the answer as the last event."""
        assert self._pings is not None
        await asyncio.wait([self._pings])
        await self._send(b"event: message\r\ndata: %b\r\n\r\n" % document, more=False)

    async def _send(self, chunk: bytes, *, more: bool = True) -> None:
        await self._exchange.send({"type": "http.response.body", "body": chunk, "more_body": more})


class _Silences:
    """Begins the streams of calls that have taken `SILENCE` seconds; with one timer for all."""

    def __init__(self) -> None:
        self._due: dict[_Stream, float] = {}
        """Streams that are not begun, the first due first; with the loop's second."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: _Stream) -> None:
        """Begin this one in time."""
        loop = asyncio.get_running_loop()
        self._due[stream] = at = loop.time() + SILENCE
        if self._timer is None:
            self._timer = loop.call_at(at, self._begin)

    def remove(self, stream: _Stream) -> None:
        """Its call has ended."""
        self._due.pop(stream, None)

    def stop(self) -> None:
        """Begin none any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._due:
            stream, at = next(iter(self._due.items()))
            if at > loop.time():
                self._timer = loop.call_at(at, self._begin)
                return
            del self._due[stream]
            stream.begin()


def _of_session(session_id: str) -> tuple[tuple[bytes, bytes], ...]:
    return _UNCACHED, (SESSION_HEADER, session_id.encode("latin-1"))


def _key(session_id: str, request_id: RequestId) -> Key:
    return session_id, correlated(request_id)


def _replay(read: list[Message], receive: Receive) -> Callable[[], Awaitable[Message]]:
    async def replay() -> Message:
        return read.pop(0) if read else await receive()

    return replay
