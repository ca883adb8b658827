"""The newest events of one caller in memory; older ones are read from the log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from oubliette import json_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.records import Event

MAX_EVENTS: Final = 1000
MAX_BYTES: Final = 4 * 1024 * 1024
_FIXED: Final = 64  # bytes of an event besides its data, roughly


def size_of(event: Event) -> int:
    """Return roughly how many bytes an event takes, in memory and on the wire."""
    return json_values.size(event.data) + _FIXED


class RecentEvents:
    """Bounded window on the end of the log: every event of the caller after `floor`."""

    def __init__(
        self, floor: int, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self.floor = floor
        """Seq below which cursors have to read the log."""
        self.head = floor
        """Seq of the newest event known."""
        self._events: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        return len(self._events)

    def extend(self, events: Iterable[Event]) -> None:
        """Add newer events, in seq order; known ones are dropped."""
        for event in events:
            if event.seq <= self.head:
                continue
            size = size_of(event)
            self._events.append((event, size))
            self._bytes += size
            self.head = event.seq
        while self._events and (
            len(self._events) > self._max_events or self._bytes > self._max_bytes
        ):
            event, size = self._events.popleft()
            self._bytes -= size
            self.floor = max(self.floor, event.seq)

    def after(self, cursor: int) -> list[tuple[Event, int]]:
        """Return events behind `cursor` (at `floor` or above) and their sizes, oldest first."""
        found: list[tuple[Event, int]] = []
        for item in reversed(self._events):
            if item[0].seq <= cursor:
                break
            found.append(item)
        found.reverse()
        return found

    def forget(self) -> None:
        """Keep nothing in memory; the log has all events."""
        self._events.clear()
        self._bytes = 0
        self.floor = self.head
