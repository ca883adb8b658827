"""Open calls of caller tools, counted by principal."""

from __future__ import annotations

from oubliette.actors.open_calls import OpenCallCounts


def test_the_calls_of_all_sessions_of_a_principal_are_added_up() -> None:
    counts = OpenCallCounts()
    counts.set("p", "one", 2)
    counts.set("p", "two", 1)
    counts.set("q", "three", 5)
    assert (counts.total("p"), counts.total("q"), counts.total("r")) == (3, 5, 0)
    counts.set("p", "one", 1)
    assert counts.total("p") == 2


def test_who_has_no_open_call_is_not_counted_and_not_remembered() -> None:
    """Principals come and go with the sessions that have keys of their own."""
    counts = OpenCallCounts()
    counts.set("p", "one", 2)
    counts.set("p", "two", 1)
    counts.set("p", "one", 0)
    assert (counts.total("p"), len(counts)) == (1, 1)
    counts.set("p", "two", 0)
    counts.set("p", "two", 0)
    assert len(counts) == 0
