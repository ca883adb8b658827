"""Pykka's future for use on a loop: awaiting it blocks nothing, `get` never hangs a loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pykka import ThreadingFuture

from oubliette.kit.errors import WouldBlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


def on_a_loop() -> bool:
    """Return whether this thread is running an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class AsyncioFuture(ThreadingFuture[Any]):
    """Future that threads wait for with `get` and coroutines of any loop with `await`."""

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: list[Callable[[], None]] = []
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        """Whether it was answered, or is no longer waited for."""
        return self._result is not None or self.gone

    def give_up(self) -> None:
        """Mark it as no longer waited for."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None

    def get(self, *, timeout: float | None = None) -> Any:
        """Wait in this thread, for at most `timeout` seconds.

        Raises:
            WouldBlockError: this is the thread of a running loop, and the answer is not there.
            pykka.Timeout: no answer came in time.
        """
        if self._result is None and self._get_hook is None and timeout != 0 and on_a_loop():
            raise WouldBlockError("A blocking get() inside an event loop; await the future")
        return super().get(timeout=timeout)

    def set(self, value: Any | None = None) -> None:
        """Set the value, as Pykka does, and wake the coroutines that wait."""
        super().set(value)
        self._fire()

    def set_exception(self, exc_info: Any = None) -> None:
        """Set the error, as Pykka does, and wake the coroutines that wait."""
        super().set_exception(exc_info)
        self._fire()

    def _fire(self) -> None:
        with self._condition:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def __await__(self) -> Generator[Any, None, Any]:
        if self._get_hook is not None:
            # A derived future computes in `get`, which may wait: that belongs in a thread.
            return (yield from asyncio.to_thread(self.get).__await__())
        if self._result is None:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def fired() -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:
                    # That loop is closed, and the coroutine that awaited here with it.
                    return

            with self._condition:
                late = self._result is not None
                if not late:
                    self._callbacks.append(fired)
            if late:
                wake()
            yield from waiter.__await__()
        return super().get(timeout=0)

    __iter__ = __await__
