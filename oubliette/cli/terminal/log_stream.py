"""Where logs go: stderr, for as long as somebody reads it.

A terminal that is closed, or a pipe whose reader has ended, refuses every further write. A server
goes on without: what it logs then is lost, and nothing else.
"""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

_FOR_GOOD: Final = frozenset({errno.EIO, errno.EPIPE})


class LogStream(io.TextIOBase):
    """Writes lines to another stream, and never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it, if that can be done."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        """Send what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Descriptor of the stream."""
        return self._stream.fileno()

    def _lost(self, error: OSError) -> None:
        """A full disk may have room again; who hung up does not come back."""
        if error.errno not in _FOR_GOOD:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        finally:
            os.close(nowhere)
