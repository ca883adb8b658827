"""Owner of the open calls of caller tools: `callers.max_pending_requests` limits a principal's.

A session reserves a call before it writes the request to its log, so the limit is exact: sessions
that call at the same moment do not exceed it together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, Down, Message, Reply, handles

OPEN_CALLS = "open_calls"


class ReserveCall(Message, Reply[None]):
    """To the OpenCallsActor: count one more call of a session; an error at its limit.

    Reserving the same request twice counts once.
    """

    principal: str
    session: str
    """Name of the SessionActor."""
    incarnation: int
    """Its incarnation: what an earlier one had open is given back at its end."""
    request_id: str


class ReleaseCall(Message):
    """To the OpenCallsActor: a call is settled."""

    session: str
    request_id: str


class OpenCallIds(Message, Reply[None]):
    """To the OpenCallsActor: all calls that a session has open, within the limit or not.

    From a session that has recovered its calls, or was asked to ReportCalls.
    """

    principal: str
    session: str
    incarnation: int
    request_ids: tuple[str, ...]


class ReportCalls(Message):
    """To a SessionActor: request for OpenCallIds, from an owner that was restarted."""


@dataclass
class Holder:
    """One incarnation of a session, and the calls that it has open."""

    principal: str
    incarnation: int
    requests: set[str] = field(default_factory=set[str])


class OpenCallTable:
    """Open calls by session; only the OpenCallsActor uses it, and keeps it when restarted."""

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self._totals: dict[str, int] = {}

    def total(self, principal: str) -> int:
        """Return the number of open calls over all sessions of a principal."""
        return self._totals.get(principal, 0)

    def add(self, holder: Holder, request_id: str) -> None:
        """Count an open call of a session."""
        if request_id not in holder.requests:
            holder.requests.add(request_id)
            self._totals[holder.principal] = self.total(holder.principal) + 1

    def remove(self, holder: Holder, request_id: str) -> None:
        """Give back an open call, if it is counted."""
        if request_id not in holder.requests:
            return
        holder.requests.remove(request_id)
        self._totals[holder.principal] -= 1
        if not self._totals[holder.principal]:
            del self._totals[holder.principal]

    def replace(self, holder: Holder, request_ids: tuple[str, ...]) -> None:
        """Replace the open calls of a session."""
        for request_id in holder.requests.difference(request_ids):
            self.remove(holder, request_id)
        for request_id in request_ids:
            self.add(holder, request_id)

    def __len__(self) -> int:
        """Return the number of principals with an open call."""
        return len(self._totals)


class OpenCallsActor(Actor):
    """Owner of the open calls of all sessions. Its name must be `open_calls`.

    It watches each session that has reserved a call, and gives back the calls of one that ended.
    """

    mailbox_size: ClassVar[int] = 100_000

    def __init__(self, limit: int, table: OpenCallTable) -> None:
        super().__init__()
        self._limit = limit
        self._table = table

    def on_start(self) -> None:
        """After a failure: ask the sessions, as the notices of settled calls may have been lost."""
        for name, holder in list(self._table.holders.items()):
            session = self.system.ref(name)
            if not session.is_alive() or session.incarnation != holder.incarnation:
                self._forget(name)
                continue
            self.watch(session)
            session.tell(ReportCalls())

    @handles(ReserveCall, at_once=True)
    def _reserve(self, message: ReserveCall) -> None:
        holder = self._holder(message)
        if holder is None or message.request_id in holder.requests:
            return
        if self._table.total(holder.principal) >= self._limit:
            raise LimitExceeded(
                f"callers.max_pending_requests: {self._limit} calls are pending already"
            )
        self._table.add(holder, message.request_id)

    @handles(ReleaseCall, at_once=True)
    def _release(self, message: ReleaseCall) -> None:
        holder = self._table.holders.get(message.session)
        if holder is not None:
            self._table.remove(holder, message.request_id)

    @handles(OpenCallIds)
    def _open_calls(self, message: OpenCallIds) -> None:
        holder = self._holder(message)
        if holder is not None:
            self._table.replace(holder, message.request_ids)

    def _holder(self, message: ReserveCall | OpenCallIds) -> Holder | None:
        """Return the sender's entry, which is watched; None if this incarnation has ended."""
        holder = self._table.holders.get(message.session)
        if holder is not None and holder.incarnation == message.incarnation:
            return holder
        session = self.system.ref(message.session)
        if not session.is_alive() or session.incarnation != message.incarnation:
            return None
        self._forget(message.session)
        holder = Holder(message.principal, message.incarnation)
        self._table.holders[message.session] = holder
        self.watch(session)
        return holder

    @handles(Down)
    def _down(self, message: Down) -> None:
        holder = self._table.holders.get(message.name)
        if holder is not None and message.incarnation in {0, holder.incarnation}:
            self._forget(message.name)

    def _forget(self, name: str) -> None:
        holder = self._table.holders.pop(name, None)
        if holder is not None:
            self._table.replace(holder, ())
