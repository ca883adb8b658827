"""State that a SessionActor reads from the store when it starts, all of it in one view.

A starting actor is waited for: by the caller that spawned its session, and by its agent. So there
is one read, not one for each part of the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.session import lifecycle
from oubliette.actors.session.event_writer import RING_BYTES
from oubliette.records import CallerRequest, Event, PermissionRequest, Session, Turn
from oubliette.runtime.store import queries

if TYPE_CHECKING:
    from oubliette.runtime.store.connection import StoreConnection

MAX_ANCESTORS: Final = 100
_CALLED: Final = "tool_call"


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A live session as the store has it."""

    record: Session
    log_end: int
    """Index of its last event; -1 if there is none."""
    tail: tuple[Event, ...]
    """The end of its log, for memory; empty if that would be too large."""
    turns: tuple[Turn, ...]
    """Turns that run or wait, in order."""
    seen: tuple[int, int]
    """Place of the newest stored item in its agent's output."""
    open_tools: dict[str, tuple[str, float]]
    """Tool calls of the running turn without a result: call id → tool, wall second of the call."""
    turn_since: float | None
    """Wall second in which the running turn began; None if none runs."""
    ancestry: tuple[str, ...]
    """Session ids from the root down to this one."""
    root: Session
    """The oldest of these that has a record."""
    requests: tuple[CallerRequest, ...]
    """Calls of a caller's tools that are open, or were settled lately."""
    permissions: tuple[PermissionRequest, ...]
    """Permission requests of the running turn, and all undecided ones."""

    @property
    def running(self) -> Turn | None:
        """The running turn."""
        return _running(self.turns)


def stored(
    connection: StoreConnection, session_id: str, kept: int, settled_since: float
) -> StoredSession | None:
    """Return the stored state of a session; None if it does not live.

    Args:
        connection: to the database, within one view.
        session_id: the session.
        kept: events of the end of its log that are wanted, at most.
        settled_since: wall second from which on settled requests count.
    """
    record = queries.session(connection, session_id)
    if record is None or not lifecycle.live(record):
        return None
    log_end = queries.bounds(connection, session_id)[1]
    tail = queries.log(connection, session_id, max(-1, log_end - kept), kept, RING_BYTES).events
    if tail and tail[-1].index != log_end:
        tail = []  # too large for memory: readers go to the log
    record = queries.with_tools(connection, record)
    turns = tuple(queries.turns(connection, session_id, ("queued", "running")))
    running = _running(turns)
    ancestry, root = _ancestry(connection, record)
    seen = -1, -1
    if record.process_id is not None:
        seen = queries.last_source(connection, session_id, record.process_id)
    return StoredSession(
        record=record,
        log_end=log_end,
        tail=tuple(tail),
        turns=turns,
        seen=seen,
        open_tools=_open_tools(connection, running) if running else {},
        turn_since=_began(connection, running) if running else None,
        ancestry=ancestry,
        root=root,
        requests=tuple(queries.recent_requests(connection, session_id, settled_since)),
        permissions=tuple(
            queries.permissions(connection, session_id, running.number if running else 0)
        ),
    )


def _running(turns: tuple[Turn, ...]) -> Turn | None:
    return next((turn for turn in reversed(turns) if turn.state == "running"), None)


def _ancestry(connection: StoreConnection, session: Session) -> tuple[tuple[str, ...], Session]:
    ids, root = [session.id], session
    parent = session.parent_session_id
    while parent is not None and len(ids) <= MAX_ANCESTORS:
        ids.insert(0, parent)
        record = queries.session(connection, parent)
        parent = record.parent_session_id if record else None
        root = record or root
    return tuple(ids), root


def _began(connection: StoreConnection, turn: Turn) -> float | None:
    """Return when the turn began; if an earlier release began it, when the status changed last."""
    if turn.began_at is not None:
        return turn.began_at
    row = connection.execute(
        "SELECT ts FROM events INDEXED BY events_by_session WHERE session_id = ?"
        " AND type = 'status' ORDER BY idx DESC LIMIT 1",
        (turn.session_id,),
    ).fetchone()
    return None if row is None else float(row[0])


def _open_tools(connection: StoreConnection, turn: Turn) -> dict[str, tuple[str, float]]:
    """The tool calls since the turn began that have no result.

    If an earlier release began it, those since the last turn's end.
    """
    began = turn.began_index
    if began is None:
        row = connection.execute(
            "SELECT idx FROM events INDEXED BY events_by_session WHERE session_id = ?"
            " AND type = 'completion' ORDER BY idx DESC LIMIT 1",
            (turn.session_id,),
        ).fetchone()
        began = row[0] + 1 if row else 0
    rows = connection.execute(
        "SELECT type, data, ts FROM events INDEXED BY events_of_tools WHERE session_id = ?"
        " AND idx >= ? AND type IN ('tool_call', 'tool_result') ORDER BY idx",
        (turn.session_id, began),
    )
    found: dict[str, tuple[str, float]] = {}
    for kind, data, ts in rows.fetchall():
        fields = msgspec.json.decode(data)
        call_id = str(fields.get("call_id"))
        if kind == _CALLED:
            found[call_id] = (str(fields.get("tool")), ts)
        else:
            found.pop(call_id, None)
    return found
