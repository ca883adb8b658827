"""Rows of listeners: what all nodes know of a caller. The newest provider counts, on any node.

A change that others have to know is notified on `CHANNEL` by the database itself, with its number
and the caller. Each function returns the row as it is afterwards.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import StaleNode
from oubliette.runtime.store.postgres.cluster.node_records import ListenerRow

if TYPE_CHECKING:
    from typing import TypeAlias

    import psycopg

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CHANNEL: Final = "oubliette_callers"
"""Channel on which changes are notified, as `<change> <project> <principal>/<caller_id>`; the
project is empty for keys that are bound to none."""
FORGET_SECONDS: Final = 3600.0
"""Time after which an absent caller is forgotten."""

_ROW: Final = """
listeners.principal, listeners.caller_id, listeners.project, listeners.node, generation, change,
held,
greatest(
  CASE WHEN held THEN grace + (
    SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM nodes
    WHERE nodes.name = listeners.node
  ) END,
  extract(epoch FROM seen_until - clock_timestamp())
)::float8, reason, tools, delivered
"""
_OPEN: Final = f"""
WITH mine AS (SELECT nextval('listener_generations') AS generation)
INSERT INTO listeners
  (principal, caller_id, project, node, generation, held, seen_until, grace, tools, delivered)
SELECT %(principal)s, %(caller)s, %(project)s, nodes.name, mine.generation, true, clock_timestamp(),
  %(grace)s, %(tools)s, %(delivered)s
FROM mine, nodes WHERE nodes.name = %(node)s AND nodes.epoch = %(epoch)s FOR KEY SHARE OF nodes
ON CONFLICT (principal, caller_id, project) DO UPDATE SET
  node = excluded.node, generation = excluded.generation, held = true,
  seen_until = excluded.seen_until, grace = excluded.grace,
  tools = coalesce(excluded.tools, listeners.tools),
  delivered = CASE
    WHEN listeners.delivered IS NULL OR listeners.held AND listeners.node <> excluded.node
    THEN %(head)s::bigint ELSE greatest(listeners.delivered, excluded.delivered) END
WHERE listeners.generation < excluded.generation
RETURNING {_ROW}
"""  # noqa: S608 - ours
_RELEASE: Final = f"""
UPDATE listeners SET held = false, reason = %s, delivered = %s,
  seen_until = clock_timestamp() + %s * interval '1 second'
WHERE principal = %s AND caller_id = %s AND project = %s AND generation = %s AND held
RETURNING {_ROW}
"""  # noqa: S608 - ours
_NOTE: Final = f"""
INSERT INTO listeners (principal, caller_id, project, node, generation, seen_until, reason, tools)
VALUES (%(principal)s, %(caller)s, %(project)s, %(node)s, 0,
  clock_timestamp() + %(seconds)s * interval '1 second', %(reason)s, %(tools)s)
ON CONFLICT (principal, caller_id, project) DO UPDATE SET
  reason = CASE WHEN listeners.held OR listeners.seen_until > clock_timestamp() OR %(seconds)s = 0
    THEN listeners.reason ELSE excluded.reason END,
  seen_until = greatest(listeners.seen_until, excluded.seen_until),
  tools = coalesce(excluded.tools, listeners.tools)
RETURNING {_ROW}
"""  # noqa: S608 - ours
_FIND: Final = f"""
SELECT {_ROW} FROM listeners WHERE principal = %s AND caller_id = %s AND project = %s
"""  # noqa: S608 - ours
_PROJECTS: Final = """
SELECT project FROM listeners WHERE principal = %s AND caller_id = %s AND project <> ''
"""
_CURRENT: Final = "SELECT 1 FROM nodes WHERE name = %s AND epoch = %s"
_FORGET: Final = """
DELETE FROM listeners
WHERE NOT held AND seen_until < clock_timestamp() - %s * interval '1 second'
"""


def open_provider(
    connection: Connection,
    principal: str,
    caller_id: str,
    by: NodeFence,
    *,
    project: str = "",
    grace: float,
    tools: str | None,
    delivered: int,
    head: int,
) -> ListenerRow:
    """Record a new provider of a caller on the node of the fence; it supersedes the one before.

    The row that is returned is another node's if a newer one was recorded at the same moment.

    Args:
        connection: Any connection.
        principal: Principal of the caller.
        caller_id: Its id.
        by: Epoch of the node to which it is connected.
        project: That its key is bound to; empty: to none.
        grace: Seconds for which it counts as present if that node is gone.
        tools: Tools that it provides, as JSON; None: as before.
        delivered: Seq up to which it has received events from this node.
        head: End of the log. It counts as delivered as far as another node may have delivered.

    Raises:
        StaleNode: the epoch has ended.
    """
    values = {
        "principal": principal,
        "caller": caller_id,
        "project": project,
        "node": by.node,
        "epoch": by.epoch,
        "grace": grace,
        "tools": tools,
        "delivered": delivered,
        "head": head,
    }
    row = connection.execute(_OPEN, values).fetchone()
    if row is not None:
        return _record(row)
    # A newer one was there first, or the node has ended.
    found = listener_of(connection, principal, caller_id, project)
    if found is None or connection.execute(_CURRENT, by.parameters).fetchone() is None:
        raise StaleNode(
            f"epoch {by.epoch} of node {by.node} has ended", hint="start the node again"
        )
    return found


def release_provider(
    connection: Connection,
    principal: str,
    caller_id: str,
    generation: int,
    *,
    project: str = "",
    seconds: float,
    reason: str,
    delivered: int,
) -> ListenerRow | None:
    """Record that a provider has ended, unless a newer one has superseded it.

    Args:
        connection: Any connection.
        principal: Principal of the caller.
        caller_id: Its id.
        generation: Generation of the provider.
        project: That its key is bound to; empty: to none.
        seconds: Time for which the caller still counts as present; earlier signs do not count.
        reason: Reason why it is absent afterwards.
        delivered: Seq up to which it has received events.
    """
    row = connection.execute(
        _RELEASE, (reason, delivered, seconds, principal, caller_id, project, generation)
    ).fetchone()
    return listener_of(connection, principal, caller_id, project) if row is None else _record(row)


def note_caller(
    connection: Connection,
    principal: str,
    caller_id: str,
    node: str,
    *,
    project: str = "",
    seconds: float,
    reason: str,
    tools: str | None,
) -> ListenerRow:
    """Record a sign of life, or the tools of a caller, or both.

    Args:
        connection: Any connection.
        principal: Principal of the caller.
        caller_id: Its id.
        node: Node on which it called.
        project: That its key is bound to; empty: to none.
        seconds: Time for which it counts as present at least; 0: it gave no sign of life.
        reason: Reason why it is absent afterwards, if it was absent before.
        tools: Tools that it provides, as JSON; None: as before.
    """
    values = {
        "principal": principal,
        "caller": caller_id,
        "project": project,
        "node": node,
        "seconds": seconds,
        "reason": reason,
        "tools": tools,
    }
    row = connection.execute(_NOTE, values).fetchone()
    assert row is not None
    return _record(row)


def projects_of(connection: Connection, principal: str, caller_id: str) -> list[str]:
    """The projects for whose bound keys a caller has rows."""
    found = connection.execute(_PROJECTS, (principal, caller_id))
    return [project for (project,) in found.fetchall()]


def listener_of(
    connection: Connection, principal: str, caller_id: str, project: str = ""
) -> ListenerRow | None:
    """Return the row of a caller; None: no node knows it.

    Args:
        connection: Any connection.
        principal: Principal of the caller.
        caller_id: Its id.
        project: That its key is bound to; empty: to none.
    """
    row = connection.execute(_FIND, (principal, caller_id, project)).fetchone()
    return None if row is None else _record(row)


def forget_listeners(connection: Connection, seconds: float = FORGET_SECONDS) -> int:
    """Delete the rows of callers that have been absent for so long; return their number."""
    return connection.execute(_FORGET, (seconds,)).rowcount


def _record(row: tuple[Any, ...]) -> ListenerRow:
    principal, caller_id, project, node, generation, change, held, seconds = row[:8]
    reason, tools, delivered = row[8:]
    return ListenerRow(
        principal=principal,
        caller_id=caller_id,
        project=project,
        node=node,
        generation=generation,
        change=change,
        held=held,
        seconds=seconds,
        reason=reason,
        tools=tools,
        delivered=delivered,
    )
