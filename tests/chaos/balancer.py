"""Balancer, the load balancer before the nodes, as each client has one: it passes bytes on.

It sends a new connection to the first node of its choice that is well, and breaks those of a node
that does not answer any more, as those on the market do.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from tests.chaos.site import NODES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from tests.chaos.site import Site

LOOK_SECONDS: Final = 0.5


class Health:
    """Which nodes answer; looked at all the time."""

    def __init__(self, site: Site) -> None:
        self.well: set[str] = set(NODES)
        self._site = site
        self._balancers: list[Balancer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._look(name)) for name in NODES]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for balancer in self._balancers:
            balancer.close()

    async def balancer(self, choice: Callable[[], Sequence[str]]) -> Balancer:
        """A new balancer; `choice` gives the nodes, the best first."""
        made = Balancer(self, self._site, choice)
        await made.start()
        self._balancers.append(made)
        return made

    async def _look(self, node: str) -> None:
        while True:
            if await self._site.answers(node):
                self.well.add(node)
            else:
                self.well.discard(node)
                for balancer in self._balancers:
                    balancer.cut(node)
            await asyncio.sleep(LOOK_SECONDS)


class Balancer:
    """A port that leads to the nodes."""

    def __init__(self, health: Health, site: Site, choice: Callable[[], Sequence[str]]) -> None:
        self._health = health
        self._site = site
        self._choice = choice
        self._server: asyncio.Server
        self._pipes: dict[asyncio.StreamWriter, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/mcp"

    def close(self) -> None:
        """End all connections."""
        self._server.close()
        for writer in self._pipes:
            writer.transport.abort()

    def cut(self, node: str) -> None:
        """Break the connections to a node."""
        for writer, found in list(self._pipes.items()):
            if found == node:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for node in [each for each in self._choice() if each in self._health.well]:
            try:
                async with asyncio.timeout(2):
                    there = await asyncio.open_connection("127.0.0.1", self._site.ports[node])
            except (OSError, TimeoutError):
                continue
            self._pipes[writer] = self._pipes[there[1]] = node
            one = asyncio.create_task(_pass_on(reader, there[1]))
            other = asyncio.create_task(_pass_on(there[0], writer))
            try:
                await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # the run ends; asyncio would report it for each
                pass
            finally:
                for task in (one, other):
                    task.cancel()
                for each in (writer, there[1]):
                    self._pipes.pop(each, None)
                    each.transport.abort()
            return
        writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
