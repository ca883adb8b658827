"""`finish`, which waits for the end of a task, also while the waiting one is cancelled."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import anyio

T = TypeVar("T")


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
