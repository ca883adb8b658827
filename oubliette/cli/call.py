"""`oubliette call`: every tool of a server, from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from oubliette.cli.output import Format, Home, Output, clean, print_json, print_table
from oubliette.cli.times import duration

if TYPE_CHECKING:
    from oubliette.tools.tool import Tool

CALL_SECONDS: Final = 3600.0
MAX_INPUT: Final = 8 * 1024 * 1024  # characters; more than a server takes


def call(  # noqa: PLR0917 - one parameter per option
    context: typer.Context,
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="The tool; without one, all are listed.")
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
            help="How long to wait for the answer; 1h unless set.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--help", help="Show this message, or a tool's parameters, and exit.")
    ] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Call a tool of the server with all rights.

    oubliette call TOOL --help shows what a tool takes. What speaks for a caller (caller_listen,
    caller_tool_response, permission_response) needs that caller's key, and is called over HTTP
    alone.
    """
    if tool is None:
        if explain:
            sys.stdout.write(context.get_help() + "\n")
            return
        _list(output)
        return
    found = _tool(tool)
    if explain:
        _explain(found, output)
        return
    from oubliette.cli.server_access import call_tool
    from oubliette.config import find_home

    arguments = _arguments(found, given or [])
    seconds = CALL_SECONDS if timeout is None else timeout
    result = call_tool(find_home(home), tool, arguments, seconds)
    if output is Format.json:
        print_json(result)
    else:
        sys.stdout.write(clean(json.dumps(result, ensure_ascii=False, indent=2)) + "\n")


def _list(output: Format) -> None:
    from oubliette.tools.table import TABLE

    here = [tool for tool in TABLE.values() if "control" in tool.doors]
    if output is Format.json:
        print_json(
            {"tools": [{"name": tool.name, "description": tool.description} for tool in here]}
        )
        return
    print_table(
        ("TOOL", "DESCRIPTION"),
        [(tool.name, tool.description.partition(". ")[0].rstrip(".") + ".") for tool in here],
    )


def _tool(name: str) -> Tool:
    from oubliette.errors import Forbidden, NotFound
    from oubliette.ids import shown
    from oubliette.tools.table import TABLE

    found = TABLE.get(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, TABLE, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise NotFound(f"there is no tool {shown(name)}", hint=f"{hint}oubliette call lists them")
    if "control" not in found.doors:
        raise Forbidden(
            f"{name} is not called from here: it speaks for a caller, with that caller's key",
            hint="connect an MCP client over HTTP; oubliette token create makes a key",
        )
    return found


def _explain(tool: Tool, output: Format) -> None:
    from oubliette.cli.tool_help import example, help_text
    from oubliette.tools.table import input_schema, output_schema

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


def _arguments(tool: Tool, given: list[str]) -> dict[str, Any]:
    """The arguments that the words behind the tool's name mean.

    Raises:
        InvalidParameter: they are no JSON object, or no KEY=VALUE.
    """
    from oubliette.errors import InvalidParameter
    from oubliette.ids import shown
    from oubliette.tools.table import input_schema

    arguments: dict[str, Any] = {}
    properties = input_schema(tool).get("properties", {})
    for place, word in enumerate(given):
        if place == 0 and (word == "-" or word.startswith(("{", "[", "@"))):
            arguments |= _document(word)
            continue
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidParameter(
                f"{shown(word)} is neither a JSON object nor KEY=VALUE",
                hint=f"oubliette call {tool.name} --help shows its parameters",
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
    """What `text` means for this parameter: text where it takes text, else JSON, if it is."""
    from oubliette.cli.tool_help import takes_text

    if takes_text(part):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
