"""Byte relay between two sockets, at the pace of the slower reader; half-closes are kept."""

from __future__ import annotations

import socket

from ..io.event_loop import CLOSED, HANGUP, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..io.event_loop import Loop

PIECE = 256 * 1024  # bytes moved at a time; also all that a pair buffers in one direction

# One loop, one thread: every pair fills and empties the same buffer within one call.
_buffer = bytearray(PIECE)
_view = memoryview(_buffer)


class Side:
    """One end of a future pair, with the bytes received after its header."""

    __slots__ = ("first", "gone", "session", "sock")

    def __init__(self, sock: socket.socket, first: bytes, session: str | None) -> None:
        self.sock = sock
        self.first = first
        self.session = session
        self.gone = False  # the peer closed: nothing can be sent to it

    def is_closed(self) -> bool:
        """Whether the peer has closed its end, noticed or not."""
        if self.gone or self.sock.fileno() < 0:
            return True
        import select

        poll = select.poll()
        poll.register(self.sock, 0)
        return bool(poll.poll(0))


class _Flow:
    """One direction of a pair."""

    __slots__ = ("done", "pending", "source", "target")

    def __init__(self, source: Side, target: Side) -> None:
        self.source = source
        self.target = target
        self.pending = memoryview(source.first)  # received, not sent yet
        self.done = False  # the source has ended
        source.first = b""

    def send(self) -> None:
        """Send the pending bytes, then the end of the stream if the source has ended."""
        if self.pending:
            try:
                sent = self.target.sock.send(self.pending)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._drop_target()
                return
            self.pending = self.pending[sent:]
        if self.done and not self.pending and not self.target.gone:
            try:
                self.target.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._drop_target()

    def _drop_target(self) -> None:
        self.target.gone = True
        self.done = True
        self.pending = memoryview(b"")

    def receive(self) -> None:
        """Move one piece from the source directly to the target as far as possible."""
        try:
            size = self.source.sock.recv_into(_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
            self.source.gone = True
        if size == 0:
            self.done = True
            self.send()
            return
        sent = 0
        try:
            sent = self.target.sock.send(_view[:size])
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop_target()
            return
        if sent < size:
            self.pending = memoryview(bytes(_view[sent:size]))


class Pair:
    """Pair of an upstream and a downstream, until both directions have ended or one side closed."""

    def __init__(
        self, loop: Loop, upstream: Side, downstream: Side, ended: Callable[[Pair], None]
    ) -> None:
        self.upstream = upstream
        self.downstream = downstream
        self._loop = loop
        self._ended = ended
        self._up = _Flow(downstream, upstream)
        self._down = _Flow(upstream, downstream)
        self.is_open = True
        self._up.send()
        self._down.send()
        self._settle()

    def _settle(self) -> None:
        """Close if both directions are over; else update the watched events."""
        up, down = self._up, self._down
        idle = not up.pending and not down.pending
        over = up.done and down.done and idle
        # What a closed peer sent before is still delivered; then the other side is closed too
        over = over or (self.upstream.gone and down.done and not down.pending)
        over = over or (self.downstream.gone and up.done and not up.pending)
        if over:
            self.close()
            return
        for side, out, into, call in (
            (self.upstream, down, up, self._upstream_ready),
            (self.downstream, up, down, self._downstream_ready),
        ):
            mask = 0 if out.done or out.pending else READ
            mask |= WRITE if into.pending else 0
            # A side that has ended its half can still close altogether
            if not mask and out.done and not out.pending and not side.gone:
                mask = CLOSED
            self._loop.watch(side.sock.fileno(), mask, call)

    def _upstream_ready(self, mask: int) -> None:
        self._ready(mask, self.upstream, self._down, self._up)

    def _downstream_ready(self, mask: int) -> None:
        self._ready(mask, self.downstream, self._up, self._down)

    def _ready(self, mask: int, side: Side, out: _Flow, into: _Flow) -> None:
        if mask & WRITE or (mask & HANGUP and into.pending):
            into.send()
        if not out.done and not out.pending:
            out.receive()
        if mask & HANGUP:
            side.gone = True
        self._settle()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            for side in (self.upstream, self.downstream):
                self._loop.unwatch(side.sock.fileno())
                side.sock.close()
            self._ended(self)
