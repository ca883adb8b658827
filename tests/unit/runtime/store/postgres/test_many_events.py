"""A reader on another node neither skips nor repeats an event, whatever happens to the writers."""

from __future__ import annotations

import pytest

from tests.unit.runtime.store.postgres import many_events

pytestmark = pytest.mark.requires("postgres")

EVENTS = 100_000


def test_a_reader_gets_each_event_of_three_writing_nodes_once_and_in_order(postgres_url):
    """One of the writers is killed while it holds a commit back, and all hold some back."""
    outcome = many_events.run(postgres_url, EVENTS, seconds=100.0)
    assert outcome.events > EVENTS
    assert outcome.held_back >= 3
    assert (outcome.kills, outcome.reconnections) == (1, 2)
