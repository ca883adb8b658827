"""Non-blocking stream socket with an output buffer and an owner."""

from __future__ import annotations

from collections import deque

from .event_loop import HANGUP, READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Protocol

    from .event_loop import Loop, LoopTimer

    class Owner(Protocol):
        """Callbacks of a connection."""

        def received(self, data: bytes) -> None: ...

        def drained(self) -> None:
            """Continue: the kernel has taken all that was sent."""
            ...

        def closed(self) -> None:
            """Note that the connection is closed, by either side; called exactly once."""
            ...


LINGER = 2.0  # seconds a peer gets to read the last bytes and close
PIECE = 256 * 1024  # bytes requested of the kernel at a time


class Connection:
    """Sends, receives and closes; an end of the peer's stream closes it."""

    def __init__(self, loop: Loop, sock: socket.socket, owner: Owner) -> None:
        sock.setblocking(False)
        self.loop = loop
        self.owner = owner
        self.buffered = 0  # bytes accepted by `send` that the kernel has not taken
        self.piece = PIECE
        self.is_open = True
        self._sock = sock
        self._out: deque[memoryview] = deque()
        self._paused = False
        self._finishing = False
        self._linger: LoopTimer | None = None
        self._watch()

    def _watch(self) -> None:
        if self.is_open:
            mask = 0 if self._paused else READ
            self.loop.watch(self._sock.fileno(), mask | (WRITE if self._out else 0), self._ready)

    def pause(self) -> None:
        """Leave received bytes in the kernel's buffer, so that the peer blocks."""
        if not self._paused:
            self._paused = True
            self._watch()

    def resume(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            self._watch()

    def send(self, data: bytes) -> None:
        """Send what the kernel takes now, and the rest later; nothing once closed."""
        if not self.is_open or self._finishing:
            return
        self._out.append(memoryview(data))
        self.buffered += len(data)
        if len(self._out) == 1:
            self._flush()

    def finish(self) -> None:
        """Send what is left, then close; the peer gets `LINGER` seconds to read it.

        Further input is read and dropped, because closing with unread bytes would turn the end of
        stream into a reset.
        """
        if self.is_open and not self._finishing:
            self._finishing = True
            self.piece = PIECE  # what the peer has sent by now is soon dropped
            self._linger = self.loop.call_later(LINGER, self.close)
            self.resume()
            self._flush()

    def close(self) -> None:
        """Close at once; what was not sent is lost."""
        if self.is_open:
            self.release().close()
            self.owner.closed()

    def release(self) -> socket.socket:
        """Return the socket and detach from it; the owner is not notified."""
        self.is_open = False
        self.loop.unwatch(self._sock.fileno())
        self._out.clear()
        self.buffered = 0
        if self._linger is not None:
            self._linger.cancel()
        return self._sock

    def _ready(self, mask: int) -> None:
        try:
            if mask & WRITE:
                self._flush()
                if self.is_open and not self._out and not self._finishing:
                    self.owner.drained()
            if mask & (READ | HANGUP) and self.is_open:
                self._receive()
        except Exception:
            self.close()
            raise

    def _receive(self) -> None:
        try:
            data = self._sock.recv(self.piece)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        elif not self._finishing:
            self.owner.received(data)

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                sent = self._sock.send(out[0])
                self.buffered -= sent
                if sent < len(out[0]):
                    out[0] = out[0][sent:]
                else:
                    out.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
            return
        if self._finishing and not out:
            try:
                self._sock.shutdown(1)  # SHUT_WR
            except OSError:
                self.close()
                return
        self._watch()
