"""`session_map` of an agent, without I/O: one call that fans out to children, gathered in order.

Each part is a `session_message` of its own (`child_sessions`), named `<call_id>/<number>`: asked
again after a reconnect or a restart, the map joins the turns that it has started, and gets the
results of those that have ended. A child that has answered is ended; a message to its session
resumes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.agent_requests.caller_tools import (
    MAX_CALL_ID,
    REPLACED,
    joined,
    new_request_id,
    outcome_error,
)
from oubliette.actors.agent_requests.params import base_params, optional_text
from oubliette.actors.fan_out import FanOut
from oubliette.actors.session.effects import (
    AppendEvent,
    AskMapSlots,
    Effects,
    EndChild,
    EndRequest,
    ReplyToClient,
    SpawnChild,
)
from oubliette.actors.session.waits import Wait
from oubliette.contract.agent_tools import AgentMapMessage, AgentSessionMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.agent_requests.caller_tools import PendingRpc
    from oubliette.actors.agent_requests.child_sessions import ChildCalls
    from oubliette.actors.agent_requests.params import RequestInput
    from oubliette.actors.session.messages import MapSlots

FULL: Final = "max_agents_at_once:"
"""Beginning of the refusal by a tree that has room again once an agent has finished."""
MAP_EVENT: Final = "session_map"


@dataclass
class MapCall:
    """A `session_map` that is not answered yet."""

    askers: list[PendingRpc]
    parts: list[AgentMapMessage]
    branch: bool
    """Whether each new session gets a copy of this one's workspace."""
    order: FanOut[dict[str, Any]]
    since: float
    """Wall second at which the agent asked."""

    @property
    def failed(self) -> int:
        """Number of parts without a result."""
        return sum(each["status"] != "completed" for each in self.order.results.values())


class MapCalls:
    """Open `session_map` calls by call id; same lifetime as its SessionActor.

    Each input has a method, which returns the effects that the actor applies in order.
    """

    def __init__(self, children: ChildCalls, agents_at_once: int | None) -> None:
        """Begin without calls; `agents_at_once` is `trees.max_agents_at_once`."""
        self._children = children
        self._agents_at_once = agents_at_once
        self._open: dict[str, MapCall] = {}

    def asked(self, rpc: PendingRpc, params: dict[str, Any], given: RequestInput) -> Effects:
        """Start a map, or join the one of this `call_id`.

        Raises:
            InvalidParameter: names the field.
        """
        call_id = optional_text(params, "call_id", MAX_CALL_ID - 8) or new_request_id()
        known = self._open.get(call_id)
        if known is not None:
            return tuple(ReplyToClient(each, error=REPLACED) for each in joined(known.askers, rpc))
        asked = base_params(AgentSessionMap, params, "session_map")
        parts = [
            AgentMapMessage(message=each) if isinstance(each, str) else each
            for each in asked.messages
        ]
        own = given.record.limits.max_agents_at_once
        room = (own if own is not None else self._agents_at_once) or 1
        parallel = asked.max_parallel or room
        branch = asked.workspace == "branch"
        call = MapCall([rpc], parts, branch, FanOut(len(parts), parallel), given.now)
        self._open[call_id] = call
        return (_progress(call_id, call), AskMapSlots(call_id))

    def slots_known(self, message: MapSlots, now: float) -> Effects:
        """Start the parts of a map, as many as its container has memory for."""
        call = self._open.get(message.call_id)
        if call is None:
            return ()
        if message.fitting is not None:
            call.order.limit_to(message.fitting)
        return self._go_on(message.call_id, call, now)

    def waits(self) -> Iterator[Wait]:
        """Return maps with parts that are not started, for want of a slot."""
        for call in self._open.values():
            if call.order.waiting:
                yield Wait(
                    kind="place",
                    what=f"places for {call.order.waiting} of {len(call.parts)} messages of a"
                    f" session_map, {call.order.parallel} at a time",
                    since=call.since,
                )

    def cancelled(self, target: PendingRpc) -> Effects:
        """Cancel a map on the agent's request: nothing more is started; running children run on."""
        effects: Effects = ()
        for call_id, call in list(self._open.items()):
            if target in call.askers:
                call.askers.remove(target)
                effects += (EndRequest(target),)
                if not call.askers:
                    del self._open[call_id]
                    for number in call.order.running:
                        effects += self._children.drop(f"{call_id}/{number}")
        return effects

    def cancel_all(self, reason: str) -> Effects:
        """Answer every map; the children themselves run on."""
        calls, self._open = self._open, {}
        error = outcome_error("cancelled", f"cancelled: {reason}")
        return tuple(
            ReplyToClient(rpc, error=error) for call in calls.values() for rpc in call.askers
        )

    def _go_on(self, call_id: str, call: MapCall, now: float) -> Effects:
        effects: Effects = ()
        while (number := call.order.start()) is not None:
            part = call.parts[number]

            def receive(
                result: dict[str, Any] | None,
                error: dict[str, Any] | None,
                now: float,
                number: int = number,
            ) -> Effects:
                return self._part_answered(call_id, number, result, error, now)

            spawn = SpawnChild(
                f"{call_id}/{number}",
                part.message,
                part.session_id,
                part.own_workspace,
                branch=call.branch and part.session_id is None and not part.own_workspace,
            )
            effects += self._children.begin(spawn, receive, now)
        return effects

    def _part_answered(
        self,
        call_id: str,
        number: int,
        result: dict[str, Any] | None,
        error: dict[str, Any] | None,
        now: float,
    ) -> Effects:
        call = self._open.get(call_id)
        if call is None:
            return ()
        full = error is not None and _text(error).startswith(FULL)
        if full and call.order.no_room(number):
            return ()
        outcome = part_result(result, error)
        call.order.answer(number, outcome, room=result is not None)
        effects: Effects = ()
        if result is not None and result["spawned"]:
            effects += (EndChild(outcome["session_id"]),)
        effects += (_progress(call_id, call),)
        if not call.order.over:
            return effects + self._go_on(call_id, call, now)
        del self._open[call_id]
        answer = {"results": list(call.order.in_order())}
        return effects + tuple(ReplyToClient(rpc, answer) for rpc in call.askers)


def _progress(call_id: str, call: MapCall) -> AppendEvent:
    """Report progress, as an event of this session."""
    shown = {
        "call_id": call_id,
        "total": len(call.parts),
        "done": len(call.order.results),
        "failed": call.failed,
    }
    return AppendEvent(MAP_EVENT, shown)


def part_result(result: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
    """The result of one part: session_id, status, result and error."""
    if error is None:
        assert result is not None
        return {
            "session_id": result["session_id"],
            "status": "completed",
            "result": result["result"],
            "error": None,
            **_workspace(result),
        }
    data: dict[str, Any] = error.get("data") or {}
    kind = str(data.get("kind", "error"))
    return {
        "session_id": data.get("session_id"),
        "status": kind.removeprefix("child_") if kind.startswith("child_") else "refused",
        "result": None,
        "error": _text(error),
        **_workspace(data),
    }


def _workspace(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("workspace_id", "branch") if name in answer}


def _text(error: dict[str, Any]) -> str:
    return str(error.get("message", ""))
