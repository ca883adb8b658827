"""RunningAnswers, the answers of one part of the front that take long, and are cut at its stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class RunningAnswers:
    """Tasks of answers: to cancel the request's own would be an error of the application."""

    def __init__(self) -> None:
        self.stopping = False
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, answer: Coroutine[Any, Any, None]) -> None:
        """Give an answer; return early if it is cut by `stop`."""
        task = asyncio.create_task(answer)
        self._running.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()  # no effect unless this request itself was cancelled
            self._running.discard(task)
        if not task.cancelled():
            task.result()

    async def stop(self) -> None:
        """Cut the answers that are under way; others are to be refused."""
        self.stopping = True
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
