"""Thread pool of the readers, with little overhead per read.

`loop.run_in_executor` makes two futures, a lock and a semaphore for each read; for reads of some
tens of microseconds that is most of their cost. Here a read is one future of the loop, one entry of
a queue, and one call back into the loop.

Each principal has a queue of its own, and one read of each is done in turn: a client that reads
large pages by the hundred waits for itself.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from oubliette.errors import Unavailable
from oubliette.kit.fair_loop import working_for

T = TypeVar("T")

_CLOSED: Final = "the store is closed"
_Settle = Callable[[object, BaseException | None], None]
_Job = tuple[Callable[[], object], _Settle]


class ReaderThreads:
    """At most `count` threads, each started when all others are busy."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: dict[str, deque[_Job]] = {}
        """Principal → its jobs; the principal whose turn is next comes first."""
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True for each job; False ends a thread."""
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0
        """Idle threads, less the jobs that wait for a thread."""
        self._closed = False

    def run(self, read: Callable[[], T]) -> asyncio.Future[T]:
        """Run the function on a thread; must be called on a loop, which gets the result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: object, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                pass  # the loop has ended, and the caller with it

        self._put(read, settle)
        return future

    def close(self) -> None:
        """Wait for running jobs; those not begun fail with Unavailable. Blocks."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            given_up = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
        for _, settle in given_up:
            settle(None, Unavailable(_CLOSED))
        for _ in threads:
            self._wake.put(False)
        for thread in threads:
            thread.join()

    def _put(self, read: Callable[[], object], settle: _Settle) -> None:
        with self._lock:
            if self._closed:
                raise Unavailable(_CLOSED)
            self._idle -= 1
            if self._idle < 0 and len(self._threads) < self._count:
                number = len(self._threads)
                thread = threading.Thread(
                    target=self._work, name=f"oubliette-reader_{number}", daemon=True
                )
                self._threads.append(thread)
                self._idle += 1
                thread.start()
            self._waiting.setdefault(working_for.get(), deque()).append((read, settle))
            self._wake.put(True)

    def _next(self) -> _Job | None:
        with self._lock:
            if not self._waiting:
                return None  # it was closed meanwhile
            whose = next(iter(self._waiting))
            jobs = self._waiting.pop(whose)
            job = jobs.popleft()
            if jobs:
                self._waiting[whose] = jobs
            return job

    def _work(self) -> None:
        while self._wake.get():
            job = self._next()
            if job is None:
                continue
            read, settle = job
            try:
                result, error = read(), None
            except BaseException as caught:
                result, error = None, caught
            with self._lock:
                self._idle += 1
            settle(result, error)
            # Release its references before the next job.
            del job, read, settle, result, error


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # the waiter was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
