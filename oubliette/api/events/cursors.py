"""Cursors: positions in a log, from which a reader continues without a gap or a repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from oubliette.api.errors import EventsMissing
from oubliette.api.events.decoding import decode_event
from oubliette.contract.events import Event
from oubliette.contract.session import SessionEventsPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class LogPage(SessionEventsPage, frozen=True, kw_only=True):
    """One answer of `session_events`, with the events that came after the cursor that was sent."""

    events: tuple[Event, ...]  # pyright: ignore[reportIncompatibleVariableOverride]


def page_of(answer: Mapping[str, Any]) -> LogPage:
    """Return the page that an answer of `session_events` is."""
    return LogPage(
        session_id=str(answer.get("session_id") or ""),
        status=str(answer.get("status") or ""),
        events=_events_of(answer),
        last_index=_whole(answer.get("last_index"), -1),
        completed=answer.get("completed") is True,
        failed=answer.get("failed") is True,
        error=_text(answer.get("error")),
        final_response=_text(answer.get("final_response")),
        truncated_before=_whole(answer.get("truncated_before"), None),
        more=answer.get("more") is True,
    )


class EventCursor:
    """Position in the log of one session, by index."""

    __slots__ = ("_after",)

    def __init__(self, after: int = -1) -> None:
        """Begin after the event of index `after`; -1 is the beginning of the log."""
        self._after = after

    @property
    def after(self) -> int:
        """Index of the last event that was taken: `since_index` of the next `session_events`."""
        return self._after

    def take(self, page: LogPage) -> tuple[Event, ...]:
        """Return the events of a page that were not taken yet, and move behind them.

        Raises:
            EventsMissing: events between the cursor and the page were deleted, or are not in the
                page. The cursor has not moved: `skip_to` continues after them.
        """
        first = page.truncated_before
        if first is not None and first > self._after + 1:
            raise self._missing(page.session_id, first, f"it begins with {first} now")
        taken: list[Event] = []
        for event in page.events:
            following = self._after + len(taken) + 1
            if event.index == following:
                taken.append(event)
            elif event.index > following and taken:
                break  # those before the gap first: the next page begins with it
            elif event.index > following:
                raise self._missing(page.session_id, None, f"event {event.index} came next")
        self._after += len(taken)
        return tuple(taken)

    def skip_to(self, index: int) -> None:
        """Continue with the event of this index, if the cursor is before it."""
        self._after = max(self._after, index - 1)

    def _missing(self, session_id: str, first: int | None, why: str) -> EventsMissing:
        return EventsMissing(
            f"the log of {session_id or 'the session'} lacks events after {self._after}: {why}",
            after=self._after,
            truncated_before=first,
            session_id=session_id or None,
            hint=None if first is None else f"read on from there: after={first - 1}",
        )


class TreeCursor:
    """Position in the log of a tree of sessions, by `seq`, which has gaps."""

    __slots__ = ("_after",)

    def __init__(self, after: int = -1) -> None:
        """Begin after the event with `seq` `after`; -1 is the beginning."""
        self._after = after

    @property
    def after(self) -> int:
        """`since_index` of the next `session_events` with `include_children`."""
        return self._after

    def take(self, page: LogPage) -> tuple[Event, ...]:
        """Return the events of a page that were not taken yet, and move behind them."""
        taken = _after(page.events, self._after)
        self._after = max([self._after, page.last_index, *(each.seq for each in taken)])
        return tuple(taken)


class ListenCursor:
    """Position of a listener (`caller_listen`), by `seq`."""

    __slots__ = ("_after",)

    def __init__(self, after: int | None = None) -> None:
        """Begin after the event with `seq` `after`; None is the present."""
        self._after = after

    @property
    def after(self) -> int | None:
        """`after` of the next `caller_listen`."""
        return self._after

    def take(self, answer: Mapping[str, Any]) -> tuple[Event, ...]:
        """Return the events of an answer of `caller_listen`, and move behind them.

        Open requests are delivered again, with `redelivered`, although the cursor is behind them;
        a receiver distinguishes them by `request_id`.
        """
        events = _events_of(answer)
        before = -1 if self._after is None else self._after
        again = [each for each in events if each.redelivered and each.seq <= before]
        taken = _after(events, before)
        following = _whole(answer.get("next"), None)
        reached = [each.seq for each in taken] + ([] if following is None else [following])
        if reached or self._after is not None:
            self._after = max([before, *reached])
        return (*again, *taken)


def _after(events: Iterable[Event], seq: int) -> list[Event]:
    taken: list[Event] = []
    for event in events:
        if event.seq > seq:
            taken.append(event)
            seq = event.seq
    return taken


def _events_of(answer: Mapping[str, Any]) -> tuple[Event, ...]:
    listed = answer.get("events")
    if not isinstance(listed, list | tuple):
        return ()
    objects = cast("Iterable[object]", listed)
    return tuple(
        decode_event(cast("dict[str, Any]", each)) for each in objects if isinstance(each, dict)
    )


def _whole(value: object, default: Any) -> Any:
    return value if type(value) is int else default


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
