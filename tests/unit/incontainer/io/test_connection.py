"""A connection that is finished goes as soon as its peer does."""

from __future__ import annotations

import socket

from oubliette.incontainer.io.connection import Connection
from oubliette.incontainer.io.event_loop import Loop


class Owner:
    """Notes what comes, and the end."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.is_closed = False

    def received(self, data: bytes) -> None:
        self.received_bytes += len(data)

    def drained(self) -> None:
        """Nothing is sent here."""

    def closed(self) -> None:
        self.is_closed = True


def test_what_a_refused_peer_has_sent_in_excess_does_not_keep_its_connection() -> None:
    loop, owner = Loop(), Owner()
    ours, theirs = socket.socketpair()
    try:
        connection = Connection(loop, ours, owner)
        connection.piece = 1024
        theirs.sendall(b"x" * 64_000)
        loop.turn()
        assert owner.received_bytes == 1024
        connection.finish()
        theirs.close()
        loop.turn()  # all the rest
        loop.turn()  # the end
        assert owner.is_closed
        assert owner.received_bytes == 1024
    finally:
        ours.close()
        theirs.close()
        loop.close()
