"""Connections to Unix sockets of this machine, without waiting."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def connected(path: Path) -> socket.socket:
    """Return a socket that is connected to `path`.

    Raises:
        OSError: nothing listens there, or its backlog is full.
    """
    # A Unix socket connects at once or not at all. Asyncio takes the EAGAIN of a full backlog for a
    # connection in progress and returns an unconnected socket.
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.setblocking(False)
        link.connect(str(path))
    except OSError:
        link.close()
        raise
    return link
