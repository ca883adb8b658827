"""Detection of agents that ended because their container ran out of memory.

The kernel chooses the process that it kills: the agent itself, a program that it needs, or a parent
that waits for its children. The agent's own report of it is "killed by signal 9", or nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import OublietteError
from oubliette.runtime.containers.base import MIB

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.guest.control_link import ControlLink

SECONDS: Final = 2.0  # for the guest to report its counts


class OutOfMemory:
    """Kills by the kernel in the container of one agent since its process began."""

    def __init__(self, runtime: ContainerRuntime) -> None:
        self._limited = runtime.capabilities.images
        """Containers of the process runtime have no limit, and no count, of their own."""
        self._before = 0

    async def begin(self, link: ControlLink | None) -> None:
        """Read the counts before the process is started."""
        self._before = (await self._asked(link)).get("oom_kills") or 0

    async def words(self, link: ControlLink | None) -> str:
        """Return ` (out of memory: …)`, to follow a reason; "" if it was something else."""
        said = await self._asked(link)
        killed = (said.get("oom_kills") or 0) - self._before
        if killed <= 0:
            return ""
        what = "a process" if killed == 1 else f"{killed} processes"
        limit = said.get("memory_limit")
        room = f" is {limit // MIB}" if isinstance(limit, int) else ""
        return (
            f" (out of memory: the kernel has ended {what} of its container meanwhile;"
            f" containers.memory_mb{room}: raise it, or let fewer agents run at once)"
        )

    async def _asked(self, link: ControlLink | None) -> dict[str, Any]:
        if link is None or not self._limited:
            return {}
        try:
            async with asyncio.timeout(SECONDS):
                return await link.stats()
        except (OublietteError, OSError, TimeoutError):
            return {}  # the reason is reported without it
