"""The threads that read: as many as are needed, every read answered once, none left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from oubliette.errors import Unavailable
from oubliette.kit.fair_loop import working_for
from oubliette.runtime.store import Database
from oubliette.runtime.store.reader_threads import ReaderThreads

pytestmark = pytest.mark.anyio


def names() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("oubliette-reader")]


async def test_reads_one_after_the_other_need_one_thread():
    threads = ReaderThreads(4)
    before = len(names())
    idents = {await threads.run(threading.get_ident) for _ in range(20)}
    assert len(names()) - before == len(idents) == 1
    threads.close()
    assert len(names()) == before


async def test_a_read_that_takes_long_holds_up_no_other():
    threads, go = ReaderThreads(2), threading.Event()
    slow = threads.run(lambda: go.wait(10))
    async with asyncio.timeout(5):
        assert [await threads.run(lambda n=n: n) for n in range(5)] == list(range(5))
    assert not slow.done()
    go.set()
    assert await slow
    threads.close()


async def test_more_reads_than_threads_are_all_answered():
    threads = ReaderThreads(3)
    before = len(names())
    async with asyncio.timeout(10):
        found = await asyncio.gather(*(threads.run(lambda n=n: n * n) for n in range(500)))
    assert found == [n * n for n in range(500)]
    assert len(names()) - before <= 3
    threads.close()


async def test_many_reads_of_one_principal_hold_up_none_of_another():
    threads, go = ReaderThreads(1), threading.Event()
    order: list[str] = []

    def read(whose: str) -> asyncio.Future[None]:
        working_for.set(whose)
        return threads.run(lambda: order.append(whose))

    working_for.set("many")
    first = threads.run(lambda: go.wait(10))
    reads = [read("many") for _ in range(50)] + [read("few") for _ in range(2)]
    go.set()
    async with asyncio.timeout(10):
        await asyncio.gather(first, *reads)
    threads.close()
    assert order[:5].count("few") == 2


async def test_what_fails_fails_for_who_asked_and_the_thread_goes_on():
    threads = ReaderThreads(1)

    def fails() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await threads.run(fails)
    assert await threads.run(lambda: 1) == 1
    threads.close()


async def test_who_has_stopped_waiting_is_not_told():
    threads, go = ReaderThreads(1), threading.Event()
    given_up = threads.run(lambda: go.wait(10))
    given_up.cancel()
    go.set()
    assert await threads.run(lambda: 2) == 2
    threads.close()


async def test_closing_lets_what_runs_end_and_refuses_the_rest():
    threads, began, go = ReaderThreads(1), threading.Event(), threading.Event()
    running = threads.run(lambda: began.set() or go.wait(10))
    assert await asyncio.to_thread(began.wait, 10)
    waiting = threads.run(lambda: 1)
    closing = asyncio.ensure_future(asyncio.to_thread(threads.close))
    with pytest.raises(Unavailable, match="closed"):
        await waiting
    go.set()
    assert await running
    await closing
    with pytest.raises(Unavailable, match="closed"):
        threads.run(lambda: 1)


def test_a_connection_that_only_reads_keeps_little_of_the_database_in_memory(tmp_path):
    """There are four of them; SQLite's own default is 2 MB for each."""
    database = Database(tmp_path / "store.db")
    with contextlib.closing(database.connect_read_only()) as connection:
        assert connection.execute("PRAGMA cache_size").fetchone() == (-256,)  # KB
