"""The lease of a node is renewed by its thread, and its end is noticed before the database's."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import StaleNode, StorageUnavailable
from oubliette.runtime.store.postgres.cluster import node_lease, nodes
from oubliette.runtime.store.postgres.cluster.node_lease import NodeLease
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad, NodeOffer
from oubliette.runtime.store.postgres.control_connection import control_connection
from oubliette.runtime.store.postgres.database import PostgresDatabase
from tests.unit.runtime.store.postgres.cluster_rows import state_of, take
from tests.unit.runtime.store.postgres.conftest import WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import PostgresServer

pytestmark = pytest.mark.requires("postgres")


class Kept:
    """A lease with a record of its renewals and of its loss."""

    def __init__(self, url: str, name: str = "a") -> None:
        self.lost: list[StaleNode] = []
        self.load = "2"
        self.told = threading.Event()
        self.renewals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.lease = NodeLease(
            url,
            name,
            on_lost=self._lost,
            address="here:1",
            offer=NodeOffer(live_sessions=5),
            load=self._load,
        )

    def _load(self) -> NodeLoad:
        self.renewals.put(None)
        return NodeLoad(live_sessions=int(self.load))

    def _lost(self, stale: StaleNode) -> None:
        self.lost.append(stale)
        self.told.set()

    def attempts(self, count: int) -> None:
        """Wait for the beginnings of this many renewals more."""
        while not self.renewals.empty():
            self.renewals.get()
        for _ in range(count):
            self.renewals.get(timeout=WAIT)


@pytest.fixture
def keep(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kept]]:
    monkeypatch.setattr(node_lease, "RENEW_SECONDS", 0.1)
    made: list[Kept] = []

    def make(at: str = url, name: str = "a") -> Kept:
        made.append(Kept(at, name))
        return made[-1]

    yield make
    for each in made:
        each.lease.close()


def test_a_lease_is_renewed_with_the_load_until_it_is_closed(keep, connection):
    kept = keep()
    assert kept.lease.seconds_left <= 0
    fence = kept.lease.take()
    assert fence.epoch == 1
    kept.attempts(3)
    node = state_of(connection, "a")
    assert (node.address, node.offer.live_sessions, node.load.live_sessions) == ("here:1", 5, 2)
    assert 9 < node.lease_seconds <= nodes.LEASE_SECONDS
    assert 7 < kept.lease.seconds_left <= nodes.LEASE_SECONDS - node_lease.MARGIN_SECONDS
    kept.lease.close()
    kept.lease.close()
    assert nodes.ended_leases(connection) == ["a"], "the others need not wait for its end"
    assert kept.lease.seconds_left <= 0
    assert kept.lost == []
    with pytest.raises(StorageUnavailable, match="lease of node a could not be renewed"):
        fence.check_locally()


def test_the_loss_of_a_lease_is_told_once(keep, connection):
    kept = keep()
    fence = kept.lease.take()
    second = keep()
    assert second.lease.take().epoch == 2
    assert kept.told.wait(WAIT)
    with pytest.raises(StorageUnavailable):
        fence.check_locally()
    second.attempts(3)
    kept.lease.close()
    assert len(kept.lost) == 1
    assert nodes.ended_leases(connection) == [], "that of the second is not ended by the first"
    assert second.lost == []


def test_a_node_learns_that_it_drains_at_its_next_renewal(keep, connection):
    kept = keep()
    kept.lease.take()
    nodes.set_draining(connection, "a", draining=True)
    kept.attempts(2)
    assert kept.lease.draining


def test_a_load_that_cannot_be_counted_costs_no_renewal(keep, connection, caplog):
    kept = keep()
    kept.lease.take()
    kept.attempts(2)
    kept.load = "not to be had"
    kept.attempts(3)
    assert state_of(connection, "a").load.live_sessions == 2
    assert kept.lease.seconds_left > 7
    assert "load of the node" in caplog.text


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_wrong_by_an_hour_changes_nothing(keep, connection, monkeypatch, hours):
    """Both clocks of the node: the date, and the one that counts from an arbitrary start."""
    real, boot = time.time, node_lease.since_boot
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    monkeypatch.setattr(node_lease, "since_boot", lambda: boot() + hours * 3600)
    kept = keep()
    fence = kept.lease.take()
    kept.attempts(3)
    fence.check_locally()
    assert 9 < state_of(connection, "a").lease_seconds <= nodes.LEASE_SECONDS
    by = take(connection, "b")
    with pytest.raises(Exception, match="its lease lasts for another"):
        nodes.declare_gone(connection, "a", by)
    assert kept.lost == []


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux has this clock")
def test_the_count_of_a_lease_goes_on_while_the_machine_sleeps():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= node_lease.since_boot() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_node_goes_on_with_its_epoch_after_the_database_was_restarted(
    own_postgres: PostgresServer, keep
):
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    kept = keep(url)
    fence = kept.lease.take()
    own_postgres.stop()
    kept.attempts(2)
    own_postgres.start()
    kept.attempts(3)
    assert kept.lost == []
    with control_connection(url, "test") as connection:
        with connection.transaction():
            fence.hold(connection)
        node = state_of(connection, "a")
        assert (node.epoch, node.state) == (fence.epoch, "running")
        assert node.lease_seconds > 9


def test_a_node_that_cannot_renew_stops_before_its_lease_ends_and_goes_on_when_it_can(
    own_postgres: PostgresServer, keep, monkeypatch
):
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    monkeypatch.setattr(node_lease, "MARGIN_SECONDS", nodes.LEASE_SECONDS - 1.0)
    kept = keep(url)
    fence = kept.lease.take()
    fence.check_locally()
    own_postgres.kill()
    until = time.monotonic() + WAIT
    while kept.lease.seconds_left > 0:
        kept.attempts(1)
        assert time.monotonic() < until
    with pytest.raises(StorageUnavailable):
        fence.check_locally()
    own_postgres.start()
    kept.attempts(2)
    while kept.lease.seconds_left <= 0:
        kept.attempts(1)
        assert time.monotonic() < until
    fence.check_locally()
    assert kept.lost == []


def test_the_leases_of_others_prove_nothing_until_they_could_be_renewed_after_a_hang(
    own_postgres: PostgresServer, keep, monkeypatch
):
    monkeypatch.setattr(node_lease, "LATE_SECONDS", 0.5)
    monkeypatch.setattr(node_lease, "LEASE_SECONDS", 2.0)
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    kept = keep(url)
    kept.lease.take()
    kept.attempts(2)
    assert kept.lease.unsteady_seconds == 0
    own_postgres.pause()
    try:
        until = time.monotonic() + WAIT
        while not kept.lease.unsteady_seconds:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        own_postgres.resume()
    kept.attempts(2)
    assert 0 < kept.lease.unsteady_seconds < 2.0
    while kept.lease.unsteady_seconds:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_closing_does_not_wait_for_a_database_that_hangs(own_postgres: PostgresServer, keep):
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    kept = keep(url)
    kept.lease.take()
    kept.attempts(1)
    own_postgres.pause()
    try:
        began = time.monotonic()
        kept.lease.close()
        assert time.monotonic() - began < node_lease._JOIN_SECONDS
    finally:
        own_postgres.resume()
