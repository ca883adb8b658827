"""Questions about the copies of snapshots that nodes hold for each other.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import psycopg

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_BADLY_HELD: Final = """
SELECT copy.project_id, copy.name
FROM snapshot_copies AS copy JOIN placements ON placements.project_id = copy.project_id
WHERE placements.node = %(node)s AND copy.parts <> '{}'
  AND (copy.holder = %(node)s OR NOT EXISTS (
    SELECT FROM nodes WHERE nodes.name = copy.holder AND state = 'running'
  ))
  AND EXISTS (
    SELECT FROM nodes
    WHERE nodes.name <> %(node)s AND state = 'running' AND lease_until > clock_timestamp()
  )
ORDER BY copy.project_id, copy.name
"""
_DELETED: Final = """
SELECT id FROM unnest(%s::text[]) AS known (id)
WHERE NOT EXISTS (
  SELECT FROM projects WHERE projects.id = known.id AND projects.deleted_at IS NULL
)
"""


def parts_held(connection: Connection, node: str) -> list[tuple[str, str]]:
    """The parts that a node holds by their records, as pairs of project and part."""
    sql = "SELECT project_id, unnest(parts) FROM snapshot_copies WHERE holder = %s"
    return [(project_id, part) for project_id, part in connection.execute(sql, (node,))]


def parts_of(connection: Connection, project_id: str) -> dict[str, set[str]]:
    """The parts of the copies of a project, by holder."""
    sql = "SELECT holder, unnest(parts) FROM snapshot_copies WHERE project_id = %s"
    found: dict[str, set[str]] = {}
    for holder, part in connection.execute(sql, (project_id,)):
        found.setdefault(holder, set()).add(part)
    return found


def badly_held(connection: Connection, node: str) -> list[tuple[str, str]]:
    """The copies, as project and name, of the projects of a node that need another holder.

    Theirs is gone, is drained, or is that node itself. There are none while no other node runs.
    """
    found = connection.execute(_BADLY_HELD, {"node": node})
    return [(project_id, name) for project_id, name in found]


def deleted_of(connection: Connection, projects: Sequence[str]) -> list[str]:
    """Return those of some projects that are deleted."""
    return [project_id for (project_id,) in connection.execute(_DELETED, (list(projects),))]
