"""Open calls of caller tools by one session's agent.

A call is named by its `call_id`: the same id again, after a reconnect, joins the pending call or
gets the settled outcome (kept ten minutes). The agent's client gets an outcome only once it is in
the log.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from oubliette import ids
from oubliette.actors.agent_requests.call_progress import CallProgress

if TYPE_CHECKING:
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


@dataclass
class OpenCall:
    """One pending call."""

    request: CallerRequest
    askers: list[PendingRpc] = field(default_factory=list[PendingRpc])
    answers: list[Deferred] = field(default_factory=list["Deferred"])
    """caller_tool_response calls that wait for the outcome to be in the log."""
    answered: bool = False
    progress: CallProgress = field(default_factory=CallProgress)


class CallerToolCalls:
    """Open calls by request id, and the ids by which they are found again."""

    def __init__(self) -> None:
        self.open: dict[str, OpenCall] = {}
        self.reserving: dict[str, OpenCall] = {}
        """Calls that are not in the log yet: the limit of their principal is asked for."""
        self._settling: dict[str, OpenCall] = {}
        """Calls whose outcome is being written to the log: askers may still join them."""
        self._by_call_id: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def add(self, call: OpenCall) -> None:
        """Add a call that was made now, or recovered after a restart."""
        self.open[call.request.id] = call
        if call.request.call_id is not None:
            self._by_call_id[call.request.call_id] = (call.request.id, 0.0)

    def reserve(self, call: OpenCall) -> None:
        """Add a call that is open as soon as its principal may have one more."""
        self.reserving[call.request.id] = call
        if call.request.call_id is not None:
            self._by_call_id[call.request.call_id] = (call.request.id, 0.0)

    def unreserve(self, request_id: str) -> OpenCall | None:
        """Remove and return a call that was to be reserved; None if it was withdrawn."""
        call = self.reserving.pop(request_id, None)
        if call is not None and call.request.call_id is not None:
            del self._by_call_id[call.request.call_id]
        return call

    def remember(self, call_id: str, request_id: str, settled_at: float) -> None:
        """Remember a call that was settled lately, which may be asked for again."""
        self._by_call_id[call_id] = (request_id, settled_at)

    def settle(self, request_id: str, now: float) -> OpenCall | None:
        """Remove and return an open call; None if it is not open here."""
        call = self.open.pop(request_id, None)
        if call is not None:
            self._settling[request_id] = call
        if call is not None and call.request.call_id is not None:
            self._by_call_id[call.request.call_id] = (request_id, now)
            self._by_call_id.move_to_end(call.request.call_id)
        self._forget(now)
        return call

    def stored(self, request_id: str) -> OpenCall | None:
        """Remove and return a call whose outcome is in the log: later askers read it there."""
        return self._settling.pop(request_id, None)

    def joinable(self, request_id: str) -> OpenCall | None:
        """Return the call, while its askers have not been answered."""
        return (
            self.open.get(request_id)
            or self.reserving.get(request_id)
            or self._settling.get(request_id)
        )

    def request_of(self, call_id: str) -> str | None:
        """Return the request that this call made, open or settled lately."""
        found = self._by_call_id.get(call_id)
        return found[0] if found else None

    def asked_by(self, rpc: PendingRpc) -> OpenCall | None:
        """Return the open call that this JSON-RPC request waits for."""
        for call in (*self.open.values(), *self.reserving.values()):
            if rpc in call.askers:
                return call
        return None

    def _forget(self, now: float) -> None:
        while self._by_call_id:
            call_id, (request_id, settled_at) = next(iter(self._by_call_id.items()))
            if request_id in self.open or request_id in self.reserving:
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
    """Return the tool of the session's caller with this name, with or without its prefix."""
    prefix = f"{session.caller_id}_"
    for tool in session.caller_tools:
        if name == tool.name or name == prefix + tool.name:
            return tool
    return None


def request_data(request: CallerRequest, ancestry: list[str]) -> dict[str, Any]:
    """Return the `data` of a `caller_tool_request` event."""
    return {
        "request_id": request.id,
        "tool": request.tool,
        "arguments": request.arguments,
        "deadline": request.deadline,
        "ancestry": ancestry,
        "caller_id": request.caller_id,
    }


def progress_data(request: CallerRequest, message: str) -> dict[str, Any]:
    """Return the `data` of a `caller_tool_progress` event."""
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
    """Return the JSON-RPC error that the agent's client gets for all outcomes but a result."""
    return {
        "code": -32000,
        "message": text or outcome.replace("_", " "),
        "data": {"kind": outcome},
    }


def new_pairing_secret() -> str:
    """Return a fresh secret by which the client of one session proves that it belongs to it."""
    return secrets.token_urlsafe(32)


def new_request_id() -> str:
    """Return a fresh `request_id`, UUID version 4."""
    return ids.new_uuid()
