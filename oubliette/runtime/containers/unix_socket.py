"""Connections to Unix sockets of this machine, without waiting and without following a link.

Agents may own the folder of a relay's socket: what has its name may be a link to a socket of the
server's user, or another socket than the one that proved itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

Inode: TypeAlias = tuple[int, int]
"""Device and number of a file, under all its names. No other gets them while a guest listens."""


def inode_of(path: Path) -> Inode:
    """The socket that has this name now.

    Raises:
        OSError: there is nothing, or no socket.
    """
    with _opened(path) as (_, inode):
        return inode


def connected(path: Path, inode: Inode | None = None) -> socket.socket:
    """A socket that is connected to `path`, if that is `inode` still.

    Raises:
        OSError: nothing listens there, its backlog is full, or it is no socket or another one.
    """
    with _opened(path) as (place, found):
        if inode not in {None, found}:
            raise OSError(errno.ESTALE, "another socket is in its place")
        # A Unix socket connects at once or not at all. Asyncio takes the EAGAIN of a full backlog
        # for a connection in progress and returns an unconnected socket.
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.setblocking(False)
            link.connect(place)
        except OSError:
            link.close()
            raise
        return link


@contextlib.contextmanager
def _opened(path: Path) -> Generator[tuple[str, Inode]]:
    """Yield a name under which the socket at `path` stays the same one, and its inode."""
    if sys.platform != "linux":  # there is no O_PATH; engines there are reached by a bridge
        yield str(path), _checked(os.lstat(path))
        return
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}", _checked(os.fstat(fd))
    finally:
        os.close(fd)


def _checked(status: os.stat_result) -> Inode:
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.ENOTSOCK, "no socket is in its place")
    return status.st_dev, status.st_ino
