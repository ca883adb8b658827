"""`Call`: the call of a tool, as the function that carries it out sees it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final, final

from oubliette.api.tools.errors import ToolError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable


LOG: Final = logging.getLogger("oubliette.tools")


@final
class Call:
    """One call of a tool by an agent: where it comes from, how long it may take, its progress.

    A function gets it in the parameter that is annotated with this class, under any name;
    agents do not see that parameter. In a test of your own, make one: `Call(session_id="s")`.
    """

    def __init__(
        self,
        *,
        session_id: str = "",
        request_id: str = "",
        ancestry: tuple[str, ...] = (),
        deadline: float | None = None,
        on_progress: Callable[[str], object] | None = None,
        transaction: Callable[[], sqlite3.Connection] | None = None,
    ) -> None:
        self.session_id = session_id
        """Session whose agent calls."""
        self.request_id = request_id
        """Name of this call. A call that is delivered again has the same one."""
        self.ancestry = ancestry
        """Session ids from the root of the tree down to this session."""
        self.deadline = deadline
        """Time at which the agent stops waiting, in seconds since 1970; None: unknown."""
        self._on_progress = on_progress
        self._transaction = transaction
        self._cancelled = threading.Event()
        self._ended = False
        self._woken: asyncio.Event | None = None
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None  # made in a test that has no loop

    def __repr__(self) -> str:
        return f"Call(session_id={self.session_id!r}, request_id={self.request_id!r})"

    @property
    def depth(self) -> int:
        """Number of ancestors of the calling session: 0 for a root session."""
        return max(len(self.ancestry) - 1, 0)

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer awaited. May be read in any thread."""
        return self._cancelled.is_set()

    async def wait_cancelled(self) -> None:
        """Wait until the result is no longer awaited."""
        if self._cancelled.is_set():
            return
        if self._woken is None:
            self._woken = asyncio.Event()
        await self._woken.wait()

    def pause(self, seconds: float) -> bool:
        """Block this thread for `seconds`, less if the call is cancelled; return whether it is.

        For functions that run in a worker thread. In an `async` one, use `wait_cancelled`.
        """
        return self._cancelled.wait(seconds)

    def transaction(self) -> sqlite3.Connection:
        """Return a connection to the caller's file of answers (`once=`), for the tool's own writes.

        What is written through it is committed together with the answer: both are there, or
        neither. Commit nothing yourself; an exception undoes all of it. Other writers of the file
        wait until the tool returns.

        Raises:
            ToolError: the caller has no file of answers.
        """
        if self._transaction is None:
            raise ToolError(
                "this tool writes through call.transaction(), and its caller has no file for that",
                hint='ob.caller(…, once="answers.db")',
            )
        return self._transaction()

    def progress(self, text: str) -> None:
        """Report progress in a sentence. May be called in any thread; ignored after the end."""
        if self._on_progress is None:
            return
        if self._loop is None or _running_loop() is self._loop:
            self._report(text)
            return
        try:
            self._loop.call_soon_threadsafe(self._report, text)
        except RuntimeError:
            self._ended = True  # the loop is closed: an abandoned thread goes on without it

    def _report(self, text: str) -> None:
        if self._on_progress is None or self._ended:
            return
        try:
            self._on_progress(text)
        except Exception:
            LOG.exception("progress of %r could not be reported", self)

    def cancel(self) -> None:
        """Mark the call as no longer awaited. For the runner of tools, on the loop's thread."""
        self._cancelled.set()
        self._ended = True
        if self._woken is not None:
            self._woken.set()

    def end(self) -> None:
        """Mark the call as answered. For the runner of tools, on the loop's thread."""
        self._ended = True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
