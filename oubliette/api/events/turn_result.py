"""Result of a turn: its events, folded into an answer, or into the error that it ended with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.api.errors import SessionFailed, TurnInterrupted
from oubliette.api.events.usage import NOTHING_USED, Usage, usage_from
from oubliette.contract.events import (
    Completion,
    Delta,
    ErrorEvent,
    Message,
    Status,
    SystemEvent,
    ToolCall,
    ToolResult,
)
from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.contract.events import Event

_FINISHED: Final = {"completed", "failed", "timed_out"}
"""Statuses of sessions that have no agent any more."""


class ToolCallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a turn, with its result."""

    call_id: str
    """Names the call within the session."""
    tool: str
    """Name of the tool as the agent uses it."""
    arguments: dict[str, Any]
    """Arguments of the call."""
    result: Any = None
    """Value of the tool; None of a call without one. See `plain_result`."""
    is_error: bool = False
    """Whether the call failed; so has one without a result."""


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an agent to one message."""

    text: str
    """The agent's last message of the turn."""
    session_id: str
    """Id of the session."""
    turn: int
    """Number of the turn, from 1."""
    status: str
    """`completed`; of a part of a turn, `running`, `interrupted` or `failed`."""
    usage: Usage = NOTHING_USED
    """Usage of the model, as far as the agent reports it."""
    tool_calls: tuple[ToolCallRecord, ...] = ()
    """Tool calls in the order in which they began."""


class TurnFold:
    """Events of one turn, taken one by one.

    Events of other turns are ignored. Without a number of the turn, the first event that has one
    determines it.
    """

    __slots__ = (
        "_calls",
        "_completion",
        "_deltas",
        "_ended",
        "_error",
        "_not_run",
        "_session_id",
        "_text",
        "_turn",
        "_usage",
    )

    def __init__(self, turn: int | None = None, session_id: str = "") -> None:
        """Begin without events of turn number `turn`."""
        self._turn = turn
        self._session_id: str = session_id
        self._text = ""
        self._deltas: list[str] = []
        self._calls: dict[str, ToolCallRecord] = {}
        self._usage = NOTHING_USED
        self._completion: Completion | None = None
        self._not_run: ErrorEvent | None = None
        self._error = ""
        self._ended: Status | None = None

    @property
    def turn(self) -> int | None:
        """Number of the turn; None before the first event of one."""
        return self._turn

    @property
    def done(self) -> bool:
        """Whether no event will change the result."""
        return bool(self._completion or self._not_run or self._ended)

    def add(self, event: Event) -> bool:
        """Take an event; return whether it belongs to the turn."""
        if self._session_id and event.session_id != self._session_id:
            return False
        if event.turn is None:
            if isinstance(event, Status) and event.status in _FINISHED and not self.done:
                self._ended = event
            return False
        if self._turn is None:
            self._turn = event.turn
        if event.turn != self._turn:
            return False
        self._session_id = self._session_id or event.session_id
        self._take(event)
        return True

    def _take(self, event: Event) -> None:
        match event:
            case Delta(text=text):
                self._deltas.append(text)
            case Message(text=text):
                self._text = text
                self._deltas.clear()
            case ToolCall(call_id=call_id, tool=tool, arguments=arguments):
                self._calls[call_id] = ToolCallRecord(
                    call_id=call_id, tool=tool, arguments=arguments, is_error=True
                )
            case ToolResult():
                self._take_result(event)
            case SystemEvent(kind="usage", data=data):
                self._usage += usage_from(data)
            case ErrorEvent(kind="not_run"):
                self._not_run = event
            case ErrorEvent(message=message):
                self._error = message
            case Completion():
                self._completion = event
            case Status(status=status) if status in _FINISHED and not self.done:
                self._ended = event
            case _:
                pass

    def _take_result(self, event: ToolResult) -> None:
        call = self._calls.get(event.call_id)
        self._calls[event.call_id] = ToolCallRecord(
            call_id=event.call_id,
            tool=event.tool or (call.tool if call is not None else ""),
            arguments=call.arguments if call is not None else {},
            result=plain_result(event.result),
            is_error=event.is_error,
        )

    def so_far(self) -> TurnResult:
        """Return the result so far, `running` before the end. A failed turn raises nothing."""
        ended = self._completion
        text = "".join(self._deltas) or self._text
        if ended is not None and ended.status == "completed" and ended.final_text:
            text = ended.final_text
        status = "running" if ended is None else ended.status
        return TurnResult(
            text=text,
            session_id=self._session_id,
            turn=self._turn or 0,
            status="failed" if ended is None and self.done else status,
            usage=self._usage,
            tool_calls=tuple(self._calls.values()),
        )

    def result(self) -> TurnResult:
        """Return the result of the turn.

        Raises:
            SessionFailed: the turn failed, or its session finished before its end.
            TurnInterrupted: the turn was interrupted.
            Unavailable: the turn has not ended: more events are needed.
        """
        ended = self._completion
        if ended is not None and ended.status == "completed":
            return self.so_far()
        named = f"turn {self._turn} of {self._session_id}"
        if ended is not None and ended.status == "interrupted":
            raise TurnInterrupted(
                f"{named} was interrupted",
                text=self.so_far().text,
                session_id=self._session_id,
                turn=self._turn,
            )
        if not self.done:
            raise Unavailable(f"{named} has not ended", hint="wait for its completion event")
        reason = self._reason()
        raise SessionFailed(
            f"{named} failed: {reason}",
            reason=reason,
            session_id=self._session_id,
            turn=self._turn,
        )

    def _reason(self) -> str:
        if self._completion is not None:
            final = self._completion.final_text
            # Some agents end a failed turn with their last message, after an error that explains.
            if self._error and final == self._text:
                return self._error
            return final or self._completion.status
        if self._not_run is not None:
            return self._not_run.message
        if self._ended is not None:
            return self._ended.reason or f"the session has finished ({self._ended.status})"
        return "the reason is unknown"


def plain_result(value: Any) -> Any:
    """Return the value of a tool, out of the form of an MCP result if an agent reports that.

    It is the structured content, else the text, else, with contents of other kinds, the whole.
    A text stays a text, also one that is JSON: "2" may stand for the number or for the text.
    """
    if not isinstance(value, dict):
        return value
    whole = cast("dict[str, Any]", value)
    content = whole.get("content")
    if not isinstance(content, list):
        return whole
    structured = whole.get("structuredContent")
    if isinstance(structured, dict):
        return cast("dict[str, Any]", structured)
    texts: list[str] = []
    for each in cast("list[Any]", content):
        part = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            return whole
        texts.append(text)
    return "\n".join(texts)


def result_of(events: Iterable[Event], turn: int | None = None) -> TurnResult:
    """Return the result of a turn; None is the first turn of the events.

    Raises:
        SessionFailed: the turn failed, or its session finished before its end.
        TurnInterrupted: the turn was interrupted.
        Unavailable: the events do not contain the end of the turn.
    """
    fold = TurnFold(turn)
    for event in events:
        fold.add(event)
    return fold.result()
