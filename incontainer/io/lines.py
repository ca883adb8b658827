"""Line streams over non-blocking descriptors: the agent's stdio and the relay's socket."""

from __future__ import annotations

import os

from ..wire import LineReader, OversizeLine
from .event_loop import HANGUP, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .event_loop import Loop

CHUNK = 256 * 1024  # bytes of one read or write
HIGH_WATER = 32 << 20  # bytes waiting for a slow reader; above it reading pauses
LOW_WATER = 8 << 20  # bytes; below it reading resumes


class Lines:
    """Reader of lines from one descriptor and writer of bytes to another (or the same).

    `on_line` is called for each line, `on_closed(reason)` when either side is gone, and
    `on_full(full)` when what waits to be written passes the high or the low water mark.
    Descriptors are the owner's: `close` only stops watching them.
    """

    def __init__(
        self,
        loop: Loop,
        read_fd: int,
        write_fd: int,
        *,
        on_line: Callable[[bytes | OversizeLine], None],
        on_closed: Callable[[str], None],
        on_full: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_line = on_line
        self._on_closed = on_closed
        self._on_full = on_full
        self._reader = LineReader()
        self._out = bytearray()
        self._full = False
        self._paused = False
        self._read_ended = False
        self.closed = False
        os.set_blocking(write_fd, False)
        self._watch()

    @property
    def waiting(self) -> int:
        """Bytes that the other side has not taken yet."""
        return len(self._out)

    def send(self, data: bytes) -> None:
        """Write `data` now as far as possible, the rest when there is room."""
        if self.closed:
            return
        if not self._out:
            data = data[self._write(data) :]
            if not data or self.closed:
                return
        self._out += data
        self._mark()
        self._watch()

    def pause(self) -> None:
        """Stop reading; writing goes on."""
        if not self._paused:
            self._paused = True
            self._watch()

    def resume(self) -> None:
        """Read again."""
        if self._paused and not self._read_ended:
            self._paused = False
            self._watch()

    def close(self) -> None:
        """Stop reading and writing, without a callback."""
        self.closed = True
        self._loop.unwatch(self._read_fd)
        self._loop.unwatch(self._write_fd)

    def _watch(self) -> None:
        if self.closed:
            return
        reads = 0 if self._paused else READ
        writes = WRITE if self._out else 0
        if self._read_fd == self._write_fd:
            self._watch_one(self._read_fd, reads | writes, self._ready)
        else:
            self._watch_one(self._read_fd, reads, self._readable)
            self._watch_one(self._write_fd, writes, self._writable)

    def _watch_one(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        try:
            self._loop.watch(fd, events, callback)
        except PermissionError:  # epoll takes no files and no /dev/null: they are always ready
            self._loop.call_later(0, lambda: self._always_ready(callback))

    def _always_ready(self, callback: Callable[[int], None]) -> None:
        if not self.closed:
            callback(0)
            self._watch()

    def _ready(self, events: int) -> None:
        if self._out and events & (WRITE | HANGUP):
            self._flush()
        if not self.closed and not self._paused and events & (READ | HANGUP):
            self._read()

    def _readable(self, _events: int) -> None:
        if not self._paused:
            self._read()

    def _writable(self, _events: int) -> None:
        if self._out:
            self._flush()

    def _read(self) -> None:
        try:
            data = os.read(self._read_fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(f"cannot read: {error.strerror}")
            return
        if not data:
            self._ended()
            return
        for line in self._reader.feed(data):
            self._on_line(line)
            if self.closed:
                return

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self._write_fd, data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lost(f"cannot write: {error.strerror}")
            return 0

    def _flush(self) -> None:
        with memoryview(self._out) as view, view[:CHUNK] as piece:
            written = self._write(piece)
        if self.closed:
            return
        del self._out[:written]
        self._mark()
        self._watch()

    def _mark(self) -> None:
        waiting = len(self._out)
        if not self._full and waiting > HIGH_WATER:
            self._full = True
            self._on_full(True)
        elif self._full and waiting < LOW_WATER:
            self._full = False
            self._on_full(False)

    def _ended(self) -> None:
        if self._read_fd == self._write_fd:
            self._lost("closed")
        else:  # a peer that has shut its sending side may still read
            self._paused = self._read_ended = True
            self._watch()
            self._on_closed("closed")

    def _lost(self, reason: str) -> None:
        self.close()
        self._on_closed(reason)
