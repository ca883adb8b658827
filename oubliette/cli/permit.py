"""Command `oubliette permit`: what agents ask permission for, and the answer to it."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final

import typer

from oubliette import ids
from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import LEAST, fitting, whole_id
from oubliette.cli.terminal.choices import ANSWERS
from oubliette.cli.terminal.output import (
    SHORT,
    Format,
    Home,
    Output,
    clean,
    line_of,
    note,
    print_entries,
    print_json,
    ring,
)
from oubliette.errors import InvalidParameter, NotFound, OublietteError

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
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Ask here about each request, also those to come."),
    ] = False,
    notify: Annotated[
        bool,
        typer.Option("--notify", help="With --follow: ring the bell, and show it on the desktop."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """List what agents ask permission for, or allow what one of them asks for."""
    if follow:
        if deny or request is not None or for_session:
            raise typer.BadParameter("with --follow each request is decided by itself")
        _follow(home, given, output, notify=notify)
        return
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


def _follow(home: str | None, given: str | None, output: Format, *, notify: bool) -> None:
    """Ask about each request of all sessions, or of one, until Ctrl-C; a pipe gets them as lines.

    Raises:
        KeyboardInterrupt: the user has left.
    """
    from oubliette.cli.client.following import CALL_SECONDS, WAIT

    session = None if given is None else whole_id(home, "session", given)
    asks = sys.stdin.isatty() and output is Format.text
    wanted = {"types": ["permission_request"], "session_id": session}
    after = call(home, "event_list", wanted)["next"]  # before the list: none is missed
    seen: set[str] = set()
    while True:
        for each in call(home, "permission_list", {"limit": LIMIT})["permissions"]:
            if each["request_id"] in seen or session not in {None, each["session_id"]}:
                continue
            seen.add(each["request_id"])
            if notify:
                ring(each["asks_for"])
            if output is Format.json:
                print_json(each)
            elif asks:
                _ask(home, each)
            else:
                line = (each["session_id"], each["request_id"], line_of("asks_for", 80)(each))
                sys.stdout.write(clean("\t".join(line)) + "\n")
                sys.stdout.flush()
        waiting = {**wanted, "after": after, "wait_seconds": WAIT}
        after = call(home, "event_list", waiting, CALL_SECONDS)["next"]


def _ask(home: str | None, asked: dict[str, Any]) -> None:
    """Ask the person at the terminal about a request, and pass the answer on."""
    session_id = asked["session_id"]
    note(f"{session_id[-SHORT:]} asks: {asked['asks_for']}")
    if asked["text"] not in {None, asked["asks_for"]}:
        note(f"  {asked['text']}")
    question = "  y: allow once, s: for the session, n: deny, Enter: leave it"
    typed = typer.prompt(question, default="", show_default=False, err=True).strip().casefold()
    if typed not in ANSWERS:
        return
    decision, remember = ANSWERS[typed]
    answer = {"request_id": asked["request_id"], "decision": decision, "remember": remember}
    try:
        call(home, "permission_response", {"session_id": session_id, **answer})
    except OublietteError as error:  # it was decided elsewhere, or its time is over
        note(f"  not decided here: {error.message}")


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
