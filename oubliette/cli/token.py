"""Commands `oubliette token create | list | revoke`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from oubliette.cli.client.calls import pages
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    moment,
    note,
    print_fields,
    print_json,
    print_table,
)
from oubliette.cli.terminal.times import duration

app = typer.Typer(help="API keys.", no_args_is_help=True)


def _call(home: str | None, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    return HomeServer(find_home(home)).call(tool, arguments)


@app.command("create")
def create(  # noqa: PLR0917 - one parameter per option
    scope: Annotated[
        str,
        typer.Option(help="Scope of the key: admin, write, read, project:<id> or project:<id>:ro."),
    ],
    name: Annotated[str, typer.Option(help="Purpose, for people.")] = "cli",
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
    made = _call(
        home,
        "token_create",
        {
            "name": name,
            "scope": scope,
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


@app.command("list")
def list_tokens(home: Home = None, output: Output = Format.text) -> None:
    """List API keys, without their secrets."""
    tokens = pages(home, "token_list", "tokens", {})
    if output is Format.json:
        print_json({"tokens": tokens})
        return
    print_table(
        ("ID", "NAME", "SCOPE", "PRINCIPAL", "LAST USED", "EXPIRES", "REVOKED"),
        [
            (
                each["token_id"],
                each["name"],
                each["scope"],
                each["principal"],
                moment(each["last_used_at"]) or "never",
                moment(each["expires_at"]) or "never",
                moment(each["revoked_at"]),
            )
            for each in tokens
        ],
    )


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="Id of the key, which may be abbreviated.")],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Revoke an API key; it is refused at once."""
    token_id = whole_id(home, "token", token_id)
    done = _call(home, "token_revoke", {"token_id": token_id})
    if output is Format.json:
        print_json(done)
        return
    note(f"{token_id} is revoked" + ("." if done["revoked"] else ", and was before."))
