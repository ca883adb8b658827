"""Command `oubliette exec`: a command in the container of a session or of a project."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any, Final

import typer

from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output
from oubliette.errors import InvalidParameter, NotFound
from oubliette.ids import shown

SECONDS: Final = 1000.0
"""Time for the command to run, with the start of its container."""
_TERM: Final = re.compile(r"[A-Za-z0-9._+-]{1,64}")


def exec_(
    place: Annotated[
        str,
        typer.Argument(
            metavar="SESSION|PROJECT", help="Session or project; its id may be abbreviated."
        ),
    ],
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="Program and arguments.")],
    *,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Pass standard input on.")
    ] = False,
    terminal: Annotated[
        bool, typer.Option("--tty", "-t", help="Give it a terminal, of the size of this one.")
    ] = False,
    working_dir: Annotated[
        str | None,
        typer.Option("--workdir", "-w", help="Absolute path in the container; else the workspace."),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Run a command in the container of a session or a project, and exit with its exit code.

    With -it it is used as on this machine: Ctrl-C, Ctrl-Z and Ctrl-D go to the command. It ends
    when this one does, and with the session or the container.
    """
    del output  # it is the form of errors alone
    from oubliette.api.control import ControlClient
    from oubliette.cli.terminal.attached_streams import AttachedStreams, window
    from oubliette.config.loader import find_home

    if terminal and interactive and not sys.stdin.isatty():
        raise InvalidParameter(
            "standard input is no terminal, so it cannot be that of the command",
            field="tty",
            hint="leave -t out, to pipe standard input",
        )
    asked: dict[str, Any] = {
        **_place(home, place),
        "command": command[1:] if command[0] == "--" else command,  # as kubectl has it
        "working_dir": working_dir,
        "stdin": interactive,
    }
    if terminal:
        rows, columns = window()
        term = os.environ.get("TERM", "")
        named = {"term": term} if _TERM.fullmatch(term) else {}
        asked["terminal"] = {"rows": rows, "cols": columns, **named}
    with ControlClient(find_home(home)) as client:
        link, first = client.attach(asked, SECONDS)
        streams = AttachedStreams(link, first, terminal=terminal)
        code = streams.run(sys.stdin.fileno() if interactive else None)
    raise typer.Exit(code)


def _place(home: str | None, given: str) -> dict[str, str]:
    """The argument of the request that names a session, or else a project."""
    try:
        return {"session_id": whole_id(home, "session", given)}
    except (InvalidParameter, NotFound) as no_session:
        try:
            return {"project_id": whole_id(home, "project", given)}
        except NotFound:
            if isinstance(no_session, InvalidParameter):
                raise no_session from None
            raise NotFound(
                f"{shown(given)} is neither a session nor a project",
                hint="oubliette ps --all, oubliette project list",
            ) from None
