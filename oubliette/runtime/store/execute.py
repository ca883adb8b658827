"""Execution of operations on a connection inside a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.errors import AlreadyExists, Conflict, InvalidParameter, NotFound
from oubliette.records import CallerRequest, IdempotencyKey, Token
from oubliette.runtime.store import operations as ops
from oubliette.runtime.store.codec import decode, encode
from oubliette.runtime.store.errors import CLASHES
from oubliette.runtime.store.tables import put

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.records import Event
    from oubliette.runtime.store.connection import StoreConnection

IDEMPOTENCY_SECONDS: Final = 24 * 3600.0
"""Lifetime of a key."""

_NEXT_INDEX: Final = """
SELECT 1 + coalesce(max(last), -1) FROM (
  SELECT max(idx) AS last FROM events WHERE session_id = ?1
  UNION ALL SELECT up_to FROM trims WHERE session_id = ?1
) AS known"""

_INSERT_EVENT: Final = """
INSERT INTO events (session_id, idx, ts, type, version, principal, caller_id, source, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session_id, source) WHERE source IS NOT NULL DO NOTHING"""

_SETTLE: Final = "UPDATE caller_requests SET settled_at = ?, outcome = ?, data = ? WHERE id = ?"
"""Not the upsert of the table: SQLite writes each index that has a column of the SET list."""

_PUT_TOOLS: Final = """
INSERT INTO session_tools (session_id, data) VALUES (?, ?)
ON CONFLICT (session_id) DO UPDATE SET data = excluded.data
WHERE session_tools.data <> excluded.data"""

_SUMS: Final = ("input_tokens", "output_tokens", "measured_usd", "reported_usd")
_KEY: Final = "hour, project_id, principal, agent, model"
_INTO: Final = f"INSERT INTO usage (session_id, {_KEY}, {', '.join(_SUMS)}, turns)"
_ADDED: Final = ", ".join(
    f"{name} = coalesce(usage.{name} + excluded.{name}, usage.{name}, excluded.{name})"
    for name in _SUMS
)
_ADD: Final = f"""
ON CONFLICT (session_id, {_KEY}) DO UPDATE SET turns = usage.turns + excluded.turns, {_ADDED}"""
_ADD_USAGE: Final = f"{_INTO} VALUES ({', '.join('?' * 11)}){_ADD}"
_KEEP_USAGE: Final = f"""
{_INTO} SELECT '', {_KEY}, {", ".join(_SUMS)}, turns FROM usage WHERE session_id = ?{_ADD}"""  # noqa: S608
"""Of a session that goes; the sums of its project stay."""

_OF_SESSION: Final = (
    "events",
    "trims",
    "turns",
    "caller_requests",
    "permissions",
    "tokens",
    "session_tools",
    "usage",
)
"""Tables whose rows are deleted with their session."""


def perform(connection: StoreConnection, operations: tuple[ops.Op, ...]) -> ops.Result:
    """Execute `operations` in order; the caller rolls back if one of them raises.

    Raises:
        OublietteError: an operation cannot be done (see each); the storage works.
        sqlite3.Error: the database failed.
    """
    return tuple([_HANDLERS[type(operation)](connection, operation) for operation in operations])


def _put(connection: StoreConnection, operation: Any) -> None:
    try:
        put(connection, operation.record)
    except CLASHES as error:
        raise Conflict(f"clashes with what is stored: {error}") from error
    except UnicodeEncodeError as error:
        raise InvalidParameter(f"cannot be stored: {error}") from error


def _put_project(connection: StoreConnection, operation: ops.PutProject) -> None:
    try:
        put(connection, operation.record)
    except CLASHES as error:
        raise AlreadyExists("project already exists") from error
    except UnicodeEncodeError as error:
        raise InvalidParameter(f"cannot be stored: {error}", field="name") from error


def _put_session(connection: StoreConnection, operation: ops.PutSession) -> None:
    record = operation.record
    tools = record.caller_tools or None if operation.tools is None else operation.tools
    if record.caller_tools:
        record = msgspec.structs.replace(record, caller_tools=())
    _put(connection, ops.PutSession(record))
    if tools:
        connection.execute(_PUT_TOOLS, (record.id, encode(tools)))
    elif tools is not None:
        connection.execute("DELETE FROM session_tools WHERE session_id = ?", (record.id,))


def _token(connection: StoreConnection, token_id: str) -> Token | None:
    row = connection.execute("SELECT data FROM tokens WHERE id = ?", (token_id,)).fetchone()
    return decode(Token, row[0]) if row else None


def _touch_token(connection: StoreConnection, operation: ops.TouchToken) -> bool:
    token = _token(connection, operation.id)
    if token is None:
        return False
    if operation.at > (token.last_used_at or 0.0):
        put(connection, msgspec.structs.replace(token, last_used_at=operation.at))
    return True


def _revoke_token(connection: StoreConnection, operation: ops.RevokeToken) -> bool:
    token = _token(connection, operation.id)
    if token is None or token.revoked_at is not None:
        return False
    put(connection, msgspec.structs.replace(token, revoked_at=operation.at))
    return True


def _delete_container(connection: StoreConnection, operation: ops.DeleteContainer) -> bool:
    return _count(connection, "DELETE FROM containers WHERE id = ?", operation.id) > 0


def _purge_session(connection: StoreConnection, operation: ops.PurgeSession) -> bool:
    session = (operation.session_id,)
    row = connection.execute("SELECT live FROM sessions WHERE id = ?", session).fetchone()
    if row is None:
        return False
    if row[0]:
        raise Conflict(f"session {operation.session_id} is live; end it first")
    connection.execute(_KEEP_USAGE, session)
    for table in _OF_SESSION:
        connection.execute(f"DELETE FROM {table} WHERE session_id = ?", session)  # noqa: S608
    connection.execute("DELETE FROM sessions WHERE id = ?", session)
    return True


def _add_usage(connection: StoreConnection, operation: ops.AddUsage) -> None:
    *key, used = msgspec.structs.astuple(operation)
    connection.execute(_ADD_USAGE, (*key, *msgspec.structs.astuple(used)))


def _put_request(connection: StoreConnection, operation: ops.PutCallerRequest) -> None:
    sql = "SELECT outcome FROM caller_requests WHERE id = ?"
    row = connection.execute(sql, (operation.record.id,)).fetchone()
    if row is not None and row[0] is not None:
        raise Conflict(f"request {operation.record.id} is settled already: {row[0]}")
    _put(connection, operation)


def _settle(connection: StoreConnection, operation: ops.SettleCallerRequest) -> bool:
    row = connection.execute(
        "SELECT data FROM caller_requests WHERE id = ?", (operation.id,)
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no request {operation.id}")
    request = decode(CallerRequest, row[0])
    if request.outcome is not None:
        if operation.only_once:
            raise Conflict(f"request {operation.id} is settled already: {request.outcome}")
        return False
    settled = msgspec.structs.replace(
        request,
        outcome=operation.outcome,
        result=operation.result,
        error=operation.error,
        settled_at=operation.settled_at,
    )
    connection.execute(_SETTLE, (settled.settled_at, settled.outcome, encode(settled), settled.id))
    return True


def _put_permission(connection: StoreConnection, operation: ops.PutPermission) -> None:
    sql = "SELECT decision FROM permissions WHERE id = ?"
    row = connection.execute(sql, (operation.record.id,)).fetchone()
    if row is not None and row[0] is not None:
        raise Conflict(f"request {operation.record.id} is decided already: {row[0]}")
    _put(connection, operation)


def _put_idempotency(connection: StoreConnection, operation: ops.PutIdempotency) -> None:
    new = operation.record
    old = _idempotency(connection, new.principal, new.tool, new.key)
    if old is not None and old.created_at > new.created_at - IDEMPOTENCY_SECONDS:
        raise AlreadyExists("this idempotency key was used already")
    _put(connection, operation)


def _idempotency(
    connection: StoreConnection, principal: str, tool: str, key: str
) -> IdempotencyKey | None:
    row = connection.execute(
        "SELECT data FROM idempotency_keys WHERE principal = ? AND tool = ? AND key = ?",
        (principal, tool, key),
    ).fetchone()
    return decode(IdempotencyKey, row[0]) if row else None


def _expire_idempotency(connection: StoreConnection, operation: ops.ExpireIdempotency) -> int:
    return _count(connection, "DELETE FROM idempotency_keys WHERE created_at < ?", operation.before)


def _append(connection: StoreConnection, operation: ops.AppendEvents) -> tuple[Event, ...]:
    """Append in SQLite; in PostgreSQL see `log_batch`."""
    stored: list[Event] = []
    logs: dict[str, tuple[int, int]] = {}
    """Of each session: the next index, and how many events were left out before."""
    for event in operation.events:
        session = event.session_id
        following, known = logs.get(session) or (_next_index(connection, session), 0)
        try:
            cursor = connection.execute(
                _INSERT_EVENT,
                (
                    session,
                    following,
                    event.ts,
                    event.type,
                    event.version,
                    event.principal,
                    event.caller_id,
                    event.source,
                    encode(event.data),
                ),
            )
        except UnicodeEncodeError as error:
            raise InvalidParameter(f"cannot be stored: {error}") from error
        if cursor.rowcount == 0:
            logs[session] = (following, known + 1)
            continue
        if event.index not in (following, following + known, -1):
            raise Conflict(
                f"the log of {session} goes on with index {following}, not {event.index}"
            )
        stored.append(
            msgspec.structs.replace(event, index=following, seq=cast("Any", cursor).lastrowid)
        )
        logs[session] = (following + 1, known)
    return tuple(stored)


def _next_index(connection: StoreConnection, session_id: str) -> int:
    (index,) = connection.execute(_NEXT_INDEX, (session_id,)).fetchone()
    return index


def _delete_events(connection: StoreConnection, operation: ops.DeleteSessionEvents) -> int:
    session = operation.session_id
    up_to = min(operation.up_to_index, _next_index(connection, session) - 1)
    if up_to < 0:
        return 0
    connection.execute(
        "INSERT INTO trims (session_id, up_to) VALUES (?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET up_to = excluded.up_to"
        " WHERE trims.up_to < excluded.up_to",
        (session, up_to),
    )
    sql = "DELETE FROM events WHERE session_id = ? AND idx <= ?"
    return _count(connection, sql, session, up_to)


def _put_meta(connection: StoreConnection, operation: ops.PutMeta) -> None:
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (operation.key, operation.value),
    )


def _bump_meta(connection: StoreConnection, operation: ops.BumpMeta) -> int:
    connection.execute(
        "INSERT INTO meta (key, value) VALUES (?, '1') ON CONFLICT (key)"
        " DO UPDATE SET value = CAST(CAST(meta.value AS INTEGER) + 1 AS TEXT)",
        (operation.key,),
    )
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (operation.key,)).fetchone()
    return int(row[0])


def _count(connection: StoreConnection, sql: str, *values: object) -> int:
    return connection.execute(sql, values).rowcount


_HANDLERS: Final[dict[type[ops.Operation], Callable[[StoreConnection, Any], Any]]] = {
    ops.PutPrincipal: _put,
    ops.PutToken: _put,
    ops.TouchToken: _touch_token,
    ops.RevokeToken: _revoke_token,
    ops.PutProject: _put_project,
    ops.PutWorkspace: _put,
    ops.PutContainer: _put,
    ops.DeleteContainer: _delete_container,
    ops.PutSession: _put_session,
    ops.PurgeSession: _purge_session,
    ops.PutTurn: _put,
    ops.AddUsage: _add_usage,
    ops.PutCallerRequest: _put_request,
    ops.SettleCallerRequest: _settle,
    ops.PutPermission: _put_permission,
    ops.PutIdempotency: _put_idempotency,
    ops.ExpireIdempotency: _expire_idempotency,
    ops.AppendEvents: _append,
    ops.DeleteSessionEvents: _delete_events,
    ops.PutMeta: _put_meta,
    ops.BumpMeta: _bump_meta,
}
