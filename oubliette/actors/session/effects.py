"""Effects that a session's state decides on, which its actor applies in order.

`AppendEvent`, `ChangeRecord` and `StoreTurn` go into the next transaction. The others reach other
actors, or parts of this one: at once, or in `AfterCommit`, when that transaction is in the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oubliette.actors.session.messages import AgentBusy, AgentCost, ChildTurnEnded, StdinFrame
    from oubliette.records import Turn


@dataclass(frozen=True, slots=True)
class AppendEvent:
    """Append an event to the log."""

    type: str
    data: dict[str, Any]
    source: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """Change these fields of the session's record."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoreTurn:
    """Store a turn as it is now."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class WriteFrame:
    """Write a frame to the agent."""

    frame: StdinFrame


@dataclass(frozen=True, slots=True)
class SendPrompt:
    """Write the prompt of the running turn to the agent."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class NotifyTree:
    """Send a message to the actor of the session's tree."""

    message: AgentBusy | AgentCost


@dataclass(frozen=True, slots=True)
class NotifyParent:
    """Send the end of a turn to the session whose agent waits for it."""

    session_id: str
    message: ChildTurnEnded


@dataclass(frozen=True, slots=True)
class WatchTurn:
    """Start the deadlines of a turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class EndTurnWatch:
    """Cancel the deadlines and the open permission requests of the turn that has ended."""


@dataclass(frozen=True, slots=True)
class InterruptTurn:
    """Have the agent end the running turn."""

    turn: int


@dataclass(frozen=True, slots=True)
class AfterCommit:
    """An effect that waits until everything before it is in the store."""

    effect: SendPrompt | NotifyParent


Action = (
    WriteFrame | SendPrompt | NotifyTree | NotifyParent | WatchTurn | EndTurnWatch | InterruptTurn
)
"""What is done at once."""
Effect = AppendEvent | ChangeRecord | StoreTurn | AfterCommit | Action
Effects = tuple[Effect, ...]
