"""Command `oubliette permit`: what agents ask permission for, and the answer to it."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from oubliette import ids
from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import LEAST, fitting
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    line_of,
    note,
    print_entries,
    print_json,
)
from oubliette.errors import InvalidParameter, NotFound

LIMIT: Final = 1000


def permit(
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION|REQUEST",
            help="Session that asks, or one of its requests, which may be abbreviated; without it,"
            " all requests are listed.",
        ),
    ] = None,
    *,
    deny: Annotated[bool, typer.Option("--deny", help="Deny it.")] = False,
    request: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Request, if the session has several open ones."),
    ] = None,
    for_session: Annotated[
        bool,
        typer.Option("--for-session", help="Decide the same for all later ones of this kind."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List what agents ask permission for, or allow what one of them asks for."""
    found = call(home, "permission_list", {"limit": LIMIT})
    if given is None:
        if deny or request is not None or for_session:
            raise typer.BadParameter("--deny, --request and --for-session need a SESSION")
        _show(found, output)
        return
    asked = _asked(given, request, found["permissions"])
    wanted = {
        "session_id": asked["session_id"],
        "request_id": asked["request_id"],
        "decision": "deny" if deny else "allow",
        "remember": "session" if for_session else "once",
    }
    call(home, "permission_response", wanted)
    if output is Format.json:
        print_json(wanted)
    else:
        note(f"{'Denied' if deny else 'Allowed'}: {asked['asks_for']}")


def _show(found: dict[str, Any], output: Format) -> None:
    if output is Format.json:
        print_json(found)
        return
    now = time.time()
    print_entries(
        (
            ("SESSION", "session_id"),
            ("REQUEST", "request_id"),
            ("LEFT", lambda each: f"{max(0.0, each['deadline'] - now):.0f} s"),
            ("ASKS FOR", line_of("asks_for", 80)),
        ),
        found["permissions"],
    )
    if not found["permissions"]:
        note("Nothing waits for a permission.")
    if found["more"]:
        note(f"These are the oldest {LIMIT}; there are more.")


def _asked(given: str, request: str | None, waiting: list[dict[str, Any]]) -> dict[str, Any]:
    """The open request that is meant.

    Raises:
        NotFound: there is none.
        InvalidParameter: several fit.
    """
    fit = [each for each in waiting if _names(given, each["request_id"])]
    if not fit:
        session = fitting("session", given, (each["session_id"] for each in waiting))
        fit = [each for each in waiting if each["session_id"] == session]
    fit = [each for each in fit if request is None or _names(request, each["request_id"])]
    if not fit:
        raise NotFound(
            f"{ids.shown(given)} has no such open request", hint="oubliette permit lists them"
        )
    if len(fit) > 1:
        raise InvalidParameter(
            f"{ids.shown(given)} fits {len(fit)} requests",
            field="request",
            hint="choose one by its id; oubliette permit lists them",
        )
    return fit[0]


def _names(given: str, request_id: str) -> bool:
    """Whether a text is the id of a request, or a piece of it as a table shows it."""
    piece = len(given) >= LEAST and request_id.endswith(given)
    return piece or given == request_id
