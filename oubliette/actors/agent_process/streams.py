"""Streams of an agent's process: its output to the session, the session's frames to its stdin.

Output goes to the SessionActor one portion at a time, and the next is read only when that one was
accepted: a slow log blocks the agent and loses nothing.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette.actors.agent_process.stdin import AwaitToolList, WriteStdin
from oubliette.actors.session.messages import AgentAttached, AgentOutput, AgentWrites, OutputRefused
from oubliette.errors import OublietteError
from oubliette.kit import ActorDead, AskTimeout
from oubliette.runtime.agents.silence import with_silences
from oubliette.runtime.guest.messages import Exit
from oubliette.runtime.guest.process_stream import Gap, Output, StdinOk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.actors.agent_process.output import OutputHalf
    from oubliette.actors.agent_process.standard_error import StandardError
    from oubliette.actors.agent_process.stdin import StdinHalf
    from oubliette.kit import Ref
    from oubliette.runtime.agents.base import AgentAdapter
    from oubliette.runtime.guest.process_stream import ProcessStream

log = structlog.get_logger(__name__)

PIECE: Final = 8 * 1024  # bytes that are read at once: all others wait meanwhile
DELIVER_SECONDS: Final = 30.0  # seconds; then delivered again


class Effect(enum.Enum):
    """Request to the actor of the process."""

    INTERRUPT = enum.auto()
    """Send SIGINT to the agent."""
    AWAIT_TOOL_LIST = enum.auto()
    """Limit the time for which the first prompt is held back."""
    ACKNOWLEDGE = enum.auto()
    """Acknowledge the output that was read."""


class AdapterFailed(msgspec.Struct, frozen=True):
    """The agent's handshake will never be over; the process is of no use."""

    reason: str


class AgentStreams:
    """Carrier between the session and the two halves of its agent's streams.

    Args:
        session: the SessionActor.
        session_id: of it, for the log.
        output: the output half.
        stdin: the stdin half.
        stderr: of the same process.
        apply: called with all that the actor of the process has to do.
        ready_adapter: makes another adapter of the process, whose handshake is over.
    """

    def __init__(
        self,
        session: Ref,
        session_id: str,
        output: OutputHalf,
        stdin: StdinHalf,
        stderr: StandardError,
        *,
        apply: Callable[[Effect], object],
        ready_adapter: Callable[[], Awaitable[AgentAdapter]],
    ) -> None:
        self._session = session
        self._session_id = session_id
        self._output = output
        self._stdin = stdin
        self._stderr = stderr
        self._apply = apply
        self._ready_adapter = ready_adapter
        self._more = asyncio.Event()

    def input_changed(self) -> None:
        """Look for input to write: the stdin half may have some."""
        self._more.set()

    async def run(
        self, stream: ProcessStream, process_id: str, container_id: str, *, started: bool
    ) -> Exit | AdapterFailed | None:
        """Carry all of one attachment, and close it; None: it was closed meanwhile.

        `started`: whether it is the first to a new process.

        Raises:
            GuestRefused: the process is unknown.
            OublietteError, OSError: the link broke; the process may still run.
        """
        pump: asyncio.Task[None] | None = None
        try:
            await self._deliver(process_id)
            async for item in with_silences(stream, self._output.pause):
                match item:
                    case None:
                        await self._fall_silent(process_id)
                    case Output(stream=1):
                        for start in range(0, len(item.data), PIECE):
                            self._output.read(item.data[start : start + PIECE], item.offset + start)
                            if not self._output.forked:
                                self._stdin.not_forked()
                            await self._deliver(process_id)
                        self._take_protocol_frames()
                        if (reason := self._output.failed) is not None:
                            return AdapterFailed(reason)
                    case Output():
                        await self._stderr.keep(item)
                        self._apply(Effect.ACKNOWLEDGE)
                    case StdinOk(seq=number):
                        seq = self._stdin.accepted(number)
                        if pump is None:
                            self._take_protocol_frames()
                            attached = AgentAttached(
                                process_id=process_id,
                                container_id=container_id,
                                stdin_accepted=seq,
                                started=started,
                            )
                            self._session.tell(attached)
                            pump = asyncio.create_task(self._pump(stream, number))
                    case Gap(stream=1):
                        await self._skip(item)
                    case Exit():
                        await self._fall_silent(process_id)
                        return item
                    case _:
                        pass  # the end of a stream is followed by the exit
        finally:
            try:
                if pump is not None:
                    pump.cancel()
                    await asyncio.gather(pump, return_exceptions=True)
            finally:  # also when this is cancelled a second time
                await stream.aclose()
        return None

    async def _fall_silent(self, process_id: str) -> None:
        self._output.silence()
        await self._deliver(process_id)
        self._take_protocol_frames()

    async def _skip(self, gap: Gap) -> None:
        if self._output.must_be_ready:
            adapter = await self._ready_adapter()
            self._output.resume(adapter)
            self._stdin.begin(adapter)
            self._take_protocol_frames()
        else:
            log.warning("output was lost", session_id=self._session_id, gap=str(gap))
        self._output.skip(gap.next)

    # ------------------------------------------------------------------ to the session

    async def _deliver(self, process_id: str) -> None:
        while (portion := self._output.portion(process_id)) is not None:
            await self._deliver_portion(portion)
            self._output.delivered()

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
                await asyncio.Event().wait()  # the actor of the process ends with the old one
            else:
                return

    def _take_protocol_frames(self) -> None:
        for data in self._stdin.take_protocol_frames():
            self._session.tell(AgentWrites(data=data))
        self._more.set()

    # ------------------------------------------------------------------ to the agent

    async def _pump(self, stream: ProcessStream, accepted: int) -> None:
        """Write the agent's pending input, in order; ends with the attachment."""
        written = accepted
        while True:
            match self._stdin.following(written):
                case WriteStdin() as frame:
                    if frame.interrupt:
                        self._apply(Effect.INTERRUPT)
                    try:
                        await stream.write(frame.number, frame.data)
                    except (OublietteError, OSError) as error:
                        log.info(
                            "agent stdin broke", session_id=self._session_id, reason=str(error)
                        )
                        return
                    written = frame.number
                case AwaitToolList():
                    self._apply(Effect.AWAIT_TOOL_LIST)
                case None:
                    self._more.clear()
                    await self._more.wait()
