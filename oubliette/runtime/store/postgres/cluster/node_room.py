"""Room on the nodes, and the placing of projects where there is enough of it.

How much is taken is counted in the database at the moment of the choice, not taken from a report.
All that place projects do so one after the other, so two of them never take the same room.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import Conflict, NotHere, Unavailable
from oubliette.runtime.store.postgres.cluster import nodes, placements
from oubliette.runtime.store.postgres.cluster.node_choice import choose_node, misfit, taken_by
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeAlias

    import psycopg

    from oubliette.runtime.store.postgres.cluster.node_records import NodeRecord, ProjectNeeds

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

KEPT_SECONDS: Final = 30.0
"""Time for which room is kept for a project that was placed, until a session lives in it."""
LOCK: Final = zlib.crc32(b"oubliette placing")
"""Key of the advisory lock."""
_STOPPED_TIME: Final = "2s"
"""Time after which the server ends a transaction whose process does not go on."""

_TAKEN: Final = """
WITH living AS (
  SELECT project_id, count(*) AS sessions, count(DISTINCT workspace_id) AS workspaces
  FROM sessions WHERE live = 1 GROUP BY project_id
), counted AS (
  SELECT project_id FROM living
  UNION SELECT project_id FROM placements
  WHERE placed > clock_timestamp() - %s * interval '1 second'
)
SELECT node,
  sum(memory_bytes * containers)::float8, sum(processors * containers)::float8,
  sum(greatest(coalesce(sessions, 0), 1))::bigint
FROM placements JOIN counted USING (project_id) LEFT JOIN living USING (project_id),
  LATERAL (SELECT CASE WHEN isolated THEN greatest(workspaces, 1) ELSE 1 END AS containers) AS used
GROUP BY node
"""
_RECORD: Final = """
UPDATE placements SET memory_bytes = %s, processors = %s, isolated = %s WHERE project_id = %s
"""


def nodes_with_room(connection: Connection) -> list[NodeRecord]:
    """All nodes by name, with what is taken of each at this moment.

    Memory that other programs of a machine use is taken too, as of its node's latest renewal.
    """
    taken = {
        name: NodeLoad(memory_bytes=int(memory), processors=processors, live_sessions=sessions)
        for name, memory, processors, sessions in connection.execute(_TAKEN, (KEPT_SECONDS,))
    }
    found: list[NodeRecord] = []
    for node in nodes.all_nodes(connection):
        load = taken.get(node.name, NodeLoad())
        used = max(load.memory_bytes, node.load.memory_bytes)
        load = msgspec.structs.replace(load, memory_bytes=used)
        found.append(msgspec.structs.replace(node, load=load))
    return found


def place_anywhere(connection: Connection, project_id: str, needs: ProjectNeeds) -> str:
    """Place a project on the node with the most room unless it has a home; return its home.

    Raises:
        Conflict: its node is gone, but its sessions have not been ended yet.
        Unavailable: no node can take it; the message has the reason of each.
    """
    with _placing(connection):
        home = placements.home_of(connection, project_id)
        if home is not None and home.state != "gone":
            return home.node
        chosen = choose_node(needs, nodes_with_room(connection))
        node = placements.place(connection, project_id, chosen.name)
        _record(connection, project_id, taken_by(needs, chosen))
        return node


def place_on(connection: Connection, project_id: str, needs: ProjectNeeds, name: str) -> None:
    """Place a new project on a node that was chosen for it, if there still is room.

    Raises:
        NotHere: there is none any more.
        Unavailable: the node takes no projects now.
    """
    with _placing(connection):
        if placements.home_of(connection, project_id) is not None:
            return  # the answer of a first attempt was lost
        node = _node(connection, name)
        reason = misfit(needs, node)
        if reason is not None:
            raise NotHere(f"node {name} has no room any more: {reason}", hint="try again")
        placements.place(connection, project_id, name)
        _record(connection, project_id, taken_by(needs, node))


def move_where_room(
    connection: Connection, project_id: str, needs: ProjectNeeds, *, home: str, to: str
) -> bool:
    """Move a project as `placements.move` does, to a node that was chosen for it earlier.

    Raises:
        Conflict: sessions of the project live.
        Unavailable: the node takes no projects, or has no room any more.
    """
    with _placing(connection):
        node = _node(connection, to)
        reason = misfit(needs, node)
        if reason is not None:
            raise Unavailable(f"node {to} cannot take project {project_id} any more: {reason}")
        moved = placements.move(connection, project_id, home=home, to=to)
        if moved:
            _record(connection, project_id, taken_by(needs, node))
        return moved


@contextlib.contextmanager
def _placing(connection: Connection) -> Generator[None]:
    """Be the only one that places projects, in one transaction."""
    with connection.transaction():
        # A process that is stopped in here must not stop all others for longer than that.
        connection.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', %s, true)", (_STOPPED_TIME,)
        )
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        yield


def _node(connection: Connection, name: str) -> NodeRecord:
    for node in nodes_with_room(connection):
        if node.name == name:
            return node
    raise Conflict(f"there is no node {name}")


def _record(connection: Connection, project_id: str, needs: ProjectNeeds) -> None:
    values = (needs.memory_bytes, needs.processors, needs.isolated, project_id)
    connection.execute(_RECORD, values)
