"""Rows of placements: the home node of each project. All of a project is on its home.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.errors import Conflict, Unavailable
from oubliette.runtime.store.postgres.cluster.node_records import ProjectHome
from oubliette.runtime.store.postgres.fence import STILL_LIVE, TAKES_NONE

if TYPE_CHECKING:
    from typing import TypeAlias

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_PLACE: Final = "SELECT home, placed_now FROM place_project(%s, %s, %s)"
_SELECT: Final = """
SELECT project_id, node, placements.epoch, state
FROM placements JOIN nodes ON nodes.name = placements.node
"""
_TAKE_OVER: Final = """
WITH left_behind AS (
  SELECT project_id, node FROM placements JOIN nodes ON nodes.name = node
  WHERE nodes.state = 'gone'
    AND EXISTS (SELECT FROM sessions WHERE sessions.project_id = placements.project_id AND live = 1)
)
UPDATE placements SET node = %s, epoch = %s, placed = clock_timestamp() FROM left_behind
WHERE placements.project_id = left_behind.project_id
RETURNING placements.project_id, left_behind.node
"""
_FORGET_DELETED: Final = """
DELETE FROM placements USING projects, nodes
WHERE projects.id = project_id AND projects.deleted_at IS NOT NULL
  AND nodes.name = node AND (nodes.state = 'gone' OR nodes.name = %s)
"""


def place(connection: Connection, project_id: str, node: str) -> str:
    """Place a project on a node unless it has a home; return its home, this node or another.

    Of several that place a project at the same moment, one decides, and all get its answer. A
    home on a node that is gone counts as none once nothing of the project lives.

    Raises:
        Conflict: its node is gone, but its sessions have not been ended yet.
        Unavailable: the node takes no projects: it is draining, or its lease has ended.
    """
    return _place(connection, project_id, node, None)[0]


def move(connection: Connection, project_id: str, *, home: str, to: str) -> bool:
    """Move a project to another node; return whether it was moved, and not someone was first.

    Args:
        connection: Any connection.
        project_id: The project.
        home: Node that the caller holds for its home; nothing is done if it is another.
        to: Node that it is moved to.

    Raises:
        Conflict: sessions of the project live.
        Unavailable: the node takes no projects: it is draining, or its lease has ended.
    """
    return _place(connection, project_id, to, home)[1]


def _place(
    connection: Connection, project_id: str, node: str, expected: str | None
) -> tuple[str, bool]:
    try:
        row = connection.execute(_PLACE, (project_id, node, expected)).fetchone()
    except psycopg.DatabaseError as error:
        if error.sqlstate == STILL_LIVE:
            raise Conflict(
                f"project {project_id} cannot be placed elsewhere: it has live sessions",
                hint="end them first",
            ) from error
        if error.sqlstate == TAKES_NONE:
            raise Unavailable(f"node {node} takes no projects now") from error
        raise
    assert row is not None
    return row


def home_of(connection: Connection, project_id: str) -> ProjectHome | None:
    """Return the home of a project, which may be on a node that is gone; None: it has none."""
    row = connection.execute(_SELECT + "WHERE project_id = %s", (project_id,)).fetchone()
    return None if row is None else _home(row)


def take_over(connection: Connection, by: NodeFence) -> dict[str, str]:
    """Move the projects whose node is gone, and that have live sessions, to the node of the fence.

    It has to end their sessions, whose agents are lost.

    Args:
        connection: One that is in no transaction.
        by: Epoch of the node that takes them over.

    Returns:
        Project id → the node that is gone.

    Raises:
        StaleNode: the epoch has ended.
    """
    with connection.transaction():
        by.hold(connection)
        # A node that comes back waits here with its new epoch, and then finds them moved.
        connection.execute("SELECT FROM nodes WHERE state = 'gone' ORDER BY name FOR SHARE")
        return dict(connection.execute(_TAKE_OVER, by.parameters).fetchall())


def homes_on(connection: Connection, node: str) -> list[ProjectHome]:
    """All projects that have their home on a node, by id."""
    found = connection.execute(_SELECT + "WHERE node = %s ORDER BY project_id", (node,))
    return [_home(row) for row in found]


def forget_placement(connection: Connection, project_id: str) -> None:
    """Delete the placement of a project that is deleted."""
    connection.execute("DELETE FROM placements WHERE project_id = %s", (project_id,))


def forget_deleted(connection: Connection, starting: str | None = None) -> None:
    """Delete the placements of deleted projects on nodes that count none of their trees any more.

    Those are the nodes that are gone, and the one that starts. A tree that goes on elsewhere has
    its project placed again.
    """
    connection.execute(_FORGET_DELETED, (starting,))


def _home(row: tuple[Any, ...]) -> ProjectHome:
    project_id, node, epoch, state = row
    return ProjectHome(project_id=project_id, node=node, epoch=epoch, state=state)
