"""A whole database is copied into an empty one, there and back, and nothing is lost."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import Conflict, StorageUnavailable
from oubliette.records import Principal, Used
from oubliette.runtime.store import Database, Writer, operations, queries, transfer
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.samples import event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 10.0
POSTGRES = pytest.param("postgres", marks=pytest.mark.requires("postgres"))
WAYS = [
    pytest.param("file", "file"),
    pytest.param("file", "postgres", marks=pytest.mark.requires("postgres")),
    pytest.param("postgres", "file", marks=pytest.mark.requires("postgres")),
    pytest.param("postgres", "postgres", marks=pytest.mark.requires("postgres")),
]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes empty databases, of either kind."""
    with contextlib.ExitStack() as stack:

        def made(kind: str) -> Any:
            if kind == "file":
                return Database(tmp_path / f"{len(list(tmp_path.iterdir()))}.db")
            from oubliette.runtime.store.postgres.database import PostgresDatabase

            server = request.getfixturevalue("postgres_server")
            url = server.new_database()
            stack.callback(server.drop_database, url)
            return PostgresDatabase(url)

        yield made


def write(database: Any, *transactions: tuple[Any, ...]) -> list[Any]:
    writer = Writer(database)
    writer.start()
    try:
        return [writer.submit(ops).result(SECONDS) for ops in transactions]
    finally:
        writer.close().result(SECONDS)


def filled(database: Any) -> None:
    """One of everything, a log that was cut, and one whose newest events were deleted."""
    everything = (
        operations.PutMeta("instance", "inst_1"),
        operations.PutPrincipal(Principal(id="prin_1", name="N\x7f", created_at=1.5)),
        operations.PutToken(samples.token(expires_at=2.25, session_id="s1")),
        operations.PutProject(samples.project(name="Ünïcode 🙂")),
        operations.PutWorkspace(samples.workspace(external_id="x")),
        operations.PutContainer(samples.container()),
        operations.PutSession(samples.session()),
        operations.PutSession(samples.session(2, status="completed")),
        operations.PutTurn(samples.turn(call_id="s0/7")),
        operations.AddUsage("s1", 7, "proj_1", "prin_1", "droid", "", Used(5, measured_usd=0.1)),
        operations.PutCallerRequest(samples.request(call_id="7")),
    )
    write(
        database,
        everything,
        *[
            (
                operations.AppendEvents(
                    tuple(event(-1, data={"n": n, "t": "\x00é\u2028"}) for n in range(40))
                ),
            )
            for _ in range(30)
        ],
        (operations.AppendEvents((event(0, "s2", source="p:0:0"), event(1, "s2"))),),
        (operations.DeleteSessionEvents("s1", 100),),
        (operations.DeleteSessionEvents("s2", 1),),
    )


def copied(source: Any, target: Any) -> transfer.Copied:
    reading, writing = source.connect_read_only(), target.connect()
    try:
        return transfer.copy(reading, writing)
    finally:
        source.release(reading)
        target.release(writing)


def read(database: Any, query: Any, *arguments: Any) -> Any:
    connection = database.connect_read_only()
    try:
        return query(connection, *arguments)
    finally:
        database.release(connection)


@pytest.mark.parametrize(("kind", "other"), WAYS)
def test_a_database_moves_with_everything_in_it(make: Any, kind: str, other: str) -> None:
    source, target = make(kind), make(other)
    filled(source)
    done = copied(source, target)
    assert done.rows["events"] == 30 * 40 - 101
    assert done.logs == 1
    for query, *arguments in (
        (queries.project, "proj_1"),
        (queries.sessions,),
        (queries.turns, "s1"),
        (queries.tokens,),
        (queries.log, "s1", 100, 5000),
        (queries.log, "s2"),
        (queries.meta, "instance"),
        (queries.request, "req1"),
    ):
        assert read(target, query, *arguments) == read(source, query, *arguments)
    assert read(source, transfer.log_digest, "s1") == read(target, transfer.log_digest, "s1")


def seen(database: Any, cursor: int) -> list[Any]:
    """All events after a cursor, over any number of reads."""
    events: list[Any] = []
    more = True
    while more:
        found, cursor, more, _ = read(database, queries.committed_events, cursor)
        events += found
    return events


@pytest.mark.parametrize(("kind", "other"), WAYS)
def test_new_events_continue_after_all_that_were_ever_there(
    make: Any, kind: str, other: str
) -> None:
    source, target = make(kind), make(other)
    filled(source)
    head = read(source, queries.last_seq)
    copied(source, target)
    ((added,),) = write(target, (operations.AppendEvents((event(-1), event(-1, "s2"))),))
    assert added[0].seq > head
    assert [each.index for each in added] == [1200, 2]
    assert seen(target, head) == list(added)


@pytest.mark.parametrize("kind", ["file", POSTGRES])
def test_a_database_that_has_something_is_not_written_to(make: Any, kind: str) -> None:
    source, target = make("file"), make(kind)
    filled(source)
    write(target, (operations.PutMeta("a", "b"),))
    with pytest.raises(Conflict, match="not empty, it has meta"):
        copied(source, target)
    assert read(target, queries.sessions).records == []


@pytest.mark.parametrize("kind", ["file", POSTGRES])
def test_a_copy_that_differs_is_not_kept(
    make: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make("file"), make(kind)
    filled(source)
    bytes_of = transfer._bytes_of
    seen: list[int] = []

    def disturbed(row: Any) -> bytes:
        seen.append(1)
        return bytes_of(row) + (b"x" if len(seen) == 5 else b"")

    monkeypatch.setattr(transfer, "_bytes_of", disturbed)
    with pytest.raises(StorageUnavailable, match="other contents"):
        copied(source, target)
    assert read(target, queries.sessions).records == []
    assert read(target, queries.meta, "instance") is None
