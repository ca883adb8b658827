"""Standard streams of a process: output into its spools, stdin from accepted frames."""

from __future__ import annotations

import os
from collections import deque

from ...io import linux
from ...io.event_loop import HANGUP, READ, WRITE
from ...wire import STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ...io.event_loop import Loop
    from .spool import Spool

    class StreamOwner(Protocol):
        """The process that a stream belongs to."""

        loop: Loop

        @property
        def is_leaving(self) -> bool:
            """Whether its streams are no longer waited for."""
            ...

        def changed(self) -> None:
            """Look at the streams: one of them moved."""
            ...

        def tell(self, event: str, **fields: object) -> None:
            """Send an event about this process to the server."""
            ...


PIECE = 256 * 1024  # bytes read from a process at a time
STDIN_BYTES = 1 << 20  # accepted for a process that does not read its stdin
RESUME_ROOM = 256 * 1024  # bytes of room before a blocked process is read again


class Stream:
    """Stdout or stderr of a process, read into the spool."""

    def __init__(self, process: StreamOwner, number: int, spool: Spool) -> None:
        self.number = number
        self.spool = spool
        self.ended = False
        self.held = False
        self._process = process
        self._fd = -1

    @property
    def name(self) -> str:
        """Name of the stream in events."""
        return "out" if self.number == STDOUT else "err"

    def open(self, fd: int) -> None:
        """Read from `fd` until its end."""
        self._fd = fd
        os.set_blocking(fd, False)
        self._process.loop.watch(fd, READ, self._ready)

    def _ready(self, _mask: int) -> None:
        self._read()
        self._process.changed()

    def _read(self) -> int:
        """Read one piece; 0 when nothing can be read now."""
        room = self.spool.room
        if room == 0:
            self._hold()
            return 0
        try:
            data = os.read(self._fd, min(PIECE, room))
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if data:
            self.spool.write(data)
        else:
            self.end()
        return len(data)

    def _hold(self) -> None:
        if not self.held:
            self.held = True
            self._process.loop.unwatch(self._fd)
            self._process.tell("spool_full", stream=self.name)

    def ack(self, offset: int) -> None:
        """Free the spool up to `offset`, and resume reading a blocked process."""
        self.spool.ack(offset)
        capacity = self.spool.room + self.spool.kept
        if self.held and not self.ended and self.spool.room >= min(RESUME_ROOM, capacity // 2):
            self.held = False
            self._process.loop.watch(self._fd, READ, self._ready)
            self._process.tell("spool_resumed", stream=self.name)
            if self._process.is_leaving:
                self.finish()

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal that is read; no effect after its end."""
        if self._fd >= 0:
            linux.set_window(self._fd, rows, columns)

    def finish(self) -> None:
        """Read the rest of the pipe after the exit, even if another process has it open."""
        budget = 1 << 20  # the largest pipe size; a grandchild may write continuously
        while not self.ended and not self.held and budget > 0:
            size = self._read()
            if size == 0:
                break
            budget -= size
        if not self.held:
            self.end()

    def end(self) -> None:
        """Stop reading: the stream has ended."""
        if not self.ended:
            self.ended = True
            if self._fd >= 0:
                self._process.loop.unwatch(self._fd)
                os.close(self._fd)
                self._fd = -1

    def discard(self) -> None:
        """Release the descriptor and the spool."""
        self.end()
        self.spool.close_file()


class Stdin:
    """Accepted input of a process that its pipe has not taken yet.

    For a process that has ended, or has closed its stdin, frames are accepted and dropped, as the
    kernel would do.
    """

    def __init__(self, loop: Loop, pump: Callable[[], None]) -> None:
        self.seq = 0  # the last frame accepted
        self._loop = loop
        self._pump = pump
        self._fd = -1
        self._out: deque[memoryview] = deque()
        self._size = 0
        self._ended = False

    @property
    def is_full(self) -> bool:
        """Whether the next frame must wait until the process has read some."""
        return self._size >= STDIN_BYTES

    def open(self, fd: int) -> None:
        """Write to `fd`."""
        os.set_blocking(fd, False)
        self._fd = fd

    def accept(self, seq: int, data: bytes) -> None:
        """Accept the frame `seq`, which follows the last one; it is not accepted a second time."""
        self.seq = seq
        if self._fd >= 0 and not self._ended and data:
            self._out.append(memoryview(data))
            self._size += len(data)
            self._write()

    def end(self, seq: int) -> None:
        """Accept the end of stdin as frame `seq`."""
        self.seq = seq
        self._ended = True
        self._write()

    def _ready(self, mask: int) -> None:
        if mask & HANGUP and not mask & WRITE:
            self.close()
        else:
            self._write()
        self._pump()

    def _write(self) -> None:
        if self._fd < 0:
            return
        out = self._out
        try:
            while out:
                size = os.write(self._fd, out[0])
                self._size -= size
                if size < len(out[0]):
                    out[0] = out[0][size:]
                else:
                    out.popleft()
        except (BlockingIOError, InterruptedError):
            self._loop.watch(self._fd, WRITE, self._ready)
            return
        except OSError:
            self.close()
            return
        if self._ended:
            self.close()
        else:
            self._loop.unwatch(self._fd)

    def close(self) -> None:
        """Close the pipe and drop the bytes it has not taken."""
        self._out.clear()
        self._size = 0
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1
