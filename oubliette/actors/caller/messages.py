"""Messages of listeners and tools to a CallerActor."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.kit import Message, Reply
from oubliette.records import CallerTool, Event

SUPERSEDED = "superseded"
"""Reason for the end of a provider: a newer one of the same caller took its place."""

UNKNOWN = "unknown listener"
"""Reason for an empty batch: the actor was restarted and the listener must open again."""


class ListenerOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to OpenListener."""

    cursor: int
    """Cursor for the next request."""
    redelivered: int = 0
    """Number of open requests that come again."""


class OpenListener(Message, Reply[ListenerOpened]):
    """To a CallerActor: open a listener. A provider ends the one before it with `superseded`.

    One whose right is restricted to a project ends one of the same right only, and gets the
    requests of that project in place of the unrestricted one.
    """

    listener_id: str
    mode: Literal["provide", "observe"] = "provide"
    """`observe` listeners get no tool requests, and do not count as presence."""
    kind: Literal["stream", "poll"] = "stream"
    after: int | None = None
    """Seq of the last event that the caller has; None: from now on, open requests first."""
    again: bool = False
    """Open requests from before `after` come again too: the caller may have lost them."""
    tools: tuple[CallerTool, ...] | None = None
    """The tools that this caller provides from now on; None leaves them unchanged."""
    project_id: str | None = None
    """Only events of sessions of this project, which the listener's right is restricted to."""


class CloseListener(Message):
    """To a CallerActor: close the listener; its NextEvents is answered with `reason`."""

    listener_id: str
    reason: str = "gone"
    orderly: bool = False
    """Whether it got the reason, so it may come back: counts as a poll, not as a drop.
    """


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to NextEvents."""

    events: tuple[Event, ...]
    next: int
    """Cursor behind them."""
    redelivered: tuple[int, ...] = ()
    """Seqs of those requests that may have been delivered before."""
    ended: str | None = None
    """Reason why this listener gets nothing more."""


class NextEvents(Message, Reply[EventBatch]):
    """To a CallerActor: events after a cursor; waits for the first, or the listener's end."""

    listener_id: str
    after: int
    max_events: int = 256
    max_bytes: int = 1024 * 1024
    wait_seconds: float = 20.0


class CallerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a caller."""

    present: bool
    provided: bool
    """Whether a provider is open."""
    head: int
    """Seq of the newest event known here."""
    tools: tuple[CallerTool, ...] | None = None
    """Tools that it provided with `caller_listen`; None if it never did."""
    reason: str | None = None
    """Reason why it is absent, if it is."""
    tracked: int = 0
    """Open requests that depend on its presence."""


class GetCaller(Message, Reply[CallerState]):
    """To a CallerActor: request for the caller's state and the tools that it provides."""

    project_id: str | None = None
    """Project of the sessions that the tools are for; None: any."""
    restricted: bool = False
    """Whether the asker's right is restricted to that project."""


class CallerChanged(Message):
    """From the board of a cluster to a CallerActor: the shared state of its caller has changed."""

    change: int | None = None
    """Number of the change; None: changes may have been missed."""
    project_id: str | None = None
    """Project that the keys of the changed place are bound to; None: to none."""


class CallersUnknown(Message):
    """From the board of a cluster to `callers`: changes of any callers may have been missed."""
