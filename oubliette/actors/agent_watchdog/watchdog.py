"""Deadlines of an agent.

It has to be ready, to start our MCP server, to give signs of life in a turn, to get an answer of
its model within a number of attempts, and to obey an interrupt. Same lifetime as its actor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from oubliette.actors.agent_process.standard_error import last_words
from oubliette.actors.agent_watchdog import deadlines
from oubliette.actors.agent_watchdog.silence import CheckAgain, Silence, SilenceCheck, SilentTooLong
from oubliette.actors.agent_watchdog.turn_interrupt import INTERRUPT_LIMIT, TurnInterrupt
from oubliette.actors.agent_watchdog.turn_limits import TurnLimitReached, TurnLimits, TurnOverdue
from oubliette.actors.container.messages import GetContainerInfo
from oubliette.actors.session.messages import AgentGone, EndAgent, StdinFrame, WithdrawPrompt
from oubliette.actors.session.ports import AgentPort
from oubliette.actors.session.waits import Wait
from oubliette.kit import ActorError, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.session.memory import SessionMemory
    from oubliette.actors.session.recovery import StoredSession

INFO_SECONDS: Final = 2.0  # for the container's actor to report what it is


class StartOverdue(Message):
    """Deadline at which the agent should have been ready."""

    process_id: str


class ContactOverdue(Message):
    """Deadline at which the agent should have started our MCP server."""

    process_id: str


class InterruptOverdue(Message):
    """Deadline at which the agent should have ended this turn."""

    turn: int


class PromptWithdrawn(Message):
    """Whether the prompt of this turn was taken back before the agent got it."""

    turn: int
    withdrawn: bool


DEADLINES: Final = (
    StartOverdue,
    ContactOverdue,
    SilenceCheck,
    TurnOverdue,
    InterruptOverdue,
    PromptWithdrawn,
)
"""Messages that a session passes on to its `AgentWatchdog`."""


class RequestServer(Protocol):
    """Serves the requests of the agent's client."""

    @property
    def serves(self) -> bool:
        """Whether a request waits for its answer."""
        ...


class WatchedSession(AgentPort, Protocol):
    """A session whose agent, or whose running turn, the watchdog may end."""

    memory: SessionMemory

    @property
    def link(self) -> RequestServer:
        """Serves the agent's requests."""
        ...

    def agent_gone(self, message: AgentGone) -> None:
        """Fail, as the agent is of no use."""
        ...

    def end_undelivered_turn(self) -> None:
        """End the running turn, whose prompt the agent never got."""
        ...


class AgentWatchdog:
    """Deadlines of one session's agent."""

    def __init__(self, session: WatchedSession) -> None:
        self._session = session
        self._config = session.context.config.agents
        self.silence = Silence(self._config.silence_timeout_seconds)
        self._limits = TurnLimits(session.context.config.trees)
        self._turn_since: float | None = None
        """Wall second at which the running turn began."""
        self._attached_at = 0.0
        self._retry: str | None = None
        """Number of the model's failures so far, and the reason."""
        self._interrupt = TurnInterrupt()

    def take(self, message: Message) -> None:
        """Handle one of the messages above."""
        match message:
            case StartOverdue():
                self._start_overdue(message)
            case ContactOverdue():
                self._contact_overdue(message)
            case SilenceCheck():
                self._check_silence(message.turn)
            case TurnOverdue():
                running, own = self._session.turn, self._session.writer.record.limits
                self._limit_reached(self._limits.overdue(message, running, own))
            case InterruptOverdue():
                self._interrupt_overdue(message)
            case PromptWithdrawn():
                self._withdrawn(message)
            case _:
                raise TypeError(f"no business of ours: {message}")

    # ------------------------------------------------------------------ taking over

    def recover(self, stored: StoredSession) -> None:
        """Recover the open tool calls and the start of the running turn."""
        self.silence.recover(stored.open_tools)
        self._turn_since = stored.turn_since

    def attached(self, *, again: bool) -> None:
        """Record that the agent's streams are open; `again` if they were before."""
        session = self._session
        self.silence.broken(session.clock.monotonic())
        if again:
            return
        self._attached_at = session.clock.time()
        process, agent = session.writer.record.process_id or "", session.writer.record
        if not agent.agent_ready:
            session.after(self._config.start_timeout_seconds, StartOverdue(process_id=process))
        elif not agent.agent_contacted:
            self._await_contact()
        if session.turn is not None:
            self.turn_started(session.turn)
            if self._interrupt.due == session.turn:
                self._end_running(session.turn)

    # ------------------------------------------------------------------ a start

    def starting(self) -> None:
        """Reset for another process of the agent that is about to be started."""
        runtime = self._session.context.agents.get(self._session.writer.record.agent)
        contacts = runtime is not None and runtime.starts_mcp
        self._session.writer.change(agent_ready=False, agent_contacted=not contacts)

    def ready(self) -> None:
        """Record the agent's first sign of life."""
        if self._session.writer.record.agent_ready:
            return
        self._session.writer.change(agent_ready=True)
        if not self._session.writer.record.agent_contacted:
            self._await_contact()

    def _start_overdue(self, message: StartOverdue) -> None:
        record = self._session.writer.record
        runtime = self._session.context.agents.get(record.agent)
        slow = runtime.slow_start if runtime is not None else ""
        limit = self._config.start_timeout_seconds
        reason = deadlines.start_overdue(record, message.process_id, limit, slow)
        if reason is not None:
            self._give_up_agent(reason, start_failed=True)

    def _give_up_agent(self, reason: str, *, start_failed: bool = False) -> None:
        """Fail for an unusable agent; the end of its standard error may contain the reason."""
        session = self._session
        gone = AgentGone(reason=reason, start_failed=start_failed)

        async def words() -> str:
            try:
                info = await session.unit.container.ask(GetContainerInfo(), INFO_SECONDS)
            except ActorError:
                info = None
            record, api_key = session.writer.record, session.memory.api_key
            return await last_words(session.context, record, info, api_key=api_key)

        session.pipe_to_self(
            words(),
            lambda words: msgspec.structs.replace(gone, reason=reason + words),
            lambda _: gone,
        )

    def _await_contact(self) -> None:
        session = self._session
        process = session.writer.record.process_id or ""
        session.after(self._config.contact_timeout_seconds, ContactOverdue(process_id=process))

    def contacted(self) -> None:
        """Record that a client of the agent was paired with our link: it has our tools."""
        if not self._session.writer.record.agent_contacted:
            self._session.writer.change(agent_contacted=True)

    def _contact_overdue(self, message: ContactOverdue) -> None:
        record, limit = self._session.writer.record, self._config.contact_timeout_seconds
        reason = deadlines.contact_overdue(record, message.process_id, limit)
        if reason is not None:
            self._give_up_agent(reason)

    # ------------------------------------------------------------------ a turn

    def turn_started(self, turn: int) -> None:
        """Watch for signs of life."""
        session = self._session
        now = session.clock.time()
        if self._turn_since is None:
            self._turn_since = now
        due = self.silence.turn_started(turn, session.clock.monotonic())
        if due is not None:
            session.after(due, SilenceCheck(turn=turn))
        own = session.writer.record.limits
        left = self._limits.turn_started(turn, self._turn_since, now, own)
        if left is not None:
            session.after(left, TurnOverdue(turn=turn))

    def turn_ended(self) -> None:
        """Stop watching."""
        self.silence.turn_ended()
        self._interrupt.turn_ended()
        self._turn_since = self._retry = None

    def heard(self, kind: str, data: dict[str, Any]) -> None:
        """Record an item of the agent's output."""
        clock = self._session.clock
        self.silence.heard(kind, data, clock.monotonic(), clock.time())
        self.ready()
        self._retry = None
        if kind == "system" and data.get("type") == "retry":
            self._retry = deadlines.retry_shown(data)
            reason = deadlines.too_many_retries(data, self._config.max_retries)
            if reason is not None:
                self.give_up(reason)

    def _check_silence(self, turn: int) -> None:
        session = self._session
        if session.turn != turn:
            return
        record = session.writer.record
        waits = (
            not session.attached or not record.agent_ready or session.waits or session.link.serves
        )
        match self.silence.check(turn, session.clock.monotonic(), record, waits=waits):
            case CheckAgain(seconds):
                session.after(seconds, SilenceCheck(turn=turn))
            case SilentTooLong(reason):
                self.give_up(reason)
            case None:
                pass

    def stepped(self, steps: int) -> None:
        """Record how many steps of its model the running turn has taken."""
        self._limit_reached(self._limits.stepped(steps, self._session.writer.record.limits))

    def _limit_reached(self, reached: TurnLimitReached | None) -> None:
        if reached is not None:
            self.give_up(reached.reason, kind="limit", limit=reached.limit)

    # ------------------------------------------------------------------ interrupts

    def waits(self, *, busy: bool) -> Iterator[Wait]:
        """Return the waits for an attached agent; `busy` if it waits for others itself."""
        session = self._session
        record = session.writer.record
        if not record.agent_ready:
            limit = self._config.start_timeout_seconds
            yield Wait(
                kind="agent",
                what=f"its agent, {record.agent}, to be ready",
                since=self._attached_at,
                until=self._attached_at + limit,
            )
        elif session.turn is None:
            return
        elif (since := self._interrupt.since) is not None:
            yield Wait(
                kind="interrupt",
                what="its agent to heed an interrupt",
                since=since,
                until=since + INTERRUPT_LIMIT,
                detail=self._interrupt.given_up,
            )
        elif not busy:
            model = Wait(
                kind="model",
                what="the model of its agent",
                since=self._turn_since,
                detail=self._retry,
            )
            clock, served = session.clock, session.link.serves
            yield from self.silence.waits(
                clock.monotonic(), clock.time(), record, served=served, model=model
            )

    # ------------------------------------------------------------------ ending a turn early

    def give_up(self, reason: str, **more: str) -> None:
        """Fail the running turn and interrupt the agent."""
        turn = self._interrupt.give_up(self._session.turn, reason)
        if turn is not None:
            self._session.writer.append("error", {"turn": turn, "message": reason, **more})
            self.interrupt(turn)

    @property
    def given_up(self) -> str | None:
        """Reason for which the running turn is to fail."""
        return self._interrupt.given_up

    def interrupt(self, turn: int) -> None:
        """Interrupt this turn, once the agent is attached."""
        self._interrupt.request(turn)
        # After the prompt, which is sent once its turn is in the log.
        self._session.writer.then(lambda: self._end_running(turn))

    def _end_running(self, turn: int) -> None:
        session = self._session
        agent = session.agent if session.attached else None
        reachable = agent is not None
        if not self._interrupt.begins(turn, session.turn, reachable=reachable) or agent is None:
            return
        session.pipe_to_self(
            agent.ask(WithdrawPrompt(seq=session.prompt_seq)),
            lambda withdrawn: PromptWithdrawn(turn=turn, withdrawn=withdrawn),
            lambda _: PromptWithdrawn(turn=turn, withdrawn=False),
        )

    def _withdrawn(self, message: PromptWithdrawn) -> None:
        session, turn = self._session, message.turn
        match self._interrupt.follows(
            turn,
            session.turn,
            withdrawn=message.withdrawn,
            attached=session.attached,
            now=session.clock.time(),
        ):
            case "end_turn":
                session.end_undelivered_turn()
            case "ask_agent":
                session.write(StdinFrame(seq=session.next_seq(), kind="interrupt", turn=turn))
                session.after(INTERRUPT_LIMIT, InterruptOverdue(turn=turn))
            case None:
                pass

    def _interrupt_overdue(self, message: InterruptOverdue) -> None:
        """End an agent that cannot be stopped otherwise."""
        session = self._session
        if session.agent is None:
            return
        reason = self._interrupt.overdue(message.turn, session.turn)
        if reason is not None:
            session.writer.append("error", {"turn": message.turn, "message": reason})
            session.agent.tell(EndAgent())
