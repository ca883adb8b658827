"""`session_map` of an agent: one call that fans out to children and gathers in order.

Each part is a `session_message` of its own (`child_sessions`), named `<call_id>/<number>`: asked
again after a reconnect or a restart, the map joins the turns that it has started, and gets the
results of those that have ended. A child that has answered is ended; a message to its session
resumes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oubliette.actors.agent_requests.caller_tools import new_request_id, outcome_error
from oubliette.actors.agent_requests.child_sessions import MAX_CALL_ID
from oubliette.actors.agent_requests.params import base_params, optional_text
from oubliette.actors.container.messages import GetMemoryRoom
from oubliette.actors.exploration.limits import resolve_limits
from oubliette.actors.messages import EndSession
from oubliette.actors.session.messages import MapRoom
from oubliette.actors.session.waits import Wait
from oubliette.runtime.agents.memory import need_of
from oubliette.tool_params.agent_tools import AgentMapMessage, AgentSessionMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.agent_requests.caller_tools import PendingRpc
    from oubliette.actors.agent_requests.child_sessions import ChildCalls, RpcReply
    from oubliette.actors.session.ports import SessionPort

ROOM_SECONDS: Final = 5.0  # for the container's actor to report its memory
FULL: Final = "max_agents_at_once:"
"""Beginning of the refusal by a tree that has room again once an agent has finished."""
MAP_EVENT: Final = "session_map"


@dataclass
class MapCall:
    """A `session_map` that is not answered yet."""

    askers: list[PendingRpc]
    parts: list[AgentMapMessage]
    limit: int
    """Greatest number of children at once."""
    parallel: int
    """Number of children at once for now: fewer, while others fill the tree."""
    waiting: list[int]
    """Numbers of parts that are not started, the next one last."""
    since: float
    """Wall second at which the agent asked."""
    running: set[int] = field(default_factory=set[int])
    results: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    @property
    def failed(self) -> int:
        """Number of parts without a result."""
        return sum(each["status"] != "completed" for each in self.results.values())


class MapCalls:
    """Open `session_map` calls by call id; same lifetime as its SessionActor."""

    def __init__(self, session: SessionPort, children: ChildCalls, reply: RpcReply) -> None:
        self._session = session
        self._children = children
        self._reply = reply
        self._open: dict[str, MapCall] = {}

    def asked(self, rpc: PendingRpc, params: dict[str, Any]) -> None:
        """Start a map, or join the one of this `call_id`.

        Raises:
            InvalidParameter: names the field.
        """
        call_id = optional_text(params, "call_id", MAX_CALL_ID - 8) or new_request_id()
        known = self._open.get(call_id)
        if known is not None:
            known.askers.append(rpc)
            return
        asked = base_params(AgentSessionMap, params, "session_map")
        parts = [
            AgentMapMessage(message=each) if isinstance(each, str) else each
            for each in asked.messages
        ]
        record = self._session.writer.record
        room = resolve_limits(record.limits, self._session.context).max_agents_at_once or 1
        parallel = asked.max_parallel or room
        now = self._session.clock.time()
        numbers = list(reversed(range(len(parts))))
        call = MapCall([rpc], parts, parallel, parallel, numbers, now)
        self._open[call_id] = call
        self._tell(call_id, call)
        self._ask_fitting(call_id)

    def _ask_fitting(self, call_id: str) -> None:
        """Ask for how many more agents of this session's kind its container has memory."""
        session = self._session
        agent = session.writer.record.agent
        need = need_of(session.context.config, agent, session.context.agents.get(agent))
        session.pipe_to_self(
            session.unit.container.ask(GetMemoryRoom(memory_mb=need), ROOM_SECONDS),
            lambda fitting: MapRoom(call_id=call_id, fitting=fitting),
            lambda _: MapRoom(call_id=call_id),  # each agent waits for memory at its own start
        )

    def room_known(self, message: MapRoom) -> None:
        """Start the parts of a map, as many as its container has memory for."""
        call = self._open.get(message.call_id)
        if call is not None:
            if message.fitting is not None:
                call.parallel = call.limit = min(call.limit, message.fitting)
            self._go_on(message.call_id, call)

    def waits(self) -> Iterator[Wait]:
        """Return maps with parts that are not started, for want of a slot."""
        for call in self._open.values():
            if call.waiting:
                yield Wait(
                    kind="place",
                    what=f"places for {len(call.waiting)} of {len(call.parts)} messages of a"
                    f" session_map, {call.parallel} at a time",
                    since=call.since,
                )

    def cancelled(self, target: PendingRpc) -> None:
        """Cancel a map on the agent's request: nothing more is started; running children run on."""
        for call_id, call in list(self._open.items()):
            if target in call.askers:
                call.askers.remove(target)
                if not call.askers:
                    del self._open[call_id]
                    for number in call.running:
                        self._children.drop(f"{call_id}/{number}")

    def cancel_all(self, reason: str) -> None:
        """Answer every map; the children themselves run on."""
        calls, self._open = self._open, {}
        for call in calls.values():
            for rpc in call.askers:
                self._reply(rpc, error=outcome_error("cancelled", f"cancelled: {reason}"))

    def _go_on(self, call_id: str, call: MapCall) -> None:
        while call.waiting and len(call.running) < call.parallel:
            number = call.waiting.pop()
            part = call.parts[number]
            call.running.add(number)

            def receive(
                result: dict[str, Any] | None, error: dict[str, Any] | None, number: int = number
            ) -> None:
                self._part_answered(call_id, number, result, error)

            self._children.begin(
                f"{call_id}/{number}",
                part.message,
                part.session_id,
                receive,
                own_workspace=part.own_workspace,
            )

    def _part_answered(
        self,
        call_id: str,
        number: int,
        result: dict[str, Any] | None,
        error: dict[str, Any] | None,
    ) -> None:
        call = self._open.get(call_id)
        if call is None:
            return
        call.running.discard(number)
        if error is not None and _text(error).startswith(FULL) and call.running:
            # There will be room when one of ours has finished: until then, fewer at once.
            call.waiting.append(number)
            call.parallel = len(call.running)
            return
        call.results[number] = outcome = part_result(result, error)
        if result is not None:
            call.parallel = min(call.limit, call.parallel + 1)
        if result is not None and result["spawned"]:
            self._end_child(outcome["session_id"])
        self._tell(call_id, call)
        if len(call.results) < len(call.parts):
            self._go_on(call_id, call)
            return
        del self._open[call_id]
        answer = {"results": [call.results[place] for place in range(len(call.parts))]}
        for rpc in call.askers:
            self._reply(rpc, result=answer)

    def _end_child(self, session_id: str) -> None:
        child = self._session.context.session_registry.session(session_id)
        if child is not None and child.is_alive():
            child.tell(EndSession(reason="its part of session_map is done", final=False))

    def _tell(self, call_id: str, call: MapCall) -> None:
        """Report progress, as an event of this session."""
        self._session.writer.append(
            MAP_EVENT,
            {
                "call_id": call_id,
                "total": len(call.parts),
                "done": len(call.results),
                "failed": call.failed,
            },
        )


def part_result(result: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
    """Return the result of one part: session_id, status, result and error."""
    if error is None:
        assert result is not None
        return {
            "session_id": result["session_id"],
            "status": "completed",
            "result": result["result"],
            "error": None,
        }
    data: dict[str, Any] = error.get("data") or {}
    kind = str(data.get("kind", "error"))
    return {
        "session_id": data.get("session_id"),
        "status": kind.removeprefix("child_") if kind.startswith("child_") else "refused",
        "result": None,
        "error": _text(error),
    }


def _text(error: dict[str, Any]) -> str:
    return str(error.get("message", ""))
