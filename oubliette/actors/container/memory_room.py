"""Number of agents that a container has memory for, counted by the need of each kind.

When a container's memory is used up, the kernel kills any one of its processes, not necessarily the
one that used it: so an agent waits here, before its process is started, until others of its
container have ended.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from oubliette.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

WAIT_SECONDS: Final = 600.0  # for others of the container to end
REMEDY: Final = (
    "end sessions that are idle, raise containers.memory_mb, or count agents with less"
    " (agents.memory)"
)


class MemoryRoom:
    """Memory of one container, in MB; owned by its ContainerActor.

    Args:
        leases: ids of the sessions that hold the container; others have no share. The memory of
            one that loses its lease is `given_back`.
        room: the container's limit; None = there is no limit.
    """

    def __init__(self, leases: AbstractSet[str], room: int | None) -> None:
        self._leases = leases
        self._room = room
        self._taken: dict[str, int] = {}
        self._sum = 0
        """Of `_taken`: it is asked for at each start of an agent."""
        self._waiting: dict[str, float] = {}
        self._changed = asyncio.Event()

    def _others(self, session_id: str = "") -> int:
        return self._sum - self._taken.get(session_id, 0)

    def fits(self, need: int) -> int | None:
        """Return how many such agents fit beside the running ones, at least 1; None: any number."""
        if self._room is None:
            return None
        return max((self._room - self._others()) // need, 1)

    def count(self, session_id: str, need: int) -> None:
        """Count the session's running agent, whether it fits or not."""
        if session_id in self._leases:
            self._sum += need - self._taken.get(session_id, 0)
            self._taken[session_id] = need

    def take_now(self, session_id: str, need: int) -> bool:
        """Count the session's agent if it fits now; return whether it does."""
        others = self._others(session_id)
        if self._room is not None and others and others + need > self._room:
            return False
        self.count(session_id, need)
        return True

    def given_back(self, session_id: str) -> None:
        """The memory of the session's agent, which has ended."""
        self._sum -= self._taken.pop(session_id, 0)
        self._changed.set()
        self._changed = asyncio.Event()

    def shortage(self, session_id: str, need: int) -> str:
        """Return in words why the session's agent does not fit."""
        return (
            f"containers.memory_mb: {self._others(session_id)} of {self._room} MB are counted"
            f" for agents that live in this container, one more would need {need}"
        )

    def waits_since(self, session_id: str) -> float | None:
        """Return the monotonic second since which its agent waits; None: it does not."""
        return self._waiting.get(session_id)

    async def take(self, session_id: str, need: int, timeout: float = WAIT_SECONDS) -> None:
        """Count the session's agent as soon as it fits; a single one always fits.

        Raises:
            LimitExceeded: others had the memory for `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self.take_now(session_id, need):
                    self._waiting.setdefault(session_id, time.monotonic())
                    await self._changed.wait()
        except TimeoutError:
            raise LimitExceeded(
                f"{self.shortage(session_id, need)}; none has ended for {timeout:g} s",
                hint=REMEDY,
            ) from None
        finally:
            self._waiting.pop(session_id, None)
