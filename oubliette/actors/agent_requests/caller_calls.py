"""Calls of caller tools by one session's agent, without I/O.

Each input has a method, which returns the effects that the actor applies in order. `now` is a wall
second in all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette import ids
from oubliette.actors.agent_requests.call_progress import ProgressDue
from oubliette.actors.agent_requests.caller_tools import (
    MAX_CALL_ID,
    REPLACED,
    CallerToolCalls,
    OpenCall,
    find_tool,
    joined,
    new_request_id,
    outcome_error,
    progress_data,
    request_data,
)
from oubliette.actors.agent_requests.params import optional_text, text_param
from oubliette.actors.session.effects import (
    AfterCommit,
    AnswerAsk,
    AppendEvent,
    Effects,
    EndCallWatch,
    EndRequest,
    OutcomeStored,
    PassFailpoint,
    ProgressStored,
    ReadOutcome,
    ReleaseOpenCall,
    ReplyToClient,
    ReportOpenCalls,
    ReportProgress,
    ReserveOpenCall,
    SendToSelf,
    StartTimer,
    Store,
    WatchCall,
)
from oubliette.actors.session.messages import RequestSettled
from oubliette.actors.session.waits import Wait
from oubliette.errors import InvalidParameter, NotFound
from oubliette.records import CallerRequest
from oubliette.runtime.store.operations import PutCallerRequest, SettleCallerRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oubliette.actors.agent_requests.caller_tools import PendingRpc
    from oubliette.actors.agent_requests.params import RequestInput
    from oubliette.actors.messages import AnswerCallerTool, Outcome, ReportCallProgress
    from oubliette.actors.session.messages import CallCounted
    from oubliette.config.schema import Config
    from oubliette.kit import Deferred

HELD: Final = "nothing can be stored now, the call waits for it"


class CallerCalls:
    """Open calls of one session's agent; same lifetime as its actor."""

    def __init__(self, config: Config) -> None:
        self._timeout = config.sessions.caller_tool_timeout_seconds
        self._calls = CallerToolCalls()

    @property
    def open(self) -> bool:
        """Whether the agent waits for a caller's tool."""
        return any(call.state != "settling" for call in self._calls)

    @property
    def reserving(self) -> bool:
        """Whether a call waits to be counted for the limit of its principal."""
        return bool(self._calls.reserving)

    def waits(self) -> Iterator[Wait]:
        for call in self._calls.unsettled:
            request = call.request
            yield Wait(
                kind="caller_tool",
                what=f"{request.tool}, a tool of the caller {request.caller_id}",
                since=request.created_at,
                until=request.deadline,
                detail=f"caller_tool_response answers request {request.id}"
                + (", even when the caller was away" if request.durable else ""),
                caller=(request.principal, request.caller_id),
            )

    # ------------------------------------------------------------------ recovery

    def recover(self, stored: Iterable[CallerRequest], now: float) -> Effects:
        """Recover the calls that an earlier actor left open, and those settled lately."""
        effects: Effects = ()
        for request in stored:
            if request.outcome is None:
                # Its full time again: its caller could not answer while no server ran.
                deadline = max(request.deadline, now + self._timeout)
                adopted = msgspec.structs.replace(request, deadline=deadline)
                self._calls.add(OpenCall(adopted, state="open"))
                effects += (WatchCall(adopted, adopted=True),)
            elif request.call_id is not None and request.settled_at is not None:
                self._calls.remember(request.call_id, request.id, request.settled_at)
        return (*effects, *self.report()) if self._calls.unsettled else effects

    def report(self) -> Effects:
        """Send the owner of the limit the calls that are open here, or wait for it."""
        unsettled = tuple(call.request.id for call in self._calls.unsettled)
        reserving = tuple(call.request.id for call in self._calls.reserving)
        return (ReportOpenCalls(unsettled, reserving),)

    # ------------------------------------------------------------------ calls

    def asked(self, rpc: PendingRpc, params: dict[str, Any], given: RequestInput) -> Effects:
        """Reserve a call of the session's caller, or join the one of this `call_id`.

        Raises:
            InvalidParameter: names the field.
            NotFound: no caller provides this tool, or the session is ending.
        """
        name = text_param(params, "tool", 256)
        call_id = optional_text(params, "call_id", MAX_CALL_ID)
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidParameter("arguments: must be an object", field="arguments")
        if call_id is not None and (known := self._calls.request_of(call_id)) is not None:
            return self._join(rpc, known)
        record = given.record
        tool = find_tool(record, name)
        if record.caller_id is None or tool is None:
            raise NotFound(f"no caller provides a tool {ids.shown(name)} to this session")
        if given.stopping:
            raise NotFound("the session is ending")
        request = CallerRequest(
            id=new_request_id(),
            session_id=record.id,
            principal=record.principal,
            caller_id=record.caller_id,
            tool=tool.name,
            arguments=cast("dict[str, Any]", arguments),
            created_at=given.now,
            deadline=given.now + self._timeout,
            event_index=-1,
            call_id=call_id,
            durable=tool.durable,
        )
        self._calls.add(OpenCall(request, askers=[rpc]))
        return (ReserveOpenCall(request.id),)

    def reserved(self, message: CallCounted, event_index: int, ancestry: list[str]) -> Effects:
        """Write a request to the log, as its principal may have one more, or refuse it.

        Args:
            message: The answer of the owner of the limit.
            event_index: Index of the next event in the session's log.
            ancestry: Session ids from the root of the tree down to this one.
        """
        request_id = message.request_id
        call = self._calls.find(request_id)
        if call is None or call.state != "reserving":
            return ()
        if message.again:
            return (ReserveOpenCall(request_id, again=True),)
        if message.error is not None:
            return self._withdraw(request_id, message.error)
        self._calls.take(request_id, "reserved")
        call.request = request = msgspec.structs.replace(call.request, event_index=event_index)
        return (
            AppendEvent("caller_tool_request", request_data(request, ancestry)),
            Store(PutCallerRequest(request)),
            WatchCall(request, adopted=False),
            PassFailpoint("session.caller_request"),
        )

    def _join(self, rpc: PendingRpc, request_id: str) -> Effects:
        call = self._calls.find(request_id)
        if call is None:
            return (ReadOutcome(rpc, request_id),)
        return tuple(ReplyToClient(each, error=REPLACED) for each in joined(call.askers, rpc))

    def _withdraw(self, request_id: str, error: dict[str, Any] | None = None) -> Effects:
        """Drop a call that is not in the log; those who asked for it get `error`."""
        call = self._calls.take(request_id, "withdrawn")
        askers = call.askers if call is not None else ()
        return (
            ReleaseOpenCall(request_id),
            *(ReplyToClient(rpc, error=error) for rpc in askers),
        )

    def cancelled(self, target: PendingRpc, now: float) -> Effects | None:
        """Cancel a call on the agent's request; None if it is not open here."""
        call = self._calls.asked_by(target)
        if call is None:
            return None
        call.askers.remove(target)
        over: Effects = (EndRequest(target),)
        if call.askers:
            return over
        if call.state == "reserving":
            return over + self._withdraw(call.request.id)
        error = "the agent cancelled the call"
        return over + self.settle(call.request.id, "cancelled", now, error=error)

    def cancel_all(self, reason: str, now: float) -> Effects:
        effects: Effects = ()
        why = f"cancelled: {reason}"
        for call in self._calls.unsettled:
            effects += self.settle(call.request.id, "cancelled", now, error=why)
        for call in self._calls.reserving:
            effects += self._withdraw(call.request.id, outcome_error("cancelled", why))
        return effects

    # ------------------------------------------------------------------ answers

    def accepts(self, message: AnswerCallerTool | ReportCallProgress) -> bool:
        """Whether this is about an open call of this principal without an answer yet."""
        call = self._calls.find(message.request_id)
        if call is None or call.state != "open":
            return False
        return call.request.principal == message.principal

    def answered(self, message: AnswerCallerTool, answer: Deferred) -> Effects:
        """Take a caller's answer that is accepted; `answer` is set when it is in the log."""
        self._calls[message.request_id].answers.append(answer)
        self._calls.take(message.request_id, "answered")
        # Sent to itself, not done here: an error in a `tell` fails the session, which recovers from
        # the store; an error in this ask would leave it with a call that is settled by half.
        settled = RequestSettled(
            request_id=message.request_id,
            outcome="result" if message.error is None else "tool_error",
            result=message.result if message.error is None else None,
            error=message.error,
        )
        return (SendToSelf(settled),)

    def progressed(self, message: ReportCallProgress, now: float) -> Effects:
        """Take a caller's progress with a call, which is accepted."""
        call = self._calls[message.request_id]
        wait = call.progress.wait(message.message, now)
        if wait is None:
            return ()
        if wait > 0:
            return (StartTimer(wait, ProgressDue(request_id=message.request_id)),)
        return _passed_on(call, message.message)

    def progress_due(self, message: ProgressDue, now: float) -> Effects:
        """Pass on the progress that was held, unless the call has its answer."""
        call = self._calls.find(message.request_id)
        if call is None or call.state != "open":
            return ()
        held = call.progress.due(now)
        return () if held is None else _passed_on(call, held)

    def progress_stored(self, stored: ProgressStored) -> Effects:
        """Report progress, which is in the log, to all who wait for the call."""
        call = self._calls.find(stored.request_id)
        if call is None or not call.unsettled:
            return ()
        return tuple(ReportProgress(rpc, stored.message) for rpc in call.askers)

    def held(self, request_id: str) -> Effects:
        """Report to all who wait for a call that it waits for the storage, without an event."""
        call = self._calls.find(request_id)
        if call is None or not call.unsettled:
            return ()
        return tuple(ReportProgress(rpc, HELD) for rpc in call.askers)

    def settle(
        self,
        request_id: str,
        outcome: Outcome,
        now: float,
        *,
        result: Any = None,
        error: str | None = None,
    ) -> Effects:
        """Settle a call, once; nothing happens if its state does not allow it."""
        call = self._calls.take(request_id, outcome, now)
        if call is None:
            return ()
        shown = {
            "request_id": request_id,
            "tool": call.request.tool,
            "outcome": outcome,
            "error": error,
            "caller_id": call.request.caller_id,
        }
        settled = SettleCallerRequest(
            id=request_id, outcome=outcome, settled_at=now, result=result, error=error
        )
        return (
            ReleaseOpenCall(request_id),
            EndCallWatch(request_id),
            # to the caller that was asked, even if another one provides tools by now
            AppendEvent("caller_tool_settled", shown, None, call.request.caller_id),
            Store(settled),
            AfterCommit(OutcomeStored(request_id, outcome, result, error)),
        )

    def stored(self, settled: OutcomeStored) -> Effects:
        """Answer all who wait for a call, whose outcome is in the log now."""
        call = self._calls.take(settled.request_id, "stored")
        if call is None:
            return ()
        error = None
        if settled.outcome != "result":
            error = outcome_error(settled.outcome, settled.error)
        result = settled.result if error is None else None
        received = settled.outcome in {"result", "tool_error"}
        return (
            *(ReplyToClient(rpc, result, error) for rpc in call.askers),
            *(AnswerAsk(answer, received) for answer in call.answers),
        )


def _passed_on(call: OpenCall, message: str) -> Effects:
    request = call.request
    return (
        AppendEvent(
            "caller_tool_progress", progress_data(request, message), None, request.caller_id
        ),
        AfterCommit(ProgressStored(request.id, message)),
    )
