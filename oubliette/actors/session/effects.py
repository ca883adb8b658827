"""Effects that a session's state decides on, which its actor applies in order.

`AppendEvent`, `ChangeRecord` and `StoreTurn` go into the next transaction. The others reach other
actors, or parts of this one: at once, or in `AfterCommit`, when that transaction is in the store.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.actors.session.messages import AgentBusy, AgentCost, ChildTurnEnded, StdinFrame
from oubliette.records import Turn


class AppendEvent(msgspec.Struct, frozen=True):
    """Append an event to the log."""

    type: str
    data: dict[str, Any]
    source: str | None = None


class ChangeRecord(msgspec.Struct, frozen=True):
    """Change these fields of the session's record."""

    fields: dict[str, Any]


class StoreTurn(msgspec.Struct, frozen=True):
    """Store a turn as it is now."""

    turn: Turn


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


class AfterCommit(msgspec.Struct, frozen=True):
    """An effect that waits until everything before it is in the store."""

    effect: SendPrompt | NotifyParent


Action = (
    WriteFrame | SendPrompt | NotifyTree | NotifyParent | WatchTurn | EndTurnWatch | InterruptTurn
)
"""Effects that are applied at once."""
Effect = AppendEvent | ChangeRecord | StoreTurn | AfterCommit | Action
Effects = tuple[Effect, ...]
