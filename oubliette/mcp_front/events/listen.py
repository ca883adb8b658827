"""ListenService, which answers `caller_listen` with a stream of events or as a long poll.

The events are read from the log, and a listener is a cursor on it. The stream is the response of
the held-open call; a client that does not accept events on a response gets them as the result of a
long poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.actors.caller.messages import SUPERSEDED
from oubliette.mcp_front.current_call import current_call
from oubliette.mcp_front.events import event_format
from oubliette.mcp_front.events.listener_client import ListenerClient
from oubliette.mcp_front.transport.request_stream import StreamClosed
from oubliette.tools.caller_listen import MAX_POLL_SECONDS, POLL_SECONDS, CallerListenResult
from oubliette.tools.tools_offered_by_caller import normalised

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from oubliette.config.schema import CallersConfig
    from oubliette.kit import Ref
    from oubliette.mcp_front.current_call import CurrentCall
    from oubliette.mcp_front.quotas import Quotas
    from oubliette.mcp_front.transport.request_stream import RequestStream
    from oubliette.tools.caller_listen import CallerListen
    from oubliette.tools.spec import CallContext

STOPPING: Final = "server stopping"
GONE: Final = "gone"
OVER: Final = "max_seconds"
BAD_KEY: Final = "key revoked or expired"

_CHECK_SECONDS: Final = 15.0  # between two checks of the key of a quiet stream
_OPEN_SECONDS: Final = 5.0  # for the response to begin
_STREAM_BYTES: Final = 1024 * 1024


class ListenService:
    """Implementation of `caller_listen` for the tool table (`ToolServices.listen`)."""

    def __init__(
        self,
        callers: Ref,
        find: Callable[[str], Ref],
        quotas: Quotas,
        config: CallersConfig,
    ) -> None:
        self._callers = callers
        self._find = find
        self._quotas = quotas
        self._config = config
        self._links: set[ListenerClient] = set()
        self._stopping = False

    def link(self, context: CallContext, caller_id: str) -> ListenerClient:
        return ListenerClient(
            self._callers, self._find, context.principal, caller_id, context.scope.project
        )

    @contextlib.asynccontextmanager
    async def counted(self, link: ListenerClient) -> AsyncGenerator[None]:
        """Close this listener when the server stops, as long as the context is open."""
        self._links.add(link)
        if self._stopping:
            link.close(STOPPING, orderly=True)
        try:
            yield
        finally:
            self._links.discard(link)

    def stop(self) -> None:
        """End all listeners with `server stopping`, and every later one at once."""
        self._stopping = True
        for link in list(self._links):
            link.close(STOPPING, orderly=True)

    async def __call__(self, context: CallContext, params: CallerListen) -> CallerListenResult:
        """Answer the current call; return when the listener or the long poll has ended.

        Outside of an HTTP request, as in a program that embeds the server, it is always a poll.

        Raises:
            LimitExceeded: the principal has the maximum of listeners.
            StorageUnavailable: the database of all nodes does not answer.
            InvalidParameter: the provided tools are invalid.
        """
        call = current_call.get(None)
        tools = None
        if params.caller_tools is not None:
            tools = normalised(params.caller_tools, params.caller_id, self._config)
        principal = context.principal
        slot = self._quotas.take_listener(principal)
        # From here on the call counts as a listener, not as a call in flight.
        place = call.exchange.place if call is not None else None
        if place is not None:
            place.leave()
        link = self.link(context, params.caller_id)
        try:
            await slot.claim()
            async with self.counted(link):
                streams = call is not None and call.takes_events
                opened = await link.open(
                    after=params.after,
                    provide=not params.observe,
                    stream=streams,
                    tools=tools,
                    # A client that resumes a stream may have failed while it handled a request.
                    again=streams,
                )
                link.cursor = opened.cursor
                if call is not None:
                    # When the client disconnects, the listener ends, and with it any wait
                    call.exchange.on_end(lambda: link.close(GONE))
                if call is not None and streams:
                    return await self._stream(call, link, opened.cursor, params.max_seconds)
                return await self._poll(link, opened.cursor, params.max_seconds)
        except asyncio.CancelledError:
            if call is None or await call.exchange.who.still_good():
                raise
            return CallerListenResult(events=(), next=link.cursor, ended=BAD_KEY)
        finally:
            link.close(GONE)
            slot.end()
            if place is not None:
                place.back()

    async def _poll(
        self, link: ListenerClient, cursor: int, seconds: float | None
    ) -> CallerListenResult:
        wait = min(POLL_SECONDS if seconds is None else seconds, MAX_POLL_SECONDS)
        batch = await link.next(cursor, wait, event_format.MAX_POLLED)
        link.close("polled", orderly=True)
        events, cursor = event_format.polled(batch.events, batch.redelivered, batch.next)
        return CallerListenResult(events=events, next=cursor, ended=batch.ended)

    async def _stream(
        self, call: CurrentCall, link: ListenerClient, cursor: int, seconds: float | None
    ) -> CallerListenResult:
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(
                seconds, lambda: link.close(OVER, orderly=True)
            )
        try:
            await self._begin(call, link, cursor)
            cursor, ended = await self.pump(call.exchange, link, cursor)
        except StreamClosed:
            ended = GONE
        finally:
            if timer is not None:
                timer.cancel()
        return CallerListenResult(events=(), next=cursor, ended=ended)

    async def _begin(self, call: CurrentCall, link: ListenerClient, cursor: int) -> None:
        """Send the first event through the SDK, so that it begins the stream."""
        import mcp_types as t

        opened = call.exchange.expect_open()
        data = {"type": "listening", "caller_id": link.caller_id, "seq": cursor}
        await call.context.session.send_notification(
            t.LoggingMessageNotification(
                params=t.LoggingMessageNotificationParams(
                    level="info", logger=event_format.SESSION_LOGGER, data=data
                )
            ),
            related_request_id=call.context.request_id,
        )
        async with asyncio.timeout(_OPEN_SECONDS):
            await asyncio.shield(opened)

    async def pump(
        self,
        exchange: RequestStream,
        link: ListenerClient,
        cursor: int,
        event_id: Callable[[int], str] | None = None,
    ) -> tuple[int, str]:
        """Write events until the listener ends; return its cursor and the reason for its end.

        With `event_id`, which is called with the `seq` of each event, they have ids.
        """
        while True:
            batch = await link.next(cursor, _CHECK_SECONDS, _STREAM_BYTES)
            if not await exchange.who.still_good():
                return cursor, BAD_KEY
            if batch.events:
                frames = b"".join(
                    event_format.event_frame(
                        event,
                        redelivered=event.seq in batch.redelivered,
                        event_id=None if event_id is None else event_id(event.seq),
                    )
                    for event in batch.events
                )
                try:
                    await exchange.push(frames)
                except StreamClosed:
                    return cursor, GONE
            cursor = link.cursor = batch.next
            if batch.ended is not None:
                return cursor, batch.ended


__all__ = ["BAD_KEY", "GONE", "OVER", "STOPPING", "SUPERSEDED", "ListenService"]
