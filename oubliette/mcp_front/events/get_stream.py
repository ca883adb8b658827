"""GET streams of handshake clients that never call `caller_listen`.

Such a client names its caller_id at session_spawn or session_message; from then on its GET stream
carries that caller's events, unless another listener of that caller is open. A newer listener
supersedes the stream, as it does any other.

A session has one GET stream. A newer one takes over at once, because the older one may be dead
without a sign. The id of each event has the cursors of all callers of the stream, so that a client
which returns it (`Last-Event-ID`) gets what it has not read; one that returns none, after a stream
that was taken over, has read nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from oubliette import ids
from oubliette.actors.caller.messages import SUPERSEDED
from oubliette.errors import InvalidParameter, LimitExceeded, OublietteError
from oubliette.mcp_front.events.listen import BAD_KEY, GONE, STOPPING
from oubliette.mcp_front.transport.request_stream import StreamClosed

if TYPE_CHECKING:
    from oubliette.mcp_front.events.listen import ListenService
    from oubliette.mcp_front.quotas import ListenerSlot, Quotas
    from oubliette.mcp_front.transport.request_stream import RequestStream

TAKE_OVER_SECONDS: Final = 5.0
"""Seconds for the end of the stream that a newer one replaces; nothing in it waits for a client."""
_MAX_DIGITS: Final = 18
BINDING_TOOLS: Final = frozenset({"session_spawn", "session_message"})

log = structlog.get_logger("oubliette.front")


@dataclass
class _McpSession:
    principal: str
    cursors: dict[str, int] = field(default_factory=dict[str, int])
    """Bound caller_ids, each with the cursor of its last event on an earlier stream."""
    sent: dict[str, int] = field(default_factory=dict[str, int])
    """Those with events on the open stream, each with the cursor of the last one."""
    began: dict[str, int] = field(default_factory=dict[str, int])
    """Cursors with which the last stream began."""
    read: dict[str, int] = field(default_factory=dict[str, int])
    """Cursors of what the client has read, where it is less than was sent; for the next stream."""
    resumed: set[str] = field(default_factory=set[str])
    """Those of them with an earlier stream: the events that it lost are unknown."""
    stream: RequestStream | None = None
    pumps: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])


class GetStreams:
    """Binding of callers to the GET streams of their MCP sessions."""

    def __init__(self, listening: ListenService, quotas: Quotas) -> None:
        self._listening = listening
        self._quotas = quotas
        self._sessions: dict[str, _McpSession] = {}
        self._gets: dict[tuple[str, str], RequestStream] = {}
        """Principal and MCP session → its GET request, also before its stream is open."""
        self._stopping = False

    async def before_call(
        self, exchange: RequestStream, session_id: str, tool: str, arguments: dict[str, Any] | None
    ) -> None:
        """Bind the caller that this call names to the GET stream of its MCP session."""
        if tool not in BINDING_TOOLS or arguments is None:
            return
        caller_id = _caller_id(arguments)
        if caller_id is None:
            return
        context = exchange.who.context
        session = self._session(session_id, context.principal)
        if caller_id in session.cursors:
            return
        if len(session.cursors) >= self._quotas.max_listeners:
            log.warning("stream not bound", caller_id=caller_id, reason="it has the most allowed")
            return
        try:
            state = await self._listening.link(context, caller_id).state()
        except OublietteError as error:
            # The call itself may not need the stream; if it does, its own error reports it.
            log.warning("stream not bound", caller_id=caller_id, reason=error.message)
            return
        if state.provided or caller_id in session.cursors:
            return
        session.cursors[caller_id] = state.head
        self._start(session, caller_id)

    async def take_over(self, exchange: RequestStream, session_id: str) -> bool:
        """End the GET request that this session has, for a newer one; return whether it had one."""
        key, had = (exchange.who.context.principal, session_id), False
        with contextlib.suppress(TimeoutError):  # then the SDK refuses the newer one
            async with asyncio.timeout(TAKE_OVER_SECONDS):
                while (older := self._gets.get(key)) is not None:
                    ended = asyncio.Event()
                    older.on_end(ended.set)
                    older.cut()
                    await ended.wait()
                    had = True
        self._gets[key] = exchange
        exchange.on_end(lambda: self._over(key, exchange))
        return had

    def _over(self, key: tuple[str, str], exchange: RequestStream) -> None:
        if self._gets.get(key) is exchange:
            del self._gets[key]

    async def opened(
        self,
        exchange: RequestStream,
        session_id: str,
        last_event_id: bytes | None = None,
        *,
        took_over: bool = False,
    ) -> None:
        """Send the bound callers' events on this GET stream, once it is open."""
        try:
            await asyncio.shield(exchange.expect_open())
        except StreamClosed:
            return
        principal = exchange.who.context.principal
        session = self._session(session_id, principal)
        session.stream = exchange
        session.read = _cursors(last_event_id)
        if took_over and not session.read:
            session.read = session.began.copy()
        exchange.on_end(lambda: self._closed(session, exchange))
        for caller_id in list(session.cursors):
            self._start(session, caller_id)

    def ended(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    async def stop(self) -> None:
        """Wait for the end of the pumps; their listeners are closed already."""
        self._stopping = True
        pumps = [pump for session in self._sessions.values() for pump in session.pumps.values()]
        if pumps:
            await asyncio.wait(pumps, timeout=1.0)
        for pump in pumps:
            pump.cancel()

    def _session(self, session_id: str, principal: str) -> _McpSession:
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            session = self._sessions[session_id] = _McpSession(principal)
        return session

    def _start(self, session: _McpSession, caller_id: str) -> None:
        if session.stream is None or caller_id in session.pumps or self._stopping:
            return
        try:
            slot = self._quotas.take_listener(session.principal)
        except LimitExceeded as error:
            log.warning("stream not bound", caller_id=caller_id, reason=error.message)
            return
        session.pumps[caller_id] = asyncio.get_running_loop().create_task(
            self._pump(session, session.stream, caller_id, slot), name=f"get stream of {caller_id}"
        )

    async def _pump(
        self, session: _McpSession, stream: RequestStream, caller_id: str, slot: ListenerSlot
    ) -> None:
        link = self._listening.link(stream.who.context, caller_id)
        cursor, again = session.cursors[caller_id], caller_id in session.resumed
        cursor = min(cursor, session.read.pop(caller_id, cursor))
        session.resumed.add(caller_id)
        session.sent.pop(caller_id, None)

        def event_id(seq: int) -> str:
            session.sent[caller_id] = seq
            return ",".join(f"{name}={sent}" for name, sent in session.sent.items())

        stream.on_end(lambda: link.close(GONE))
        try:
            await slot.claim()
            async with self._listening.counted(link):
                opened = await link.open(after=cursor, provide=True, stream=True, again=again)
                session.began[caller_id] = opened.cursor
                cursor, ended = await self._listening.pump(stream, link, opened.cursor, event_id)
            if ended in {SUPERSEDED, BAD_KEY}:
                session.cursors.pop(caller_id, None)
            elif caller_id in session.cursors:
                session.cursors[caller_id] = cursor
        except StreamClosed:
            return
        except OublietteError as error:
            log.warning("stream broken", caller_id=caller_id, reason=error.message)
        finally:
            link.close(STOPPING if self._stopping else GONE)
            session.pumps.pop(caller_id, None)
            slot.end()
            if caller_id in session.cursors and session.stream is not stream:
                self._start(session, caller_id)  # the client came back before this stream had ended

    def _closed(self, session: _McpSession, exchange: RequestStream) -> None:
        if session.stream is exchange:
            session.stream = None


def _cursors(last_event_id: bytes | None) -> dict[str, int]:
    """Return the cursors in the id of an event; none of what is not an id of ours."""
    found: dict[str, int] = {}
    for name, _, seq in (part.partition(b"=") for part in (last_event_id or b"").split(b",")):
        if not seq.isdigit() or len(seq) > _MAX_DIGITS:
            return {}
        found[name.decode("latin-1")] = int(seq)
    return found


def _caller_id(arguments: dict[str, Any]) -> str | None:
    """Return the valid caller_id of a call, or None; the one in `context` takes precedence."""
    context = arguments.get("context")
    found: object = None
    if isinstance(context, dict):
        found = cast("dict[str, Any]", context).get("caller_id")
    if found is None:
        found = arguments.get("caller_id")
    if not isinstance(found, str):
        return None
    try:
        return ids.check_caller_id(found)
    except InvalidParameter:
        return None
