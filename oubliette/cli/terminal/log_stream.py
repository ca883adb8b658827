"""Log stream on stderr that tolerates a reader that has ended.

A terminal that is closed, or a pipe whose reader has ended, refuses every further write. A server
continues: only its later log lines are lost.
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
    """Stream that writes lines to another stream, and never fails."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, if possible."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        """Flush the other stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def _lost(self, error: OSError) -> None:
        """Note the failure: a full disk may have room again, a closed reader does not come back."""
        if error.errno not in _FOR_GOOD:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        finally:
            os.close(nowhere)
