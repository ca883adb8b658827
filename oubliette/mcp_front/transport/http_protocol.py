"""Connections with deadlines, on uvicorn's protocols, so that no client can hold them for ever.

uvicorn waits for ever for the head of a first request, for its body, and for a client that does not
read. Here each of these has a deadline. A client that reads nothing of what was written to it for
`stall` seconds is disconnected, for any kind of response.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import structlog

from oubliette.kit.fair_loop import working_for
from oubliette.mcp_front.transport.open_connections import OpenConnections
from oubliette.mcp_front.transport.taken_connection import TakenConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from oubliette.mcp_front.transport.h11_connection import (
        H11Connection as _Parsing,  # or HttptoolsConnection
    )
else:
    _Parsing = object

Phase = Literal["head", "body", "rest"]
Parser = Literal["httptools", "h11"]
"""Parser of requests; httptools is several times as fast, and not built for every machine."""

log = structlog.get_logger("oubliette.front")

MAX_CONNECTIONS: Final = 4096
STRANGER_KEEP_ALIVE: Final = 3
"""Seconds that a connection which has shown no good key is kept after an answer."""
STRANGER_RATE: Final = 20.0
"""Requests a second of a connection that has shown no good key; the next one waits."""
STRANGER_BURST: Final = 40  # of these, at once
STATE_KEY: Final = "oubliette.connection"
"""Key of the connection in a request's `scope["state"]`."""

_LAST_WORDS: Final = (
    b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b"
)
_TIMED_OUT: Final = b"408 Request Timeout"
_BAD_REQUEST: Final = b"400 Bad Request"


def half_of_all_files() -> int:
    """Return half of the limit on open files: the rest is for the log and the agents' links."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(MAX_CONNECTIONS, soft // 2 if soft > 0 else MAX_CONNECTIONS))


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds; one limit for each way to keep a connection busy without progress."""

    head: float = 10.0
    """From the connection, or the first byte of a later request, to the end of its head."""
    body: float = 30.0
    """From the end of the head to the end of the body."""
    pause: float = 10.0
    """Between two pieces of a body."""
    rest: float = 5.0
    """For the rest of a body that was answered before it was complete."""
    stall: float = 5.0
    """For a client to read any part of the pending output."""
    max_connections: int = field(default_factory=half_of_all_files)
    """A further connection takes the place of another (`OpenConnections`)."""

    def of(self, phase: Phase) -> float:
        return self.head if phase == "head" else self.body if phase == "body" else self.rest


class CorkedTransport:
    """Transport that can hold back output, to send a head and its body in one write."""

    __slots__ = ("_held", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the data, or keep it until `uncork`."""
        if self._held is None:
            self._transport.write(data)
        else:
            self._held.append(data)

    def is_closing(self) -> bool:
        """Whether output does not reach the client any more."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close once all output is sent."""
        self.uncork()
        self._transport.close()

    def cork(self) -> None:
        """Keep output until `uncork`."""
        if self._held is None:
            self._held = []

    def uncork(self) -> None:
        """Send the kept output in one write."""
        held, self._held = self._held, None
        if held:
            self._transport.write(b"".join(held))


class GuardedProtocol(_Parsing):
    """One connection. `guarded` combines it with a parser and sets the first attributes."""

    deadlines: Deadlines
    table: OpenConnections
    corked: CorkedTransport
    on_gone: Callable[[], None]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, STATE_KEY: self}, _loop)
        self._phase: Phase | None = None
        self._phase_timer: asyncio.TimerHandle | None = None
        self._phase_ends = 0.0
        self._begun = False
        self._principal = ""
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._deaf = False
        self._unhurried = False
        self._taken: TakenConnection | None = None
        self._paid_until = 0.0
        self.when_lost: Callable[[], None] | None = None
        """Called once if the connection is lost; set and cleared by the current request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of a request."""
        self.table.add(self)
        self.corked = CorkedTransport(transport)
        super().connection_made(cast("asyncio.Transport", self.corked))
        self.timeout_keep_alive = STRANGER_KEEP_ALIVE
        self._enter("head")

    def admitted(self, principal: str) -> None:
        """Keep the connection open as one of this principal: it has shown a good key.

        The current task, and what is read from then on, works for the principal.
        """
        self.table.admitted(self, principal)
        working_for.set(principal)
        if principal != self._principal and not self.flow.read_paused:
            self._principal = principal
            self.transport.pause_reading()
            self.transport.resume_reading()
        self.timeout_keep_alive = self.config.timeout_keep_alive

    async def in_rate(self) -> None:
        """Wait until a connection that has shown no good key may have another request answered."""
        if self.table.is_known(self):
            return
        now = self.loop.time()
        self._paid_until = max(self._paid_until, now) + 1 / STRANGER_RATE
        wait = self._paid_until - STRANGER_BURST / STRANGER_RATE - now
        if wait > 0:
            await asyncio.sleep(wait)

    @property
    def unused(self) -> bool:
        """Whether it waits for its client: for a request, or for the rest of a body."""
        if self._taken is not None:
            return False
        cycle = self.cycle
        if cycle is None or cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            return True
        return bool(cycle.more_body) and not self._unhurried

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self._enter(None)
        self._stop_stall_timer()
        if self._taken is not None:
            self._taken.lost()
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()
        self.on_gone()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and determine what is expected next."""
        if self._deaf:
            return
        if self._taken is not None:
            self._taken.received(data)
            return
        self._date()
        before = self._phase
        super().data_received(data)
        if not self._deaf:
            self._look(idle="head")
            self._begun = self._phase == "head"
            if self._phase == before == "body":
                self._set_timer()  # progress: there is time for the next piece

    def eof_received(self) -> None:
        """Answer with an error if the client has ended in the middle of a request."""
        if self._deaf:
            return
        if self._phase == "body" and not self._begins_answer():
            self.send_400_response("The request ended before its body was complete.")
        elif self._phase == "head" and self._begun:
            self.send_400_response("The request ended before its head was complete.")

    def on_response_complete(self) -> None:
        """Expect nothing after an answer, or the rest of a body."""
        self._unhurried = False
        super().on_response_complete()
        self._look(idle=None)

    def unhurried(self) -> None:
        """Let the body of the current request take its time: what it is for sets the pace."""
        self._unhurried = True
        self._set_timer()

    def take_over(self) -> TakenConnection:
        """End HTTP on this connection, after a request that asks for another protocol."""
        self._enter(None)
        self.cycle.disconnected = True  # it is not answered in HTTP
        self._taken = TakenConnection(
            cast("asyncio.Transport", self.corked), self.flow, self.unparsed()
        )
        return self._taken

    def _look(self, idle: Phase | None) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self._enter("rest" if self.body_is_coming() else idle)
        else:
            self._enter("body" if cycle.more_body else None)

    def _enter(self, phase: Phase | None) -> None:
        if phase is self._phase:
            return
        self._phase = phase
        if phase is not None:
            self._phase_ends = self.loop.time() + self.deadlines.of(phase)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None
        if self._phase is not None and not (self._phase == "body" and self._unhurried):
            ends = self._phase_ends
            if self._phase == "body":
                ends = min(ends, self.loop.time() + self.deadlines.pause)
            self._phase_timer = self.loop.call_at(ends, self._too_slow)

    def _too_slow(self) -> None:
        if count := self.table.due("connection too slow"):
            log.info("connection too slow", phase=self._phase, client=self.client, count=count)
        if self.transport.is_closing():
            return
        if self._phase == "rest" or self._begins_answer():
            self.transport.abort()
        else:
            self._farewell(_TIMED_OUT, f"The {self._phase} of the request did not come in time.")

    def _begins_answer(self) -> bool:
        cycle = self.cycle
        return cycle is not None and cycle.response_started and not cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def send_400_response(self, msg: str) -> None:
        """Answer that this is not HTTP; uvicorn's own answer would often be lost in a reset."""
        self._farewell(_BAD_REQUEST, msg)

    def _farewell(self, status: bytes, why: str) -> None:
        """Send this error, read nothing more, and close once the client has, or after a moment."""
        self._deaf = True
        self._enter("rest")
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            cycle.disconnected = True  # its answer is not for this client any more
            cycle.message_event.set()
        body = why.encode()
        self.transport.write(_LAST_WORDS % (status, len(body), body))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    @property
    def gone(self) -> bool:
        """Whether output does not reach the client any more."""
        return self.transport.is_closing()

    def pause_writing(self) -> None:
        """Check that the client, which reads slower than we write, reads at all."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.deadlines.stall, self._stalled)

    def resume_writing(self) -> None:
        """End that check: the client has caught up."""
        self._stop_stall_timer()
        super().resume_writing()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stalled(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent = unsent
            self._stall_timer = self.loop.call_later(self.deadlines.stall, self._stalled)
            return
        if count := self.table.due("connection stalled"):
            log.info("connection stalled", client=self.client, unsent=unsent, count=count)
        self._stall_timer = None
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, whether or not the client reads."""
        super().timeout_keep_alive_handler()
        if self._stall_timer is None and self.transport.get_write_buffer_size():
            self._stall_timer = self.loop.call_later(self.deadlines.stall, self._stalled)

    def _date(self) -> None:
        """Keep the Date header correct without a periodic timer (RFC 9110, 6.6.1)."""
        now = int(time.time())
        if now != getattr(self.server_state, "oubliette_second", 0):
            self.server_state.oubliette_second = now  # type: ignore[attr-defined]
            self.server_state.default_headers = [
                (b"date", formatdate(now, usegmt=True).encode()),
                *self.config.encoded_headers,
            ]


def connection_of(scope: Scope) -> GuardedProtocol:
    connection: GuardedProtocol = scope["state"][STATE_KEY]
    return connection


def fastest() -> Parser:
    return "httptools" if find_spec("httptools") else "h11"


def guarded(
    limits: Deadlines, gone: Callable[[], None], parser: Parser | None = None
) -> type[GuardedProtocol]:
    """Return the protocol with these deadlines; `gone` is called after each connection's end."""
    if (parser or fastest()) == "httptools":
        from oubliette.mcp_front.transport.httptools_connection import (
            HttptoolsConnection as Parsing,
        )
    else:
        from oubliette.mcp_front.transport.h11_connection import H11Connection as Parsing
    table = OpenConnections(limits.max_connections)
    own = {"deadlines": limits, "table": table, "on_gone": staticmethod(gone)}
    return cast("type[GuardedProtocol]", type("Guarded", (GuardedProtocol, Parsing), own))
