"""ClientContext, what the objects of one `Oubliette` share, with the tools that it provides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.api.callers.caller_loops import CallerLoops
from oubliette.api.shared import ClientShared

if TYPE_CHECKING:
    from oubliette.api.connection import SystemConnection


class ClientContext(ClientShared):
    """Connection, tasks and callers of one `Oubliette`."""

    def __init__(self, connection: SystemConnection, caller_id: str) -> None:
        super().__init__(connection)
        self.loops = CallerLoops(self, caller_id)

    async def aclose(self) -> None:
        """End the callers, then all other tasks, and refuse further calls."""
        await self.loops.aclose()
        await super().aclose()
