"""Log of a session: writing it, reading it, waiting for more.

The part of a SessionActor that uses the writer and does not depend on agents.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.actors.messages import GetSession, ReadEvents, SessionEvents
from oubliette.actors.store.actor import Transact
from oubliette.errors import StorageUnavailable
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, Message, handles
from oubliette.records import Event, Session

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.memory import SessionMemory
    from oubliette.actors.session.write_batch import EventWriter, WriteBatch
    from oubliette.kit import Deferred

RETRY_COMMIT: Final = 0.5  # seconds between attempts while the store is paused
LATE_SECONDS: Final = 30.0  # of a commit; then readers see that the session waits for it
COMMIT_SECONDS: Final = 3600.0
"""Seconds for a commit. One that is late is not tried again: both would go through, and the store
refuses the second. The store itself refuses what it cannot write, within seconds; past this limit
the outcome is unknown, and the actor is restarted from what is stored.
"""


class _Committed(Message):
    events: tuple[Event, ...]


class _CommitFailed(Message):
    reason: str
    retry: bool


class _TryAgain(Message):
    pass


class _ReadExpired(Message):
    waiter: int


class _EventsRead(Message):
    waiter: int
    events: tuple[Event, ...]
    cut: int | None


class _Waiter(msgspec.Struct):
    request: ReadEvents
    answer: Any
    timer: Any = None
    """Timer of the end of its wait; cancelled with the answer, which mostly comes long before."""


class CommitFailedError(RuntimeError):
    """The store refused a write permanently: the actor's state of the log is wrong."""


class LoggedSession(Actor):
    """Actor that commits one transaction at a time, and serves readers from what is committed.

    A subclass makes `writer` in its `on_start`, and then calls `_show`.
    """

    # With these as attributes, a session's dict would have more keys than instances can share.
    __slots__ = ("_batch", "_broken", "_committing_since", "_flush_due", "_held", "_refused_since",
                 "_stored", "_under_way", "_waiter_ids", "_waiters", "context", "memory",
                 "session_id", "writer")  # fmt: skip

    def __init__(self, context: ActorContext, session_id: str, memory: SessionMemory) -> None:
        super().__init__()
        self.context = context
        self.session_id = session_id
        self.memory = memory
        self.writer: EventWriter
        self._waiters: dict[int, _Waiter] = {}
        self._waiter_ids = 0
        self._held: list[Deferred] = []
        self._refused_since: float | None = None
        self._committing_since: float | None = None
        self._batch: WriteBatch | None = None
        self._flush_due = False
        self._broken = False
        """Set when a message was processed by half: nothing of it may be stored."""
        self._stored: tuple[Session, bool]
        """The record as the store has it, and whether it was quiet then: the state for readers."""
        self._under_way: tuple[Session, bool]

    @property
    def quiet(self) -> bool:
        """Whether no turn runs and none waits."""
        return True

    @property
    def unstored_since(self) -> float | None:
        """Wall second since which the store does not accept its events; None: it does."""
        began = self._committing_since
        if self._refused_since is None and began is not None:
            return began if self.clock.time() >= began + LATE_SECONDS else None
        return self._refused_since

    def _show(self) -> None:
        """Publish the current state to readers; afterwards, the state after each commit."""
        self._stored = (self.writer.record, self.quiet)

    # ------------------------------------------------------------------ commits

    def _wake_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._broken or not self.ref.is_alive():
            return
        batch = self.writer.take()
        if batch is not None:
            self._batch = batch
            self._under_way = (self.writer.record, self.quiet)
            self._commit(batch)

    def _commit(self, batch: WriteBatch) -> None:
        if not batch.ops:
            self.ref.tell(_Committed(events=()))
            return
        self._committing_since = self.clock.time()
        self.ask_to_self(
            self.context.store,
            Transact(ops=batch.ops),
            lambda results: _Committed(events=_appended(results)),
            lambda error: _CommitFailed(
                reason=str(error), retry=isinstance(error, StorageUnavailable)
            ),
            COMMIT_SECONDS,
        )

    @handles(_Committed, at_once=True)
    def _committed(self, message: _Committed) -> None:
        failpoint("session.committed")
        callbacks = self.writer.committed(message.events)
        self._batch = None
        self._refused_since = self._committing_since = None
        self._stored = self._under_way
        if message.events:
            self._wake_waiters()
        for callback in callbacks:
            callback()
        if self._held and not self.writer.full:
            held, self._held = self._held, []
            for answer in held:
                answer.set(None)

    @handles(_CommitFailed)
    def _commit_failed(self, message: _CommitFailed) -> None:
        if not message.retry:
            raise CommitFailedError(message.reason)
        if self._refused_since is None:
            self._refused_since = self.clock.time()
        self.after(RETRY_COMMIT, _TryAgain())

    @handles(_TryAgain)
    def _try_again(self, _: _TryAgain) -> None:
        if self._batch is not None:
            self._commit(self._batch)

    # ------------------------------------------------------------------ readers

    @handles(GetSession)
    def _get(self, _: GetSession) -> Session:
        return self._stored[0]

    @handles(ReadEvents)
    def _read(self, message: ReadEvents) -> None:
        self._waiter_ids += 1
        waiter = _Waiter(request=message, answer=self.defer())
        if self.writer.log_end > message.since_index or message.wait_seconds <= 0:
            self._serve(self._waiter_ids, waiter)
            return
        self._waiters[self._waiter_ids] = waiter
        waiter.timer = self.after(message.wait_seconds, _ReadExpired(waiter=self._waiter_ids))

    def _serve(self, number: int, waiter: _Waiter) -> None:
        request = waiter.request
        if waiter.timer is not None:
            waiter.timer.cancel()
        if self.writer.in_memory(request.since_index):
            events = self.writer.after(request.since_index, request.max_events, request.max_bytes)
            self._answer_read(waiter, events, None)
            return
        self._waiters[number] = waiter
        reader = self.context.reader

        async def read() -> tuple[tuple[Event, ...], int | None]:
            found = await reader.log(
                self.session_id, request.since_index, request.max_events, request.max_bytes
            )
            return tuple(found.events), found.truncated_before

        self.pipe_to_self(
            read(),
            lambda found: _EventsRead(waiter=number, events=found[0], cut=found[1]),
            lambda _: _EventsRead(waiter=number, events=(), cut=None),
        )

    @handles(_EventsRead)
    def _events_read(self, message: _EventsRead) -> None:
        waiter = self._waiters.pop(message.waiter, None)
        if waiter is not None:
            self._answer_read(waiter, message.events, message.cut)

    def _answer_read(self, waiter: _Waiter, events: tuple[Event, ...], cut: int | None) -> None:
        since = waiter.request.since_index
        record, quiet = self._stored
        waiter.answer.set(
            SessionEvents(
                session=record,
                events=events,
                last_index=events[-1].index if events else since,
                log_end=self.writer.log_end,
                truncated_before=cut,
                turn_done=quiet,
            )
        )

    @handles(_ReadExpired)
    def _wait_over(self, message: _ReadExpired) -> None:
        waiter = self._waiters.pop(message.waiter, None)
        if waiter is not None:
            self._serve(message.waiter, waiter)

    def _wake_waiters(self) -> None:
        for number, waiter in list(self._waiters.items()):
            if waiter.answer.done:
                if waiter.timer is not None:
                    waiter.timer.cancel()
                del self._waiters[number]
            elif self.writer.log_end > waiter.request.since_index:
                del self._waiters[number]
                self._serve(number, waiter)


def _appended(results: tuple[Any, ...]) -> tuple[Event, ...]:
    """Return the events among the results of a transaction; ours is the last operation."""
    last: object = results[-1] if results else None
    return cast("tuple[Event, ...]", last) if isinstance(last, tuple) else ()
