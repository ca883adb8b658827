"""PortConnections: connections to open ports, on the node where each port is open."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from oubliette.actors.ports.messages import PORTS, ConnectionOver, GuestStream, OpenConnection
from oubliette.errors import OublietteError, Unavailable
from oubliette.kit import ActorDead
from oubliette.kit.fair_loop import working_for
from oubliette.tools.home_streams import open_at_home

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from oubliette.kit import Ref
    from oubliette.tools.home_nodes import HomeNodes
    from oubliette.tools.home_streams import HomeStream, StreamEnd

KIND: Final = "port"
"""Kind of the streams to the node where a port is open."""
CONNECT_SECONDS: Final = 45.0  # for a connection into the container
PIECE: Final = 64 * 1024  # bytes


class _Greeting(msgspec.Struct, frozen=True):
    """The first word of a node: the connection is open."""

    port: int
    principal: str


class PortConnections:
    """Opens connections for the browsers of this node, and for those of other nodes.

    Args:
        find: Name → a ref that is resolved at each send; for the PortsActor.
    """

    def __init__(self, find: Callable[[str], Ref]) -> None:
        self._find = find
        self.nodes: HomeNodes | None = None
        """Nodes of the cluster; None: this server is alone. Set before the start."""

    @property
    def here(self) -> Ref:
        """The owner of the ports that are open on this node."""
        return self._find(PORTS)

    async def owner(self, name: str) -> Ref:
        """The owner of a port: if no other node has it, the one of this node.

        Raises:
            StorageUnavailable: the database does not answer.
        """
        node = await self._node(name)
        return self.here if node is None or self.nodes is None else self.nodes.ref(node, PORTS)

    async def _node(self, name: str) -> str | None:
        mark = mark_of(name)
        if mark is None or self.nodes is None:
            return None
        return await self.nodes.node_of_port(mark)

    @contextlib.asynccontextmanager
    async def opened(self, wanted: OpenConnection) -> AsyncGenerator[GuestStream]:
        """Have a connection to a port for as long as the block.

        Raises:
            NotFound: the port is not open.
            Forbidden: its owner is another one.
            Unauthenticated: neither a cookie nor a key was presented.
            LimitExceeded: there are too many connections.
            OublietteError: it cannot be opened.
        """
        node = await self._node(wanted.name)
        if node is None or self.nodes is None:
            async with self._opened_here(wanted) as stream:
                yield stream
            return
        given = msgspec.msgpack.encode(wanted)
        async with open_at_home(self.nodes, node, KIND, given) as far:
            greeting = msgspec.msgpack.decode(await far.read(), type=_Greeting)
            ends = _FarEnds(far)
            yield GuestStream(ends, ends, greeting.port, greeting.principal)

    @contextlib.asynccontextmanager
    async def _opened_here(self, wanted: OpenConnection) -> AsyncGenerator[GuestStream]:
        try:
            yield await self.here.ask(wanted, timeout=CONNECT_SECONDS)
        finally:
            over = ConnectionOver(name=wanted.name, connection_id=wanted.connection_id)
            self.here.tell(over)

    async def serve(self, given: bytes, end: StreamEnd) -> None:
        """Carry the bytes of a connection that another node has asked for; the work of a stream."""
        wanted = msgspec.msgpack.decode(given, type=OpenConnection)
        async with self._opened_here(wanted) as stream:
            working_for.set(stream.principal)
            greeting = _Greeting(stream.port, stream.principal)
            await end.send(msgspec.msgpack.encode(greeting))
            upload = asyncio.create_task(_upload(end, stream))
            try:
                while data := await stream.reader.read(PIECE):
                    await end.send(data)
            except ConnectionError as error:
                raise Unavailable(f"the program has closed the connection: {error}") from error
            finally:
                upload.cancel()
                await asyncio.gather(upload, return_exceptions=True)


async def _upload(end: StreamEnd, stream: GuestStream) -> None:
    """Pass on what the browser sends; a program that reads no more may still answer."""
    open_ = True
    while True:
        data = (await end.receive()).data
        if open_:
            try:
                stream.writer.write(data)
                await stream.writer.drain()
            except ConnectionError:
                open_ = False


class _FarEnds:
    """Reader and writer of a connection on another node, as those of a connection of this one."""

    def __init__(self, stream: HomeStream) -> None:
        self._stream = stream
        self._read = b""
        self._written: list[bytes] = []

    async def read(self, n: int) -> bytes:
        """Return up to `n` bytes; empty: the end.

        Raises:
            ConnectionResetError: the connection has failed, or its node is lost.
        """
        if not self._read:
            try:
                self._read = await self._stream.read()
            except OublietteError as error:
                raise ConnectionResetError(str(error)) from error
        taken, self._read = self._read[:n], self._read[n:]
        return taken

    def write(self, data: bytes) -> None:
        """Keep bytes for the next `drain`."""
        self._written.append(data)

    async def drain(self) -> None:
        """Send what was written; complete when there is room for more.

        Raises:
            ConnectionResetError: the node is lost.
        """
        data = b"".join(self._written)
        self._written.clear()
        if not data:
            return
        try:
            await self._stream.write(data)
        except ActorDead as error:
            raise ConnectionResetError(str(error)) from error


LOCAL: Final = "localhost"  # browsers resolve all names below it to this machine
_NAME: Final = re.compile(r"p[1-9][0-9]{0,4}-[0-9a-f]{10}(?:-(?P<mark>[0-9a-f]{8}))?")
_LONGEST: Final = 300


def mark_of(name: str) -> str | None:
    """Return the mark of the node on which the port of this name is open; None: it has none."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["mark"]


class PortHosts:
    """Names of open ports, as labels before `localhost` or before the host of `ports.base_url`."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.secure = parts.scheme == "https"
        self._scheme = parts.scheme or "http"
        self._host = parts.netloc
        self._suffixes = frozenset({LOCAL, parts.hostname or LOCAL})

    def name_of(self, host: bytes | None) -> str | None:
        """Return the name of the port that a Host header means; None: it means this server."""
        if host is None or len(host) > _LONGEST:
            return None
        whole = host.decode("latin-1").lower()
        label, _, rest = whole.partition(".")
        suffix, colon, number = rest.partition(":")
        if suffix not in self._suffixes or (colon and not number.isdecimal()):
            return None
        return label if _NAME.fullmatch(label) else None

    def address(self, name: str, server_port: int) -> str:
        """The address of an open port for browsers, without a slash at the end."""
        return f"{self._scheme}://{name}.{self._host or f'{LOCAL}:{server_port}'}"
