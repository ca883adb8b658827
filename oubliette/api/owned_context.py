"""OwnedContext, an async context manager in a task of its own, and `finish`, which waits.

Libraries on anyio require that a context is left by the task that entered it. Test fixtures,
notebooks and servers enter in one task and leave in another; here both happen in a third.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager


async def finish(task: asyncio.Task[T]) -> T:
    """Wait for the end of `task`, and return its result.

    Cancelling this does not cancel the task: the cancellation is raised when the task has ended.
    A shielded scope of anyio alone does not do that, since tasks are also cancelled by
    `Task.cancel`, as by `asyncio.timeout` or Ctrl-C, more than once if several want it.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()


T = TypeVar("T")


class OwnedContext(Generic[T]):
    """Owner of one context manager: `enter` it once, then `leave` it, in any task."""

    def __init__(self, context: AbstractAsyncContextManager[T, Any], name: str) -> None:
        self._context = context
        self._name = name
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> T:
        """Enter the context; return its value. Cancelling this leaves it again."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._live(entered), name=self._name)
        try:
            return await asyncio.shield(entered)
        except asyncio.CancelledError:
            self._task.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await finish(self._task)
            raise

    async def leave(self) -> None:
        """Leave the context, and wait until that is done; raises what leaving it raises.

        Cancelling this is raised when it is done.
        """
        self._leaving.set()
        if self._task is not None:
            task, self._task = self._task, None
            await finish(task)

    async def _live(self, entered: asyncio.Future[T]) -> None:
        try:
            async with self._context as value:
                if not entered.cancelled():
                    entered.set_result(value)
                await self._leaving.wait()
        except BaseException as error:
            if entered.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                entered.cancel()
                raise
            entered.set_exception(error)
