"""Open calls of caller tools by one session's agent.

A call is named by its `call_id`: the same id again, after a reconnect, joins the pending call or
gets the settled outcome (kept ten minutes). The agent's client gets an outcome only once it is in
the log.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from oubliette import ids
from oubliette.actors.agent_requests.call_progress import CallProgress
from oubliette.actors.messages import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.kit import Deferred
    from oubliette.records import CallerRequest, CallerTool, Session

KEEP_SETTLED: Final = 600.0  # seconds that a settled call can be joined
MAX_CALL_ID: Final = 128  # characters


@dataclass(frozen=True)
class PendingRpc:
    """A JSON-RPC request on one connection of the link, waiting for its answer."""

    link: str
    generation: int
    id: int | str | None


def joined(askers: list[PendingRpc], rpc: PendingRpc) -> list[PendingRpc]:
    """Add a request to those that wait for a call; return those of its link, which it replaces.

    A client asks again after a reconnect; one that asks again and again has one asker. For a client
    a request of the same id is the same one: an error would be taken for its answer.
    """
    replaced = [each for each in askers if each.link == rpc.link and each.id != rpc.id]
    askers[:] = [each for each in askers if each.link != rpc.link] + [rpc]
    return replaced


CallState = Literal["reserving", "open", "answered", "settling", "over"]
"""`reserving`: it is not in the log yet, as the limit of its principal is asked for. `open`: its
caller may answer. `answered`: the caller has. `settling`: its outcome is being written to the log,
and askers may still join it. `over`: later askers read the outcome in the log.
"""

CallStep = Literal["reserved", "withdrawn", "answered", Outcome, "stored"]
"""`reserved`: its principal may have one more. `withdrawn`: it may not, or none waits for the call.
`answered`: the caller's answer was accepted. An outcome: the call was settled with it. `stored`:
the outcome is in the log.
"""

CALL_STEPS: Final[dict[tuple[CallState, CallStep], CallState]] = {
    ("reserving", "reserved"): "open",
    ("reserving", "withdrawn"): "over",
    ("open", "answered"): "answered",
    ("open", "timeout"): "settling",
    ("open", "caller_gone"): "settling",
    ("open", "cancelled"): "settling",
    ("answered", "result"): "settling",
    ("answered", "tool_error"): "settling",
    # These were under way when the answer came.
    ("answered", "timeout"): "settling",
    ("answered", "caller_gone"): "settling",
    ("answered", "cancelled"): "settling",
    ("settling", "stored"): "over",
}


@dataclass
class OpenCall:
    """One pending call."""

    request: CallerRequest
    askers: list[PendingRpc] = field(default_factory=list[PendingRpc])
    answers: list[Deferred] = field(default_factory=list["Deferred"])
    """caller_tool_response calls that wait for the outcome to be in the log."""
    state: CallState = "reserving"
    progress: CallProgress = field(default_factory=CallProgress)

    @property
    def unsettled(self) -> bool:
        """Whether it is in the log without an outcome."""
        return self.state in {"open", "answered"}


class CallerToolCalls:
    """Calls that are not over, by request id, and the ids by which they are found again."""

    def __init__(self) -> None:
        self._calls: dict[str, OpenCall] = {}
        self._by_call_id: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __iter__(self) -> Iterator[OpenCall]:
        return iter(self._calls.values())

    @property
    def unsettled(self) -> list[OpenCall]:
        """The calls that are in the log without an outcome."""
        return [call for call in self if call.unsettled]

    @property
    def reserving(self) -> list[OpenCall]:
        """The calls that are not in the log yet."""
        return [call for call in self if call.state == "reserving"]

    def __getitem__(self, request_id: str) -> OpenCall:
        return self._calls[request_id]

    def find(self, request_id: str) -> OpenCall | None:
        """The call, while its askers have not been answered."""
        return self._calls.get(request_id)

    def add(self, call: OpenCall) -> None:
        """Add a call that was made now, or recovered after a restart."""
        self._calls[call.request.id] = call
        if call.request.call_id is not None:
            self._by_call_id[call.request.call_id] = (call.request.id, 0.0)

    def remember(self, call_id: str, request_id: str, settled_at: float) -> None:
        """Remember a call that was settled lately, which may be asked for again."""
        self._by_call_id[call_id] = (request_id, settled_at)

    def take(self, request_id: str, step: CallStep, now: float = 0.0) -> OpenCall | None:
        """Have a call take a step; None, and nothing happens, if it cannot in its state.

        Args:
            request_id: Its request.
            step: What happened.
            now: Wall second in which it is settled.
        """
        call = self._calls.get(request_id)
        following = None if call is None else CALL_STEPS.get((call.state, step))
        if call is None or following is None:
            return None
        call.state = following
        call_id = call.request.call_id
        if following == "over":
            del self._calls[request_id]
            if step == "withdrawn" and call_id is not None:
                del self._by_call_id[call_id]
        elif following == "settling":
            if call_id is not None:
                self._by_call_id[call_id] = (request_id, now)
                self._by_call_id.move_to_end(call_id)
            self._forget(now)
        return call

    def request_of(self, call_id: str) -> str | None:
        """The request that this call made, open or settled lately."""
        found = self._by_call_id.get(call_id)
        return found[0] if found else None

    def asked_by(self, rpc: PendingRpc) -> OpenCall | None:
        """The call without an outcome that this JSON-RPC request waits for."""
        for call in self:
            if rpc in call.askers and call.state != "settling":
                return call
        return None

    def _forget(self, now: float) -> None:
        while self._by_call_id:
            call_id, (request_id, settled_at) = next(iter(self._by_call_id.items()))
            call = self._calls.get(request_id)
            if call is not None and call.state != "settling":
                self._by_call_id.move_to_end(call_id)
                return
            if now - settled_at < KEEP_SETTLED:
                return
            del self._by_call_id[call_id]


def tools_after(
    session: Session, caller_id: str | None, tools: tuple[CallerTool, ...] | None
) -> tuple[str | None, tuple[CallerTool, ...]]:
    """Return the caller of the session, and its tools, after a message of this caller.

    Another caller brings its own tools, or none: those of the previous one are not its to run.
    """
    if caller_id is None or caller_id == session.caller_id:
        return session.caller_id, session.caller_tools if tools is None else tools
    return caller_id, tools or ()


def find_tool(session: Session, name: str) -> CallerTool | None:
    """The tool of the session's caller with this name, with or without its prefix."""
    prefix = f"{session.caller_id}_"
    for tool in session.caller_tools:
        if name == tool.name or name == prefix + tool.name:
            return tool
    return None


def request_data(request: CallerRequest, ancestry: list[str]) -> dict[str, Any]:
    return {
        "request_id": request.id,
        "tool": request.tool,
        "arguments": request.arguments,
        "deadline": request.deadline,
        "ancestry": ancestry,
        "caller_id": request.caller_id,
    }


def progress_data(request: CallerRequest, message: str) -> dict[str, Any]:
    return {
        "request_id": request.id,
        "tool": request.tool,
        "message": message,
        "caller_id": request.caller_id,
    }


REPLACED: Final[dict[str, Any]] = {
    "code": -32000,
    "message": "replaced by a later request with this call_id, which gets the answer",
    "data": {"kind": "replaced"},
}
"""The JSON-RPC error of a request in whose place another one waits for the call."""


def outcome_error(outcome: str, text: str | None) -> dict[str, Any]:
    """The JSON-RPC error that the agent's client gets for all outcomes but a result."""
    return {
        "code": -32000,
        "message": text or outcome.replace("_", " "),
        "data": {"kind": outcome},
    }


def new_request_id() -> str:
    """A fresh `request_id`, UUID version 4."""
    return ids.new_uuid()
