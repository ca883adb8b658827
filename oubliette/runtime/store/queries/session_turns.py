"""Queries of sessions and their turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.records import (
    TERMINAL,
    CallerTool,
    Limits,
    Record,
    Session,
    SessionStatus,
    Turn,
    title_of,
)
from oubliette.runtime.store.codec import decode
from oubliette.runtime.store.queries.paging import Page, listing, one, records

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from oubliette.runtime.store.connection import StoreConnection

ALIVE: Final = " INDEXED BY sessions_live"
"""Hint where SQLite would walk all stored sessions of a workspace or project, to find few."""
WALK: Final = 2000
"""Sessions that one read of a listing looks at, however few of them it returns."""
_CHUNK: Final = 500
"""Sessions that are read at a time to find a text."""
MAX_CHILDREN: Final = 1000
"""Children of one session that are named: some have tens of thousands."""


def session(connection: StoreConnection, session_id: str) -> Session | None:
    """One session, without the tools of its caller: see `with_tools`."""
    return one(Session, connection.execute("SELECT data FROM sessions WHERE id = ?", (session_id,)))


def with_tools(connection: StoreConnection, record: Session) -> Session:
    """The record of a session with its caller's tools, which may be large."""
    row = connection.execute(
        "SELECT data FROM session_tools WHERE session_id = ?", (record.id,)
    ).fetchone()
    if row is None:
        return record
    return msgspec.structs.replace(record, caller_tools=decode(tuple[CallerTool, ...], row[0]))


def session_title(connection: StoreConnection, record: Session) -> str:
    """The title of a session, which earlier releases have not stored."""
    if record.title:
        return record.title
    first = turn(connection, record.id, 1)
    return "" if first is None else title_of(first.prompt)


def session_ids(connection: StoreConnection, project_id: str) -> set[str]:
    """The ids of the sessions of a project, but for those that were removed."""
    rows = connection.execute("SELECT id FROM sessions WHERE project_id = ?", (project_id,))
    return {row[0] for row in rows}


def sessions(
    connection: StoreConnection,
    project_id: str | None = None,
    status: str | None = None,
    exploration_id: str | None = None,
    *,
    principal: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = False,
) -> Page:
    """Return sessions that match all given conditions, oldest first unless `newest_first`."""
    conditions = [
        ("project_id = ?", project_id),
        # In words of the indexes: there are few that live, however many are stored.
        (f"status = ? AND live = {int(status not in TERMINAL)}", status),
        ("exploration_id = ?", exploration_id),
        ("principal = ?", principal),
    ]
    alive = status is not None and status not in TERMINAL
    return listing(
        connection,
        Session,
        f"sessions{ALIVE}" if alive else "sessions",
        conditions,
        limit=limit,
        cursor=cursor,
        newest_first=newest_first,
    )


def listed_sessions(
    connection: StoreConnection,
    project_id: str | None = None,
    statuses: Collection[str] = (),
    exploration_id: str | None = None,
    *,
    text: str = "",
    limit: int = 100,
    cursor: str | None = None,
    newest_first: bool = False,
) -> Page:
    """Return sessions with one of `statuses`, or any, whose title or last prompt has `text`.

    Those of deleted projects are left out, unless `project_id` names it. One read looks at `WALK`
    sessions at most, so a page may be short, or empty, and have a `next_cursor`.
    """
    found: list[Session] = []
    there: dict[str, bool] = {} if project_id is None else {project_id: True}
    wanted = text.casefold()
    walked = 0
    while walked < WALK:
        page = _with_statuses(
            connection,
            project_id,
            statuses,
            exploration_id,
            limit=min(WALK, max(limit, _CHUNK if wanted else 0)),
            cursor=cursor,
            newest_first=newest_first,
        )
        walked += len(page.records)
        for each in page.records:
            if each.project_id not in there:
                there[each.project_id] = _exists(connection, each.project_id)
            named = f"{each.title}\n{each.last_prompt or ''}".casefold()
            if there[each.project_id] and wanted in named:
                if len(found) == limit:
                    return Page(found, found[-1].id)
                found.append(each)
        cursor = page.next_cursor
        if cursor is None:
            return Page(found, None)
    return Page(found, cursor)


def _with_statuses(
    connection: StoreConnection,
    project_id: str | None,
    statuses: Collection[str],
    exploration_id: str | None,
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool,
) -> Page:
    """A page of sessions with one of `statuses`, of which each has an index."""
    parts = [
        sessions(
            connection,
            project_id,
            each,
            exploration_id,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
        )
        for each in sorted(set(statuses)) or (None,)
    ]
    if len(parts) == 1:
        return parts[0]
    merged = sorted(
        (each for part in parts for each in part.records),
        key=lambda each: each.id,
        reverse=newest_first,
    )
    more = len(merged) > limit or any(part.next_cursor for part in parts)
    return Page(merged[:limit], merged[:limit][-1].id if more else None)


def _exists(connection: StoreConnection, project_id: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM projects WHERE id = ? AND deleted_at IS NULL", (project_id,)
    ).fetchone()
    return row is not None


class TreeMember(Record, frozen=True):
    """Part of a session that the limits of its tree count; the rest is not decoded."""

    id: str
    project_id: str
    principal: str
    status: SessionStatus
    created_at: float
    depth: int = 0
    parent_session_id: str | None = None
    root_session_id: str = ""
    caller_id: str | None = None
    cost_usd: float = 0.0
    log_bytes: int = 0
    limits: Limits = Limits()


def tree_members(connection: StoreConnection, exploration_id: str) -> list[TreeMember]:
    """All sessions of a tree, oldest first."""
    rows = connection.execute(
        "SELECT data FROM sessions WHERE exploration_id = ? ORDER BY id", (exploration_id,)
    )
    return records(TreeMember, rows)


def live_sessions(
    connection: StoreConnection,
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
    hint = ALIVE if exploration_id is None else ""
    # +id: sorting the few live ones is cheaper than scanning all sessions in the order of ids.
    rows = connection.execute(
        f"SELECT data FROM sessions{hint} WHERE {where} ORDER BY +id",  # noqa: S608
        tuple(value for _, value in wanted),
    )
    return records(Session, rows)


def live_session_ids(connection: StoreConnection) -> set[str]:
    """The ids of all sessions whose status is not terminal."""
    rows = connection.execute(f"SELECT id FROM sessions{ALIVE} WHERE live = 1")  # noqa: S608
    return {row[0] for row in rows}


def count_live_sessions(
    connection: StoreConnection, project_id: str, *, top_level: bool = True
) -> int:
    """Return how many sessions of a project are live; children only count without `top_level`."""
    sql = "SELECT count(*) FROM sessions WHERE live = 1 AND project_id = ?"
    if top_level:
        sql += " AND parent_session_id IS NULL"
    return connection.execute(sql, (project_id,)).fetchone()[0]


def ended_sessions(
    connection: StoreConnection,
    before: float,
    project_id: str | None = None,
    limit: int = 1000,
) -> list[str]:
    """Return ids of sessions that ended, last changed before `before` (wall seconds).

    The one that was changed longest ago comes first.
    """
    rows = connection.execute(
        "SELECT id FROM sessions WHERE live = 0 AND updated_at < ?1"
        " AND (?2 IS NULL OR project_id = ?2) ORDER BY updated_at LIMIT ?3",
        (before, project_id, limit),
    )
    return [row[0] for row in rows]


def children(connection: StoreConnection, session_id: str) -> list[Session]:
    """The session's direct children, oldest first."""
    sql = "SELECT data FROM sessions WHERE parent_session_id = ? ORDER BY id"
    return records(Session, connection.execute(sql, (session_id,)))


def child_ids(
    connection: StoreConnection,
    session_id: str,
    limit: int = MAX_CHILDREN,
    *,
    project_id: str | None = None,
) -> list[str]:
    """Return the ids of the session's direct children, oldest first; of more, the newest.

    With `project_id` only those of that project.
    """
    rows = connection.execute(
        "SELECT id FROM sessions WHERE parent_session_id = ?1"
        " AND (?3 IS NULL OR project_id = ?3) ORDER BY id DESC LIMIT ?2",
        (session_id, limit, project_id),
    ).fetchall()
    return [row[0] for row in reversed(rows)]


def latest_session(
    connection: StoreConnection,
    workspace_id: str,
    principal: str,
    parent_session_id: str | None = None,
    exploration_id: str | None = None,
) -> Session | None:
    """The newest session not ended by a user, among the children of `parent_session_id`.

    None as parent means top-level sessions, None as `exploration_id` those of all trees.
    """
    sql = (
        "SELECT data FROM sessions WHERE workspace_id = ?1 AND principal = ?2"
        " AND parent_session_id IS ?3 AND ended_by IS NULL"
        " AND (?4 IS NULL OR exploration_id = ?4) ORDER BY id DESC LIMIT 1"
    )
    given = (workspace_id, principal, parent_session_id, exploration_id)
    return one(Session, connection.execute(sql, given))


def turns(
    connection: StoreConnection, session_id: str, states: Sequence[str] | None = None
) -> list[Turn]:
    """Return the session's turns in order, or those in one of `states`."""
    if states is None:
        sql = "SELECT data FROM turns WHERE session_id = ? ORDER BY number"
        return records(Turn, connection.execute(sql, (session_id,)))
    holes = ", ".join("?" * len(states))
    sql = f"SELECT data FROM turns WHERE session_id = ? AND state IN ({holes}) ORDER BY number"  # noqa: S608
    return records(Turn, connection.execute(sql, (session_id, *states)))


def turn(connection: StoreConnection, session_id: str, number: int) -> Turn | None:
    sql = "SELECT data FROM turns WHERE session_id = ? AND number = ?"
    return one(Turn, connection.execute(sql, (session_id, number)))


def turn_of_call(connection: StoreConnection, call_id: str) -> Turn | None:
    """The newest turn made by an agent's call (`{parent session}/{call id}`)."""
    sql = "SELECT data FROM turns WHERE call_id = ? ORDER BY rowid DESC LIMIT 1"
    return one(Turn, connection.execute(sql, (call_id,)))
