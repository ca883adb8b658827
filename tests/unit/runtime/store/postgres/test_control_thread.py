"""Questions to the cluster's tables from an event loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from oubliette.errors import StorageUnavailable, Unavailable
from oubliette.runtime.store.postgres.cluster import placements
from oubliette.runtime.store.postgres.control_thread import ControlThread
from oubliette.runtime.store.postgres.database import PostgresDatabase
from tests.unit.runtime.store.postgres.cluster_rows import take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def sleep(connection, seconds: float) -> str:
    connection.execute("SELECT pg_sleep(%s)", (seconds,))
    return "slept"


def pid(connection) -> int:
    return connection.info.backend_pid


def in_loop(url: str, scenario) -> None:
    async def run() -> None:
        thread = ControlThread(url, "test")
        thread.start()
        try:
            async with asyncio.timeout(WAIT):
                await scenario(thread)
        finally:
            await asyncio.to_thread(thread.close)

    asyncio.run(run())


def test_questions_are_answered_in_order_and_errors_are_theirs(url, connection):
    take(connection, "a")

    async def scenario(thread: ControlThread) -> None:
        placed = [thread.run(placements.place, f"p{n}", "a") for n in range(5)]
        assert await asyncio.gather(*placed) == ["a"] * 5
        with pytest.raises(Unavailable, match="node b takes no projects"):
            await thread.run(placements.place, "p9", "b")
        assert len(await thread.run(placements.homes_on, "a")) == 5

    in_loop(url, scenario)


def test_a_lost_connection_is_made_again_without_the_askers_notice(url, connection):
    async def scenario(thread: ControlThread) -> None:
        first = await thread.run(pid)
        connection.execute("SELECT pg_terminate_backend(%s)", (first,))
        assert await thread.run(sleep, 0) == "slept"
        assert await thread.run(pid) != first

    in_loop(url, scenario)


def test_a_database_that_is_away_is_told_and_used_again_when_it_is_back(own_postgres):
    url = own_postgres.new_database()
    PostgresDatabase(url).close()

    async def scenario(thread: ControlThread) -> None:
        assert await thread.run(placements.home_of, "p") is None
        await asyncio.to_thread(own_postgres.stop)
        with pytest.raises(StorageUnavailable):
            await thread.run(placements.home_of, "p")
        await asyncio.to_thread(own_postgres.start)
        assert await thread.run(placements.home_of, "p") is None

    in_loop(url, scenario)


def test_closing_ends_what_waits_and_refuses_what_comes(url):
    async def scenario(thread: ControlThread) -> None:
        await thread.run(pid)
        long = asyncio.ensure_future(thread.run(sleep, 4))
        waiting = asyncio.ensure_future(thread.run(pid))
        assert not (await asyncio.wait([long], timeout=0.2))[0]
        await asyncio.to_thread(thread.close)
        with pytest.raises(StorageUnavailable):
            await long
        with pytest.raises(StorageUnavailable):
            await waiting
        with pytest.raises(StorageUnavailable):
            await thread.run(pid)

    in_loop(url, scenario)
