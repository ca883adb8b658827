"""Router of the requests that a session's agent sends over its link, without I/O.

Each input has a method, which returns the effects that the actor applies in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.actors.agent_requests.caller_calls import CallerCalls
from oubliette.actors.agent_requests.caller_tools import PendingRpc
from oubliette.actors.agent_requests.child_sessions import ChildCalls
from oubliette.actors.agent_requests.params import known_params, rpc_error
from oubliette.actors.agent_requests.session_map import MapCalls
from oubliette.actors.agent_requests.tool_listing import ProvidedTools
from oubliette.actors.session.effects import (
    AfterCommit,
    Effects,
    EndRequest,
    NotifyRootCaller,
    NotifyTree,
    ReadOutcome,
    ReplyToClient,
    ServeRequest,
)
from oubliette.actors.session.messages import RootCaller
from oubliette.actors.session.permissions import TreePlace
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.agent_requests.params import RequestInput
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import Outcome
    from oubliette.actors.session.messages import (
        CallCounted,
        LinkAnswered,
        LinkRequest,
        MapSlots,
        RequestSettled,
    )
    from oubliette.actors.session.recovery import StoredSession
    from oubliette.actors.session.waits import Wait
    from oubliette.kit import Down
    from oubliette.records import CallerTool, Session

_SERVED: Final = frozenset({"session_events", "oubliette_tools", "oubliette_call_tool"})
"""Requests that need the store or other actors, so that their answers come later."""


class AgentRequestRouter:
    """The part of a session that serves its agent's client; same lifetime as its actor."""

    def __init__(self, context: ActorContext, stored: StoredSession) -> None:
        config, record = context.config, stored.record
        runtime = context.agents.get(record.agent)
        self.tools = ProvidedTools(
            config.sessions.caller_tool_timeout_seconds,
            lists_changes=getattr(runtime, "hears_tool_changes", True),
        )
        self.calls = CallerCalls(config)
        self.children = ChildCalls(record.id)
        self._maps = MapCalls(self.children, config.trees.max_agents_at_once)
        self._answering = 0
        self._ancestry = list(stored.ancestry)
        self._root_caller = (stored.root.principal, stored.root.caller_id)

    # ------------------------------------------------------------------ life

    def recover(self, stored: StoredSession, now: float) -> Effects:
        """Recover the requests that an earlier actor left open."""
        return self.calls.recover(stored.requests, now)

    def cancel_all(self, reason: str, now: float) -> Effects:
        """Settle every open call as cancelled, answer every waiting one."""
        return (
            *self.calls.cancel_all(reason, now),
            *self._maps.cancel_all(reason),
            *self.children.cancel_all(reason, now),
        )

    @property
    def busy(self) -> bool:
        """Whether the agent waits for a caller's tool, or for children."""
        return self.calls.open or self.children.blocked

    @property
    def serves(self) -> bool:
        """Whether a request of its client waits for an answer from here."""
        if self._answering > 0 or self.calls.reserving:
            return True
        return next(self.waits(), None) is not None

    def waits(self) -> Iterator[Wait]:
        """Return the calls that the agent has open: of its caller's tools, and of children."""
        yield from self.calls.waits()
        yield from self.children.waits()
        yield from self._maps.waits()

    # ------------------------------------------------------------------ the caller

    def provide(
        self,
        caller_id: str | None,
        tools: tuple[CallerTool, ...] | None,
        record: Session,
        *,
        attached: bool,
        now: float,
    ) -> tuple[Effects, tuple[str, ...]]:
        """Replace the session's tools by those of a caller.

        Returns:
            The effects, and warnings for the sender.
        """
        provided = self.tools.provide(caller_id, tools, record, attached=attached, now=now)
        if provided is None:
            return (), ()
        effects, warnings = provided
        if not record.parent_session_id:
            # Stored first: a session that starts now reads it there.
            effects += (AfterCommit(NotifyRootCaller()),)
        return effects, warnings

    @staticmethod
    def root_caller(record: Session) -> NotifyTree:
        """Send the tree the caller of its root."""
        return NotifyTree(
            RootCaller(
                root_session_id=record.id, principal=record.principal, caller_id=record.caller_id
            )
        )

    def root_caller_changed(self, message: RootCaller) -> None:
        """Record that another caller decides on permissions from now on."""
        self._root_caller = (message.principal, message.caller_id)

    def place(self, record: Session) -> TreePlace:
        """Return the session's place in its tree, and the caller that decides on permissions."""
        if record.parent_session_id:
            return TreePlace(*self._root_caller, self._ancestry)
        return TreePlace(record.principal, record.caller_id, self._ancestry)

    # ------------------------------------------------------------------ requests

    def request(self, message: LinkRequest, given: RequestInput) -> Effects:
        """Serve one request or notification of the agent's client."""
        rpc = PendingRpc(message.link, message.generation, message.id)
        try:
            effects = self._dispatch(rpc, message, given)
        except OublietteError as error:
            return (ReplyToClient(rpc, error=rpc_error(error)),)
        # Counted until `answered_later`.
        self._answering += sum(isinstance(each, ServeRequest | ReadOutcome) for each in effects)
        return effects

    def _dispatch(self, rpc: PendingRpc, message: LinkRequest, given: RequestInput) -> Effects:
        params = message.params
        if message.bare:
            params = known_params(message.method, params)
        match message.method:
            case "caller_tool":
                return self.calls.asked(rpc, message.params, given)
            case "session_message":
                wait = not message.bare
                return self.children.asked(rpc, params, given.now, wait=wait)
            case "session_map":
                return self._maps.asked(rpc, params, given)
            case method if method in _SERVED:
                return (ServeRequest(rpc, method, params, message.bare),)
            case "notifications/cancelled":
                over = EndRequest(rpc)
                return (over, *self._cancelled(rpc, message.params, given.now))
            case "tools_listed":
                return (EndRequest(rpc), *self.tools.listed(message.params))
            case _ if message.id is not None:
                text = f"Method not found: {message.method}"
                return (ReplyToClient(rpc, error={"code": -32601, "message": text}),)
            case _:
                # An unknown notification is not an error (JSON-RPC 2.0, section 4.1).
                return (EndRequest(rpc),)

    def _cancelled(self, rpc: PendingRpc, params: dict[str, Any], now: float) -> Effects:
        """Cancel a call on the agent's request; one that was settled meanwhile is no error."""
        target = PendingRpc(rpc.link, rpc.generation, params.get("requestId"))
        effects = self.calls.cancelled(target, now)
        if effects is not None:
            return effects
        return self.children.cancelled(target) + self._maps.cancelled(target)

    def reserved(self, message: CallCounted, event_index: int) -> Effects:
        """Go on with a call of a caller tool, which may be made or is refused."""
        return self.calls.reserved(message, event_index, self._ancestry)

    def map_slots_known(self, message: MapSlots, now: float) -> Effects:
        """Start the parts of a `session_map`."""
        return self._maps.slots_known(message, now)

    def answered_later(self, message: LinkAnswered) -> Effects:
        """Answer a request that a job of the actor has worked on."""
        self._answering -= 1
        rpc = PendingRpc(message.link, message.generation, message.id)
        return (ReplyToClient(rpc, message.result, message.error),)

    def settled(self, message: RequestSettled, now: float) -> Effects:
        """Record the outcome of a caller's request: answered, timed out, or without its caller."""
        outcome = cast("Outcome", message.outcome)
        return self.calls.settle(
            message.request_id, outcome, now, result=message.result, error=message.error
        )

    def request_down(self, message: Down, now: float) -> Effects:
        """Settle the call of an actor that ended without a notice, once."""
        request_id = message.name.rpartition("/req/")[2]
        error = message.error or "the request was dropped"
        return self.calls.settle(request_id, "cancelled", now, error=error)
