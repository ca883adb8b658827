"""Actor of one agent's process: starts it or attaches to it, and ends it.

Its parts are the start (`process_start`), the streams (`streams`) with their two halves (`output`,
`stdin`), and the end (`process_end`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import tenacity

from oubliette.actors.agent_process.out_of_memory import OutOfMemory
from oubliette.actors.agent_process.output import OutputHalf
from oubliette.actors.agent_process.process_end import kill_remains, report_of
from oubliette.actors.agent_process.process_start import ProcessStart
from oubliette.actors.agent_process.standard_error import StandardError
from oubliette.actors.agent_process.stdin import StdinHalf
from oubliette.actors.agent_process.streams import AgentStreams, Effect
from oubliette.actors.container.guest_connection import GetGuestConnection, GuestConnection
from oubliette.actors.container.messages import Acquire
from oubliette.actors.session.messages import (
    AckOutput,
    AgentGone,
    EndAgent,
    StdinFrame,
    ToolsListed,
    ToolsNotListed,
    WithdrawPrompt,
)
from oubliette.actors.snapshot_requests import SNAPSHOTS
from oubliette.actors.start_pace import HELD_SECONDS
from oubliette.errors import OublietteError, RuntimeFailure
from oubliette.incontainer import wire
from oubliette.kit import Actor, Message, handles
from oubliette.kit.retry import Failures, ask_with_retry
from oubliette.runtime.agents.memory import need_of
from oubliette.runtime.guest.errors import GuestRefused, LinkClosed

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import ContainerRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.start_pace import StartPlace
    from oubliette.kit import Ref
    from oubliette.records import Session
    from oubliette.runtime.guest.control_link import ControlLink
    from oubliette.runtime.guest.process_stream import ProcessStream

log = structlog.get_logger(__name__)

RECONNECT: Final = 30.0  # seconds for a broken link to come back
PAUSE: Final = 0.25  # seconds at most from a broken attachment to the next
_REFUSED: Final = tenacity.wait_exponential_jitter(multiplier=0.1, max=5.0, jitter=0.1)
FIRST_LIST_SECONDS: Final = 5.0
"""Seconds from a new process's handshake to its list of our tools; then it is prompted without.
Most agents list them on their own, within milliseconds; one that does so at its first prompt
waits all of this.
"""


class _Ended(Message):
    gone: AgentGone


class _Acked(Message):
    pass


class _Signalled(Message):
    error: str | None = None


class _FirstListOverdue(Message):
    """Deadline at which the agent should have listed our tools for the first time."""


class _KillOverdue(Message):
    pass


class _PlaceOver(Message):
    """Time to let others start, even if this agent has not come to its first output."""


class AgentProcessActor(Actor):
    """Owner of one agent's process: of its start, its streams and its end."""

    mailbox_size = 10_000

    def __init__(
        self,
        context: ActorContext,
        unit: ContainerRefs,
        session: Ref,
        record: Session,
        offset: int,
        *,
        turns_done: int,
        has_turn: bool,
        paced: bool,
        api_key: str | None,
    ) -> None:
        super().__init__()
        self._context = context
        self._unit = unit
        self._guest = GuestConnection()  # of no container, until its owner has answered
        self._session = session
        self._record = record
        self._process = ProcessStart(
            context,
            session,
            record,
            turns_done=turns_done,
            api_key=api_key,
            snapshots=self.system.lookup(SNAPSHOTS),
        )
        self._output = OutputHalf(offset, record.process_err)
        self._stdin = StdinHalf()
        self._stderr = StandardError(context, record, api_key=api_key)
        self._kernel = OutOfMemory(context.runtime)
        self._streams = AgentStreams(
            session,
            record.id,
            self._output,
            self._stdin,
            self._stderr,
            apply=self._apply,
            ready_adapter=lambda: self._process.adapter(self._guest.info, ready=True),
        )
        self._reading = False
        """Whether the halves have their adapter, which outlives broken links."""
        self._stream: ProcessStream | None = None
        self._refused_since: float | None = None
        self._refusals = Failures(_REFUSED)
        self._ending = False
        self._end_sent = False
        self._has_turn = has_turn
        self._paced = paced
        self._place: StartPlace | None = None

    async def on_start(self) -> None:
        """Begin in the background; the outcome comes as messages."""
        self.pipe_to_self(
            self._serve(),
            lambda gone: _Ended(gone=gone),
            lambda error: _Ended(
                gone=AgentGone(
                    reason=str(error) or type(error).__name__,
                    start_failed=self._stream is None and self._record.process_id is None,
                )
            ),
        )

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Close the stream. The process runs on unless EndAgent ended it."""
        del reason, error
        self._give_place_back()
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()
        if self._ending and not self._end_sent:
            await self._kill()

    async def _serve(self) -> AgentGone:
        # Without a turn, none that is lost is started again: that is left to the next message.
        fresh = self._process.process_id is None or (
            self._record.status == "created" and self._has_turn
        )
        context, agent = self._context, self._record.agent
        need = need_of(context.config, agent, context.agents.get(agent))
        if fresh:
            if self._paced:
                self._place = await context.start_pace.take()
                self.after(HELD_SECONDS, _PlaceOver())
            await self._process.acquire(self._unit.container, need)
        else:
            lease = Acquire(session_id=self._record.id, start=False, memory_mb=need)
            self._unit.container.tell(lease)
        self._guest = await ask_with_retry(
            lambda: self._unit.socket.ask(GetGuestConnection()), seconds=RECONNECT
        )
        started = False
        while True:
            link = await self._guest.wait(RECONNECT)
            if fresh:
                try:
                    await self._start(link)
                except LinkClosed:
                    await self._pause(link)
                    continue
                fresh, started = False, True
            elif self._ending:  # requested when the guest was out of reach
                self._signal(link, "TERM")
            gone = await self._attend(link, started=started)
            if gone is not None:
                return gone
            started = False

    async def _start(self, link: ControlLink) -> None:
        info = self._guest.info
        assert info is not None
        if self._process.needs_id(info):
            self._output.restart()
            self._stderr.begin()
            if self._context.agent(self._record.agent).starts_mcp:
                self._stdin.expect_tool_list()
        await self._process.run(link, info, self._kernel)
        if self._ending:  # requested when there was no process to end
            self._signal(link, "TERM")

    async def _attend(self, link: ControlLink, *, started: bool) -> AgentGone | None:
        """Read one attachment to its end; None: it broke, and the process may still run."""
        process = self._process.process_id
        assert process is not None
        if not self._reading:
            adapter = await self._process.adapter(self._guest.info, ready=False)
            self._output.begin(adapter, self._stderr.offset)
            self._stdin.begin(adapter)
            self._reading = True
        try:
            stream = await link.attach(process, self._output.offset, self._stderr.offset)
        except OublietteError as error:
            log.info("attach failed", session_id=self._record.id, reason=str(error))
            await self._pause(link)
            return None
        self._stream = stream
        pause = PAUSE
        try:
            info = self._guest.info
            end = await self._streams.run(stream, process, info.id if info else "", started=started)
            if end is not None:
                return await report_of(
                    end, self._guest, self._kernel, self._stderr, requested=self._ending
                )
        except GuestRefused as error:
            pause = self._after_refusal(error)
        except (OublietteError, OSError) as error:
            self._refused_since = None
            log.info("agent stream broke", session_id=self._record.id, reason=str(error))
        finally:
            self._stream = None
        await self._pause(link, pause)
        return None

    def _after_refusal(self, error: GuestRefused) -> float:
        """The seconds to wait before the next attach, unless the process is gone.

        A guest that was frozen or starved refuses what it would have taken, while its agent lives.
        """
        now = self.clock.monotonic()
        if self._refused_since is None:
            self._refused_since = now
            self._refusals.reset()
        if error.reason == wire.UNKNOWN_PROCESS:
            raise RuntimeFailure(f"the agent's process is gone: {error}") from error
        if now - self._refused_since > RECONNECT:
            raise RuntimeFailure(f"the agent's process cannot be reached: {error}") from error
        log.info("attach refused", session_id=self._record.id, reason=error.reason)
        return self._refusals.next_delay()

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Effect.INTERRUPT:
                if (link := self._guest.current) is not None:
                    self._signal(link, "INT")
            case Effect.AWAIT_TOOL_LIST:
                self.after(FIRST_LIST_SECONDS, _FirstListOverdue())
            case Effect.ACKNOWLEDGE:
                self._acknowledge()

    async def _pause(self, link: ControlLink, seconds: float = PAUSE) -> None:
        """Wait after a break until the control link is back or lost, instead of spinning."""
        if self._guest.current is link:
            await self._guest.wait_changed(seconds)

    @handles(_Ended)
    async def _ended(self, message: _Ended) -> None:
        if not self._end_sent:
            self._end_sent = True
            if self._session.is_alive():
                self._session.tell(message.gone)
            await self._kill()
        self.stop()

    async def _kill(self) -> None:
        await kill_remains(self._guest.current, self._process.process_id, self._record.id)

    @handles(EndAgent)
    def _end_agent(self, message: EndAgent) -> None:
        if self._ending:
            return
        self._ending = True
        if self._process.process_id is None:
            self.ref.tell(_Ended(gone=AgentGone(reason="the agent was ended before it started")))
            return
        self.after(message.grace, _KillOverdue())
        if (link := self._guest.current) is not None:
            self._signal(link, "TERM")

    @handles(_KillOverdue)
    def _kill_overdue(self, _: _KillOverdue) -> None:
        link = self._guest.current
        if link is None:
            self.ref.tell(_Ended(gone=AgentGone(reason="the agent could not be reached")))
            return
        self._signal(link, "KILL")

    @handles(_Signalled)
    def _signalled(self, message: _Signalled) -> None:
        if message.error is not None:
            log.info("signal not delivered", session_id=self._record.id, reason=message.error)

    def _signal(self, link: ControlLink, name: str) -> None:
        assert self._process.process_id is not None
        self.pipe_to_self(
            link.signal(self._process.process_id, name, tree=True),
            lambda _: _Signalled(),
            lambda error: _Signalled(error=str(error)),
        )

    @handles(StdinFrame)
    def _write(self, message: StdinFrame) -> None:
        self._stdin.submit(message)
        self._streams.input_changed()

    @handles(WithdrawPrompt)
    def _withdraw(self, message: WithdrawPrompt) -> bool:
        return self._stdin.withdraw(message.seq)

    @handles(ToolsListed)
    def _tools_listed(self, _: ToolsListed) -> None:
        self._stdin.tools_listed()
        self._streams.input_changed()

    @handles(_FirstListOverdue)
    def _list_overdue(self, _: _FirstListOverdue) -> None:
        if self._stdin.list_overdue():
            if self._session.is_alive():
                self._session.tell(ToolsNotListed())
            self._streams.input_changed()

    @handles(AckOutput)
    def _ack(self, message: AckOutput) -> None:
        self._give_place_back()
        self._output.commit(message.out)
        self._acknowledge()

    @handles(_PlaceOver)
    def _place_over(self, _: _PlaceOver) -> None:
        self._give_place_back()

    def _give_place_back(self) -> None:
        if self._place is not None:
            self._place.give_back()

    def _acknowledge(self) -> None:
        link, process = self._guest.current, self._process.process_id
        if link is None or process is None:
            return
        if (due := self._output.acknowledge(self._stderr.offset)) is not None:
            self.pipe_to_self(
                link.ack(process, due.out, due.err),
                lambda _: _Acked(),
                lambda _: _Acked(),  # a broken link: the next attach acknowledges what we have
            )

    @handles(_Acked)
    def _on_acked(self, _: _Acked) -> None:
        self._output.acknowledged()
        self._acknowledge()
