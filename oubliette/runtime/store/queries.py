"""Queries of the store, as functions of a connection. One read is one consistent view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oubliette.records import (
    CallerRequest,
    Container,
    Event,
    IdempotencyKey,
    PermissionRequest,
    Principal,
    Project,
    Record,
    Session,
    Token,
    Turn,
    Workspace,
)
from oubliette.runtime.store.codec import decode, decode_payload

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

MAX_EVENTS: Final = 500
MAX_BYTES: Final = 4 * 1024 * 1024
"""Default limits of one read of events."""

_EVENT: Final = (
    "SELECT session_id, idx, ts, type, data, version, seq, principal, caller_id, source FROM events"
)


class Page(NamedTuple):
    """Part of a listing, in order of ids, which is the order of creation."""

    records: Sequence[Any]
    next_cursor: str | None
    """Cursor of the next page; None at the end."""


class LogSlice(NamedTuple):
    """Part of a session's log, without gaps after its first event."""

    events: list[Event]
    first_index: int
    """First index that is kept (0 for a log that was never cut; may be one past the end)."""
    last_index: int
    """Last index of the whole log, -1 if there was never an event."""
    truncated_before: int | None
    """Set if events after the cursor were deleted: the first index that is kept."""
    more: bool
    """Whether the log continues after the last event here."""


def _records(kind: type[Record], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [decode(kind, row[0]) for row in rows]


def _one(kind: type[Record], rows: sqlite3.Cursor) -> Any:
    row = rows.fetchone()
    rows.close()
    return decode(kind, row[0]) if row else None


def _listing(
    connection: sqlite3.Connection,
    kind: type[Record],
    table: str,
    conditions: Sequence[tuple[str, Any]],
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool = False,
) -> Page:
    """Return one page; of `conditions`, those with the value None are ignored."""
    wanted = [(sql, value) for sql, value in conditions if value is not None]
    if cursor is not None:
        wanted.append(("id < ?" if newest_first else "id > ?", cursor))
    where = " AND ".join(sql for sql, _ in wanted) or "1"
    order = "DESC" if newest_first else "ASC"
    rows = connection.execute(
        f"SELECT data, id FROM {table} WHERE {where} ORDER BY id {order} LIMIT ?",  # noqa: S608
        (*(value for _, value in wanted), limit + 1),
    ).fetchall()
    more = len(rows) > limit
    return Page(_records(kind, rows[:limit]), rows[limit - 1][1] if more else None)


# ---------------------------------------------------------------------- events


def _event(row: tuple[Any, ...]) -> Event:
    session_id, index, ts, kind, data, version, seq, principal, caller_id, source = row
    return Event(
        session_id=session_id,
        index=index,
        ts=ts,
        type=kind,
        data=decode_payload(data),
        version=version,
        seq=seq,
        principal=principal,
        caller_id=caller_id,
        source=source,
    )


def _capped(rows: sqlite3.Cursor, max_events: int, max_bytes: int) -> tuple[list[Event], bool]:
    """Return rows up to the limits, but at least one; and whether there are more."""
    events: list[Event] = []
    size = 0
    for row in rows:
        size += len(row[4])
        if events and (len(events) >= max_events or size > max_bytes):
            rows.close()
            return events, True
        events.append(_event(row))
    return events, False


def log(
    connection: sqlite3.Connection,
    session_id: str,
    since_index: int = -1,
    max_events: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
) -> LogSlice:
    """Return events after `since_index`, at least one if there is any, else up to the limits."""
    cut, last = bounds(connection, session_id)
    rows = connection.execute(
        f"{_EVENT} WHERE session_id = ? AND idx > ? ORDER BY idx", (session_id, since_index)
    )
    events, more = _capped(rows, max_events, max_bytes)
    truncated = cut if since_index < cut - 1 else None
    return LogSlice(events, cut, last, truncated, more)


def bounds(connection: sqlite3.Connection, session_id: str) -> tuple[int, int]:
    """Return the first index kept and the last index of the log; (0, -1) for a new one."""
    row = connection.execute(
        "SELECT (SELECT up_to FROM trims WHERE session_id = ?1),"
        " (SELECT max(idx) FROM events WHERE session_id = ?1)",
        (session_id,),
    ).fetchone()
    cut = -1 if row[0] is None else row[0]
    return cut + 1, cut if row[1] is None else row[1]


def event(connection: sqlite3.Connection, session_id: str, index: int) -> Event | None:
    """Return one event."""
    row = connection.execute(
        f"{_EVENT} WHERE session_id = ? AND idx = ?", (session_id, index)
    ).fetchone()
    return _event(row) if row else None


def caller_events(  # noqa: PLR0917 - the order of the index
    connection: sqlite3.Connection,
    principal: str,
    caller_id: str,
    after_seq: int = 0,
    limit: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
) -> list[Event]:
    """Return this caller's events in the order of their commit; at least one if there is any."""
    rows = connection.execute(
        f"{_EVENT} WHERE principal = ? AND caller_id = ? AND seq > ? ORDER BY seq",
        (principal, caller_id, after_seq),
    )
    return _capped(rows, limit, max_bytes)[0]


def last_seq(connection: sqlite3.Connection) -> int:
    """Return the highest seq that may have been assigned, 0 at first; all later ones are higher."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row else 0


def last_source(
    connection: sqlite3.Connection, session_id: str, process_id: str
) -> tuple[int, int]:
    """Return (offset, ordinal) of the newest event of that process; (-1, -1) if none."""
    # In the order of the log, as text would sort 9 above 10; ';' follows ':'.
    row = connection.execute(
        "SELECT source FROM events INDEXED BY events_by_session WHERE session_id = ?"
        " AND source >= ? AND source < ? ORDER BY idx DESC LIMIT 1",
        (session_id, f"{process_id}:", f"{process_id};"),
    ).fetchone()
    if row is None:
        return -1, -1
    offset, _, ordinal = row[0].removeprefix(f"{process_id}:").partition(":")
    return int(offset), int(ordinal)


# ---------------------------------------------------------------------- projects


def project(connection: sqlite3.Connection, project_id: str) -> Project | None:
    """Return one project, deleted or not."""
    return _one(
        Project, connection.execute("SELECT data FROM projects WHERE id = ?", (project_id,))
    )


def project_named(connection: sqlite3.Connection, name: str) -> Project | None:
    """Return the live project of that name."""
    sql = "SELECT data FROM projects WHERE name = ? AND deleted_at IS NULL"
    return _one(Project, connection.execute(sql, (name,)))


def projects(
    connection: sqlite3.Connection,
    name_contains: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Page:
    """Return live projects; `name_contains` is case-insensitive."""
    part = name_contains.casefold() if name_contains else None
    conditions = [("deleted_at IS NULL AND ?", 1), ("instr(folded, ?) > 0", part)]
    return _listing(connection, Project, "projects", conditions, limit=limit, cursor=cursor)


def workspace(connection: sqlite3.Connection, workspace_id: str) -> Workspace | None:
    """Return one workspace, deleted or not."""
    return _one(
        Workspace, connection.execute("SELECT data FROM workspaces WHERE id = ?", (workspace_id,))
    )


def workspaces(connection: sqlite3.Connection, project_id: str) -> list[Workspace]:
    """Return the project's workspaces that were not deleted, oldest first."""
    sql = (
        "SELECT data FROM workspaces WHERE project_id = ? AND deleted_at IS NULL"
        " ORDER BY created_at, id"
    )
    return _records(Workspace, connection.execute(sql, (project_id,)))


def containers(connection: sqlite3.Connection, project_id: str | None = None) -> list[Container]:
    """Return all containers that were not removed yet, or those of one project."""
    sql = "SELECT data FROM containers WHERE ?1 IS NULL OR project_id = ?1 ORDER BY id"
    return _records(Container, connection.execute(sql, (project_id,)))


# ---------------------------------------------------------------------- sessions


def session(connection: sqlite3.Connection, session_id: str) -> Session | None:
    """Return one session."""
    return _one(
        Session, connection.execute("SELECT data FROM sessions WHERE id = ?", (session_id,))
    )


def sessions(
    connection: sqlite3.Connection,
    project_id: str | None = None,
    status: str | None = None,
    exploration_id: str | None = None,
    *,
    principal: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = False,
) -> Page:
    """Return sessions that match all given conditions."""
    conditions = [
        ("project_id = ?", project_id),
        ("status = ?", status),
        ("exploration_id = ?", exploration_id),
        ("principal = ?", principal),
    ]
    return _listing(
        connection,
        Session,
        "sessions",
        conditions,
        limit=limit,
        cursor=cursor,
        newest_first=newest_first,
    )


def live_sessions(
    connection: sqlite3.Connection,
    project_id: str | None = None,
    container_id: str | None = None,
    workspace_id: str | None = None,
    exploration_id: str | None = None,
) -> list[Session]:
    """Return sessions whose status is not terminal, of all projects or as narrow as given."""
    conditions = [
        ("project_id = ?", project_id),
        ("container_id = ?", container_id),
        ("workspace_id = ?", workspace_id),
        ("exploration_id = ?", exploration_id),
    ]
    wanted = [(sql, value) for sql, value in conditions if value is not None]
    where = " AND ".join(["live = 1", *(sql for sql, _ in wanted)])
    # +id: sorting the few live ones is cheaper than scanning all sessions in the order of ids.
    rows = connection.execute(
        f"SELECT data FROM sessions WHERE {where} ORDER BY +id",  # noqa: S608
        tuple(value for _, value in wanted),
    )
    return _records(Session, rows)


def count_live_sessions(
    connection: sqlite3.Connection, project_id: str, *, top_level: bool = True
) -> int:
    """Return how many sessions of a project are live; children only count without `top_level`."""
    sql = "SELECT count(*) FROM sessions WHERE live = 1 AND project_id = ?"
    if top_level:
        sql += " AND parent_session_id IS NULL"
    return connection.execute(sql, (project_id,)).fetchone()[0]


def ended_sessions(
    connection: sqlite3.Connection,
    before: float,
    project_id: str | None = None,
    limit: int = 1000,
) -> list[str]:
    """Return ids of sessions that ended, last changed before `before` (wall seconds)."""
    rows = connection.execute(
        "SELECT id FROM sessions WHERE live = 0 AND updated_at < ?1"
        " AND (?2 IS NULL OR project_id = ?2) ORDER BY id LIMIT ?3",
        (before, project_id, limit),
    )
    return [row[0] for row in rows]


def children(connection: sqlite3.Connection, session_id: str) -> list[Session]:
    """Return the session's direct children, oldest first."""
    sql = "SELECT data FROM sessions WHERE parent_session_id = ? ORDER BY id"
    return _records(Session, connection.execute(sql, (session_id,)))


def latest_session(
    connection: sqlite3.Connection,
    workspace_id: str,
    principal: str,
    parent_session_id: str | None = None,
) -> Session | None:
    """Return the newest session not ended by a user, among the children of `parent_session_id`.

    None as parent means top-level sessions.
    """
    sql = (
        "SELECT data FROM sessions WHERE workspace_id = ? AND principal = ?"
        " AND parent_session_id IS ? AND ended_by IS NULL ORDER BY id DESC LIMIT 1"
    )
    return _one(Session, connection.execute(sql, (workspace_id, principal, parent_session_id)))


def turns(
    connection: sqlite3.Connection, session_id: str, states: Sequence[str] | None = None
) -> list[Turn]:
    """Return the session's turns in order, or those in one of `states`."""
    if states is None:
        sql = "SELECT data FROM turns WHERE session_id = ? ORDER BY number"
        return _records(Turn, connection.execute(sql, (session_id,)))
    holes = ", ".join("?" * len(states))
    sql = f"SELECT data FROM turns WHERE session_id = ? AND state IN ({holes}) ORDER BY number"  # noqa: S608
    return _records(Turn, connection.execute(sql, (session_id, *states)))


def turn(connection: sqlite3.Connection, session_id: str, number: int) -> Turn | None:
    """Return one turn."""
    sql = "SELECT data FROM turns WHERE session_id = ? AND number = ?"
    return _one(Turn, connection.execute(sql, (session_id, number)))


def turn_of_call(connection: sqlite3.Connection, call_id: str) -> Turn | None:
    """Return the newest turn made by an agent's call (`{parent session}/{call id}`)."""
    sql = "SELECT data FROM turns WHERE call_id = ? ORDER BY rowid DESC LIMIT 1"
    return _one(Turn, connection.execute(sql, (call_id,)))


# ---------------------------------------------------------------------- caller requests


def request(connection: sqlite3.Connection, request_id: str) -> CallerRequest | None:
    """Return one request."""
    sql = "SELECT data FROM caller_requests WHERE id = ?"
    return _one(CallerRequest, connection.execute(sql, (request_id,)))


def open_requests(
    connection: sqlite3.Connection,
    session_id: str | None = None,
    principal: str | None = None,
    caller_id: str | None = None,
) -> list[CallerRequest]:
    """Return requests without an outcome: of a session, or of a caller; oldest first."""
    sql = (
        "SELECT data FROM caller_requests WHERE outcome IS NULL"
        " AND (?1 IS NULL OR session_id = ?1)"
        " AND (?2 IS NULL OR principal = ?2) AND (?3 IS NULL OR caller_id = ?3)"
        " ORDER BY created_at, id"
    )
    rows = connection.execute(sql, (session_id, principal, caller_id))
    return _records(CallerRequest, rows)


def recent_requests(
    connection: sqlite3.Connection, session_id: str, since: float
) -> list[CallerRequest]:
    """Return a session's requests that are open, or were settled at `since` or later."""
    sql = (
        "SELECT data FROM caller_requests WHERE session_id = ?"
        " AND (outcome IS NULL OR settled_at >= ?) ORDER BY created_at, id"
    )
    return _records(CallerRequest, connection.execute(sql, (session_id, since)))


# ---------------------------------------------------------------------- permissions


def permission(connection: sqlite3.Connection, request_id: str) -> PermissionRequest | None:
    """Return one permission request."""
    sql = "SELECT data FROM permissions WHERE id = ?"
    return _one(PermissionRequest, connection.execute(sql, (request_id,)))


def open_permissions(
    connection: sqlite3.Connection, principal_id: str, caller_id: str
) -> list[PermissionRequest]:
    """Return this caller's undecided permission requests, oldest first."""
    sql = (
        "SELECT data FROM permissions WHERE decision IS NULL AND principal = ? AND caller_id = ?"
        " ORDER BY rowid"
    )
    return _records(PermissionRequest, connection.execute(sql, (principal_id, caller_id)))


def permissions(
    connection: sqlite3.Connection, session_id: str, turn_number: int
) -> list[PermissionRequest]:
    """Return a session's permission requests of this turn, and all open ones; oldest first."""
    sql = (
        "SELECT data FROM permissions WHERE session_id = ? AND (turn = ? OR decision IS NULL)"
        " ORDER BY rowid"
    )
    return _records(PermissionRequest, connection.execute(sql, (session_id, turn_number)))


# ---------------------------------------------------------------------- rights and the rest


def principal(connection: sqlite3.Connection, principal_id: str) -> Principal | None:
    """Return one principal."""
    sql = "SELECT data FROM principals WHERE id = ?"
    return _one(Principal, connection.execute(sql, (principal_id,)))


def token(connection: sqlite3.Connection, token_id: str) -> Token | None:
    """Return one token, revoked or not."""
    return _one(Token, connection.execute("SELECT data FROM tokens WHERE id = ?", (token_id,)))


def tokens(connection: sqlite3.Connection) -> list[Token]:
    """Return all tokens, revoked ones too."""
    return _records(Token, connection.execute("SELECT data FROM tokens ORDER BY id"))


def idempotency(
    connection: sqlite3.Connection, principal_id: str, tool: str, key: str
) -> IdempotencyKey | None:
    """Return a claimed key; the caller checks its age."""
    sql = "SELECT data FROM idempotency_keys WHERE principal = ? AND tool = ? AND key = ?"
    return _one(IdempotencyKey, connection.execute(sql, (principal_id, tool, key)))


def meta(connection: sqlite3.Connection, key: str) -> str | None:
    """Return one value of the instance."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None
