"""Invariant I4: after kill -9 at any moment every acknowledged write is there, and nothing by half."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3

import pytest

from oubliette.runtime.store import operations, queries
from tests.unit.runtime.store.conftest import Store
from tests.unit.runtime.store.processes import WritingProcess
from tests.unit.runtime.store.samples import opened


def check(path, acknowledged) -> None:
    with contextlib.closing(Store(opened(path)).start()) as store:
        found = set()
        transactions = int(store.read(queries.meta, "transactions") or 0)
        for session in ("s0", "s1", "s2", "s3"):
            log = store.read(queries.log, session, -1, 10**9, 10**9)
            assert [event.index for event in log.events] == list(range(len(log.events)))
            assert len(log.events) % 2 == 0  # two events a transaction
            found |= {(session, event.index, event.seq) for event in log.events}
        assert acknowledged <= found
        assert len(found) == 2 * transactions
        store.write(operations.BumpMeta("checks"))  # and it goes on
    if isinstance(path, str):
        return
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.requires("postgres"))])
def path(request, tmp_path):
    """Where the database is: a file, or a URL."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return tmp_path / "store.db"


@pytest.mark.parametrize("failpoint", ["store.before_commit", "store.after_commit"])
@pytest.mark.parametrize("at", [1, 20])
def test_a_kill_at_a_failpoint_loses_no_acknowledged_write(path, failpoint, at):
    process = WritingProcess(path, failpoint=f"{failpoint}=kill@{at}")
    process.wait_for("ready")
    process.process.wait(20)
    assert process.finish() == -signal.SIGKILL
    check(path, process.acknowledged)


def test_kills_at_random_moments_lose_no_acknowledged_write(path):
    """One database, killed again and again; every life goes on from what the last one left."""
    acknowledged: set[tuple[str, int, int]] = set()
    for _ in range(100 if os.environ.get("OUBLIETTE_SOAK") else 4):
        process = WritingProcess(path, "--bytes", str(random.choice([10, 5000])))
        process.wait_for("ready")
        process.wait_for("ack", count=random.randrange(1, 400))
        assert process.finish(kill=True) == -signal.SIGKILL
        assert not process.acknowledged & acknowledged
        acknowledged |= process.acknowledged
        check(path, acknowledged)
    assert len(acknowledged) > 4


def test_an_orderly_end_leaves_everything_and_says_so(path):
    process = WritingProcess(path)
    process.wait_for("ack", count=20)
    assert process.finish() == 0
    assert process.lines[-1] == ["ended"]
    check(path, process.acknowledged)
