"""PortalThread, an event loop in a thread of its own, on which other threads make calls."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from oubliette.api.errors import Closed
from oubliette.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

_NAME: Final = "oubliette-sync"


class PortalThread:
    """A thread with an event loop, from `start` to `stop`.

    What `anyio.from_thread.start_blocking_portal` does, except that calls are cancelled when the
    waiting thread is interrupted, and that a forked process is recognised.
    """

    def __init__(self) -> None:
        """Prepare; the thread begins with `start`."""
        self._thread: threading.Thread | None = None
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._stopping = False
        self._calls: set[BlockingCall[Any]] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread, and wait until its loop runs.

        Raises:
            Conflict: it was started before.
        """
        with self._lock:
            if self._thread is not None:
                raise Conflict("this Oubliette was opened before", hint="make another one")
            started: Future[asyncio.AbstractEventLoop] = Future()
            self._process = os.getpid()
            # A program that forgets the end of its block can end nevertheless.
            self._thread = threading.Thread(
                target=self._live, args=(started,), name=_NAME, daemon=True
            )
            self._thread.start()
        self._loop = started.result()

    def open(
        self, first: Callable[[], Awaitable[object]], last: Callable[[], Awaitable[None]]
    ) -> None:
        """Start the thread, and make a first call; if it fails, stop the thread with the last one.

        Raises:
            Conflict: it was started before.
            Exception: that of the first call.
        """
        self.start()
        try:
            self.call(first)
        except BaseException:
            self.stop(last)
            raise

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Make a call on the loop, and wait for its result.

        Raises:
            Conflict: there is no loop yet, or this thread is the loop's.
            Closed: the loop has ended, or ends while this waits.
            Exception: that of the call.
        """
        return self._call(work, last=False)

    def read(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait on the loop, and return its result."""

        async def work() -> T:
            return function()

        return self._call(work, last=False)

    def stop(self, last: Callable[[], Awaitable[None]]) -> None:
        """Cancel all calls, make a last one, and end the thread; a second time does nothing.

        In a forked process it does nothing: the loop is the parent's.
        """
        if self._process != os.getpid() or self._thread is None:
            return
        self._check_thread()
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            calls = list(self._calls)
        try:
            for each in calls:
                each.cancel()
            for each in calls:
                each.wait(CANCEL_SECONDS)
            with contextlib.suppress(Closed):  # the loop has ended on its own
                self._call(last, last=True)
        finally:
            self._end(self._thread)

    def _call(self, work: Callable[[], Awaitable[T]], *, last: bool) -> T:
        if self._process != os.getpid():
            self._refuse()
        self._check_thread()
        loop, portal = self._loop, self._portal
        assert loop is not None
        assert portal is not None
        call = BlockingCall(work, loop)
        try:
            self._begin(call, portal, last=last)
            return call.result()
        except BaseException:
            call.cancel()  # it may have been interrupted before it began
            raise
        finally:
            self._calls.discard(call)

    def _begin(self, call: BlockingCall[Any], portal: BlockingPortal, *, last: bool) -> None:
        with self._lock:  # so that the loop does not end between the check and the beginning
            if self._stopping and not last:
                raise closed()
            self._calls.add(call)
            try:
                portal.start_task_soon(call.carry_out)
            except RuntimeError:  # a tool has ended the loop, as by `sys.exit`
                raise closed() from None

    def _refuse(self) -> None:
        if self._thread is None:
            raise Conflict(
                "this Oubliette is not open",
                hint="with oubliette.sync.open() as ob: ... (or ob.start(), in a notebook)",
            )
        raise Conflict(
            f"this Oubliette was opened in another process ({self._process}), and this one"
            f" ({os.getpid()}) was forked from that",
            hint="open it in the process that uses it, or connect to a server from there",
        )

    def _check_thread(self) -> None:
        if self._thread is threading.current_thread():
            raise Conflict(
                "an object of oubliette.sync was used on its own event loop, which would wait for"
                " itself",
                hint="make the function that does this a plain one (`def`): it runs in a thread",
            )

    def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            anyio.run(self._serve, started, backend="asyncio")
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async with BlockingPortal() as portal:
            self._portal = portal
            started.set_result(asyncio.get_running_loop())
            await portal.sleep_until_stopped()

    def _end(self, thread: threading.Thread) -> None:
        if self._portal is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop is ending on its own
                self._portal.start_task_soon(self._portal.stop, True)
        thread.join()


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
