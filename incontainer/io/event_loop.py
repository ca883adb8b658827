"""Event loop of the guest: epoll, timers and signals in one thread.

`asyncio` would cost 40 ms of every container's start and a task switch for every piece moved;
the guest needs only readiness, deadlines and four signals.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import sys
import time
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
HANGUP = select.EPOLLHUP | select.EPOLLERR  # always reported, requested or not
CLOSED = select.EPOLLHUP  # the peer has closed, nothing else
PEER_ENDED = select.EPOLLRDHUP  # the peer shut its sending side down, or closed


class LoopTimer:
    """Call due later; cancelling twice, or after it ran, is harmless."""

    __slots__ = ("_cancelled", "call", "due")

    def __init__(
        self, due: float, call: Callable[[], object], cancelled: Callable[[], None]
    ) -> None:
        self.due = due
        self.call: Callable[[], object] | None = call
        self._cancelled = cancelled

    def cancel(self) -> None:
        if self.call is not None:
            self.call = None
            self._cancelled()


class Loop:
    """Loop that calls back when a descriptor is ready, a time has come, or a signal arrived."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._changed: set[int] = set()  # unwatched while a batch of events is processed
        self._timers: list[tuple[float, int, LoopTimer]] = []
        self._count = 0  # breaks ties between timers
        self._cancelled = 0  # of those in the heap, more or less
        self._running = False
        self._signals: dict[int, Callable[[], object]] = {}
        self._handlers: dict[int, Any] = {}
        """Those which the signals had before."""
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self.watch(self._wake_in, READ, self._signalled)

    def watch(self, fd: int, mask: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` while `fd` is ready for `mask`; a mask of 0 stops watching it.

        Level-triggered. With a mask of 0 not even a hang-up is reported, or an unread one
        would keep the loop spinning.
        """
        old = self._watched.get(fd)
        if not mask:
            self.unwatch(fd)
        elif old is None:
            self._epoll.register(fd, mask)
            self._watched[fd] = (mask, call)
        else:
            if old[0] != mask:
                self._epoll.modify(fd, mask)
            self._watched[fd] = (mask, call)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`; must come before closing it."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self._changed.add(fd)

    def call_later(self, delay: float, call: Callable[[], object]) -> LoopTimer:
        """Call `call` after `delay` seconds."""
        timer = LoopTimer(time.monotonic() + delay, call, self._cancel)
        self._count += 1
        heapq.heappush(self._timers, (timer.due, self._count, timer))
        return timer

    def _cancel(self) -> None:
        """Purge the heap now and then: most deadlines are cancelled before they are due."""
        self._cancelled += 1
        if self._cancelled > 256 and self._cancelled > len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def on_signal(self, number: int, call: Callable[[], object]) -> None:
        """Call `call` from the loop when the signal arrives."""
        self._signals[number] = call
        before = signal.signal(number, _wake_only)
        self._handlers.setdefault(number, before)
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)

    def _signalled(self, _events: int) -> None:
        for number in set(os.read(self._wake_in, 4096)):
            call = self._signals.get(number)
            if call is not None:
                call()

    def run(self) -> None:
        self._running = True
        while self._running:
            self.turn()

    def turn(self) -> None:
        """Wait for the next events or timers and process them.

        A timer runs only after a poll that began when it was due: a process that was frozen wakes
        up past its deadlines, and what came in time still lies in the sockets.
        """
        timeout = -1.0
        now = time.monotonic()
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if self._timers:
            timeout = max(0.0, self._timers[0][0] - now)
        events = self._epoll.poll(timeout)
        self._changed.clear()
        for fd, mask in events:
            # The number may have been closed and reused by an earlier event's callback
            watched = self._watched.get(fd)
            if watched is not None and fd not in self._changed:
                self._guard(partial(watched[1], mask), fd)
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is not None:
                self._guard(call, -1)

    def _guard(self, call: Callable[[], object], fd: int) -> None:
        # One link's defect must not end every agent in the container.
        try:
            call()
        except Exception:
            import traceback

            traceback.print_exc(file=sys.stderr)
            # Its owner is expected to have closed it; if it is still open it must not spin
            if fd in self._watched and fd != self._wake_in:
                self.unwatch(fd)

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        """Close the loop's own descriptors, and restore the handlers of its signals."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            # None: it was not set from Python, and cannot be restored from there.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._epoll.close()
        os.close(self._wake_in)
        os.close(self._wake_out)


def _wake_only(_number: int, _frame: object) -> None:
    """Do nothing: Python requires a handler; the loop acts on the wake-up descriptor."""
