"""Effects that a session's state decides on, which its actor applies in order.

`AppendEvent`, `ChangeRecord`, `StoreTurn` and `Store` go into the next transaction. The others
reach other actors, or parts of this one: at once, or in `AfterCommit`, when that transaction is in
the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.actors.session.messages import AgentBusy, AgentCost, ChildTurnEnded, StdinFrame
from oubliette.kit import Message
from oubliette.records import PermissionRequest, Turn
from oubliette.runtime.store.operations import Op


class AppendEvent(msgspec.Struct, frozen=True):
    """Append an event to the log."""

    type: str
    data: dict[str, Any]
    source: str | None = None
    caller_id: str | None = None
    """The caller that receives it; None: the one that provides tools now."""
    principal: str | None = None
    """Of that caller; None: of the session."""


class ChangeRecord(msgspec.Struct, frozen=True):
    """Change these fields of the session's record."""

    fields: dict[str, Any]


class StoreTurn(msgspec.Struct, frozen=True):
    """Store a turn as it is now."""

    turn: Turn


class Store(msgspec.Struct, frozen=True):
    """Perform an operation of the store in the same transaction."""

    operation: Op


class WriteFrame(msgspec.Struct, frozen=True):
    """Write a frame to the agent."""

    frame: StdinFrame


class SendPrompt(msgspec.Struct, frozen=True):
    """Write the prompt of the running turn to the agent."""

    turn: Turn


class NotifyTree(msgspec.Struct, frozen=True):
    """Send a message to the actor of the session's tree."""

    message: AgentBusy | AgentCost


class NotifyParent(msgspec.Struct, frozen=True):
    """Send the end of a turn to the session whose agent waits for it."""

    session_id: str
    message: ChildTurnEnded


class WatchTurn(msgspec.Struct, frozen=True):
    """Start the deadlines of a turn."""

    turn: int


class EndTurnWatch(msgspec.Struct, frozen=True):
    """Cancel the deadlines and the open permission requests of the turn that has ended."""


class InterruptTurn(msgspec.Struct, frozen=True):
    """Have the agent end the running turn."""

    turn: int


class SendDecision(msgspec.Struct, frozen=True):
    """Write the decision on a permission request to the agent."""

    request: PermissionRequest


class DecisionStored(msgspec.Struct, frozen=True):
    """Continue with a decision on a permission request, which is in the log."""

    request: PermissionRequest
    turn: int | None
    """The turn that ran when it was decided."""


class StartTimer(msgspec.Struct, frozen=True):
    """Send the session a message after some seconds."""

    seconds: float
    message: Message


class PassFailpoint(msgspec.Struct, frozen=True):
    """Pass a place at which a test can make the process fail."""

    name: str


class AfterCommit(msgspec.Struct, frozen=True):
    """An effect that waits until everything before it is in the store."""

    effect: SendPrompt | NotifyParent | DecisionStored


Action = (
    WriteFrame
    | SendPrompt
    | SendDecision
    | DecisionStored
    | NotifyTree
    | NotifyParent
    | WatchTurn
    | EndTurnWatch
    | InterruptTurn
    | StartTimer
    | PassFailpoint
)
"""Effects that are applied at once."""
Effect = AppendEvent | ChangeRecord | StoreTurn | Store | AfterCommit | Action
Effects = tuple[Effect, ...]
