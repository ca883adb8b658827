"""Events of several machines are told in one order: none is skipped, none waits for ever."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import pytest

from oubliette.runtime.store import operations, queries
from oubliette.runtime.store.log_order import EVENTS
from oubliette.runtime.store.postgres import log_tail
from oubliette.runtime.store.postgres.log_tail import LogTail
from tests.unit.runtime.store.conftest import WAIT, Store
from tests.unit.runtime.store.postgres.cutting_proxy import CuttingProxy
from tests.unit.runtime.store.samples import event, opened

pytestmark = pytest.mark.requires("postgres")

HELD_SECONDS = 1.0
PREPARED = b"_pg3_"
"""Beginning of the names by which psycopg executes statements that it has prepared."""


class HeldCommit:
    """A transaction of another machine that has stored an event and does not commit."""

    def __init__(self, database, session: str) -> None:
        self.connection = database.connect()
        self.connection.execute("BEGIN")
        (number,) = self.connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        self.seq = number * EVENTS
        self.connection.execute(
            "INSERT INTO events (seq, session_id, idx, ts, type, version, principal, caller_id,"
            " data) VALUES (?, ?, 0, 1.0, 'message', 1, 'p', 'me', ?)",
            (self.seq, session, b'{"text": "held"}'),
        )

    def commit(self) -> None:
        self.connection.execute("COMMIT")
        self.close()

    def close(self) -> None:
        self.connection.close()


class Heard:
    """What a tail has told."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.failures: list[str] = []
        self._more = threading.Condition()

    def __call__(self, events) -> None:
        with self._more:
            self.seqs += [each.seq for each in events]
            self._more.notify_all()

    def wait_for(self, count: int) -> list[int]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.seqs) >= count, WAIT), len(self.seqs)
            return self.seqs


@pytest.fixture
def store(postgres_url):
    with contextlib.closing(Store(opened(postgres_url)).start()) as store:
        yield store


def mine(index: int, session: str = "s1"):
    return event(index, session, principal="p", caller_id="me")


def follow(store: Store, cursor: int) -> tuple[list[int], int]:
    """What a reader of all and a reader of the caller's are told after the cursor, to the end."""
    seqs: list[int] = []
    while True:
        found = store.read(queries.committed_events, cursor)
        caller = store.read(queries.caller_events, "p", "me", cursor)
        told = [each.seq for each in found.events]
        assert [each.seq for each in caller] == told
        seqs += told
        cursor = found.next_seq
        if not told:
            return seqs, cursor


def test_no_cursor_passes_a_commit_that_is_held_back(store):
    store.write(operations.AppendEvents((mine(0),)))
    seen, cursor = follow(store, 0)
    assert len(seen) == 1
    held = HeldCommit(store.database, "held")
    number, until = 1, time.monotonic() + HELD_SECONDS
    while time.monotonic() < until:
        store.write(operations.AppendEvents((mine(number),)))
        number += 1
        told, cursor = follow(store, cursor)
        assert told == []  # all of them are above the one that is held back
        assert cursor < held.seq
    assert store.read(queries.last_index, "s1") == number - 1  # a log by itself does not wait
    held.commit()
    told, cursor = follow(store, cursor)
    assert told[0] == held.seq
    assert told == sorted(told)
    assert len(told) == number  # all that came after the first, and the one that was held back


def test_a_transaction_whose_machine_hangs_is_ended_by_the_server(store):
    held = HeldCommit(store.database, "held")
    with contextlib.closing(held):
        (limit,) = held.connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert limit == "10s"  # what each writer sets; here shorter
        held.connection.execute("SET LOCAL idle_in_transaction_session_timeout = 300")
        store.write(operations.AppendEvents((mine(0),)))
        heard = Heard()
        tail = LogTail(store.database, on_events=heard, on_failed=heard.failures.append)
        tail.cursor = 0
        tail.start()
        try:
            assert len(heard.wait_for(1)) == 1
        finally:
            tail.close()
    assert len(follow(store, 0)[0]) == 1


def test_what_is_committed_while_a_tail_reads_is_told_at_once(store, monkeypatch):
    """Its notification comes with the answers of the read, and not on its own."""
    monkeypatch.setattr(log_tail, "MISSED_SECONDS", 10 * WAIT)
    heard = Heard()
    commits = iter(["during the read"])

    def commit_once() -> bool:
        if tail.ready.is_set() and next(commits, None):
            store.write(operations.AppendEvents((mine(1),)))
        return True

    tail = LogTail(
        store.database, on_events=heard, on_failed=heard.failures.append, wanted=commit_once
    )
    tail.start()
    try:
        assert tail.ready.wait(WAIT)
        store.write(operations.AppendEvents((mine(0),)))
        assert len(heard.wait_for(2)) == 2
    finally:
        tail.close()


def test_a_tail_is_woken_by_the_writer_of_its_process_and_notified_by_others(
    postgres_url, monkeypatch
):
    monkeypatch.setattr(log_tail, "MISSED_SECONDS", 10 * WAIT)
    here, elsewhere = (Store(opened(postgres_url)).start() for _ in range(2))
    heard = Heard()
    tail = LogTail(here.database, on_events=heard, on_failed=heard.failures.append)
    tail.start()
    try:
        assert tail.ready.wait(WAIT)
        for index in range(20):
            here.write(operations.AppendEvents((mine(index, "here"),)))
            heard.wait_for(2 * index + 1)
            elsewhere.write(operations.AppendEvents((mine(index, "elsewhere"),)))
            heard.wait_for(2 * index + 2)
        assert heard.failures == []
    finally:
        tail.close()
        here.close()
        elsewhere.close()


def test_a_read_of_the_tail_is_limited_and_ends_at_the_horizon(store):
    store.write(operations.AppendEvents(tuple(mine(index) for index in range(2000))))
    with contextlib.closing(store.database.connect_read_only()) as connection:
        head = log_tail.head_of_log(connection).cursor
        found = log_tail.read_on(connection, 0)
        assert (len(found.events), found.more, found.held) == (queries.MAX_EVENTS, True, False)
        rest = log_tail.read_on(connection, head)
        assert (rest.events, rest.cursor >= head, rest.more, rest.held) == ([], True, False, False)


def test_a_tail_tells_each_event_of_all_machines_once_and_in_order(postgres_url):
    machines = [Store(opened(postgres_url)).start() for _ in range(3)]
    heard = Heard()
    tail = LogTail(machines[0].database, on_events=heard, on_failed=heard.failures.append)
    tail.start()
    try:
        assert tail.ready.wait(WAIT)
        count = 60

        def write(number: int) -> None:
            for index in range(count):
                machines[number].write(operations.AppendEvents((mine(index, f"m{number}"),)))
                if index % 10 == 3:
                    held = HeldCommit(machines[number].database, f"h{number}-{index}")
                    time.sleep(random.uniform(0, 0.02))
                    held.commit()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        seqs = heard.wait_for(3 * (count + 6))
        assert seqs == sorted(set(seqs))
        assert len(seqs) == 3 * (count + 6)
    finally:
        tail.close()
        for machine in machines:
            machine.close()


def test_a_tail_ends_at_once_and_leaves_no_thread(store):
    failures: list[str] = []
    tail = LogTail(store.database, on_events=lambda _: None, on_failed=failures.append)
    tail.start()
    assert tail.ready.wait(WAIT)
    began = time.monotonic()
    tail.close()
    assert time.monotonic() - began < 2
    assert failures == []


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_tail_whose_connection_is_lost_in_a_read_tells_these_events_later(
    store, postgres_url, postgres_server, tmp_path, cut
):
    proxy = CuttingProxy(tmp_path, postgres_server.folder, cut, at=PREPARED)
    try:
        folders = str(postgres_server.folder), str(tmp_path)
        database = opened(postgres_url.replace(*folders))
        heard = Heard()
        tail = LogTail(database, on_events=heard, on_failed=heard.failures.append)
        tail.start()
        try:
            assert tail.ready.wait(WAIT)
            proxy.armed = True
            for index in range(3):
                store.write(operations.AppendEvents((mine(index),)))
            told = heard.wait_for(3)
        finally:
            tail.close()
    finally:
        proxy.close()
    assert proxy.cuts == 1
    assert told == follow(store, 0)[0]
    assert heard.failures == []


def test_a_tail_that_cannot_read_the_log_any_more_reports_it(store):
    heard = Heard()
    reported = threading.Event()
    tail = LogTail(
        store.database,
        on_events=heard,
        on_failed=lambda why: (heard.failures.append(why), reported.set()),
    )
    tail.start()
    assert tail.ready.wait(WAIT)
    with contextlib.closing(store.database.connect()) as other:
        other.execute("ALTER TABLE log_order RENAME TO elsewhere")
        other.execute("NOTIFY oubliette_log")
    assert reported.wait(WAIT)
    assert "log_order" in heard.failures[0]
    tail.close()
