"""Thread that reports when a handler blocks the loop, with the stack at that moment."""

from __future__ import annotations

import linecache
import sys
import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

if TYPE_CHECKING:
    from oubliette.kit.loop_bridge import LoopBridge

log = structlog.get_logger("oubliette.kit")

LIMIT: Final = 0.1
"""Seconds that the loop may take to answer."""

PAUSE: Final = 0.1
"""Seconds between two checks; a loop that hangs cannot report it, so a thread must check it."""

DEPTH: Final = 6
"""Innermost frames that are shown."""


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """One time that the loop did not answer in time."""

    seconds: float
    """Seconds that it did not answer."""

    stack: str
    """Stack of the loop's thread when the limit was exceeded."""


class Watchdog:
    """Thread that repeatedly checks whether a loop runs; `stop` ends it."""

    def __init__(self, bridge: LoopBridge, name: str, limit: float = LIMIT) -> None:
        self.blocked: deque[Blocked] = deque(maxlen=100)
        self._bridge = bridge
        self._name = name
        self._limit = limit
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread at once."""
        self._ended.set()
        self._answered.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._ended.wait(PAUSE):
            self._answered.clear()
            # `stop` sets this first: the answer that was cleared came from it
            if self._ended.is_set():
                return
            asked = time.monotonic()
            self._bridge.call(self._answered.set)
            if not self._answered.wait(self._limit):
                self._report(asked)

    def _report(self, asked: float) -> None:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented
        frame = frames.pop(self._bridge.thread, None)
        del frames
        stack = "".join(traceback.format_stack(frame)[-DEPTH:]) if frame else ""
        del frame
        linecache.clearcache()  # it holds the whole source of every file in the stack
        while not self._answered.wait(60):
            log.warning("loop blocked", system=self._name, seconds=60, stack=stack)
        if self._ended.is_set():
            return
        seconds = time.monotonic() - asked
        self.blocked.append(Blocked(seconds=seconds, stack=stack))
        log.warning("loop was blocked", system=self._name, seconds=round(seconds, 3), stack=stack)
