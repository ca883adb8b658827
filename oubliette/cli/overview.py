"""Commands `oubliette ps`, `logs`, `tree` and `usage`: what works, and what it does and costs."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import PAGE, call, pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.choices import LIVE
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    line_of,
    note,
    paged,
    print_entries,
    print_json,
)
from oubliette.cli.terminal.times import SINCE
from oubliette.cli.terminal.waiting import span, waits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.cli.terminal.output import Column


def _cost(session: dict[str, Any]) -> str:
    return f"${session['usage']['cost_usd']:.2f}"


LISTED: Final[tuple[Column, ...]] = (
    ("SESSION", "session_id"),
    ("PROJECT", "project"),
    ("AGENT", "agent"),
    ("STATUS", "status"),
    ("AGE", lambda each: span(time.time() - each["created_at"])),
    ("COST", _cost),
    ("WAITS FOR", waits_of),
    ("TITLE", line_of("title", 60)),
)
SESSIONS: Final[tuple[Column, ...]] = (
    ("SESSION", lambda each: "  " * each["level"] + each["session_id"]),
    ("STATUS", "status"),
    ("AGENT", "agent"),
    ("COST", lambda each: f"${each['cost_usd']:.2f}"),
    ("WAITS FOR", waits_of),
    ("TITLE", line_of("title", 40)),
)
LIMITS: Final[tuple[Column, ...]] = (
    ("LIMIT", "name"),
    ("USED", lambda each: f"{each['used']:.6g}"),
    ("OF", lambda each: f"{each['value']:.6g}"),
    ("SET BY", "source"),
)
UNNAMED: Final = {"session": "(removed)", "principal": "(others)"}
"""Subject of a row without a key."""


class By(StrEnum):
    """Subject of a row of the report."""

    session = "session"
    project = "project"
    model = "model"
    agent = "agent"
    principal = "principal"
    day = "day"


def ps(
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also sessions that have ended.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="Maximum number of sessions.")
    ] = 20,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the whole ids alone, one on each line.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--no-trunc", help="Show ids and texts as a whole on a terminal too.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List the sessions that live, newest first, with what each waits for."""
    wanted = {"newest_first": True, "waiting": True, "limit": count}
    page = call(home, "session_list", wanted if everything else {**wanted, "status": LIVE})
    if output is Format.json:
        print_json({"sessions": page["sessions"], "more": page["next_cursor"] is not None})
        return
    if quiet:
        sys.stdout.writelines(each["session_id"] + "\n" for each in page["sessions"])
        return
    projects = pages(home, "project_list", "projects", {})
    names = {each["id"]: each["name"] for each in projects}
    print_entries(
        LISTED,
        [{**each, "project": names.get(each["project_id"], "")} for each in page["sessions"]],
        whole=whole,
    )
    if page["next_cursor"] is not None:
        note(f"there are more: oubliette ps -n {min(1000, 5 * count)}")


def logs(
    session_id: Annotated[
        str | None,
        typer.Argument(help="Only of this session, whose id may be abbreviated."),
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until you press Ctrl-C.")
    ] = False,
    project: Annotated[
        str | None, typer.Option(help="Only of this project: its id or name.")
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only events of this type; give it again for several."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Only events with this text.")] = None,
    after: Annotated[int, typer.Option(min=-1, help="Only events after this seq.")] = -1,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show the transcript of all sessions; with -o json their events, one object per line."""
    chosen = {
        "session_id": None if session_id is None else whole_id(home, "session", session_id),
        "project_id": None if project is None else whole_id(home, "project", project),
        "types": types or None,
        "text": text,
    }
    from oubliette.cli.client.following import CALL_SECONDS, WAIT
    from oubliette.cli.terminal.screen import shown

    wait = 0.0
    with (
        nullcontext(sys.stdout) if follow else paged() as to,
        shown(output, to, named=session_id is None, live=follow) as show,
    ):
        while True:
            asked = {**chosen, "after": after, "wait_seconds": wait}
            page = call(home, "event_list", asked, CALL_SECONDS)
            for event in page["events"]:
                show(event)
            after, wait = page["next"], WAIT if follow else 0.0
            if not page["more"] and not follow:
                return


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
    wanted = {"session_id": whole_id(home, "session", session), "limit": PAGE}
    found = call(home, "tree_get", wanted)
    cursor = found.pop("next_cursor")
    while cursor is not None:
        page = call(home, "tree_get", {**wanted, "cursor": cursor})
        found["rows"] += page["rows"]
        cursor = page["next_cursor"]
    if output is Format.json:
        print_json(found)
        return
    print_entries(SESSIONS, found["rows"])
    limits = [
        {"name": name, **each} for name, each in found["limits"].items() if each["used"] is not None
    ]
    typer.echo()
    print_entries(LIMITS, limits)


def usage(
    *,
    by: Annotated[By, typer.Option(help="Subject of a row; days are those of UTC.")] = By.project,
    since: Annotated[float | None, SINCE] = None,
    project: Annotated[
        str | None, typer.Option(help="Only this project, by its id or name.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="Maximum number of rows.")
    ] = 50,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Sum up tokens and costs: measured by configured prices, and as agents report them."""
    wanted = {"by": by.value, "since": since, "limit": count}
    if project is not None:
        wanted["project_id"] = whole_id(home, "project", project)
    report = call(home, "usage_report", wanted)
    if output is Format.json:
        print_json(report)
        return
    total = {**report["total"], "key": "total", "name": None}
    print_entries(_usage_columns(by.value), [*report["rows"], total])
    if report["more"]:
        note(f"the total has more than these: oubliette usage -n {min(1000, 5 * count)}")


def _usage_columns(by: str) -> list[Column]:
    return [
        (by.upper(), lambda each: each["key"] or UNNAMED.get(by, "(unknown)")),
        ("TURNS", "turns"),
        ("INPUT", "input_tokens"),
        ("OUTPUT", "output_tokens"),
        ("MEASURED", _dollars("measured_cost_usd")),
        ("REPORTED", _dollars("reported_cost_usd")),
        ("TITLE" if by == "session" else "NAME", line_of("name", 40)),
    ]


def _dollars(name: str) -> Callable[[dict[str, Any]], str]:
    """The cell of a cost; empty where it is unknown."""
    return lambda each: "" if each[name] is None else f"${each[name]:.4f}"
