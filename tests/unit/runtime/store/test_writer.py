"""The writer's thread: batches, faults of the storage, the end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import Future

import pytest

from oubliette import failpoints
from oubliette.errors import Conflict, StorageUnavailable, Unavailable
from oubliette.failpoints import FailpointError
from oubliette.runtime.store import MEMORY, Database, Writer, operations, queries
from oubliette.runtime.store.errors import storage_fault
from oubliette.runtime.store.writer import MAX_BATCH
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.conftest import WAIT, Store
from tests.unit.runtime.store.samples import event


class States:
    """The writer's states in order, and a way to wait for one."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def __call__(self, state: str, reason: str) -> None:
        with self._changed:
            self.seen.append((state, reason))
            self._changed.notify_all()

    def wait_for(self, state: str, saying: str = "") -> str:
        """Wait for a state with this in its reason; returns the whole of it."""

        def found() -> list[str]:
            return [reason for s, reason in self.seen if s == state and saying in reason]

        with self._changed:
            assert self._changed.wait_for(found, WAIT), self.seen
            return found()[0]


@pytest.fixture
def states() -> States:
    return States()


@pytest.fixture
def paused(database, states):
    """A store whose disk is full."""
    with contextlib.closing(Store(database, on_state=states)) as store:
        failpoints.activate("store.commit_io=enospc")
        yield store.start()


# ---------------------------------------------------------------------- batches


def test_what_waits_is_committed_in_one_batch_and_answered_once(database):
    batches: list[list[object]] = []
    with contextlib.closing(
        Store(database, on_batch=lambda batch: batches.append([r.tag for r in batch]))
    ) as store:
        for number in range(MAX_BATCH + 10):
            store.writer.post((operations.AppendEvents((event(number),)),), number)
        store.start().write(operations.PutMeta("a", "b"))
        assert batches == [list(range(MAX_BATCH)), list(range(MAX_BATCH, MAX_BATCH + 10))]
        assert store.read(queries.bounds, "s1") == (0, MAX_BATCH + 9)


def test_a_request_that_fails_takes_nothing_of_its_batch_with_it(database):
    outcomes: dict[object, object] = {}

    def on_batch(batch):
        outcomes.update({r.tag: r.error or r.result for r in batch})

    with contextlib.closing(Store(database, on_batch=on_batch)) as store:
        store.writer.post((operations.AppendEvents((event(0),)),), "good")
        store.writer.post(
            (operations.PutMeta("a", "b"), operations.AppendEvents((event(7),))), "gap"
        )
        store.writer.post(
            (operations.AppendEvents((event(1),)), operations.PutMeta("c", "d")), "also good"
        )
        store.writer.post((operations.PutMeta("e", object()),), "broken")  # type: ignore[arg-type]
        store.start().write()
        assert outcomes["good"][0][0].index == 0
        assert outcomes["also good"][0][0].seq > outcomes["good"][0][0].seq
        assert isinstance(outcomes["gap"], Conflict)
        assert isinstance(outcomes["broken"], Exception)
        assert store.read(queries.meta, "a") is None
        assert store.read(queries.meta, "c") == "d"


def test_a_transaction_of_nothing_is_answered_with_nothing(store):
    assert store.write() == ()


def test_a_reader_sees_all_of_a_transaction_or_nothing(store):
    """While a thread writes pairs, no read ever finds half of one."""
    stop = threading.Event()
    faults: list[object] = []

    def look(connection):
        return [
            connection.execute("SELECT max(idx) FROM events WHERE session_id = ?", (s,)).fetchone()
            for s in ("s1", "s2")
        ]

    def read():
        while not stop.is_set():
            one, two = store.read(look)
            if one != two:
                faults.append((one, two))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(200):
            store.write(
                operations.AppendEvents((event(number),)),
                operations.AppendEvents((event(number, "s2"),)),
            )
    finally:
        stop.set()
        for reader in readers:
            reader.join(WAIT)
    assert faults == []


def test_what_was_committed_before_a_read_began_is_in_it(store):
    for number in range(100):
        store.write(operations.AppendEvents((event(number),)))
        assert store.read(queries.bounds, "s1") == (0, number)


def test_a_reader_cannot_write(tmp_path):
    with contextlib.closing(Store(Database(tmp_path / "store.db")).start()) as store:
        store.write(operations.PutMeta("a", "b"))
        with pytest.raises(StorageUnavailable, match="readonly"):
            store.read(lambda connection: connection.execute("DELETE FROM meta"))
        assert store.read(queries.meta, "a") == "b"


# ---------------------------------------------------------------------- faults


def test_nothing_is_answered_while_the_disk_is_full_and_all_of_it_afterwards(paused, states):
    futures = [paused.writer.submit((operations.AppendEvents((event(n),)),)) for n in range(3)]
    assert "No space left" in states.wait_for("paused")
    assert (paused.writer.state, paused.writer.reason) != ("running", "")
    assert paused.read(queries.bounds, "s1") == (0, -1)
    assert not any(future.done() for future in futures)
    failpoints.activate("")
    indexes = [future.result(WAIT)[0][0].index for future in futures]
    assert indexes == [0, 1, 2]
    states.wait_for("running")
    assert paused.writer.reason == ""


def test_a_write_that_waits_too_long_for_the_disk_is_refused_and_not_stored(database, states):
    with contextlib.closing(Store(database, on_state=states, hold_seconds=0.05)) as store:
        failpoints.activate("store.commit_io=enospc")
        store.start()
        with pytest.raises(StorageUnavailable, match="No space left"):
            store.write(operations.PutMeta("a", "refused"))
        failpoints.activate("")
        states.wait_for("running")  # by itself, with nothing to write
        assert store.read(queries.meta, "a") is None
        store.write(operations.PutMeta("a", "taken"))
        assert store.read(queries.meta, "a") == "taken"


def test_only_those_whose_time_is_up_are_refused(database, states):
    refused = Future()
    with contextlib.closing(
        Store(database, on_state=states, hold_seconds=0.2, on_batch=refused.set_result)
    ) as store:
        failpoints.activate("store.commit_io=enospc")
        store.writer.post((operations.PutMeta("a", "early"),), "early")
        store.writer._hold_seconds = 60.0
        late = store.start().writer.submit((operations.PutMeta("b", "late"),))
        (early,) = refused.result(WAIT)
        assert isinstance(early.error, StorageUnavailable)
        assert not late.done()
        failpoints.activate("")
        assert late.result(WAIT) == (None,)
        assert store.read(queries.meta, "a") is None


def test_more_than_one_batch_can_wait_for_the_disk(paused, states):
    paused.writer.submit(())
    states.wait_for("paused")
    futures = [
        paused.writer.submit((operations.AppendEvents((event(n),)),))
        for n in range(MAX_BATCH * 2 + 5)
    ]
    failpoints.activate("")
    assert [f.result(WAIT)[0][0].index for f in futures] == list(range(MAX_BATCH * 2 + 5))


def test_a_fault_of_ours_ends_the_writer_and_every_request_is_answered(database, states):
    failpoints.activate("store.before_commit=raise")
    with contextlib.closing(Store(database, on_state=states)) as store:
        futures = [store.writer.submit((operations.PutMeta("a", "b"),)) for _ in range(3)]
        store.start()
        for future in futures:
            with pytest.raises(Unavailable):
                future.result(WAIT)
        assert "failpoint" in states.wait_for("closed")
        with pytest.raises(FailpointError):
            store.writer.closed.result(WAIT)
        with pytest.raises(Unavailable):
            store.writer.submit(())
        assert store.read(queries.meta, "a") is None


def test_faults_of_the_storage_are_told_from_those_of_a_request():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE one (a PRIMARY KEY, b NOT NULL)")

    def fault(sql: str, *values: object) -> str | None:
        with pytest.raises(Exception) as caught:
            connection.execute(sql, values)
        return storage_fault(caught.value)

    assert fault("INSERT INTO one VALUES (1, NULL)") is None
    assert fault("SELECT * FROM two") is None
    assert fault("SELECT ?", object()) is None
    assert fault("SELECT ?, ?", 1) is None
    connection.execute("PRAGMA max_page_count = 4")
    assert fault("INSERT INTO one VALUES (1, zeroblob(1000000))") == "database or disk is full"
    assert storage_fault(OSError(28, "No space left on device")) == "No space left on device"
    assert storage_fault(ValueError("x")) is None
    connection.close()


def test_another_process_lock_is_waited_for_like_a_full_disk(tmp_path, states, monkeypatch):
    monkeypatch.setattr("oubliette.runtime.store.database._BUSY_SECONDS", 0.01)
    database = Database(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    with contextlib.closing(Store(database, on_state=states)) as store:
        other.execute("BEGIN IMMEDIATE")
        future = store.start().writer.submit((operations.PutMeta("a", "b"),))
        assert "locked" in states.wait_for("paused")
        other.execute("ROLLBACK")
        assert future.result(WAIT) == (None,)
    other.close()


# ---------------------------------------------------------------------- the end


def test_closing_commits_what_was_handed_in_and_takes_nothing_more(tmp_path):
    database = Database(tmp_path / "store.db")
    store = Store(database)
    futures = [store.writer.submit((operations.AppendEvents((event(n),)),)) for n in range(600)]
    store.writer.start()
    store.writer.close().result(WAIT)
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(Unavailable):
        store.writer.post((), None)
    assert store.writer.close().done()
    assert store.writer.state == "closed"
    assert store.read(queries.bounds, "s1") == (0, 599)
    store.close()


def test_closing_while_the_disk_is_full_refuses_what_waits_at_once(paused, states):
    future = paused.writer.submit((operations.PutMeta("a", "b"),))
    states.wait_for("paused")
    paused.writer.close().result(WAIT)
    with pytest.raises(StorageUnavailable):
        future.result(0)


def test_a_writer_that_never_started_can_be_closed():
    writer = Writer(Database(MEMORY))
    assert writer.close().done()


def test_a_request_that_was_cancelled_while_it_waited_harms_nobody(database):
    with contextlib.closing(Store(database)) as store:
        gone: Future = store.writer.submit((operations.PutMeta("a", "b"),))
        gone.cancel()
        other = store.writer.submit((operations.PutMeta("c", "d"),))
        store.start()
        assert other.result(WAIT) == (None,)


def test_a_closed_reader_says_so(store):
    store.reader.close()
    with pytest.raises(Unavailable):
        store.read(queries.last_seq)


# ---------------------------------------------------------------------- space


def test_a_purge_gives_space_back_to_the_disk(tmp_path):
    path = tmp_path / "store.db"
    with contextlib.closing(Store(Database(path)).start()) as store:
        data = {"text": "x" * 10_000}
        store.write(operations.PutSession(samples.session(status="failed")))
        store.write(operations.AppendEvents(tuple(event(n, data=data) for n in range(2000))))
    full = path.stat().st_size
    with contextlib.closing(Store(Database(path)).start()) as store:
        store.write(operations.PurgeSession("s1"))
    with contextlib.closing(Store(Database(path)).start()) as store:
        # Ends by itself: each step is one before the writer looks for the next request.
        store.write(operations.PurgeSession("s1"))
        store.writer.close().result(WAIT)
    assert full > 20_000_000
    assert path.stat().st_size < full


def test_the_write_ahead_log_stays_small_although_commits_never_checkpoint(tmp_path):
    path = tmp_path / "store.db"
    with contextlib.closing(Store(Database(path)).start()) as store:
        for number in range(400):
            batch = tuple(event(number * 20 + n, data={"t": "x" * 200}) for n in range(20))
            store.write(operations.AppendEvents(batch))
        size = (tmp_path / "store.db-wal").stat().st_size
    assert size < 16 * 1024 * 1024
