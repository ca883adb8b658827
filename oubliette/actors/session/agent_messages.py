"""Messages of a session's agent: the stages of its start, its input and its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.actors.container.messages import StageChanged
from oubliette.actors.session.agent_output import effects_of
from oubliette.actors.session.effects import AppendEvent
from oubliette.actors.session.messages import (
    AgentOutput,
    AgentStarting,
    AgentStartProgress,
    AgentWrites,
    OutputRefused,
    StdinFrame,
)
from oubliette.failpoints import failpoint
from oubliette.runtime.agents.handshake_adapter import FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.agent_requests.tool_listing import ProvidedTools
    from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog, WatchInput
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.agent_handle import AgentHandle
    from oubliette.actors.session.effects import Effects
    from oubliette.actors.session.event_log import EventLog
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.messages import OutputEvent
    from oubliette.actors.session.state import SessionActorState
    from oubliette.kit import Actor, Message


def stage_event(stage: str, message: AgentStartProgress | StageChanged) -> AppendEvent:
    """Return the event of a stage of the start; empty fields are left out."""
    payload = {
        name: value
        for name in ("container_id", "detail", "error", "remedy", "warnings")
        if (value := getattr(message, name, None))
    }
    shown = {
        "kind": "stage",
        "stage": stage,
        "state": message.state,
        "elapsed_ms": message.elapsed_ms,
        **payload,
    }
    return AppendEvent("system", shown)


AGENT_MESSAGES: Final = (
    AgentOutput,
    AgentStarting,
    AgentStartProgress,
    AgentWrites,
    OutputRefused,
    StageChanged,
)
"""Messages for `AgentMessages.take`."""


class AgentMessages:
    """The messages of the agent of one SessionActor.

    Args:
        actor: The session's; it is asked.
        context: Of all actors.
        state: Of its turns.
        writer: Of its log.
        log: The log.
        process: Handle on the agent's process.
        watchdog: Of the agent.
        tools: Its list of tools.
        watch_input: Returns what the watchdog decides on.
        apply: Carries out effects.
        active: Called when the session is not idle.
    """

    def __init__(
        self,
        actor: Actor,
        context: ActorContext,
        *,
        state: SessionActorState,
        writer: EventWriter,
        log: EventLog,
        process: AgentHandle,
        watchdog: AgentWatchdog,
        tools: ProvidedTools,
        watch_input: Callable[[], WatchInput],
        apply: Callable[[Effects], None],
        active: Callable[[], None],
    ) -> None:
        self._actor = actor
        self._context = context
        self._state = state
        self._writer = writer
        self._log = log
        self._process = process
        self._watchdog = watchdog
        self._tools = tools
        self._watch_input = watch_input
        self._apply = apply
        self._active = active

    def take(self, message: Message) -> None:
        """Take one of `AGENT_MESSAGES`."""
        match message:
            case AgentOutput():
                self._said(message)
            case AgentWrites():
                self._writes(message)
            case AgentStarting():
                self._starting(message)
            case AgentStartProgress():
                self._stage_changed("agent", message)
            case StageChanged():
                self._stage_changed(message.stage, message)
            case OutputRefused():
                raise RuntimeError(f"what the agent said could not be taken in: {message.error}")
            case _:
                raise TypeError(f"{type(message).__name__} is no message of an agent")

    def _stage_changed(self, stage: str, message: AgentStartProgress | StageChanged) -> None:
        if message.state == "done":
            self._process.starting_since = self._actor.clock.time()
        self._apply((stage_event(stage, message),))

    def _starting(self, message: AgentStarting) -> None:
        answer = self._actor.defer()
        self._state.process_replaced()
        self._writer.change(
            process_id=message.process_id,
            container_id=message.container_id,
            process_frames=FRAMES,
        )
        runtime = self._context.agents.get(self._writer.record.agent)
        contacts = runtime is not None and runtime.starts_mcp
        self._apply(self._watchdog.starting(contacts=contacts))
        self._tools.agent_starting()
        self._writer.then(lambda: answer.set(None))

    def _writes(self, message: AgentWrites) -> None:
        if not self._state.finished:
            seq = self._state.next_seq()
            self._process.write(StdinFrame(seq=seq, kind="raw", raw=message.data))

    def _said(self, message: AgentOutput) -> None:
        if self._state.finished or message.process_id != self._writer.record.process_id:
            return
        failpoint("session.agent_spoke")
        answer = self._actor.defer()
        offset = 0
        try:
            for item in message.items:
                if self._state.take_in(item.offset, item.ordinal):
                    self._take_in(item, f"{message.process_id}:{item.offset}:{item.ordinal}")
                offset = item.ack
        except Exception:
            self._log.broken = True  # the asker reports it again, see OutputRefused
            raise
        self._active()
        self._apply(self._watchdog.stepped(message.steps, self._watch_input()))
        self._writer.then(lambda: self._process.acknowledge(offset))
        self._log.answer_with_room(answer)

    def _take_in(self, item: OutputEvent, source: str) -> None:
        if item.type != "system":
            self._apply(self._watchdog.heard(item.type, item.data, self._watch_input()))
        given_up = self._watchdog.given_up
        self._apply(effects_of(item, source, self._state, self._writer.record, given_up))
