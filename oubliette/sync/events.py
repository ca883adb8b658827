"""Events, a blocking iterator over the events of a session or a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from oubliette.api.event_iterator import EventIterator, TurnEvents
    from oubliette.contract.events import Event
    from oubliette.sync.portal_thread import PortalThread


class Events:
    """Iterator over events. It holds nothing between two of them: it may be left at any moment."""

    def __init__(self, thread: PortalThread, twin: EventIterator | TurnEvents) -> None:
        self._thread = thread
        self._twin = twin

    @property
    def cursor(self) -> int:
        """Index of the last event that was returned: `after` of an iterator that continues here."""
        return self._twin.cursor

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Event:
        """Return the next event; wait for it as long as more may come.

        Raises:
            EventsMissing: the next events were deleted.
            NotFound: there is no such session.
        """
        try:
            return self._thread.call(self._twin.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None
