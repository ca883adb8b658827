"""End of a session: when it is ended or idles, and the release of its resources."""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.container.messages import ForgetProcess, Release
from oubliette.actors.messages import EndSession
from oubliette.actors.session.agent_io import AttendedSession
from oubliette.actors.session.idle_timeout import IdleCheck, IdleTimeout
from oubliette.actors.session.messages import CloseLink, EndAgent, SessionFinished
from oubliette.actors.session.session_end import RequestedEnd
from oubliette.actors.session_registry import REGISTRY, LeaveSession
from oubliette.errors import OublietteError
from oubliette.kit import Message, handles

if TYPE_CHECKING:
    from oubliette.actors.agent_requests.router import AgentRequestRouter
    from oubliette.actors.container.guest_connection import UnitRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.effect_applier import EffectApplier
    from oubliette.actors.session.memory import SessionMemory
    from oubliette.actors.session.session_end import EndOfSession
    from oubliette.kit import Deferred

END_LIMIT: Final = 5.0  # seconds from session_end to a dead agent
FORGET_LIMIT: Final = 2.0  # seconds for the guest to forget an agent's process

log = structlog.get_logger(__name__)


class _ResourcesReleased(Message):
    pass


class _EndOverdue(Message):
    pass


class EndingSession(AttendedSession, abc.ABC):
    """Actor that ends its session, and then releases its resources."""

    def __init__(
        self,
        context: ActorContext,
        unit: UnitRefs,
        session_id: str,
        memory: SessionMemory,
    ) -> None:
        super().__init__(context, unit, session_id, memory)
        self.link: AgentRequestRouter
        """Set by the subclass."""
        self.applier: EffectApplier
        """Set by the subclass."""
        self._process: str | None = None
        """Process of the agent of a session that has finished."""
        self._ending: list[Deferred] = []
        self.requested_end = RequestedEnd()
        self._released = False
        """Whether its end is in the log, and nothing more may be written by this actor."""
        self.idle = IdleTimeout(context.config.sessions.idle_timeout_seconds)

    @abc.abstractmethod
    def finish(self, end: EndOfSession) -> None:
        """Finish: settle open requests and write the end, then `release`."""

    @property
    def stopping(self) -> bool:
        """Whether it accepts nothing new."""
        return self.state.finished or self.requested_end.reason is not None

    # ------------------------------------------------------------------ when

    @handles(EndSession)
    def _end_session(self, message: EndSession) -> None:
        self._ending.append(self.defer())  # an ask that comes too late gets ActorDead
        effects, step = self.requested_end.requested(
            message, self.writer.record, finished=self.state.finished, released=self._released
        )
        self.applier.apply(effects)
        if step == "begin":
            self._begin_end()

    def _begin_end(self) -> None:
        """End the agent, once the request is in the log: then its end counts as no failure."""
        self.requested_end.begin(self.writer.record, self.clock.time())
        self.applier.apply(self.link.cancel_all("the session was ended", self.clock.time()))
        self.after(END_LIMIT - 0.5, _EndOverdue())
        self.writer.then(self._end_agent)

    def _end_agent(self) -> None:
        if self.state.finished:
            return
        if self._agent is not None and self._agent.is_alive():
            self._agent.tell(EndAgent())
        else:
            self.finish(self.requested_end.end)

    def recover_end(self) -> bool:
        """Continue an end that an earlier actor began; return whether there is one."""
        record = self.writer.record
        if record.ending is None:
            return False
        if record.status != "created":
            self._run_agent()  # for its last output
        self._begin_end()
        return True

    @handles(_EndOverdue)
    def _end_overdue(self, _: _EndOverdue) -> None:
        self._end_agent()  # a store that accepts nothing does not keep it alive
        if not self.state.finished:
            self.finish(self.requested_end.end)

    @handles(IdleCheck)
    def _idle_check(self, _: IdleCheck) -> None:
        left = self.idle.left(self.writer.record.status, self.clock.monotonic())
        if left > 0:
            self.after(left, IdleCheck())
        elif not self.stopping:
            self.finish(self.idle.end)

    def active(self) -> None:
        """Record activity: the session is not idle."""
        self.idle.active(self.clock.monotonic())

    @property
    def active_at(self) -> float:
        """Wall second of the last activity."""
        return self.clock.time() - self.idle.since(self.clock.monotonic())

    @property
    def ending_since(self) -> float | None:
        """Wall second of the request to end; None without one."""
        return self.requested_end.since

    # ------------------------------------------------------------------ resources

    def release(self) -> None:
        """Release all resources, once the session's end is in the log."""
        if not self.writer.settled:  # requests that were settled meanwhile go into the log first
            self.writer.then(self.release)
            return
        self._released = True
        # Readers of the end may stop the container at once; its release is sent below.
        self.unit.container.tell(Release(session_id=self.session_id, ending=True))
        for answer in self._ending:
            answer.set(self.writer.record.status)
        self._ending.clear()
        self.log.wake_waiters()
        self.unit.socket.tell(CloseLink(session_id=self.session_id))
        self.memory.api_key = None
        left = LeaveSession(session_id=self.session_id, name=self.name)
        self.system.ref(REGISTRY).tell(left)
        tree = self.system.lookup(f"explorations/{self.writer.record.exploration_id}")
        if tree is not None and tree.is_alive():
            tree.tell(SessionFinished(session_id=self.session_id))
        self.pipe_to_self(
            self._release_all(), lambda _: _ResourcesReleased(), lambda _: _ResourcesReleased()
        )

    async def _release_all(self) -> None:
        """End the agent, if it still runs, and the keys that were minted for it.

        The guest forgets the process only here: until its end is in the log, a server that
        recovers the session has to find it there.
        """
        if self.context.keys is not None:
            await self.context.keys.end_session(self.session_id)
        async with asyncio.timeout(END_LIMIT):
            if self._agent is not None and self._agent.is_alive():
                down = self._agent_down = asyncio.Event()
                self._agent.tell(EndAgent())
                await down.wait()
            await self._forget_process()

    async def _forget_process(self) -> None:
        if self._process is not None:
            await self.unit.socket.ask(ForgetProcess(process_id=self._process))
            self._process = None

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Have the guest forget the process if a message resumed the session before that."""
        del reason, error
        if not self._released:
            return
        try:
            async with asyncio.timeout(FORGET_LIMIT):
                await self._forget_process()
        except (OublietteError, TimeoutError) as failure:
            log.debug("forget failed", session_id=self.session_id, reason=str(failure))

    @handles(_ResourcesReleased)
    def _all_released(self, _: _ResourcesReleased) -> None:
        self.unit.container.tell(Release(session_id=self.session_id))
        self.stop()
