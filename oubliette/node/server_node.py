"""ServerNode, the part of a server's start that makes it a node of a cluster.

Nothing of it is imported on a server that is alone but this module: the driver of the database and
what uses it come with the first node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.project.supervisor import TakeOverProjects
from oubliette.kit.remote import checked_node, connect
from oubliette.runtime.start_and_stop import stopping
from oubliette.runtime.store.opening import driver_missing
from oubliette.tools.forwarded_calls import ForwardedCallsActor
from oubliette.tools.home_nodes import CALLS

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from oubliette.actors.context import ActorContext
    from oubliette.config.schema import Config
    from oubliette.kit import System
    from oubliette.node.caller_board import SharedCallerBoard
    from oubliette.node.claims import ClusterClaims
    from oubliette.node.cluster_shares import ClusterShares
    from oubliette.node.homes import ClusterHomes
    from oubliette.node.membership import Membership
    from oubliette.node.spec import NodeSpec
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.snapshots.copies import CopyParts
    from oubliette.runtime.store.postgres.database import PostgresDatabase
    from oubliette.runtime.store.reader import Reader
    from oubliette.tools.auth.api_keys import ApiKeys
    from oubliette.tools.services import ToolServices

CLOSE_SECONDS: Final = 15.0
"""Time for the lease and its threads to end."""


class ServerNode:
    """A server's membership of its cluster; each method belongs to a stage of the start.

    Args:
        spec: The node.
        config: Of the server.
        on_lost: Called with the reason when this run of the node has ended for the others.

    Raises:
        InvalidParameter: the name cannot be that of a node.
    """

    def __init__(self, spec: NodeSpec, config: Config, on_lost: Callable[[str], object]) -> None:
        self._spec = spec
        checked_node(spec.name)
        self._config = config
        self._on_lost = on_lost
        self._system: System
        self.membership: Membership
        self.claims: ClusterClaims
        self.shares: ClusterShares
        self.homes: ClusterHomes
        self.callers: SharedCallerBoard

    async def join(
        self, stack: contextlib.AsyncExitStack, runtime: ContainerRuntime
    ) -> PostgresDatabase:
        """Take a new epoch of the node; return the database, which knows it.

        Raises:
            ConfigError: there is no PostgreSQL, or the node cannot have a lease; has the remedy.
        """
        try:
            # Slow to import, and not installed where it was not asked for.
            from oubliette.node.claims import ClusterClaims
            from oubliette.node.cluster_shares import ClusterShares
            from oubliette.node.membership import Membership
            from oubliette.node.spec import offer_of
        except ImportError as error:
            raise driver_missing(error) from error
        self.membership = Membership(
            self._spec,
            self._config,
            on_lost=self._on_lost,
        )
        stack.push_async_callback(stopping, "node", self.membership.aclose, CLOSE_SECONDS)
        database = await self.membership.take(offer_of(self._config, runtime))
        self.claims = ClusterClaims(self.membership.control, self.membership.fence)
        await self.claims.start()
        stack.push_async_callback(stopping, "claims", self.claims.aclose)
        member = self.membership
        self.shares = ClusterShares(member.control, member.notices, member.fence)
        await self.shares.start()
        stack.push_async_callback(stopping, "shares", self.shares.aclose)
        return database

    async def identity(self) -> tuple[str, int]:
        """Return the id that this node's containers carry, and the number of its start."""
        instance = await self.membership.instance()
        return f"{instance}-{self.membership.name}", self.membership.fence.epoch

    def share_keys(self, stack: contextlib.AsyncExitStack, keys: ApiKeys) -> None:
        """Keep the keys as they are in the database, whichever node changes them."""
        from oubliette.node.shared_keys import SharedKeys

        shared = SharedKeys(keys, self.membership.notices)
        shared.start()
        stack.push_async_callback(stopping, "shared keys", shared.aclose)

    def open_homes(self, system: System, reader: Reader) -> ClusterHomes:
        """Begin to share callers with the other nodes; return the homes of projects."""
        from oubliette.node.caller_board import SharedCallerBoard
        from oubliette.node.homes import ClusterHomes

        self._system = system
        member = self.membership
        self.homes = ClusterHomes(self._config, member, system, reader)
        self.callers = SharedCallerBoard(
            member.control,
            member.notices,
            member.fence,
            system,
            unsteady=lambda: member.unsteady_seconds,
        )
        self.callers.start()
        return self.homes

    def copies(self) -> CopyParts | None:
        """Return the keeper of copies of snapshots; None: a folder has them, or there are none."""
        member = self.membership
        if member.copies is None:
            return None
        from oubliette.node.database_copies import DatabaseCopies
        from oubliette.node.node_copies import NodeCopies

        if self._config.cluster.snapshots == "node":
            return NodeCopies(member.copies, member.fence, self._system)
        return DatabaseCopies(member.copies, member.fence)

    def connect(self, services: ToolServices, context: ActorContext) -> None:
        """Take calls of the other nodes from now on; the actors that they need were started."""
        from oubliette.node.drain import DRAIN, DrainActor, MoveMisplaced, SetDraining
        from oubliette.node.moving import ARRIVALS, ArrivalsActor

        self._system.spawn(ForwardedCallsActor, services, name=CALLS)
        self._system.spawn(ArrivalsActor, context.home, self.homes, name=ARRIVALS)
        if self._config.cluster.snapshots == "node":
            self._hold_copies(context)
        drain = self._system.spawn(DrainActor, context, self.homes, context.home, name=DRAIN)
        self.membership.on_draining = lambda on: drain.tell(SetDraining(draining=on))
        drain.tell(SetDraining(draining=self.membership.draining))
        self.homes.on_taken = lambda: drain.tell(MoveMisplaced())
        fence = self.membership.fence
        others = connect(self._system, self._spec.transport, fence.epoch)

        def given_up(node: str) -> None:
            self.homes.forget_homes_on(node)
            if node != fence.node:
                others.gone(node, "it was given up")

        self.membership.follow_gone(given_up)

    def _hold_copies(self, context: ActorContext) -> None:
        from oubliette.node.database_copies import CopyRecords
        from oubliette.node.held_copies import COPIES, HeldCopiesActor

        member = self.membership
        assert member.copies is not None
        most = self._config.cluster.snapshots_max_bytes
        records = CopyRecords(member.copies, member.fence)
        args = (context.home, member.name, records, most)
        self._system.spawn(HeldCopiesActor, *args, name=COPIES)

    async def serve(self, url: str) -> None:
        """Publish the URL for clients, and help to notice lost nodes."""
        projects = self._system.ref("projects")
        self.membership.on_gone = lambda _: projects.tell(TakeOverProjects())
        await self.membership.serve(url)
