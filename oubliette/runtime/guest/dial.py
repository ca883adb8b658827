"""Connection to a container's relay, over its socket or over an engine's bridge."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.incontainer import wire
from oubliette.runtime.containers.unix_socket import connected, inode_of
from oubliette.runtime.guest.errors import (
    GuestAbsent,
    GuestRefused,
    GuestUnreachable,
    LinkClosed,
    SocketFolderGone,
)

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

    from oubliette.runtime.containers.base import Dial
    from oubliette.runtime.containers.unix_socket import Inode


_ABSENT = (ConnectionRefusedError, FileNotFoundError)


async def open_link(
    dial: Dial, header: bytes, limit: int, *, inode: Inode | None = None
) -> tuple[StreamReader, StreamWriter]:
    """Connect and send `header`. `limit` is half of the buffer size at which the reader pauses.

    `inode` is the socket that proved itself in a handshake: another one is refused.

    Raises:
        GuestAbsent: the socket does not listen.
        GuestUnreachable: the connection failed for another reason.
    """
    try:
        if isinstance(dial, Path):
            reader, writer = await asyncio.open_unix_connection(
                sock=connected(dial, inode), limit=limit
            )
        else:
            reader, writer = await dial(limit)
    except OSError as error:
        raise _unreachable(dial, error) from error
    writer.write(header)
    return reader, writer


def inode_at(dial: Dial) -> Inode | None:
    """Return the socket that is there now; None where there is no socket on this machine.

    Raises:
        GuestAbsent: there is none yet.
        GuestUnreachable: something else is in its place.
    """
    try:
        return inode_of(dial) if isinstance(dial, Path) else None
    except OSError as error:
        raise _unreachable(dial, error) from error


def _unreachable(dial: Dial, error: OSError) -> GuestUnreachable:
    kind = GuestAbsent if isinstance(error, _ABSENT) else GuestUnreachable
    if isinstance(error, FileNotFoundError) and isinstance(dial, Path) and not dial.parent.exists():
        kind = SocketFolderGone  # a container starts with it, and gets no other one
    return kind(f"no guest listens at {_where(dial)}: {error.strerror}")


def _where(dial: Dial) -> str:
    return str(dial) if isinstance(dial, Path) else "the container's bridge"


async def read_line(reader: StreamReader) -> bytes:
    """One line, with its newline.

    Raises:
        GuestRefused: the line is `OUBLIETTE-ERROR …`.
        LinkClosed: the stream has ended.
    """
    try:
        line = await reader.readline()
    except (ConnectionError, ValueError) as error:
        raise LinkClosed(f"the link to the guest broke: {error}") from error
    reason = wire.parse_error(line)
    if reason is not None:
        raise GuestRefused(reason)
    if not line.endswith(b"\n"):
        raise LinkClosed("the guest closed the link")
    return line


async def close(writer: StreamWriter) -> None:
    """Close and wait for it; errors of the connection are ignored."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(2.0):
            await writer.wait_closed()
