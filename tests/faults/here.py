"""A caller with a project of its own: what most tests of faults begin with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.faults.history import Lender

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.testing.server import ServerProcess


async def until(holds: Callable[[], bool]) -> None:
    """Wait until this holds, which nobody tells: of processes and files."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.02)


class Here(Lender):
    """A caller with a project; `approve` answers when it is let."""

    def __init__(self, server: ServerProcess, *, project: str = "here", **kwargs) -> None:
        super().__init__(
            server.url, server.token("write"), tools={"approve": self.approve}, **kwargs
        )
        self.server = server
        self.may = asyncio.Event()
        self.project_name = project
        self.project_id = ""

    async def approve(self, what: str) -> dict[str, str]:
        """Approve, when it may."""
        await self.may.wait()
        return {"approved": what}

    async def __aenter__(self) -> Here:
        await super().__aenter__()
        project = await self.call(
            "project_create",
            name=self.project_name,
            init_git=False,
            idempotency_key=self.project_name,
        )
        self.project_id = project["id"]
        await self.listen()
        return self

    async def spawn(self, prompt: str, **more) -> str:
        """A new session."""
        answer = await self.call(
            "session_spawn",
            project_id=self.project_id,
            prompt=prompt,
            new_session=True,
            context=self.context,
            **more,
        )
        return answer["session_id"]

    async def status(self, session_id: str) -> tuple[str, str | None]:
        """Status and reason."""
        found = await self.call("session_get", session_id=session_id)
        return found["status"], found["status_reason"]
