"""Invariants of a home: the logs of all its sessions, and the tables beside them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import NotFound
from oubliette.records import TERMINAL
from oubliette.runtime.files.home import DATABASE
from oubliette.testing.invariants.broken import InvariantBroken
from oubliette.testing.invariants.log import LogChecker

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD: Final = "the record of a session has the status of its log"
LIVE: Final = "a session is live until its status is final"
REQUESTS: Final = "a request is settled in its table when it is in the log"
_EVENTS: Final = (
    "SELECT seq, idx, ts, type, version, data FROM events WHERE session_id = ? ORDER BY idx"
)
_SESSIONS: Final = (
    "SELECT id, status, live, (SELECT up_to FROM trims WHERE session_id = id) FROM sessions"
    " ORDER BY id"
)
_REQUESTS: Final = "SELECT id, session_id, outcome FROM caller_requests ORDER BY id"


class HomeSummary(msgspec.Struct, frozen=True):
    """Numbers of the things that `check_home` has checked."""

    sessions: int
    events: int
    turns: int
    requests: int


def check_home(home: str | Path) -> HomeSummary:
    """Check all logs of a home, whose server may run, have stopped or have been killed.

    Returns:
        The numbers of sessions, events, turns and requests that were checked.

    Raises:
        InvariantBroken: an invariant does not hold.
        NotFound: there is no database.
    """
    file = Path(home) / DATABASE
    if not file.exists():
        raise NotFound(f"there is no database in {home}", hint="pass the home of a server")
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        connection.execute("BEGIN")  # one view for all
        return _check(connection)


def _check(connection: sqlite3.Connection) -> HomeSummary:
    events = turns = sessions = 0
    settled: dict[str, str] = {}
    cut: set[str] = set()
    for session_id, status, live, up_to in connection.execute(_SESSIONS).fetchall():
        sessions += 1
        if bool(live) != (status not in TERMINAL):
            raise InvariantBroken(LIVE, f"{status}, with live = {live}", session_id=session_id)
        floor = 0 if up_to is None else up_to + 1
        if floor:
            cut.add(session_id)
        checker = LogChecker(floor=floor)
        for event in _log(connection, session_id):
            events += 1
            checker.add(event)
            if event["type"] == "caller_tool_settled":
                settled[event["request_id"]] = event["outcome"]
        if checker.status is not None and checker.status != status:
            detail = f"the record is {status}, the log ends with {checker.status}"
            raise InvariantBroken(RECORD, detail, session_id=session_id)
        if status != "running":
            checker.check_settled()
        turns += checker.turns
    requests = connection.execute(_REQUESTS).fetchall()
    for request_id, session_id, outcome in requests:
        logged = settled.get(request_id)
        if logged != outcome and not (logged is None and session_id in cut):
            detail = f"{request_id} is {outcome} in the table, {logged} in the log"
            raise InvariantBroken(REQUESTS, detail, session_id=session_id)
    return HomeSummary(sessions=sessions, events=events, turns=turns, requests=len(requests))


def _log(connection: sqlite3.Connection, session_id: str) -> Iterator[dict[str, Any]]:
    for seq, index, ts, kind, version, data in connection.execute(_EVENTS, (session_id,)):
        yield {
            **json.loads(data),
            "type": kind,
            "session_id": session_id,
            "index": index,
            "ts": ts,
            "seq": seq,
            "version": version,
        }
