"""Command `oubliette export`: what an agent has changed, as a file for git."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oubliette.cli.client.exported import left_out_note, write_exported
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.cli.terminal.turn_options import FROM_TURN, IGNORED, TO_TURN, TURN
from oubliette.errors import AlreadyExists, ConfigError


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
