"""ClientShared, what all objects of one `Oubliette` have in common: connection, loop and end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import anyio

from oubliette.api.errors import Closed
from oubliette.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from oubliette.actors.subscriptions import Subscription
    from oubliette.api.connection import SystemConnection
    from oubliette.kit import Ref

    Subscriber: TypeAlias = Ref | str

T = TypeVar("T")

CANCEL_SECONDS: Final = 5.0  # for a task to end after it was cancelled
_log = logging.getLogger("oubliette.caller")


class ClientShared:
    """Connection of one `Oubliette`, the tasks that it owns, and the sessions that it started."""

    def __init__(self, connection: SystemConnection) -> None:
        self.connection = connection
        self.started: dict[str, None] = {}
        """Ids of the sessions that were started here and not ended, in order."""
        self._loop = asyncio.get_running_loop()
        self.closed = False
        """Whether the block of `open` or `connect` has ended."""
        self.over = False
        """Whether also the sessions and tasks of the block have ended."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: set[asyncio.Task[Any]] = set()
        self._calls: set[anyio.CancelScope] = set()

    def check(self) -> None:
        """Check that this is the right place and time for a call.

        Raises:
            Closed: the block of `open` or `connect` has ended.
            Conflict: the caller runs in another thread or on another event loop.
        """
        if self.closed:
            raise _closed()
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            where = "a thread without its event loop" if here is None else "another event loop"
            raise Conflict(
                f"an Oubliette of one event loop was used from {where}",
                hint="use oubliette.sync in threads and scripts, or pass the work to the loop that"
                " opened it: asyncio.run_coroutine_threadsafe",
            )

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[str], object] | None = None,
    ) -> dict[str, Any]:
        """Call a tool of the system, as `SystemConnection.call` does, unless this is closed.

        Raises:
            Closed: the block of `open` or `connect` has ended, or ends during the call.
        """
        self.check()
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await self.connection.call(
                    tool, arguments, timeout=timeout, on_progress=on_progress
                )
            finally:
                self._calls.discard(scope)
        raise _closed()

    def run(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that ends with this `Oubliette` at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_session(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that starts a session: the end waits for it, to know the session."""
        task = self.run(work, "spawn")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        return task

    async def until_started(self, seconds: float) -> None:
        """Wait for the sessions that are being started, `seconds` at most."""
        if self._starting:
            await asyncio.wait(self._starting, timeout=seconds)

    async def cancel(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Cancel tasks, and wait for their ends, but not for long: a tool may resist."""
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        done, resisting = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("%s failed: %r", task.get_name(), error)
        for task in resisting:
            self._tasks.discard(task)
            _log.error("%s goes on although it was cancelled", task.get_name())

    async def aclose(self) -> None:
        """End all calls and tasks, and refuse further calls."""
        self.closed = True
        for scope in list(self._calls):
            scope.cancel()
        while self._tasks:  # a task that ends may have started another
            await self.cancel(list(self._tasks))
        self.over = True


def _closed() -> Closed:
    return Closed(
        "this Oubliette is closed: its `async with` block has ended",
        hint="keep the block open as long as its projects and sessions are used",
    )


async def subscribe(
    shared: ClientShared,
    subscriber: Subscriber,
    *,
    session_id: str | None = None,
    project_id: str | None = None,
    after: int | None = -1,
    name: str | None = None,
) -> Subscription:
    """Subscribe an actor of the embedded System.

    Raises:
        Conflict: this is a connection to a server.
    """
    shared.check()
    server: Any = getattr(shared.connection, "server", None)
    if server is None:
        raise Conflict(
            "an actor of this process can subscribe to a system in this process only",
            hint="over a connection: async for event in session.events(follow=True)",
        )
    from oubliette.actors.subscriptions import subscribe as begin

    return await begin(
        server.system,
        subscriber,
        session_id=session_id,
        project_id=project_id,
        after=after,
        name=name,
    )
