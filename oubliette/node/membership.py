"""Membership, a node's lease and what depends on it: its fence, its duty, its questions.

Everything here may block, or runs on threads of its own; notices are handed to the
server's loop.

What asks the database raises StorageUnavailable if it does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette import ids
from oubliette.errors import ConfigError, StorageUnavailable
from oubliette.node.spec import memory
from oubliette.runtime.files.instance import INSTANCE
from oubliette.runtime.store.postgres.cluster import nodes, placements
from oubliette.runtime.store.postgres.cluster.duty import Duty
from oubliette.runtime.store.postgres.cluster.listener_rows import FORGET_SECONDS, forget_listeners
from oubliette.runtime.store.postgres.cluster.node_lease import NodeLease
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad
from oubliette.runtime.store.postgres.control_thread import ControlThread
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.postgres.notices import Notices

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.config.schema import Config
    from oubliette.errors import StaleNode
    from oubliette.node.spec import NodeSpec
    from oubliette.runtime.store.postgres.cluster.node_records import NodeOffer
    from oubliette.runtime.store.postgres.fence import NodeFence

DUTY: Final = "nodes"
"""Name of the duty to give up nodes whose lease has ended."""

_log = structlog.get_logger("oubliette.node")


class Membership:
    """One run of a node in its cluster: `take` it, `serve` it, and `aclose` it at the end.

    Args:
        spec: The node.
        config: Of its server; names the database.
        on_lost: Called on the loop with the reason when another run of the node has begun, or the
            others have given this one up.
    """

    def __init__(
        self,
        spec: NodeSpec,
        config: Config,
        *,
        on_lost: Callable[[str], object],
    ) -> None:
        if not config.store.database:
            raise ConfigError(
                "store.database: a node of a cluster needs a PostgreSQL database, which all share",
                hint="set it to postgresql://…",
            )
        self.name = spec.name
        self.fence: NodeFence
        self.on_gone: Callable[[list[str]], object] = lambda _: None
        """Called on the loop of one node, each second, with the nodes that are gone and still are
        the home of live sessions."""
        self.on_draining: Callable[[bool], object] = lambda _: None
        """Called on the loop when the node is to be drained, or not any more."""
        self._spec = spec
        self._config = config
        self._url = config.store.database
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._lease: NodeLease | None = None
        self.control = ControlThread(self._url, f"node {spec.name}")
        """Connection for the node's questions to the tables of the cluster."""
        self.copies: ControlThread | None = None
        """Connection for copies of snapshots, whose parts are large; None: there are none."""
        if config.cluster.snapshots in {"postgres", "node"}:
            self.copies = ControlThread(self._url, f"copies of {spec.name}")
        self.notices = Notices(self._url, f"node {spec.name}")
        """Changes that other nodes have made."""
        self._duty: Duty | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._forget_at = 0.0
        """Monotonic second at which callers that have gone are forgotten next."""

    @property
    def draining(self) -> bool:
        """Whether the node takes no more projects, as of the latest renewal of its lease."""
        return self._lease is not None and self._lease.draining

    @property
    def unsteady_seconds(self) -> float:
        """Seconds for which the ends of other nodes' leases prove nothing; 0: they do."""
        return 0.0 if self._lease is None else self._lease.unsteady_seconds

    async def take(self, offer: NodeOffer) -> PostgresDatabase:
        """Take a new epoch of the node; return the database with its fence.

        Raises:
            ConfigError: the database cannot be used.
        """
        database = await asyncio.to_thread(self._take, offer)
        self.control.start()
        if self.copies is not None:
            self.copies.start()
        self.notices.start()
        await self.control.run(placements.forget_deleted, self.name)
        return database

    def _take(self, offer: NodeOffer) -> PostgresDatabase:
        settings = self._config.store
        PostgresDatabase(self._url, durability=settings.durability)  # makes the tables
        lease = NodeLease(
            self._url,
            self.name,
            on_lost=self._lost,
            offer=offer,
            load=self._load,
            on_draining=lambda draining: self._tell(self._drain, draining),
        )
        self._lease = lease
        self.fence = lease.take()
        return PostgresDatabase(self._url, durability=settings.durability, fence=self.fence)

    async def instance(self) -> str:
        """Return the id of the cluster's instance; the first node makes it."""
        return await self.control.run(nodes.shared_meta, INSTANCE, ids.new_id(ids.INSTANCE))

    async def serve(self, url: str) -> None:
        """Publish the URL of this node, and stand for the duty to give up nodes."""
        await self.control.run(nodes.set_address, self.fence, url)
        self._duty = Duty(
            self._url,
            DUTY,
            on_begin=lambda: None,
            on_end=lambda: None,
            work=self._give_up,
        )
        self._duty.start()

    def follow_gone(self, given_up: Callable[[str], None]) -> None:
        """Call `given_up` on the loop with each node that is given up from now on.

        One that was given up while there was no connection to the database is found by its row.
        """

        async def look() -> None:
            try:
                found = await self.control.run(nodes.gone_nodes)
            except StorageUnavailable as error:
                _log.warning("nodes that are gone are unknown", reason=error.message)
                return
            for name in found:
                given_up(name)

        def gap() -> None:
            task = self._loop.create_task(look(), name="nodes that are gone")
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)

        self.notices.follow(
            nodes.GONE_CHANNEL,
            lambda name: self._tell(given_up, name),
            lambda: self._tell(lambda _: gap(), None),
        )

    async def aclose(self) -> None:
        """Give up the duty and end the lease; the writer must have ended before."""
        for task in self._looks:
            task.cancel()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self._duty is not None:
            self._duty.close()
        self.notices.close()
        if self.copies is not None:
            self.copies.close()
        self.control.close()
        if self._lease is not None:
            self._lease.close()

    def _drain(self, draining: object) -> None:
        self.on_draining(bool(draining))

    # ------------------------------------------------------------ on threads
    def _lost(self, stale: StaleNode) -> None:
        if self._duty is not None:
            self._duty.close()  # another node has to do it, and what this one tries is refused
        self._tell(self._on_lost, f"the node has lost its lease: {stale.message}")

    def _load(self) -> NodeLoad:
        _, taken = memory()
        return NodeLoad(memory_bytes=taken)

    def _give_up(self, connection: Any) -> None:
        after = self._config.cluster.machine_lost_seconds
        gone = nodes.declare_ended(connection, self.fence, after=after)
        if gone:
            _log.warning("nodes given up", nodes=gone)
            placements.forget_deleted(connection)
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + FORGET_SECONDS
            forget_listeners(connection)
        waiting = nodes.gone_with_sessions(connection)
        if waiting:
            self._tell(self.on_gone, waiting)

    def _tell(self, function: Callable[[Any], object], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no receiver left
            self._loop.call_soon_threadsafe(function, argument)
