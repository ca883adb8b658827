"""Queue of calls from other threads onto a loop: first in, first out, one wake-up for many."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class LoopBridge:
    """Runner of other threads' calls on one loop; made on that loop's thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = contextvars.Context()
        self.thread = threading.get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        # Re-entrant, since a finalizer may send a message while this thread holds it.
        self.lock = threading.RLock()
        self._signalled = False
        self._closed = False

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function` on the loop soon; in this thread if the loop takes no more calls."""
        wake = False
        with self.lock:
            self._calls.append((function, args))
            if not self._signalled:
                self._signalled = wake = True
            closed = self._closed
        if closed:
            self._run()
        elif wake:
            try:
                self.loop.call_soon_threadsafe(self._run, context=self._context)
            except RuntimeError:
                # The loop was closed without its System. Waiting calls must still be refused.
                self.close()

    def close(self) -> None:
        """Take no more calls onto the loop; run those that wait."""
        with self.lock:
            self._closed = True
        self._run()

    def _run(self) -> None:
        with self.lock:
            calls, self._calls = self._calls, deque()
            self._signalled = False
        for function, args in calls:
            try:
                function(*args)
            except Exception as error:
                # One failed call must not prevent those behind it.
                context = {"message": "A call from another thread failed", "exception": error}
                self.loop.call_exception_handler(context)


class LoopThread:
    """A thread with a loop of its own, for programs that have none."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._end: asyncio.Event | None = None
        self.bridge: LoopBridge
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.thread.start()
        if not self._ready.wait(30):
            raise RuntimeError(f"The loop of thread {name} did not start within 30 s")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs there."""
        return self.bridge.loop

    def stop(self, timeout: float = 30.0) -> None:
        """End the loop and join the thread, within `timeout` seconds."""
        end = self._end
        if end is not None and self.thread.is_alive():
            self.bridge.call(end.set)
        self.thread.join(timeout)

    def _main(self) -> None:
        asyncio.run(self._body())

    async def _body(self) -> None:
        self._end = asyncio.Event()
        self.bridge = LoopBridge()
        self._ready.set()
        await self._end.wait()
        self.bridge.close()
