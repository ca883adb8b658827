"""Actor of one caller: the tools that it provides, its presence, and the events that it receives.

A CallerActor is a view of the log, not a queue: it keeps the newest events of its caller at hand
and answers listeners, each of which is a cursor. It also tracks whether the caller is present, and
notifies the actors that wait for its answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.caller.delivery import (
    BacklogFailed,
    BacklogRead,
    EventDelivery,
    ProjectsRead,
    SettledJoined,
    WaitExpired,
)
from oubliette.actors.caller.listener import Listener
from oubliette.actors.caller.memory import TrackedRequest
from oubliette.actors.caller.messages import (
    SUPERSEDED,
    UNKNOWN,
    CallerState,
    CloseListener,
    EventBatch,
    GetCaller,
    ListenerOpened,
    NextEvents,
    OpenListener,
)
from oubliette.actors.caller.presence import CallerPresence
from oubliette.actors.caller.reader import events_of, open_requests
from oubliette.actors.messages import (
    CallerDisconnected,
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
from oubliette.kit import Actor, Down, MailboxFull, Message, handles

if TYPE_CHECKING:
    from oubliette.actors.caller.memory import CallerMemory
    from oubliette.actors.caller.reader import CallerReader
    from oubliette.config.schema import CallersConfig
    from oubliette.kit import ActorTimer, Ref
    from oubliette.records import CallerRequest, Event, PermissionRequest

log = structlog.get_logger("oubliette.callers")

IDLE_SECONDS: Final = 3600.0
KEEP_RECENT_SECONDS: Final = 60.0
"""Seconds for which the newest events are kept in memory for a caller that does not listen."""


class _CheckPresence(Message):
    pass


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
        reader: CallerReader,
        config: CallersConfig,
        *,
        principal: str,
        caller_id: str,
        memory: CallerMemory,
    ) -> None:
        super().__init__()
        self._reader = reader
        self._principal = principal
        self._caller_id = caller_id
        self._memory = memory
        self._delivery = EventDelivery(
            self, reader, memory, principal=principal, caller_id=caller_id
        )
        self._provider: Listener | None = None
        subscribe = Subscribe(caller_key=caller_key(principal, caller_id), name=self.name)
        self._subscription = LogSubscription(self, store, reader, subscribe)
        self._presence = CallerPresence(config.stream_grace_seconds, config.poll_grace_seconds)
        self._presence_timer: ActorTimer | None = None
        self._last_used = 0.0
        self._checking_recent = False
        """Whether a `_CheckRecent` is scheduled."""

    async def on_start(self) -> None:
        """Subscribe to the log; a restarted actor gives its listeners time to come back."""
        self._last_used = self.clock.monotonic()
        if self._memory.delivered or self._memory.tracked:
            self._presence.seen(self._last_used)
        last = await self._subscription.begin()
        self._delivery.restart(last)
        if not self._memory.delivered:
            self._memory.delivered = last
        self.after(IDLE_SECONDS, _CheckIdle())
        self._check_presence(_CheckPresence())

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
    def _subscribed_again(self, message: Subscribed) -> None:
        # Events committed in between were not sent: they are read from the log.
        self._delivery.restart(message.last, self._subscription.renewed())
        self._delivery.serve_all()

    @handles(NotSubscribed)
    def _not_subscribed(self, message: NotSubscribed) -> None:
        self._subscription.not_renewed(message)

    # ------------------------------------------------------------ listeners
    @handles(OpenListener)
    async def _open(self, message: OpenListener) -> ListenerOpened:
        self._last_used = self.clock.monotonic()
        if message.tools is not None:
            self._memory.tools = message.tools
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
        if message.project_id is not None:
            async with asyncio.timeout(ASK_SECONDS):
                await self._delivery.restrict(listener)
        if provides:
            self._supersede()
            self._provider = listener
            self._presence.opened(listener.id, stream=message.kind == "stream")
        self._delivery.add(listener)
        return ListenerOpened(cursor=listener.cursor, redelivered=len(listener.again))

    def _supersede(self) -> None:
        older, self._provider = self._provider, None
        if older is not None:
            self._presence.superseded(older.id)
            self._delivery.end(older, SUPERSEDED)

    @handles(CloseListener)
    def _close(self, message: CloseListener) -> None:
        listener = self._delivery.get(message.listener_id)
        if listener is None:
            return
        if listener is self._provider:
            self._provider = None
            now = self._last_used = self.clock.monotonic()
            self._presence.closed(listener.id, now, orderly=message.orderly)
            self._watch_presence()
        self._delivery.end(listener, message.reason)
        self._watch_recent()

    # ------------------------------------------------------------ delivery
    @handles(NextEvents, at_once=True)
    def _next(self, message: NextEvents) -> EventBatch | None:
        listener = self._delivery.get(message.listener_id)
        if listener is None:
            return EventBatch(events=(), next=message.after, ended=UNKNOWN)
        self._delivery.expect(listener, message, self.defer())
        return None

    @handles(WaitExpired)
    def _wait_over(self, message: WaitExpired) -> None:
        self._delivery.wait_over(message)

    @handles(SettledJoined)
    def _joined(self, _: SettledJoined) -> None:
        self._delivery.joined()

    @handles(BacklogRead)
    def _backlog_read(self, message: BacklogRead) -> None:
        self._delivery.backlog_read(message)

    @handles(ProjectsRead)
    def _projects_read(self, message: ProjectsRead) -> None:
        self._delivery.projects_read(message)

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
        self._presence.seen(self._last_used)
        self._watch_presence()

    @handles(TrackRequest, at_once=True)
    def _track(self, message: TrackRequest) -> None:
        now = self._last_used = self.clock.monotonic()
        # A caller that was absent since the server's start may be on its way back from the last
        # one.
        grace = message.grace if message.adopted or not self._presence.known else 0.0
        self._memory.tracked[message.request_id] = TrackedRequest(
            message.reply_to, message.durable, now + grace
        )
        self._check_presence(_CheckPresence())

    @handles(UntrackRequest, at_once=True)
    def _untrack(self, message: UntrackRequest) -> None:
        self._memory.tracked.pop(message.request_id, None)

    @handles(_CheckPresence)
    def _check_presence(self, _: _CheckPresence) -> None:
        now = self.clock.monotonic()
        if not self._presence.present(now):
            for request_id, tracked in self._memory.lost(now).items():
                del self._memory.tracked[request_id]
                self._tell_lost(tracked)
        self._watch_presence()

    def _tell_lost(self, tracked: TrackedRequest) -> None:
        reason = f"caller {self._caller_id} is not connected: {self._presence.reason}"
        try:
            self.system.ref(tracked.reply_to).tell(CallerDisconnected(reason=reason))
        except MailboxFull:
            log.warning("loss of a caller not reported", caller=self.name, to=tracked.reply_to)

    def _watch_presence(self) -> None:
        """Set the timer to the next time at which a change of presence may have to be reported."""
        if self._presence_timer is not None:
            self._presence_timer.cancel()
            self._presence_timer = None
        if self._presence.held:
            return
        due = self._memory.next_loss(self._presence.until())
        if due is None:
            return
        delay = max(0.0, due - self.clock.monotonic())
        self._presence_timer = self.after(delay, _CheckPresence())

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
        if self._presence.present(self.clock.monotonic()):
            self._watch_recent()
        else:
            self._delivery.forget()

    @handles(GetCaller)
    def _get(self, _: GetCaller) -> CallerState:
        present = self._presence.present(self.clock.monotonic())
        return CallerState(
            present=present,
            reason=None if present else self._presence.reason,
            provided=self._provider is not None,
            head=self._delivery.head,
            tools=self._memory.tools,
            tracked=len(self._memory.tracked),
        )

    @handles(_CheckIdle)
    def _check_idle(self, _: _CheckIdle) -> None:
        idle = self.clock.monotonic() - self._last_used
        if self._delivery.listened or self._memory.tracked or idle < IDLE_SECONDS:
            self.after(max(1.0, IDLE_SECONDS - idle), _CheckIdle())
        else:
            self.stop()
