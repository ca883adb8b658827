"""Deadlines of an agent, without I/O.

It has to be ready, to start our MCP server, to give signs of life in a turn, to get an answer of
its model within a number of attempts, and to obey an interrupt. Each input has a method, which
returns the effects that the session's actor applies in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oubliette.actors.agent_watchdog import deadlines
from oubliette.actors.agent_watchdog.messages import (
    ContactOverdue,
    InterruptOverdue,
    PromptWithdrawn,
    StartOverdue,
)
from oubliette.actors.agent_watchdog.silence import CheckAgain, Silence, SilenceCheck, SilentTooLong
from oubliette.actors.agent_watchdog.turn_interrupt import INTERRUPT_LIMIT, TurnInterrupt
from oubliette.actors.agent_watchdog.turn_limits import TurnLimitReached, TurnLimits, TurnOverdue
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    ChangeRecord,
    Effects,
    EndAgentProcess,
    EndRunningTurn,
    EndUndeliveredTurn,
    GiveUpAgent,
    InterruptAgent,
    StartTimer,
    WithdrawTurn,
)
from oubliette.actors.session.waits import Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.config.schema import AgentsConfig
    from oubliette.contract.limits import TreesConfig
    from oubliette.kit import Message
    from oubliette.records import Session


class WatchInput(NamedTuple):
    """State of the session at the moment at which its watchdog decides."""

    record: Session
    turn: int | None
    """The running turn."""
    wall: float
    """Wall second."""
    now: float
    """Monotonic second."""
    attached: bool
    """Whether the agent's process accepts frames."""
    reachable: bool
    """Whether the actor of the agent's process is there."""
    served: bool
    """Whether we work on a request of the agent's client."""
    waits: bool
    """Whether the agent waits for a caller's tool, a child or a decision."""


class AgentWatchdog:
    """Deadlines of one session's agent; same lifetime as its actor."""

    def __init__(self, config: AgentsConfig, trees: TreesConfig, slow_start: str = "") -> None:
        """Begin without a turn.

        Args:
            config: Limits of agents.
            trees: Limits of turns.
            slow_start: What this kind of agent may need to start faster, if it is known.
        """
        self._config = config
        self._slow_start = slow_start
        self.silence = Silence(config.silence_timeout_seconds)
        self._limits = TurnLimits(trees)
        self._turn_since: float | None = None
        """Wall second at which the running turn began."""
        self._attached_at = 0.0
        self._retry: str | None = None
        """Number of the model's failures so far, and the reason."""
        self._interrupt = TurnInterrupt()

    def overdue(self, message: Message, given: WatchInput) -> Effects:
        match message:
            case StartOverdue():
                return self._start_overdue(message, given)
            case ContactOverdue():
                return self._contact_overdue(message, given)
            case SilenceCheck():
                return self._check_silence(message.turn, given)
            case TurnOverdue():
                reached = self._limits.overdue(message, given.turn, given.record.limits)
                return self._limit_reached(reached, given)
            case InterruptOverdue():
                return self._interrupt_overdue(message, given)
            case PromptWithdrawn():
                return self._withdrawn(message, given)
            case _:
                raise TypeError(f"not a deadline of agents: {message}")

    # ------------------------------------------------------------------ recovery

    def recover(self, open_tools: dict[str, tuple[str, float]], turn_since: float | None) -> None:
        """Recover the open tool calls and the start of the running turn."""
        self.silence.recover(open_tools)
        self._turn_since = turn_since

    def attached(self, given: WatchInput, *, again: bool) -> Effects:
        """Record that the agent's streams are open; `again` if they were before."""
        self.silence.broken(given.now)
        if again:
            return ()
        self._attached_at = given.wall
        record, turn = given.record, given.turn
        effects: Effects = ()
        if not record.agent_ready:
            overdue = StartOverdue(process_id=record.process_id or "")
            effects = (StartTimer(self._config.start_timeout_seconds, overdue),)
        elif not record.agent_contacted:
            effects = (self._await_contact(record),)
        if turn is not None:
            effects += self.turn_started(turn, given)
            if self._interrupt.due == turn:
                effects += self.end_running(turn, given)
        return effects

    # ------------------------------------------------------------------ a start

    @staticmethod
    def starting(*, contacts: bool) -> Effects:
        """Reset for another process that is about to be started; `contacts`: it starts our server.

        What an earlier process of the agent has shown counts no more.
        """
        return (ChangeRecord({"agent_ready": False, "agent_contacted": not contacts}),)

    def _ready(self, record: Session) -> Effects:
        if record.agent_ready:
            return ()
        ready = ChangeRecord({"agent_ready": True})
        return (ready,) if record.agent_contacted else (ready, self._await_contact(record))

    def _await_contact(self, record: Session) -> StartTimer:
        overdue = ContactOverdue(process_id=record.process_id or "")
        return StartTimer(self._config.contact_timeout_seconds, overdue)

    def _start_overdue(self, message: StartOverdue, given: WatchInput) -> Effects:
        limit = self._config.start_timeout_seconds
        reason = deadlines.start_overdue(given.record, message.process_id, limit, self._slow_start)
        return () if reason is None else (GiveUpAgent(reason, start_failed=True),)

    @staticmethod
    def contacted(record: Session) -> Effects:
        """Record that a client of the agent was paired with our link: it has our tools."""
        return () if record.agent_contacted else (ChangeRecord({"agent_contacted": True}),)

    def _contact_overdue(self, message: ContactOverdue, given: WatchInput) -> Effects:
        limit = self._config.contact_timeout_seconds
        reason = deadlines.contact_overdue(given.record, message.process_id, limit)
        return () if reason is None else (GiveUpAgent(reason),)

    # ------------------------------------------------------------------ a turn

    def turn_started(self, turn: int, given: WatchInput) -> Effects:
        """Watch for signs of life."""
        if self._turn_since is None:
            self._turn_since = given.wall
        effects: Effects = ()
        due = self.silence.turn_started(turn, given.now)
        if due is not None:
            effects = (StartTimer(due, SilenceCheck(turn=turn)),)
        own = given.record.limits
        left = self._limits.turn_started(turn, self._turn_since, given.wall, own)
        if left is not None:
            effects += (StartTimer(left, TurnOverdue(turn=turn)),)
        return effects

    def turn_ended(self) -> None:
        self.silence.turn_ended()
        self._interrupt.turn_ended()
        self._turn_since = self._retry = None

    def heard(self, kind: str, data: dict[str, Any], given: WatchInput) -> Effects:
        """Record an item of the agent's output."""
        self.silence.heard(kind, data, given.now, given.wall)
        effects = self._ready(given.record)
        self._retry = None
        if kind == "system" and data.get("type") == "retry":
            self._retry = deadlines.retry_shown(data)
            reason = deadlines.too_many_retries(data, self._config.max_retries)
            if reason is not None:
                effects += self.give_up(reason, given)
        return effects

    def _check_silence(self, turn: int, given: WatchInput) -> Effects:
        if given.turn != turn:
            return ()
        record = given.record
        waits = not given.attached or not record.agent_ready or given.waits or given.served
        match self.silence.check(turn, given.now, record, waits=waits):
            case CheckAgain(seconds):
                return (StartTimer(seconds, SilenceCheck(turn=turn)),)
            case SilentTooLong(reason):
                return self.give_up(reason, given)
            case None:
                return ()

    def stepped(self, steps: int, given: WatchInput) -> Effects:
        """Record how many steps of its model the running turn has taken."""
        return self._limit_reached(self._limits.stepped(steps, given.record.limits), given)

    def _limit_reached(self, reached: TurnLimitReached | None, given: WatchInput) -> Effects:
        if reached is None:
            return ()
        return self.give_up(reached.reason, given, kind="limit", limit=reached.limit)

    # ------------------------------------------------------------------ reasons to wait

    def waits(self, given: WatchInput, *, busy: bool) -> Iterator[Wait]:
        """Return the waits for an attached agent; `busy` if it waits for others itself."""
        record = given.record
        if not record.agent_ready:
            limit = self._config.start_timeout_seconds
            yield Wait(
                kind="agent",
                what=f"its agent, {record.agent}, to be ready",
                since=self._attached_at,
                until=self._attached_at + limit,
            )
        elif given.turn is None:
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
            yield from self.silence.waits(
                given.now, given.wall, record, served=given.served, model=model
            )

    # ------------------------------------------------------------------ ending a turn early

    def give_up(self, reason: str, given: WatchInput, **more: str) -> Effects:
        """Fail the running turn and interrupt the agent."""
        turn = self._interrupt.give_up(given.turn, reason)
        if turn is None:
            return ()
        error = AppendEvent("error", {"turn": turn, "message": reason, **more})
        return (error, *self.interrupt(turn))

    @property
    def given_up(self) -> str | None:
        """Reason for which the running turn is to fail."""
        return self._interrupt.given_up

    def interrupt(self, turn: int) -> Effects:
        """Interrupt this turn, once the agent is attached."""
        self._interrupt.request(turn)
        # After the prompt, which is sent once its turn is in the log.
        return (AfterCommit(EndRunningTurn(turn)),)

    def end_running(self, turn: int, given: WatchInput) -> Effects:
        """Take the prompt of a turn back, if it runs and its agent can be reached."""
        reachable = given.attached and given.reachable
        begins = self._interrupt.begins(turn, given.turn, reachable=reachable)
        return (WithdrawTurn(turn),) if begins else ()

    def _withdrawn(self, message: PromptWithdrawn, given: WatchInput) -> Effects:
        turn = message.turn
        match self._interrupt.follows(
            turn,
            given.turn,
            withdrawn=message.withdrawn,
            attached=given.attached,
            now=given.wall,
        ):
            case "end_turn":
                return (EndUndeliveredTurn(),)
            case "ask_agent":
                overdue = InterruptOverdue(turn=turn)
                return (InterruptAgent(turn), StartTimer(INTERRUPT_LIMIT, overdue))
            case None:
                return ()

    def _interrupt_overdue(self, message: InterruptOverdue, given: WatchInput) -> Effects:
        """End an agent that cannot be stopped otherwise."""
        if not given.reachable:
            return ()
        reason = self._interrupt.overdue(message.turn, given.turn)
        if reason is None:
            return ()
        error = AppendEvent("error", {"turn": message.turn, "message": reason})
        return (error, EndAgentProcess())
