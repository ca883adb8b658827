"""Tables of the record types: the key and the indexed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oubliette.records import (
    TERMINAL,
    CallerRequest,
    Container,
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
from oubliette.runtime.store.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.store.connection import StoreConnection


class _Table(NamedTuple):
    upsert: str
    columns: Callable[[Any], tuple[Any, ...]]
    """Values of all columns but `data`."""


def _table(name: str, key: str, others: str, columns: Callable[[Any], tuple[Any, ...]]) -> _Table:
    names = f"{key} {others} data".split()
    holes = ", ".join("?" * len(names))
    # Not the key, which is the same: SQLite writes each index that has a column of this list.
    changed = ", ".join(f"{column} = excluded.{column}" for column in f"{others} data".split())
    # Not INSERT OR REPLACE: that would delete another row with the same unique value.
    return _Table(
        f"INSERT INTO {name} ({', '.join(names)}) VALUES ({holes})"  # noqa: S608 - names are ours
        f" ON CONFLICT ({', '.join(key.split())}) DO UPDATE SET {changed}",
        columns,
    )


def _principal(record: Principal) -> tuple[Any, ...]:
    return (record.id, record.name)


def _token(record: Token) -> tuple[Any, ...]:
    return (record.id, record.principal, record.session_id)


def _project(record: Project) -> tuple[Any, ...]:
    return (record.id, record.name, record.name.casefold(), record.deleted_at)


def _workspace(record: Workspace) -> tuple[Any, ...]:
    return (
        record.id,
        record.project_id,
        record.external_id,
        record.created_at,
        record.deleted_at,
    )


def _container(record: Container) -> tuple[Any, ...]:
    return (record.id, record.project_id)


def _session(record: Session) -> tuple[Any, ...]:
    return (
        record.id,
        record.project_id,
        record.workspace_id,
        record.principal,
        record.exploration_id,
        record.parent_session_id,
        record.container_id,
        record.depth,
        record.status,
        int(record.status not in TERMINAL),
        record.ended_by,
        record.updated_at,
    )


def _turn(record: Turn) -> tuple[Any, ...]:
    return (record.session_id, record.number, record.state, record.call_id)


def _caller_request(record: CallerRequest) -> tuple[Any, ...]:
    return (
        record.id,
        record.session_id,
        record.principal,
        record.caller_id,
        record.call_id,
        record.created_at,
        record.settled_at,
        record.outcome,
    )


def _permission(record: PermissionRequest) -> tuple[Any, ...]:
    return (
        record.id,
        record.session_id,
        record.principal,
        record.caller_id,
        record.turn,
        record.decision,
    )


def _idempotency(record: IdempotencyKey) -> tuple[Any, ...]:
    return (record.principal, record.tool, record.key, record.created_at)


_TABLES: Final[dict[type[Record], _Table]] = {
    Principal: _table("principals", "id", "name", _principal),
    Token: _table("tokens", "id", "principal session_id", _token),
    Project: _table("projects", "id", "name folded deleted_at", _project),
    Workspace: _table(
        "workspaces", "id", "project_id external_id created_at deleted_at", _workspace
    ),
    Container: _table("containers", "id", "project_id", _container),
    Session: _table(
        "sessions",
        "id",
        "project_id workspace_id principal exploration_id parent_session_id container_id depth"
        " status live ended_by updated_at",
        _session,
    ),
    Turn: _table("turns", "session_id number", "state call_id", _turn),
    CallerRequest: _table(
        "caller_requests",
        "id",
        "session_id principal caller_id call_id created_at settled_at outcome",
        _caller_request,
    ),
    PermissionRequest: _table(
        "permissions", "id", "session_id principal caller_id turn decision", _permission
    ),
    IdempotencyKey: _table("idempotency_keys", "principal tool key", "created_at", _idempotency),
}


def put(connection: StoreConnection, record: Record) -> None:
    """Insert `record`, or replace the one with its key.

    Raises:
        sqlite3.IntegrityError, UniqueClash: another row has the same unique value.
    """
    table = _TABLES[type(record)]
    connection.execute(table.upsert, (*table.columns(record), encode(record)))
