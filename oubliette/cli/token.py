"""Commands `oubliette token create | list | revoke`."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_scope
from oubliette.cli.client.tool_command import ToolCommand, argument, whole
from oubliette.cli.terminal import choices
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    at,
    moment,
    note,
    print_entries,
    print_fields,
    print_json,
)
from oubliette.cli.terminal.times import duration

if TYPE_CHECKING:
    from oubliette.cli.client.tool_command import Answer
    from oubliette.cli.terminal.output import Column

app = typer.Typer(help="API keys.", no_args_is_help=True)

TOKENS: Final[tuple[Column, ...]] = (
    ("ID", "token_id"),
    ("NAME", "name"),
    ("SCOPE", "scope"),
    ("PRINCIPAL", "principal"),
    ("LAST USED", at("last_used_at", "never")),
    ("EXPIRES", at("expires_at", "never")),
    ("REVOKED", at("revoked_at")),
)


@app.command("create")
def create(  # noqa: PLR0917 - one parameter per option
    scope: Annotated[
        str,
        typer.Option(metavar=choices.SCOPE, help="Scope of the key; :ro is for reading."),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Purpose, for people; unset: this machine, and when it was made."),
    ] = None,
    principal: Annotated[
        str | None, typer.Option(help="Owner of the key; unset: a new principal.")
    ] = None,
    expires_in: Annotated[
        float | None,
        typer.Option(
            "--expires-in",
            parser=duration,
            metavar="DURATION",
            help="Time until it expires, such as 90s, 12h or 30d; unset: never.",
        ),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="User (external_id of workspaces) for whom it may act, of those that credentials"
            " are restricted to; can be repeated. Unset: all, and none with project:<id>.",
        ),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Create an API key. It is printed once and stored nowhere."""
    made = call(
        home,
        "token_create",
        {
            "name": name or f"{socket.gethostname()} {moment(time.time())}",
            "scope": whole_scope(home, scope),
            "principal": principal,
            "expires_in_seconds": expires_in,
            "users": user or [],
        },
    )
    if output is Format.json:
        names = ("token", "token_id", "scope", "principal", "expires_at", "users")
        print_json({field: made[field] for field in names})
        return
    if sys.stdout.isatty():
        print_fields({**made, "expires_at": moment(made["expires_at"])})
        note("Store it now: it is not shown again.")
    else:
        sys.stdout.write(made["token"] + "\n")
        note(f"{made['token_id']}, scope {made['scope']}, principal {made['principal']}")


@ToolCommand(app, "list", "token_list", (), "oubliette token list -o json", entries="tokens")
def list_tokens(answer: Answer) -> None:
    """List API keys, without their secrets."""
    print_entries(TOKENS, answer.done["tokens"])


@ToolCommand(
    app,
    "revoke",
    "token_revoke",
    (argument("token_id", "Id of the key, which may be abbreviated.", value=whole("token")),),
    "oubliette token revoke tok_01k0000000000000000000000a",
)
def revoke(answer: Answer) -> None:
    """Revoke an API key; it is refused at once."""
    before = "." if answer.done["revoked"] else ", and was before."
    note(f"{answer.sent['token_id']} is revoked{before}")
