"""Steps of one subscription as plain data: read a page, send it, store the cursor, read on.

One step is under way at a time, so that at most one page is in memory and a slow subscriber slows
down nothing but its own subscription. A notice of a commit only leads to another read: the events
are always those of the log, so none is lost with a notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from oubliette.actors.messages import EventsCommitted, EventsDeleted

if TYPE_CHECKING:
    from oubliette.kit import Message

Step = Literal["read", "send", "store", "wait"]
"""The next step; `wait`: one is under way, or there is nothing to do."""


class SubscriptionPage(msgspec.Struct, frozen=True, kw_only=True):
    """The next part of the log after a cursor."""

    messages: tuple[EventsCommitted | EventsDeleted, ...]
    """The messages to the subscriber, in order; none if the part holds nothing for it."""
    next: int
    """Cursor behind it."""
    more: bool = False
    """Whether the log continues behind it."""


class DeliveryCycle:
    """Position of one subscription in the log, and the step that comes next.

    Each method reports what happened and returns the step to begin.

    Args:
        cursor: position after which it begins.
        durable: whether the cursor is stored after each page.
    """

    def __init__(self, cursor: int, *, durable: bool) -> None:
        self.cursor = cursor
        self._durable = durable
        self._unstored = False
        self._grown = True
        """Whether there may be events that were not read yet."""
        self._busy = False
        self._present = False
        """Whether the subscriber is alive."""
        self._page: SubscriptionPage | None = None
        self._sent = 0
        """Messages of the page that the subscriber has acknowledged."""

    @property
    def message(self) -> Message:
        """The message that the step `send` sends."""
        assert self._page is not None
        return self._page.messages[self._sent]

    def log_grew(self) -> Step:
        self._grown = True
        return self._next()

    def page_read(self, page: SubscriptionPage) -> Step:
        self._busy = False
        self._grown = self._grown or page.more
        if page.messages:
            self._page, self._sent = page, 0
        else:
            self.cursor = page.next
        return self._next()

    def read_failed(self) -> None:
        """A read failed; `log_grew` leads to another."""
        self._busy = False

    def acknowledged(self) -> Step:
        """The subscriber has taken the message."""
        self._busy = False
        self._sent += 1
        page = self._page
        assert page is not None
        if self._sent == len(page.messages):
            self.cursor, self._page = page.next, None
            self._unstored = self._durable
        return self._next()

    def stored(self) -> Step:
        self._busy = self._unstored = False
        return self._next()

    def not_stored(self) -> None:
        """The cursor could not be stored; `again` leads to another attempt."""
        self._busy = False

    def refused(self) -> None:
        """The message failed at the subscriber; `again` leads to another attempt."""
        self._busy = False

    def again(self) -> Step:
        """It is time to repeat what failed."""
        return self._next()

    def subscriber_ended(self) -> None:
        """The subscriber has ended; the message that it did not acknowledge is sent again."""
        self._present = False
        if self._page is not None:
            self._busy = False

    def subscriber_began(self) -> Step:
        """An actor with the subscriber's name is alive."""
        self._present = True
        return self._next()

    def _next(self) -> Step:
        step: Step = "wait"
        if not self._busy:
            if self._unstored:
                step = "store"
            elif self._present and self._page is not None:
                step = "send"
            elif self._present and self._grown:
                step = "read"
                self._grown = False
        self._busy = self._busy or step != "wait"
        return step
