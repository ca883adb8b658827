"""Usage errors as JSON, for programs: the errors of the command line's parser."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import typer

from oubliette.cli.terminal.output import Colour
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ParserError: Final[type[Exception]] = typer.BadParameter.__bases__[0]
"""Base of the parser's usage errors of any kind: typer only exports this leaf of it."""

_COLOUR: Final = "--color"
_PASSES_ON: Final = "exec"
"""Command whose further words are those of another program."""
_VALUED: Final = frozenset({"-o", "--output", "-w", "--workdir", "--home"})
"""Its options with a value."""
_SHORT: Final = re.compile(r"-[A-Za-z]*o(json)?")


class WrongUsage(OublietteError):
    """The command line is invalid: an unknown option, a missing or a bad value."""

    code = "usage"
    exit_code = 2


class Refused(OublietteError):
    """The machine refused an operation: no access, no room, no such file."""

    code = "system"


def refused(error: OSError) -> Refused:
    """An error of the system as one of ours."""
    what = error.strerror or str(error) or type(error).__name__
    named = [each for each in (error.filename, error.filename2) if isinstance(each, str | bytes)]
    hint = "oubliette doctor checks what a server needs"
    if isinstance(error, PermissionError):
        hint = f"this command runs as user {os.geteuid()}: run it as the user of that file"
    return Refused(": ".join([*map(os.fsdecode, named), what]), hint=hint)


def not_text(error: UnicodeDecodeError) -> WrongUsage:
    """The error of input that is not in the encoding that was expected."""
    return WrongUsage(
        f"the input is not text in {error.encoding}: byte {error.object[error.start]:#04x} at"
        f" {error.start}",
        hint="convert it, or set the locale (LC_ALL) to its encoding",
    )


def arranged(given: list[str], groups: Collection[str]) -> tuple[list[str], str]:
    """Return the words with the options of all commands behind the command, and the colour.

    Args:
        given: Words of the command line.
        groups: Names that are followed by the name of a command.
    """
    begin = 0
    front: list[str] = []
    while begin < len(given) and (size := _size(given[begin])):
        front += given[begin : begin + size]
        begin += size
    words = given[begin:]
    command = 2 if words[:1] and words[0] in groups else 1
    named, behind = words[:command], words[command:]
    if named[-1:] == [_PASSES_ON]:
        front, colour = _without_colour(front)
    else:
        front, behind = [], [*front, *behind]
        behind, colour = _without_colour(behind)
    return [*named, *front, *behind], colour


def _without_colour(words: list[str]) -> tuple[list[str], str]:
    """Return the words without the option of colours, and its value."""
    for place, word in enumerate(words):
        if word == "--":
            break
        name, _, value = word.partition("=")
        if name == _COLOUR:
            size = _size(word)
            value = value if size == 1 else "".join(words[place + 1 : place + 2])
            return [*words[:place], *words[place + size :]], value
    return words, Colour.auto.value


def _size(word: str) -> int:
    """The number of words of an option of all commands that begins so; 0: it is none."""
    name, value, _ = word.partition("=")
    if name in {_COLOUR, "--home", "--output"}:
        return 1 if value else 2
    return 2 if word == "-o" else 1 if word == "-ojson" else 0


def colour_named(given: str) -> Colour:
    """The choice of colours of this name.

    Raises:
        typer.BadParameter: there is none.
    """
    try:
        return Colour(given)
    except ValueError as error:
        raise typer.BadParameter(
            f"{given!r} is not one of: {', '.join(Colour)}", param_hint=_COLOUR
        ) from error


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether `-o json` is given; for errors before options are parsed."""
    passes_on = list(arguments[:1]) == [_PASSES_ON]
    for place, word in enumerate(arguments):
        is_first = passes_on and not word.startswith("-") and arguments[place - 1] not in _VALUED
        if word == "--" or (place and is_first):
            return False
        value = arguments[place + 1] if place + 1 < len(arguments) else None
        if word == "--output=json" or (word == "--output" and value == "json"):
            return True
        short = _SHORT.fullmatch(word)
        if short is not None and (short[1] or value == "json"):
            return True
    return False


def usage_error(error: Any) -> WrongUsage:
    """The parser's error as one of ours."""
    where = error.ctx.command_path if error.ctx is not None else "oubliette"
    return WrongUsage(error.format_message(), hint=f"{where} --help")
