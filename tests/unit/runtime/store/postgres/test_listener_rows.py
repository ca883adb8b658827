"""All nodes know the same of a caller: its newest provider, its presence, its tools."""

from __future__ import annotations

import threading

import pytest

from oubliette.errors import StaleNode
from oubliette.runtime.store.postgres.cluster import listener_rows
from oubliette.runtime.store.postgres.cluster.listener_rows import listener_of
from oubliette.runtime.store.postgres.cluster.node_records import NodeOffer
from oubliette.runtime.store.postgres.cluster.nodes import end_lease, take_epoch
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def listen(connection, by, caller_id="me", **given):
    values = {"grace": 1.0, "tools": None, "delivered": 0, "head": 100, **given}
    return listener_rows.open_provider(connection, "p", caller_id, by, **values)


def release(connection, generation, seconds=1.0, delivered=0):
    return listener_rows.release_provider(
        connection, "p", "me", generation, seconds=seconds, reason="gone", delivered=delivered
    )


def note(connection, node, seconds=0.0, tools=None, reason="silent"):
    return listener_rows.note_caller(
        connection, "p", "me", node, seconds=seconds, reason=reason, tools=tools
    )


def heard(connection) -> list[str]:
    """What was notified since the last look."""
    connection.execute("SELECT 1")
    return [notice.payload for notice in connection.notifies(timeout=0.05)]


def test_the_newest_provider_supersedes_the_one_before_on_whichever_node(connection):
    a, b = take(connection, "a"), take(connection, "b")
    first = listen(connection, a)
    second = listen(connection, b)
    other = listen(connection, a, "you")
    assert first.generation < second.generation < other.generation
    found = listener_of(connection, "p", "me")
    assert (found.node, found.generation, found.held) == ("b", second.generation, True)
    late = release(connection, first.generation)
    assert (late.generation, late.held) == (second.generation, True)
    assert not release(connection, second.generation).held
    assert listen(connection, a).generation > other.generation


def test_of_many_that_listen_at_once_the_one_with_the_highest_generation_remains(connect):
    connections = [connect() for _ in range(10)]
    fences = [take(connections[0], name) for name in "ab"]
    rows = []

    def open_ten(number: int) -> None:
        rows.extend(listen(connections[number], fences[number % 2]) for _ in range(10))

    threads = [threading.Thread(target=open_ten, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(rows) == 100
    found = listener_of(connections[0], "p", "me")
    assert found.generation == max(row.generation for row in rows)


def test_a_provider_is_present_as_long_as_the_lease_of_its_node_and_its_grace(connection):
    a = take(connection, "a")
    assert 9 < listen(connection, a, grace=1.0).seconds < 11
    connection.execute("UPDATE nodes SET lease_until = clock_timestamp() + interval '0.1 s'")
    connection.execute("SELECT pg_sleep(0.2)")
    found = listener_of(connection, "p", "me")
    assert found.held
    assert 0.5 < found.seconds < 1.0


@pytest.mark.parametrize("way", ["its lease is ended", "another epoch begins"])
def test_the_providers_of_a_node_end_with_it_and_their_callers_have_their_grace(connection, way):
    a = take(connection, "a")
    opened = listen(connection, a, grace=3.0)
    if way == "its lease is ended":
        end_lease(connection, a)
    else:
        take_epoch(connection, "a", "", NodeOffer())
    found = listener_of(connection, "p", "me")
    assert not found.held
    assert found.change > opened.change
    assert found.delivered is None
    assert found.reason == "its node has ended"
    assert 2 < found.seconds <= 3


def test_the_end_of_a_provider_outweighs_earlier_signs_of_life(connection):
    a = take(connection, "a")
    assert 9 < note(connection, "a", 10).seconds <= 10
    opened = listen(connection, a)
    dropped = release(connection, opened.generation, seconds=1)
    assert dropped.seconds <= 1
    assert dropped.reason == "gone"
    assert note(connection, "b", 5).seconds > 4


def test_a_sign_of_life_never_shortens_presence_and_gives_the_reason_of_who_was_absent(connection):
    assert note(connection, "a", 0, "[]", reason="it never connected").seconds <= 0
    seen = note(connection, "a", 10, reason="silent")
    assert (seen.reason, seen.tools, seen.generation) == ("silent", "[]", 0)
    again = note(connection, "b", 5, reason="other")
    assert again.seconds > 9
    assert again.reason == "silent"


def test_tools_stay_until_others_are_lent(connection):
    a = take(connection, "a")
    assert listen(connection, a, tools='["add"]').tools == '["add"]'
    assert listen(connection, a).tools == '["add"]'
    assert note(connection, "b", 0, "[]").tools == "[]"


def test_what_was_delivered_is_known_from_a_release_and_is_all_without_one(connection):
    a, b = take(connection, "a"), take(connection, "b")
    first = listen(connection, a, delivered=5)
    assert release(connection, first.generation, delivered=7).delivered == 7
    second = listen(connection, b, delivered=3)
    assert second.delivered == 7
    assert listen(connection, b, delivered=9).delivered == 9  # of the same node
    third = listen(connection, a, delivered=3, head=100)  # b delivered until now
    assert third.delivered == 100
    let_lease_end(connection, "a")
    assert listen(connection, b, delivered=3, head=120).delivered == 120


def test_changes_are_notified_with_their_number_and_nothing_else_is(connection, connect):
    a = take(connection, "a")
    ears = connect()
    ears.execute("LISTEN oubliette_callers")
    opened = listen(connection, a)
    assert heard(ears) == [f"{opened.change}  p/me"]
    again = listen(connection, a)
    assert heard(ears) == [f"{again.change}  p/me"]
    assert listener_of(connection, "p", "me").change == again.change
    connection.execute("UPDATE listeners SET delivered = 12")
    assert release(connection, opened.generation).change == again.change
    assert heard(ears) == []
    released = release(connection, again.generation)
    noted = note(connection, "b", 10)
    assert heard(ears) == [f"{released.change}  p/me", f"{noted.change}  p/me"]
    assert opened.change < again.change < released.change < noted.change


def test_a_node_whose_epoch_has_ended_records_no_provider(connection):
    old = take(connection, "a")
    take(connection, "a")
    with pytest.raises(StaleNode):
        listen(connection, old)
    assert listener_of(connection, "p", "me") is None


def test_callers_are_forgotten_long_after_they_have_gone(connection):
    a = take(connection, "a")
    opened = listen(connection, a)
    assert listener_rows.forget_listeners(connection, -100) == 0
    release(connection, opened.generation)
    assert listener_rows.forget_listeners(connection) == 0
    assert listener_rows.forget_listeners(connection, -100) == 1
