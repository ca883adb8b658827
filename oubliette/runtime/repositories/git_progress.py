"""GitProgress, the progress that git writes, as few lines for a person."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_STEP: Final = re.compile(
    rb"(?:remote: )?(?P<step>[A-Z][a-z]+ [a-z]+): +(?P<percent>\d{1,3})% \(\d+/\d+\)"
    rb"(?:, (?P<size>[\d.]+ [KMGT]?i?B|[\d.]+ bytes))?"
)
_MAX_LINE: Final = 1000
_STRIDE: Final = 10
"""Percent of a step between two lines."""


class GitProgress:
    """Reader of git's standard error while it runs; one for each command."""

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._rest = b""
        self._last: tuple[bytes, int] | None = None

    def take(self, data: bytes) -> None:
        """Take the next piece of the output; report each step in strides of 10 %."""
        *lines, rest = re.split(rb"[\r\n]", self._rest + data)
        self._rest = rest[-_MAX_LINE:]
        for line in lines:
            found = _STEP.match(line)
            if found is None:
                continue
            percent = int(found["percent"])
            now = (found["step"], percent // _STRIDE)
            if now == self._last:
                continue
            self._last = now
            size = f", {found['size'].decode()}" if found["size"] else ""
            self._report(f"{found['step'].decode()}: {percent} %{size}")
