"""Queries of what an instance keeps beside projects: principals, tokens, keys, values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.records import IdempotencyKey, Principal, Token
from oubliette.runtime.store.queries.paging import one, records

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import StoreConnection


def principal(connection: StoreConnection, principal_id: str) -> Principal | None:
    sql = "SELECT data FROM principals WHERE id = ?"
    return one(Principal, connection.execute(sql, (principal_id,)))


def token(connection: StoreConnection, token_id: str) -> Token | None:
    """One token, revoked or not."""
    return one(Token, connection.execute("SELECT data FROM tokens WHERE id = ?", (token_id,)))


def tokens(connection: StoreConnection) -> list[Token]:
    """All tokens, revoked ones too."""
    return records(Token, connection.execute("SELECT data FROM tokens ORDER BY id"))


def idempotency(
    connection: StoreConnection, principal_id: str, tool: str, key: str
) -> IdempotencyKey | None:
    """Return a claimed key; the caller checks its age."""
    sql = "SELECT data FROM idempotency_keys WHERE principal = ? AND tool = ? AND key = ?"
    return one(IdempotencyKey, connection.execute(sql, (principal_id, tool, key)))


def newest_ids(connection: StoreConnection, project_id: str | None = None) -> list[str | None]:
    """The last id, in their order, of each kind that is listed by its id.

    With a project, it is that of its sessions alone.
    """
    if project_id is not None:
        sql = "SELECT max(id) FROM sessions WHERE project_id = ?"
        return [connection.execute(sql, (project_id,)).fetchone()[0]]
    tables = "projects", "sessions", "containers", "tokens"
    return [
        connection.execute(f"SELECT max(id) FROM {table}").fetchone()[0]  # noqa: S608 - ours
        for table in tables
    ]


def meta(connection: StoreConnection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None
