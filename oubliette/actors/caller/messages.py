"""What listeners and tools say to a CallerActor."""

from __future__ import annotations

from typing import Literal

import msgspec

from oubliette.kit import Message, Reply
from oubliette.records import CallerTool, Event

SUPERSEDED = "superseded"
"""Why a lending listener ended: a newer one of the same caller took its place."""

UNKNOWN = "unknown listener"
"""Why a batch is empty: the actor was restarted and wants the listener to open again."""


class ListenerOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to OpenListener."""

    cursor: int
    """Where to ask on from."""
    redelivered: int = 0
    """How many open requests come again."""


class OpenListener(Message, Reply[ListenerOpened]):
    """Begin to listen. A lending one ends the lending one before it with `superseded`."""

    listener_id: str
    mode: Literal["lend", "observe"] = "lend"
    """`observe` listeners get no tool requests, and do not count as presence."""
    kind: Literal["stream", "poll"] = "stream"
    after: int | None = None
    """Seq of the last event that the caller has; None: from now on, open requests first."""
    again: bool = False
    """Open requests from before `after` come again too: the caller may have lost them."""
    tools: tuple[CallerTool, ...] | None = None
    """The tools that this caller lends from now on; None leaves them as they are."""
    project_id: str | None = None
    """Only events of sessions of this project: the right of whoever listens ends there."""


class CloseListener(Message):
    """The listener ends; one that waits in NextEvents is answered with `reason`."""

    listener_id: str
    reason: str = "gone"
    orderly: bool = False
    """It was told why, so it may well come back: counts as a poll, not as a drop."""


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to NextEvents."""

    events: tuple[Event, ...]
    next: int
    """Cursor behind them."""
    redelivered: tuple[int, ...] = ()
    """Seqs of those requests that may have been told before."""
    ended: str | None = None
    """Why this listener gets nothing more."""


class NextEvents(Message, Reply[EventBatch]):
    """Events after a cursor; waits for the first. Also ends with the listener."""

    listener_id: str
    after: int
    max_events: int = 256
    max_bytes: int = 1024 * 1024
    wait_seconds: float = 20.0


class CallerState(msgspec.Struct, frozen=True, kw_only=True):
    """How a caller stands now."""

    present: bool
    lending: bool
    """Whether a lending listener is open."""
    head: int
    """Seq of the newest event known here."""
    tools: tuple[CallerTool, ...] | None = None
    """What it lent with `caller_listen`; None if it never did."""
    reason: str | None = None
    """Why it is absent, when it is."""
    tracked: int = 0
    """Open requests that depend on its presence."""


class GetCaller(Message, Reply[CallerState]):
    """To a CallerActor: how the caller stands, and the tools that it lent."""
