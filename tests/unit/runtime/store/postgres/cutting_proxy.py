"""A way to a PostgreSQL server that is cut in the middle of a commit, or of another statement."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pathlib import Path

SOCKET: Final = ".s.PGSQL.5432"
"""What libpq calls the socket in the folder that it is given as host."""

Cut = Literal["before", "after"]


class CuttingProxy:
    """Forwards connections to a server's socket; cuts one of them at a statement, once.

    Args:
        folder: Of its socket.
        server: Folder of the server's socket.
        cut: Whether the server gets the statement: "before" it does not, "after" it does and its
            answer is lost.
        at: What is sent to the server then.
    """

    def __init__(self, folder: Path, server: Path, cut: Cut, at: bytes = b"COMMIT") -> None:
        self._server = server
        self._cut = cut
        self._at = at
        self.cuts = 0
        """Connections that were cut."""
        self.round_trips = 0
        """How often a client, if there is one, has sent something after the server had answered."""
        self._answered = True
        self.armed = False
        """Whether the next one is cut."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Cut everything and end the threads."""
        self._shut(self._listener, *self._open)
        for thread in self._threads:
            thread.join(10)
        for each in (self._listener, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server / SOCKET))
            self._open += [client, server]
            for arguments in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._forward, args=arguments, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.round_trips += to_server and self._answered
                self._answered = not to_server
                if to_server and self.armed and self._at in data:
                    self.armed = False
                    self.cuts += 1
                    self._shut(source)
                    if self._cut == "before":
                        break
                target.sendall(data)
        self._shut(source, target)

    @staticmethod
    def _shut(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
