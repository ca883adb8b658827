"""Splitting of an agent's output into lines with their offsets.

Shared by every adapter whose protocol is one JSON object per line. Memory is bounded: of a line
longer than the limit only its head and its end are kept.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_LINE: Final = 16 << 20  # bytes
SHOWN: Final = 4096  # bytes of an overlong line that are kept of its head
TAIL: Final = 256  # and of its end


class Line(msgspec.Struct, frozen=True):
    """One line, without its newline."""

    start: int
    """Offset of its first byte."""
    end: int
    """Offset after its newline."""
    content: bytes
    whole: bool = True
    """False: longer than the limit; `content` is its head."""
    tail: bytes = b""
    """The end of a line that is not whole."""

    @property
    def excess(self) -> str:
        """Reason why a line that is not whole was dropped."""
        size = self.end - self.start - 1
        return f"the agent wrote a line of {size} bytes; at most {MAX_LINE} are read"


class OutputGap(msgspec.Struct, frozen=True):
    """Missing output; the line that was being read is dropped with it."""

    start: int
    end: int


class LineFramer:
    """Splitter of bytes with offsets into lines; any cutting of the input gives the same lines."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._next: int | None = None
        self._start = 0
        self._parts: list[bytes] = []
        self._kept = 0
        self._size = 0

    def feed(self, data: bytes, offset: int) -> list[Line | OutputGap]:
        """The lines that `data` completes. `data` read before is skipped."""
        found: list[Line | OutputGap] = []
        if self._next is None:
            self._next = self._start = offset
        elif offset > self._next:
            found.append(OutputGap(self._start, offset))
            self._begin(offset)
            self._next = offset
        data = data[self._next - offset :]
        position = 0
        while (newline := data.find(b"\n", position)) >= 0:
            self._keep(data[position:newline])
            end = self._next + newline + 1
            whole = self._size <= self._limit
            content = b"".join(self._parts)
            tail = b"" if whole else content[-TAIL:]
            content = content if whole else content[:SHOWN]
            found.append(Line(self._start, end, content, whole, tail))
            self._begin(end)
            position = newline + 1
        self._keep(data[position:])
        self._next += len(data)
        return found

    def _begin(self, start: int) -> None:
        self._start = start
        self._parts = []
        self._kept = self._size = 0

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        self._parts.append(piece)
        self._kept += len(piece)
        if self._size > self._limit and self._kept > 2 * SHOWN:
            kept = b"".join(self._parts)
            self._parts = [kept[:SHOWN], kept[-TAIL:]]
            self._kept = SHOWN + TAIL
