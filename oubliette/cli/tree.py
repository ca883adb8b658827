"""Command `oubliette tree`: the sessions of one tree below each other, and its limits."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call, pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    line_of,
    print_entries,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.cli.terminal.output import Column


def _waits(session: dict[str, Any]) -> str:
    """The cell of its waits; a child is the row below."""
    waits = [wait for wait in session["waiting"] if wait["kind"] != "ended"]
    shown = ("a child" if wait["kind"] == "child" else wait["what"] for wait in waits)
    return "; ".join(dict.fromkeys(shown))[:50]


SESSIONS: Final[tuple[Column, ...]] = (
    ("SESSION", lambda each: "  " * each["level"] + each["session_id"]),
    ("STATUS", "status"),
    ("AGENT", "agent"),
    ("COST", lambda each: f"${each['usage']['cost_usd']:.2f}"),
    ("WAITS FOR", _waits),
    ("TITLE", line_of("title", 40)),
)
LIMITS: Final[tuple[Column, ...]] = (
    ("LIMIT", "name"),
    ("USED", lambda each: f"{each['used']:.6g}"),
    ("OF", lambda each: f"{each['value']:.6g}"),
    ("SET BY", "source"),
)


def tree(
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION", help="Any session of the tree; its id may be abbreviated."
        ),
    ],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show the tree of a session: who works below whom, what each waits for, and the limits."""
    state = call(home, "config_limits", {"session_id": whole_id(home, "session", session)})
    wanted = {"exploration_id": state["exploration_id"]}
    sessions = pages(home, "session_list", "sessions", {**wanted, "waiting": True})
    limits = [
        {"name": name, **each} for name, each in state["limits"].items() if each["used"] is not None
    ]
    if output is Format.json:
        print_json({**wanted, "limits": limits, "sessions": sessions})
        return
    print_entries(SESSIONS, below_each_other(sessions))
    typer.echo()
    print_entries(LIMITS, limits)


def below_each_other(sessions: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return each session with its `level`, children after their parent.

    One whose parent is not among them, such as a session in a project that the key does not reach,
    is at the top.
    """
    children: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
    there = {each["session_id"] for each in sessions}
    for each in sessions:
        parent = each["parent_session_id"]
        children[parent if parent in there else None].append(each)
    left = [(0, each) for each in reversed(children[None])]
    while left:
        level, each = left.pop()
        yield {**each, "level": level}
        left += [(level + 1, child) for child in reversed(children[each["session_id"]])]
