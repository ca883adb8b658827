"""Copies of snapshots in the database: by the home alone, published whole, removed with the project."""

from __future__ import annotations

import pytest

from oubliette.errors import Conflict, NotHere, StaleNode
from oubliette.runtime.store.postgres.cluster import nodes, placements, snapshot_copies
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take

pytestmark = pytest.mark.requires("postgres")

KEY = ("p1", "workspace")


def publish(connection, fence, version, *parts, record=b"{}"):
    snapshot_copies.publish_copy(
        connection, fence, KEY, version=version, holder="", parts=parts, record=record
    )


def put(connection, fence, part, number, data=b"data"):
    snapshot_copies.put_chunk(connection, fence, KEY, part=part, number=number, data=data)


def chunks(connection):
    return connection.execute("SELECT count(*) FROM snapshot_chunks").fetchone()[0]


@pytest.fixture
def home(connection):
    fence = take(connection, "a")
    placements.place(connection, "p1", "a")
    return fence


def test_a_record_is_replaced_by_its_next_version_only(connection, home):
    assert snapshot_copies.read_copy(connection, KEY) is None
    publish(connection, home, 1, "one", record=b"first")
    publish(connection, home, 1, "one", record=b"first")  # its answer was lost
    with pytest.raises(Conflict):
        publish(connection, home, 1, "other", record=b"other")
    publish(connection, home, 2, "one", "two", record=b"second")
    with pytest.raises(Conflict):
        publish(connection, home, 2, "other", record=b"other")
    with pytest.raises(Conflict):
        publish(connection, home, 4, "other", record=b"other")
    assert snapshot_copies.read_copy(connection, KEY) == b"second"


def test_chunks_that_belong_to_no_part_are_removed_some_at_a_time(connection, home):
    for number in range(40):
        put(connection, home, "old", number)
    put(connection, home, "new", 0, b"\x00\xff")
    publish(connection, home, 1, "new")
    assert snapshot_copies.drop_chunks(connection, home, KEY)
    assert 1 < chunks(connection) < 40
    assert not snapshot_copies.drop_chunks(connection, home, KEY)
    assert chunks(connection) == 1
    assert snapshot_copies.get_chunk(connection, KEY, "new", 0) == b"\x00\xff"
    assert snapshot_copies.get_chunk(connection, KEY, "new", 1) is None


def test_a_node_that_was_given_up_or_is_not_the_home_stores_nothing(connection, home):
    other = take(connection, "b")
    for write in (
        lambda fence: put(connection, fence, "part", 0),
        lambda fence: publish(connection, fence, 1, "part"),
        lambda fence: snapshot_copies.drop_chunks(connection, fence, KEY),
    ):
        with pytest.raises(NotHere):
            write(other)
    let_lease_end(connection, "a")
    nodes.declare_gone(connection, "a", other)
    for write in (
        lambda fence: put(connection, fence, "part", 0),
        lambda fence: publish(connection, fence, 1, "part"),
        lambda fence: snapshot_copies.drop_chunks(connection, fence, KEY),
        lambda fence: snapshot_copies.forget_copies(connection, fence, "p1"),
    ):
        with pytest.raises(StaleNode):
            write(home)
    assert chunks(connection) == 0


def test_copies_are_removed_once_their_project_is_deleted(connection, home):
    connection.execute(
        "INSERT INTO projects (id, name, folded, data) VALUES ('p1', 'shop', 'shop', '{}')"
    )
    for number in range(40):
        put(connection, home, "part", number)
    publish(connection, home, 1, "part")
    assert snapshot_copies.deleted_projects(connection) == []
    assert not snapshot_copies.forget_copies(connection, home, "p1")
    assert chunks(connection) == 40
    connection.execute("UPDATE projects SET deleted_at = 1")
    assert snapshot_copies.deleted_projects(connection) == ["p1"]
    while snapshot_copies.forget_copies(connection, home, "p1"):
        pass
    assert chunks(connection) == 0
    assert snapshot_copies.read_copy(connection, KEY) is None
    assert snapshot_copies.deleted_projects(connection) == []
