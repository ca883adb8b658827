"""Cursors of named subscriptions in the store, from which a later process continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.subscriptions.log_source import LogSource
from oubliette.errors import Conflict
from oubliette.runtime.store.operations import PutMeta

if TYPE_CHECKING:
    from oubliette.runtime.store.reader import Reader


class SubscriptionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one subscription that never change."""

    name: str
    subscriber: str
    """Name of the actor that gets the events."""
    source: LogSource
    durable: bool
    """Whether the cursor is stored under the name."""
    restart_seconds: float


@dataclass
class SubscriptionMemory:
    """State that a SubscriptionActor keeps over its own restarts; in memory, owned by it."""

    cursor: int
    """Position up to which the subscriber has acknowledged everything."""


class SubscriptionTable:
    """Open subscriptions by name; only the SubscriptionsActor changes it, and keeps it when
    restarted.
    """

    def __init__(self) -> None:
        self.open: dict[str, tuple[SubscriptionPlan, SubscriptionMemory]] = {}


PREFIX: Final = "subscription/"


class StoredCursor(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a named subscription, and the part of the log that it is a position in."""

    source: LogSource
    cursor: int


def put_cursor(plan: SubscriptionPlan, cursor: int) -> PutMeta:
    stored = StoredCursor(source=plan.source, cursor=cursor)
    return PutMeta(f"{PREFIX}{plan.name}", msgspec.json.encode(stored).decode())


def delete_cursor(name: str) -> PutMeta:
    """The operation after which no position is stored under this name."""
    return PutMeta(f"{PREFIX}{name}", "")


async def read_cursor(reader: Reader, name: str, source: LogSource) -> int | None:
    """Return the stored position of a subscription; None if there is none.

    Raises:
        Conflict: it is a position in another part of the log.
    """
    value = await reader.meta(f"{PREFIX}{name}")
    if not value:
        return None
    stored = msgspec.json.decode(value, type=StoredCursor)
    if stored.source != source:
        raise Conflict(
            f"the stored subscription {name} follows {shown(stored.source)}, not {shown(source)}",
            hint="use another name, or end that subscription with forget=True",
        )
    return stored.cursor


def shown(source: LogSource) -> str:
    if source.session_id is not None:
        return f"the session {source.session_id}"
    return "all sessions" if source.project_id is None else f"the project {source.project_id}"
