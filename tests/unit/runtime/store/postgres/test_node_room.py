"""Room on the nodes as the database counts it, and projects that are placed at the same moment."""

from __future__ import annotations

import threading

import pytest

from oubliette.errors import Conflict, NotHere, Unavailable
from oubliette.runtime.store.postgres.cluster import node_room, nodes, placements
from oubliette.runtime.store.postgres.cluster.node_records import NodeLoad, NodeOffer, ProjectNeeds
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")
GIB = 1024**3
NEEDS = ProjectNeeds(memory_bytes=6 * GIB, processors=2.0)


def offer(connection, name: str, **has) -> None:
    """A node that has room for a project of `NEEDS`, unless it is said otherwise."""
    given = {"memory_bytes": 8 * GIB, "processors": 2.0, "live_sessions": 100, **has}
    nodes.take_epoch(connection, name, "", NodeOffer(**given))


def add_session(connection, project_id: str, workspace: str) -> None:
    connection.execute(
        "INSERT INTO sessions (id, project_id, workspace_id, principal, exploration_id, depth,"
        " status, live, updated_at, data) VALUES (%s, %s, %s, 'p', 'e', 0, 'running', 1, 0, '{}')",
        (f"{project_id}-{workspace}", project_id, workspace),
    )


def taken(connection, name: str) -> NodeLoad:
    return next(each.load for each in node_room.nodes_with_room(connection) if each.name == name)


def later(connection) -> None:
    """As if all projects had been placed long ago."""
    connection.execute("UPDATE placements SET placed = placed - interval '1 hour'")


def test_a_project_takes_its_room_at_once_and_later_only_while_sessions_live(connection):
    offer(connection, "a")
    node_room.place_on(connection, "p1", NEEDS, "a")
    load = NodeLoad(memory_bytes=6 * GIB, processors=2.0, live_sessions=1)
    assert taken(connection, "a") == load
    later(connection)
    assert taken(connection, "a") == NodeLoad()
    add_session(connection, "p1", "w")
    assert taken(connection, "a") == load
    connection.execute("UPDATE sessions SET live = 0")
    assert taken(connection, "a") == NodeLoad()


def test_workspaces_with_a_container_of_their_own_take_room_each(connection):
    offer(connection, "a", memory_bytes=100 * GIB)
    for project, isolated in (("shared", False), ("isolated", True)):
        needs = ProjectNeeds(memory_bytes=GIB, processors=1.0, isolated=isolated)
        node_room.place_on(connection, project, needs, "a")
        later(connection)
        for workspace in ("w1", "w2", "w3"):
            add_session(connection, project, workspace)
    assert taken(connection, "a") == NodeLoad(memory_bytes=4 * GIB, processors=4.0, live_sessions=6)


def test_memory_that_other_programs_use_is_taken_too(connection):
    fence = take(connection, "a")
    nodes.renew_lease(connection, fence, NodeLoad(memory_bytes=5 * GIB))
    assert taken(connection, "a").memory_bytes == 5 * GIB


def test_of_many_projects_at_once_each_node_gets_as_many_as_have_room(connect):
    """Ten connections place 30 projects on three nodes, which have room for three each."""
    connections = [connect() for _ in range(10)]
    for name in "abc":
        offer(connections[0], name, memory_bytes=20 * GIB, processors=8.0)
    barrier = threading.Barrier(len(connections))
    placed: list[str] = []
    refused: list[str] = []

    def place(number: int) -> None:
        barrier.wait(WAIT)
        for each in range(3):
            project = f"p{number}-{each}"
            try:
                placed.append(node_room.place_anywhere(connections[number], project, NEEDS))
            except Unavailable as error:
                refused.append(str(error))

    threads = [threading.Thread(target=place, args=(n,)) for n in range(len(connections))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(placed) == sorted("abc" * 3)
    assert len(refused) == 21
    for name in "abc":
        assert all(f"{name}: 2048 MiB are free, 6144 MiB are needed" in each for each in refused)


def test_the_second_of_two_that_chose_the_same_node_is_sent_on(connection):
    for name in "ab":
        offer(connection, name)
    node_room.place_on(connection, "p1", NEEDS, "a")
    with pytest.raises(NotHere, match="node a has no room any more: 2048 MiB are free"):
        node_room.place_on(connection, "p2", NEEDS, "a")
    assert placements.home_of(connection, "p2") is None
    node_room.place_on(connection, "p2", NEEDS, "b")
    node_room.place_on(connection, "p1", NEEDS, "a")  # its first answer was lost
    assert taken(connection, "a").live_sessions == 1


def test_a_project_that_is_placed_has_that_home_also_where_nothing_has_room(connection):
    offer(connection, "a")
    assert node_room.place_anywhere(connection, "p1", NEEDS) == "a"
    assert node_room.place_anywhere(connection, "p1", NEEDS) == "a"
    with pytest.raises(Unavailable, match="a: 2048 MiB are free"):
        node_room.place_anywhere(connection, "p2", NEEDS)


def test_a_project_of_a_lost_node_is_placed_by_the_same_needs(connection):
    offer(connection, "a", labels={"gpu": "yes"})
    by = take(connection, "b")
    offer(connection, "c", labels={"gpu": "yes"})
    needs = ProjectNeeds(memory_bytes=6 * GIB, labels={"gpu": "yes"})
    node_room.place_on(connection, "p1", needs, "a")
    let_lease_end(connection, "a")
    nodes.declare_gone(connection, "a", by)
    assert node_room.place_anywhere(connection, "p1", needs) == "c"
    assert taken(connection, "c").memory_bytes == 6 * GIB
    assert taken(connection, "a") == NodeLoad()


def test_a_project_moves_only_where_there_still_is_room(connection):
    for name in "abc":
        offer(connection, name)
    node_room.place_on(connection, "p1", NEEDS, "a")
    node_room.place_on(connection, "p2", NEEDS, "b")
    with pytest.raises(Unavailable, match="node b cannot take project p1 any more: 2048 MiB"):
        node_room.move_where_room(connection, "p1", NEEDS, home="a", to="b")
    with pytest.raises(Conflict, match="no node x"):
        node_room.move_where_room(connection, "p1", NEEDS, home="a", to="x")
    assert node_room.move_where_room(connection, "p1", NEEDS, home="a", to="c")
    assert not node_room.move_where_room(connection, "p2", NEEDS, home="c", to="a")
    assert taken(connection, "a") == NodeLoad()
    assert taken(connection, "c").memory_bytes == 6 * GIB


def test_a_process_that_is_stopped_while_it_places_stops_nobody_for_long(connect):
    stopped, other = connect(), connect()
    offer(other, "a")
    with pytest.raises(Exception, match="idle-in-transaction"):
        with node_room._placing(stopped):
            assert node_room.place_anywhere(other, "p1", NEEDS) == "a"
            stopped.execute("SELECT 1")
