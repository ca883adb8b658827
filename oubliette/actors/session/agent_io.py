"""Agent of a session: its process, its link, its input.

The part of a SessionActor that owns an agent and does not depend on turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.agent_process.actor import AgentProcessActor
from oubliette.actors.container.messages import StageChanged
from oubliette.actors.session.event_log import EventLog
from oubliette.actors.session.messages import (
    AckOutput,
    AgentStarting,
    AgentStartProgress,
    AgentWrites,
    OpenLink,
    OutputRefused,
    StdinFrame,
)
from oubliette.actors.session.state import SessionActorState
from oubliette.kit import Actor, Message, handles
from oubliette.kit.retry import ask_with_retry
from oubliette.runtime.agents.handshake_adapter import FRAMES

if TYPE_CHECKING:
    import asyncio

    from oubliette.actors.agent_requests.router import AgentRequestRouter
    from oubliette.actors.container.guest_connection import UnitRefs
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.agent_watchdog import AgentWatchdog
    from oubliette.actors.session.memory import SessionMemory
    from oubliette.actors.session.write_batch import EventWriter
    from oubliette.kit import Ref

CRASH_WINDOW: Final = 60.0  # seconds; more than CRASHES failures in it end the session
CRASHES: Final = 3
LINK_SECONDS: Final = 30.0  # for a SocketActor to be restarted

log = structlog.get_logger(__name__)


class _LinkRequested(Message):
    error: str | None = None


class AttendedSession(Actor):
    """Actor that runs the agent's process, opens its link, numbers its input."""

    def __init__(
        self,
        context: ActorContext,
        unit: UnitRefs,
        session_id: str,
        memory: SessionMemory,
    ) -> None:
        super().__init__()
        self.context = context
        self.session_id = session_id
        self.memory = memory
        self.unit = unit
        self.writer: EventWriter
        """Set by the subclass."""
        self._agent: Ref | None = None
        self._agent_down: asyncio.Event | None = None
        """Set when the agent's actor has ended; None unless it is waited for."""
        self.state = SessionActorState(session_id)
        self.log = EventLog(self, context, session_id, lambda: self.state.quiet)
        self.starting_since = 0.0
        """Wall second at which the latest stage of the agent's start began."""
        self.watchdog: AgentWatchdog
        """Set by the subclass."""
        self.link: AgentRequestRouter
        """Set by the subclass."""

    # ------------------------------------------------------------------ its life

    def _run_agent(self) -> None:
        """Start the agent's process, or attach to it again, reading from where the log ends."""
        self.state.agent_detached()
        self.starting_since = self.clock.time()
        self._agent = self.spawn(
            AgentProcessActor,
            self.context,
            self.unit,
            self.ref,
            self.writer.record,
            max(self.state.seen[0], 0),
            turns_done=self.state.turns_done,
            api_key=self.memory.api_key,
            name=f"{self.name}/agent",
        )
        self.watch(self._agent)

    def _note_crash(self) -> None:
        self.memory.crashes.append(self.clock.monotonic())

    def _crashed_too_often(self) -> bool:
        now = self.clock.monotonic()
        crashes = self.memory.crashes
        crashes[:] = [at for at in crashes if now - at < CRASH_WINDOW]
        return len(crashes) > CRASHES

    def _open_link(self) -> None:
        record = self.writer.record
        assert record.pairing_secret is not None
        link = OpenLink(
            session_id=record.id,
            project_id=record.project_id,
            depth=record.depth,
            session=self.name,
            secret=record.pairing_secret,
        )
        # Repeated to a SocketActor that is being restarted: its memory has only what it received.
        self.pipe_to_self(
            ask_with_retry(lambda: self.unit.socket.ask(link), seconds=LINK_SECONDS),
            lambda _: _LinkRequested(),
            lambda error: _LinkRequested(error=str(error)),
        )

    @handles(_LinkRequested)
    def _link_requested(self, message: _LinkRequested) -> None:
        if message.error is not None:
            log.warning("no session link", session_id=self.session_id, reason=message.error)

    # ------------------------------------------------------------------ input

    def write(self, frame: StdinFrame) -> None:
        """Send a frame to the agent's process, which drops frames that it already has."""
        if self._agent is not None and self._agent.is_alive():
            self._agent.tell(frame)

    def next_seq(self) -> int:
        """Return the sequence number of one more frame for the agent, which must be attached."""
        return self.state.next_seq()

    @property
    def agent(self) -> Ref | None:
        """The actor of the agent's process, if there is one."""
        return self._agent if self._agent is not None and self._agent.is_alive() else None

    @property
    def attached(self) -> bool:
        """Whether the agent's process accepts frames, and it is known how many it has."""
        return self.state.attached

    @handles(OutputRefused)
    def _output_refused(self, message: OutputRefused) -> None:
        raise RuntimeError(f"what the agent said could not be taken in: {message.error}")

    @handles(AgentWrites)
    def _agent_writes(self, message: AgentWrites) -> None:
        if not self.state.finished:
            self.write(StdinFrame(seq=self.next_seq(), kind="raw", raw=message.data))

    def _ack(self, offset: int) -> None:
        if self._agent is not None and self._agent.is_alive():
            self._agent.tell(AckOutput(out=offset))

    # ------------------------------------------------------------------ its start

    @handles(AgentStartProgress)
    def _agent_stage(self, message: AgentStartProgress) -> None:
        self._tell_stage("agent", message)

    @handles(StageChanged)
    def _container_stage(self, message: StageChanged) -> None:
        self._tell_stage(message.stage, message)

    def _tell_stage(self, stage: str, message: AgentStartProgress | StageChanged) -> None:
        """Append the progress of the start as an event; empty fields are left out."""
        if message.state == "done":
            self.starting_since = self.clock.time()
        payload = {
            name: value
            for name in ("container_id", "detail", "error", "remedy", "warnings")
            if (value := getattr(message, name, None))
        }
        self.writer.append(
            "system",
            {
                "kind": "stage",
                "stage": stage,
                "state": message.state,
                "elapsed_ms": message.elapsed_ms,
                **payload,
            },
        )

    @handles(AgentStarting)
    def _agent_starting(self, message: AgentStarting) -> None:
        answer = self.defer()
        self.state.process_replaced()
        self.writer.change(
            process_id=message.process_id,
            container_id=message.container_id,
            process_frames=FRAMES,
        )
        self.watchdog.starting()
        self.link.tools.agent_starting()
        self.writer.then(lambda: answer.set(None))
