"""RunningCalls, those that are being answered: each of them ends when its key does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from oubliette.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette.clock import Clock

REFUSED: Final = "invalid or expired API key"
"""Error message of every invalid key; it does not reveal the reason."""


class RunningCalls:
    """The calls that are being answered, by the id of their key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: dict[str, dict[asyncio.Timeout, asyncio.Task[object] | None]] = {}
        """Token id → what ends a call, with the task that answers it."""

    @contextlib.asynccontextmanager
    async def until_end(self, token_id: str, seconds: float | None) -> AsyncGenerator[None]:
        """Hold a call, which is cancelled after these seconds, or when its key is ended.

        Raises:
            Unauthenticated: it was.
        """
        own = self._calls.setdefault(token_id, {})
        limit = asyncio.timeout(None)
        timer = None
        if seconds is not None:
            timer = self._clock.call_later(seconds, lambda: _end(limit))
        try:
            async with limit:
                own[limit] = asyncio.current_task()
                yield
        except TimeoutError:
            if limit.expired():
                raise Unauthenticated(REFUSED) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            own.pop(limit, None)
            if not own and self._calls.get(token_id) is own:
                del self._calls[token_id]

    def end(self, token_id: str) -> None:
        """Cancel the calls of this key, but for the one that is ending it."""
        for limit, task in self._calls.get(token_id, {}).items():
            if task is not asyncio.current_task():
                _end(limit)


def _end(limit: asyncio.Timeout) -> None:
    if not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())
