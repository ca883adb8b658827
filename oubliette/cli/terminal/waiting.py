"""Sentences about the waits of sessions, children below their parents."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from oubliette.cli.terminal.output import clean, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_SESSIONS: Final = 1000
"""Limit of sessions in one query; a tree may be larger."""


def tree(session_id: str, get: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return the waits of a session, and recursively those of the sessions it waits for.

    Args:
        session_id: id of the session.
        get: `session_get` function that returns one session's state.

    Returns:
        `{session_id, status, waiting}`; a wait for a child has its own such object in `session`,
        null if the child is listed already.
    """
    seen: set[str] = set()

    def look(each: str) -> dict[str, Any]:
        seen.add(each)
        found = get(each)
        waits: list[dict[str, Any]] = []
        for wait in found["waiting"]:
            child = wait["session_id"]
            if child is not None:
                known = child in seen or len(seen) >= MAX_SESSIONS
                waits.append({**wait, "session": None if known else look(child)})
            else:
                waits.append(wait)
        return {"session_id": each, "status": found["status"], "waiting": waits}

    return look(session_id)


def lines(session: dict[str, Any], now: float | None = None, level: int = 0) -> Iterator[str]:
    """Return `tree` as lines for users."""
    now = time.time() if now is None else now
    indent = "  " * level
    yield f"{indent}{session['session_id']} is {session['status'].replace('_', ' ')}."
    for wait in session["waiting"]:
        yield f"{indent}  {sentence(wait, now)}"
        if wait["detail"]:
            yield clean(f"{indent}    {wait['detail']}")
        if wait.get("session") is not None:
            yield from lines(wait["session"], now, level + 2)


def sentence(wait: dict[str, Any], now: float) -> str:
    what = " ".join(str(wait["what"]).split())
    text = clean(what if wait["kind"] == "ended" else f"It waits for {what}")
    text = text.replace("nothing: it", "It", 1) if wait["kind"] == "ended" else text
    if (since := wait["since"]) is not None:
        text += f", since {moment(since)} ({span(now - since)})"
    if (heard := wait["last_event_at"]) is not None:
        text += f", last sign of life {span(now - heard)} ago"
    if (until := wait["until"]) is not None:
        text += f", until {moment(until)} ({span(until - now)} left)"
    return text + "."


def span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def waits_of(session: dict[str, Any]) -> str:
    """Return the cell of what a session waits for; a child is the row below."""
    waits = [wait for wait in session["waiting"] if wait["kind"] != "ended"]
    shown = ("a child" if wait["kind"] == "child" else wait["what"] for wait in waits)
    return "; ".join(dict.fromkeys(shown))[:50]
