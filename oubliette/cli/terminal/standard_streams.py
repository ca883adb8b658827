"""Standard streams of a command: open, and able to write any text."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing import TextIO


def repair() -> None:
    """Open the standard descriptors that are closed, and let output replace what it cannot encode.

    A descriptor that is closed would be that of the next file that is opened: of a database, into
    which an error message is written. A terminal or a pipe that is not in UTF-8 has no arrow, and
    text of agents may have anything.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # /dev/null gets the lowest free number, which is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = _opened(sys.stdin, 0, "r")
    sys.stdout = _opened(sys.stdout, 1, "w")
    sys.stderr = _opened(sys.stderr, 2, "w")
    _set(sys.stdout, errors="replace")


def use_utf8() -> bool:
    """Write UTF-8, which is the encoding of JSON, independent of the locale.

    Returns:
        Whether both streams were in UTF-8.
    """
    before = all(map(in_utf8, (sys.stdout, sys.stderr)))
    for stream in (sys.stdout, sys.stderr):
        _set(stream, encoding="utf-8", errors="replace")
    return before


def in_utf8(stream: TextIO) -> bool:
    """Whether a stream is in UTF-8; one without an encoding takes any text."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or encoding.replace("-", "").replace("_", "").lower() == "utf8"


def flush() -> None:
    """Write what is left; if that fails, forget it, or Python complains and ends with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def _set(stream: TextIO, **options: str) -> None:
    reconfigure = getattr(stream, "reconfigure", None)  # what a test puts in its place has none
    if reconfigure is not None:
        reconfigure(**options)


def _opened(stream: IO[str] | None, number: int, mode: str) -> TextIO:
    """Return the stream; a new one of this descriptor if Python has none, as it was closed."""
    if stream is None:
        return cast("TextIO", os.fdopen(number, mode, encoding="utf-8", closefd=False))
    return cast("TextIO", stream)
