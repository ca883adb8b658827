"""Messages of a session's agent: the stages of its start, its input and its output.

The watchdog has noted the item before (`AgentWatchdog.heard`), except for items of type `system`,
which are in the log first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from oubliette.actors.container.messages import StageChanged
from oubliette.actors.session.effects import (
    AppendEvent,
    AskPermission,
    BeginTurn,
    ChangeRecord,
    CountUsage,
    Effects,
    HearSystem,
    NotifyTree,
)
from oubliette.actors.session.messages import (
    AgentCost,
    AgentOutput,
    AgentStarting,
    AgentStartProgress,
    AgentWrites,
    OutputRefused,
    StdinFrame,
)
from oubliette.failpoints import failpoint
from oubliette.records import Forks, TurnOutcome, Used
from oubliette.runtime.agents.handshake_adapter import FRAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.agent_requests.tool_listing import ProvidedTools
    from oubliette.actors.agent_watchdog.watchdog import AgentWatchdog, WatchInput
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.agent_handle import AgentHandle
    from oubliette.actors.session.event_log import EventLog
    from oubliette.actors.session.event_writer import EventWriter
    from oubliette.actors.session.messages import OutputEvent
    from oubliette.actors.session.state import SessionActorState
    from oubliette.kit import Actor, Message
    from oubliette.records import Session

_FORKS: Final = get_args(Forks)
_OUTCOMES: Final[dict[str, TurnOutcome]] = {each: each for each in get_args(TurnOutcome)}


def effects_of(
    item: OutputEvent,
    source: str,
    state: SessionActorState,
    record: Session,
    given_up: str | None,
) -> Effects:
    """The effects of an item that has not been taken in before.

    Args:
        item: The item.
        source: Its position in the output, by which the store recognises it.
        state: Of the session.
        record: Of the session.
        given_up: Reason for which the running turn is to fail, if it was interrupted for one.
    """
    data = item.data
    match item.type:
        case "completion":
            return _completion(data, source, state, record, given_up)
        case "usage":
            return (*usage(record, data), _system("usage", data, source))
        case "ready":
            changed = _known_of(data)
            shown = _system("ready", data, source)
            return (ChangeRecord(changed), shown) if changed else (shown,)
        case "turn_started":
            return (_system("turn_started", data, source),)
        case "permission_request":
            return (AskPermission(data, source),)
        case "message":
            return (AppendEvent("message", {**data, "role": "assistant"}, source),)
        case "error":
            state.last_error = str(data.get("message") or "") or None
            return (AppendEvent("error", data, source),)
        case "system":
            # Readers get a `type` of their own: that of the event.
            kind = data.get("kind", data.get("type"))
            shown = data if kind is None else {**data, "kind": kind}
            return (AppendEvent("system", shown, source), HearSystem(data))
        case _:
            return (AppendEvent(item.type, data, source),)


def _known_of(ready: dict[str, Any]) -> dict[str, Any]:
    """The fields of the record about the conversation of an agent that is ready."""
    named, forks = ready.get("agent_session_id"), ready.get("forks")
    known: dict[str, Any] = {}
    if isinstance(named, str):
        known = {"agent_session_id": named, "agent_forks": forks if forks in _FORKS else None}
    if ready.get("forked") is False:
        known["conversation"] = "transcript"  # it gets the record after all
    return known


def _completion(
    data: dict[str, Any],
    source: str,
    state: SessionActorState,
    record: Session,
    given_up: str | None,
) -> Effects:
    # An adapter of another package may report what no reader of the log knows.
    outcome = _OUTCOMES.get(str(data.get("status", "completed")), "failed")
    final = data.get("final_text")
    text = final if isinstance(final, str) else None
    if outcome == "interrupted" and given_up is not None:
        outcome, text, state.last_error = "failed", given_up, given_up
    return (*state.complete(outcome, text, source, record.status), BeginTurn())


def _system(kind: str, data: dict[str, Any], source: str) -> AppendEvent:
    return AppendEvent("system", {"kind": kind, **data}, source)


def usage(record: Session, data: dict[str, Any]) -> Effects:
    """Add what the agent reports to have used; the tree gets the sum of the costs.

    Args:
        record: Of the session.
        data: `cost_usd`, `input_tokens` (or `tokens`) and `output_tokens`, all optional; with
            `measured` the cost comes from the configured prices.
    """
    given = data.get("cost_usd")
    paid = None if given is None else float(given)
    cost = record.cost_usd + (paid or 0.0)
    read = int(data.get("input_tokens") or data.get("tokens") or 0)
    written = int(data.get("output_tokens") or 0)
    measured = data.get("measured") is True
    used = Used(
        input_tokens=read or None,
        output_tokens=written or None,
        measured_usd=paid if measured else None,
        reported_usd=None if measured else paid,
    )
    return (
        ChangeRecord(
            {
                "cost_usd": cost,
                "input_tokens": record.input_tokens + read,
                "output_tokens": record.output_tokens + written,
            }
        ),
        *(() if used == Used() else (CountUsage(used),)),
        NotifyTree(AgentCost(session_id=record.id, cost_usd=cost)),
    )


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
