"""What may be written, as values.

A transaction is a tuple of operations: all of them happen or none. Its result is the tuple of
their results, in the same order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from oubliette.records import (
    CallerRequest,
    Container,
    Event,
    IdempotencyKey,
    PermissionRequest,
    Principal,
    Project,
    Session,
    Token,
    Turn,
    Workspace,
)


class Operation(msgspec.Struct, frozen=True, tag=True):
    """Base of all operations."""


class PutPrincipal(Operation, frozen=True):
    """Insert or replace by id; answers None."""

    record: Principal


class PutToken(Operation, frozen=True):
    """Insert or replace by id; answers None."""

    record: Token


class TouchToken(Operation, frozen=True):
    """Move the token's last use forward to `at`; answers whether there is such a token."""

    id: str
    at: float


class RevokeToken(Operation, frozen=True):
    """Revoke; the first revocation's time stays. Answers whether this one revoked it."""

    id: str
    at: float


class PutProject(Operation, frozen=True):
    """Insert or replace by id; answers None.

    Fails with AlreadyExists ("project already exists") where another live project has the name.
    """

    record: Project


class PutWorkspace(Operation, frozen=True):
    """Insert or replace by id; answers None."""

    record: Workspace


class PutContainer(Operation, frozen=True):
    """Insert or replace by id; answers None."""

    record: Container


class DeleteContainer(Operation, frozen=True):
    """Forget a container that was removed; answers whether it was known."""

    id: str


class PutSession(Operation, frozen=True):
    """Insert or replace by id; answers None."""

    record: Session


class PurgeSession(Operation, frozen=True):
    """Delete an ended session and all that hangs on it; answers whether it was there.

    Its log, turns, requests and minted keys go with it. Fails with Conflict while the
    session lives.
    """

    session_id: str


class PutTurn(Operation, frozen=True):
    """Insert or replace by session and number; answers None."""

    record: Turn


class DeleteTurns(Operation, frozen=True):
    """Delete the session's finished turns up to `up_to_number`; answers how many."""

    session_id: str
    up_to_number: int


class PutCallerRequest(Operation, frozen=True):
    """Insert or replace by id; answers None. Fails with Conflict where it has its outcome."""

    record: CallerRequest


class SettleCallerRequest(Operation, frozen=True):
    """Give a request its one outcome; answers False where it has one already.

    With `only_once` that is a Conflict instead, so that what goes with the outcome in the same
    transaction (its event) does not happen twice. Fails with NotFound for an unknown id.
    """

    id: str
    outcome: Literal["result", "tool_error", "timeout", "caller_gone", "cancelled"]
    settled_at: float
    result: Any = None
    error: str | None = None
    only_once: bool = False


class DeleteSettledRequests(Operation, frozen=True):
    """Delete requests that were settled before `before` (wall seconds); answers how many."""

    before: float


class PutPermission(Operation, frozen=True):
    """Insert or replace by id; answers None. Fails with Conflict where it is decided."""

    record: PermissionRequest


class PutIdempotency(Operation, frozen=True):
    """Claim a key; answers None. Fails with AlreadyExists where it is held.

    A key that is 24 h older than this one counts as free.
    """

    record: IdempotencyKey


class AnswerIdempotency(Operation, frozen=True):
    """Set the answer of a claimed key; answers whether it is there."""

    principal: str
    tool: str
    key: str
    answer: dict[str, Any]


class DeleteIdempotency(Operation, frozen=True):
    """Free one key, as its request failed before it did anything; answers whether it was held."""

    principal: str
    tool: str
    key: str


class ExpireIdempotency(Operation, frozen=True):
    """Delete the keys made before `before` (wall seconds); answers how many."""

    before: float


class AppendEvents(Operation, frozen=True):
    """Append to the logs of sessions; answers the events that are new, with index and seq set.

    An event whose source is in its session's log already is left out. An index must go on from
    the session's log without a gap (events left out before it in this operation may be counted or
    not), or be -1 for "the next"; else the transaction fails with Conflict.
    """

    events: tuple[Event, ...]


class DeleteSessionEvents(Operation, frozen=True):
    """Cut a session's log: delete events up to and with `up_to_index`; answers how many.

    Readers are told by `truncated_before`; new events go on from the old indexes.
    """

    session_id: str
    up_to_index: int


class PutMeta(Operation, frozen=True):
    """Set one value of the instance (its id, say); answers None."""

    key: str
    value: str


class BumpMeta(Operation, frozen=True):
    """Add one to a counter of the instance (the server's epoch); answers the new value, from 1."""

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
    | DeleteTurns
    | PutCallerRequest
    | SettleCallerRequest
    | DeleteSettledRequests
    | PutPermission
    | PutIdempotency
    | AnswerIdempotency
    | DeleteIdempotency
    | ExpireIdempotency
    | AppendEvents
    | DeleteSessionEvents
    | PutMeta
    | BumpMeta
)
"""Any operation."""

if TYPE_CHECKING:
    Result = tuple[Any, ...]
else:  # what it is, for messages that carry one to another machine
    Result = tuple[bool | int | tuple[Event, ...] | None, ...]
"""One answer per operation, as each says."""

Commit = Callable[[tuple[Op, ...]], Awaitable[Result]]
"""Has a transaction committed; raises the operation's own error."""
