"""Resources that a session holds: its link, its lease, its agent's process, keys of its agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.container.messages import ForgetProcess, Release
from oubliette.actors.session.messages import CloseLink, OpenLink, SessionFinished
from oubliette.actors.session.session_end import END_LIMIT
from oubliette.actors.session_registry import REGISTRY, LeaveSession
from oubliette.errors import OublietteError
from oubliette.kit import Message
from oubliette.kit.retry import ask_with_retry

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import ContainerRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.agent_handle import AgentHandle
    from oubliette.actors.session.event_log import EventLog
    from oubliette.actors.session.state import SessionMemory
    from oubliette.kit import Actor, Deferred
    from oubliette.records import Session

LINK_SECONDS: Final = 30.0  # for a SocketActor to be restarted
FORGET_LIMIT: Final = 2.0  # seconds for the guest to forget an agent's process

log = structlog.get_logger(__name__)


class LinkRequested(Message):
    """The session's link is requested, or could not be."""

    error: str | None = None


class ResourcesReleased(Message):
    """All resources of a finished session are released."""


class SessionResources:
    """Resources of one session, released once its end is in the log."""

    def __init__(
        self,
        session: Actor,
        context: ActorContext,
        unit: ContainerRefs,
        memory: SessionMemory,
        agent: AgentHandle,
    ) -> None:
        self._session = session
        self._context = context
        self._unit = unit
        self._memory = memory
        self._agent = agent
        self.process: str | None = None
        """Process of the agent of a session that has finished."""
        self.ending: list[Deferred] = []
        """Requests to end the session, answered when its end is in the log."""
        self.released = False
        """Whether its end is in the log, and nothing more may be written by this actor."""

    def open_link(self, record: Session, principal: str) -> None:
        """Request the link of the agent's client, as work for this principal."""
        assert record.pairing_secret is not None
        link = OpenLink(
            session_id=record.id,
            project_id=record.project_id,
            depth=record.depth,
            session=self._session.name,
            secret=record.pairing_secret,
            principal=principal,
        )
        # Repeated to a SocketActor that is being restarted: its memory has only what it received.
        self._session.pipe_to_self(
            ask_with_retry(lambda: self._unit.socket.ask(link), seconds=LINK_SECONDS),
            lambda _: LinkRequested(),
            lambda error: LinkRequested(error=str(error)),
        )

    def link_requested(self, message: LinkRequested, session_id: str) -> None:
        """Log that the link could not be requested."""
        if message.error is not None:
            log.warning("no session link", session_id=session_id, reason=message.error)

    def release(self, session_log: EventLog) -> None:
        """Release all resources, once the session's end is in the log."""
        writer, session = session_log.writer, self._session
        if not writer.settled:  # requests that were settled meanwhile go into the log first
            writer.then(lambda: self.release(session_log))
            return
        record = writer.record
        self.released = True
        # Readers of the end may stop the container at once; its release is sent below.
        self._unit.container.tell(Release(session_id=record.id, ending=True))
        for answer in self.ending:
            answer.set(record.status)
        self.ending.clear()
        session_log.wake_waiters()
        self._unit.socket.tell(CloseLink(session_id=record.id))
        self._memory.api_key = None
        session.system.ref(REGISTRY).tell(LeaveSession(session_id=record.id, name=session.name))
        tree = session.system.lookup(f"trees/{record.exploration_id}")
        if tree is not None and tree.is_alive():
            tree.tell(SessionFinished(session_id=record.id))
        session.pipe_to_self(
            self.release_all(record.id),
            lambda _: ResourcesReleased(),
            lambda _: ResourcesReleased(),
        )

    async def release_all(self, session_id: str) -> None:
        """End the agent, if it still runs, and the keys that were minted for it.

        The guest forgets the process only here: until its end is in the log, a server that
        recovers the session has to find it there.
        """
        if self._context.keys is not None:
            await self._context.keys.end_session(session_id)
        async with asyncio.timeout(END_LIMIT):
            await self._agent.ended()
            await self._forget_process()

    async def _forget_process(self) -> None:
        if self.process is not None:
            await self._unit.socket.ask(ForgetProcess(process_id=self.process))
            self.process = None

    def give_back(self, session_id: str) -> None:
        """Give the lease back, as the last of the resources."""
        self._unit.container.tell(Release(session_id=session_id))

    async def forgotten(self, session_id: str) -> None:
        """Have the guest forget the process if a message resumed the session before that."""
        if not self.released:
            return
        try:
            async with asyncio.timeout(FORGET_LIMIT):
                await self._forget_process()
        except (OublietteError, TimeoutError) as failure:
            log.debug("forget failed", session_id=session_id, reason=str(failure))
