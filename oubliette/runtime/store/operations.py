"""Write operations of the store, as values.

A transaction is a tuple of operations: all of them are applied or none. Its result is the tuple of
their results, in the same order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from oubliette.records import (
    CallerRequest,
    CallerTool,
    Container,
    Event,
    IdempotencyKey,
    PermissionRequest,
    Principal,
    Project,
    Session,
    Token,
    Turn,
    Used,
    Workspace,
)


class Operation(msgspec.Struct, frozen=True, tag=True):
    """Base of all operations."""


class PutPrincipal(Operation, frozen=True):
    """Insert or replace by id; the result is None."""

    record: Principal


class PutToken(Operation, frozen=True):
    """Insert or replace by id; the result is None."""

    record: Token


class TouchToken(Operation, frozen=True):
    """Move the token's last use forward to `at`; the result is whether the token exists."""

    id: str
    at: float


class RevokeToken(Operation, frozen=True):
    """Revoke; the first revocation's time stays. The result is whether this one revoked it."""

    id: str
    at: float


class PutProject(Operation, frozen=True):
    """Insert or replace by id; the result is None.

    Fails with AlreadyExists ("project already exists") if another live project has the name.
    """

    record: Project


class PutWorkspace(Operation, frozen=True):
    """Insert or replace by id; the result is None."""

    record: Workspace


class PutContainer(Operation, frozen=True):
    """Insert or replace by id; the result is None."""

    record: Container


class DeleteContainer(Operation, frozen=True):
    """Delete a removed container; the result is whether it was known."""

    id: str


class PutSession(Operation, frozen=True):
    """Insert or replace by id; the result is None.

    Its caller's tools are kept in a row of their own, which is written only if there are `tools`
    here or in the record: a record that was read without them does not delete them.
    """

    record: Session
    tools: tuple[CallerTool, ...] | None = None
    """Tools of its caller from now on, perhaps none; None: those of the record, if it has any."""


class PurgeSession(Operation, frozen=True):
    """Delete an ended session and all its dependents; the result is whether it existed.

    Its log, turns, requests and minted keys are deleted too; what it has used stays in the sums of
    its project. Fails with Conflict if the session is live.
    """

    session_id: str


class PutTurn(Operation, frozen=True):
    """Insert or replace by session and number; the result is None."""

    record: Turn


class AddUsage(Operation, frozen=True):
    """Add to the sums of an hour of a session; the result is None."""

    session_id: str
    hour: int
    """Hours since 1970, UTC."""
    project_id: str
    principal: str
    agent: str
    model: str
    """Empty: unknown."""
    used: Used


class PutCallerRequest(Operation, frozen=True):
    """Insert or replace by id; the result is None. Fails with Conflict if it is settled."""

    record: CallerRequest


class SettleCallerRequest(Operation, frozen=True):
    """Set the single outcome of a request; the result is False if it has one already.

    With `only_once` that is a Conflict instead, so that the other operations of the transaction
    (its event) are not applied twice. Fails with NotFound for an unknown id.
    """

    id: str
    outcome: Literal["result", "tool_error", "timeout", "caller_gone", "cancelled"]
    settled_at: float
    result: Any = None
    error: str | None = None
    only_once: bool = False


class PutPermission(Operation, frozen=True):
    """Insert or replace by id; the result is None. Fails with Conflict if it is decided."""

    record: PermissionRequest


class PutIdempotency(Operation, frozen=True):
    """Claim a key; the result is None. Fails with AlreadyExists if it is claimed.

    A key that is 24 h older than this one counts as free.
    """

    record: IdempotencyKey


class ExpireIdempotency(Operation, frozen=True):
    """Delete the keys made before `before` (wall seconds); the result is their count."""

    before: float


class AppendEvents(Operation, frozen=True):
    """Append to the logs of sessions; the result is the new events, with index and seq set.

    An event whose source is in its session's log already is left out. An index must continue the
    session's log without a gap (events left out before it in this operation may be counted or not),
    or be -1 for "the next"; else the transaction fails with Conflict.
    """

    events: tuple[Event, ...]


class DeleteSessionEvents(Operation, frozen=True):
    """Delete a session's events up to and including `up_to_index`; the result is their count.

    Readers see it in `truncated_before`; new events continue the old indexes.
    """

    session_id: str
    up_to_index: int


class PutMeta(Operation, frozen=True):
    """Set one value of the instance (its id, for example); the result is None."""

    key: str
    value: str


class BumpMeta(Operation, frozen=True):
    """Add one to a counter of the instance (the server's epoch); the result is the value."""

    key: str


Op = (
    PutPrincipal
    | PutToken
    | TouchToken
    | RevokeToken
    | PutProject
    | PutWorkspace
    | PutContainer
    | DeleteContainer
    | PutSession
    | PurgeSession
    | PutTurn
    | AddUsage
    | PutCallerRequest
    | SettleCallerRequest
    | PutPermission
    | PutIdempotency
    | ExpireIdempotency
    | AppendEvents
    | DeleteSessionEvents
    | PutMeta
    | BumpMeta
)
"""Any operation."""

if TYPE_CHECKING:
    Result = tuple[Any, ...]
else:  # the type, for messages that carry one to another machine
    Result = tuple[bool | int | tuple[Event, ...] | None, ...]
"""One result per operation, as documented there."""

Commit = Callable[[tuple[Op, ...]], Awaitable[Result]]
"""Callable that commits a transaction; raises the operation's own error."""
