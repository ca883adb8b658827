"""Rows of the nodes: their epochs, leases and states. The database's clock decides.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg

from oubliette.errors import Conflict, NotFound, StaleNode
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad, NodeOffer, NodeRecord
from oubliette.runtime.store.postgres.fence import refusal

if TYPE_CHECKING:
    from typing import TypeAlias

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

LEASE_SECONDS: Final = 10.0
"""Time from a renewal to the end of the lease."""
RENEW_SECONDS: Final = 2.0
"""Time between two renewals."""
LATE_SECONDS: Final = 2 * RENEW_SECONDS
"""A renewal this long after the one before it is late: the database, or the node, was away."""
GONE_CHANNEL: Final = "oubliette_nodes"
"""Channel on which the database notifies the name of a node that was given up."""
_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""Attempts at an epoch, while transactions of the one before it begin."""

_TAKE: Final = """
INSERT INTO nodes (name, epoch, state, lease_until, steady_since, started, address, offer, load)
VALUES (%(name)s, 1, 'running', clock_timestamp() + %(lease)s * interval '1 second',
  clock_timestamp(), clock_timestamp(), %(address)s, %(offer)s, '{}')
ON CONFLICT (name) DO UPDATE SET
  epoch = nodes.epoch + 1,
  state = CASE nodes.state WHEN 'draining' THEN 'draining' ELSE 'running' END,
  lease_until = clock_timestamp() + %(lease)s * interval '1 second',
  steady_since = clock_timestamp(), started = clock_timestamp(),
  address = excluded.address, offer = excluded.offer, load = excluded.load
RETURNING epoch
"""
_RENEW: Final = """
UPDATE nodes SET
  lease_until = clock_timestamp() + %(lease)s * interval '1 second',
  steady_since = CASE
    WHEN lease_until < clock_timestamp() + (%(lease)s - %(late)s) * interval '1 second'
    THEN clock_timestamp() ELSE steady_since END,
  load = %(load)s
WHERE name = %(name)s AND epoch = %(epoch)s
RETURNING state
"""
_LEFT_BEHIND: Final = """
SELECT name FROM nodes WHERE state = 'gone' AND EXISTS (
  SELECT FROM placements JOIN sessions USING (project_id)
  WHERE placements.node = nodes.name AND sessions.live = 1
) ORDER BY name
"""
_STEADY: Final = """
SELECT 1 FROM nodes WHERE state <> 'gone' AND lease_until >= clock_timestamp()
  AND steady_since <= clock_timestamp() - %(after)s * interval '1 second' LIMIT 1
"""
"""Whether a node that has its lease has had the database for so long without a gap."""
_SELECT: Final = """
SELECT name, epoch, state, extract(epoch FROM lease_until - clock_timestamp())::float8,
  extract(epoch FROM clock_timestamp() - started)::float8, address, offer::text, load::text
FROM nodes
"""


def take_epoch(connection: Connection, name: str, address: str, offer: NodeOffer) -> int:
    """Take a new epoch of a node, with a lease; the one before it ends.

    Sessions of the database that have a transaction of the old epoch open are ended. A node that
    was draining still is.
    """
    values = {
        "name": name,
        "lease": LEASE_SECONDS,
        "address": address,
        "offer": msgspec.json.encode(offer).decode(),
    }
    for attempt in range(1, _ATTEMPTS + 1):
        connection.execute("SELECT end_transactions(%s)", (name,))
        try:
            return int(_one(connection.execute(_TAKE, values)))
        except psycopg.errors.LockNotAvailable:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def renew_lease(connection: Connection, fence: NodeFence, load: NodeLoad) -> str:
    """Renew a lease, also one that has ended if no other epoch has begun; return the node's state.

    Raises:
        StaleNode: another epoch has begun, or the node was declared gone.
    """
    values = {
        "name": fence.node,
        "epoch": fence.epoch,
        "lease": LEASE_SECONDS,
        "late": LATE_SECONDS,
        "load": msgspec.json.encode(load).decode(),
    }
    row = connection.execute(_RENEW, values).fetchone()
    if row is None:
        raise StaleNode(
            f"epoch {fence.epoch} of node {fence.node} has ended", hint="start the node again"
        )
    return str(row[0])


def end_lease(connection: Connection, fence: NodeFence) -> None:
    """End the lease now, so that the others need not wait for its end; it may be taken again."""
    connection.execute(
        "UPDATE nodes SET lease_until = clock_timestamp() WHERE name = %s AND epoch = %s",
        fence.parameters,
    )


def declare_gone(connection: Connection, name: str, by: NodeFence) -> None:
    """End the epoch of a node whose lease has ended, with its listeners and claims of limits.

    From then on it stores nothing, and its projects may be placed elsewhere. Its open transactions
    are rolled back. No effect on a node that is gone already.

    Args:
        connection: One that is in no transaction.
        name: Name of the node.
        by: Epoch of the node that declares it. That one must have renewed its own lease in time
            for as long as a lease lasts: after an outage of the database all leases have ended,
            and each node gets the time to renew its own.

    Raises:
        Conflict: the lease has not ended, or was not seen to end.
        StaleNode: the epoch of the node that declares it has ended itself.
    """
    try:
        reason = _one(
            connection.execute(
                "SELECT declare_gone(%s, %s, %s, %s * interval '1 second')",
                (name, *by.parameters, LEASE_SECONDS),
            )
        )
    except psycopg.DatabaseError as error:
        refused = refusal(error)
        if refused is not None:
            raise refused from error
        raise
    if reason is not None:
        raise Conflict(f"node {name} cannot be declared gone: {reason}")


def shared_meta(connection: Connection, key: str, proposed: str) -> str:
    """Return a value that all nodes share; of several that propose one, the first decides."""
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (%s, %s) ON CONFLICT DO NOTHING", (key, proposed)
    )
    return str(_one(connection.execute("SELECT value FROM meta WHERE key = %s", (key,))))


def set_address(connection: Connection, fence: NodeFence, address: str) -> None:
    """Record where a node serves clients; no effect if its epoch has ended."""
    connection.execute(
        "UPDATE nodes SET address = %s WHERE name = %s AND epoch = %s", (address, *fence.parameters)
    )


def declare_ended(
    connection: Connection, by: NodeFence, *, after: float = LEASE_SECONDS
) -> list[str]:
    """Declare all nodes gone whose lease has ended and that may be declared so; return them.

    Args:
        connection: As for `declare_gone`.
        by: As for `declare_gone`.
        after: Seconds from the latest renewal of a lease, at least those of a lease; until then
            the node may come back. Those in which no node had the database do not count.

    Raises:
        StaleNode: as for `declare_gone`.
    """
    gone: list[str] = []
    if connection.execute(_STEADY, {"after": after}).fetchone() is None:
        return gone
    for name in ended_leases(connection, max(0.0, after - LEASE_SECONDS)):
        try:
            declare_gone(connection, name, by)
        except Conflict as refused:  # in a moment it may be so
            _log.debug("a node is not declared gone: %s", refused)
        else:
            gone.append(name)
    return gone


def set_draining(connection: Connection, name: str, *, draining: bool) -> None:
    """Let a node take no more projects, or let it take them again.

    Raises:
        NotFound: there is no such node, or it is gone.
    """
    state = "draining" if draining else "running"
    changed = connection.execute(
        "UPDATE nodes SET state = %s WHERE name = %s AND state <> 'gone'", (state, name)
    )
    if changed.rowcount != 1:
        raise NotFound(f"there is no node {name}, or it is gone")


def all_nodes(connection: Connection) -> list[NodeRecord]:
    """All nodes that there ever were, by name."""
    return [_record(row) for row in connection.execute(_SELECT + "ORDER BY name")]


def ended_leases(connection: Connection, since: float = 0.0) -> list[str]:
    """Return the nodes that `declare_gone` is for: their lease has ended, and they are not gone.

    Args:
        connection: Any connection.
        since: Seconds for which it must have ended.
    """
    found = connection.execute(
        "SELECT name FROM nodes WHERE state <> 'gone'"
        " AND lease_until < clock_timestamp() - %s * interval '1 second' ORDER BY name",
        (since,),
    )
    return [name for (name,) in found]


def gone_nodes(connection: Connection) -> list[str]:
    """The nodes that are gone, by name."""
    found = connection.execute("SELECT name FROM nodes WHERE state = 'gone' ORDER BY name")
    return [name for (name,) in found]


def gone_with_sessions(connection: Connection) -> list[str]:
    """The nodes that are gone and are still the home of live sessions, by name."""
    return [name for (name,) in connection.execute(_LEFT_BEHIND)]


def _record(row: tuple[Any, ...]) -> NodeRecord:
    name, epoch, state, lease, uptime, address, offer, load = row
    return NodeRecord(
        name=name,
        epoch=epoch,
        state=state,
        lease_seconds=lease,
        uptime_seconds=uptime,
        address=address,
        offer=msgspec.json.decode(offer, type=NodeOffer),
        load=msgspec.json.decode(load, type=NodeLoad),
    )


def _one(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row[0]
