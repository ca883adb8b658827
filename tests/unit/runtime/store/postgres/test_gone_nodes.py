"""A node that is declared gone leaves nothing behind that others would wait for."""

from __future__ import annotations

import pytest

from oubliette.errors import StaleNode
from oubliette.runtime.store.postgres import limit_claims, listener_rows, nodes
from oubliette.runtime.store.postgres.node_records import NodeLoad
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, state_of, take

pytestmark = pytest.mark.requires("postgres")


def test_a_node_that_is_gone_stores_nothing_and_has_no_listeners_and_no_claims(connection):
    fence, by = take(connection, "a"), take(connection, "b")
    assert listener_rows.listen(connection, "p", "me", fence, 60)
    limit_claims.claim(connection, "r1", {"calls:p": 2}, node="a")
    limit_claims.claim(connection, "r2", {"calls:p": 2}, node="b")
    let_lease_end(connection, "a")
    nodes.declare_gone(connection, "a", by)
    nodes.declare_gone(connection, "a", by)
    assert state_of(connection, "a").state == "gone"
    assert nodes.ended_leases(connection) == []
    with pytest.raises(StaleNode), connection.transaction():
        fence.hold(connection)
    with pytest.raises(StaleNode):
        nodes.renew_lease(connection, fence, NodeLoad())
    assert connection.execute("SELECT count(*) FROM listeners").fetchone() == (0,)
    assert limit_claims.used(connection, "calls:p") == 1
    assert take(connection, "a").epoch > fence.epoch
    assert state_of(connection, "a").state == "running"
