"""BlockingCall, one asynchronous call on a loop whose result another thread waits for."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import anyio

from oubliette.api.errors import Closed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

CANCEL_SECONDS: Final = 20.0  # more than the API takes to end a session that was given up


class BlockingCall(Generic[T]):
    """One call. It is begun once, on the loop; `result` waits for it in another thread."""

    def __init__(self, work: Callable[[], Awaitable[T]], loop: asyncio.AbstractEventLoop) -> None:
        """Prepare a call of `work`, which is not made before the call begins."""
        self._work = work
        self._loop = loop
        self._answer: Future[T] = Future()
        self._scope: anyio.CancelScope | None = None

    async def carry_out(self) -> None:
        """Make the call, unless it was cancelled before. Runs on the loop."""
        if self._answer.done():
            return
        try:
            with anyio.CancelScope() as self._scope:
                self._answer.set_result(await self._work())
        except Exception as error:
            self._answer.set_exception(error)
        finally:
            self._give_up()

    def result(self) -> T:
        """Wait for the result.

        An exception in the waiting thread, such as KeyboardInterrupt, cancels the call, and is
        raised when the call has ended. A second one is raised at once.

        Raises:
            Closed: the call was cancelled since its loop ends.
            Exception: that of the call.
        """
        try:
            return self._answer.result()
        finally:
            # An exception that is not the answer: this thread was interrupted.
            if not self._answer.done():
                self.cancel()
                self.wait(CANCEL_SECONDS)

    def cancel(self) -> None:
        """Cancel the call, from any thread; it ends a little later."""
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, and with it all calls have ended
            self._give_up()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the call, `seconds` at most."""
        wait((self._answer,), timeout=seconds)

    def _cancel(self) -> None:
        if self._scope is None:
            self._give_up()  # it has not begun, and will not
        else:
            self._scope.cancel()

    def _give_up(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(closed())


def closed() -> Closed:
    """Return the error of a use after the end."""
    return Closed(
        "this Oubliette is closed: its `with` block has ended",
        hint="keep the block open as long as its projects and sessions are used",
    )
