"""Rows of listeners: the node on which the newest listener of each caller is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.runtime.store.postgres.node_records import ListenerRow

if TYPE_CHECKING:
    from typing import TypeAlias

    import psycopg

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_LISTEN: Final = """
WITH mine AS (SELECT nextval('listener_generations') AS generation)
INSERT INTO listeners (principal, caller_id, node, generation, seen_until)
SELECT %s, %s, nodes.name, mine.generation, clock_timestamp() + %s * interval '1 second'
FROM mine, nodes WHERE nodes.name = %s AND nodes.epoch = %s FOR KEY SHARE OF nodes
ON CONFLICT (principal, caller_id) DO UPDATE SET node = excluded.node,
  generation = excluded.generation, seen_until = excluded.seen_until
WHERE listeners.generation < excluded.generation
RETURNING generation
"""
_SEEN: Final = """
UPDATE listeners SET seen_until = clock_timestamp() + %s * interval '1 second'
WHERE principal = %s AND caller_id = %s AND generation = %s
"""
_FIND: Final = """
SELECT principal, caller_id, node, generation FROM listeners JOIN nodes ON nodes.name = node
WHERE principal = %s AND caller_id = %s AND seen_until > clock_timestamp()
  AND nodes.state <> 'gone' AND nodes.lease_until > clock_timestamp()
"""


def listen(
    connection: Connection, principal: str, caller_id: str, by: NodeFence, seconds: float
) -> int | None:
    """Record a new listener of a caller, on the node of the fence; return its generation.

    It supersedes the listener before it, on whichever node. None: a newer one was there first, or
    the node's epoch has ended.

    Args:
        connection: Any connection.
        principal: Principal of the caller.
        caller_id: Its id.
        by: Epoch of the node to which it is connected.
        seconds: Time for which it is present unless `seen` extends it.

    Raises:
        psycopg.Error: the database failed.
    """
    row = connection.execute(_LISTEN, (principal, caller_id, seconds, *by.parameters)).fetchone()
    return None if row is None else int(row[0])


def seen(
    connection: Connection, principal: str, caller_id: str, generation: int, seconds: float
) -> bool:
    """Extend the presence of a listener; False: a newer one has superseded it.

    Raises:
        psycopg.Error: the database failed.
    """
    changed = connection.execute(_SEEN, (seconds, principal, caller_id, generation))
    return changed.rowcount == 1


def left(connection: Connection, principal: str, caller_id: str, generation: int) -> None:
    """Delete the row of a listener that has left, unless a newer one has superseded it.

    Raises:
        psycopg.Error: the database failed.
    """
    connection.execute(
        "DELETE FROM listeners WHERE principal = %s AND caller_id = %s AND generation = %s",
        (principal, caller_id, generation),
    )


def listener_of(connection: Connection, principal: str, caller_id: str) -> ListenerRow | None:
    """Return the listener of a caller; None: no listener is present, or its node lost its lease.

    Raises:
        psycopg.Error: the database failed.
    """
    row = connection.execute(_FIND, (principal, caller_id)).fetchone()
    if row is None:
        return None
    owner, caller, node, generation = row
    return ListenerRow(principal=owner, caller_id=caller, node=node, generation=generation)


def forget_listeners(connection: Connection) -> int:
    """Delete the rows of listeners that are not present any more; return their number.

    Raises:
        psycopg.Error: the database failed.
    """
    return connection.execute("DELETE FROM listeners WHERE seen_until < clock_timestamp()").rowcount
