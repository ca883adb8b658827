"""The newest listener of a caller is found on its node, until it leaves or is not seen any more."""

from __future__ import annotations

import threading

import pytest

from oubliette.runtime.store.postgres import listener_rows
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def test_the_newest_listener_supersedes_the_one_before_on_whichever_node(connection):
    a, b = take(connection, "a"), take(connection, "b")
    first = listener_rows.listen(connection, "p", "me", a, 60)
    second = listener_rows.listen(connection, "p", "me", b, 60)
    other = listener_rows.listen(connection, "p", "you", a, 60)
    assert first < second < other
    found = listener_rows.listener_of(connection, "p", "me")
    assert found is not None
    assert (found.node, found.generation) == ("b", second)
    assert not listener_rows.seen(connection, "p", "me", first, 60)
    assert listener_rows.seen(connection, "p", "me", second, 60)
    listener_rows.left(connection, "p", "me", first)
    assert listener_rows.listener_of(connection, "p", "me") == found
    listener_rows.left(connection, "p", "me", second)
    assert listener_rows.listener_of(connection, "p", "me") is None
    assert listener_rows.listen(connection, "p", "me", a, 60) > other


def test_of_many_that_listen_at_once_the_one_with_the_highest_generation_remains(connect):
    connections = [connect() for _ in range(10)]
    fences = [take(connections[0], name) for name in "ab"]
    given: list[int | None] = []

    def listen(number: int) -> None:
        for _ in range(10):
            given.append(
                listener_rows.listen(connections[number], "p", "me", fences[number % 2], 60)
            )

    threads = [threading.Thread(target=listen, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    generations = [each for each in given if each is not None]
    assert len(given) == 100
    assert len(set(generations)) == len(generations)
    found = listener_rows.listener_of(connections[0], "p", "me")
    assert found is not None
    assert found.generation == max(generations)


def test_a_listener_is_present_until_its_time_or_the_lease_of_its_node_has_ended(connection):
    a = take(connection, "a")
    generation = listener_rows.listen(connection, "p", "me", a, -1)
    assert listener_rows.listener_of(connection, "p", "me") is None
    assert listener_rows.seen(connection, "p", "me", generation, 60)
    assert listener_rows.listener_of(connection, "p", "me") is not None
    assert listener_rows.forget_listeners(connection) == 0
    let_lease_end(connection, "a")
    assert listener_rows.listener_of(connection, "p", "me") is None
    assert listener_rows.seen(connection, "p", "me", generation, -1)
    assert listener_rows.forget_listeners(connection) == 1


def test_a_node_whose_epoch_has_ended_records_no_listener(connection):
    old = take(connection, "a")
    take(connection, "a")
    assert listener_rows.listen(connection, "p", "me", old, 60) is None
    assert listener_rows.listener_of(connection, "p", "me") is None
