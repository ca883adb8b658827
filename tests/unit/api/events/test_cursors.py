"""Cursors: each event once and in order, whatever the pages are, or an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.api.errors import EventsMissing
from oubliette.api.events import EventCursor, ListenCursor, TreeCursor, page_of

LOG = [
    {"type": "delta", "session_id": "gogol_1", "index": n, "seq": 10 + 3 * n, "text": str(n)}
    for n in range(30)
]


def page(first: int, last: int, **more: Any) -> Any:
    return page_of({"session_id": "gogol_1", "events": LOG[first : last + 1], **more})


def test_a_page_has_the_fields_of_the_answer() -> None:
    found = page_of(
        {
            "session_id": "gogol_1",
            "status": "idle",
            "last_index": 1,
            "events": LOG[:2],
            "completed": True,
            "failed": False,
            "error": None,
            "final_response": "done",
            "truncated_before": None,
            "more": True,
        }
    )
    assert [event.index for event in found.events] == [0, 1]
    assert (found.status, found.last_index, found.completed, found.more) == ("idle", 1, True, True)
    assert (found.final_response, found.error, found.truncated_before) == ("done", None, None)
    assert page_of({}).events == ()


@given(st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29))), st.integers(-1, 29))
def test_a_cursor_neither_skips_nor_repeats(spans: list[tuple[int, int]], after: int) -> None:
    cursor = EventCursor(after)
    taken: list[int] = []
    for first, last in spans:
        before = cursor.after
        try:
            taken += [event.index for event in cursor.take(page(first, last))]
        except EventsMissing as error:
            assert cursor.after == before == error.after
    assert taken == list(range(after + 1, after + 1 + len(taken)))
    assert cursor.after == after + len(taken)


@given(st.lists(st.integers(1, 7), min_size=30), st.booleans())
def test_pages_one_after_the_other_make_the_log(sizes: list[int], overlap: bool) -> None:  # noqa: FBT001
    cursor = EventCursor()
    taken: list[int] = []
    for size in sizes:
        first = max(0, cursor.after + 1 - 2 * overlap)
        taken += [event.index for event in cursor.take(page(first, first + size + 2 * overlap))]
    assert taken == list(range(30))


def test_events_before_a_gap_are_returned_before_the_gap_is_an_error() -> None:
    cursor = EventCursor()
    broken = page_of({"session_id": "gogol_1", "events": [*LOG[:2], *LOG[4:6]]})
    assert [event.index for event in cursor.take(broken)] == [0, 1]
    with pytest.raises(EventsMissing, match="after 1: event 4 came next") as caught:
        cursor.take(broken)
    assert (caught.value.after, caught.value.truncated_before) == (1, None)


def test_deleted_events_are_an_error_that_names_the_first_that_is_kept() -> None:
    cursor = EventCursor(3)
    with pytest.raises(EventsMissing, match="after=9") as caught:
        cursor.take(page(10, 12, truncated_before=10))
    assert (caught.value.after, caught.value.truncated_before) == (3, 10)
    assert caught.value.session_id == "gogol_1"
    cursor.skip_to(10)
    assert [event.index for event in cursor.take(page(10, 12))] == [10, 11, 12]
    cursor.skip_to(2)
    assert cursor.after == 12


def test_events_that_were_read_before_they_were_deleted_are_not_missing() -> None:
    cursor = EventCursor(9)
    assert len(cursor.take(page(10, 12, truncated_before=10))) == 3


def test_a_tree_is_read_by_seq_with_its_gaps() -> None:
    cursor = TreeCursor()
    assert len(cursor.take(page(0, 3, last_index=19))) == 4
    assert cursor.after == 19
    assert [event.index for event in cursor.take(page(2, 5, last_index=25))] == [4, 5]
    assert cursor.after == 25


def test_a_listener_begins_with_the_present_and_continues_at_next() -> None:
    cursor = ListenCursor()
    assert cursor.after is None
    assert cursor.take({"events": []}) == ()
    assert cursor.after is None
    assert cursor.take({"events": [], "next": 12}) == ()
    assert cursor.after == 12
    assert [e.index for e in cursor.take({"events": LOG[:3], "next": 16})] == [1, 2]
    assert cursor.take({"events": LOG[:3], "next": 16}) == ()


def test_an_open_request_is_delivered_again_and_moves_nothing() -> None:
    cursor = ListenCursor(40)
    again = {**LOG[0], "redelivered": True}
    assert [event.redelivered for event in cursor.take({"events": [again], "next": 40})] == [True]
    assert cursor.after == 40
