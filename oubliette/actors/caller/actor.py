"""Actor of one caller: the tools that it provides, its presence, and the events that it receives.

A CallerActor is a view of the log, not a queue: it keeps the newest events of its caller at hand
and answers listeners, each of which is a cursor. It also tracks whether the caller is present, and
notifies the actors that wait for its answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.caller.delivery import DELIVERY_MESSAGES, BacklogFailed, EventDelivery
from oubliette.actors.caller.listener import Listener
from oubliette.actors.caller.messages import (
    CallerState,
    CloseListener,
    EventBatch,
    GetCaller,
    ListenerOpened,
    NextEvents,
    OpenListener,
)
from oubliette.actors.caller.presence import PresenceByReach
from oubliette.actors.caller.presence_watch import BOARD_MESSAGES, CheckPresence, PresenceWatch
from oubliette.actors.messages import (
    CallerSeen,
    EventsCommitted,
    TrackRequest,
    UntrackRequest,
    caller_key,
)
from oubliette.actors.store.actor import Subscribe
from oubliette.actors.store.subscription import (
    ASK_SECONDS,
    LogSubscription,
    NotSubscribed,
    Resubscribe,
    Subscribed,
)
from oubliette.kit import Actor, Down, Message, handles
from oubliette.kit.fair_loop import working_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oubliette.actors.caller.memory import CallerMemory
    from oubliette.actors.caller_board import CallerBoard
    from oubliette.config.schema import CallersConfig
    from oubliette.kit import Ref
    from oubliette.records import CallerRequest, Event, PermissionRequest
    from oubliette.runtime.store.reader import Reader

log = structlog.get_logger("oubliette.callers")

IDLE_SECONDS: Final = 3600.0
KEEP_RECENT_SECONDS: Final = 60.0
"""Seconds for which the newest events are kept in memory for a caller that does not listen."""


class _CheckIdle(Message):
    pass


class _CheckRecent(Message):
    """Time to check whether the newest events are still needed."""


class CallerActor(Actor):
    """Actor of one caller of one principal: its listeners, its presence, its waiting requests."""

    mailbox_size: ClassVar[int] = 5000

    def __init__(
        self,
        store: Ref,
        reader: Reader,
        config: CallersConfig,
        *,
        principal: str,
        caller_id: str,
        memory: CallerMemory,
        board: CallerBoard | None = None,
    ) -> None:
        super().__init__()
        self._reader = reader
        self._principal = principal
        self._caller_id = caller_id
        self._memory = memory
        self._delivery = EventDelivery(
            self, reader, memory, principal=principal, caller_id=caller_id
        )
        self._providers: dict[str | None, Listener] = {}
        """By the project that their rights are restricted to; None: the unrestricted one."""
        subscribe = Subscribe(caller_key=caller_key(principal, caller_id), name=self.name)
        self._subscription = LogSubscription(self, store, reader, subscribe)
        self._presence = PresenceByReach(config.stream_grace_seconds, config.poll_grace_seconds)
        self._watch = PresenceWatch(
            self,
            self._presence,
            memory,
            key=(principal, caller_id),
            board=board,
            on_superseded=self._supersede,
        )
        self._begun = False
        """Whether it has been subscribed; the database may be away when it starts."""
        self._last_used = 0.0
        self._checking_recent = False
        """Whether a `_CheckRecent` is scheduled."""

    async def on_start(self) -> None:
        """Subscribe to the log; a restarted actor gives its listeners time to come back."""
        working_for.set(self._principal)
        self._last_used = self.clock.monotonic()
        if self._memory.delivered or self._memory.tracked:
            self._presence.of(None).seen(self._last_used)
        self.after(IDLE_SECONDS, _CheckIdle())
        last = await self._subscription.begin()
        if last is not None:
            await self._begin(last)

    async def _begin(self, last: int, early: Sequence[Event] = ()) -> None:
        """Go on after the event `last`, at which it was subscribed for the first time."""
        self._delivery.restart(last, early)
        row = await self._watch.begin()
        if not self._memory.delivered:
            self._memory.delivered = min(last, (row and row.delivered) or last)
        self._begun = True
        self._watch.check()

    # ------------------------------------------------------------ the log
    @handles(EventsCommitted)
    def _committed(self, message: EventsCommitted) -> None:
        if self._subscription.passes(message.events):
            self._watch_recent()
            self._delivery.committed(message.events)

    @handles(Down)
    def _store_down(self, _: Down) -> None:
        self._subscription.lost()

    @handles(Resubscribe)
    def _resubscribe(self, _: Resubscribe) -> None:
        self._subscription.renew()

    @handles(Subscribed)
    async def _subscribed_again(self, message: Subscribed) -> None:
        # Events committed in between were not sent: they are read from the log.
        early = self._subscription.renewed()
        if self._begun:
            self._delivery.restart(message.last, early)
        else:
            await self._begin(message.last, early)
        self._delivery.serve_all()

    @handles(NotSubscribed)
    def _not_subscribed(self, message: NotSubscribed) -> None:
        self._subscription.not_renewed(message)

    # ------------------------------------------------------------ listeners
    @handles(OpenListener)
    async def _open(self, message: OpenListener) -> ListenerOpened:
        self._last_used = self.clock.monotonic()
        if not self._begun:
            self._subscription.check()
        scope, shared = message.project_id, self._watch.row(message.project_id)
        if message.tools is not None:
            self._memory.provide(scope, message.tools)
            if shared is not None:
                shared.tools_changed()
        provides = message.mode == "provide"
        head = self._delivery.head
        # A cursor beyond the log comes from another server: it would never receive an event.
        after = None if message.after is None else min(message.after, head)
        requests: list[CallerRequest | PermissionRequest] = []
        again: list[Event] = []
        if provides:
            async with asyncio.timeout(ASK_SECONDS):
                requests = await open_requests(self._reader, self._principal, self._caller_id)
                before = head if after is None else after if message.again else 0
                again = await events_of(self._reader, requests, before)
        if provides and shared is not None:
            await shared.open(stream=message.kind == "stream", head=head)
        listener = Listener(
            message.listener_id,
            provides=provides,
            kind=message.kind,
            cursor=head if after is None else after,
            backlog=head,
            delivered=self._memory.delivered if message.kind == "poll" else head,
            open_requests=frozenset(request.id for request in requests),
            again=again,
            project_id=message.project_id,
        )
        if provides and scope is None:
            listener.left_out = self._restricted
        if listener.needs_projects:
            async with asyncio.timeout(ASK_SECONDS):
                await self._delivery.restrict(listener)
        self._delivery.add(listener)
        if provides:
            self._supersede(scope)
            self._providers[scope] = listener
            self._leave_out()
            self._watch.opened(listener)
        if shared is not None:
            if provides and shared.superseded:
                self._supersede(scope)
            shared.compare()
        return ListenerOpened(cursor=listener.cursor, redelivered=len(listener.again))

    @property
    def _restricted(self) -> frozenset[str]:
        """The projects with a provider of their own, here or on another node."""
        here = frozenset(scope for scope in self._providers if scope is not None)
        return here | self._watch.provided_elsewhere()

    def _leave_out(self) -> None:
        if (unrestricted := self._providers.get(None)) is not None:
            unrestricted.left_out = self._restricted

    def _supersede(self, scope: str | None) -> None:
        older = self._providers.pop(scope, None)
        if older is not None:
            self._watch.superseded(older)
            self._delivery.supersede(older)

    @handles(CloseListener)
    def _close(self, message: CloseListener) -> None:
        listener = self._delivery.get(message.listener_id)
        if listener is None:
            return
        scopes = [scope for scope, each in self._providers.items() if each is listener]
        if scopes:
            del self._providers[scopes[0]]
            self._leave_out()
            self._last_used = self.clock.monotonic()
            self._watch.closed(listener, orderly=message.orderly)
        self._delivery.end(listener, message.reason)
        self._watch_recent()

    # ------------------------------------------------------------ delivery
    @handles(NextEvents, at_once=True)
    def _next(self, message: NextEvents) -> EventBatch | None:
        listener = self._delivery.get(message.listener_id)
        if listener is None:
            ended = self._delivery.why_ended(message.listener_id)
            return EventBatch(events=(), next=message.after, ended=ended)
        self._delivery.expect(listener, message, self.defer())
        return None

    @handles(*DELIVERY_MESSAGES)
    def _delivery_message(self, message: Message) -> None:
        self._delivery.take(message)

    @handles(BacklogFailed)
    def _backlog_failed(self, message: BacklogFailed) -> None:
        log.warning("caller backlog unreadable", caller=self.name, reason=message.reason)
        listener = self._delivery.get(message.listener_id)
        if listener is not None:
            listener.reading = False
            self._close(CloseListener(listener_id=listener.id, reason=message.reason, orderly=True))

    # ------------------------------------------------------------ presence
    @handles(CallerSeen)
    def _seen(self, _: CallerSeen) -> None:
        self._last_used = self.clock.monotonic()
        self._watch.seen()

    @handles(TrackRequest, at_once=True)
    def _track(self, message: TrackRequest) -> None:
        self._last_used = self.clock.monotonic()
        self._watch.track(message)

    @handles(UntrackRequest, at_once=True)
    def _untrack(self, message: UntrackRequest) -> None:
        self._watch.untrack(message.request_id)

    @handles(CheckPresence)
    def _check_presence(self, _: CheckPresence) -> None:
        self._watch.check()

    @handles(*BOARD_MESSAGES)
    def _board_message(self, message: Message) -> None:
        self._watch.take(message)
        self._leave_out()

    # ------------------------------------------------------------ the rest
    def _watch_recent(self) -> None:
        """Ensure that events are not kept in memory for a caller that has gone."""
        if not self._delivery.listened and not self._checking_recent:
            self._checking_recent = True
            self.after(KEEP_RECENT_SECONDS, _CheckRecent())

    @handles(_CheckRecent)
    def _check_recent(self, _: _CheckRecent) -> None:
        self._checking_recent = False
        if self._delivery.listened:
            return
        now = self.clock.monotonic()
        if self._presence.present(now) and not self._presence.held_elsewhere(now):
            self._watch_recent()
        else:
            self._delivery.forget()

    @handles(GetCaller)
    def _get(self, message: GetCaller) -> None:
        deferred = self.defer()
        self._watch.look(lambda: deferred.set(self._state(message)), message.project_id)

    def _state(self, asked: GetCaller) -> CallerState:
        now = self.clock.monotonic()
        present = self._presence.present(now)
        return CallerState(
            present=present,
            reason=None if present else self._presence.reason,
            provided=bool(self._providers) or self._presence.held_elsewhere(now),
            head=self._delivery.head,
            tools=self._memory.tools_for(asked.project_id, restricted=asked.restricted),
            tracked=len(self._memory.tracked),
        )

    @handles(_CheckIdle)
    def _check_idle(self, _: _CheckIdle) -> None:
        idle = self.clock.monotonic() - self._last_used
        if self._delivery.listened or self._memory.tracked or idle < IDLE_SECONDS:
            self.after(max(1.0, IDLE_SECONDS - idle), _CheckIdle())
        else:
            self.stop()


async def open_requests(
    reader: Reader, principal: str, caller_id: str
) -> list[CallerRequest | PermissionRequest]:
    """The calls and questions to this caller that have no answer."""
    return [
        *await reader.open_requests(principal=principal, caller_id=caller_id),
        *await reader.open_permissions(principal, caller_id),
    ]


async def events_of(
    reader: Reader, requests: Iterable[CallerRequest | PermissionRequest], head: int
) -> list[Event]:
    """Return the events of these requests up to the seq `head`, in seq order; none for 0."""
    found: list[Event] = []
    for request in requests if head else ():
        event = await reader.event(request.session_id, request.event_index)
        if event is not None and event.seq <= head:
            found.append(event.sendable())
    found.sort(key=lambda event: event.seq)
    return found
