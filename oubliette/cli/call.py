"""Command `oubliette call`: every tool of a server, from the command line."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    clean,
    is_json,
    note,
    print_json,
    print_table,
)
from oubliette.cli.terminal.times import duration

if TYPE_CHECKING:
    from oubliette.cli.client.remote import RemoteServer
    from oubliette.cli.client.resolver import Kind
    from oubliette.cli.client.tool_server import ToolServer
    from oubliette.tools.spec import Tool

CALL_SECONDS: Final = 3600.0
MAX_INPUT: Final = 8 * 1024 * 1024  # characters; more than a server accepts


def call(  # noqa: PLR0917 - one parameter per option
    context: typer.Context,
    tool: Annotated[
        str | None,
        typer.Argument(metavar="TOOL", help="Name of the tool; without it, all tools are listed."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JSON|KEY=VALUE",
            help="Its parameters: one JSON object (@FILE reads it from a file, - from standard"
            " input), and single ones behind it.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Time limit for the answer; 1h unless set.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="OUBLIETTE_URL",
            help="Address of a server elsewhere, such as http://127.0.0.1:8080/mcp; wants a key.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="OUBLIETTE_KEY",
            help="API key for --url. Every user of this machine can read it on a command line: set"
            " the variable, or use --key-file.",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", envvar="OUBLIETTE_KEY_FILE", help="File with the API key for --url."
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--help", "-h", help="Show this message, or a tool's parameters, and exit."),
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Call a tool of the server of the home with all rights, or of one elsewhere with a key.

    oubliette call TOOL --help shows a tool's parameters. The tools of callers (caller_listen,
    caller_tool_progress, caller_tool_response) need the caller's key, and so --url.
    """
    if tool is None and explain:
        sys.stdout.write(context.get_help() + "\n")
        return
    elsewhere = None if explain else _elsewhere(context, url, key, key_file)
    seconds = CALL_SECONDS if timeout is None else timeout
    if tool is None:
        _list(_here() if elsewhere is None else elsewhere.tools(seconds), output)
    elif explain:
        _explain(_tool(tool, anywhere=True), output)
    else:
        server = elsewhere or _server_here(tool, home)
        arguments = _arguments(tool, given or [])
        if elsewhere is None:
            arguments = _with_whole_ids(home, arguments)
        _print(server.call(tool, arguments, seconds), output)


def _with_whole_ids(home: str | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with whole ids, for names and parts of ids; what is none is the tool's to name.

    Args:
        home: As given on the command line.
        arguments: As typed.
    """
    from oubliette.cli.client.resolver import whole_id, whole_scope
    from oubliette.errors import InvalidParameter, NotFound

    kinds: dict[str, Kind] = {
        "project_id": "project",
        "session_id": "session",
        "token_id": "token",
        "workspace_id": "workspace",
    }
    found = dict(arguments)
    for name, kind in kinds.items():
        if isinstance(value := arguments.get(name), str):
            with contextlib.suppress(InvalidParameter, NotFound):
                found[name] = whole_id(home, kind, value)
    if isinstance(scope := arguments.get("scope"), str):
        with contextlib.suppress(InvalidParameter, NotFound):
            found["scope"] = whole_scope(home, scope)
    return found


def _server_here(tool: str, home: str | None) -> ToolServer:
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    _tool(tool, anywhere=False)
    return HomeServer(find_home(home))


def _print(result: Any, output: Format) -> None:
    if output is Format.json:
        print_json(result)
    else:
        sys.stdout.write(clean(json.dumps(result, ensure_ascii=False, indent=2)) + "\n")


def _elsewhere(
    context: typer.Context,
    url: str | None,
    key: str | None,
    key_file: str | None,
) -> RemoteServer | None:
    """Return the server to call; None: the one of the home.

    The command line takes precedence over the environment.
    """
    named = {name for name in ("url", "home", "key", "key_file") if _is_typed(context, name)}
    if {"url", "home"} <= named:
        raise typer.BadParameter("give --url or --home, one of them")
    if {"key", "key_file"} <= named:
        raise typer.BadParameter("give --key or --key-file, one of them")
    if url is None or "home" in named:
        if named & {"key", "key_file"}:
            raise typer.BadParameter("--key and --key-file go with --url")
        return None
    from oubliette.cli.client import address
    from oubliette.cli.client.remote import RemoteServer

    if "key_file" in named:
        key = None
    where = address.address(url)
    found = address.key_of(key, key_file)
    if address.shows_key(where) and not is_json():
        note(f"the key goes to {where.host} without encryption: use https, or a tunnel")
    return RemoteServer(where, found)


def _is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _here() -> list[dict[str, Any]]:
    from oubliette.tools.registry import TABLE

    return [
        {"name": tool.name, "description": tool.description}
        for tool in TABLE.values()
        if "control" in tool.transports
    ]


def _list(tools: list[dict[str, Any]], output: Format) -> None:
    found = [(str(tool.get("name")), str(tool.get("description") or "")) for tool in tools]
    if output is Format.json:
        print_json({"tools": [{"name": name, "description": text} for name, text in found]})
        return
    print_table(
        ("TOOL", "DESCRIPTION"),
        [(name, text.partition(". ")[0].rstrip(".") + ".") for name, text in found],
    )


def _tool(name: str, *, anywhere: bool) -> Tool:
    from oubliette.errors import Forbidden, NotFound, did_you_mean
    from oubliette.ids import shown
    from oubliette.tools.registry import TABLE

    found = TABLE.get(name)
    if found is None:
        near = did_you_mean(name, TABLE)
        raise NotFound(f"there is no tool {shown(name)}", hint=f"{near}oubliette call lists them")
    if "control" not in found.transports and not anywhere:
        raise Forbidden(
            f"{name} is not called from here: it acts for a caller, with that caller's key",
            hint="call it with --url and that key; oubliette token create makes one",
        )
    return found


def _explain(tool: Tool, output: Format) -> None:
    from oubliette.cli.terminal.tool_help import example, help_text
    from oubliette.tools.registry import input_schema, output_schema

    schema, result = input_schema(tool), output_schema(tool)
    if output is Format.json:
        print_json(
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": schema,
                "outputSchema": result,
                "example": example(tool.name, schema),
            }
        )
        return
    sys.stdout.write(help_text(tool.name, tool.description, schema, result))


def _arguments(tool: str, given: list[str]) -> dict[str, Any]:
    """The arguments given by the words after the tool's name.

    Raises:
        InvalidParameter: the words are no JSON object, or no KEY=VALUE.
    """
    from oubliette.errors import InvalidParameter
    from oubliette.ids import shown
    from oubliette.tools.registry import TABLE, input_schema

    arguments: dict[str, Any] = {}
    known = TABLE.get(tool)  # a remote server may have others
    schema: dict[str, Any] = input_schema(known) if known is not None else {}
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    for place, word in enumerate(given):
        if place == 0 and (word == "-" or word.startswith(("{", "[", "@"))):
            arguments |= _document(word)
            continue
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidParameter(
                f"{shown(word)} is neither a JSON object nor KEY=VALUE",
                hint=f"oubliette call {tool} --help shows its parameters",
            )
        arguments[name] = _value(value, properties.get(name, {}))
    return arguments


def _document(word: str) -> dict[str, Any]:
    from oubliette.errors import InvalidParameter

    where = (
        "standard input" if word == "-" else word[1:] if word.startswith("@") else "the argument"
    )
    try:
        if word == "-":
            text = sys.stdin.read(MAX_INPUT + 1)
        elif word.startswith("@"):
            with Path(word[1:]).open(encoding="utf-8") as file:
                text = file.read(MAX_INPUT + 1)
        else:
            text = word
    except OSError as error:
        raise InvalidParameter(
            f"{where}: cannot be read: {error.strerror}", hint="@FILE is a file of one JSON object"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"{where}: is not UTF-8") from error
    if len(text) > MAX_INPUT:
        raise InvalidParameter(f"{where}: is longer than {MAX_INPUT} characters")
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, ValueError) else "it is nested too deep"
        raise InvalidParameter(
            f"{where}: is no JSON: {said}", hint='quote it for the shell: \'{"name": "shop"}\''
        ) from error
    if not isinstance(found, dict):
        raise InvalidParameter(f"{where}: must be a JSON object with the parameters")
    return cast("dict[str, Any]", found)


def _value(text: str, part: dict[str, Any]) -> Any:
    """Return `text` as this parameter's value: text where it takes text, else JSON, if valid."""
    from oubliette.cli.terminal.tool_help import takes_text

    if takes_text(part):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
