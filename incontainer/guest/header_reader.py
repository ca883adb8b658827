"""Reader of a new connection's header, which must arrive within 5 seconds and 1 KiB."""

from __future__ import annotations

from .. import wire
from ..io.connection import PIECE, Connection
from .pairing import LinkRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ..io.event_loop import Loop

    # Takes the connection over, or raises LinkRefused; the bytes are what followed the header.
    Accept = Callable[["HeaderReader", wire.Header, bytes], None]


class HeaderReader:
    """Owner of a connection until its header is read."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        accept: Accept,
        over: Callable[[HeaderReader], None],
        refused: Callable[[str, str | None], None],
    ) -> None:
        self.sock = sock
        self._accept = accept
        self._over = over
        self._refused = refused
        self._line = b""
        self._timer = loop.call_later(
            wire.HEADER_TIMEOUT, lambda: self.refuse("no header within 5 seconds")
        )
        self.connection = Connection(loop, sock, self)
        self.connection.piece = wire.MAX_HEADER  # never buffers more than one header

    def received(self, data: bytes) -> None:
        self._line += data
        end = self._line.find(b"\n") + 1
        if end == 0 and len(self._line) < wire.MAX_HEADER:
            return
        self._timer.cancel()
        # Without a newline by now, all of it is the header, and one byte too long
        line, first = (self._line[:end], self._line[end:]) if end else (self._line + b"\n", b"")
        header: wire.Header | None = None
        try:
            header = wire.parse_header(line)
            self._accept(self, header, first)
            self.connection.piece = PIECE
            self._over(self)
        except (LinkRefused, wire.WireError) as error:
            session: str | None = getattr(header, "session", None)
            self.refuse(str(error), session)

    def refuse(self, reason: str, session: str | None = None) -> None:
        """Send the reason as an error line, and close."""
        self._timer.cancel()
        self.connection.send(wire.error_line(reason))
        self.connection.finish()
        self._refused(reason, session)

    def drained(self) -> None:
        """Ignore that the connection's buffer is empty."""

    def drop(self) -> None:
        """Close without an error line, to make room."""
        self.connection.close()

    def closed(self) -> None:
        """Report that the peer has closed, or has read why it was refused."""
        self._timer.cancel()
        self._over(self)
