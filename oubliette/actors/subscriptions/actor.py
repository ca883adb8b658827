"""Actor of one subscription: sends another actor the events of the log, batch by batch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Literal

import structlog
import tenacity

from oubliette.actors.messages import EventsDeleted, SubscriptionEnded
from oubliette.actors.store.actor import FollowLog, LogGrew, Transact
from oubliette.actors.store.subscription import (
    LogSubscription,
    NotSubscribed,
    Resubscribe,
    Subscribed,
)
from oubliette.actors.subscriptions.cycle import DeliveryCycle, SubscriptionPage
from oubliette.actors.subscriptions.stored_cursor import put_cursor
from oubliette.kit import (
    Actor,
    ActorDead,
    AskTimeout,
    Down,
    MailboxFull,
    Message,
    UnhandledMessage,
    handles,
)
from oubliette.kit.retry import Failures

if TYPE_CHECKING:
    from oubliette.actors.subscriptions.cycle import Step
    from oubliette.actors.subscriptions.stored_cursor import SubscriptionMemory, SubscriptionPlan
    from oubliette.kit import Ref
    from oubliette.runtime.store.reader import Reader

ACKNOWLEDGE_SECONDS: Final = 600.0
"""Seconds that a subscriber may take for one batch."""
MAX_REFUSALS: Final = 5
"""Attempts in a row at one message that may fail in the subscriber's handler."""

log = structlog.get_logger("oubliette.subscriptions")


class _PageRead(Message):
    page: SubscriptionPage


class _ReadFailed(Message):
    reason: str


class _Acknowledged(Message):
    number: int


class _NotTaken(Message):
    number: int
    kind: Literal["ended", "unhandled", "late", "failed"]
    reason: str


class _CursorStored(Message):
    pass


class _CursorNotStored(Message):
    reason: str


class _RepeatStep(Message):
    """Time to repeat what failed."""


class _RepeatRead(Message):
    """Time to repeat a read."""


class _LookForSubscriber(Message):
    """Time to look for an actor of the subscriber's name."""


class SubscriptionActor(Actor):
    """Actor of one subscription, which follows the log and asks the subscriber to take it."""

    def __init__(
        self, store: Ref, reader: Reader, plan: SubscriptionPlan, memory: SubscriptionMemory
    ) -> None:
        super().__init__()
        self._store = store
        self._reader = reader
        self._plan = plan
        self._memory = memory
        self._cycle = DeliveryCycle(memory.cursor, durable=plan.durable)
        follow = FollowLog(name=self.name, session_id=plan.source.session_id)
        self._subscription = LogSubscription(self, store, reader, follow)
        self._subscriber = self.system.ref(plan.subscriber)
        self._watched = 0
        """Incarnation of the subscriber that is watched; 0 while there is none."""
        self._missing_since = self.clock.monotonic()
        self._number = 0
        """Number of the last message to the subscriber; an answer to an earlier one is ignored."""
        self._failures = Failures(tenacity.wait_exponential(multiplier=0.1, max=5.0))
        self._looks = Failures(tenacity.wait_exponential(multiplier=0.02, max=0.5))
        self._refusals = 0

    async def on_start(self) -> None:
        await self._subscription.begin()
        self._look(_LookForSubscriber())

    # ------------------------------------------------------------ the log
    @handles(LogGrew, at_once=True)
    def _log_grew(self, _: LogGrew) -> None:
        self._begin(self._cycle.log_grew())

    @handles(Resubscribe)
    def _resubscribe(self, _: Resubscribe) -> None:
        self._subscription.renew()

    @handles(Subscribed)
    def _subscribed_again(self, _: Subscribed) -> None:
        self._subscription.renewed()
        self._begin(self._cycle.log_grew())  # there was no notice of commits in between

    @handles(NotSubscribed)
    def _not_subscribed(self, message: NotSubscribed) -> None:
        self._subscription.not_renewed(message)

    # ------------------------------------------------------------ steps
    def _begin(self, step: Step) -> None:
        if step == "read":
            self.pipe_to_self(
                self._plan.source.read(self._reader, self._cycle.cursor),
                lambda page: _PageRead(page=page),
                lambda error: _ReadFailed(reason=f"{type(error).__name__}: {error}"),
            )
        elif step == "send":
            self._send(self._cycle.message)
        elif step == "store":
            self.ask_to_self(
                self._store,
                Transact(ops=(put_cursor(self._plan, self._cycle.cursor),)),
                lambda _: _CursorStored(),
                lambda error: _CursorNotStored(reason=str(error)),
            )

    @handles(_PageRead)
    def _page_read(self, message: _PageRead) -> None:
        self._failures.reset()
        self._begin(self._cycle.page_read(message.page))
        self._memory.cursor = self._cycle.cursor

    @handles(_ReadFailed)
    def _read_failed(self, message: _ReadFailed) -> None:
        log.warning("subscription cannot read", name=self.name, reason=message.reason)
        self._cycle.read_failed()
        self.after(self._failures.next_delay(), _RepeatRead())

    @handles(_RepeatRead)
    def _repeat_read(self, _: _RepeatRead) -> None:
        self._begin(self._cycle.log_grew())

    @handles(_CursorStored)
    def _cursor_stored(self, _: _CursorStored) -> None:
        self._failures.reset()
        self._begin(self._cycle.stored())

    @handles(_CursorNotStored)
    def _cursor_not_stored(self, message: _CursorNotStored) -> None:
        log.warning("cursor not stored", name=self.name, reason=message.reason)
        self._cycle.not_stored()
        self.after(self._failures.next_delay(), _RepeatStep())

    @handles(_RepeatStep)
    def _repeat_step(self, _: _RepeatStep) -> None:
        self._begin(self._cycle.again())

    # ------------------------------------------------------------ the subscriber
    def _send(self, message: Message) -> None:
        self._number += 1
        number = self._number
        self._watch_subscriber()
        self.ask_to_self(
            self._subscriber,
            message,
            lambda _: _Acknowledged(number=number),
            lambda error: _refusal(number, error),
            timeout=ACKNOWLEDGE_SECONDS,
        )

    @handles(_Acknowledged)
    def _acknowledged(self, message: _Acknowledged) -> None:
        if message.number == self._number:
            self._refusals = 0
            step = self._cycle.acknowledged()
            self._memory.cursor = self._cycle.cursor
            self._begin(step)

    @handles(_NotTaken)
    def _refused(self, message: _NotTaken) -> None:
        if message.number != self._number or message.kind == "ended":
            return  # a `Down` of the subscriber follows, or came already
        sent = self._cycle.message
        if message.kind == "unhandled" and isinstance(sent, EventsDeleted):
            log.warning(
                "subscriber has no handler for deleted events",
                name=self.name,
                session_id=sent.session_id,
                before=sent.before,
            )
            self._acknowledged(_Acknowledged(number=message.number))
            return
        self._refusals += 1
        if message.kind != "failed" or self._refusals >= MAX_REFUSALS:
            self._end(message.reason)
            return
        log.warning("subscriber failed", name=self.name, reason=message.reason)
        self._cycle.refused()
        self.after(0.1 * 2**self._refusals, _RepeatStep())

    @handles(Down)
    def _down(self, message: Down) -> None:
        if message.name == self._store.name:
            self._subscription.lost()
        elif message.incarnation == self._watched:
            self._watched = 0
            self._number += 1
            self._refusals = 0
            self._missing_since = self.clock.monotonic()
            self._cycle.subscriber_ended()
            self._look(_LookForSubscriber())

    @handles(_LookForSubscriber)
    def _look(self, _: _LookForSubscriber) -> None:
        if self._watch_subscriber():
            self._looks.reset()
            self._begin(self._cycle.subscriber_began())
        elif self.clock.monotonic() - self._missing_since < self._plan.restart_seconds:
            self.after(self._looks.next_delay(), _LookForSubscriber())
        else:
            log.info("subscription ended", name=self.name, reason="the subscriber has ended")
            self.stop()

    def _watch_subscriber(self) -> bool:
        """Watch the live incarnation of the subscriber; return whether there is one."""
        alive = self.system.lookup(self._plan.subscriber)
        if alive is None:
            return False
        if alive.incarnation != self._watched:
            self._watched = alive.incarnation
            self.watch(alive)
        return True

    def _end(self, reason: str) -> None:
        log.warning("subscription ended", name=self.name, reason=reason)
        with contextlib.suppress(MailboxFull):
            self._subscriber.tell(SubscriptionEnded(name=self._plan.name, reason=reason))
        self.stop()


def _refusal(number: int, error: BaseException) -> _NotTaken:
    kind: Literal["ended", "unhandled", "late", "failed"] = "failed"
    if isinstance(error, ActorDead):
        kind = "ended"
    elif isinstance(error, UnhandledMessage):
        kind = "unhandled"
    elif isinstance(error, AskTimeout):
        kind = "late"
    return _NotTaken(number=number, kind=kind, reason=f"{type(error).__name__}: {error}")
