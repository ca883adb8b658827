"""Start of an agent's process in a container that is up, under an id that the log knows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from oubliette import ids
from oubliette.actors.agent_process.launch import agent_session, start_request
from oubliette.actors.agent_process.session_files import bring_session_files
from oubliette.actors.container.memory_room import WAIT_SECONDS
from oubliette.actors.container.messages import Acquire
from oubliette.actors.container.start_stages import longest_start
from oubliette.actors.session.messages import AgentStarting, AgentStartProgress
from oubliette.errors import OublietteError
from oubliette.failpoints import failpoint
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.agents import program
from oubliette.runtime.guest.errors import CommandFailed, LinkClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from oubliette.actors.agent_process.out_of_memory import OutOfMemory
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import Session
    from oubliette.runtime.agents.base import AgentAdapter, AgentSession
    from oubliette.runtime.containers.base import ContainerInfo
    from oubliette.runtime.guest.control_link import ControlLink
    from oubliette.runtime.guest.messages import StartProcess


class ProcessStart:
    """The process of one agent: its id, its container, the settings that it was started with."""

    def __init__(
        self,
        context: ActorContext,
        session: Ref,
        record: Session,
        *,
        turns_done: int,
        api_key: str | None,
        snapshots: Ref | None,
    ) -> None:
        self._snapshots = snapshots
        self._context = context
        self._session = session
        self._record = record
        self._turns_done = turns_done
        self._api_key = api_key
        self.process_id = record.process_id
        """None: there is none yet."""
        self._container_id = record.container_id
        """Container of the process, also before its start."""
        self._settings: AgentSession | None = None
        """Settings that the agent was started with, if it was started here."""

    async def acquire(self, container: Ref, memory_mb: int) -> None:
        """Start the container, once it has memory for the agent.

        Asked again if its actor was restarted meanwhile.
        """
        limit = longest_start(self._context.config.containers) + WAIT_SECONDS
        acquire = Acquire(session_id=self._record.id, memory_mb=memory_mb)
        async with asyncio.timeout(limit):
            await ask_with_retry(lambda: container.ask(acquire, timeout=limit), seconds=limit)

    def needs_id(self, info: ContainerInfo) -> bool:
        """Whether no process was about to be started in the container `info`."""
        return self.process_id is None or self._container_id != info.id

    async def run(self, link: ControlLink, info: ContainerInfo, kernel: OutOfMemory) -> None:
        """Start the process, or find the one that has its id; report it to the session.

        Raises:
            LinkClosed: whether it was started is not known; started again by its id, it is the
                same.
            OublietteError, OSError: it cannot be started.
        """
        began = time.monotonic()
        try:
            await self._start(link, info, kernel)
        except LinkClosed:
            raise
        except (OublietteError, OSError) as error:
            self._report(began, info, error)
            raise
        self._report(began, info)

    def _report(self, began: float, info: ContainerInfo, error: Exception | None = None) -> None:
        if not self._session.is_alive():
            return
        stage = AgentStartProgress(
            state="done" if error is None else "failed",
            elapsed_ms=round((time.monotonic() - began) * 1000),
            container_id=info.id,
            error="" if error is None else getattr(error, "message", "") or repr(error),
            remedy=getattr(error, "hint", None) or "",
        )
        self._session.tell(stage)

    async def _start(self, link: ControlLink, info: ContainerInfo, kernel: OutOfMemory) -> None:
        noted: Awaitable[None] | None = None
        if self.process_id is None or self.needs_id(info):
            self.process_id, self._container_id = ids.new_id(ids.PROCESS), info.id
            starting = AgentStarting(process_id=self.process_id, container_id=info.id)
            noted = self._session.ask(starting)
        request = await self._request(info, self.process_id, noted)
        await kernel.begin(link)
        failpoint("agent.before_start")
        async with asyncio.timeout(self._context.config.agents.start_timeout_seconds):
            try:
                await link.start(request)
            except CommandFailed as error:
                if error.kind == "not_found":
                    raise program.missing(self._record.agent, str(error)) from error
                raise
        failpoint("agent.after_start")

    async def _request(
        self, info: ContainerInfo, process: str, noted: Awaitable[None] | None
    ) -> StartProcess:
        """Return the start request; made while the process id is written to the log, used after."""
        making = asyncio.create_task(self._prepared(info, process))
        try:
            if noted is not None:
                await noted
            request, self._settings = await making
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        return request

    async def _prepared(
        self, info: ContainerInfo, process: str
    ) -> tuple[StartProcess, AgentSession]:
        if self._record.turn_count > 1:
            await bring_session_files(self._context, self._snapshots, self._record)
        return await start_request(self._context, self._record, info, process, self._api_key)

    async def adapter(self, info: ContainerInfo | None, *, ready: bool) -> AgentAdapter:
        """Return an adapter of the process in `info`; `ready`: its handshake is over."""
        assert info is not None
        state = {
            "ready": ready,
            "agent_session_id": self._record.agent_session_id,
            "turn": self._turns_done,
            "prompted": self._turns_done + 1 if self._record.status == "running" else None,
            # For a process that an earlier server started; ours is of this release.
            "frames": None if self._settings else self._record.process_frames,
        }
        settings = self._settings or await agent_session(self._context, self._record, self._api_key)
        return self._context.agent(self._record.agent).adapter(settings, info.inside, state)
