"""How many agents a container has memory for, by what each kind is counted with.

The kernel ends somebody when a container's memory is used up, whoever took it: so an agent waits
here, before its process is started, until others of its container have ended.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

WAIT_SECONDS: Final = 600.0  # for others of the container to end


class MemoryRoom:
    """The memory of one container, in MB; belongs to its gate.

    Args:
        leases: ids of the sessions that hold the container; what others had is free again.
        room: what the container may have; None = there is no limit.
    """

    def __init__(self, leases: AbstractSet[str], room: int | None) -> None:
        self._leases = leases
        self._room = room
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, float] = {}
        self._changed = asyncio.Event()

    def _others(self, session_id: str = "") -> int:
        return sum(
            need
            for each, need in self._taken.items()
            if each in self._leases and each != session_id
        )

    def fits(self, need: int) -> int | None:
        """How many agents with that need fit beside those that live, 1 at least; None: any."""
        if self._room is None:
            return None
        return max((self._room - self._others()) // need, 1)

    def count(self, session_id: str, need: int) -> None:
        """Its agent lives: it is counted, whether it fits or not."""
        self._taken[session_id] = need

    def given_back(self, session_id: str) -> None:
        """Its agent has ended."""
        self._taken.pop(session_id, None)
        self._changed.set()
        self._changed = asyncio.Event()

    def waits_since(self, session_id: str) -> float | None:
        """Monotonic second since which its agent waits for others to end; None: it does not."""
        return self._waiting.get(session_id)

    async def take(self, session_id: str, need: int, timeout: float = WAIT_SECONDS) -> None:
        """Count its agent, as soon as it fits; one fits always, alone.

        Raises:
            LimitExceeded: others had the memory for `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._room is not None and (others := self._others(session_id)):
                    if others + need <= self._room:
                        break
                    self._waiting.setdefault(session_id, time.monotonic())
                    await self._changed.wait()
        except TimeoutError:
            raise LimitExceeded(
                f"containers.memory_mb: {self._others(session_id)} of {self._room} MB are counted"
                f" for agents that live in this container, one more would need {need}; none has"
                f" ended for {timeout:g} s",
                hint="end sessions that are idle, raise containers.memory_mb, or count agents with"
                " less (agents.memory)",
            ) from None
        finally:
            self._waiting.pop(session_id, None)
        self.count(session_id, need)
