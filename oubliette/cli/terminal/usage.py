"""Usage errors as JSON, for programs: the errors of the command line's parser."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import typer

from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Sequence

ParserError: Final[type[Exception]] = typer.BadParameter.__bases__[0]
"""Base of the parser's usage errors of any kind: typer only exports this leaf of it."""

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


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether `-o json` is given; for errors before options are parsed."""
    for place, word in enumerate(arguments):
        if word == "--":
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
