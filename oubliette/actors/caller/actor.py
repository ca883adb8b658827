"""Callers: the tools that they provide, their presence, and the events that they receive.

A CallerActor is a view of the log, not a queue: it keeps the newest events of its caller at hand
and answers listeners, each of which is a cursor. It also tracks whether the caller is present, and
notifies the actors that wait for its answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.caller.event_window import RecentEvents, size_of
from oubliette.actors.caller.listener import Listener
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
from oubliette.actors.caller.projects import KnownProjects
from oubliette.actors.messages import (
    CallerDisconnected,
    CallerSeen,
    EventsCommitted,
    TrackRequest,
    UntrackRequest,
    caller_key,
)
from oubliette.actors.store.actor import Subscribe
from oubliette.kit import Actor, Down, MailboxFull, Message, handles
from oubliette.records import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.actors.caller.reader import CallerReader
    from oubliette.config.schema import CallersConfig
    from oubliette.kit import ActorTimer, Ref
    from oubliette.records import CallerRequest, CallerTool, PermissionRequest

log = structlog.get_logger("oubliette.callers")

IDLE_SECONDS: Final = 3600.0
READ_TIMEOUT: Final = 10.0  # seconds for a read of the store
RESUBSCRIBE_SECONDS: Final = 0.2
KEEP_RECENT_SECONDS: Final = 60.0
"""Seconds for which the newest events are kept in memory for a caller that does not listen."""
JOIN_SECONDS: Final = 0.01
"""Seconds that notices of settled calls, which the caller knows of, wait to be sent with events."""
_SETTLED: Final = "caller_tool_settled"


class _Backlog(Message):
    listener_id: str
    events: tuple[Event, ...]
    floor: int


class _BacklogFailed(Message):
    listener_id: str
    reason: str


class _ProjectsRead(Message):
    listener_id: str
    projects: dict[str, str]


class _PollExpired(Message):
    listener_id: str


class _Joined(Message):
    """Notices of settled calls have waited long enough."""


class _CheckPresence(Message):
    pass


class _Subscribed(Message):
    last: int


class _NotSubscribed(Message):
    reason: str


class _Resubscribe(Message):
    pass


class _CheckIdle(Message):
    pass


class _CheckRecent(Message):
    """Time to check whether the newest events are still needed."""


@dataclass
class _Tracked:
    reply_to: str
    durable: bool
    not_before: float
    """Monotonic second before which an absent caller is waited for."""


@dataclass
class CallerMemory:
    """State that a CallerActor keeps over its own restarts; in memory, owned by that actor."""

    tools: tuple[CallerTool, ...] | None = None
    tracked: dict[str, _Tracked] = field(default_factory=dict[str, _Tracked])
    delivered: int = 0
    """Seq up to which a provider received events."""


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
        self._store = store
        self._reader = reader
        self._config = config
        self._principal = principal
        self._caller_id = caller_id
        self._memory = memory
        self._listeners: dict[str, Listener] = {}
        self._provider: Listener | None = None
        self._recent = RecentEvents(0)
        self._subscribed = False
        self._early: list[Event] = []
        """Events from the store that came before the start of the subscription is known."""
        self._projects = KnownProjects()
        self._presence = CallerPresence(config.stream_grace_seconds, config.poll_grace_seconds)
        self._presence_timer: ActorTimer | None = None
        self._joining = False
        """Whether a `_Joined` is scheduled."""
        self._last_used = 0.0
        self._checking_recent = False
        """Whether a `_CheckRecent` is scheduled."""

    async def on_start(self) -> None:
        """Subscribe to the log; a restarted actor gives its listeners time to come back."""
        self._last_used = self.clock.monotonic()
        if self._memory.delivered or self._memory.tracked:
            self._presence.seen(self._last_used)
        self.watch(self._store)
        async with asyncio.timeout(READ_TIMEOUT):
            await self._store.ask(self._subscription(), timeout=READ_TIMEOUT)
            last = await self._reader.last_seq()
        self._recent = RecentEvents(last)
        self._subscribed = True
        if not self._memory.delivered:
            self._memory.delivered = last
        self.after(IDLE_SECONDS, _CheckIdle())
        self._check_presence(_CheckPresence())

    def _subscription(self) -> Subscribe:
        return Subscribe(caller_key=caller_key(self._principal, self._caller_id), name=self.name)

    # ------------------------------------------------------------ the log
    @handles(EventsCommitted)
    def _committed(self, message: EventsCommitted) -> None:
        if not self._subscribed:
            # There may be older ones that were not sent to us: they are read first.
            self._early += message.events
            return
        self._recent.extend(message.events)
        self._watch_recent()
        if not self._joining and any(event.type == _SETTLED for event in message.events):
            self._joining = True
            self.after(JOIN_SECONDS, _Joined())
        self._serve_all()

    @handles(_Joined)
    def _joined(self, _: _Joined) -> None:
        self._joining = False
        self._serve_all()

    def _serve_all(self) -> None:
        for listener in list(self._listeners.values()):
            self._serve(listener)

    @handles(Down)
    def _store_down(self, _: Down) -> None:
        self._subscribed = False
        self.after(RESUBSCRIBE_SECONDS, _Resubscribe())

    @handles(_Resubscribe)
    def _resubscribe(self, _: _Resubscribe) -> None:
        self._early.clear()  # all of them are in the log by now

        async def subscribe() -> int:
            await self._store.ask(self._subscription(), timeout=READ_TIMEOUT)
            return await self._reader.last_seq()

        self.pipe_to_self(
            subscribe(),
            lambda last: _Subscribed(last=last),
            lambda error: _NotSubscribed(reason=str(error)),
        )

    @handles(_Subscribed)
    def _subscribed_again(self, message: _Subscribed) -> None:
        # Events committed in between were not sent: they are read from the log.
        self._recent = RecentEvents(max(message.last, self._recent.head))
        self._recent.extend(self._early)
        self._early.clear()
        self._subscribed = True
        self.watch(self._store)
        self._serve_all()

    @handles(_NotSubscribed)
    def _not_subscribed(self, message: _NotSubscribed) -> None:
        log.warning("caller not subscribed", caller=self.name, reason=message.reason)
        self.after(RESUBSCRIBE_SECONDS, _Resubscribe())

    # ------------------------------------------------------------ listeners
    @handles(OpenListener)
    async def _open(self, message: OpenListener) -> ListenerOpened:
        self._last_used = self.clock.monotonic()
        if message.tools is not None:
            self._memory.tools = message.tools
        provides = message.mode == "provide"
        head = self._recent.head
        # A cursor beyond the log comes from another server: it would never receive an event.
        after = None if message.after is None else min(message.after, head)
        requests: list[CallerRequest | PermissionRequest] = []
        if provides:
            async with asyncio.timeout(READ_TIMEOUT):
                requests = [
                    *await self._reader.open_requests(
                        principal=self._principal, caller_id=self._caller_id
                    ),
                    *await self._reader.open_permissions(self._principal, self._caller_id),
                ]
                before = head if after is None else after if message.again else 0
                again = await self._events_of(requests, before)
        else:
            again = []
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
            async with asyncio.timeout(READ_TIMEOUT):
                self._projects.learn(await self._projects.read(self._reader, again))
            listener.again = deque(e for e in again if listener.reaches(e, self._projects))
        if provides:
            self._supersede()
            self._provider = listener
            self._presence.opened(listener.id, stream=message.kind == "stream")
        self._listeners[listener.id] = listener
        return ListenerOpened(cursor=listener.cursor, redelivered=len(listener.again))

    def _knows(self, listener: Listener, events: Iterable[Event]) -> bool:
        """Return whether the projects of these events are known, if needed; else request them."""
        if listener.project_id is None:
            return True
        unknown = [event for event in events if event.session_id not in self._projects]
        if unknown:
            self.pipe_to_self(
                self._projects.read(self._reader, unknown),
                lambda found: _ProjectsRead(listener_id=listener.id, projects=found),
                lambda error: _BacklogFailed(listener_id=listener.id, reason=str(error)),
            )
        return not unknown

    @handles(_ProjectsRead)
    def _projects_read(self, message: _ProjectsRead) -> None:
        self._projects.learn(message.projects)
        listener = self._listeners.get(message.listener_id)
        if listener is not None:
            self._serve(listener)

    async def _events_of(
        self, requests: Iterable[CallerRequest | PermissionRequest], head: int
    ) -> list[Event]:
        found: list[Event] = []
        for request in requests if head else ():
            event = await self._reader.event(request.session_id, request.event_index)
            if event is not None and event.seq <= head:
                found.append(event)
        found.sort(key=lambda event: event.seq)
        return found

    def _supersede(self) -> None:
        older, self._provider = self._provider, None
        if older is not None:
            self._presence.superseded(older.id)
            self._end_listener(older, SUPERSEDED)

    @handles(CloseListener)
    def _close(self, message: CloseListener) -> None:
        listener = self._listeners.get(message.listener_id)
        if listener is None:
            return
        if listener is self._provider:
            self._provider = None
            now = self._last_used = self.clock.monotonic()
            self._presence.closed(listener.id, now, orderly=message.orderly)
            self._watch_presence()
        self._end_listener(listener, message.reason)
        self._watch_recent()

    def _end_listener(self, listener: Listener, reason: str) -> None:
        del self._listeners[listener.id]
        self._answer(listener, (), ended=reason)

    @handles(NextEvents, at_once=True)
    def _next(self, message: NextEvents) -> EventBatch | None:
        listener = self._listeners.get(message.listener_id)
        if listener is None:
            return EventBatch(events=(), next=message.after, ended=UNKNOWN)
        self._answer(listener, ())
        listener.cursor = max(listener.cursor, message.after)
        listener.expect(self.defer(), message.max_events, message.max_bytes)
        self._serve(listener)
        if listener.waiting is not None:
            listener.timer = self.after(
                message.wait_seconds, _PollExpired(listener_id=message.listener_id)
            )
        return None

    def _serve(self, listener: Listener) -> None:
        """Answer a waiting listener with the available events, if there are any."""
        if listener.waiting is None:
            return
        if listener.waiting.done:
            self._answer(listener, ())
        elif listener.again:
            self._answer(listener, listener.take_again())
        elif listener.cursor < self._recent.floor:
            self._read_backlog(listener)
        elif listener.cursor < self._recent.head:
            found = self._recent.after(listener.cursor)
            if self._joining and listener.kind == "stream" and _only_settled(found):
                return
            if self._knows(listener, (event for event, _ in found)) and (
                events := listener.pick(found, self._projects)
            ):
                self._answer(listener, events)

    def _read_backlog(self, listener: Listener) -> None:
        if listener.reading:
            return
        listener.reading = True
        floor = self._recent.floor
        self.pipe_to_self(
            self._reader.caller_events(
                self._principal,
                self._caller_id,
                listener.cursor,
                listener.max_events,
                listener.max_bytes,
            ),
            lambda events: _Backlog(listener_id=listener.id, events=tuple(events), floor=floor),
            lambda error: _BacklogFailed(listener_id=listener.id, reason=str(error)),
        )

    @handles(_Backlog)
    def _backlog(self, message: _Backlog) -> None:
        listener = self._listeners.get(message.listener_id)
        if listener is None:
            return
        listener.reading = False
        if listener.waiting is None or not self._knows(listener, message.events):
            return
        events = listener.pick(
            ((event, size_of(event)) for event in message.events), self._projects
        )
        if not message.events:
            # The log holds nothing more that was committed before the read began.
            listener.cursor = max(listener.cursor, message.floor)
        if events:
            self._answer(listener, events)
        else:
            self._serve(listener)

    @handles(_BacklogFailed)
    def _backlog_failed(self, message: _BacklogFailed) -> None:
        log.warning("caller backlog unreadable", caller=self.name, reason=message.reason)
        listener = self._listeners.get(message.listener_id)
        if listener is not None:
            listener.reading = False
            self._close(CloseListener(listener_id=listener.id, reason=message.reason, orderly=True))

    @handles(_PollExpired)
    def _wait_over(self, message: _PollExpired) -> None:
        listener = self._listeners.get(message.listener_id)
        if listener is not None:
            listener.timer = None
            self._answer(listener, ())

    def _answer(
        self, listener: Listener, events: tuple[Event, ...] | list[Event], ended: str | None = None
    ) -> None:
        waiting, listener.waiting = listener.waiting, None
        if listener.timer is not None:
            listener.timer.cancel()
            listener.timer = None
        if waiting is None:
            return
        marked = tuple(event.seq for event in events if listener.marks(event))
        if listener.provides and events:
            self._memory.delivered = max(self._memory.delivered, listener.cursor)
        cursor = listener.cursor
        if listener.kind == "poll" and listener.again and events:
            cursor = events[-1].seq  # this listener will not fetch the rest; the next one will
        waiting.set(EventBatch(events=tuple(events), next=cursor, redelivered=marked, ended=ended))

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
        self._memory.tracked[message.request_id] = _Tracked(
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
            lost = [
                (request_id, tracked)
                for request_id, tracked in self._memory.tracked.items()
                if not tracked.durable and tracked.not_before <= now
            ]
            for request_id, tracked in lost:
                del self._memory.tracked[request_id]
                self._tell_lost(tracked)
        self._watch_presence()

    def _tell_lost(self, tracked: _Tracked) -> None:
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
        waiting = [one for one in self._memory.tracked.values() if not one.durable]
        if not waiting:
            return
        absent = self._presence.until()
        due = max(absent, min(one.not_before for one in waiting))
        delay = max(0.0, due - self.clock.monotonic())
        self._presence_timer = self.after(delay, _CheckPresence())

    # ------------------------------------------------------------ the rest
    def _watch_recent(self) -> None:
        """Ensure that events are not kept in memory for a caller that has gone."""
        if not self._listeners and not self._checking_recent:
            self._checking_recent = True
            self.after(KEEP_RECENT_SECONDS, _CheckRecent())

    @handles(_CheckRecent)
    def _check_recent(self, _: _CheckRecent) -> None:
        self._checking_recent = False
        if self._listeners:
            return
        if self._presence.present(self.clock.monotonic()):
            self._watch_recent()
        else:
            self._recent.forget()
            self._projects.clear()

    @handles(GetCaller)
    def _get(self, _: GetCaller) -> CallerState:
        present = self._presence.present(self.clock.monotonic())
        return CallerState(
            present=present,
            reason=None if present else self._presence.reason,
            provided=self._provider is not None,
            head=self._recent.head,
            tools=self._memory.tools,
            tracked=len(self._memory.tracked),
        )

    @handles(_CheckIdle)
    def _check_idle(self, _: _CheckIdle) -> None:
        idle = self.clock.monotonic() - self._last_used
        if self._listeners or self._memory.tracked or idle < IDLE_SECONDS:
            self.after(max(1.0, IDLE_SECONDS - idle), _CheckIdle())
        else:
            self.stop()


def _only_settled(found: Iterable[tuple[Event, int]]) -> bool:
    return all(event.type == _SETTLED for event, _ in found)
