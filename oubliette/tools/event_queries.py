"""Queries of logs for the tools, each on one consistent view of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from oubliette.errors import InvalidParameter
from oubliette.records import MAX_TITLE
from oubliette.runtime.store import queries
from oubliette.runtime.store.queries.event_log import (
    EVENT,
    capped,
    event_of,
    event_up_to,
    walked,
)
from oubliette.runtime.store.queries.session_turns import ALIVE
from oubliette.tools.schema.views import event_view

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from oubliette.records import Event, Session
    from oubliette.runtime.store.connection import StoreConnection

_TREE: Final = (
    "WITH RECURSIVE tree(id, project_id) AS (SELECT id, project_id FROM sessions WHERE id = ?1"
    " UNION SELECT sessions.id, sessions.project_id FROM sessions"
    " JOIN tree ON sessions.parent_session_id = tree.id)"
)
_ONLY: Final = "(?5 IS NULL OR project_id = ?5)"


_SEQ: Final = 6
"""Place of the seq in a row of events."""
_TAIL: Final = 50
_SMALL_EVENT: Final = 64 * 1024
"""Bytes up to which an event is encoded again for each of its pieces."""


class TreeSlice(NamedTuple):
    """Part of the log of a session and its descendants, in commit order."""

    events: list[Event]
    last_seq: int
    """Seq up to which nothing of the tree is left out; the cursor of the next read."""
    more: bool
    truncated_before: int | None
    """Seq of the first event that is kept, if events after the cursor were deleted."""
    live: list[str]
    """Ids of the live sessions of the tree."""


def tree_log(  # noqa: PLR0917 - the limits of one read
    connection: StoreConnection,
    root: str,
    after: int,
    max_events: int,
    max_bytes: int,
    whole_bytes: int | None = None,
    only: str | None = None,
) -> TreeSlice:
    """The events with a seq above `after` of the tree below `root`, including `root`.

    Those of more than `whole_bytes` are references, not read; projects but `only` are left out.
    """
    row = connection.execute(
        "SELECT project_id, exploration_id FROM sessions WHERE id = ?", (root,)
    ).fetchone()
    if row is None:
        return TreeSlice([], after, more=False, truncated_before=None, live=[])
    project, tree_id = row
    tree = _Members(connection, root)
    head = queries.last_seq(connection)
    read = event_up_to(whole_bytes)
    # The log of all sessions is walked on for a bit: the logs of the tree may be many.
    until = walked(connection, max(after, 0), head)
    rows = connection.execute(
        f"{read} WHERE seq > ?1 AND seq <= ?2 AND EXISTS (SELECT 1 FROM sessions WHERE"  # noqa: S608
        f" sessions.id = session_id AND exploration_id = ?3 AND {_ONLY}) ORDER BY seq LIMIT ?4",
        (max(after, 0), until, tree_id, max_events + 1, only),
    )
    passed: list[int] = []

    def of_tree() -> Generator[Any]:
        for row in rows:
            passed.append(row[_SEQ])
            if row[0] in tree:
                yield row

    events, more = capped(of_tree(), max_events, max_bytes)
    rows.close()
    last_seq = passed[-1] if len(passed) > max_events else max(after, until)
    if not events and last_seq < head:
        # It rested while others wrote much.
        found = connection.execute(
            f"{_TREE} {read} WHERE session_id IN (SELECT id FROM tree WHERE {_ONLY})"  # noqa: S608
            " AND seq > ?2 AND seq <= ?4 ORDER BY seq LIMIT ?3",
            (root, max(last_seq, 0), max_events + 1, head, only),
        )
        events, more = capped(found, max_events, max_bytes)
        found.close()
        last_seq = head
    if more:
        last_seq = events[-1].seq
    return TreeSlice(
        events=events,
        last_seq=last_seq,
        more=last_seq < head,
        truncated_before=_truncated(connection, tree, (tree_id, only), after, events),
        live=_live(connection, tree, project, tree_id),
    )


def _live(connection: StoreConnection, tree: _Members, project: str, tree_id: str) -> list[str]:
    rows = connection.execute(
        f"SELECT id FROM sessions{ALIVE} WHERE live = 1 AND project_id = ? AND exploration_id = ?"  # noqa: S608
        " ORDER BY id",
        (project, tree_id),
    )
    return [each for (each,) in rows.fetchall() if each in tree]


class _Members:
    """The sessions of a tree, as far as it was asked for them."""

    def __init__(self, connection: StoreConnection, root: str) -> None:
        self._connection = connection
        self._known = {root: True}

    def __contains__(self, session_id: str) -> bool:
        way: list[str] = []
        above: str | None = session_id
        while above is not None and above not in self._known:
            way.append(above)
            self._known[above] = False
            row = self._connection.execute(
                "SELECT parent_session_id FROM sessions WHERE id = ?", (above,)
            ).fetchone()
            above = row[0] if row else None
        belongs = above is not None and self._known[above]
        self._known.update(dict.fromkeys(way, belongs))
        return belongs


def _truncated(
    connection: StoreConnection,
    tree: _Members,
    within: tuple[str, str | None],
    after: int,
    events: list[Event],
) -> int | None:
    """Return `truncated_before`: set if in doubt, because deleted events have no seq any more."""
    # Few logs were ever cut, so these come first.
    cut = connection.execute(
        "SELECT trims.session_id, up_to + 1 FROM trims CROSS JOIN sessions"
        " WHERE trims.session_id > '' AND id = trims.session_id AND exploration_id = ?1"
        " AND (?2 IS NULL OR project_id = ?2)",
        within,
    ).fetchall()
    for session_id, first in cut:
        if session_id not in tree:
            continue
        kept = connection.execute(
            "SELECT seq FROM events WHERE session_id = ? AND idx = ?", (session_id, first)
        ).fetchone()
        if after <= 0 or (kept is not None and kept[0] > after):
            return events[0].seq if events else after + 1
    return None


def listing_facts(
    connection: StoreConnection, sessions: list[Session], only: str | None
) -> dict[str, tuple[Session, int, list[str]]]:
    """Return each session with its title, its last index and the ids of its children.

    A parent or a child in another project than `only` is left out.
    """
    return {
        each.id: (
            msgspec.structs.replace(
                _without_parent(connection, each, only),
                title=queries.session_title(connection, each),
            ),
            queries.bounds(connection, each.id)[1],
            queries.child_ids(connection, each.id, project_id=only),
        )
        for each in sessions
    }


def sessions_with_titles(connection: StoreConnection, ids: Collection[str]) -> dict[str, Session]:
    """Return the sessions of these ids that there are, each with its title."""
    found = (queries.session(connection, each) for each in ids)
    return {
        each.id: msgspec.structs.replace(each, title=queries.session_title(connection, each))
        for each in found
        if each is not None
    }


def _without_parent(connection: StoreConnection, record: Session, only: str | None) -> Session:
    """The record of a session, without its parent if that is not in the project `only`."""
    if only is None or record.parent_session_id is None:
        return record
    parent = queries.session(connection, record.parent_session_id)
    if parent is not None and parent.project_id == only:
        return record
    return msgspec.structs.replace(record, parent_session_id=None)


def newest_line(connection: StoreConnection, sessions: Collection[str]) -> tuple[float, str] | None:
    """Return time and last line of the newest message or tool call in these logs.

    Of each log only the last `_TAIL` events are looked at.
    """
    newest: Event | None = None
    for each in sessions:
        last = queries.last_index(connection, each)
        rows = connection.execute(
            f"{event_up_to(_SMALL_EVENT)} WHERE session_id = ? AND idx > ?"
            " AND type IN ('message', 'tool_call') ORDER BY idx DESC LIMIT 1",
            (each, last - _TAIL),
        )
        for row in rows.fetchall():
            found = event_of(row)
            if newest is None or found.seq > newest.seq:
                newest = found
    if newest is None:
        return None
    text = str(newest.data.get("text" if newest.type == "message" else "tool") or "")
    lines = [line.strip() for line in text.splitlines()]
    return newest.ts, next(filter(None, reversed(lines)), "")[:MAX_TITLE]


def event_piece(
    connection: StoreConnection,
    session_id: str,
    index: int,
    offset: int,
    most: int,
    *,
    names: bool = True,
) -> tuple[str, int | None, int] | None:
    """Return (text, next offset, total) of an event's JSON from `offset` on, in bytes of UTF-8.

    None if there is no such event. Without `names` it has none of principals.

    Raises:
        InvalidParameter: `offset` is past the end or within a character.
    """
    row = connection.execute(
        f"{event_up_to(_SMALL_EVENT)} WHERE session_id = ? AND idx = ?", (session_id, index)
    ).fetchone()
    if row is None:
        return None
    event, size = event_of(row), row[-1]
    if size <= _SMALL_EVENT:
        text = msgspec.json.encode(event_view(event if names else event.unnamed(), whole=True))
        total = len(text)
        data = text[offset : offset + most + 1]
    else:
        # What all events have comes behind the stored fields: of a name that is there twice, all
        # readers of JSON take the last.
        common = msgspec.json.encode(event_view(msgspec.structs.replace(event, data={})))[1:]
        stored = size - 1
        total = stored + 1 + len(common)
        wanted = max(0, min(stored - offset, most + 1))
        data = queries.event_bytes(connection, event.seq, offset, wanted) if wanted else b""
        data += b",%b" % common
        behind = max(0, offset - stored)
        data = data[behind : behind + most + 1]
    if offset > total or _inside_character(data, 0):
        raise InvalidParameter(
            f"offset: {offset} is not the start of a piece; give 0 or the last next_offset",
            field="offset",
        )
    end = min(most, len(data))
    while _inside_character(data, end):
        end -= 1
    following = offset + end
    return data[:end].decode(), following if following < total else None, total


def _inside_character(data: bytes, place: int) -> bool:
    return place < len(data) and data[place] & 0xC0 == 0x80


def turn_costs(connection: StoreConnection, session_id: str, before: int) -> dict[int, float]:
    """The cost of each turn in US dollars, as far as events below an index report it."""
    rows = connection.execute(
        f"{EVENT} WHERE session_id = ? AND idx < ? AND type = 'system' ORDER BY idx",
        (session_id, before),
    )
    costs: dict[int, float] = {}
    for row in rows:
        data = event_of(row).data
        turn, cost = data.get("turn"), data.get("cost_usd")
        if data.get("kind") == "usage" and isinstance(turn, int) and isinstance(cost, int | float):
            costs[turn] = costs.get(turn, 0.0) + cost
    rows.close()
    return costs


def all_workspaces(connection: StoreConnection, project_id: str) -> list[str]:
    """The ids of the workspaces of a project, with those that were deleted."""
    rows = connection.execute(
        "SELECT id FROM workspaces WHERE project_id = ? ORDER BY id", (project_id,)
    )
    return [row[0] for row in rows]
