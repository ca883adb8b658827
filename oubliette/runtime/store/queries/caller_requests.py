"""Queries of what a caller is asked for: calls of its tools, and permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oubliette.records import CallerRequest, Event, PermissionRequest, Project
from oubliette.runtime.store.codec import decode
from oubliette.runtime.store.queries.event_log import event_of, event_up_to
from oubliette.runtime.store.queries.paging import one, records

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import Rows, StoreConnection


def request(connection: StoreConnection, request_id: str) -> CallerRequest | None:
    sql = "SELECT data FROM caller_requests WHERE id = ?"
    return one(CallerRequest, connection.execute(sql, (request_id,)))


def open_requests(
    connection: StoreConnection,
    session_id: str | None = None,
    *,
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
    return records(CallerRequest, rows)


def recent_requests(
    connection: StoreConnection, session_id: str, since: float
) -> list[CallerRequest]:
    """Return a session's requests that are open, or were settled at `since` or later."""
    sql = (
        "SELECT data FROM caller_requests WHERE session_id = ?"
        " AND (outcome IS NULL OR settled_at >= ?) ORDER BY created_at, id"
    )
    return records(CallerRequest, connection.execute(sql, (session_id, since)))


def permission(connection: StoreConnection, request_id: str) -> PermissionRequest | None:
    sql = "SELECT data FROM permissions WHERE id = ?"
    return one(PermissionRequest, connection.execute(sql, (request_id,)))


def open_permissions(
    connection: StoreConnection, principal: str, caller_id: str
) -> list[PermissionRequest]:
    """Return this caller's undecided permission requests, oldest first."""
    sql = (
        "SELECT data FROM permissions WHERE decision IS NULL AND principal = ? AND caller_id = ?"
        " ORDER BY rowid"
    )
    return records(PermissionRequest, connection.execute(sql, (principal, caller_id)))


class OpenPermission(NamedTuple):
    """A permission request that waits for a decision."""

    request: PermissionRequest
    project: Project
    event: Event | None
    """Event of the request, with a reference if it is large; None: it was deleted."""
    ancestry: list[str]
    """Ids of the sessions from the root of the tree down to the one that asks, as far as seen."""


def waiting_permissions(
    connection: StoreConnection,
    project_id: str | None = None,
    limit: int = 100,
    *,
    only: str | None = None,
    whole_bytes: int | None = None,
) -> list[OpenPermission]:
    """Return undecided permission requests of all projects or of one, oldest first.

    Sessions of projects but `only` are left out of `ancestry`. Events of more than `whole_bytes`
    are references.
    """
    # In the order of joins that goes through the few that are open.
    rows = connection.execute(
        "SELECT permissions.data, sessions.project_id FROM permissions INDEXED BY permissions_open"
        " CROSS JOIN sessions WHERE decision IS NULL AND sessions.id = permissions.session_id"
        " AND (?1 IS NULL OR sessions.project_id = ?1) ORDER BY +permissions.rowid LIMIT ?2",
        (project_id, limit),
    ).fetchall()
    projects = {each: one(Project, _project(connection, each)) for each in {row[1] for row in rows}}
    found: list[OpenPermission] = []
    for data, owner in rows:
        request = decode(PermissionRequest, data)
        row = connection.execute(
            f"{event_up_to(whole_bytes)} WHERE session_id = ? AND idx = ?",
            (request.session_id, request.event_index),
        ).fetchone()
        event = None if row is None else event_of(row).sendable()
        ancestry: list[str] = [] if event is None else event.data.get("ancestry", [])
        if only is not None:
            ancestry = [each for each in ancestry if _is_in(connection, each, only)]
        found.append(OpenPermission(request, projects[owner], event, ancestry))
    return found


def _project(connection: StoreConnection, project_id: str) -> Rows:
    return connection.execute("SELECT data FROM projects WHERE id = ?", (project_id,))


def _is_in(connection: StoreConnection, session_id: str, project_id: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM sessions WHERE id = ? AND project_id = ?", (session_id, project_id)
    ).fetchone()
    return row is not None


def permissions(
    connection: StoreConnection, session_id: str, turn_number: int
) -> list[PermissionRequest]:
    """Return a session's permission requests of this turn, and all open ones; oldest first."""
    sql = (
        "SELECT data FROM permissions WHERE session_id = ? AND (turn = ? OR decision IS NULL)"
        " ORDER BY rowid"
    )
    return records(PermissionRequest, connection.execute(sql, (session_id, turn_number)))
