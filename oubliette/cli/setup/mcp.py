"""Command `oubliette mcp setup`: a client's own configuration, with a key of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_scope
from oubliette.cli.setup.clients import KEY_PREFIX, Client
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import Conflict, NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.cli.setup.client_file import ClientFile

app = typer.Typer(help="MCP clients of this server.", no_args_is_help=True)


@app.command("setup")
def setup(
    client: Annotated[Client, typer.Argument(help="Client to configure.")],
    *,
    show: Annotated[
        bool,
        typer.Option("--print", help="Print the entry with its key, and change no file."),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the entry out, and revoke its key.")
    ] = False,
    name: Annotated[
        str, typer.Option(help="Name of the entry, for servers of several homes.")
    ] = "oubliette",
    scope: Annotated[
        str, typer.Option(help="Scope of its key: admin, write, read or project:<id>.")
    ] = "write",
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Let an MCP client use this home's server, with a key of its own.

    The entry goes into the file in which the client has what holds for all folders; everything else
    in it stays. The key belongs to the operator: the client can go on with the sessions of this
    command line, and answer their permission requests. Done again it replaces the key.
    """
    from oubliette.cli.setup import client_file

    if show and remove:
        raise typer.BadParameter("cannot go with --remove", param_hint="--print")
    if remove:
        taken_out = take_out(client_file.read(client), name, home)
        if output is Format.json:
            print_json(taken_out)
        return
    file = client_file.blank(client) if show else client_file.read(client)
    done = put_in(file, name, scope, home, show=show)
    if output is Format.json:
        print_json(done)
    elif show:
        sys.stdout.write(done["content"].rstrip("\n") + "\n")


def put_in(
    file: ClientFile, name: str, scope: str, home: str | None, *, show: bool = False
) -> dict[str, Any]:
    """Make a key and put it into the file of a client, or only show it.

    Raises:
        Conflict: the file has an entry of this name that is of another home, or made by hand.
    """
    from oubliette.config.loader import find_home

    before = file.token_id(name)
    if before is not None:
        _check_ours(file, name, before, home)
    url = _address(find_home(home))
    made = call(
        home,
        "token_create",
        {
            "name": _key_name(file),
            "scope": whole_scope(home, scope),
            "principal": "operator",
        },
    )
    try:
        text = file.with_entry(name, url, made["token"])
        if not show:
            file.store(text)
    except BaseException:
        call(home, "token_revoke", {"token_id": made["token_id"]})
        raise
    if before:
        call(home, "token_revoke", {"token_id": before})
    done: dict[str, Any] = {
        "client": str(file.client),
        "file": str(file.path),
        "name": name,
        "url": url,
        "token_id": made["token_id"],
        "scope": made["scope"],
    }
    if show:
        note(f"For {file.path}. It has a key: oubliette token revoke {made['token_id']} ends it.")
        return {**done, "content": text}
    note(
        f"{file.title} has {url} as {name}, with key {made['token_id']} of scope {made['scope']}"
        f" (in {file.path}). It reads that when it is started."
    )
    return done


def take_out(file: ClientFile, name: str, home: str | None) -> dict[str, Any]:
    """Take our entry out of the file of a client, and revoke its key.

    Raises:
        NotFound: there is none.
        Conflict: it is of another home, or made by hand.
    """
    token_id = file.token_id(name)
    if token_id is None:
        raise NotFound(
            f"{file.path} has no entry {name}",
            hint="oubliette token list shows keys that were printed, oubliette token revoke ends"
            " them",
        )
    _check_ours(file, name, token_id, home)
    file.store(file.without_entry(name))
    call(home, "token_revoke", {"token_id": token_id})
    note(f"{name} is out of {file.path}, and its key {token_id} is revoked.")
    return {"client": str(file.client), "file": str(file.path), "name": name, "token_id": token_id}


def _key_name(file: ClientFile) -> str:
    return f"{KEY_PREFIX}{file.client}"


def _check_ours(file: ClientFile, name: str, token_id: str, home: str | None) -> None:
    """Check that an entry has a key that this command has made for this home."""
    from oubliette.cli.client.calls import pages

    try:
        known = pages(home, "token_list", "tokens", {}) if token_id else []
    except NotFound:  # a home without a database
        known = []
    if not any(each["token_id"] == token_id and each["name"] == _key_name(file) for each in known):
        raise Conflict(
            f"{file.path} has an entry {name} that oubliette mcp setup has not made for this home",
            hint="take it out yourself, or choose another name with --name",
        )


def _address(place: Path) -> str:
    """The address of the server of a home, whether it runs or not.

    Raises:
        Conflict: it has another one at each start.
    """
    from oubliette.api.control import status_of
    from oubliette.config.loader import load
    from oubliette.mcp_front.transport.http_server import client_url

    server = load(place).config.server
    configured = client_url(server.host, server.port)
    status = status_of(place)
    if status is None:
        if not server.port:
            raise Conflict(
                "server.port is 0: the server has another address at each start",
                hint="oubliette config set server.port 8080",
            )
        note(f"No server runs on {place}: oubliette serve starts it.")
        return configured
    url = str(status["url"])
    if url != configured:
        port = url.rpartition(":")[2].partition("/")[0]
        note(
            f"The server listens at {url} until it stops; so that it always does:"
            f" oubliette config set server.port {port}"
        )
    return url
