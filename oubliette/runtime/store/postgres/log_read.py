"""Read of the log by a tail: all that follows its cursor up to the horizon, in one statement.

A statement has one view of the database, so its horizon is that of the events which it returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from oubliette.runtime.store.log_order import HORIZON
from oubliette.runtime.store.postgres.connection import translated_errors
from oubliette.runtime.store.queries.event_log import COLUMNS, MAX_BYTES, MAX_EVENTS, event_of

if TYPE_CHECKING:
    from oubliette.records import Event
    from oubliette.runtime.store.postgres.connection import PostgresConnection

_HELD: Final = "coalesce((SELECT max(events.seq) FROM events) > head.seq, false)"
"""Whether there are events beyond the horizon, found at the end of an index."""
_HEAD: Final = f"""
WITH head AS MATERIALIZED ({HORIZON})
SELECT coalesce((SELECT max(events.seq) FROM events WHERE events.seq <= head.seq), 0),
  {_HELD} AS held
FROM head"""  # noqa: S608
_READ: Final = f"""
WITH head AS MATERIALIZED ({HORIZON})
SELECT following.*, {_HELD} AS held
FROM head LEFT JOIN LATERAL (
  SELECT {COLUMNS} FROM events WHERE events.seq > %s AND events.seq <= head.seq
  ORDER BY events.seq LIMIT %s
) AS following ON true
ORDER BY following.seq"""  # noqa: S608


class TailRead(NamedTuple):
    """Result of one read of a tail."""

    events: list[Event]
    cursor: int
    """Seq up to which nothing is left out: that of an event, see `last_seq` of the queries."""
    more: bool
    """Whether events below the horizon follow."""
    held: bool
    """Whether there are commits beyond the horizon."""


def _executed(connection: PostgresConnection, sql: str, *values: int) -> Any:
    return connection.raw.execute(cast("Any", sql), values or None, prepare=True)


def head_of_log(connection: PostgresConnection) -> TailRead:
    """Pass over every event up to the horizon."""
    with translated_errors():
        row = _executed(connection, _HEAD).fetchone()
    return TailRead([], row[0], more=False, held=row[1])


def read_on(connection: PostgresConnection, cursor: int) -> TailRead:
    """Read what follows the cursor, up to the limits of one read."""
    with translated_errors():
        rows: list[Any] = _executed(connection, _READ, cursor, MAX_EVENTS + 1).fetchall()
    events: list[Event] = []
    size = 0
    held = rows[0][-1]
    for *row, _ in rows:
        if row[0] is None:
            break  # there is none
        size += len(row[4])
        if events and (len(events) >= MAX_EVENTS or size > MAX_BYTES):
            return TailRead(events, events[-1].seq, more=True, held=held)
        events.append(event_of(tuple(row)).sendable())
    return TailRead(events, events[-1].seq if events else cursor, more=False, held=held)
