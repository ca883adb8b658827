"""Transport of a link to the relay over the streams of a program that an engine runs inside."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.incontainer import wire
from oubliette.incontainer.bridges import exec_frames

if TYPE_CHECKING:
    from collections.abc import Callable

STDOUT: Final = 1
STDERR: Final = 2
OPEN_SECONDS: Final = 30.0  # until the hello of the bridge
STDERR_BYTES: Final = 4096  # of its standard error that are logged

log = structlog.get_logger(__name__)


class BridgeTransport(asyncio.Transport):
    """Transport between the engine's stream and the user of the link.

    It buffers nothing itself: output is in the lower transport's buffer, input is passed to the
    protocol at once. So their limits apply.
    """

    def __init__(self, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self.hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._protocol: asyncio.BaseProtocol = protocol
        self._upper = protocol
        self._lower: asyncio.Transport | None = None
        self._unpacker = exec_frames.Unpacker()
        self._first = b""
        self._greeted = False
        self._said = 0
        self._eof_sent = False
        self._eof_told = False
        self._closing = False
        self._lost = False
        protocol.connection_made(self)

    def begin(self, lower: asyncio.Transport) -> None:
        """Start: the engine has accepted, and output goes to `lower` from now on."""
        self._lower = lower
        if self._closing:
            lower.abort()

    # ------------------------------------------------------------------ from the engine

    def output(self, kind: int, data: bytes) -> None:
        if kind == STDERR:
            self._aside(data)
        elif self._greeted:
            self._pieces(data)
        else:
            self._greeting(data)

    def _aside(self, data: bytes) -> None:
        room = STDERR_BYTES - self._said
        self._said += len(data)
        if room > 0:
            log.warning("bridge", stderr=data[:room].decode(errors="replace").strip())

    def _greeting(self, data: bytes) -> None:
        self._first += data
        line, newline, rest = self._first.partition(b"\n")
        if not newline and len(self._first) < wire.MAX_HEADER:
            return
        if line + newline != exec_frames.HELLO:
            # An engine may write its own error there: that python3 is missing, for example.
            reason = wire.parse_error(line + newline) or line.decode(errors="replace")[:300]
            self._lose(ConnectionRefusedError(errno.ECONNREFUSED, reason))
            return
        self._greeted = True
        self._first = b""
        if not self.hello.done():
            self.hello.set_result(None)
        self._pieces(rest)

    def _pieces(self, data: bytes) -> None:
        found = self._unpacker.feed(data)
        if found and not self._lost:
            self._upper.data_received(found)
        if self._unpacker.ended and not self._eof_told:
            self._eof_told = True
            if not self._upper.eof_received():
                self.close()

    def ended(self, error: Exception | None) -> None:
        """Note that the engine's connection is closed."""
        self._lower = None  # Python 3.11's over TLS fails in abort() after a second close()
        if not self._greeted:
            said = self._first.decode(errors="replace").strip()[:300]
            error = ConnectionRefusedError(errno.ECONNREFUSED, said or "the bridge said nothing")
        elif not self._eof_told and not self._closing:
            error = ConnectionResetError(
                errno.ECONNRESET, f"the bridge is gone: {error or 'ended'}"
            )
        elif not isinstance(error, OSError):
            error = None
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        if self._lower is not None:
            self._lower.abort()
        if not self.hello.done():
            self.hello.set_exception(error or ConnectionAbortedError(errno.ECONNABORTED, "aborted"))
            self.hello.exception()  # retrieved, in case the opener was cancelled
        self._upper.connection_lost(error)

    def pause_writing(self) -> None:
        """Pause the user's writes: the engine's buffer is full."""
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        self._upper.resume_writing()

    # ------------------------------------------------------------------ from the user

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._lower is None or self._lost or not data:
            return
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        self._lower.write(exec_frames.head(len(data)))
        self._lower.write(data)

    def write_eof(self) -> None:
        """End our direction; the other one stays open."""
        if self._lower is not None and not self._eof_sent and not self._closing:
            self._eof_sent = True
            self._lower.write(exec_frames.head(0))

    def can_write_eof(self) -> bool:
        """Return True: half-closes work over TLS too."""
        return True

    def close(self) -> None:
        """Send pending output, then close the connection: the bridge ends with its input."""
        if not self._closing:
            self._closing = True
            if self._lower is not None:
                self._lower.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._lower is not None:
            self._lower.abort()
        else:
            self._lose(None)

    def is_closing(self) -> bool:
        return self._closing or (self._lower is not None and self._lower.is_closing())

    def pause_reading(self) -> None:
        """Stop reading from the engine, which blocks the bridge."""
        if self._lower is not None and not self._closing:
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        if self._lower is not None and not self._closing:
            self._lower.resume_reading()

    def is_reading(self) -> bool:
        return self._lower is not None and self._lower.is_reading()

    def get_write_buffer_size(self) -> int:
        return 0 if self._lower is None else self._lower.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (0, 0) if self._lower is None else self._lower.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._lower is not None:
            self._lower.set_write_buffer_limits(high, low)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The default: nothing of the lower connection applies to the link."""
        _ = name
        return default


async def read_until(fd: int, complete: Callable[[bytes], bool]) -> bytes:
    """Read a pipe until `complete` or its end; it becomes non-blocking, and stays open."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    data = b""
    while not complete(data):
        turn: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, _wake, turn)
        try:
            await turn
        finally:
            loop.remove_reader(fd)
        with contextlib.suppress(BlockingIOError):
            piece = os.read(fd, 4096)
            if not piece:
                break
            data += piece
    return data


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
