"""Subscription of an actor to the log, which is renewed when the store's actor was restarted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
import tenacity

from oubliette.errors import OublietteError, StorageUnavailable
from oubliette.kit import Message
from oubliette.kit.retry import Failures

if TYPE_CHECKING:
    from oubliette.kit import Actor, ActorTimer, PipedTask, Ref
    from oubliette.records import Event
    from oubliette.runtime.store.reader import Reader

log = structlog.get_logger("oubliette.store")

ASK_SECONDS: Final = 10.0  # for the store to subscribe an actor, or to answer a read
BEGIN_SECONDS: Final = 3.0
"""Time for the first attempt, which the mailbox waits for: less than a listener waits for it."""


class Subscribed(Message):
    """From a subscribed actor to itself: it is subscribed again, after the event `last`."""

    last: int


class NotSubscribed(Message):
    """From a subscribed actor to itself: the store could not be reached."""

    reason: str


class Resubscribe(Message):
    """From a subscribed actor to itself: time to subscribe again."""


class LogSubscription:
    """Part of an actor that keeps it subscribed at the store; same lifetime.

    Args:
        port: the actor.
        store: the StoreActor.
        reader: reads the end of the log.
        request: message to the store that subscribes the actor.
    """

    def __init__(self, port: Actor, store: Ref, reader: Reader, request: Message) -> None:
        self._port = port
        self._store = store
        self._reader = reader
        self._request = request
        self._subscribed = False
        self._attempt: ActorTimer | PipedTask | None = None
        """The next attempt, or the one that is under way."""
        self._failures = Failures(tenacity.wait_exponential(multiplier=0.2, max=1.0))
        self._problem: str | None = None
        """Reason why it could not subscribe last; None: it could, or has not tried."""
        self._early: list[Event] = []
        """Events from the store that came before the start of the subscription is known."""

    async def begin(self) -> int | None:
        """Subscribe; return the seq of the newest event, after which every event is sent.

        None if the store or the database is away: `Subscribed` comes once it is back.
        """
        self._port.watch(self._store)
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                last = await self._subscribe()
        except (OublietteError, TimeoutError) as error:
            self.not_renewed(NotSubscribed(reason=str(error) or "the database does not answer"))
            return None
        self.renewed()  # what came before has been committed before
        return last

    def check(self) -> None:
        """Refuse what needs the log.

        Raises:
            StorageUnavailable: it could not be read at the last attempt.
        """
        if self._problem is not None:
            raise StorageUnavailable(self._problem, hint="try again in a moment")

    async def _subscribe(self) -> int:
        await self._store.ask(self._request, timeout=ASK_SECONDS)
        return await self._reader.last_seq()

    def passes(self, events: tuple[Event, ...]) -> bool:
        """Return whether these follow all earlier events; keep them otherwise until `renewed`."""
        if not self._subscribed:
            # There may be older ones that were not sent to us: they are read first.
            self._early += events
        return self._subscribed

    def lost(self) -> None:
        """Subscribe again soon: the store's actor has ended."""
        self._subscribed = False
        self._try_again(self._failures.next_delay())

    def _try_again(self, delay: float) -> None:
        """Subscribe again after `delay` seconds, in place of an attempt that is under way."""
        if self._attempt is not None:
            self._attempt.cancel()
        self._attempt = self._port.after(delay, Resubscribe())

    def renew(self) -> None:
        """Subscribe again, beside the mailbox."""
        self._early.clear()  # all of them are in the log by now
        self._attempt = self._port.pipe_to_self(
            self._subscribe(),
            lambda last: Subscribed(last=last),
            lambda error: NotSubscribed(reason=str(error)),
        )

    def not_renewed(self, message: NotSubscribed) -> None:
        """Log the failure, and try again, with growing pauses."""
        log.warning("not subscribed", name=self._port.name, reason=message.reason)
        self._problem = message.reason
        self._try_again(self._failures.next_delay())

    def renewed(self) -> list[Event]:
        """Return the events that came meanwhile; what follows is passed on again."""
        early, self._early = self._early, []
        self._subscribed = True
        self._problem = None
        self._failures.reset()
        if self._attempt is not None:
            self._attempt.cancel()
        self._port.watch(self._store)
        return early
