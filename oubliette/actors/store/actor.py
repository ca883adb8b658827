"""StoreActor: the only path of writes, and the publisher of what was written.

It owns the writer's thread. A transaction is answered once it is committed; its events are sent to
the subscribed callers before that. Reads go to a `Reader`, not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

import msgspec
import structlog

from oubliette.actors.messages import EventsCommitted, caller_key
from oubliette.errors import Unavailable
from oubliette.kit import Actor, ActorDead, Deferred, Down, MailboxFull, Message, Reply, handles
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.operations import AppendEvents, Op, Result
from oubliette.runtime.store.writer import HOLD_SECONDS, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.kit import Reason, Ref
    from oubliette.records import Event
    from oubliette.runtime.store.batch_commits import Request
    from oubliette.runtime.store.postgres.database import PostgresDatabase
    from oubliette.runtime.store.postgres.log_tail import LogTail
    from oubliette.runtime.store.writer import State

CLOSE_SECONDS: Final = 1.0
"""Seconds that the end waits for the last commit."""
TAIL_SECONDS: Final = 10.0
"""Seconds for the tail of a shared log to find its place at the start."""
MAX_BEHIND: Final = 10_000
"""Events kept for a subscriber whose mailbox is full; then it is cut off."""

OUTAGE_SECONDS: Final = 24 * 3600.0
"""Deadline of an ask for `GetRunningSince`: no outage is waited for longer."""

log = structlog.get_logger("oubliette.store")


class StoreState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether writes go through."""

    state: Literal["running", "paused", "closed"]
    reason: str = ""
    """Reason why they do not; empty while they do."""


class Transact(Message, Reply[Result]):
    """Perform all operations or none; answered with their results once they are committed.

    Fails with the error of the operation that cannot be done (see `ops`), or with
    StorageUnavailable when the storage has not worked for 5 s; nothing is stored then.
    """

    ops: tuple[Op, ...]


class Subscribe(Message, Reply[None]):
    """Send this caller's events to the actor `name`, as `EventsCommitted`, in commit order.

    Events committed before the answer can be read, those committed after it are sent; an event in
    between may come both ways. The subscription ends with the actor.
    """

    caller_key: str
    name: str


class FollowLog(Message, Reply[None]):
    """Send `LogGrew` to the actor `name` after each commit that added events to the log.

    Events committed before the answer can be read; each later commit comes with a notice. The
    notices end with the actor.
    """

    name: str
    session_id: str | None = None
    """Session whose events count; None: all sessions."""


class LogGrew(Message):
    """From the store to an actor that follows the log: there are events to read."""


class GetStoreState(Message, Reply[StoreState]):
    """Request for whether writes go through now."""


class GetRunningSince(Message, Reply[float]):
    """Request for the wall second since which writes go through; answered once they do.

    0 if they always did. No request can be answered in an outage of the storage, so each that
    has a deadline gets its whole time after one.
    """


class _WriterEnded(Message):
    """The writer's thread ended without being asked to."""

    reason: str


class _TailFailed(Message):
    """The tail of the log has ended, and subscribers would be sent nothing more."""

    reason: str


class _Sent(Message):
    """A subscriber whose mailbox was full has taken the events kept for it, or has ended."""

    name: str
    alive: bool


class StoreActor(Actor):
    """The only writer of the database. Its constructor takes the opened `Database`."""

    mailbox_size: ClassVar[int] = 20_000
    shutdown: ClassVar[float] = 2 * CLOSE_SECONDS

    def __init__(
        self, database: Database | PostgresDatabase, *, hold_seconds: float = HOLD_SECONDS
    ) -> None:
        super().__init__()
        self._database = database
        self._hold_seconds = hold_seconds
        self._state = StoreState(state="running")
        self._running_since = 0.0
        """Wall second of the end of the latest outage; 0 without one."""
        self._awaiting: list[Deferred] = []
        """Answers to those that wait for the end of this one."""
        self._under_way = 0
        """Transactions that the writer has not answered yet."""
        self._subscribers: dict[str, set[str]] = {}
        self._followers: dict[str | None, set[str]] = {}
        """By session, None for all sessions: names of the actors that get `LogGrew`."""
        self._watched: set[str] = set()
        self._tail: LogTail | None = None
        """Of a database that other machines write to: what it reads is published, in its order."""
        self._wanted = threading.Event()
        """Set while anybody follows the log; for the thread of the tail."""
        self._behind: dict[str, list[Event]] = {}
        """By name of a subscriber whose mailbox is full: the events that it still has to get."""

    async def on_start(self) -> None:
        """Start the writer, and the reader of what other machines write."""
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._writer = Writer(
            self._database,
            on_batch=self._from_writer(self._committed),
            on_state=self._from_writer(self._state_changed),
            hold_seconds=self._hold_seconds,
        )
        self._writer.start()
        if not isinstance(self._database, Database):
            tail = self._tail = self._database.tail(
                on_events=self._from_writer(self._publish),
                on_failed=self._from_writer(self._tail_failed),
                wanted=self._wanted.is_set,
            )
            tail.start()
            if not await asyncio.to_thread(tail.ready.wait, TAIL_SECONDS):
                raise Unavailable("the log cannot be read: the database does not answer")

    async def on_exit(self, reason: Reason, error: BaseException | None) -> None:
        """Commit and answer the accepted transactions, then end the writer; within a second."""
        del reason, error
        self._closing = True
        closed = asyncio.wrap_future(self._writer.close())
        ending = {closed}
        if self._tail is not None:
            ending.add(asyncio.ensure_future(asyncio.to_thread(self._tail.close)))
        await asyncio.wait(ending, timeout=CLOSE_SECONDS)
        if not closed.done():
            log.error("store writer does not end", seconds=CLOSE_SECONDS)
        elif (failure := closed.exception()) is not None:
            log.error("store writer failed", error=str(failure))

    def _from_writer(self, method: Callable[..., None]) -> Callable[..., None]:
        """Wrap `method` to be called on the writer's thread and run on the loop."""

        def call(*args: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no receiver left
                self._loop.call_soon_threadsafe(method, *args)

        return call

    # ------------------------------------------------------------------ writes

    @handles(Transact, at_once=True)
    def _transact(self, message: Transact) -> Result | None:
        if not message.ops and not self._under_way:
            return ()  # all events that were requested before are in the log: nothing to wait for
        self._writer.post(message.ops, self.defer())
        self._under_way += 1
        return None

    def _committed(self, batch: list[Request]) -> None:
        self._under_way -= len(batch)
        if self._tail is None and (self._subscribers or self._followers):
            self._publish(_appended(batch))
        for request in batch:
            deferred = cast("Deferred", request.tag)
            if request.error is None:
                deferred.set(request.result)
            elif not deferred.set_error(request.error):
                log.warning("store write failed unheard", error=str(request.error))

    # ------------------------------------------------------------------ news

    @handles(Subscribe)
    def _subscribe(self, message: Subscribe) -> None:
        self._subscribers.setdefault(message.caller_key, set()).add(message.name)
        self._watch(message.name)
        self._wanted.set()

    @handles(FollowLog)
    def _follow(self, message: FollowLog) -> None:
        self._followers.setdefault(message.session_id, set()).add(message.name)
        self._watch(message.name)
        self._wanted.set()

    def _watch(self, name: str) -> None:
        if name not in self._watched:
            self._watched.add(name)
            self.watch(self.system.ref(name))

    @handles(Down)
    def _subscriber_down(self, down: Down) -> None:
        self._forget(down.name)

    def _forget(self, name: str) -> None:
        self._watched.discard(name)
        self._behind.pop(name, None)
        for key in [key for key, names in self._subscribers.items() if name in names]:
            self._subscribers[key].discard(name)
            if not self._subscribers[key]:
                del self._subscribers[key]
        for followed in [each for each, names in self._followers.items() if name in names]:
            self._followers[followed].discard(name)
            if not self._followers[followed]:
                del self._followers[followed]
        self._note_wanted()

    def _note_wanted(self) -> None:
        if not self._subscribers and not self._followers:
            self._wanted.clear()

    def _publish(self, events: list[Event]) -> None:
        """Send events that were committed, in their order, to those that follow them."""
        if self._followers:
            self._notify_followers({event.session_id for event in events})
        news: dict[str, list[Event]] = {}
        for event in events if self._subscribers else ():
            if event.caller_id is not None:
                key = caller_key(event.principal, event.caller_id)
                for name in self._subscribers.get(key, ()):
                    news.setdefault(name, []).append(event)
        for name, its in news.items():
            self._tell(name, its)

    def _notify_followers(self, sessions: set[str]) -> None:
        names = set(self._followers.get(None, ())) if sessions else set[str]()
        for session_id in sessions:
            names.update(self._followers.get(session_id, ()))
        for name in names:
            ref = self.system.lookup(name)
            if ref is not None:
                # A full mailbox contains an earlier notice, which serves for this commit too.
                with contextlib.suppress(MailboxFull):
                    ref.tell(LogGrew())

    def _tell(self, name: str, events: list[Event]) -> None:
        behind = self._behind.get(name)
        if behind is not None:
            behind.extend(events)
            if len(behind) > MAX_BEHIND:
                self._cut_off(name)
            return
        ref = self.system.lookup(name)
        if ref is None:
            return  # its Down is about to arrive
        try:
            ref.tell(EventsCommitted(events=tuple(events)))
        except MailboxFull:
            self._behind[name] = []
            self._send_later(ref, events)

    def _send_later(self, ref: Ref, events: list[Event]) -> None:
        # this actor is ending: they continue to read in the log
        with contextlib.suppress(ActorDead):
            self.pipe_to_self(
                ref.send(EventsCommitted(events=tuple(events))),
                lambda _: _Sent(name=ref.name, alive=True),
                lambda _: _Sent(name=ref.name, alive=False),
            )

    @handles(_Sent)
    def _sent(self, message: _Sent) -> None:
        events = self._behind.get(message.name)
        ref = self.system.lookup(message.name)
        if events and message.alive and ref is not None:
            self._behind[message.name] = []
            self._send_later(ref, events)
        else:
            self._behind.pop(message.name, None)

    def _cut_off(self, name: str) -> None:
        """End a subscriber that accepts nothing: its successor reads on in the log."""
        log.error("store subscriber too slow", name=name, events=MAX_BEHIND)
        self._forget(name)
        with contextlib.suppress(ActorDead):
            self.pipe_to_self(
                self.system.ref(name).kill(),
                lambda _: _Sent(name=name, alive=False),
                lambda _: _Sent(name=name, alive=False),
            )

    # ------------------------------------------------------------------ state

    @handles(GetStoreState)
    def _get_state(self, _: GetStoreState) -> StoreState:
        return self._state

    @handles(GetRunningSince, at_once=True)
    def _get_running_since(self, _: GetRunningSince) -> float | None:
        if self._state.state == "running":
            return self._running_since
        self._awaiting.append(self.defer())
        return None

    def _state_changed(self, state: State, reason: str) -> None:
        self._state = StoreState(state=state, reason=reason)
        if state == "closed":
            if not self._closing:
                self.ref.tell(_WriterEnded(reason=reason))
            return
        log.info("store state changed", state=state, reason=reason)
        if state == "running":
            self._running_since = self.clock.time()
            awaiting, self._awaiting = self._awaiting, []
            for each in awaiting:
                each.set(self._running_since)

    @handles(_WriterEnded)
    def _writer_ended(self, message: _WriterEnded) -> Any:
        raise RuntimeError(f"the writer of the store ended: {message.reason}")

    def _tail_failed(self, reason: str) -> None:
        if not self._closing:
            self.ref.tell(_TailFailed(reason=reason))

    @handles(_TailFailed)
    def _end_without_tail(self, message: _TailFailed) -> Any:
        raise RuntimeError(f"the tail of the log ended: {message.reason}")


def _appended(batch: list[Request]) -> list[Event]:
    """The events that the requests of a batch have added to logs."""
    return [
        event
        for request in batch
        if request.error is None
        for operation, result in zip(request.ops, request.result, strict=True)
        if type(operation) is AppendEvents
        for event in cast("tuple[Event, ...]", result)
    ]
