"""Command `oubliette compare`: what several sessions made of the same task."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, clean, note, print_json, print_table

SECONDS: Final = 600.0
_UNCHANGED: Final = "-"


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
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    server = HomeServer(find_home(home))
    sessions = [whole_id(home, "session", each) for each in session_ids]
    project_id = server.call("session_get", {"session_id": sessions[0]})["project_id"]
    found = server.call(
        "session_compare", {"project_id": project_id, "session_ids": sessions}, SECONDS
    )
    if output is Format.json:
        print_json(found)
        return
    print_table(
        ("SESSION", "AGENT", "STATUS", "TURNS", "COST", "FILES", "LINES", "SAME AS"),
        [
            (
                each["session_id"],
                each["agent"],
                each["status"],
                each["turn_count"],
                f"{each['cost_usd']:.4f}",
                each["files"],
                f"+{each['insertions']} -{each['deletions']}",
                each["same_as"],
            )
            for each in found["sessions"]
        ],
    )
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
