"""Time that is ours: what a test waited, without what its processes waited for a processor.

A bound such as "the agent knows it within two seconds" is a promise about the product. On a machine
with more to do than it has processors, a test that compares it with the clock fails for the load: so
what Linux counts as waiting in the run queue, for all threads of the test and of the processes that
it started, is taken off. On a quiet machine that is next to nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


class OwnTime:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._before = dict(_waits())
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds since the beginning, less those of waiting for a processor."""
        return time.monotonic() - self._began - self.waited()

    def waited(self) -> float:
        """Return for how many seconds our threads waited for a processor, one after the other."""
        return sum(max(0.0, now - self._before.get(thread, 0.0)) for thread, now in _waits())

    def ms_of(self, elapsed_ms: float) -> float:
        """Return what is left of milliseconds that somebody else measured since the beginning."""
        return elapsed_ms - self.waited() * 1000


def _waits() -> Iterator[tuple[int, float]]:
    test = psutil.Process()
    for process in (test, *test.children(recursive=True)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                # Nanoseconds on a processor, nanoseconds in the run queue, time slices.
                yield int(thread.name), int((thread / "schedstat").read_text().split()[1]) / 1e9
