"""A node that is declared gone leaves nothing behind that others would wait for."""

from __future__ import annotations

import pytest

from oubliette.errors import StaleNode
from oubliette.runtime.store.postgres.cluster import limit_claims, listener_rows, nodes
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, state_of, take

pytestmark = pytest.mark.requires("postgres")


def test_a_node_that_is_gone_stores_nothing_and_has_no_listeners_and_no_claims(connection):
    fence, by = take(connection, "a"), take(connection, "b")
    opened = listener_rows.open_provider(
        connection, "p", "me", fence, grace=1.0, tools=None, delivered=0, head=0
    )
    for number, each in enumerate((fence, by)):
        claim = limit_claims.LimitClaim(f"r{number}", "calls:p", 2)
        assert limit_claims.settle(connection, each, claims=[claim]) == set()
    let_lease_end(connection, "a")
    nodes.declare_gone(connection, "a", by)
    nodes.declare_gone(connection, "a", by)
    assert state_of(connection, "a").state == "gone"
    assert nodes.ended_leases(connection) == []
    with pytest.raises(StaleNode), connection.transaction():
        fence.hold(connection)
    with pytest.raises(StaleNode):
        nodes.renew_lease(connection, fence, NodeLoad())
    found = listener_rows.listener_of(connection, "p", "me")
    assert found is not None
    assert not found.held
    assert found.seconds <= 1.0
    assert found.change > opened.change
    assert limit_claims.used(connection, "calls:p") == 1
    assert take(connection, "a").epoch > fence.epoch
    assert state_of(connection, "a").state == "running"


def steady_for(connection, name: str, seconds: float) -> None:
    """As if the node had had the database for so long, after an outage."""
    connection.execute(
        "UPDATE nodes SET steady_since = clock_timestamp() - %s * interval '1 second'"
        " WHERE name = %s",
        (seconds, name),
    )


def test_an_outage_of_the_database_is_no_time_in_which_a_node_should_have_come_back(connection):
    """Its last sign of life is from before, as those of all were when the database came back."""
    take(connection, "a")
    by, other = take(connection, "b"), take(connection, "c")
    connection.execute(
        "UPDATE nodes SET lease_until = clock_timestamp() - interval '2 min' WHERE name = 'a'"
    )
    for name in (by.node, other.node):
        steady_for(connection, name, 12)
    assert nodes.declare_ended(connection, by, after=30) == []
    steady_for(connection, other.node, 31)  # it had no outage: there was none
    assert nodes.declare_ended(connection, by, after=30) == ["a"]


def test_a_node_that_has_lost_its_lease_is_no_witness_that_the_database_was_there(connection):
    take(connection, "a")
    by = take(connection, "b")
    steady_for(connection, by.node, 12)
    for name in ("a", take(connection, "c").node):
        let_lease_end(connection, name)
    assert nodes.declare_ended(connection, by, after=30) == []
