"""Copy of a whole database into an empty one, of either kind, verified before it counts.

Everything is written in one transaction: a copy that is interrupted leaves the target empty. The
source is only read, on one view. Events keep their index and their seq, so that cursors of clients
stay valid, and new events continue after them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oubliette.errors import Conflict, StorageUnavailable
from oubliette.runtime.store.connection import is_postgres
from oubliette.runtime.store.log_order import EVENTS, horizon
from oubliette.runtime.store.queries import last_seq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oubliette.runtime.store.connection import StoreConnection

ROWS: Final = 500
"""Rows that are read and written at a time."""


class _Copied(NamedTuple):
    name: str
    columns: str
    order: str


TABLES: Final = (
    _Copied("meta", "key value", "key"),
    _Copied("principals", "id name data", "id"),
    _Copied("tokens", "id principal session_id data", "id"),
    _Copied("projects", "id name folded deleted_at data", "id"),
    _Copied("workspaces", "id project_id external_id created_at deleted_at data", "id"),
    _Copied("containers", "id project_id data", "id"),
    _Copied(
        "sessions",
        "id project_id workspace_id principal exploration_id parent_session_id container_id depth"
        " status live ended_by updated_at data",
        "id",
    ),
    _Copied("session_tools", "session_id data", "session_id"),
    _Copied("turns", "session_id number state call_id data", "rowid"),
    _Copied(
        "caller_requests",
        "id session_id principal caller_id call_id created_at settled_at outcome data",
        "id",
    ),
    _Copied("permissions", "id session_id principal caller_id turn decision data", "rowid"),
    _Copied(
        "usage",
        "session_id hour project_id principal agent model"
        " input_tokens output_tokens measured_usd reported_usd turns",
        "session_id, hour, project_id, principal, agent, model",
    ),
    _Copied("idempotency_keys", "principal tool key created_at data", "principal, tool, key"),
    _Copied("trims", "session_id up_to", "session_id"),
    _Copied("events", "seq session_id idx ts type version principal caller_id source data", "seq"),
)
"""All tables with records. Rows without an order of their own are copied in that of their making,
which queries rely on."""


class Copied(NamedTuple):
    """Extent of a copy."""

    rows: dict[str, int]
    """Table → number of rows."""
    logs: int
    """Number of sessions with events, whose logs were compared one by one."""


def copy(
    source: StoreConnection,
    target: StoreConnection,
    progress: Callable[[str], object] = lambda _: None,
) -> Copied:
    """Copy all records, and compare both databases before the copy is committed.

    Args:
        source: Connection that reads.
        target: Connection that writes, to an empty database with this release's schema.
        progress: Called with what is being done.

    Raises:
        Conflict: the target is not empty.
        StorageUnavailable: what arrived is not what was sent; the target is unchanged.
    """
    source.execute("BEGIN")
    try:
        target.execute("BEGIN")
        try:
            _check_empty(target)
            rows = {table.name: _copy_table(source, target, table, progress) for table in TABLES}
            _continue_seqs(source, target)
            progress("comparing")
            logs = _compare(source, target, rows)
            target.execute("COMMIT")
        except BaseException:
            target.execute("ROLLBACK")
            raise
    finally:
        source.execute("COMMIT")
    return Copied(rows, logs)


def _check_empty(target: StoreConnection) -> None:
    for table in TABLES:
        row = target.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()  # noqa: S608 - ours
        if row is not None:
            raise Conflict(
                f"--to: the database is not empty, it has {table.name}",
                hint="give an empty one: createdb oubliette, or a file that does not exist",
            )


def _copy_table(
    source: StoreConnection,
    target: StoreConnection,
    table: _Copied,
    progress: Callable[[str], object],
) -> int:
    columns = table.columns.split()
    insert = (
        f"INSERT INTO {table.name} ({', '.join(columns)})"  # noqa: S608 - ours
        f" VALUES ({', '.join('?' * len(columns))})"
    )
    done = 0
    for rows in _pages(source, table):
        for row in rows:
            target.execute(insert, tuple(row))
        done += len(rows)
        progress(f"{table.name}: {done}")
    return done


def _pages(connection: StoreConnection, table: _Copied) -> Iterator[list[Any]]:
    """Yield the rows of a table in their order."""
    columns = ", ".join(table.columns.split())
    start = 0
    while True:
        sql = f"SELECT {columns} FROM {table.name} ORDER BY {table.order}"  # noqa: S608 - ours
        if table.name == "events":  # a long table, which is read by its key
            sql = f"SELECT {columns} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
            rows = connection.execute(sql, (start, ROWS)).fetchall()
            start = rows[-1][0] if rows else start
        else:
            rows = connection.execute(f"{sql} LIMIT ? OFFSET ?", (ROWS, start)).fetchall()
            start += len(rows)
        if rows:
            yield rows
        if len(rows) < ROWS:
            return


def _continue_seqs(source: StoreConnection, target: StoreConnection) -> None:
    """Have new events of the target continue after all seqs that the source may have given."""
    highest = horizon(source) if is_postgres(source) else last_seq(source)
    if is_postgres(target):
        target.execute(
            'UPDATE log_order SET "offset" ='
            " greatest(0, ? - ? * pg_current_xact_id()::text::bigint)",
            (highest + 1, EVENTS),
        )
        return
    target.execute("DELETE FROM sqlite_sequence WHERE name = 'events'")
    target.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)", (highest,))


# ---------------------------------------------------------------------- comparison


def _compare(source: StoreConnection, target: StoreConnection, rows: dict[str, int]) -> int:
    for table in TABLES[:-1]:
        if _digest(source, table) != _digest(target, table):
            raise _differs(table.name)
    sessions = [row[0] for row in source.execute(_SESSIONS).fetchall()]
    (there,) = target.execute("SELECT count(*) FROM events").fetchone()
    if there != rows["events"]:
        raise _differs("events")
    for session_id in sessions:
        if log_digest(source, session_id) != log_digest(target, session_id):
            raise _differs(f"the log of {session_id}")
    return len(sessions)


_SESSIONS: Final = "SELECT DISTINCT session_id FROM events"


def _digest(connection: StoreConnection, table: _Copied) -> str:
    digest = hashlib.sha256()
    for rows in _pages(connection, table):
        for row in rows:
            digest.update(_bytes_of(row))
    return digest.hexdigest()


def log_digest(connection: StoreConnection, session_id: str) -> str:
    """A digest of a session's log, the same in every database that has it."""
    columns = ", ".join(TABLES[-1].columns.split())
    rows = connection.execute(
        f"SELECT {columns} FROM events WHERE session_id = ? ORDER BY idx",  # noqa: S608 - ours
        (session_id,),
    )
    digest = hashlib.sha256()
    for row in rows.fetchall():
        digest.update(_bytes_of(row))
    return digest.hexdigest()


def _bytes_of(row: Any) -> bytes:
    parts = [value if isinstance(value, bytes) else repr(value).encode() for value in row]
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _differs(what: str) -> StorageUnavailable:
    return StorageUnavailable(
        f"--to: {what} arrived with other contents than it has in the source",
        hint="nothing was kept: look at both databases' logs, then try again",
    )
