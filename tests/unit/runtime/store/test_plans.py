"""Reads and writes that happen all the time never walk a whole table."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path

import pytest

from oubliette.actors.session import recovery
from oubliette.records import Used
from oubliette.runtime.files import leftovers
from oubliette.runtime.store import Database, operations, queries
from oubliette.runtime.store.execute import perform
from oubliette.tools.event_queries import event_piece, listing_facts, tree_log
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.samples import event

READS = [
    (queries.log, ("s1", 5)),
    (queries.event, ("s1", 5)),
    (queries.last_source, ("s1", "p")),
    (queries.caller_events, ("p", "me", 5)),
    (queries.committed_events, (5,)),
    (queries.committed_events, (5, "proj_1")),
    (queries.chosen_events, (queries.EventChoice(), 5)),
    (queries.chosen_events, (queries.EventChoice("proj_1", "s1", ("message",), "text"), 5)),
    (queries.session, ("s1",)),
    (queries.children, ("s1",)),
    (queries.live_sessions, ()),
    (queries.live_sessions, ("proj_1", "cont_1")),
    (queries.live_sessions, (None, None, "w1")),
    (queries.sessions, ("proj_1", "running")),
    (queries.sessions, ("proj_1", "failed")),
    (queries.ended_sessions, (5.0,)),
    (tree_log, ("s1", 0, 10, 1000)),
    (tree_log, ("s1", 0, 10, 1000, None, "proj_1")),
    (queries.count_live_sessions, ("proj_1",)),
    (queries.live_session_ids, ()),
    (queries.child_ids, ("s1",)),
    (queries.with_tools, (samples.session(),)),
    (queries.bounds, ("s1",)),
    (queries.sessions, ("proj_1",)),
    (queries.sessions, (None, None, "expl_1")),
    (queries.listed_sessions, ("proj_1", ("failed", "running"))),
    (queries.listed_sessions, (None, ("failed", "running"))),
    (listing_facts, ([samples.session(2, parent_session_id="s1")], "proj_1")),
    (queries.session_title, (samples.session(),)),
    (queries.usage_sums, ("session", 5)),
    (queries.usage_sums, ("model", 5, "proj_1")),
    (queries.usage_sums, ("project", 0, "proj_1")),
    (queries.tree_members, ("expl_1",)),
    (event_piece, ("s1", 0, 0, 10)),
    (recovery.stored, ("s1", 10, 0.0)),
    (leftovers.without_sessions, ([leftovers.Found(Path("x"), "s1")],)),
    (queries.latest_session, ("w1", "prin_1")),
    (queries.turns, ("s1", ["queued"])),
    (queries.turn_of_call, ("s0/1",)),
    (queries.request, ("req1",)),
    (queries.open_requests, ("s1",)),
    (queries.recent_requests, ("s1", 1.0)),
    (queries.waiting_permissions, ()),
    (queries.waiting_permissions, ("proj_1",)),
    (queries.idempotency, ("prin_1", "session_spawn", "k")),
    (queries.project_named, ("A",)),
    (queries.workspaces, ("proj_1",)),
    (queries.workspace_page, ("proj_1", 10, "w1")),
    (queries.next_workspace_time, ("proj_1", 5.0)),
    (queries.newest_ids, ()),
    (queries.newest_ids, ("proj_1",)),
    (queries.containers, ("proj_1",)),
    (queries.projects, ()),
    (queries.projects, (None, 10, "proj_1")),
    (queries.project, ("proj_1",)),
    (queries.workspace, ("w1",)),
    (queries.events, ("s1", 5)),
    (queries.session_ids, ("proj_1",)),
    (queries.last_index, ("s1",)),
    (queries.last_seq, ()),
    (queries.turn, ("s1", 1)),
    (queries.permission, ("perm_1",)),
    (queries.permissions, ("s1", 1)),
    (queries.open_permissions, ("prin_1", "me")),
    (queries.principal, ("prin_1",)),
    (queries.token, ("tok_1",)),
    (queries.meta, ("epoch",)),
]
WHOLE = {
    queries.tokens: "all are held in memory",
    queries.projects_with_containers: "containers are few: a record goes with its container",
    queries.projects_in_use: "the start alone looks for all containers and live sessions",
    queries.event_bytes: "no statement: it reads at a place in a row",
}
"""Other queries, which may walk a whole table, and why."""
WRITES = [
    operations.AppendEvents((event(0, source="p:1:0"), event(1))),
    operations.PutSession(samples.session()),
    operations.PutTurn(samples.turn()),
    operations.AddUsage("s1", 7, "proj_1", "prin_1", "scripted", "", Used(turns=1)),
    operations.PutCallerRequest(samples.request()),
    operations.PutPermission(samples.permission()),
    operations.SettleCallerRequest("req1", "result", 1.0),
    operations.PutIdempotency(samples.key()),
    operations.PurgeSession("s2"),
    operations.DeleteSessionEvents("s1", 0),
    operations.ExpireIdempotency(1.0),
]
PARTIAL = ("sessions_live", "caller_requests_open", "permissions_open", "projects_existing")
"""Indexes of what is live, open or there only: walking one of these is walking what is asked for."""
COUNTERS = "SCAN sqlite_sequence:"
"""A table of one row."""


@pytest.fixture
def connection(tmp_path):
    with contextlib.closing(Database(tmp_path / "store.db").connect()) as opened:
        perform(
            opened,
            (
                *WRITES[:6],
                operations.PutSession(samples.session(2, status="failed")),
                operations.PutIdempotency(samples.key("other")),
            ),
        )
        yield opened


def scans(connection, action) -> list[str]:
    """The whole tables that the statements of `action` walk."""
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    action()
    connection.set_trace_callback(None)
    found = [
        f"{row[3]}: {statement}"
        for statement in statements
        if statement.startswith(("SELECT", "INSERT", "DELETE", "\n"))
        for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert statements
    return [
        step
        for step in found
        if step.startswith("SCAN")
        and "CONSTANT ROW" not in step
        and not step.startswith(COUNTERS)
        and not any(f"USING INDEX {name}:" in step for name in PARTIAL)
    ]


@pytest.mark.parametrize(("query", "arguments"), READS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_frequent_read_finds_its_rows_by_an_index(connection, query, arguments):
    assert scans(connection, lambda: query(connection, *arguments)) == []


def test_each_query_is_known_to_use_an_index_or_why_not():
    known = {query.__name__ for query, _ in READS} | {query.__name__ for query in WHOLE}
    functions = {name for name in queries.__all__ if inspect.isfunction(getattr(queries, name))}
    assert functions - known == set()


STORED = 1000


def steps(connection, action) -> int:
    """How many rows, roughly, SQLite goes through for `action`, whatever the plan says."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    connection.set_progress_handler(tick, 100)
    action()
    connection.set_progress_handler(None, 0)
    return count


@pytest.mark.parametrize(
    ("query", "arguments"),
    [
        (queries.committed_events, (2 * STORED, "proj_1")),
        (queries.projects, ()),
        (queries.workspaces, ("proj_1",)),
        (queries.workspace_page, ("proj_1",)),
        (queries.latest_session, ("w1", "prin_1")),
        (queries.sessions, ("proj_1", "running")),
        (queries.sessions, ("proj_1", "timed_out")),
        (queries.live_sessions, (None, None, "w1")),
        (queries.ended_sessions, (1.0,)),
        (tree_log, ("s1", 2 * STORED, 10, 1000)),
        (tree_log, ("s1", 2 * STORED, 10, 1000, None, "proj_1")),
        (queries.chosen_events, (queries.EventChoice("proj_1", "s1", ("status",)), 2 * STORED)),
        (queries.waiting_permissions, ("proj_1",)),
        (queries.listed_sessions, ("proj_1", ("timed_out", "running"))),
        (queries.listed_sessions, (None, ("timed_out", "running"))),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_read_that_finds_little_takes_as_long_however_much_is_stored(
    connection, query, arguments
):
    few = steps(connection, lambda: query(connection, *arguments))
    done = [
        samples.session(
            number,
            status="completed",
            ended_by="user",
            updated_at=9.0,
            parent_session_id="s1" if number % 2 else None,
        )
        for number in range(10, STORED + 10)
    ]
    perform(connection, tuple(operations.PutSession(each) for each in done))
    for number in range(10, STORED + 10):
        project = samples.project(number, deleted_at=1.0)
        workspace = samples.workspace(number, deleted_at=1.0)
        perform(connection, (operations.PutProject(project), operations.PutWorkspace(workspace)))
    spoken = [event(0, each.id) for each in done] + [event(2 + n) for n in range(STORED)]
    perform(connection, (operations.AppendEvents(tuple(spoken)),))
    decided = [samples.permission(each.id, decision="allow") for each in done]
    perform(connection, tuple(map(operations.PutPermission, decided)))
    assert steps(connection, lambda: query(connection, *arguments)) <= few + 5


def test_recovering_a_session_takes_as_long_however_long_its_turn_is(connection):
    def recover():
        return recovery.stored(connection, "s1", 10, 0.0)

    call = event(2, type="tool_call", data={"call_id": "c", "tool": "bash"}, ts=7.0)
    running = samples.session(process_id="silent")
    turn = samples.turn(state="running", began_at=5.0, began_index=2)
    perform(
        connection,
        (
            operations.PutSession(running),
            operations.PutTurn(turn),
            operations.AppendEvents((call,)),
        ),
    )
    few = steps(connection, recover)
    spoken = tuple(event(3 + n) for n in range(STORED))
    perform(connection, (operations.AppendEvents(spoken),))
    assert steps(connection, recover) <= few + 5
    assert (recover().open_tools, recover().turn_since) == ({"c": ("bash", 7.0)}, 5.0)


@pytest.mark.parametrize("operation", WRITES, ids=lambda op: type(op).__name__)
def test_a_frequent_write_finds_its_rows_by_an_index(connection, operation):
    def act():
        connection.execute("SAVEPOINT here")
        with contextlib.suppress(Exception):
            perform(connection, (operation,))
        connection.execute("ROLLBACK TO here")
        connection.execute("RELEASE here")

    assert scans(connection, act) == []


def test_a_walk_through_a_whole_table_would_be_noticed(connection):
    assert scans(connection, lambda: queries.tokens(connection)) != []
