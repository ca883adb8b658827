"""What an exception group is made of, for the one line that a summary has for a failed test."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST: Final = 1500
"""Characters of what is said of a connection."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Iterate over the exceptions in a group, and in the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def shown(error: BaseException) -> str:
    """The exceptions in a group, each with the line that raised it; empty for another exception."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    return " and ".join(f"{each!r} {_place(each)}{_transport(each)}" for each in leaves(error))


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"at {frames[-1].filename}:{frames[-1].lineno}" if frames else "that was never raised"


def _transport(error: BaseException | None) -> str:
    """Whose connection was not closed, where that is what a warning is about.

    The warning names the descriptor alone; the frames that led to it still hold the transport.
    """
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            found = frame.f_locals.get("self")
            if isinstance(found, asyncio.Transport):
                protocol = found.get_protocol()
                return f" {protocol!r} {str(getattr(protocol, '__dict__', ''))[:LONGEST]}"
        error = error.__cause__
    return ""
