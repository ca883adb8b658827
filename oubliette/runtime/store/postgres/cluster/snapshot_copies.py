"""Rows of the copies of snapshots, and the chunks of their parts.

Each call is one short transaction, or some: an open one would delay the readers of the log.

All that use the database raise psycopg.Error if it failed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.errors import Conflict
from oubliette.runtime.store.postgres.fence import refusal

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import LiteralString, TypeAlias

    from oubliette.runtime.store.postgres.fence import NodeFence

    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
    Key: TypeAlias = tuple[str, str]
    """Project, and name of the copy in it."""

CHUNK_BYTES: Final = 512 * 1024
"""Size limit of a chunk."""
_AT_ONCE: Final = 32
"""Chunks that one transaction removes."""
_READ: Final = "SELECT data FROM snapshot_copies WHERE project_id = %s AND name = %s"
_CHUNK: Final = """
SELECT data FROM snapshot_chunks
WHERE project_id = %s AND name = %s AND part = %s AND number = %s
"""
_PUBLISH: Final = "SELECT publish_snapshot_copy(%s, %s, %s, %s, %s, %s, %s::text[], %s)"
_DELETED: Final = """
SELECT project_id FROM (
  SELECT project_id FROM snapshot_copies UNION SELECT DISTINCT project_id FROM snapshot_chunks
) AS known
WHERE NOT EXISTS (SELECT FROM projects WHERE id = known.project_id AND deleted_at IS NULL)
ORDER BY project_id
"""


def read_copy(connection: Connection, key: Key) -> bytes | None:
    """Return the record of a copy, as it was published; None: there is none."""
    row = connection.execute(_READ, key, binary=True).fetchone()
    return None if row is None else row[0]


def publish_copy(
    connection: Connection,
    fence: NodeFence,
    key: Key,
    *,
    version: int,
    holder: str,
    parts: Sequence[str],
    record: bytes,
) -> None:
    """Store the next version of a record; storing the same one again has no effect.

    Args:
        connection: One that is in no transaction.
        fence: Epoch of the home of the project.
        key: The copy.
        version: Of the record; the one before has a version that is lower by one.
        holder: Node that has the parts; empty: the database has them.
        parts: Their ids.
        record: All of it.

    Raises:
        Conflict: another version is there.
        StaleNode: the epoch has ended.
        NotHere: the node is not the home of the project.
    """
    values = (*fence.parameters, *key, version, holder, list(parts), record)
    with _refused():
        row = connection.execute(_PUBLISH, values).fetchone()
    if row is None or not row[0]:
        raise Conflict("another node has stored a copy of the snapshots since")


def put_chunk(
    connection: Connection, fence: NodeFence, key: Key, *, part: str, number: int, data: bytes
) -> None:
    """Store a chunk of a part; storing it again has no effect.

    Raises:
        StaleNode: the epoch has ended.
        NotHere: the node is not the home of the project.
    """
    values = (*fence.parameters, *key, part, number, data)
    with _refused():
        connection.execute("SELECT put_snapshot_chunk(%s, %s, %s, %s, %s, %s, %s)", values)


def get_chunk(connection: Connection, key: Key, part: str, number: int) -> bytes | None:
    """Return a chunk of a part; None: there is none of that number."""
    values = (*key, part, number)
    row = connection.execute(_CHUNK, values, binary=True).fetchone()
    return None if row is None else row[0]


def drop_chunks(connection: Connection, fence: NodeFence, key: Key) -> bool:
    """Remove some chunks that belong to no part of a copy; return whether there may be more.

    Raises:
        StaleNode: the epoch has ended.
        NotHere: the node is not the home of the project.
    """
    values = (*fence.parameters, *key, _AT_ONCE)
    return _dropped(connection, "SELECT drop_snapshot_chunks(%s, %s, %s, %s, %s)", values)


def deleted_projects(connection: Connection) -> list[str]:
    """The projects that are deleted and have copies, by id."""
    return [project_id for (project_id,) in connection.execute(_DELETED)]


def forget_copies(connection: Connection, fence: NodeFence, project_id: str) -> bool:
    """Remove some copies of a project that is deleted; return whether there may be more.

    Raises:
        StaleNode: the epoch has ended.
    """
    values = (*fence.parameters, project_id, _AT_ONCE)
    return _dropped(connection, "SELECT forget_snapshot_copies(%s, %s, %s, %s)", values)


def _dropped(connection: Connection, sql: LiteralString, values: Sequence[Any]) -> bool:
    with _refused():
        row = connection.execute(sql, values).fetchone()
    return row is not None and row[0] >= _AT_ONCE


@contextlib.contextmanager
def _refused() -> Generator[None]:
    try:
        yield
    except psycopg.DatabaseError as error:
        refused = refusal(error)
        if refused is not None:
            raise refused from error
        raise
