"""Epochs of nodes: at most one holder, and the database's clock decides when it may lose it."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from oubliette.errors import Conflict, NotFound, StaleNode
from oubliette.runtime.store.postgres.cluster import nodes
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad, NodeOffer
from oubliette.runtime.store.postgres.fence import NodeFence
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, state_of, take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def test_a_node_that_starts_again_has_the_next_epoch_and_fences_the_one_before(connection):
    first = take(connection, "a")
    second = take(connection, "a")
    assert (first.epoch, second.epoch) == (1, 2)
    with connection.transaction():
        second.hold(connection)
    with pytest.raises(StaleNode, match="epoch 1 of node a has ended"), connection.transaction():
        first.hold(connection)
    with pytest.raises(StaleNode):
        nodes.renew_lease(connection, first, NodeLoad())


def test_of_many_that_take_a_node_at_once_each_has_an_epoch_of_its_own(connect):
    connections = [connect() for _ in range(8)]
    epochs = []
    threads = [
        threading.Thread(target=lambda each=each: epochs.append(take(each, "a").epoch))
        for each in connections
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(epochs) == list(range(1, 9))
    assert state_of(connections[0], "a").epoch == 8


def test_a_renewal_carries_the_load_and_lasts_as_long_as_a_lease(connection):
    offer = NodeOffer(memory_bytes=8, runtimes=("docker",), labels={"zone": "b"})
    epoch = nodes.take_epoch(connection, "a", "host:1", offer)
    assert nodes.renew_lease(connection, NodeFence("a", epoch), NodeLoad(live_sessions=3))
    node = state_of(connection, "a")
    assert node.offer == offer
    assert node.load.live_sessions == 3
    assert node.address == "host:1"
    assert 8 < node.lease_seconds <= nodes.LEASE_SECONDS


def test_a_lease_that_has_ended_is_renewed_if_the_epoch_has_not(connection):
    fence = take(connection, "a")
    let_lease_end(connection, "a")
    assert nodes.ended_leases(connection) == ["a"]
    assert nodes.renew_lease(connection, fence, NodeLoad()) == "running"
    assert nodes.ended_leases(connection) == []


def test_no_node_is_declared_gone_while_its_lease_lasts(connection):
    fence, by = take(connection, "a"), take(connection, "b")
    with pytest.raises(Conflict, match=r"its lease lasts for another \d+\.\d s"):
        nodes.declare_gone(connection, "a", by)
    with connection.transaction():
        fence.hold(connection)
    with pytest.raises(Conflict, match="no node has this name"):
        nodes.declare_gone(connection, "c", by)


def test_after_an_outage_of_the_database_nobody_is_declared_gone_before_all_could_renew(connection):
    take(connection, "a")
    by = take(connection, "b")
    for name in "ab":
        let_lease_end(connection, name)
    nodes.renew_lease(connection, by, NodeLoad())  # the first that has the database again
    with pytest.raises(Conflict, match="node b has not had the database for 10 s without a gap"):
        nodes.declare_gone(connection, "a", by)


def test_one_that_is_not_current_itself_declares_nobody_gone(connection):
    take(connection, "a")
    by = take(connection, "b")
    take(connection, "b")
    let_lease_end(connection, "a")
    with pytest.raises(StaleNode):
        nodes.declare_gone(connection, "a", by)
    assert state_of(connection, "a").state == "running"


def test_a_transaction_that_is_open_when_the_node_is_declared_gone_stores_nothing(connect):
    connection, open_one = connect(), connect()
    fence, by = take(connection, "a"), take(connection, "b")
    with pytest.raises(psycopg.OperationalError), open_one.transaction():
        fence.hold(open_one)
        open_one.execute("INSERT INTO meta (key, value) VALUES ('k', 'v')")
        let_lease_end(connection, "a")
        began = time.monotonic()
        nodes.declare_gone(connection, "a", by)
        assert time.monotonic() - began < 3
    assert connection.execute("SELECT count(*) FROM meta WHERE key = 'k'").fetchone() == (0,)


def test_a_renewal_does_not_wait_for_an_open_transaction(connect):
    connection, open_one = connect(), connect()
    fence = take(connection, "a")
    connection.execute("SET lock_timeout = '100ms'")
    with open_one.transaction():
        fence.hold(open_one)
        nodes.renew_lease(connection, fence, NodeLoad())
        nodes.set_draining(connection, "a", draining=True)


def test_what_an_epoch_stores_is_all_there_when_the_next_one_begins(connect):
    """Writers of each epoch go on until they are refused; a later epoch never sees more of them."""
    connection = connect()
    connection.execute("CREATE TABLE written (epoch bigint)")

    def write(fence: NodeFence, own) -> None:
        while True:
            try:
                with own.transaction():
                    fence.hold(own)
                    own.execute("INSERT INTO written VALUES (%s)", (fence.epoch,))
            except (StaleNode, psycopg.OperationalError):
                return

    counts, threads = [], []
    for _ in range(6):
        fence = take(connection, "a")
        counts.append(connection.execute("SELECT count(*) FROM written").fetchone())
        threads.append(threading.Thread(target=write, args=(fence, connect())))
        threads[-1].start()
        until = time.monotonic() + WAIT
        while connection.execute(
            "SELECT count(*) < 5 FROM written WHERE epoch = %s", (fence.epoch,)
        ).fetchone() == (True,):
            assert time.monotonic() < until
    last = take(connection, "a").epoch
    for thread in threads:
        thread.join(WAIT)
    for number, count in enumerate(counts, 1):
        found = connection.execute("SELECT count(*) FROM written WHERE epoch < %s", (number,))
        assert found.fetchone() == count
    assert last == 7


def test_a_node_that_drains_still_does_after_a_start_until_it_is_told_otherwise(connection):
    fence = take(connection, "a")
    nodes.set_draining(connection, "a", draining=True)
    assert nodes.renew_lease(connection, fence, NodeLoad()) == "draining"
    take(connection, "a")
    assert state_of(connection, "a").state == "draining"
    nodes.set_draining(connection, "a", draining=False)
    assert state_of(connection, "a").state == "running"
    with pytest.raises(NotFound):
        nodes.set_draining(connection, "b", draining=True)


def test_a_lease_that_its_holder_ends_is_over_at_once(connection):
    fence, by = take(connection, "a"), take(connection, "b")
    nodes.end_lease(connection, fence)
    nodes.declare_gone(connection, "a", by)
