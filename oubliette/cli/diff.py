"""Commands `oubliette diff`, `compare` and `export`: what agents have changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.exported import left_out_note, write_exported
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    clean,
    coloured,
    note,
    paged,
    print_entries,
    print_json,
)
from oubliette.cli.terminal.turn_options import FROM_TURN, IGNORED, TO_TURN, TURN
from oubliette.errors import AlreadyExists, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from oubliette.cli.terminal.output import Column

SECONDS: Final = 300.0
"""Time for one page, before which the server may have to store a large workspace."""
_SIZE: Final = ("files", "insertions", "deletions", "binary_files")
_SIGNS: Final = {"added": "A", "deleted": "D", "modified": "M", "type_changed": "T"}
_BOLD: Final = "\x1b[1m"
_RED: Final = "\x1b[31m"
_GREEN: Final = "\x1b[32m"
_CYAN: Final = "\x1b[36m"
_PLAIN: Final = "\x1b[0m"


def diff(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    paths: Annotated[
        list[str] | None, typer.Argument(help="Only these files and folders of the workspace.")
    ] = None,
    turn: Annotated[int | None, TURN] = None,
    from_turn: Annotated[str | None, FROM_TURN] = None,
    to_turn: Annotated[str | None, TO_TURN] = None,
    ignored: Annotated[bool, IGNORED] = False,
    stat: Annotated[
        bool, typer.Option("--stat", help="Print the files with their lines, not the text.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show what a session has changed, from before its first turn to its newest snapshot."""
    arguments = {
        "session_id": whole_id(home, "session", session_id),
        "turn": turn,
        "from_turn": from_turn,
        "to_turn": to_turn,
        "ignored": ignored,
        "paths": paths or None,
        "format": "stat" if stat else "patch",
    }
    if output is Format.json:
        first, *others = _pages(home, arguments)
        for page in others:
            first["changes"] += page["changes"]
            if first["patch"] is not None:
                first["patch"] += page["patch"]
        print_json({**first, "next_cursor": None})
        return
    with paged() as to:
        show(home, arguments, to)


def show(home: str | None, arguments: dict[str, Any], to: IO[str]) -> dict[str, int]:
    """Print a diff; return its size.

    Args:
        home: As given on the command line.
        arguments: Of `session_diff`, with the format.
        to: Where it is printed: for a person on a terminal, as it is elsewhere.
    """
    stat = arguments["format"] == "stat"
    size: dict[str, int] = {}
    colour = coloured(to)
    for page in _pages(home, arguments):
        for path, why in page["left_out"].items():
            note(f"not shown: {path}: {why}")
        if stat:
            for change in page["changes"]:
                to.write(_stat_line(change, colour=colour) + "\n")
        elif colour or to.isatty():
            for line in page["patch"].split("\n")[: -1 if page["patch"].endswith("\n") else None]:
                to.write(_patch_line(line, colour=colour) + "\n")
        else:  # for a program, as it is
            to.write(page["patch"])
        if page["ignored_count"]:
            note(f"not shown: {page['ignored_count']} that .gitignore names (--ignored shows them)")
        size = {name: page[name] for name in _SIZE}
        if page["next_cursor"] is None:
            note(summary(page))
    return size


def _pages(home: str | None, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        page = call(home, "session_diff", {**arguments, "cursor": cursor}, SECONDS)
        yield page
        cursor = page["next_cursor"]
        if cursor is None:
            return


def summary(totals: dict[str, Any]) -> str:
    """One line about the size of a diff."""
    if not totals["files"]:
        return "nothing has changed"
    files = "1 file" if totals["files"] == 1 else f"{totals['files']} files"
    text = f"{files}, +{totals['insertions']} -{totals['deletions']} lines"
    if totals["binary_files"]:
        text += f", {totals['binary_files']} of the files binary"
    return text


def _stat_line(change: dict[str, Any], *, colour: bool) -> str:
    counts = "binary"
    if not change["binary"]:
        came, went = f"+{change['insertions']}", f"-{change['deletions']}"
        counts = f"{_GREEN}{came}{_PLAIN} {_RED}{went}{_PLAIN}" if colour else f"{came} {went}"
    return f"{_SIGNS[change['status']]}\t{counts}\t{clean(change['path'])}"


def _patch_line(line: str, *, colour: bool) -> str:
    """A line for a terminal: its text is an agent's."""
    text = clean(line)
    if not colour:
        return text
    if line.startswith(("diff --git ", "index ", "--- ", "+++ ", "new file ", "deleted file ")):
        return f"{_BOLD}{text}{_PLAIN}"
    style = {"@": _CYAN, "+": _GREEN, "-": _RED}.get(line[:1])
    return text if style is None else f"{style}{text}{_PLAIN}"


def export(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    file: Annotated[
        str,
        typer.Argument(
            help="New file: a patch, or all snapshots if it ends in .bundle; - is standard output."
        ),
    ],
    turn: Annotated[int | None, TURN] = None,
    from_turn: Annotated[str | None, FROM_TURN] = None,
    to_turn: Annotated[str | None, TO_TURN] = None,
    ignored: Annotated[bool, IGNORED] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Write what a session has changed into a new file, for git apply or git fetch."""
    arguments = {
        "session_id": whole_id(home, "session", session_id),
        "format": "bundle" if file.endswith(".bundle") else "patch",
        "turn": turn,
        "from_turn": from_turn,
        "to_turn": to_turn,
        "ignored": ignored,
    }
    if file == "-":
        done = write_exported(home, arguments, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        done = _into(home, arguments, Path(file))
    if (left_out := left_out_note(done)) is not None:
        note(left_out)
    if output is Format.json and file != "-":
        print_json({**done, "file": file})
    elif file != "-":
        note(f"{file} has {done['size']} bytes.")


def _into(home: str | None, arguments: dict[str, Any], file: Path) -> dict[str, Any]:
    """Write the file at once, under its name when it is whole."""
    import secrets

    if os.path.lexists(file):
        raise AlreadyExists(f"{file} exists already", hint="remove it, or choose another name")
    part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as opened:
            done = write_exported(home, arguments, opened)
        os.link(part, file)  # which replaces nothing, unlike a rename
    except FileExistsError:
        raise AlreadyExists(
            f"{file} exists already", hint="remove it, or choose another name"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return done


COMPARE_SECONDS: Final = 600.0
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
        home,
        "session_compare",
        {"project_id": project_id, "session_ids": sessions},
        COMPARE_SECONDS,
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
