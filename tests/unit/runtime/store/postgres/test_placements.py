"""The home of a project: one, whoever asks, and a project moves only while nothing of it lives."""

from __future__ import annotations

import threading

import pytest

from oubliette.errors import Conflict, NotHere, Unavailable
from oubliette.runtime.store.postgres.cluster import nodes, placements
from oubliette.runtime.store.postgres.fence import refusal
from tests.unit.runtime.store.postgres.cluster_rows import add_session, let_lease_end, take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def test_a_project_is_placed_once_and_found_by_project_and_by_node(connection):
    take(connection, "a")
    take(connection, "b")
    assert placements.home_of(connection, "p1") is None
    assert placements.place(connection, "p1", "a") == "a"
    assert placements.place(connection, "p1", "b") == "a"
    assert placements.place(connection, "p0", "a") == "a"
    home = placements.home_of(connection, "p1")
    assert home is not None
    assert (home.node, home.epoch, home.state) == ("a", 1, "running")
    assert [each.project_id for each in placements.homes_on(connection, "a")] == ["p0", "p1"]
    assert placements.homes_on(connection, "b") == []
    placements.forget_placement(connection, "p1")
    assert placements.home_of(connection, "p1") is None


def test_of_a_hundred_that_place_a_project_at_once_one_decides(connect):
    """Four nodes, 25 connections, each with four attempts for every project."""
    connections = [connect() for _ in range(25)]
    names = ["a", "b", "c", "d"]
    for name in names:
        take(connections[0], name)
    answers: dict[str, list[str]] = {f"p{n}": [] for n in range(5)}
    barrier = threading.Barrier(len(connections))

    def place(number: int) -> None:
        for project, found in answers.items():
            barrier.wait(WAIT)
            for attempt in range(4):
                wanted = names[(number + attempt) % 4]
                found.append(placements.place(connections[number], project, wanted))

    threads = [threading.Thread(target=place, args=(n,)) for n in range(len(connections))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for project, found in answers.items():
        assert len(found) == 100
        home = placements.home_of(connections[0], project)
        assert home is not None
        assert set(found) == {home.node}


def test_nothing_is_placed_on_a_node_that_drains_or_has_lost_its_lease(connection):
    take(connection, "a")
    take(connection, "b")
    nodes.set_draining(connection, "a", draining=True)
    let_lease_end(connection, "b")
    for name in ("a", "b", "c"):
        with pytest.raises(Unavailable, match=f"node {name} takes no projects now"):
            placements.place(connection, "p1", name)
    assert placements.home_of(connection, "p1") is None


def test_a_project_moves_while_nothing_of_it_lives_and_only_from_where_it_is(connection):
    for name in "abc":
        take(connection, name)
    placements.place(connection, "p1", "a")
    assert placements.move(connection, "p1", home="a", to="b")
    assert not placements.move(connection, "p1", home="a", to="c")
    session = add_session(connection, "p1")
    with pytest.raises(Conflict, match="live sessions"):
        placements.move(connection, "p1", home="b", to="c")
    connection.execute("UPDATE sessions SET live = 0 WHERE id = %s", (session,))
    assert placements.move(connection, "p1", home="b", to="c")
    assert not placements.move(connection, "p2", home="b", to="c")


def test_projects_of_a_node_that_is_gone_are_placed_elsewhere_once_their_sessions_have_ended(
    connection,
):
    take(connection, "a")
    by = take(connection, "b")
    placements.place(connection, "p1", "a")
    placements.place(connection, "p2", "a")
    session = add_session(connection, "p1")
    let_lease_end(connection, "a")
    assert placements.place(connection, "p2", "b") == "a", "its lease ended, but it may renew it"
    nodes.declare_gone(connection, "a", by)
    home = placements.home_of(connection, "p1")
    assert home is not None
    assert home.state == "gone"
    assert placements.place(connection, "p2", "b") == "b"
    with pytest.raises(Conflict, match="live sessions"):
        placements.place(connection, "p1", "b")
    connection.execute("UPDATE sessions SET live = 0 WHERE id = %s", (session,))
    assert placements.place(connection, "p1", "b") == "b"


def test_a_session_becomes_live_only_on_the_home_of_its_project(connection):
    a, b = take(connection, "a"), take(connection, "b")
    placements.place(connection, "p1", "a")
    with connection.transaction():
        a.hold(connection)
        session = add_session(connection, "p1")
    with connection.transaction():
        b.hold(connection)
        connection.execute("UPDATE sessions SET status = 'idle' WHERE id = %s", (session,))
    for project in ("p1", "p2"):
        with pytest.raises(Exception, match=f"b is not the home of project {project}") as refused:
            with connection.transaction():
                b.hold(connection)
                connection.execute("DELETE FROM sessions")
                add_session(connection, project)
        assert isinstance(refusal(refused.value), NotHere)
    connection.execute("UPDATE sessions SET live = 0")
    with pytest.raises(Exception, match="b is not the home of project p1"):
        with connection.transaction():
            b.hold(connection)
            connection.execute("UPDATE sessions SET live = 1")
    with connection.transaction():
        a.hold(connection)
        connection.execute("UPDATE sessions SET live = 1")


def test_a_move_waits_for_a_session_that_is_about_to_live_and_is_then_refused(connect):
    connection, spawning = connect(), connect()
    a = take(connection, "a")
    take(connection, "b")
    placements.place(connection, "p1", "a")
    refused: list[BaseException] = []

    def move() -> None:
        try:
            placements.move(connection, "p1", home="a", to="b")
        except Conflict as error:
            refused.append(error)

    with spawning.transaction():
        a.hold(spawning)
        add_session(spawning, "p1")
        mover = threading.Thread(target=move)
        mover.start()
        blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        pid = (connection.info.backend_pid,)
        while spawning.execute(blocked, pid).fetchone() == (False,):
            assert mover.is_alive()
    mover.join(WAIT)
    assert len(refused) == 1
    home = placements.home_of(spawning, "p1")
    assert home is not None
    assert home.node == "a"


def test_a_deleted_project_has_no_home_on_a_node_that_is_gone_or_starts(connection):
    """Whether or not a tree of it goes on: that has it placed anew."""
    a, b = take(connection, "a"), take(connection, "b")
    for project, node in (("p1", "a"), ("p2", "b"), ("p3", "a")):
        placements.place(connection, project, node)
        connection.execute(
            "INSERT INTO projects (id, name, folded, deleted_at, data) VALUES (%s, %s, %s, %s, '{}')",
            (project, project, project, None if project == "p3" else 1.0),
        )
    placements.forget_deleted(connection)
    assert placements.home_of(connection, "p1") is not None
    let_lease_end(connection, a.node)
    nodes.declare_gone(connection, a.node, b)
    placements.forget_deleted(connection)
    homes = {each: placements.home_of(connection, each) for each in ("p1", "p2", "p3")}
    assert {each for each, home in homes.items() if home} == {"p2", "p3"}
    placements.forget_deleted(connection, b.node)
    assert placements.home_of(connection, "p2") is None
