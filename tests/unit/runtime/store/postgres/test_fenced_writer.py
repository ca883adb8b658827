"""The writer of a node: paused while its lease is in doubt, closed once its epoch has ended."""

from __future__ import annotations

import queue

import pytest

from oubliette.errors import NotHere, StaleNode, Unavailable
from oubliette.runtime.store import Writer, operations
from oubliette.runtime.store.postgres.cluster import placements
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.postgres.fence import NodeFence
from tests.unit.runtime.store.postgres.cluster_rows import take
from tests.unit.runtime.store.postgres.conftest import WAIT
from tests.unit.runtime.store.samples import event, session

pytestmark = pytest.mark.requires("postgres")


class NodeWriter:
    """A writer with a fence, whose count of the lease the test sets."""

    def __init__(self, url: str, connection) -> None:
        self.seconds_left = 1.0
        epoch = take(connection, "a").epoch
        fence = NodeFence("a", epoch, lambda: self.seconds_left)
        self.states: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.writer = Writer(
            PostgresDatabase(url, fence=fence), on_state=lambda state, _: self.states.put(state)
        )
        self.writer.start()

    def submit(self, *ops):
        return self.writer.submit(ops)


@pytest.fixture
def node(url, connection):
    node = NodeWriter(url, connection)
    yield node
    node.writer.close().exception(WAIT)


def append(index: int):
    return operations.AppendEvents((event(index),))


def test_a_writer_pauses_once_while_the_lease_is_in_doubt_and_continues_after_it(node):
    node.submit(append(0)).result(WAIT)
    node.seconds_left = 0.0
    waiting = node.submit(append(1))
    assert node.states.get(timeout=WAIT) == "paused"
    with pytest.raises(queue.Empty):
        node.states.get(timeout=0.5)
    node.seconds_left = 1.0
    waiting.result(WAIT)
    assert node.states.get(timeout=WAIT) == "running"
    assert node.states.empty()


def test_a_writer_whose_epoch_has_ended_closes_with_that_reason(node, connection):
    node.submit(append(0)).result(WAIT)
    take(connection, "a")
    with pytest.raises(Unavailable):
        node.submit(append(1)).result(WAIT)
    assert isinstance(node.writer.closed.exception(WAIT), StaleNode)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_a_writer_whose_epoch_ended_while_the_lease_was_in_doubt_closes_too(node, connection):
    node.seconds_left = 0.0
    waiting = node.submit(append(0))
    assert node.states.get(timeout=WAIT) == "paused"
    take(connection, "a")
    node.seconds_left = 1.0
    with pytest.raises(Unavailable):
        waiting.result(WAIT)
    assert isinstance(node.writer.closed.exception(WAIT), StaleNode)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_a_session_of_a_project_elsewhere_is_refused_and_the_rest_of_the_batch_stored(
    node, connection
):
    take(connection, "b")
    placements.place(connection, "here", "a")
    placements.place(connection, "there", "b")
    here, there = session(1, project_id="here"), session(2, project_id="there")
    stored = [node.submit(append(0)), node.submit(operations.PutSession(here))]
    refused = node.submit(operations.PutSession(there))
    for each in (*stored, node.submit(append(1))):
        each.result(WAIT)
    with pytest.raises(NotHere, match="node a is not the home of project there"):
        refused.result(WAIT)
    found = connection.execute("SELECT id FROM sessions").fetchall()
    assert found == [("s1",)]
