"""Log of a session: writing it, reading it, waiting for more.

The part of a SessionActor that uses the writer and does not depend on agents. The actor passes on
the messages of this module (`LOG_MESSAGES`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.actors.messages import ReadEvents, SessionEvents
from oubliette.actors.session.event_writer import EventWriter
from oubliette.actors.store.actor import Transact
from oubliette.config.sections import configured_model
from oubliette.errors import StorageUnavailable
from oubliette.failpoints import failpoint
from oubliette.kit import Message
from oubliette.records import Event, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.context import ActorContext
    from oubliette.actors.session.event_writer import WriteBatch
    from oubliette.actors.session.recovery import StoredSession
    from oubliette.kit import Actor, Deferred

RETRY_COMMIT: Final = 0.5  # seconds between attempts while the store is paused
LATE_SECONDS: Final = 30.0  # of a commit; then readers see that the session waits for it
COMMIT_SECONDS: Final = 3600.0
"""Seconds for a commit. One that is late is not tried again: both would go through, and the store
refuses the second. The store itself refuses what it cannot write, within seconds; past this limit
the outcome is unknown, and the actor is restarted from what is stored.
"""


class LogCommitted(Message):
    """A transaction is in the store, with these events."""

    events: tuple[Event, ...]


class LogCommitFailed(Message):
    """The store has refused a transaction."""

    reason: str
    retry: bool


class LogRetry(Message):
    """Time to try a transaction again."""


class LogReadExpired(Message):
    """Deadline of a reader that waits for more events."""

    waiter: int


class LogRead(Message):
    """Events that are not in memory, for a reader."""

    waiter: int
    events: tuple[Event, ...]
    cut: int | None


class _Waiter(msgspec.Struct):
    request: ReadEvents
    answer: Any
    timer: Any = None
    """Timer of the end of its wait; cancelled with the answer, which mostly comes long before."""


LOG_MESSAGES: Final = (LogCommitFailed, LogRetry, LogReadExpired, LogRead)
"""Messages that a session passes on to its `EventLog`, besides `LogCommitted`."""


class CommitFailedError(RuntimeError):
    """The store refused a write permanently: the actor's state of the log is wrong."""


class EventLog:
    """Commits one transaction at a time, and serves readers from what is committed."""

    __slots__ = ("_actor", "_batch", "_committing_since", "_context", "_flush_due", "_held",
                 "_quiet", "_refused_since", "_session_id", "_stored", "_under_way", "_waiter_ids",
                 "_waiters", "broken", "writer")  # fmt: skip

    def __init__(
        self, actor: Actor, context: ActorContext, session_id: str, quiet: Callable[[], bool]
    ) -> None:
        """Begin without a log; `open` provides it.

        Args:
            actor: Its mailbox gets the messages of this module.
            context: Ports of the server.
            session_id: Of the session.
            quiet: Returns whether no turn runs and none waits.
        """
        self._actor = actor
        self._context = context
        self._session_id = session_id
        self._quiet = quiet
        self.writer: EventWriter
        self._waiters: dict[int, _Waiter] = {}
        self._waiter_ids = 0
        self._held: list[Deferred] = []
        self._refused_since: float | None = None
        self._committing_since: float | None = None
        self._batch: WriteBatch | None = None
        self._flush_due = False
        self.broken = False
        """Set when a message was processed by half: nothing of it may be stored."""
        self._stored: tuple[Session, bool]
        """The record as the store has it, and whether it was quiet then: the state for readers."""
        self._under_way: tuple[Session, bool]

    def open(self, stored: StoredSession, kept: int) -> EventWriter:
        """The writer of a log as it is stored, with `kept` events in memory."""
        self.writer = EventWriter(
            stored.record,
            stored.tail,
            stored.log_end,
            ring_size=kept,
            now=self._actor.clock.time,
            wake=self._wake_flush,
            model=configured_model(self._context.config, stored.record.agent),
        )
        return self.writer

    def show(self) -> None:
        """Publish the current state to readers; afterwards, the state after each commit."""
        self._stored = (self.writer.record, self._quiet())

    @property
    def record(self) -> Session:
        """The record of the session as the store has it."""
        return self._stored[0]

    @property
    def unstored_since(self) -> float | None:
        """Wall second since which the store does not accept its events; None: it does."""
        began = self._committing_since
        if self._refused_since is None and began is not None:
            return began if self._actor.clock.time() >= began + LATE_SECONDS else None
        return self._refused_since

    def answer_with_room(self, answer: Deferred) -> None:
        """Answer a writer of the log, now or once there is room for more."""
        if self.writer.full:
            self._held.append(answer)
        else:
            answer.set(None)

    def take(self, message: Message) -> None:
        match message:
            case LogCommitFailed():
                self._commit_failed(message)
            case LogRetry():
                if self._batch is not None:
                    self._commit(self._batch)
            case LogReadExpired():
                waiter = self._waiters.pop(message.waiter, None)
                if waiter is not None:
                    self._serve(message.waiter, waiter)
            case LogRead():
                waiter = self._waiters.pop(message.waiter, None)
                if waiter is not None:
                    self._answer_read(waiter, message.events, message.cut)
            case _:
                raise TypeError(f"no message of a log: {message}")

    # ------------------------------------------------------------------ commits

    def _wake_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self.broken or not self._actor.ref.is_alive():
            return
        batch = self.writer.take()
        if batch is not None:
            self._batch = batch
            self._under_way = (self.writer.record, self._quiet())
            self._commit(batch)

    def _commit(self, batch: WriteBatch) -> None:
        if not batch.ops:
            self._actor.ref.tell(LogCommitted(events=()))
            return
        self._committing_since = self._actor.clock.time()
        self._actor.ask_to_self(
            self._context.store,
            Transact(ops=batch.ops),
            lambda results: LogCommitted(events=_appended(results)),
            lambda error: LogCommitFailed(
                reason=str(error), retry=isinstance(error, StorageUnavailable)
            ),
            COMMIT_SECONDS,
        )

    def committed(self, message: LogCommitted) -> None:
        """Make a transaction visible to readers, and apply what has waited for it."""
        failpoint("session.committed")
        callbacks = self.writer.committed(message.events)
        self._batch = None
        self._refused_since = self._committing_since = None
        self._stored = self._under_way
        if message.events:
            self.wake_waiters()
        for callback in callbacks:
            callback()
        if self._held and not self.writer.full:
            held, self._held = self._held, []
            for answer in held:
                answer.set(None)

    def _commit_failed(self, message: LogCommitFailed) -> None:
        if not message.retry:
            raise CommitFailedError(message.reason)
        if self._refused_since is None:
            self._refused_since = self._actor.clock.time()
        self._actor.after(RETRY_COMMIT, LogRetry())

    # ------------------------------------------------------------------ readers

    def read(self, message: ReadEvents, answer: Deferred) -> None:
        """Answer with the events that are asked for, or wait for more."""
        self._waiter_ids += 1
        waiter = _Waiter(request=message, answer=answer)
        if self.writer.log_end > message.since_index or message.wait_seconds <= 0:
            self._serve(self._waiter_ids, waiter)
            return
        self._waiters[self._waiter_ids] = waiter
        expired = LogReadExpired(waiter=self._waiter_ids)
        waiter.timer = self._actor.after(message.wait_seconds, expired)

    def _serve(self, number: int, waiter: _Waiter) -> None:
        request = waiter.request
        if waiter.timer is not None:
            waiter.timer.cancel()
        if self.writer.in_memory(request.since_index):
            events = self.writer.after(request.since_index, request.max_events, request.max_bytes)
            self._answer_read(waiter, events, None)
            return
        self._waiters[number] = waiter
        reader = self._context.reader

        async def read() -> tuple[tuple[Event, ...], int | None]:
            found = await reader.log(
                self._session_id,
                request.since_index,
                request.max_events,
                request.max_bytes,
                request.whole_bytes,
            )
            return tuple(found.events), found.truncated_before

        self._actor.pipe_to_self(
            read(),
            lambda found: LogRead(waiter=number, events=found[0], cut=found[1]),
            lambda _: LogRead(waiter=number, events=(), cut=None),
        )

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

    def wake_waiters(self) -> None:
        """Answer the readers that wait for events, if there are any."""
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
