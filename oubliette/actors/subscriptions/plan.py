"""Facts of one subscription: what its actor is given, and what it keeps over its own restarts."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from oubliette.actors.subscriptions.log_source import LogSource


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
