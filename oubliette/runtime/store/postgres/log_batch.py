"""Events of one transaction, appended to the logs of their sessions together.

What has to be known of the logs is read once for all requests of a transaction, and the events are
inserted by one statement, so that the number of round trips does not depend on theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import Conflict, InvalidParameter
from oubliette.runtime.store.codec import encode
from oubliette.runtime.store.errors import UniqueClash
from oubliette.runtime.store.log_order import EVENTS
from oubliette.runtime.store.operations import AppendEvents

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.records import Event
    from oubliette.runtime.store.connection import Rows
    from oubliette.runtime.store.operations import Op
    from oubliette.runtime.store.postgres.connection import PostgresConnection

# Two steps of an index for each: with GROUP BY, the server reads all events of these sessions.
LOGS: Final = """
SELECT named.id, greatest(
  (SELECT max(idx) FROM events WHERE session_id = named.id),
  (SELECT max(up_to) FROM trims WHERE session_id = named.id))
FROM unnest(?1::text[]) AS named (id)"""
SOURCES: Final = """
SELECT session_id, source FROM events
WHERE session_id = ANY(?1) AND source = ANY(?2) AND source IS NOT NULL"""
_INSERT: Final = """
INSERT INTO events
  (seq, session_id, idx, ts, type, version, principal, caller_id, source, data)
SELECT * FROM unnest(
  ?1::bigint[], ?2::text[], ?3::bigint[], ?4::double precision[], ?5::text[], ?6::bigint[],
  ?7::text[], ?8::text[], ?9::text[], ?10::bytea[])"""


class LogBatch:
    """Appends of one transaction, on its connection."""

    def __init__(self, connection: PostgresConnection) -> None:
        """Begin with no events, and without a number, which `number` gives.

        Args:
            connection: In a transaction, or about to begin one.
        """
        self._connection = connection
        self._seq = self._last_seq = 0
        self._next: dict[str, int] = {}
        """Session → index of its next event."""
        self._sources: set[tuple[str, str]] = set()
        self._rows: list[tuple[Any, ...]] = []
        self.appended = False
        """Whether there were any events."""

    def number(self, transaction: int, offset: int) -> None:
        """Give the events their seqs, by the number of the transaction.

        Args:
            transaction: Its number.
            offset: Of this log, see `log_order`.
        """
        self._seq = transaction * EVENTS + offset
        self._last_seq = self._seq + EVENTS - 1

    def read(self, ops: Iterable[Op]) -> None:
        """Read what is known of the logs that these operations append to."""
        events = [event for op in ops if type(op) is AppendEvents for event in op.events]
        sessions = {event.session_id for event in events} - self._next.keys()
        if not sessions:
            return
        named = list(sessions)
        sources = [event.source for event in events if event.source is not None]
        logs = self._execute(LOGS, named)
        known = self._execute(SOURCES, named, sources) if sources else None
        self._next.update(dict.fromkeys(sessions, 0))
        for session_id, last in logs.fetchall():
            if last is not None:
                self._next[session_id] = last + 1
        if known is not None:
            self._sources.update((session_id, source) for session_id, source in known.fetchall())

    def append(self, operation: AppendEvents) -> tuple[Event, ...]:
        """Return the new events; they are inserted by `flush`.

        Raises:
            Conflict: an index does not continue its log.
            InvalidParameter: an event cannot be stored, or there are too many.
        """
        self.read((operation,))
        stored: list[Event] = []
        known: dict[str, int] = {}
        """Of each session: how many events were left out before."""
        for event in operation.events:
            session_id, source = event.session_id, event.source
            following = self._next[session_id]
            data = encode(event.data)
            if source is not None and (session_id, source) in self._sources:
                known[session_id] = known.get(session_id, 0) + 1
                continue
            if event.index not in (following, following + known.get(session_id, 0), -1):
                raise Conflict(
                    f"the log of {session_id} goes on with index {following}, not {event.index}"
                )
            if self._seq > self._last_seq:
                raise InvalidParameter(f"more than {EVENTS} events in one transaction")
            added = msgspec.structs.replace(event, index=following, seq=self._seq)
            self._rows.append(_row(added, data))
            stored.append(added)
            self._next[session_id] = following + 1
            self._seq += 1
            if source is not None:
                self._sources.add((session_id, source))
        self.appended = self.appended or bool(stored)
        return tuple(stored)

    def flush(self) -> None:
        """Insert the events that were appended since the last time."""
        if self._rows:
            columns = tuple(list(column) for column in zip(*self._rows, strict=True))
            self._rows = []
            try:
                self._execute(_INSERT, *columns)
            except UniqueClash as error:
                raise Conflict(f"another machine has appended to the log: {error}") from error

    def _execute(self, sql: str, *columns: list[Any]) -> Rows:
        try:
            return self._connection.execute(sql, columns)
        except UnicodeEncodeError as error:
            raise InvalidParameter(f"cannot be stored: {error}") from error

    def after_rollback(self) -> LogBatch:
        """A batch without what was appended since the last `flush`, for what follows."""
        following = LogBatch(self._connection)
        following._seq, following._last_seq = self._seq, self._last_seq
        following.appended = self.appended
        return following

    def forget(self, session_id: str) -> None:
        """Read the log of this session again, which an operation has cut."""
        self._next.pop(session_id, None)
        self._sources = {known for known in self._sources if known[0] != session_id}


def _row(event: Event, data: bytes) -> tuple[Any, ...]:
    return (
        event.seq,
        event.session_id,
        event.index,
        event.ts,
        event.type,
        event.version,
        event.principal,
        event.caller_id,
        event.source,
        data,
    )
