"""Messages to the PortsActor, from tools and from the front."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

import msgspec

from oubliette.kit import LocalMessage, Message, Perishable, Reply

PORTS: Final = "ports"
"""Name of the PortsActor."""


def node_mark(node: str) -> str:
    """Return what the names of ports on a node of a cluster end with, by which others find it."""
    return hashlib.sha256(node.encode()).hexdigest()[:8]


class PortInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An open port."""

    name: str
    """First label of its host name."""
    session_id: str
    port: int
    opened_at: float
    closes_at: float
    """Wall-clock seconds."""
    connections: int


class PortLink(msgspec.Struct, frozen=True, kw_only=True):
    """An open port, and a token that lets one browser in."""

    info: PortInfo
    token: str
    seconds: float
    """Time for which the token is valid, once."""


class OpenPort(Message, Reply[PortLink]):
    """Open a port of a live session's container, which is started if it does not run.

    One that is open already stays as it is, and gets another token.
    """

    session_id: str
    project_id: str
    principal: str
    port: int
    token_id: str
    """Key of the caller: the link, and what it lets in, ends with it."""
    expires_at: float | None = None


class KeyEnded(Perishable):
    """An API key is not valid any more: its connections are cut, its links and cookies end."""

    token_id: str


class ClosePort(Message, Reply[bool]):
    """Close a port of a session and cut its connections; False: it was not open."""

    session_id: str
    port: int


class ListPorts(Message, Reply[tuple[PortInfo, ...]]):
    """Request for the open ports of a session."""

    session_id: str


class PortCookie(msgspec.Struct, frozen=True, kw_only=True):
    """Cookie that a browser presents from now on, and the seconds until the port closes."""

    value: str
    seconds: float


class RedeemToken(Message, Reply[PortCookie | None]):
    """Exchange a token for a cookie; None: it is not valid, or not valid any more."""

    name: str
    token: str


class ByteReader(Protocol):
    """Bytes from a program; `asyncio.StreamReader` is one."""

    async def read(self, n: int) -> bytes:
        """Return up to `n` bytes, and at least one; empty: the end."""
        ...


class ByteWriter(Protocol):
    """Bytes to a program; `asyncio.StreamWriter` is one."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


class GuestStream(msgspec.Struct, frozen=True):
    """An open connection to a port in a container."""

    reader: ByteReader
    writer: ByteWriter
    port: int
    principal: str
    """The owner of the port, whose connection this is."""


class OpenConnection(LocalMessage, Reply[GuestStream]):
    """Connect to an open port, for the holder of a cookie or for the port's owner.

    The asker sends `ConnectionOver` in any case, also if it gets no answer.
    """

    name: str
    connection_id: str
    share: int
    """Maximum of connections to the ports of one owner; those of all have twice as many."""
    cookies: tuple[str, ...] = ()
    principal: str | None = None
    """Of an API key that came with the request, and that may open ports."""
    project_id: str | None = None
    """The only project that this key reaches; None: any."""
    token_id: str = ""
    expires_at: float | None = None


class ConnectionOver(Message):
    """A connection is not used any more; it is closed."""

    name: str
    connection_id: str
