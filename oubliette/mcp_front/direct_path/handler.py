"""The direct path: handling of plain tool calls without the SDK.

A call through the SDK passes two task groups, four memory streams and as many models. Here it is
decoded, passed to the tool table and answered as one document. Any request that is not completely
understood goes to the SDK with its original body (`plain_call` defines what is plain).
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
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
from oubliette.mcp_front.transport.request_body import read_body, replay

if TYPE_CHECKING:
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
"""MCP session and request id."""


class ToSdk:
    """A request that the SDK answers."""

    __slots__ = ("cancels", "receive")

    def __init__(self, receive: Receive, cancels: Key | None = None) -> None:
        self.receive = receive
        """Returns the part of the body that was read already, then the rest."""
        self.cancels = cancels
        """Call to cancel if the SDK accepts this notification."""


class _RunningCall:
    """A call that is being answered."""

    __slots__ = ("ended_by", "exchange", "session_id", "task")

    def __init__(
        self, task: asyncio.Task[object], exchange: RequestStream, session_id: str | None
    ) -> None:
        self.task = task
        self.exchange = exchange
        self.session_id = session_id
        """Its MCP session; None in the modern generation."""
        self.ended_by: tuple[int, int, str] | None = None
        """HTTP status, code and message of the error that answers it."""

    def end(self, status: int, code: int, message: str) -> None:
        if self.ended_by is None:
            self.ended_by = (status, code, message)
            self.task.cancel()

    def client_gone(self) -> None:
        """Apply the generation's rule for a client that drops its connection."""
        if self.session_id is None:
            self.end(0, 0, "")  # this is how a call is cancelled; there is no one to answer
        elif self.exchange.place is not None:
            self.exchange.place.end()  # the call continues: dropping a connection cancels nothing


class DirectPath:
    """Handler of plain calls. One for each front."""

    def __init__(self, calls: ToolCalls, sdk: Sdk, max_body: int) -> None:
        self._calls = calls
        self._sdk = sdk
        self._max_body = max_body
        self._running: set[_RunningCall] = set()
        self._by_id: dict[Key, _RunningCall] = {}
        self._keep_alives = _KeepAlives()

    async def answer(self, scope: Scope, receive: Receive, exchange: RequestStream) -> ToSdk | None:
        """Answer this POST if it is a plain call; else return what the SDK needs to answer it."""
        head = plain_call.heads(scope["headers"])
        kind = None if head is None else plain_call.generation(head)
        if head is None or kind is None:
            return ToSdk(receive)
        read: list[Message] = []
        body = await read_body(receive, read, self._max_body)
        rest = replay(read, receive)
        if body is None:
            return ToSdk(rest)
        call = plain_call.read(body, kind, head, sdk=self._sdk.loaded)
        if kind == "modern":
            if call is None or not self._calls.is_plain(call.params.name):
                return ToSdk(rest)
            await self._run(exchange, call, None)
            return None
        session_id = head[SESSION_HEADER].decode("latin-1")
        if call is None:
            request_id = plain_call.cancelled(body)
            return ToSdk(rest, None if request_id is None else _key(session_id, request_id))
        if not self._calls.is_plain(call.params.name):
            return ToSdk(rest)
        sessions = self._sdk.sessions
        if sessions is None:
            return ToSdk(rest)
        session = sessions.enter(session_id, exchange.who.context.principal)
        if session is None:
            return ToSdk(rest)
        try:
            await self._run(exchange, call, session_id)
        finally:
            sessions.leave(session)
        return None

    # ------------------------------------------------------------ cancellation
    def cancel(self, key: Key) -> None:
        """Cancel a call at its client's request."""
        running = self._by_id.get(key)
        if running is not None:
            running.end(200, REQUEST_CANCELLED, "Request cancelled")

    def session_over(self, session_id: str) -> None:
        """Cancel the calls of an MCP session that has ended."""
        for running in [each for each in self._running if each.session_id == session_id]:
            running.end(500, INTERNAL_ERROR, "Session terminated before the request completed")

    def stop(self) -> None:
        for running in list(self._running):
            running.end(200, CONNECTION_CLOSED, "Connection closed")
        self._keep_alives.stop()

    # ------------------------------------------------------------ a call
    async def _run(self, exchange: RequestStream, call: PlainCall, session_id: str | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        running = _RunningCall(task, exchange, session_id)
        key = None if session_id is None else _key(session_id, call.id)
        self._running.add(running)
        if key is not None:
            self._by_id[key] = running
        common = () if session_id is None else _of_session(session_id)
        stream = _Stream(exchange, common)
        self._keep_alives.add(stream)
        status = 200
        try:
            exchange.when_gone(running.client_gone)
            try:
                document = await self._answer_of(exchange, call, session_id)
            finally:
                exchange.when_gone(None)
        except asyncio.CancelledError:
            if running.ended_by is None:
                raise
            task.uncancel()
            status, code, message = running.ended_by
            answered = call.id if status == 200 else None
            document = plain_answer.with_error(answered, code, message)
        finally:
            self._running.discard(running)
            if key is not None and self._by_id.get(key) is running:
                del self._by_id[key]
            self._keep_alives.remove(stream)
            begun = stream.close()
        if not status:
            return
        if begun:
            await stream.finish(document)
            return
        length = (b"content-length", b"%d" % len(document))
        await exchange.send_document(status, [_JSON, length, *common], document)

    async def _answer_of(
        self, exchange: RequestStream, call: PlainCall, session_id: str | None
    ) -> bytes:
        name, modern = call.params.name, session_id is None
        try:
            answer = await self._calls.ask(exchange, session_id, name, call.arguments)
            return plain_answer.answered(call.id, answer, modern=modern)
        except Exception as error:
            return plain_answer.with_result(call.id, tool_failure(error, name), modern=modern)


class _Stream:
    """Stream of comments that is begun if an answer takes long."""

    __slots__ = ("_begun", "_context", "_exchange", "_headers", "_pings")

    def __init__(self, exchange: RequestStream, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._exchange = exchange
        self._headers = headers
        self._begun = False
        self._context = copy_context()  # the timer that begins it is that of all
        self._pings: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin the stream; once."""
        self._pings = asyncio.get_running_loop().create_task(self._ping(), context=self._context)

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
        """Prevent the stream from beginning; return whether it has begun."""
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


class _KeepAlives:
    """One timer for all calls: it begins their streams after `SILENCE` seconds."""

    def __init__(self) -> None:
        self._due: dict[_Stream, float] = {}
        """Streams that have not begun, with their time on the loop's clock, the earliest first."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: _Stream) -> None:
        """Begin this stream when it is due."""
        loop = asyncio.get_running_loop()
        self._due[stream] = at = loop.time() + SILENCE
        if self._timer is None:
            self._timer = loop.call_at(at, self._begin, context=Context())

    def remove(self, stream: _Stream) -> None:
        self._due.pop(stream, None)

    def stop(self) -> None:
        """Begin no further streams."""
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
