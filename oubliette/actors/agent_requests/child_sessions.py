"""Children that one session's agent spawns and waits for, without I/O.

A `session_message` is named by its `call_id`, as a caller tool call is: asked again after a
reconnect or a restart, it joins the turn that it has started, or gets that turn's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oubliette.actors.agent_requests.caller_tools import (
    MAX_CALL_ID,
    REPLACED,
    joined,
    new_request_id,
    outcome_error,
)
from oubliette.actors.agent_requests.params import base_params, optional_text
from oubliette.actors.session.effects import (
    Effects,
    EndRequest,
    NotifyTree,
    PassFailpoint,
    ReplyToClient,
    SpawnChild,
)
from oubliette.actors.session.messages import AgentBlocked, ChildSpawned, ChildTurnEnded
from oubliette.actors.session.waits import Wait
from oubliette.contract.agent_tools import AgentSessionMessage

if TYPE_CHECKING:
    from oubliette.actors.agent_requests.caller_tools import PendingRpc

Receive = Callable[["dict[str, Any] | None", "dict[str, Any] | None", float], Effects]
"""Returns the effects of the result of a call, or of its JSON-RPC error, at a wall second."""


@dataclass
class ChildCall:
    """A `session_message` of the agent that is not answered yet."""

    askers: list[PendingRpc]
    wait: bool
    receive: Receive | None = None
    """Receives the answer besides the askers."""
    session_id: str = ""
    workspace: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Workspace and branch, if it was given those of its own."""
    spawned: bool = False
    ended: ChildTurnEnded | None = None
    accepted: bool = False
    since: float = 0.0
    """Wall second at which the agent asked."""


class ChildCalls:
    """Open `session_message` calls by call id; same lifetime as its SessionActor.

    Each input has a method, which returns the effects that the actor applies in order. `now` is a
    wall second in all of them.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._open: dict[str, ChildCall] = {}

    def cancel_all(self, reason: str, now: float) -> Effects:
        """Answer every waiting call; the children themselves run on."""
        calls, self._open = self._open, {}
        effects: Effects = ()
        for call in calls.values():
            error = outcome_error("cancelled", f"cancelled: {reason}")
            effects += _answers(call, None, error, now)
        return effects

    def waits(self) -> Iterator[Wait]:
        for call in self._open.values():
            if call.wait:
                known = call.session_id or None
                yield Wait(
                    kind="child",
                    what=f"its child {known}" if known else "a child to be started",
                    since=call.since,
                    session_id=known,
                )

    def cancelled(self, target: PendingRpc) -> Effects:
        """Forget a call that the agent cancelled; the child runs on."""
        effects: Effects = ()
        for call_id, call in list(self._open.items()):
            if target in call.askers:
                call.askers.remove(target)
                effects += (EndRequest(target),)
                if not call.askers:
                    del self._open[call_id]
                    effects += (self._waiting(),)
        return effects

    def asked(
        self, rpc: PendingRpc, params: dict[str, Any], now: float, *, wait: bool = True
    ) -> Effects:
        """`session_message`: spawn a child, or send one a message.

        `wait`: the default if the parameters do not define whether the turn's end is waited for.
        """
        asked = base_params(AgentSessionMessage, {"wait": wait, **params}, "session_message")
        call_id = optional_text(params, "call_id", MAX_CALL_ID) or new_request_id()
        known = self._open.get(call_id)
        if known is not None:
            return tuple(ReplyToClient(each, error=REPLACED) for each in joined(known.askers, rpc))
        branch = asked.workspace == "branch"
        spawn = SpawnChild(
            call_id, asked.message, asked.session_id, own_workspace=False, branch=branch
        )
        return self._begin(ChildCall([rpc], asked.wait, since=now), spawn)

    def begin(self, spawn: SpawnChild, receive: Receive, now: float) -> Effects:
        """Start a call that no link waits for: its answer goes to `receive` (`session_map`)."""
        return self._begin(ChildCall([], wait=True, receive=receive, since=now), spawn)

    def drop(self, call_id: str) -> Effects:
        """Forget a call that is not waited for any more; the child runs on."""
        return () if self._open.pop(call_id, None) is None else (self._waiting(),)

    def _begin(self, call: ChildCall, spawn: SpawnChild) -> Effects:
        self._open[spawn.call_id] = call
        return (self._waiting(), spawn) if call.wait else (spawn,)

    def spawned(self, message: ChildSpawned, now: float) -> Effects:
        """Record that the child's turn was accepted or refused; it may even have ended already."""
        call = self._open.get(message.call_id)
        if call is None:
            return ()
        if message.error is not None:
            return self._answer(message.call_id, now, error=message.error)
        call.session_id = message.session_id
        if message.workspace_id is not None:
            call.workspace = {"workspace_id": message.workspace_id, "branch": message.branch}
        call.spawned = message.spawned
        call.accepted = True
        passed = PassFailpoint("session.child_spawned")
        if not call.wait:
            return (passed, *self._answer(message.call_id, now))
        if message.done:
            outcome = message.outcome or "failed"
            return (passed, *self._end_with(message.call_id, outcome, message.result, now))
        if call.ended is not None:
            ended = call.ended
            return (passed, *self._end_with(message.call_id, ended.outcome, ended.result, now))
        return (passed,)

    def turn_ended(self, message: ChildTurnEnded, now: float) -> Effects:
        """Answer a call of our agent whose turn is over."""
        call = self._open.get(message.call_id)
        if call is None:
            return ()
        if not call.accepted:
            call.ended = message
            return ()
        return self._end_with(message.call_id, message.outcome, message.result, now)

    def _end_with(self, call_id: str, outcome: str, result: str | None, now: float) -> Effects:
        if outcome == "completed":
            return self._answer(call_id, now, result=result or "")
        call = self._open[call_id]
        message = f"the turn of child {call.session_id} {outcome}: {result or 'no reason is known'}"
        error = outcome_error(f"child_{outcome}", message)
        error["data"] |= {"session_id": call.session_id, **call.workspace}
        return self._answer(call_id, now, error=error)

    def _answer(
        self,
        call_id: str,
        now: float,
        *,
        result: str | None = None,
        error: dict[str, Any] | None = None,
    ) -> Effects:
        call = self._open.pop(call_id)
        waiting: Effects = (self._waiting(),) if call.wait else ()
        answer = {
            "session_id": call.session_id,
            "result": result,
            "spawned": call.spawned,
            **call.workspace,
        }
        return waiting + _answers(call, None if error else answer, error, now)

    @property
    def blocked(self) -> bool:
        return any(call.wait for call in self._open.values())

    def _waiting(self) -> NotifyTree:
        return NotifyTree(AgentBlocked(session_id=self._session_id, waits=self.blocked))


def _answers(
    call: ChildCall, result: dict[str, Any] | None, error: dict[str, Any] | None, now: float
) -> Effects:
    effects: Effects = tuple(ReplyToClient(rpc, result, error) for rpc in call.askers)
    return effects if call.receive is None else effects + call.receive(result, error, now)
