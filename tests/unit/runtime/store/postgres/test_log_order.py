"""Events of several machines are told in one order: none is skipped, none waits for ever."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import pytest

from oubliette.runtime.store import operations, queries
from oubliette.runtime.store.log_order import EVENTS
from oubliette.runtime.store.postgres.log_tail import LogTail
from tests.unit.runtime.store.conftest import WAIT, Store
from tests.unit.runtime.store.samples import event, opened

pytestmark = pytest.mark.requires("postgres")

HELD_SECONDS = 1.0


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
    """What a reader of all and a reader of the caller's are told after the cursor."""
    found = store.read(queries.committed_events, cursor)
    caller = store.read(queries.caller_events, "p", "me", cursor)
    seqs = [each.seq for each in found.events]
    assert [each.seq for each in caller] == seqs
    return seqs, found.next_seq


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
