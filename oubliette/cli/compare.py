"""Command `oubliette compare`: what several sessions made of the same task."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    clean,
    note,
    print_entries,
    print_json,
)

if TYPE_CHECKING:
    from oubliette.cli.terminal.output import Column

SECONDS: Final = 600.0
_UNCHANGED: Final = "-"
SESSIONS: Final[tuple[Column, ...]] = (
    ("SESSION", "session_id"),
    ("AGENT", "agent"),
    ("STATUS", "status"),
    ("TURNS", "turn_count"),
    ("COST", lambda each: f"{each['cost_usd']:.4f}"),
    ("FILES", "files"),
    ("LINES", lambda each: f"+{each['insertions']} -{each['deletions']}"),
    ("SAME AS", "same_as"),
)


def compare(
    session_ids: Annotated[
        list[str], typer.Argument(help="Ids of two or more sessions, which may be abbreviated.")
    ],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Compare what sessions of a project have changed: their sizes, and the files that differ.

    In the list of files, equal letters are equal outcomes, and - is a file that was not changed.
    """
    sessions = [whole_id(home, "session", each) for each in session_ids]
    project_id = call(home, "session_get", {"session_id": sessions[0]})["project_id"]
    found = call(
        home, "session_compare", {"project_id": project_id, "session_ids": sessions}, SECONDS
    )
    if output is Format.json:
        print_json(found)
        return
    print_entries(SESSIONS, found["sessions"])
    differing = [each for each in found["files"] if len(set(each["outcomes"])) > 1]
    if differing:
        sys.stdout.write("\n")
    for each in differing:
        letters = " ".join(_letter(number) for number in each["outcomes"])
        sys.stdout.write(f"{letters}\t{clean(each['path'])}\n")
    more = found["differing_count"] - len(differing)
    if more:
        note(f"and {more} more")
    note(
        f"{found['files_count']} files were changed, {found['differing_count']} of them differently"
    )


def _letter(number: int) -> str:
    """Return a letter for an outcome; there are as many as sessions at most."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return letters[number - 1] if number else _UNCHANGED
