"""Permission requests of an agent: the caller that decides, the decision, the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from oubliette import ids
from oubliette.actors.session.messages import StdinFrame
from oubliette.actors.session.ports import AgentPort
from oubliette.actors.session.waits import Wait
from oubliette.failpoints import failpoint
from oubliette.kit import Message
from oubliette.records import PermissionRequest
from oubliette.runtime.store.operations import PutPermission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.messages import AnswerPermission
    from oubliette.actors.session.recovery import StoredSession
    from oubliette.actors.session.silence import Silence

Decision = Literal["allow", "deny"]

OVERDUE: Final = "nobody allowed it in time"
ANSWERED: Final = "the caller decided"
REMEMBERED: Final = "decided before, for the session"
OVER: Final = "the turn ended before anybody decided"
CROWDED: Final = "too much else waits for a decision"
MAX_OPEN: Final = 100
"""Requests of one session that may wait at a time; more are denied at once."""
MAX_KIND: Final = 500  # characters
_ASKED: Final = "permission_request"
_SETTLED: Final = "permission_settled"


class PermissionOverdue(Message):
    """Deadline of a permission request without a decision."""

    request_id: str


class TreePlace(Protocol):
    """The place of a session in its tree, and the caller that decides for the tree."""

    ancestry: list[str]

    @property
    def root_caller(self) -> tuple[str, str | None]:
        """Principal and caller of the tree's root."""
        ...


class SessionInTree(AgentPort, Protocol):
    """A session that knows which caller decides on its agent's permissions."""

    @property
    def link(self) -> TreePlace:
        """Place of the session in its tree."""
        ...


class Permissions:
    """Permission requests of one session; same lifetime as its actor.

    A decision is in the log before the agent gets it, and is sent again to an agent that is
    attached again: whether it got the first one is not known, and it uses the first that it gets.
    """

    def __init__(self, session: SessionInTree, silence: Silence) -> None:
        self._session = session
        self._silence = silence
        self._open: dict[str, PermissionRequest] = {}
        self._decided: dict[str, PermissionRequest] = {}
        """Decisions of the running turn that the agent may not have received, by our id."""

    @property
    def waiting(self) -> bool:
        """Whether a request is undecided."""
        return bool(self._open)

    def waits(self) -> Iterator[Wait]:
        """Return the undecided requests."""
        for request in self._open.values():
            yield Wait(
                kind="permission",
                what=f"a decision on {request.asks_for}",
                since=request.created_at,
                until=request.deadline,
                detail=f"permission_response decides request {request.id}; denied then",
                caller=None
                if request.caller_id is None
                else (request.principal, request.caller_id),
            )

    def recover(self, stored: StoredSession) -> None:
        """Recover an earlier actor's open requests, and decisions its agent may not have got."""
        running = stored.running
        for request in stored.permissions:
            if running is None or request.turn != running.number:
                if request.decision is None:
                    self._settle(request, "deny", OVER)
            elif request.decision is None:
                self._wait(request)
            else:
                self._decided[request.id] = request

    def attached(self) -> None:
        """Send the decisions again, since the agent is attached again."""
        for request in self._decided.values():
            self._tell(request)

    def turn_ended(self) -> None:
        """Settle the open requests, since no decision is needed any more."""
        for request in list(self._open.values()):
            self._settle(request, "deny", OVER)
        self._decided.clear()

    def asked(self, data: dict[str, Any], source: str, turn: int | None) -> None:
        """Send a request as an event to the root session's caller, with ancestry and deadline."""
        session = self._session
        now = session.clock.time()
        principal, caller_id = session.link.root_caller
        kind = _kind(data)
        request = PermissionRequest(
            id=ids.new_uuid(),
            session_id=session.session_id,
            principal=principal,
            caller_id=caller_id,
            agent_request_id=str(data.get("request_id", "")),
            asks_for=kind,
            turn=turn or 0,
            created_at=now,
            deadline=now + session.context.config.sessions.permission_timeout_seconds,
            event_index=-1,
        )
        payload = {**data, "request_id": request.id, "asks_for": kind}
        remembered = session.writer.record.remembered.get(kind)
        if remembered is not None:
            self._settle_at_once(request, payload, source, remembered, REMEMBERED)
        elif len(self._open) >= MAX_OPEN:
            self._settle_at_once(request, payload, source, "deny", CROWDED)
        else:
            payload |= {
                "deadline": request.deadline,
                "ancestry": session.link.ancestry,
                "caller_id": caller_id,
            }
            event = session.writer.append(
                _ASKED, payload, source=source, caller_id=caller_id, principal=principal
            )
            request = msgspec.structs.replace(request, event_index=event.index)
            session.writer.put(PutPermission(request))
            self._wait(request)
            failpoint("session.permission_asked")

    def _wait(self, request: PermissionRequest) -> None:
        self._open[request.id] = request
        session = self._session
        left = max(0.0, request.deadline - session.clock.time())
        session.after(left, PermissionOverdue(request_id=request.id))

    def overdue(self, message: PermissionOverdue) -> None:
        """Deny a request whose deadline has passed."""
        request = self._open.get(message.request_id)
        if request is not None:
            self._settle(request, "deny", OVERDUE)

    def answered(self, message: AnswerPermission) -> bool | None:
        """Accept a decision: False if the request is not open here or not theirs, else deferred."""
        request = self._open.get(message.request_id)
        if request is None or request.principal != message.principal:
            return False
        session = self._session
        answer = session.defer()
        if message.remember:
            remembered = {**session.writer.record.remembered, request.asks_for: message.decision}
            session.writer.change(remembered=remembered)
        self._settle(request, message.decision, ANSWERED, remember=message.remember)
        session.writer.then(lambda: answer.set(True))
        return None

    def _settle(
        self, request: PermissionRequest, decision: Decision, reason: str, *, remember: bool = False
    ) -> None:
        self._open.pop(request.id, None)
        settled = self._decide(request, decision, reason)
        self._session.writer.append(
            _SETTLED,
            {
                "request_id": request.id,
                "asks_for": request.asks_for,
                "decision": decision,
                "reason": reason,
                "remember": "session" if remember else "once",
                "caller_id": request.caller_id,
            },
            caller_id=request.caller_id,
            principal=request.principal,
        )
        self._store(settled, tell=reason != OVER)

    def _settle_at_once(
        self,
        request: PermissionRequest,
        payload: dict[str, Any],
        source: str,
        decision: Decision,
        reason: str,
    ) -> None:
        """Settle a request without asking a caller; the log contains the decision."""
        shown = {**payload, "kind": "permission", "decision": decision, "reason": reason}
        event = self._session.writer.append("system", shown, source=source)
        request = msgspec.structs.replace(request, event_index=event.index)
        self._store(self._decide(request, decision, reason), tell=True)

    def _decide(
        self, request: PermissionRequest, decision: Decision, reason: str
    ) -> PermissionRequest:
        return msgspec.structs.replace(
            request, decision=decision, reason=reason, settled_at=self._session.clock.time()
        )

    def _store(self, settled: PermissionRequest, *, tell: bool) -> None:
        session = self._session
        session.writer.put(PutPermission(settled))
        turn = session.turn

        def stored() -> None:
            failpoint("session.permission_settled")
            # If the turn has ended meanwhile, the agent does not wait for the decision any more.
            if tell and session.turn == turn:
                self._decided[settled.id] = settled
                if session.attached:
                    self._tell(settled)

        session.writer.then(stored)

    def _tell(self, request: PermissionRequest) -> None:
        session = self._session
        self._silence.broken(session.clock.monotonic())
        session.write(
            StdinFrame(
                seq=session.next_seq(),
                kind="permission",
                request_id=request.agent_request_id,
                decision=request.decision or "deny",
                text=request.reason,
            )
        )


def _kind(data: dict[str, Any]) -> str:
    """Return the scope of a remembered decision: the adapter's kind, else the question."""
    named = data.get("asks_for") or data.get("text")
    return str(named or "anything")[:MAX_KIND]
