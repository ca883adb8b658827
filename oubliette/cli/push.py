"""Command `oubliette push`: a branch of a project goes to where the project was cloned from."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, clean, note, print_json

QUIET_SECONDS: Final = 900.0
"""Time without progress of git."""
CONFLICTS: Final = 1
"""Exit code where something conflicts."""
ORIGIN: Final = "origin"


def push(  # noqa: PLR0917 - one parameter per option
    session_id: Annotated[str, typer.Argument(help="Id of the session, which may be abbreviated.")],
    where: Annotated[
        list[str] | None,
        typer.Argument(metavar="[origin] BRANCH", help="Branch in the other repository."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="The same.")] = None,
    branch: Annotated[
        str | None,
        typer.Option("--branch", help="Branch of the project's repository; else the same name."),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Push a branch of a session's project to the repository that the project was cloned from.

    A branch that the project's repository does not have is merged first, as by oubliette merge. The
    project has to consent: oubliette project update PROJECT --allow-push.
    """
    target = _target(where or [], to)
    arguments = {
        "session_id": whole_id(home, "session", session_id),
        "branch": branch or target,
        "to": target,
    }
    done = call(home, "session_push", arguments, QUIET_SECONDS, f"pushing {target}")
    if output is Format.json:
        print_json(done)
    elif done["conflicts_count"]:
        for each in done["conflicts"]:
            sys.stdout.write(f"{each['kind']}\t{clean(each['path'])}\n")
        note(f"{done['conflicts_count']} conflicts: nothing was merged or pushed.")
    elif done["up_to_date"]:
        note(f"{done['to']} of {clean(done['repository'])} has this commit already.")
    else:
        sys.stdout.write(f"{done['commit']}\n")
        new = " (a new branch)" if done["created"] else ""
        note(f"{done['branch']} was pushed to {done['to']}{new} of {clean(done['repository'])}.")
    if done["conflicts_count"]:
        raise typer.Exit(CONFLICTS)


def _target(where: list[str], to: str | None) -> str:
    """Return the name of the branch, which is given as an argument or as an option."""
    names = where[1:] if where[:1] == [ORIGIN] and len(where) > 1 else where
    given = [*names, *([] if to is None else [to])]
    if len(given) != 1:
        raise typer.BadParameter("give one branch: oubliette push SESSION origin BRANCH, or --to")
    return given[0]
