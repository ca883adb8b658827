"""A way to a PostgreSQL server that can be cut and healed, for one of several that use it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from tests.postgres import SOCKET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class WayToPostgres:
    """Forwards connections to a server's socket, until they are cut.

    Args:
        folder: Of its own socket.
        server: Folder of the server's socket.
    """

    def __init__(self, folder: Path, server: Path) -> None:
        self._folder = folder
        self._server = server
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._whole = True
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._begin(self._accept)

    def url(self, url: str) -> str:
        """The address of a database by this way."""
        return url.replace(str(self._server), str(self._folder))

    def cut(self) -> None:
        """End all connections, and let no other begin until `heal`."""
        with self._lock:
            self._whole = False
            _shut(*self._open)

    def heal(self) -> None:
        """Let connections begin again."""
        with self._lock:
            self._whole = True

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Cut it for as long as the block takes."""
        self.cut()
        try:
            yield
        finally:
            self.heal()

    def close(self) -> None:
        """Cut everything and end the threads."""
        self.cut()
        _shut(self._listener)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _begin(self, *work: object) -> None:
        thread = threading.Thread(target=work[0], args=work[1:], daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            with self._lock:
                whole = self._whole
                if whole:
                    self._open |= {client, server}
            if not whole:
                client.close()
                server.close()
                continue
            with contextlib.suppress(OSError):
                server.connect(str(self._server / SOCKET))
            self._begin(self._forward, client, server)
            self._begin(self._forward, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with self._lock:
            _shut(source, target)
            if target not in self._open:  # the other direction has ended too
                source.close()
                target.close()
            self._open.discard(source)


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
