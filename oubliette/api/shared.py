"""ClientShared, what all objects of one `Oubliette` have in common: connection, loop and end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from oubliette.api.errors import Closed
from oubliette.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from oubliette.api.connection import SystemConnection


class ClientShared:
    """Connection of one `Oubliette`, the tasks that it owns, and the sessions that it started."""

    def __init__(self, connection: SystemConnection) -> None:
        self.connection = connection
        self.started: dict[str, None] = {}
        """Ids of the sessions that were started here and not ended, in order."""
        self._loop = asyncio.get_running_loop()
        self.closed = False
        """Whether the block of `open` or `connect` has ended."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def check(self) -> None:
        """Check that this is the right place and time for a call.

        Raises:
            Closed: the block of `open` or `connect` has ended.
            Conflict: the caller runs in another thread or on another event loop.
        """
        if self.closed:
            raise Closed(
                "this Oubliette is closed: its `async with` block has ended",
                hint="keep the block open as long as its projects and sessions are used",
            )
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
        """Call a tool of the system, as `SystemConnection.call` does, unless this is closed."""
        self.check()
        return await self.connection.call(tool, arguments, timeout=timeout, on_progress=on_progress)

    def run(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task that ends with this `Oubliette` at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """End all tasks, and refuse further calls."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
