"""Router of the requests that a session's agent sends over its link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import msgspec

from oubliette import ids
from oubliette.actors.agent_requests.caller_tools import (
    CallerToolCalls,
    OpenCall,
    PendingRpc,
    find_tool,
    new_request_id,
    outcome_error,
    request_data,
)
from oubliette.actors.agent_requests.child_sessions import MAX_CALL_ID, ChildCalls
from oubliette.actors.agent_requests.params import (
    OutcomeError,
    base_params,
    known_params,
    optional_text,
    rpc_error,
    text_param,
)
from oubliette.actors.agent_requests.session_events import session_events
from oubliette.actors.agent_requests.session_map import MapCalls
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallIds, ReleaseCall, ReserveCall
from oubliette.actors.session.caller_request import CallerRequestActor
from oubliette.actors.session.messages import (
    CallReserved,
    LinkAnswered,
    LinkReady,
    LinkReply,
    LinkRequest,
    RequestOver,
    RequestSettled,
    RootCaller,
)
from oubliette.actors.session.ports import AgentPort
from oubliette.actors.session.tool_listing import ProvidedTools
from oubliette.actors.session.waits import Wait
from oubliette.errors import InvalidParameter, NotFound, OublietteError
from oubliette.failpoints import failpoint
from oubliette.kit import ActorDead
from oubliette.kit.retry import ask_with_retry
from oubliette.records import CallerRequest, CallerTool, Session
from oubliette.runtime.store.operations import PutCallerRequest, SettleCallerRequest
from oubliette.tool_params.session_tools import EventsParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from oubliette.actors.context import AgentTools
    from oubliette.actors.messages import AnswerCallerTool
    from oubliette.actors.session.messages import MapRoom
    from oubliette.actors.session.recovery import StoredSession
    from oubliette.actors.session.silence import Silence
    from oubliette.kit import Actor, Deferred, Down, Message, Ref

Outcome = Literal["result", "tool_error", "timeout", "caller_gone", "cancelled"]


class RoutedSession(AgentPort, Protocol):
    """Session that starts an actor for each call of a caller's tool."""

    name: str
    ref: Ref

    def spawn(
        self,
        cls: type[Actor],
        *args: Any,
        name: str | None = None,
        shutdown: float | None = None,
        **kwargs: Any,
    ) -> Ref:
        """Start an actor that ends with the session."""
        ...

    def ask_to_self(
        self,
        ref: Ref,
        message: Message,
        ok: Callable[[Any], Message],
        err: Callable[[BaseException], Message],
        timeout: float = ...,
    ) -> None:
        """Send the session a message with the answer of another actor."""
        ...

    def watch(self, ref: Ref) -> None:
        """Request a `Down` to the session when the actor of `ref` ends."""
        ...

    def unwatch(self, ref: Ref) -> None:
        """Cancel a watch."""
        ...


class AgentRequestRouter:
    """The part of a SessionActor that serves its agent's client; it has the same lifetime."""

    def __init__(self, session: RoutedSession, stored: StoredSession, silence: Silence) -> None:
        self._session = session
        self._silence = silence
        self._context = session.context
        self.tools = ProvidedTools(session)
        self.children = ChildCalls(self._session, self._reply)
        self._maps = MapCalls(self._session, self.children, self._reply)
        self._calls = CallerToolCalls()
        self._answering = 0
        self.ancestry = list(stored.ancestry)
        """Session ids from the root down to this one."""
        self._root_caller = (stored.root.principal, stored.root.caller_id)

    @property
    def _record(self) -> Session:
        return self._session.writer.record

    # ------------------------------------------------------------------ life

    def recover(self, stored: StoredSession) -> None:
        """Recover the requests that an earlier actor left open."""
        for request in stored.requests:
            if request.outcome is None:
                call = OpenCall(self._with_time_again(request))
                self._calls.add(call)
                self._watch_over(call, adopted=True)
            elif request.call_id is not None and request.settled_at is not None:
                self._calls.remember(request.call_id, request.id, request.settled_at)
        if self._calls.open:
            counted = CallReserved(request_id="")  # of none: nothing follows from it
            self._session.pipe_to_self(
                ask_with_retry(lambda: self._limiter.ask(self._open_ids())),
                lambda _: counted,
                lambda _: counted,
            )

    def _with_time_again(self, request: CallerRequest) -> CallerRequest:
        """Return a call with its full time: its caller could not answer while no server ran."""
        timeout = self._context.config.sessions.caller_tool_timeout_seconds
        deadline = max(request.deadline, self._context.clock.time() + timeout)
        return msgspec.structs.replace(request, deadline=deadline)

    def cancel_all(self, reason: str) -> None:
        """Settle every open call as cancelled, answer every waiting one."""
        for request_id in list(self._calls.open):
            self._settle(request_id, "cancelled", error=f"cancelled: {reason}")
        for request_id in list(self._calls.reserving):
            self._withdraw(request_id, outcome_error("cancelled", f"cancelled: {reason}"))
        self._maps.cancel_all(reason)
        self.children.cancel_all(reason)

    @property
    def busy(self) -> bool:
        """Whether the agent waits for a caller's tool, or for children."""
        return bool(self._calls.open or self._calls.reserving) or self.children.blocked

    @property
    def serves(self) -> bool:
        """Whether a request of its client waits for an answer from here."""
        if self._answering > 0 or self._calls.reserving:
            return True
        return next(self.waits(), None) is not None

    def waits(self) -> Iterator[Wait]:
        """Return the calls that the agent has open: of its caller's tools, and of children."""
        for call in self._calls.open.values():
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
        yield from self.children.waits()
        yield from self._maps.waits()

    # ------------------------------------------------------------------ connection

    def ready(self, message: LinkReady) -> None:
        """Send the tools of the agent's caller over a new connection."""
        self.tools.connected(message.link, bare=message.bare)

    def provide(
        self, caller_id: str | None, tools: tuple[CallerTool, ...] | None
    ) -> tuple[str, ...]:
        """Replace the session's tools by those of a caller; return warnings for the sender."""
        warnings = self.tools.provide(caller_id, tools)
        if warnings is not None and not self._record.parent_session_id:
            # Stored first: a session that starts now reads it there.
            self._session.writer.then(self._tell_root_caller)
        return warnings or ()

    def _tell_root_caller(self) -> None:
        record = self._record
        tree = self._session.system.lookup(f"explorations/{record.exploration_id}")
        if tree is not None and tree.is_alive():
            tree.tell(RootCaller(principal=record.principal, caller_id=record.caller_id))

    @property
    def root_caller(self) -> tuple[str, str | None]:
        """Principal and caller of the tree's root, which decides on permissions."""
        record = self._record
        if record.parent_session_id:
            return self._root_caller
        return record.principal, record.caller_id

    def root_caller_changed(self, message: RootCaller) -> None:
        """Record that another caller decides on permissions from now on."""
        self._root_caller = (message.principal, message.caller_id)

    def _reply(
        self, rpc: PendingRpc, result: Any = None, error: dict[str, Any] | None = None
    ) -> None:
        self._silence.broken(self._session.clock.monotonic())
        ref = self._session.system.lookup(rpc.link)
        if ref is not None and ref.is_alive():
            ref.tell(LinkReply(generation=rpc.generation, id=rpc.id, result=result, error=error))

    def reply_to(self, message: LinkAnswered) -> None:
        """Answer a request that a job of this actor has worked on."""
        self._answering -= 1
        rpc = PendingRpc(message.link, message.generation, message.id)
        self._reply(rpc, message.result, message.error)

    # ------------------------------------------------------------------ requests

    def request(self, message: LinkRequest) -> None:
        """Serve one request or notification of the agent's client."""
        rpc = PendingRpc(message.link, message.generation, message.id)
        params = message.params
        if message.bare:
            params = known_params(message.method, params)
        try:
            match message.method:
                case "caller_tool":
                    self._caller_tool(rpc, message.params)
                case "session_message":
                    self.children.asked(rpc, params, wait=not message.bare)
                case "session_map":
                    self._maps.asked(rpc, params)
                case "session_events":
                    asked = base_params(EventsParams, params, "session_events")
                    tree = self._record.exploration_id
                    events = session_events(self._context, tree, asked, bare=message.bare)
                    self._answer_later(rpc, events)
                case "oubliette_tools":
                    self._answer_later(rpc, self._oubliette_tools(message.params))
                case "oubliette_call_tool":
                    self._answer_later(rpc, self._oubliette_call_tool(message.params))
                case "notifications/cancelled":
                    self._cancelled(rpc, message.params)
                case "tools_listed":
                    self.tools.listed(message.params)
                case _ if message.id is not None:
                    self._reply(
                        rpc,
                        error={"code": -32601, "message": f"Method not found: {message.method}"},
                    )
                case _:
                    pass  # an unknown notification is not an error (JSON-RPC 2.0, section 4.1)
        except OublietteError as error:
            self._reply(rpc, error=rpc_error(error))

    def _answer_later(self, rpc: PendingRpc, work: Awaitable[Any]) -> None:
        self._answering += 1
        self._session.pipe_to_self(
            work,
            lambda result: _answer(rpc, result=result),
            lambda error: _answer(rpc, error=rpc_error(error)),
        )

    def _cancelled(self, rpc: PendingRpc, params: dict[str, Any]) -> None:
        """Cancel a call on the agent's request; one that was settled meanwhile is no error."""
        target = PendingRpc(rpc.link, rpc.generation, params.get("requestId"))
        call = self._calls.asked_by(target)
        if call is not None:
            call.askers.remove(target)
            if call.askers:
                return
            if call.request.id in self._calls.reserving:
                self._withdraw(call.request.id)
            else:
                self._settle(call.request.id, "cancelled", error="the agent cancelled the call")
            return
        self.children.cancelled(target)
        self._maps.cancelled(target)

    # ------------------------------------------------------------------ the caller's tools

    def _caller_tool(self, rpc: PendingRpc, params: dict[str, Any]) -> None:
        name = text_param(params, "tool", 256)
        call_id = optional_text(params, "call_id", MAX_CALL_ID)
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidParameter("arguments: must be an object", field="arguments")
        if call_id is not None and (known := self._calls.request_of(call_id)) is not None:
            self._join(rpc, known)
            return
        record = self._record
        tool = find_tool(record, name)
        if record.caller_id is None or tool is None:
            raise NotFound(f"no caller provides a tool {ids.shown(name)} to this session")
        if self._session.stopping:
            raise NotFound("the session is ending")
        now = self._context.clock.time()
        timeout = self._context.config.sessions.caller_tool_timeout_seconds
        request = CallerRequest(
            id=new_request_id(),
            session_id=record.id,
            principal=record.principal,
            caller_id=record.caller_id,
            tool=tool.name,
            arguments=cast("dict[str, Any]", arguments),
            created_at=now,
            deadline=now + timeout,
            event_index=-1,
            call_id=call_id,
            durable=tool.durable,
        )
        self._calls.reserve(OpenCall(request, askers=[rpc]))
        self._session.ask_to_self(
            self._limiter,
            self._reservation(request.id),
            lambda _: CallReserved(request_id=request.id),
            lambda error: _refused(request.id, error),
        )

    @property
    def _limiter(self) -> Ref:
        return self._session.system.ref(OPEN_CALLS)

    def _reservation(self, request_id: str) -> ReserveCall:
        session = self._session.ref
        return ReserveCall(
            principal=self._record.principal,
            session=session.name,
            incarnation=session.incarnation,
            request_id=request_id,
        )

    def _open_ids(self) -> OpenCallIds:
        session = self._session.ref
        return OpenCallIds(
            principal=self._record.principal,
            session=session.name,
            incarnation=session.incarnation,
            request_ids=(*self._calls.open, *self._calls.reserving),
        )

    def map_room_known(self, message: MapRoom) -> None:
        """Start the parts of a `session_map`."""
        self._maps.room_known(message)

    def report_calls(self) -> None:
        """Send the owner of the limit the calls that are open here."""
        self._limiter.tell(self._open_ids())

    def reserved(self, message: CallReserved) -> None:
        """Write a request to the log, as its principal may have one more, or refuse it."""
        request_id = message.request_id
        if request_id not in self._calls.reserving:
            return
        if message.again:
            reservation = self._reservation(request_id)
            self._session.pipe_to_self(
                ask_with_retry(lambda: self._limiter.ask(reservation)),
                lambda _: CallReserved(request_id=request_id),
                lambda error: CallReserved(request_id=request_id, error=rpc_error(error)),
            )
            return
        if message.error is not None:
            self._withdraw(request_id, message.error)
            return
        call = self._calls.reserving.pop(request_id)
        event = self._session.writer.append(
            "caller_tool_request", request_data(call.request, self.ancestry)
        )
        call.request = msgspec.structs.replace(call.request, event_index=event.index)
        self._session.writer.put(PutCallerRequest(call.request))
        self._calls.add(call)
        self._watch_over(call, adopted=False)
        failpoint("session.caller_request")

    def _withdraw(self, request_id: str, error: dict[str, Any] | None = None) -> None:
        """Drop a call that is not in the log; those who asked for it get `error`."""
        call = self._calls.unreserve(request_id)
        self._release(request_id)
        for rpc in call.askers if call is not None else ():
            self._reply(rpc, error=error)

    def _release(self, request_id: str) -> None:
        self._limiter.tell(ReleaseCall(session=self._session.name, request_id=request_id))

    def _watch_over(self, call: OpenCall, *, adopted: bool) -> None:
        session = self._session
        ref = session.spawn(
            CallerRequestActor,
            self._context,
            session.ref,
            call.request,
            adopted=adopted,
            name=f"{session.name}/req/{call.request.id}",
        )
        session.watch(ref)

    def _join(self, rpc: PendingRpc, request_id: str) -> None:
        call = self._calls.joinable(request_id)
        if call is not None:
            call.askers.append(rpc)
            return

        async def read() -> Any:
            request = await self._context.reader.request(request_id)
            if request is None or request.outcome is None:
                raise NotFound("this call is not known any more")
            if request.outcome != "result":
                raise OutcomeError(request.outcome, request.error)
            return request.result

        self._answer_later(rpc, read())

    def answered(self, message: AnswerCallerTool) -> bool | None:
        """Accept a caller's answer: False if it is not open here or not theirs, else deferred."""
        call = self._calls.open.get(message.request_id)
        if call is None or call.answered or call.request.principal != message.principal:
            return False
        # Sent to itself, not done here: an error in a `tell` fails the session, which recovers from
        # the store; an error in this ask would leave it with a call that is settled by half.
        self._session.ref.tell(
            RequestSettled(
                request_id=message.request_id,
                outcome="result" if message.error is None else "tool_error",
                result=message.result if message.error is None else None,
                error=message.error,
            )
        )
        call.answered = True
        answer: Deferred = self._session.defer()
        call.answers.append(answer)
        return None

    def settled(self, message: RequestSettled) -> None:
        """Settle a request, at the notice of its actor or at its answer."""
        outcome = cast("Outcome", message.outcome)
        self._settle(message.request_id, outcome, result=message.result, error=message.error)

    def request_down(self, message: Down) -> None:
        """Settle the call of an actor that ended without a notice, once."""
        request_id = message.name.rpartition("/req/")[2]
        self._settle(request_id, "cancelled", error=message.error or "the request was dropped")

    def _settle(
        self, request_id: str, outcome: Outcome, *, result: Any = None, error: str | None = None
    ) -> None:
        now = self._context.clock.time()
        call = self._calls.settle(request_id, now)
        if call is None:
            return
        self._release(request_id)
        actor = self._session.system.lookup(f"{self._session.name}/req/{request_id}")
        if actor is not None and actor.is_alive():
            self._session.unwatch(actor)  # its Down would contain nothing new
            actor.tell(RequestOver())
        writer = self._session.writer
        writer.append(
            "caller_tool_settled",
            {
                "request_id": request_id,
                "tool": call.request.tool,
                "outcome": outcome,
                "error": error,
                "caller_id": call.request.caller_id,
            },
            # the caller that was asked, even if another one provides tools by now
            caller_id=call.request.caller_id,
        )
        writer.put(
            SettleCallerRequest(
                id=request_id,
                outcome=outcome,
                settled_at=now,
                result=result,
                error=error,
            )
        )

        def tell() -> None:
            failpoint("session.request_settled")
            self._calls.stored(request_id)
            for rpc in call.askers:
                if outcome == "result":
                    self._reply(rpc, result=result)
                else:
                    self._reply(rpc, error=outcome_error(outcome, error))
            for answer in call.answers:
                answer.set(outcome in {"result", "tool_error"})

        writer.then(tell)

    # ------------------------------------------------------------------ Oubliette's own tools

    async def _oubliette_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        tools = self._agent_tools()
        key = text_param(params, "api_key", 512)
        return {"tools": await tools.tools(key, self._record.id)}

    async def _oubliette_call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        tools = self._agent_tools()
        key = text_param(params, "api_key", 512)
        tool = text_param(params, "tool", 256)
        arguments = params.get("arguments")
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise InvalidParameter("arguments: must be an object", field="arguments")
        return await tools.call(key, self._record.id, tool, cast("dict[str, Any]", arguments))

    def _agent_tools(self) -> AgentTools:
        if self._context.agent_tools is None:
            raise NotFound("this server offers no tools of its own to agents")
        return self._context.agent_tools


def _refused(request_id: str, error: BaseException) -> CallReserved:
    again = isinstance(error, ActorDead)
    return CallReserved(request_id=request_id, error=rpc_error(error), again=again)


def _answer(
    rpc: PendingRpc, result: Any = None, error: dict[str, Any] | None = None
) -> LinkAnswered:
    return LinkAnswered(
        link=rpc.link, generation=rpc.generation, id=rpc.id, result=result, error=error
    )
