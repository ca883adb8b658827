"""A duty is one candidate's at a time, and the next one has it within five seconds."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.store.postgres.cluster import nodes
from oubliette.runtime.store.postgres.cluster.duty import Duty
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, state_of, take
from tests.unit.runtime.store.postgres.conftest import WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.requires("postgres")
ROOT = Path(__file__).resolve().parents[5]
TAKEN_OVER = 5.0
"""Seconds that the page promises; the tests allow the machine one more."""
PROGRAM = """
import sys
from oubliette.runtime.store.postgres.cluster.duty import Duty
duty = Duty(sys.argv[1], "reap", on_begin=lambda: print("begin", flush=True), on_end=print)
duty.start()
sys.stdin.read()
"""


class Candidate:
    def __init__(self, url: str, name: str = "reap", work=None) -> None:
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.duty = Duty(url, name, on_begin=self.begun.set, on_end=self.ended.set, work=work)
        self.duty.start()


@pytest.fixture
def candidate(url: str) -> Iterator[Callable[..., Candidate]]:
    made: list[Candidate] = []

    def make(name: str = "reap", work=None) -> Candidate:
        made.append(Candidate(url, name, work))
        return made[-1]

    yield make
    for each in reversed(made):
        each.duty.close()


def test_one_candidate_has_a_duty_and_another_has_it_when_that_one_is_closed(candidate):
    first = candidate()
    assert first.begun.wait(WAIT)
    assert first.duty.held
    second = candidate()
    other = candidate("schedules")
    assert other.begun.wait(WAIT)
    assert not second.begun.is_set()
    assert not second.duty.held
    first.duty.close()
    assert first.ended.is_set()
    assert not first.duty.held
    assert second.begun.wait(TAKEN_OVER)
    first.duty.close()


def test_a_candidate_that_waits_can_be_closed_and_does_not_get_the_duty_then(candidate, connection):
    first = candidate()
    assert first.begun.wait(WAIT)
    second = candidate()
    blocked = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    until = time.monotonic() + WAIT
    while connection.execute(blocked).fetchone() == (0,):
        assert time.monotonic() < until
    second.duty.close()
    third = candidate()
    first.duty.close()
    assert third.begun.wait(TAKEN_OVER + 1)
    assert not second.begun.is_set()


def test_a_candidate_whose_session_was_ended_has_the_duty_no_more_and_asks_for_it_again(
    candidate, connection
):
    first = candidate()
    assert first.begun.wait(WAIT)
    first.begun.clear()
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'oubliette duty reap' AND datname = current_database()"
    )
    assert first.ended.wait(WAIT)
    assert first.begun.wait(WAIT)


@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_the_duty_of_a_process_that_is_stopped_or_killed_is_taken_over_in_five_seconds(
    url: str, candidate, end
):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "begin\n"
        second = candidate()
        process.send_signal(end)
        began = time.monotonic()
        assert second.begun.wait(TAKEN_OVER + 1), time.monotonic() - began
        process.send_signal(signal.SIGCONT)
        if end == signal.SIGSTOP:
            assert process.stdout.readline() == "\n", "it ends its duty when it wakes"
        assert second.duty.held
    finally:
        process.stdin.close()
        process.kill()
        process.wait(WAIT)
        process.stdout.close()


def test_the_work_of_a_duty_is_done_again_after_an_error_of_it(candidate):
    done = threading.Semaphore(0)

    def work(connection) -> None:
        done.release()
        connection.execute("SELECT 1 / 0")

    candidate(work=work)
    for _ in range(2):
        assert done.acquire(timeout=WAIT)


def test_a_node_whose_lease_has_ended_is_declared_gone_by_the_one_that_has_the_duty(
    candidate, connection
):
    take(connection, "a")
    by = take(connection, "b")
    gone: queue.SimpleQueue[str] = queue.SimpleQueue()

    def work(session) -> None:
        for name in nodes.declare_ended(session, by):
            gone.put(name)

    candidate(work=work)
    let_lease_end(connection, "a")
    assert gone.get(timeout=WAIT) == "a"
    assert state_of(connection, "a").state == "gone"
    assert state_of(connection, "b").state == "running"
