"""TCP connections into the container: a link of the server, and a port on the loopback interface.

The server asks for a port, the guest connects to it and then passes bytes both ways as between the
two sides of a session: 256 KiB are buffered per direction, a side that does not read blocks the
other, and no other link waits for it.
"""

from __future__ import annotations

import errno
import socket

from .. import wire
from ..io.event_loop import WRITE
from .socket_pair import Pair, Side
from .unpaired import LinkRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..io.connection import Connection
    from ..io.event_loop import Loop

CONNECTIONS = 256  # at a time, those that are still being opened included
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class _Opening:
    """Owner of a link until its port has accepted or all addresses have failed."""

    def __init__(
        self,
        loop: Loop,
        link: Connection,
        port: int,
        opened: Callable[[_Opening, socket.socket], None],
        over: Callable[[_Opening], None],
    ) -> None:
        self.link = link
        self.first = b""
        self._loop = loop
        self._port = port
        self._opened = opened
        self._over = over
        self._left = list(_ADDRESSES)
        self._sock: socket.socket | None = None
        self._reason = f"nothing listens on port {port} in the container"
        self._ended = False
        self._timer = loop.call_later(wire.CONNECT_TIMEOUT, self._too_slow)
        link.owner = self

    def begin(self) -> None:
        """Connect to the next address; the last failure is the server's answer."""
        while self._left:
            family, address = self._left.pop(0)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # a container without IPv6
            sock.setblocking(False)
            self._sock = sock
            failure = sock.connect_ex((address, self._port))
            if failure == errno.EINPROGRESS:
                self._loop.watch(sock.fileno(), WRITE, self._settled)
                return
            if self._conclude(failure):
                return
        self._refuse(self._reason)

    def _settled(self, _mask: int) -> None:
        sock = self._sock
        assert sock is not None
        self._loop.unwatch(sock.fileno())
        failure = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # Without a listener, the kernel may pick the same port as source: a link to itself
        if not failure and sock.getsockname() == sock.getpeername():
            failure = errno.ECONNREFUSED
        if not self._conclude(failure):
            self.begin()

    def _conclude(self, failure: int) -> bool:
        """Hand the connection over if it is open; otherwise discard it, for the next address."""
        sock = self._sock
        assert sock is not None
        if failure:
            self._discard()
            if failure != errno.ECONNREFUSED and self._left:
                import os

                self._reason = f"port {self._port} in the container: {os.strerror(failure)}"
            return False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = None
        self._ended = True
        self._timer.cancel()
        self._opened(self, sock)
        return True

    def _too_slow(self) -> None:
        self._discard()
        seconds = wire.CONNECT_TIMEOUT
        self._refuse(f"port {self._port} in the container accepts nothing within {seconds:g} s")

    def _discard(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.unwatch(sock.fileno())
            sock.close()

    def _refuse(self, reason: str) -> None:
        self._timer.cancel()
        self.link.send(wire.error_line(reason))
        self.link.finish()

    # The link, until then

    def received(self, data: bytes) -> None:
        """Keep what came already, and read no more until the port has accepted."""
        self.first += data
        self.link.pause()

    def drained(self) -> None:
        """Ignore that the link's buffer is empty."""

    def closed(self) -> None:
        """Give up: the server has closed, or has read the refusal."""
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            self._discard()
            self._over(self)


class LoopbackConnections:
    """All connections that the server has opened to ports of the container."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._opening: set[_Opening] = set()
        self._open: set[Pair] = set()

    @property
    def count(self) -> int:
        """Number of connections, those that are being opened included."""
        return len(self._opening) + len(self._open)

    def connect(self, link: Connection, first: bytes, port: int) -> None:
        """Connect a link, which has proved that it comes from the server, to a port.

        Raises:
            LinkRefused: Too many connections are open.

        """
        if self.count >= CONNECTIONS:
            raise LinkRefused(f"{CONNECTIONS} connections into the container are open already")
        opening = _Opening(self._loop, link, port, self._opened, self._opening.discard)
        self._opening.add(opening)
        opening.first = first
        opening.begin()

    def _opened(self, opening: _Opening, sock: socket.socket) -> None:
        self._opening.discard(opening)
        opening.link.send(wire.connected_line())
        if not opening.link.is_open:  # the server has closed meanwhile
            sock.close()
            return
        upstream = Side(opening.link.release(), opening.first, None)
        pair = Pair(self._loop, upstream, Side(sock, b"", None), self._open.discard)
        if pair.is_open:
            self._open.add(pair)

    def close(self) -> None:
        for opening in list(self._opening):
            opening.link.close()
        for pair in list(self._open):
            pair.close()
