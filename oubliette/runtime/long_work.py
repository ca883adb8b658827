"""Work whose length tenants determine: where it is done, and how much of it at a time.

What one tenant has done may take hours; the work of the others goes on beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

T = TypeVar("T")

works_for: Final = ContextVar("works_for", default="")
"""The principal for which the current task works; empty: the server itself."""


class FairSlots:
    """Places for work, of which no owner has all: those of others are there for the next one.

    Args:
        most: Places.
        each: Those of one owner of each kind at a time; what it wants more waits for its own.
    """

    def __init__(self, most: int, *each: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._kinds = [(own, WeakValueDictionary[str, asyncio.Semaphore]()) for own in each]

    @contextlib.asynccontextmanager
    async def of(self, *owners: str) -> AsyncGenerator[None]:
        """Hold a place of these owners, one of each kind, during the block."""
        async with contextlib.AsyncExitStack() as held:
            for (most, known), owner in zip(self._kinds, owners, strict=True):
                own = known.setdefault(owner, asyncio.Semaphore(most))
                await held.enter_async_context(own)
            await held.enter_async_context(self._all)
            yield


async def in_own_thread(work: Callable[..., T], *args: object) -> T:
    """Run a function in a thread of its own, and return its result.

    The threads of `asyncio.to_thread` are few, and short work of all tenants waits for them. The
    function has to end in time also where its result is not wanted any more.
    """
    return await to_thread.run_sync(work, *args, limiter=CapacityLimiter(1), abandon_on_cancel=True)
