"""Durations and times as options of the command line.

`--since` is the same everywhere: a duration back from now, or a time. Positions in a list of events
have another option, `--after`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import typer

from oubliette.durations import FORM, seconds_of
from oubliette.errors import InvalidParameter


def duration(text: str) -> float:
    """Return the seconds of a duration; the parser of options that take one.

    Raises:
        typer.BadParameter: the text is no duration.
    """
    try:
        return seconds_of(text)
    except InvalidParameter as error:
        raise typer.BadParameter(error.message) from error


def since(text: str) -> float:
    """Return the wall-clock second of `--since`: a duration back from now, or a time.

    Raises:
        typer.BadParameter: the text is neither.
    """
    try:
        return time.time() - seconds_of(text)
    except InvalidParameter:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text[:60]!r} is neither a moment, such as 2026-01-31T08:00Z, nor a duration back"
            f" from now, which is {FORM}"
        ) from error
    # As they are printed: in UTC, unless it has a zone.
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def since_in_logs(text: str) -> float:
    """Parse as `since` does; a plain number is refused: it was the index of an event once.

    Raises:
        typer.BadParameter: as `since`, and for a number without a unit.
    """
    if text.lstrip("-").isdecimal():
        raise typer.BadParameter(
            f"say --after {text} for the events after that index, or --since {text}s for a time"
        )
    return since(text)


_HELP = "Only from then on: a duration back from now (1h, 30d) or a time (2026-01-31T08:00Z)."

SINCE = typer.Option("--since", parser=since, metavar="DURATION|MOMENT", help=_HELP)
SINCE_IN_LOGS = typer.Option("--since", parser=since_in_logs, metavar="DURATION|MOMENT", help=_HELP)
