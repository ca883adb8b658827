"""Actor of one agent's process: starts it or attaches to it, reads it, writes to it.

What it reads goes to the SessionActor one portion at a time, and the next is read only when that
one was accepted: a slow log blocks the agent and loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Literal

import structlog

from oubliette import ids
from oubliette.actors.agent_process.launch import agent_session, start_request
from oubliette.actors.agent_process.portions import ack_of, portions
from oubliette.actors.agent_process.standard_error import StandardError
from oubliette.actors.container.messages import Acquire
from oubliette.actors.container.start_stages import longest_start
from oubliette.actors.session.messages import (
    AckOutput,
    AgentAttached,
    AgentGone,
    AgentOutput,
    AgentStarting,
    AgentStartProgress,
    AgentWrites,
    EndAgent,
    OutputEvent,
    OutputRefused,
    StdinFrame,
    ToolsListed,
    WithdrawPrompt,
)
from oubliette.actors.session.out_of_memory import OutOfMemory
from oubliette.errors import OublietteError, RuntimeFailure
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, ActorDead, AskTimeout, Message, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.agents import program
from oubliette.runtime.agents.memory import need_of
from oubliette.runtime.guest.errors import CommandFailed, GuestRefused, LinkClosed
from oubliette.runtime.guest.messages import Exit
from oubliette.runtime.guest.process_stream import Gap, Output, StdinOk

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import Session
    from oubliette.runtime.agents.base import AgentAdapter, AgentSession
    from oubliette.runtime.containers.base import ContainerInfo
    from oubliette.runtime.guest.control_link import ControlLink
    from oubliette.runtime.guest.messages import StartProcess
    from oubliette.runtime.guest.process_stream import ProcessStream

log = structlog.get_logger(__name__)

RECONNECT: Final = 30.0  # seconds for a broken link to come back
DELIVER_SECONDS: Final = 30.0  # seconds; then delivered again
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


class _KillOverdue(Message):
    pass


class AgentProcessActor(Actor):
    """Owner of the agent's process stream, which passes its output to the SessionActor."""

    mailbox_size = 10_000

    def __init__(
        self,
        context: ActorContext,
        guest: GuestConnection,
        session: Ref,
        record: Session,
        offset: int,
        *,
        turns_done: int,
        api_key: str | None,
    ) -> None:
        super().__init__()
        self._context = context
        self._guest = guest
        self._session = session
        self._record = record
        self._offset = offset
        self._process = record.process_id
        self._container_id = record.container_id
        """Container of the process, also before its start."""
        self._stream: ProcessStream | None = None
        self._turns_done = turns_done
        self._adapter: AgentAdapter | None = None
        self._agent_settings: AgentSession | None = None
        """Settings that the agent was started with, if this actor started it."""
        self._replaying = False
        self._opening: list[bytes] = []
        self._unsent: dict[int, StdinFrame | bytes] = {}
        self._undelivered: list[tuple[OutputEvent, ...]] = []
        self._more = asyncio.Event()
        self._committed = offset
        self._acked = (offset, record.process_err)
        self._acking = False
        self._ending = False
        self._end_sent = False
        self._lists: Literal["awaited", "overdue soon", "had"] = "had"
        """Whether a process that this actor started has fetched the list of our tools."""
        self._stderr = StandardError(context, record, api_key=api_key)
        self._api_key = api_key
        self._kernel = OutOfMemory(context.runtime)

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
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()
        if self._ending and not self._end_sent:
            await self._kill()

    # ------------------------------------------------------------------ running

    async def _serve(self) -> AgentGone:
        fresh = self._process is None or self._record.status == "created"
        self._guest.leases.add(self._record.id)
        context, agent = self._context, self._record.agent
        need = need_of(context.config, agent, context.agents.get(agent))
        if fresh:
            await self._guest.memory.take(self._record.id, need)
            await self._acquire()
        else:
            self._guest.memory.count(self._record.id, need)
            self._guest.container.tell(Acquire(session_id=self._record.id, start=False))
        started = False
        while True:
            link = await self._guest.wait(RECONNECT)
            if fresh:
                began = time.monotonic()
                try:
                    await self._start(link)
                except LinkClosed:
                    # Whether it was started is not known; started again by its id, it is the same.
                    await self._pause(link)
                    continue
                except (OublietteError, OSError) as error:
                    self._stage(began, error)
                    raise
                fresh, started = False, True
                self._stage(began)
            elif self._ending:  # requested when the guest was out of reach
                self._signal(link, "TERM")
            gone = await self._attend(link, started=started)
            if gone is not None:
                return gone
            started = False

    async def _acquire(self) -> None:
        """Start the container; asked again if its actor was restarted meanwhile."""
        limit = longest_start(self._context.config.containers)
        acquire = Acquire(session_id=self._record.id)
        async with asyncio.timeout(limit):
            await ask_with_retry(
                lambda: self._guest.container.ask(acquire, timeout=limit), seconds=limit
            )

    def _stage(self, began: float, error: Exception | None = None) -> None:
        if not self._session.is_alive():
            return
        info = self._guest.info
        stage = AgentStartProgress(
            state="done" if error is None else "failed",
            elapsed_ms=round((time.monotonic() - began) * 1000),
            container_id=info.id if info is not None else "",
            error="" if error is None else getattr(error, "message", "") or repr(error),
            remedy=getattr(error, "hint", None) or "",
        )
        self._session.tell(stage)

    async def _start(self, link: ControlLink) -> None:
        info = self._guest.info
        assert info is not None
        noted: Awaitable[None] | None = None
        if self._process is None or self._container_id != info.id:
            self._process, self._offset = ids.new_id(ids.PROCESS), 0
            self._stderr.begin()
            if self._context.agents[self._record.agent].starts_mcp:
                self._lists = "awaited"
            self._container_id = info.id
            starting = AgentStarting(process_id=self._process, container_id=info.id)
            noted = self._session.ask(starting)
        request = await self._request(info, self._process, noted)
        await self._kernel.begin(link)
        failpoint("agent.before_start")
        async with asyncio.timeout(self._context.config.agents.start_timeout_seconds):
            try:
                await link.start(request)
            except CommandFailed as error:
                if error.kind == "not_found":
                    raise program.missing(self._record.agent, str(error)) from error
                raise
        if self._ending:  # requested when there was no process to end
            self._signal(link, "TERM")
        failpoint("agent.after_start")

    async def _request(
        self, info: ContainerInfo, process: str, noted: Awaitable[None] | None
    ) -> StartProcess:
        """Return the start request; made while the process id is written to the log, used after."""
        making = asyncio.create_task(
            start_request(self._context, self._record, info, process, self._api_key)
        )
        try:
            if noted is not None:
                await noted
            request, self._agent_settings = await making
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        return request

    async def _attend(self, link: ControlLink, *, started: bool) -> AgentGone | None:
        """Read one attachment to its end; None: it broke, and the process may still run."""
        assert self._process is not None
        if self._adapter is None:
            await self._begin_reading()
        assert self._adapter is not None
        try:
            stream = await link.attach(self._process, self._offset, self._stderr.offset)
        except OublietteError as error:
            log.info("attach failed", session_id=self._record.id, reason=str(error))
            await self._pause(link)
            return None
        self._stream = stream
        pump: asyncio.Task[None] | None = None
        try:
            await self._deliver()
            async for item in stream:
                match item:
                    case Output(stream=1):
                        await self._take(item)
                        if self._adapter.failed is not None:
                            return AgentGone(reason=self._adapter.failed + await self._memory())
                    case Output():
                        await self._stderr.keep(item)
                        self._ack_soon()
                    case StdinOk(seq=seq):
                        self._accepted(seq)
                        if pump is None:
                            self._answer()
                            self._announce(seq, started=started)
                            pump = asyncio.create_task(self._pump(stream, seq))
                    case Gap(stream=1, next=following):
                        if self._replaying:
                            # Output that is gone was acknowledged, and with it that the agent was
                            # ready.
                            await self._make_adapter(ready=True)
                            self._answer()
                        else:
                            log.warning(
                                "output was lost", session_id=self._record.id, gap=str(item)
                            )
                        self._offset = following
                    case Exit():
                        return await self._exited(item)
                    case _:
                        pass  # the end of a stream is followed by the exit
        except GuestRefused as error:
            raise RuntimeFailure(f"the agent's process is gone: {error}") from error
        except (OublietteError, OSError) as error:
            log.info("agent stream broke", session_id=self._record.id, reason=str(error))
        finally:
            self._stream = None
            if pump is not None:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
            await stream.aclose()
        await self._pause(link)
        return None

    async def _pump(self, stream: ProcessStream, accepted: int) -> None:
        """Write the agent's pending input, in order; ends with the attachment."""
        written = accepted
        while True:
            frame = self._frame_after(written)
            if frame is None:
                self._more.clear()
                await self._more.wait()
                continue
            try:
                await stream.write(*frame)
            except (OublietteError, OSError) as error:
                log.info("agent stdin broke", session_id=self._record.id, reason=str(error))
                return
            written = frame[0]

    def _frame_after(self, written: int) -> tuple[int, bytes] | None:
        """Return the next frame, with its number at the guest; None while there is none to send.

        The handshake has the first numbers, `adapter.handshake` of them in every case; the frames
        that the session has numbered from 1 follow. So the next owner of the process derives what
        the agent has received from the last number that the guest accepted.
        """
        assert self._adapter is not None
        opening = self._adapter.handshake
        if written < opening:
            if written < len(self._opening):
                return written + 1, self._opening[written]
            return None
        ahead = written - opening + 1
        frame = self._unsent.get(ahead)
        if frame is None or not self._adapter.ready or not self._has_tools():
            return None
        if isinstance(frame, StdinFrame):
            frame = self._unsent[ahead] = self._encoded(self._adapter, frame)
        return opening + ahead, frame

    def _has_tools(self) -> bool:
        """Return whether the agent can call our tools in its first turn, or took too long."""
        if self._lists == "awaited":
            self._lists = "overdue soon"
            self.after(FIRST_LIST_SECONDS, ToolsListed())
        return self._lists == "had"

    @handles(ToolsListed)
    def _tools_listed(self, _: ToolsListed) -> None:
        self._lists = "had"
        self._more.set()

    def _encoded(self, adapter: AgentAdapter, frame: StdinFrame) -> bytes:
        match frame.kind:
            case "prompt":
                return adapter.prompt(frame.turn, frame.text)
            case "permission":
                return adapter.permission(frame.request_id, frame.decision, frame.text)
            case "raw":
                return frame.raw
            case "interrupt":
                data = adapter.interrupt(frame.turn)
        if data is None:
            if (link := self._guest.current) is not None:
                self._signal(link, "INT")
            data = b"\n"  # every sequence number is used, so that none is waited for
        return data

    async def _pause(self, link: ControlLink) -> None:
        """Wait after a break until the control link is back or lost, instead of spinning."""
        if self._guest.current is link:
            await self._guest.wait_changed(0.25)

    async def _make_adapter(self, *, ready: bool) -> None:
        info = self._guest.info
        assert info is not None
        state = {
            "ready": ready,
            "agent_session_id": self._record.agent_session_id,
            "turn": self._turns_done,
            # For a process that an earlier server started; ours is of this release.
            "frames": None if self._agent_settings else self._record.process_frames,
        }
        settings = self._agent_settings or await agent_session(
            self._context, self._record, self._api_key
        )
        runtime = self._context.agents[self._record.agent]
        self._adapter = runtime.adapter(settings, info.inside, state)
        self._replaying = False
        self._opening = []

    async def _begin_reading(self) -> None:
        """Make the adapter, which lives as long as this actor: its state outlives a broken link.

        An adapter with a handshake has state that only the output contains. So it reads again all
        output of an earlier server's process that was not acknowledged; the session recognises
        events that it has.
        """
        await self._make_adapter(ready=False)
        assert self._adapter is not None
        if self._adapter.handshake:
            self._replaying = True
            self._offset = self._committed = 0
            self._acked = (0, self._stderr.offset)

    def _announce(self, accepted: int, *, started: bool) -> None:
        assert self._process is not None
        assert self._adapter is not None
        info = self._guest.info
        self._session.tell(
            AgentAttached(
                process_id=self._process,
                container_id=info.id if info else "",
                stdin_accepted=max(0, accepted - self._adapter.handshake),
                started=started,
            )
        )

    async def _take(self, output: Output) -> None:
        assert self._adapter is not None
        self._replaying = False
        items = [
            OutputEvent(
                type=event.type,
                data=event.data,
                offset=event.end_offset,
                ordinal=event.ordinal,
                ack=ack_of(event),
            )
            for event in self._adapter.feed(output.data, output.offset)
        ]
        self._offset = output.offset + len(output.data)
        self._undelivered += portions(items)
        await self._deliver()
        self._answer()

    async def _deliver(self) -> None:
        """Deliver the adapter's findings; it does not find them again after a break."""
        assert self._process is not None
        while self._undelivered:
            items, steps = self._undelivered[0], getattr(self._adapter, "steps", 0)  # older: none
            await self._deliver_portion(
                AgentOutput(process_id=self._process, items=items, steps=steps)
            )
            del self._undelivered[0]

    def _answer(self) -> None:
        """Take the frames that the protocol sends: the handshake first, then answers."""
        assert self._adapter is not None
        for data in self._adapter.writes():
            if len(self._opening) < self._adapter.handshake:
                self._opening.append(data)
            else:
                self._session.tell(AgentWrites(data=data))
        self._more.set()

    async def _deliver_portion(self, portion: AgentOutput) -> None:
        """Deliver until accepted: the session recognises by offset what it already has."""
        while True:
            try:
                await self._session.ask(portion, timeout=DELIVER_SECONDS)
            except AskTimeout:
                log.warning("the log takes nothing; the agent is held back")
            except ActorDead:
                raise
            except Exception as error:
                # The session may have accepted a part. A new actor recovers from what is stored.
                self._session.tell(OutputRefused(error=f"{type(error).__name__}: {error}"))
                await asyncio.Event().wait()  # this actor ends with the old one
            else:
                return

    async def _exited(self, item: Exit) -> AgentGone:
        if self._guest.draining and not self._ending:
            return AgentGone(reason="container lost: it was told to end")
        if item.signal is not None:
            reason = f"the agent was killed by signal {item.signal}"
        else:
            reason = f"the agent ended with exit code {item.code}"
        if not self._ending:
            reason += await self._memory()
            reason += await self._stderr.last_words(self._guest.info)
        return AgentGone(reason=reason, exit_code=item.code, signal=item.signal)

    async def _memory(self) -> str:
        return await self._kernel.words(self._guest.current)

    @handles(_Ended)
    async def _ended(self, message: _Ended) -> None:
        if not self._end_sent:
            self._end_sent = True
            if self._session.is_alive():
                self._session.tell(message.gone)
            await self._kill()
        self.stop()

    async def _kill(self) -> None:
        """End also the processes that the agent left behind in its process group.

        The guest keeps the exit status until its session has stored it and asks to forget it.
        """
        link = self._guest.current
        if link is None or self._process is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await link.signal(self._process, "KILL", tree=True)
        except (OublietteError, TimeoutError) as error:
            log.debug("kill failed", session_id=self._record.id, reason=str(error))

    # ------------------------------------------------------------------ writing

    @handles(StdinFrame)
    def _write(self, message: StdinFrame) -> None:
        self._unsent[message.seq] = message
        self._more.set()

    @handles(WithdrawPrompt)
    def _withdraw(self, message: WithdrawPrompt) -> bool:
        if not isinstance(self._unsent.get(message.seq), StdinFrame):
            return False
        # Not yet encoded for the agent. Its number is used, so that none is waited for.
        self._unsent[message.seq] = b""
        return True

    def _accepted(self, seq: int) -> None:
        assert self._adapter is not None
        seq -= self._adapter.handshake
        for known in [known for known in self._unsent if known <= seq]:
            del self._unsent[known]

    @handles(AckOutput)
    def _ack(self, message: AckOutput) -> None:
        if message.out > self._committed:
            self._committed = message.out
            self._ack_soon()

    def _ack_soon(self) -> None:
        link = self._guest.current
        ends = (self._committed, self._stderr.offset)
        if self._acking or link is None or self._process is None or ends == self._acked:
            return
        self._acking = True
        self._acked = ends
        self.pipe_to_self(
            link.ack(self._process, *ends),
            lambda _: _Acked(),
            lambda _: _Acked(),  # a broken link: the next attach acknowledges what we have
        )

    @handles(_Acked)
    def _on_acked(self, _: _Acked) -> None:
        self._acking = False
        self._ack_soon()

    @handles(EndAgent)
    def _end_agent(self, message: EndAgent) -> None:
        if self._ending:
            return
        self._ending = True
        if self._process is None:
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
        assert self._process is not None
        self.pipe_to_self(
            link.signal(self._process, name, tree=True),
            lambda _: _Signalled(),
            lambda error: _Signalled(error=str(error)),
        )
