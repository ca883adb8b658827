"""Pace of the agents that a server brings back when it starts.

Each of them boots a program: hundreds at once would take the machine from all others for minutes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

HELD_SECONDS: Final = 2.0
"""Seconds for which a start that has not come to its first output has its place: no agent that
hangs may keep others from theirs.
"""


class StartPace:
    """Places of the starts that go on at the same time on this machine.

    Args:
        at_once: their number; None = as many as there are processors, and at least two.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._places = asyncio.Semaphore(at_once or max(2, os.cpu_count() or 1))

    async def take(self) -> StartPlace:
        """Wait for a place; each start gives its place back."""
        await self._places.acquire()
        return StartPlace(self._places)


class StartPlace:
    """Place of one start."""

    __slots__ = ("_places",)

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def give_back(self) -> None:
        """Let another start have the place; again: no effect."""
        places, self._places = self._places, None
        if places is not None:
            places.release()
