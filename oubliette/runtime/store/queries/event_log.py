"""Queries of events: logs of sessions, and those of a caller in commit order."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oubliette.records import Event
from oubliette.runtime.store.codec import decode_payload, encode
from oubliette.runtime.store.connection import is_postgres
from oubliette.runtime.store.log_order import horizon

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from oubliette.runtime.store.connection import Rows, StoreConnection


MAX_EVENTS: Final = 500
MAX_BYTES: Final = 4 * 1024 * 1024
"""Default limits of one read of events."""

_REFERENCE: Final = 200
"""Bytes that an event takes of which there is a reference only."""
WALK: Final = 20_000
"""Seqs that one read of several sessions walks, however few of them it returns."""
_OF_PROJECT: Final = (
    " AND EXISTS (SELECT 1 FROM sessions WHERE sessions.id = session_id AND project_id = ?4)"
)
"""Asked of each event between two seqs; `IN` would read the logs of all sessions of the project."""
COLUMNS: Final = "session_id, idx, ts, type, data, version, seq, principal, caller_id, source"
EVENT: Final = f"SELECT {COLUMNS} FROM events"  # noqa: S608
"""Beginning of each query whose rows `capped` takes."""


def event_up_to(most: int | None) -> str:
    """Return `EVENT`, which does not read the fields of events of more than `most` bytes."""
    if most is None:
        return EVENT
    small = f"CASE WHEN length(data) <= {most:d} THEN data END"
    return EVENT.replace(" data,", f" {small},").replace(" source", " source, length(data)")


class LogSlice(NamedTuple):
    """Part of a session's log, without gaps after its first event."""

    events: list[Event]
    first_index: int
    """First index that is kept (0 for a log that was never cut; may be one past the end)."""
    last_index: int
    """Last index of the whole log, -1 if there was never an event."""
    truncated_before: int | None
    """Set if events after the cursor were deleted: the first index that is kept."""
    more: bool
    """Whether the log continues after the last event here."""


def event_of(row: tuple[Any, ...]) -> Event:
    """Return the event in a row of `COLUMNS`; with a reference where its fields were not read."""
    session_id, index, ts, kind, data, version, seq, principal, caller_id, source, *size = row
    return Event(
        session_id=session_id,
        index=index,
        ts=ts,
        type=kind,
        data=_by_reference(session_id, index, *size) if data is None else decode_payload(data),
        version=version,
        seq=seq,
        principal=principal,
        caller_id=caller_id,
        source=source,
    )


def _by_reference(session_id: str, index: int, size: int) -> dict[str, Any]:
    return {"ref": {"session_id": session_id, "index": index}, "size": size}


def capped(
    rows: Rows | Generator[Any], max_events: int, max_bytes: int
) -> tuple[list[Event], bool]:
    """Return events of rows up to the limits, but at least one; and whether there are more."""
    events: list[Event] = []
    size = 0
    for row in rows:
        size += _REFERENCE if row[4] is None else len(row[4])
        if events and (len(events) >= max_events or size > max_bytes):
            rows.close()
            return events, True
        events.append(event_of(row).sendable())
    return events, False


def log(  # noqa: PLR0917 - the limits of one read
    connection: StoreConnection,
    session_id: str,
    since_index: int = -1,
    max_events: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
    whole_bytes: int | None = None,
) -> LogSlice:
    """Return events after `since_index`, at least one if there is any, else up to the limits.

    Those of more than `whole_bytes` come as a reference, without being read.
    """
    cut, last = bounds(connection, session_id)
    rows = connection.execute(
        f"{event_up_to(whole_bytes)} WHERE session_id = ? AND idx > ? ORDER BY idx LIMIT ?",
        (session_id, since_index, max_events + 1),
    )
    events, more = capped(rows, max_events, max_bytes)
    truncated = cut if since_index < cut - 1 else None
    return LogSlice(events, cut, last, truncated, more)


def bounds(connection: StoreConnection, session_id: str) -> tuple[int, int]:
    """Return the first index kept and the last index of the log; (0, -1) for a new one."""
    row = connection.execute(
        "SELECT (SELECT up_to FROM trims WHERE session_id = ?1),"
        " (SELECT max(idx) FROM events WHERE session_id = ?1)",
        (session_id,),
    ).fetchone()
    cut = -1 if row[0] is None else row[0]
    return cut + 1, cut if row[1] is None else row[1]


def events(
    connection: StoreConnection,
    session_id: str,
    since_index: int = -1,
    max_events: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
) -> list[Event]:
    """The events of `log`: one at least if there is any, else up to the limits."""
    return log(connection, session_id, since_index, max_events, max_bytes).events


def last_index(connection: StoreConnection, session_id: str) -> int:
    """The index of the last event of a session, -1 if there was never one."""
    return bounds(connection, session_id)[1]


def event(connection: StoreConnection, session_id: str, index: int) -> Event | None:
    row = connection.execute(
        f"{EVENT} WHERE session_id = ? AND idx = ?", (session_id, index)
    ).fetchone()
    return event_of(row) if row else None


def event_bytes(connection: StoreConnection, seq: int, start: int, count: int) -> bytes:
    """Return `count` bytes of the stored fields of an event, from the byte `start` on.

    It costs as much as these bytes: `substr` of SQLite would read the whole value.
    """
    if isinstance(connection, sqlite3.Connection):
        with connection.blobopen("events", "data", seq, readonly=True) as stored:
            stored.seek(start)
            return stored.read(count)
    row = connection.execute(
        "SELECT substring(data, ?, ?) FROM events WHERE seq = ?", (start + 1, count, seq)
    ).fetchone()
    return bytes(row[0])


def caller_events(  # noqa: PLR0917 - the order of the index
    connection: StoreConnection,
    principal: str,
    caller_id: str,
    after_seq: int = 0,
    limit: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
) -> list[Event]:
    """Return this caller's events in the order of their commit; at least one if there is any."""
    rows = connection.execute(
        f"{EVENT} WHERE principal = ? AND caller_id = ? AND seq > ? AND seq <= ? ORDER BY seq"
        " LIMIT ?",
        (principal, caller_id, after_seq, last_seq(connection), limit + 1),
    )
    return capped(rows, limit, max_bytes)[0]


class CommitSlice(NamedTuple):
    """Part of the logs of several sessions, in the order of their commit."""

    events: list[Event]
    next_seq: int
    """Seq up to which nothing is left out; the cursor of the next read."""
    more: bool
    """Whether there may be events after `next_seq`."""
    cuts: list[tuple[str, int]]
    """Session and first index that is kept, of logs whose events before that were deleted."""


def committed_events(
    connection: StoreConnection,
    after_seq: int,
    project_id: str | None = None,
    max_events: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
) -> CommitSlice:
    """Return events after `after_seq`, of one project or of all; one read walks `WALK` seqs."""
    head = last_seq(connection)
    until = walked(connection, after_seq, head)
    only = "" if project_id is None else _OF_PROJECT
    rows = connection.execute(
        f"{EVENT} WHERE seq > ?1 AND seq <= ?2{only} ORDER BY seq LIMIT ?3",
        (after_seq, until, max_events + 1, *([] if project_id is None else [project_id])),
    )
    events, cut_off = capped(rows, max_events, max_bytes)
    next_seq = events[-1].seq if cut_off else max(until, after_seq)
    return CommitSlice(events, next_seq, next_seq < head, _cuts(connection, events))


class EventChoice(NamedTuple):
    """Events of the logs of all sessions that are asked for; unset parts leave none out."""

    project_id: str | None = None
    session_id: str | None = None
    types: Collection[str] = ()
    text: str = ""
    """Text in the JSON of an event's fields, in any case."""
    names: bool = True
    """Whether it is looked for in names of principals too."""


def chosen_events(  # noqa: PLR0917 - the limits of one read
    connection: StoreConnection,
    choice: EventChoice,
    after_seq: int,
    max_events: int = MAX_EVENTS,
    max_bytes: int = MAX_BYTES,
    whole_bytes: int | None = None,
) -> CommitSlice:
    """Return events after `after_seq` that are asked for; one read walks `WALK` seqs.

    Those of more than `whole_bytes` are references, in which no text is found. Logs that were cut
    are not named.
    """
    after = max(after_seq, 0)
    head = last_seq(connection)
    until = walked(connection, after, head)
    sql = f"{event_up_to(whole_bytes)} WHERE seq > ?1 AND seq <= ?2"
    # To find a text, all rows of the walk are read.
    given: list[Any] = [after, until, WALK if choice.text else max_events + 1]
    if choice.project_id is not None:
        given.append(choice.project_id)
        sql += _OF_PROJECT
    if choice.session_id is not None:
        given.append(choice.session_id)
        # No index of sessions: from a late seq on, that would go through the whole log of one.
        sql += f" AND session_id || '' = ?{len(given)}"
    if choice.types:
        places = range(len(given) + 1, len(given) + 1 + len(choice.types))
        given += choice.types
        sql += f" AND type IN ({', '.join(f'?{place}' for place in places)})"
    rows = connection.execute(f"{sql} ORDER BY seq LIMIT ?3", tuple(given))
    events, cut_off = capped(_with_text(rows, choice), max_events, max_bytes)
    next_seq = events[-1].seq if cut_off else max(until, after)
    return CommitSlice(events, next_seq, next_seq < head, [])


def _with_text(rows: Rows, choice: EventChoice) -> Generator[Any]:
    """The rows of events whose fields contain the text that is asked for."""
    wanted = encode(choice.text)[1:-1].decode().casefold()
    try:
        for row in rows:
            if not wanted or (row[4] is not None and wanted in _searched(row, choice)):
                yield row
    finally:
        rows.close()


def _searched(row: tuple[Any, ...], choice: EventChoice) -> str:
    data = bytes(row[4])
    if not choice.names and b'"by":' in data:  # others have none: they are not decoded
        data = encode(event_of(row).unnamed().data)
    return data.decode().casefold()


def walked(connection: StoreConnection, after_seq: int, head: int) -> int:
    """The seq up to which one read goes."""
    if not is_postgres(connection):
        return min(head, max(after_seq, 0) + WALK)
    # There, seqs have large gaps: count the events.
    row = connection.execute(
        "SELECT seq FROM events WHERE seq > ? AND seq <= ? ORDER BY seq OFFSET ? LIMIT 1",
        (after_seq, head, WALK - 1),
    ).fetchone()
    return row[0] if row else head


def _cuts(connection: StoreConnection, events: list[Event]) -> list[tuple[str, int]]:
    """The sessions whose log begins with one of these events, though not at index 0."""
    first: dict[str, int] = {}
    for event in events:
        first.setdefault(event.session_id, event.index)
    return [
        (session_id, index)
        for session_id, index in first.items()
        if index > 0
        and connection.execute(
            "SELECT 1 FROM trims WHERE session_id = ? AND up_to = ?", (session_id, index - 1)
        ).fetchone()
    ]


def last_seq(connection: StoreConnection) -> int:
    """Return a seq below which everything is seen by now, 0 at first; all later ones are higher.

    In SQLite it is the highest that was assigned, in PostgreSQL that of the last event up to the
    horizon. The horizon itself would be too high: a server that crashes gives the numbers of the
    last transactions again, of those that have stored nothing.
    """
    if is_postgres(connection):
        row = connection.execute(
            "SELECT seq FROM events WHERE seq <= ? ORDER BY seq DESC LIMIT 1",
            (horizon(connection),),
        ).fetchone()
        return row[0] if row else 0
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return row[0] if row else 0


def last_source(connection: StoreConnection, session_id: str, process_id: str) -> tuple[int, int]:
    """Return (offset, ordinal) of the newest event of that process; (-1, -1) if none."""
    of_process = session_id, f"{process_id}:", f"{process_id};"  # ';' follows ':'
    known = connection.execute(
        "SELECT 1 FROM events WHERE session_id = ? AND source >= ? AND source < ? LIMIT 1",
        of_process,
    ).fetchone()
    if known is None:  # no walk through the whole log for a process without output
        return -1, -1
    # In the order of the log, as text would sort 9 above 10.
    row = connection.execute(
        "SELECT source FROM events INDEXED BY events_by_session WHERE session_id = ?"
        " AND source >= ? AND source < ? ORDER BY idx DESC LIMIT 1",
        of_process,
    ).fetchone()
    offset, _, ordinal = row[0].removeprefix(f"{process_id}:").partition(":")
    return int(offset), int(ordinal)
