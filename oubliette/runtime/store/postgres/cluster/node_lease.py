"""Lease of this node, renewed by a thread on a connection of its own.

The database decides whose epoch it is. The node itself counts, on a clock that also runs while the
machine sleeps, for how long its lease surely lasts: from the moment before it asked, less a margin.
A process that was stopped finds that this time is over before it has asked the database. It may
then still renew the lease, if no other has ended its epoch.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.errors import StaleNode
from oubliette.runtime.store.postgres.cluster import nodes
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad, NodeOffer
from oubliette.runtime.store.postgres.cluster.nodes import (
    LATE_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
)
from oubliette.runtime.store.postgres.control_connection import control_connection, interrupt
from oubliette.runtime.store.postgres.fence import NodeFence

if TYPE_CHECKING:
    from collections.abc import Callable

MARGIN_SECONDS: Final = 2.0
"""Time before the end of the lease at which the node counts it as over."""
_FIRST_RETRY_SECONDS: Final = 0.25
"""Time until a failed renewal is repeated; it doubles up to the time between two renewals."""
_END_SECONDS: Final = 2.0
"""Time for a renewal and the end of the lease, before the connection is interrupted."""
_JOIN_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


def since_boot() -> float:
    """The seconds since the machine started, including those in which it slept."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _no_load() -> NodeLoad:
    return NodeLoad()


class NodeLease:
    """Lease of a node: `take` it, stop writing when it is lost, `close` it at the end.

    Args:
        url: Of the database.
        name: Name of the node.
        address: Where the others reach it.
        offer: What it has.
        on_lost: Called once, on the lease's thread, when another epoch has begun. Not called by
            `close`.
        load: Returns what of the node is taken; called on the lease's thread at each renewal.
        on_draining: Called on the lease's thread when the node is to be drained, or not any more.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_lost: Callable[[StaleNode], object],
        address: str = "",
        offer: NodeOffer | None = None,
        load: Callable[[], NodeLoad] = _no_load,
        on_draining: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self.name = name
        self.draining = False
        """Whether the node takes no more projects, as of the latest renewal."""
        self._url = url
        self._address = address
        self._offer = offer or NodeOffer()
        self._on_lost = on_lost
        self._load = load
        self._on_draining = on_draining
        self._counted = NodeLoad()
        """Load as of the latest renewal that could count it."""
        self._fence: NodeFence | None = None
        self._sure_until = 0.0
        """Second of `since_boot` until which the lease surely lasts. Written by one thread."""
        self._renewed_at = 0.0
        """Second of `since_boot` at which the database last answered. Written by one thread."""
        self._steady_at = 0.0
        """Second of `since_boot` from which on the others have renewed theirs as well."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="node-lease", daemon=True)
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def seconds_left(self) -> float:
        """Seconds for which the lease surely lasts; not positive: it may have ended."""
        return self._sure_until - since_boot()

    @property
    def unsteady_seconds(self) -> float:
        """Seconds for which the ends of other nodes' leases prove nothing; 0: they do.

        While the database was away from this node, it may have been away from all of them.
        """
        now = since_boot()
        if now - self._renewed_at > LATE_SECONDS:
            return LEASE_SECONDS
        return max(0.0, self._steady_at - now)

    def take(self) -> NodeFence:
        """Take a new epoch, begin to renew its lease, and return the fence for its transactions.

        Raises:
            psycopg.Error: the database failed; nothing was begun.
        """
        assert self._fence is None, "a lease is taken once"
        connection = self._connected()
        try:
            asked = since_boot()
            epoch = nodes.take_epoch(connection, self.name, self._address, self._offer)
        except BaseException:
            self._disconnect()
            raise
        self._sure_until = asked + LEASE_SECONDS - MARGIN_SECONDS
        self._renewed_at = since_boot()
        self._fence = NodeFence(self.name, epoch, lambda: self.seconds_left)
        self._thread.start()
        return self._fence

    def close(self) -> None:
        """End the lease and the thread; call it once nothing writes any more. Again: no effect."""
        self._closing.set()
        if self._thread.ident is None or self._thread is threading.current_thread():
            self._disconnect()
            return
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():  # its statement waits for a server that does not answer
            with self._lock:
                if self._connection is not None:
                    interrupt(self._connection)
            self._thread.join(_JOIN_SECONDS)

    def _keep(self) -> None:
        assert self._fence is not None
        delay = RENEW_SECONDS
        failures = 0
        try:
            while not self._closing.wait(delay):
                try:
                    self._renew(self._fence)
                    failures = 0
                    delay = RENEW_SECONDS
                except (psycopg.Error, OSError) as error:
                    self._disconnect()
                    if failures == 0:
                        _log.warning("the lease of the node could not be renewed: %s", error)
                    delay = min(_FIRST_RETRY_SECONDS * 2**failures, RENEW_SECONDS)
                    failures += 1
        except StaleNode as stale:
            self._sure_until = 0.0
            _log.warning("the node has lost its lease: %s", stale)
            self._on_lost(stale)
        else:
            self._leave(self._fence)
        finally:
            self._sure_until = 0.0
            self._disconnect()

    def _renew(self, fence: NodeFence) -> None:
        try:
            self._counted = self._load()
        except Exception:
            _log.exception("the load of the node could not be counted")
        connection = self._connected()
        asked = since_boot()
        state = nodes.renew_lease(connection, fence, self._counted)
        self._sure_until = asked + LEASE_SECONDS - MARGIN_SECONDS
        answered = since_boot()
        if answered - self._renewed_at > LATE_SECONDS:
            self._steady_at = answered + LEASE_SECONDS
        self._renewed_at = answered
        draining, before = state == "draining", self.draining
        self.draining = draining
        if draining != before:
            self._on_draining(draining)

    def _leave(self, fence: NodeFence) -> None:
        self._sure_until = 0.0
        # Without it the others wait for the end of the lease, as after a crash.
        with contextlib.suppress(psycopg.Error, OSError):
            nodes.end_lease(self._connected(), fence)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        with self._lock:
            connection = self._connection
        if connection is None or connection.closed:
            connection = control_connection(self._url, f"lease of {self.name}")
            with self._lock:
                self._connection = connection
        return connection

    def _disconnect(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
