"""Queries of what a caller is asked for: calls of its tools, and permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.records import CallerRequest, PermissionRequest
from oubliette.runtime.store.queries.paging import one, records

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import StoreConnection


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


def permissions(
    connection: StoreConnection, session_id: str, turn_number: int
) -> list[PermissionRequest]:
    """Return a session's permission requests of this turn, and all open ones; oldest first."""
    sql = (
        "SELECT data FROM permissions WHERE session_id = ? AND (turn = ? OR decision IS NULL)"
        " ORDER BY rowid"
    )
    return records(PermissionRequest, connection.execute(sql, (session_id, turn_number)))
