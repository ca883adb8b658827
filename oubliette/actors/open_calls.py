"""Owner of the open calls of caller tools: `callers.max_pending_requests` limits a principal's.

A session reserves a call before it writes the request to its log, so the limit is exact: sessions
that call at the same moment do not exceed it together. On a node of a cluster the owner claims each
call as well, so that the sessions of all nodes together do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, Deferred, Down, LocalMessage, Message, Reply, handles

if TYPE_CHECKING:
    from oubliette.actors.claims import Claims

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
    reserving: tuple[str, ...] = ()
    """Calls that it waits for; those of them that are not counted have to be reserved."""


class ReportCalls(Message):
    """To a SessionActor: request for OpenCallIds, from an owner that was restarted."""


class ReportAsked(LocalMessage):
    """To the OpenCallsActor itself: a session has `ReportCalls`, or has ended."""


class CallClaimed(LocalMessage):
    """To itself: what became of a claim."""

    session: str
    request_id: str
    granted: bool = False
    error: BaseException | None = None


@dataclass
class Holder:
    """One incarnation of a session, and the calls that it has open."""

    principal: str
    incarnation: int
    requests: set[str] = field(default_factory=set[str])
    claiming: set[str] = field(default_factory=set[str])
    """Calls that are counted once they are claimed."""


class OpenCallTable:
    """Open calls by session; only the OpenCallsActor uses it, and keeps it when restarted."""

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self._totals: dict[str, int] = {}

    def total(self, principal: str) -> int:
        return self._totals.get(principal, 0)

    def add(self, holder: Holder, request_id: str) -> None:
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

    def __len__(self) -> int:
        """The number of principals with an open call."""
        return len(self._totals)


class OpenCallsActor(Actor):
    """Owner of the open calls of all sessions. Its name must be `open_calls`.

    It watches each session that has reserved a call, and gives back the calls of one that ended.

    Args:
        limit: Maximum of open calls of a principal.
        table: Calls of the sessions on this node.
        claims: Counts those of all nodes; None: there are no others.
    """

    mailbox_size: ClassVar[int] = 100_000

    def __init__(self, limit: int, table: OpenCallTable, claims: Claims | None = None) -> None:
        super().__init__()
        self._limit = limit
        self._table = table
        self._claims = claims
        self._askers: dict[str, list[Deferred]] = {}
        """Those who wait for a claim, by request."""

    def on_start(self) -> None:
        """After a failure: ask the sessions, as the notices of settled calls may have been lost."""
        for name, holder in list(self._table.holders.items()):
            for request_id in list(holder.claiming):  # its session asks again
                self._give_back(holder, request_id)
            session = self.system.ref(name)
            if not session.is_alive() or session.incarnation != holder.incarnation:
                self._forget(name)
                continue
            self.watch(session)
            # One whose mailbox is full gets it once there is room; the others do not wait for it.
            asked = session.send(ReportCalls())
            self.pipe_to_self(asked, lambda _: ReportAsked(), lambda _: ReportAsked())

    @handles(ReportAsked)
    def _asked(self, _: ReportAsked) -> None:
        """Do nothing: `OpenCallIds` follows, or the session has ended."""

    @handles(ReserveCall, at_once=True)
    def _reserve(self, message: ReserveCall) -> None:
        holder = self._holder(message)
        if holder is None or message.request_id in holder.requests:
            return
        if self._table.total(holder.principal) >= self._limit:
            raise self._full()
        if self._claims is None:
            self._table.add(holder, message.request_id)
        else:
            self._claim(message, holder, self._claims)

    @handles(ReleaseCall, at_once=True)
    def _release(self, message: ReleaseCall) -> None:
        holder = self._table.holders.get(message.session)
        if holder is not None:
            self._give_back(holder, message.request_id)

    @handles(OpenCallIds)
    def _open_calls(self, message: OpenCallIds) -> None:
        holder = self._holder(message)
        if holder is None:
            return
        for request_id in holder.requests.difference(message.request_ids, message.reserving):
            self._give_back(holder, request_id)
        for request_id in set(message.request_ids) - holder.requests:
            self._table.add(holder, request_id)
            if self._claims is not None:
                self._claims.count(request_id, _scope(holder.principal))

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
        if holder is None:
            return
        for request_id in holder.requests | holder.claiming:
            self._give_back(holder, request_id)

    def _give_back(self, holder: Holder, request_id: str) -> None:
        claimed = request_id in holder.requests or request_id in holder.claiming
        self._table.remove(holder, request_id)
        if self._claims is None or not claimed:
            return
        self._claims.release(request_id)
        holder.claiming.discard(request_id)
        for asker in self._askers.pop(request_id, ()):
            asker.set()  # the session has given it up itself

    # ------------------------------------------------------------------ on a node of a cluster

    def _claim(self, message: ReserveCall, holder: Holder, claims: Claims) -> None:
        """Count the call once it is claimed; the database is asked beside the mailbox."""
        request_id, session = message.request_id, message.session
        self._askers.setdefault(request_id, []).append(self.defer())
        if request_id in holder.claiming:
            return
        holder.claiming.add(request_id)

        def claimed(*, granted: bool = False, error: BaseException | None = None) -> CallClaimed:
            return CallClaimed(session=session, request_id=request_id, granted=granted, error=error)

        self.pipe_to_self(
            claims.claim(request_id, _scope(holder.principal), self._limit),
            lambda granted: claimed(granted=granted),
            lambda error: claimed(error=error),
        )

    @handles(CallClaimed)
    def _claimed(self, message: CallClaimed) -> None:
        holder = self._table.holders.get(message.session)
        if holder is None or message.request_id not in holder.claiming:
            return  # released meanwhile
        holder.claiming.remove(message.request_id)
        if message.granted:
            self._table.add(holder, message.request_id)
        for asker in self._askers.pop(message.request_id, ()):
            if message.granted:
                asker.set()
            else:
                asker.set_error(message.error or self._full())

    def _full(self) -> LimitExceeded:
        return LimitExceeded(
            f"callers.max_pending_requests: {self._limit} calls are pending already"
        )


def _scope(principal: str) -> str:
    return f"calls:{principal}"
