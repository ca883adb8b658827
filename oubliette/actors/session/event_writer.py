"""A session's own writes, in order: events, its record, its turns.

The session assigns indexes; the store commits; only committed state is visible to others. One
transaction at a time is under way: later writes are joined to the next, so that a busy session
costs few commits and a failed one (disk full) is simply tried again, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette import json_values
from oubliette.records import CallerTool, Event, Session, Turn, Used
from oubliette.runtime.store.operations import AddUsage, AppendEvents, Op, PutSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_UNCOMMITTED_EVENTS: Final = 256
MAX_UNCOMMITTED_BYTES: Final = 1024 * 1024
RING_BYTES: Final = 4 * 1024 * 1024  # of a session's events kept in memory


@dataclass
class WriteBatch:
    """One transaction."""

    ops: tuple[Op, ...]
    events: tuple[Event, ...]
    then: tuple[Callable[[], object], ...]
    bytes: int


@dataclass
class _Pending:
    ops: list[Op] = field(default_factory=list[Op])
    events: list[Event] = field(default_factory=list[Event])
    then: list[Callable[[], object]] = field(default_factory=list["Callable[[], object]"])
    bytes: int = 0
    record: bool = False

    def __bool__(self) -> bool:
        return bool(self.ops or self.events or self.then or self.record)


class EventWriter:
    """The uncommitted end of a session's log, and its committed tail in memory."""

    def __init__(
        self,
        record: Session,
        tail: Iterable[Event],
        log_end: int,
        *,
        ring_size: int,
        now: Callable[[], float],
        wake: Callable[[], object],
        model: str | None = None,
    ) -> None:
        """Begin with what is stored.

        Args:
            record: Of the session.
            tail: The newest events of the log.
            log_end: Index of the last one.
            ring_size: Number of events that are kept in memory.
            now: Returns the wall second.
            wake: Called when there is something to commit.
            model: Model of its agent where the record has none; None: unknown.
        """
        self._model = model
        self.record = record
        """The current record of the session, uncommitted changes included."""
        self._tools: tuple[CallerTool, ...] | None = None
        """Its tools as the store has them; None: an earlier release may have stored them."""
        self.log_end = log_end
        """Index of the last committed event."""
        self.log_bytes = record.log_bytes
        """Size of all events, roughly: what the agent has had stored, cancelled calls included."""
        self._next = log_end + 1
        self._ring: deque[tuple[Event, int]] = deque((event, _weight(event)) for event in tail)
        self._ring_bytes = sum(weight for _, weight in self._ring)
        self._ring_size = ring_size
        self._now = now
        self._wake = wake
        self._pending = _Pending()
        self._under_way: WriteBatch | None = None

    # ------------------------------------------------------------- writing

    @property
    def next_index(self) -> int:
        """Index of the next event that is appended."""
        return self._next

    def append(
        self,
        type_: str,
        data: dict[str, Any],
        *,
        source: str | None = None,
        caller_id: str | None = None,
        principal: str | None = None,
    ) -> Event:
        """Add an event; it has its index at once, and is visible to others once committed.

        `caller_id` of `principal` is the caller that receives it; by default the one that provides
        tools now.
        """
        caller = caller_id or self.record.caller_id
        event = Event(
            session_id=self.record.id,
            index=self._next,
            ts=self._now(),
            type=type_,
            data=data,
            principal=(principal or self.record.principal) if caller else "",
            caller_id=caller,
            source=source,
        )
        self._next += 1
        self._pending.events.append(event)
        weight = _weight(event)
        self._pending.bytes += weight
        self.log_bytes += weight
        self._wake()
        return event

    def begun(self, turn: Turn) -> Turn:
        return msgspec.structs.replace(
            turn,
            began_at=self._now(),
            began_index=self._next,
            cost_before=self.record.cost_usd,
        )

    def count(self, used: Used) -> None:
        """Add to the sums of what the session has used."""
        record = self.record
        self.put(
            AddUsage(
                session_id=record.id,
                hour=int(self._now() // 3600),
                project_id=record.project_id,
                principal=record.principal,
                agent=record.agent,
                model=record.model or self._model or "",
                used=used,
            )
        )

    def put(self, *ops: Op) -> None:
        """Add operations to the same transaction."""
        self._pending.ops.extend(ops)
        self._wake()

    def change(self, **fields: Any) -> None:
        self.record = msgspec.structs.replace(self.record, updated_at=self._now(), **fields)
        self._pending.record = True
        self._wake()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` once everything so far is committed."""
        self._pending.then.append(callback)
        self._wake()

    @property
    def full(self) -> bool:
        """Whether its agent has to be blocked."""
        batch = self._under_way
        count = len(self._pending.events) + (len(batch.events) if batch else 0)
        size = self._pending.bytes + (batch.bytes if batch else 0)
        return count >= MAX_UNCOMMITTED_EVENTS or size >= MAX_UNCOMMITTED_BYTES

    @property
    def settled(self) -> bool:
        """Whether everything is committed."""
        return self._under_way is None and not self._pending

    def take(self) -> WriteBatch | None:
        """Return the next transaction, or None while one is under way or nothing is pending."""
        if self._under_way is not None or not self._pending:
            return None
        pending, self._pending = self._pending, _Pending()
        events = tuple(pending.events)
        ops = list(pending.ops)
        if pending.record:
            self.record = msgspec.structs.replace(self.record, log_bytes=self.log_bytes)
            ops.append(self._put())
        if events:
            ops.append(AppendEvents(events))
        self._under_way = WriteBatch(tuple(ops), events, tuple(pending.then), pending.bytes)
        return self._under_way

    def _put(self) -> PutSession:
        """Return the write of the record; with its caller's tools only if they have changed."""
        tools = self.record.caller_tools
        if tools is self._tools:
            return PutSession(msgspec.structs.replace(self.record, caller_tools=()))
        self._tools = tools
        return PutSession(self.record, tools)

    def committed(self, stored: tuple[Event, ...]) -> tuple[Callable[[], object], ...]:
        """Record that the transaction under way is in the log; return the due callbacks."""
        batch, self._under_way = self._under_way, None
        assert batch is not None
        for event in stored:
            weight = _weight(event)
            self._ring.append((event, weight))
            self._ring_bytes += weight
        if stored:
            self.log_end = stored[-1].index
        while self._ring and (len(self._ring) > self._ring_size or self._ring_bytes > RING_BYTES):
            self._ring_bytes -= self._ring.popleft()[1]
        if self._pending:
            self._wake()
        return batch.then

    # ------------------------------------------------------------- reading

    def in_memory(self, since: int) -> bool:
        """Whether all events after `since` are held here."""
        if since >= self.log_end:
            return True
        return bool(self._ring) and self._ring[0][0].index <= since + 1

    def after(self, since: int, max_events: int, max_bytes: int) -> tuple[Event, ...]:
        """Return committed events after `since`, at least one if there is any."""
        found: list[Event] = []
        size = 0
        start = max(0, since + 1 - (self._ring[0][0].index if self._ring else 0))
        for event, weight in islice(self._ring, start, None):
            if len(found) >= max_events or (found and size + weight > max_bytes):
                break
            found.append(event)
            size += weight
        return tuple(found)


def _weight(event: Event) -> int:
    """Return roughly how many bytes the event takes: the length of its long strings."""
    size = 200
    for value in event.data.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            size += json_values.size(cast("Any", value))
    return size
