"""Permission requests of an agent: the caller that decides, the decision, the deadline.

Without I/O: each input has a method, which returns the effects that the actor applies in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from oubliette import ids
from oubliette.actors.session.effects import (
    AfterCommit,
    AppendEvent,
    ChangeRecord,
    DecisionStored,
    Effects,
    PassFailpoint,
    SendDecision,
    StartTimer,
    Store,
)
from oubliette.actors.session.waits import Wait
from oubliette.kit import Message
from oubliette.records import PermissionRequest
from oubliette.runtime.store.operations import PutPermission

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oubliette.actors.messages import AnswerPermission

Decision = Literal["allow", "deny"]

OVERDUE: Final = "nobody allowed it in time"
ANSWERED: Final = "the caller decided"
DECIDED: Final = "another person who may decide did"
FREE: Final = "the autonomy of the session is off"
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
    running_since: float | None = None
    """Wall second of the end of the latest outage of the storage; None: not asked for yet."""

    def after_outage(self, since: float) -> PermissionOverdue:
        """Return it with the end of the latest outage."""
        return PermissionOverdue(request_id=self.request_id, running_since=since)


class TreePlace(NamedTuple):
    """The place of a session in its tree, and the caller that decides for the tree."""

    principal: str
    """Of the tree's root."""
    caller_id: str | None
    """Caller of the tree's root."""
    ancestry: list[str]
    """Session ids from the root down to this one."""


class Permissions:
    """Permission requests of one session; same lifetime as its actor.

    A decision is in the log before the agent gets it, and is sent again to an agent that is
    attached again: whether it got the first one is not known, and it uses the first that it gets.

    `now` is a wall second, `turn` the number of the running turn in all methods.
    """

    __slots__ = ("_decided", "_open", "_session_id", "_timeout")

    def __init__(self, session_id: str, timeout: float) -> None:
        """Begin without requests; `timeout` is `sessions.permission_timeout_seconds`."""
        self._session_id = session_id
        self._timeout = timeout
        self._open: dict[str, PermissionRequest] = {}
        self._decided: dict[str, PermissionRequest] = {}
        """Decisions of the running turn that the agent may not have received, by our id."""

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def waits(self) -> Iterator[Wait]:
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

    def recover(self, stored: Iterable[PermissionRequest], turn: int | None, now: float) -> Effects:
        """Recover an earlier actor's open requests, and decisions its agent may not have got."""
        effects: Effects = ()
        for request in stored:
            if turn is None or request.turn != turn:
                if request.decision is None:
                    effects += self._settle(request, "deny", OVER, turn=turn, now=now)
            elif request.decision is None:
                effects += self._wait(request, now)
            else:
                self._decided[request.id] = request
        return effects

    def attached(self) -> Effects:
        """Send the decisions again, since the agent is attached again."""
        return tuple(map(SendDecision, self._decided.values()))

    def turn_ended(self, now: float) -> Effects:
        """Settle the open requests, since no decision is needed any more."""
        if not self._open and not self._decided:
            return ()
        effects: Effects = ()
        for request in list(self._open.values()):
            effects += self._settle(request, "deny", OVER, turn=None, now=now)
        self._decided.clear()
        return effects

    def asked(
        self,
        data: dict[str, Any],
        source: str,
        *,
        turn: int | None,
        place: TreePlace,
        remembered: Mapping[str, Decision],
        free: bool,
        event_index: int,
        now: float,
    ) -> Effects:
        """Send a request as an event to the root session's caller, with ancestry and deadline.

        Args:
            data: The event of the agent's adapter.
            source: Its position in the agent's output.
            turn: The running turn.
            place: The session's place in its tree.
            remembered: Decisions for the whole session, by kind.
            free: Whether the session has the autonomy to do what it was not denied.
            event_index: Index of the next event in the session's log.
            now: Wall second.
        """
        kind = _kind(data)
        request = PermissionRequest(
            id=ids.new_uuid(),
            session_id=self._session_id,
            principal=place.principal,
            caller_id=place.caller_id,
            agent_request_id=str(data.get("request_id", "")),
            asks_for=kind,
            turn=turn or 0,
            created_at=now,
            deadline=now + self._timeout,
            event_index=event_index,
        )
        payload = {**data, "request_id": request.id, "asks_for": kind}
        decided = remembered.get(kind)
        if decided is not None:
            return _settled_at_once(_decided(request, decided, REMEMBERED, now), payload, source)
        if free:
            return _settled_at_once(_decided(request, "allow", FREE, now), payload, source)
        if len(self._open) >= MAX_OPEN:
            return _settled_at_once(_decided(request, "deny", CROWDED, now), payload, source)
        payload |= {
            "deadline": request.deadline,
            "ancestry": place.ancestry,
            "caller_id": place.caller_id,
        }
        return (
            AppendEvent(_ASKED, payload, source, place.caller_id, place.principal),
            Store(PutPermission(request)),
            *self._wait(request, now),
            PassFailpoint("session.permission_asked"),
        )

    def _wait(self, request: PermissionRequest, now: float) -> Effects:
        self._open[request.id] = request
        left = min(self._timeout, max(0.0, request.deadline - now))  # the clock may be set back
        return (StartTimer(left, PermissionOverdue(request_id=request.id)),)

    def overdue(self, message: PermissionOverdue, turn: int | None, now: float) -> Effects:
        """Deny a request whose deadline has passed.

        A request cannot be decided while nothing can be stored: it gets its whole time after that.
        """
        request = self._open.get(message.request_id)
        if request is None:
            return ()
        since = message.running_since or 0.0
        left = since + self._timeout - now
        if since > request.created_at and left > 0:
            return (StartTimer(left, PermissionOverdue(request_id=request.id)),)
        return self._settle(request, "deny", OVERDUE, turn=turn, now=now)

    def answered(
        self,
        message: AnswerPermission,
        remembered: Mapping[str, Decision],
        turn: int | None,
        now: float,
    ) -> Effects | None:
        """Accept a decision; None if the request is not open here.

        Args:
            message: The decision.
            remembered: Decisions for the whole session so far, by kind.
            turn: The running turn.
            now: Wall second.
        """
        request = self._open.get(message.request_id)
        if request is None:
            return None
        remember: Effects = ()
        if message.remember:
            known = {**remembered, request.asks_for: message.decision}
            remember = (ChangeRecord({"remembered": known}),)
        reason = ANSWERED if message.principal == request.principal else DECIDED
        request = msgspec.structs.replace(request, by=message.principal)
        return remember + self._settle(
            request, message.decision, reason, turn=turn, now=now, remember=message.remember
        )

    def _settle(
        self,
        request: PermissionRequest,
        decision: Decision,
        reason: str,
        *,
        turn: int | None,
        now: float,
        remember: bool = False,
    ) -> Effects:
        self._open.pop(request.id, None)
        settled = _decided(request, decision, reason, now)
        shown = {
            "request_id": request.id,
            "asks_for": request.asks_for,
            "decision": decision,
            "reason": reason,
            "by": request.by,
            "remember": "session" if remember else "once",
            "caller_id": request.caller_id,
        }
        return (
            AppendEvent(_SETTLED, shown, None, request.caller_id, request.principal),
            Store(PutPermission(settled)),
            AfterCommit(DecisionStored(settled, turn)),
        )

    def stored(self, decided_in: DecisionStored, turn: int | None, *, attached: bool) -> Effects:
        """Send a decision that is in the log now, if the agent still waits for it.

        Args:
            decided_in: The request, and the turn that ran when it was decided.
            turn: The turn that runs now.
            attached: Whether the agent accepts frames; if not, it gets the decision when it does.
        """
        settled = decided_in.request
        if settled.reason == OVER or turn != decided_in.turn:
            return ()
        self._decided[settled.id] = settled
        return (SendDecision(settled),) if attached else ()


def _decided(
    request: PermissionRequest, decision: Decision, reason: str, now: float
) -> PermissionRequest:
    return msgspec.structs.replace(request, decision=decision, reason=reason, settled_at=now)


def _settled_at_once(settled: PermissionRequest, payload: dict[str, Any], source: str) -> Effects:
    """Settle a request without asking a caller; the log contains the decision."""
    decision = {"kind": "permission", "decision": settled.decision, "reason": settled.reason}
    return (
        AppendEvent("system", payload | decision, source),
        Store(PutPermission(settled)),
        AfterCommit(DecisionStored(settled, settled.turn or None)),
    )


def _kind(data: dict[str, Any]) -> str:
    """The scope of a remembered decision: the adapter's kind, else the question."""
    named = data.get("asks_for") or data.get("text")
    return str(named or "anything")[:MAX_KIND]
