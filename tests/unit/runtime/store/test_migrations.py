"""The schema moves forward only, whole steps at a time, in a file for the owner alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
import stat

import msgspec
import pytest

from oubliette.actors.session import recovery
from oubliette.actors.session.event_writer import EventWriter
from oubliette.errors import ConfigError, DatabaseTooNew
from oubliette.records import CallerTool, Used
from oubliette.runtime.store import MEMORY, Database, operations, queries
from oubliette.runtime.store.connection import is_postgres
from oubliette.runtime.store.migrations import (
    APPLICATION_ID,
    POSTGRES_MIGRATIONS,
    Migration,
    migrate,
    released,
    statements,
)
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.conftest import Store
from tests.unit.runtime.store.samples import event

AT_ONCE = 20  # databases that several processes open, one after the other, at the same moment
STEPS = [
    Migration(1, "CREATE TABLE a (x);\nINSERT INTO a VALUES (1);\n"),
    Migration(2, "-- moves it\nALTER TABLE a ADD COLUMN y;\nUPDATE a SET y = x + 1;\n"),
    Migration(3, "CREATE TABLE b AS SELECT y FROM a;\n"),
]


@pytest.fixture
def connection(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as opened:
        yield opened


def version(connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


@pytest.mark.parametrize("released_before", [0, 1, 2, 3])
def test_every_released_schema_is_brought_forward(connection, released_before):
    if released_before:
        migrate(connection, STEPS[:released_before])
    assert migrate(connection, STEPS) == 3
    assert version(connection) == 3
    assert connection.execute("SELECT y FROM b").fetchall() == [(2,)]
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_step_that_fails_leaves_the_whole_schema_before_it(connection):
    broken = [*STEPS[:2], Migration(3, "CREATE TABLE b (y);\nINSERT INTO nothing VALUES (1);\n")]
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, broken)
    assert version(connection) == 2
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
    assert migrate(connection, STEPS) == 3


def test_what_sessions_of_earlier_releases_have_used_counts_in_the_hour_of_their_beginning(store):
    fields = {"created_at": 7200.5, "turn_count": 2, "last_prompt": "\0 \ud800", "input_tokens": 9}
    told = samples.session(1, **fields, model="m", output_tokens=3, cost_usd=0.5)
    priced = samples.session(2, **fields, agent="droid", cost_usd=0.25)
    unknown = samples.session(3, **fields, agent="acp")
    unused = samples.session(4, agent="other")
    store.write(*map(operations.PutSession, (told, priced, unknown, unused)))
    connection = store.database.connect()
    try:
        connection.execute("DROP TABLE usage")
        postgres = is_postgres(connection)
        steps = released(POSTGRES_MIGRATIONS) if postgres else released()
        (text,) = [step.sql for step in steps if "CREATE TABLE usage" in step.sql]
        for statement in statements(text):
            (connection.raw if postgres else connection).execute(statement)
        found = queries.usage_sums(connection, "agent", 2)
        assert [(each.key, each.used) for each in found.sums] == [
            ("scripted", Used(9, 3, reported_usd=0.5, turns=2)),
            ("droid", Used(9, measured_usd=0.25, turns=2)),
            ("acp", Used(9, turns=2)),
        ]
        assert queries.usage_sums(connection, "model", 2).sums[0].key == "m"
        assert queries.usage_sums(connection, "agent", 3).sums == []
    finally:
        store.database.release(connection)


def test_tools_in_a_record_of_an_older_release_are_moved_when_it_is_written(tmp_path):
    tools = (CallerTool(name="add"),)
    old = samples.session(caller_id="shop", caller_tools=tools)
    with contextlib.closing(Store(Database(tmp_path / "store.db")).start()) as store:
        store.write(operations.PutSession(samples.session()))
        with contextlib.closing(store.database.connect()) as connection:
            connection.execute("UPDATE sessions SET data = ?", (msgspec.json.encode(old),))
        found = store.read(recovery.stored, "s1", 10, 0.0).record
        assert found == old
        started = EventWriter(found, [], -1, ring_size=1, now=lambda: 1.0, wake=lambda: None)
        started.change(turn_count=1)
        store.write(*started.take().ops)
        assert store.read(queries.session, "s1").caller_tools == ()
        assert store.read(recovery.stored, "s1", 10, 0.0).record.caller_tools == tools


def test_what_an_older_release_stored_is_read_after_its_migration(tmp_path):
    """The mechanism with this release's schema as the old one."""
    old = released()
    newest = old[-1].version
    with contextlib.closing(Store(Database(tmp_path / "store.db")).start()) as store:
        store.write(
            operations.PutSession(samples.session()),
            operations.AppendEvents((event(0), event(1, data={}))),
        )
    changed = (
        "UPDATE sessions SET data = CAST(json_set(CAST(data AS TEXT), '$.agent', 'x') AS BLOB);\n"
    )
    steps = [*old, Migration(newest + 1, changed)]
    database = Database(tmp_path / "store.db", migrations=steps)
    with contextlib.closing(Store(database).start()) as store:
        assert store.read(queries.session, "s1") == samples.session(agent="x")
        assert [one.index for one in store.read(queries.log, "s1").events] == [0, 1]
        store.write(operations.AppendEvents((event(2),)))
    with pytest.raises(DatabaseTooNew):
        Database(tmp_path / "store.db")


def test_a_newer_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "store.db"
    Database(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(DatabaseTooNew, match=r"schema 99, this release knows up to \d+") as caught:
        Database(path)
    assert caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("pragma", ["PRAGMA user_version = 1", "CREATE TABLE theirs (a)"])
def test_another_programs_database_is_refused(tmp_path, pragma):
    path = tmp_path / "store.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(pragma)
    with pytest.raises(ConfigError, match="other program"):
        Database(path)


def test_what_is_no_database_is_refused(tmp_path):
    text = tmp_path / "text.db"
    text.write_text("this is not a database, but long enough to look at " * 50)
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "elsewhere.db")
    for path in (text, folder, link, tmp_path / "missing" / "store.db"):
        with pytest.raises(ConfigError, match="cannot be used as the database"):
            Database(path)
    assert not (tmp_path / "elsewhere.db").exists()


def test_the_files_are_for_the_owner_only(tmp_path):
    path = tmp_path / "store.db"
    with contextlib.closing(Store(Database(path)).start()) as store:
        store.write(operations.PutMeta("a", "b"))
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


def test_a_file_that_was_too_open_is_closed_to_others(tmp_path):
    path = tmp_path / "store.db"
    Database(path)
    path.chmod(0o644)
    Database(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _open(folder, barrier, outcome):
    try:
        for number in range(AT_ONCE):
            barrier.wait(10)
            Database(folder / f"{number}.db")
        outcome.put("opened")
    except BaseException as error:
        barrier.abort()
        outcome.put(repr(error))


@pytest.mark.whole
def test_processes_that_open_a_new_database_at_once_do_not_disturb_each_other(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, outcome = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_open, args=(tmp_path, barrier, outcome)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [outcome.get(timeout=20) for _ in processes] == ["opened"] * 3
    for process in processes:
        process.join(10)
    outcome.close()


def test_the_released_schema_files_are_numbered_without_a_gap():
    assert [step.version for step in released()] == list(range(1, len(released()) + 1))


def test_a_script_is_split_into_whole_statements():
    script = (
        "-- a; comment\nCREATE TABLE a (x); -- behind it\n"
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\n  SELECT 1;\nEND;\n"
        "INSERT INTO a VALUES ('a;b');\n-- the end\n"
    )
    parts = list(statements(script))
    assert len([part for part in parts if "CREATE" in part or "INSERT INTO" in part]) == 3
    with pytest.raises(ConfigError):
        list(statements("CREATE TABLE a (\n"))


def test_each_database_in_memory_is_its_own():
    one, two = Store(Database(MEMORY)).start(), Store(Database(MEMORY)).start()
    one.write(operations.PutMeta("a", "b"))
    assert two.read(queries.meta, "a") is None
    one.close()
    two.close()


def test_durability_says_what_an_answer_outlives(tmp_path):
    for durability, level in (("process", 1), ("power", 2)):  # NORMAL, FULL
        database = Database(tmp_path / f"{durability}.db", durability=durability)
        with contextlib.closing(database.connect()) as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_path_may_have_any_characters(tmp_path):
    folder = tmp_path / "a b?c#d%41&é"
    folder.mkdir()
    with contextlib.closing(Store(Database(folder / "st?re.db")).start()) as store:
        store.write(operations.PutMeta("a", "b"))
    assert (folder / "st?re.db").stat().st_size > 0
    assert [one.name for one in tmp_path.iterdir()] == [folder.name]


def test_a_database_that_has_vanished_is_not_begun_anew(tmp_path):
    database = Database(tmp_path / "store.db")
    (tmp_path / "store.db").unlink()
    with pytest.raises(sqlite3.OperationalError):
        database.connect()
    assert list(tmp_path.iterdir()) == []
