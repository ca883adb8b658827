"""Interconnect: the links of a System to the other nodes of its cluster."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import structlog

from oubliette.errors import Conflict, InvalidParameter
from oubliette.kit.remote.addresses import checked_node, may_be_node, split_address
from oubliette.kit.remote.node_link import HELD, NodeLink
from oubliette.kit.remote.remote_ref import RemoteRef

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from oubliette.kit.ref import Ref
    from oubliette.kit.remote.transport import Transport
    from oubliette.kit.system import System

log = structlog.get_logger("oubliette.kit")

FLUSH = 1.0
"""Seconds of real time that the last frames have to leave when a System ends."""


def connect(
    system: System, transport: Transport, epoch: int | None = None, *, held: float = HELD
) -> Interconnect:
    """Connect a running System to the other nodes; `system.stop()` ends it.

    Args:
        system: the System, entered, on whose loop this is called.
        transport: carrier of frames; started here.
        epoch: number of this life of the node, greater than that of every earlier life; wall
            time in milliseconds if None.
        held: seconds for which the reply to a batch waits for an answer, when there is nothing else
            to send to that node.

    Raises:
        InvalidParameter: the transport's node cannot be the name of a node, or the epoch is
            negative.
        Conflict: the System is connected already.
    """
    checked_node(transport.node)
    if epoch is None:
        epoch = int(system.clock.time() * 1000)
    if epoch < 0:
        raise InvalidParameter("an epoch cannot be negative", field="epoch", hint="use 0 or more")
    if system.nodes is not None:
        raise Conflict(f"{system.name} is connected already")
    interconnect = Interconnect(system, transport, epoch, held)
    system.nodes = interconnect
    transport.start(interconnect.receive, interconnect.gone)
    return interconnect


class Interconnect:
    """The other nodes, as seen from one System; made by `connect`."""

    def __init__(self, system: System, transport: Transport, epoch: int, held: float) -> None:
        self.system = system
        self.transport = transport
        self.epoch = epoch
        self.held = held
        self.numbers: Iterator[int] = itertools.count(1)
        self.closed: str | None = None
        """Reason why nothing is sent any more; None while it is."""
        self._links: dict[str, NodeLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> int:
        """Number of requests, watches and messages, of either side, that wait for something."""
        return sum(link.outbound.pending + len(link.inbound) for link in self._links.values())

    def ref(self, name: str) -> Ref:
        """Return the ref of `NODE!name`; the local one for this node.

        Raises:
            InvalidParameter: `name` has another form.
        """
        node, local = split_address(name)
        if node == self.transport.node:
            return self.system.ref(local)
        return RemoteRef(self.system, self._link(node), local)

    async def receive(self, node: str, batch: list[bytes]) -> list[bytes]:
        """Handle a batch from a peer, and return the reply; the transport calls this.

        Never raises.
        """
        if self.closed is not None:
            return []
        if node == self.transport.node or not may_be_node(node):
            log.warning("batch of no other node refused", node=node)
            return []
        return await self._link(node).receive(batch)

    def gone(self, node: str, reason: str) -> None:
        """Learn that a peer is dead; the transport calls this."""
        link = self._links.get(node)
        if link is not None and self.closed is None:
            link.lose(reason)

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that ends with the connection."""
        task = self.system.bridge.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Send what waits, for at most a second, then end everything that waits for a peer."""
        if self.closed is not None:
            return
        self.closed = "this node is ending"
        for link in self._links.values():
            link.flush()
        pumps = {link.pump for link in self._links.values() if link.pump is not None}
        try:
            if pumps:
                await asyncio.wait(pumps, timeout=FLUSH)
        finally:
            for link in self._links.values():
                link.lose(self.closed, anew=False)
            tasks = set(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=FLUSH)

    def _link(self, node: str) -> NodeLink:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = NodeLink(self, node)
        return link
