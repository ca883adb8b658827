"""Limits that each call counts hold over all nodes, which do not ask for each of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oubliette.actors.shares import ShareLimit
from oubliette.node import cluster_shares
from oubliette.node.cluster_shares import ClusterShares
from oubliette.runtime.store.postgres.cluster import limit_shares, nodes
from oubliette.runtime.store.postgres.control_thread import ControlThread
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.postgres.notices import Notices
from tests import selection
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.runtime.store.postgres.fence import NodeFence
    from tests.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres")]

SCOPE = "in_flight:p"
WAIT = 30.0
SLOTS = ShareLimit(20)


class Node:
    """What a node has of limits."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.control = ControlThread(url, name)
        self.notices = Notices(url, name)
        self.fence: NodeFence
        self.shares: ClusterShares

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        self.control.start()
        self.notices.start()
        try:
            self.fence = await self.control.run(take, self.name)
            self.shares = ClusterShares(self.control, self.notices, self.fence)
            await self.shares.start()
            connected = asyncio.Event()
            loop = asyncio.get_running_loop()
            self.notices.follow(
                "test", lambda _: None, lambda: loop.call_soon_threadsafe(connected.set)
            )
            await connected.wait()
            yield self
            await self.shares.aclose()
        finally:
            await asyncio.to_thread(self.notices.close)
            await asyncio.to_thread(self.control.close)

    async def call(self, limit: ShareLimit = SLOTS) -> bool:
        return await self.shares.take(SCOPE, limit) is None

    async def calls(self, number: int, limit: ShareLimit = SLOTS) -> int:
        """How many of so many calls at once get a unit."""
        return sum(await asyncio.gather(*(self.call(limit) for _ in range(number))))

    def end(self, calls: int = 1) -> None:
        for _ in range(calls):
            self.shares.give_back(SCOPE)

    async def held(self) -> dict[str, int]:
        return await self.control.run(limit_shares.held, SCOPE)


@contextlib.asynccontextmanager
async def cluster(url: str, names: str = "abc") -> AsyncIterator[list[Node]]:
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(WAIT):
        yield [await stack.enter_async_context(Node(url, name).running()) for name in names]


@pytest.fixture
def url(postgres_url: str) -> str:
    PostgresDatabase(postgres_url).close()
    return postgres_url


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """On a busy machine the other nodes may answer late."""
    monkeypatch.setattr(cluster_shares, "HOLD_SECONDS", 20.0)


async def until(condition) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


# ------------------------------------------------------------------ units that are given back


async def test_calls_at_once_on_three_nodes_get_exactly_the_limit(url: str) -> None:
    async with cluster(url) as found:
        numbers = itertools.cycle(found)
        taken = await asyncio.gather(*(next(numbers).call() for _ in range(60)))
        assert sum(taken) == 20


async def test_one_node_gets_the_whole_limit_while_the_others_use_nothing(url: str) -> None:
    async with cluster(url) as (a, b, c):
        for each in (b, c):
            assert await each.calls(5) == 5
            each.end(5)
        assert sum((await a.held()).values()) >= 10
        assert await a.calls(25) == 20
        assert not await b.call()
        a.end()
        assert await c.call()
        assert not await b.call()


async def test_calls_one_after_the_other_ask_for_one_share(url: str, monkeypatch) -> None:
    asked = []
    settle = limit_shares.settle

    def counted(*args):
        asked.append(args)
        return settle(*args)

    monkeypatch.setattr(limit_shares, "settle", counted)
    async with cluster(url, "a") as (a,):
        for _ in range(500):
            assert await a.call()
            a.end()
        assert len(asked) == 1


async def test_units_that_are_not_used_are_given_back_and_forgotten(url: str, monkeypatch) -> None:
    monkeypatch.setattr(cluster_shares, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(cluster_shares, "FORGET_SECONDS", 0.05)
    async with cluster(url, "a") as (a,):
        assert await a.calls(3) == 3

        async def used() -> bool:
            return await a.held() == {"a": 3}

        await until(used)
        a.end(3)

        async def forgotten() -> bool:
            def pools(connection) -> int:
                return connection.execute("SELECT count(*) FROM limit_pools").fetchone()[0]

            return not await a.held() and not await a.control.run(pools)

        await until(forgotten)
        assert not a.shares._scopes


async def test_a_call_that_is_cancelled_while_it_waits_leaves_nothing(
    url: str, postgres_server: PostgresServer
) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await b.call()
        with psycopg.connect(url) as connection, connection.transaction():
            connection.execute("SELECT FROM limit_pools FOR UPDATE")
            waiting = [asyncio.create_task(a.call()) for _ in range(6)]
            sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

            async def blocked() -> bool:
                return bool((await asyncio.to_thread(postgres_server.execute, sql))[0][0])

            await until(blocked)
            for each in waiting[:3]:
                each.cancel()
        assert await asyncio.gather(*waiting[3:]) == [True] * 3
        a.end(3)
        assert await b.calls(30) == 19


async def test_a_unit_that_is_taken_anyway_makes_no_room_elsewhere(url: str) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await a.calls(20) == 20
        a.shares.take_anyway(SCOPE, SLOTS)

        async def counted() -> bool:
            return await a.held() == {"a": 21}

        await until(counted)
        a.end()
        assert not await b.call()
        a.end()
        assert await b.call()


# ------------------------------------------------------------------ units that refill


async def test_a_burst_over_three_nodes_is_that_of_one(url: str) -> None:
    limit = ShareLimit(40, rate=0.001)
    async with cluster(url) as found:
        answers = await asyncio.gather(*(node.calls(30, limit) for node in found))
        assert sum(answers) == 40


async def test_one_node_gets_the_burst_of_which_others_have_used_little(url: str) -> None:
    limit = ShareLimit(40, rate=0.001)
    async with cluster(url) as (a, b, c):
        for each in (b, c):
            assert await each.call(limit)
        assert await a.calls(60, limit) == 38
        seconds = await a.shares.take(SCOPE, limit)
        assert seconds is not None
        assert 0 < seconds <= 1000


async def test_a_rate_goes_on_over_all_nodes(url: str) -> None:
    limit = ShareLimit(10, rate=50.0)
    async with cluster(url, "ab") as found:
        loop = asyncio.get_running_loop()
        began, taken = loop.time(), 0
        while taken < 40:
            taken += sum([await node.call(limit) for node in found])
            assert taken <= 10 + 50 * (loop.time() - began)
            await asyncio.sleep(0.002)


# ------------------------------------------------------------------ nodes and the database


async def test_a_node_that_is_declared_gone_gives_back_its_slots_and_counts_alone(url: str) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await a.calls(15) == 15
        assert await b.calls(9) == 5
        await b.control.run(let_lease_end, "a")
        await b.control.run(nodes.declare_gone, "a", b.fence)
        assert await b.held() == {"b": 5}
        assert await b.calls(30) == 15
        a.end(15)
        assert await a.calls(30) == 15  # those it had; its server is about to end
        assert await b.held() == {"b": 20}


async def test_a_node_that_starts_again_has_nothing_of_what_it_had(url: str) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await a.calls(20) == 20
        fence = await a.control.run(take, "a")
        await a.control.run(
            lambda connection: connection.execute(
                "SELECT release_earlier_claims(%s, %s)", fence.parameters
            )
        )
        assert await b.calls(25) == 20


async def test_a_node_that_stops_gives_all_back(url: str) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await a.calls(20) == 20
        await a.shares.aclose()
        assert await b.held() == {}
        assert await b.calls(25) == 20


async def test_without_the_database_each_node_has_its_part_and_afterwards_the_limit_holds(
    own_postgres: PostgresServer, monkeypatch
) -> None:
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    async with cluster(url, "ab") as (a, b):
        assert await a.calls(14) == 14
        await asyncio.to_thread(own_postgres.stop)
        assert await a.calls(20) <= 2  # what was left of its share
        assert await b.calls(20) == 10
        b.end(10)
        assert await b.calls(20) == 10
        await asyncio.to_thread(own_postgres.start)

        async def together() -> bool:
            return not (a.shares._away or b.shares._away)

        async def counted() -> bool:
            for each in (a, b):
                await each.call()
            return await together() and sum((await a.held()).values()) >= 24

        await until(counted)
        assert await a.calls(5) == await b.calls(5) == 0
        b.end(10)
        monkeypatch.setattr(cluster_shares, "HOLD_SECONDS", 0.5)
        await until(a.call)  # the other one is asked once notices come again


async def test_a_call_waits_for_a_database_that_hangs_for_a_moment_only(
    url: str, monkeypatch
) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await b.call()
        assert await a.call()
        a.end()
        monkeypatch.setattr(cluster_shares, "HOLD_SECONDS", 0.5)
        with psycopg.connect(url) as connection, connection.transaction():
            connection.execute("SELECT FROM limit_pools FOR UPDATE")
            assert await a.calls(30) == 10
        a.end(10)

        async def together() -> bool:
            return not a.shares._away

        await until(together)
        assert await a.calls(30) == 19


async def test_a_node_that_does_not_answer_keeps_what_it_has(url: str, monkeypatch) -> None:
    async with cluster(url, "ab") as (a, b):
        assert await b.calls(2) == 2
        b.end(2)
        kept = (await b.held())["b"]
        await asyncio.to_thread(b.notices.close)
        monkeypatch.setattr(cluster_shares, "HOLD_SECONDS", 0.5)
        assert await a.calls(30) == 20 - kept
        assert not await a.call()


# ------------------------------------------------------------------ any order

STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from(["call", "call", "end"]), st.integers(0, 1)), max_size=12),
    max_size=8,
)


@settings(
    max_examples=selection.examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(STEPS)
def test_calls_get_a_unit_exactly_as_long_as_there_is_one(
    url: str, steps: list[list[tuple[str, int]]]
) -> None:
    """Steps of one list happen at the same moment, on two nodes."""
    limit = ShareLimit(7)

    async def scenario() -> None:
        async with cluster(url, "ab") as found:
            used = [0, 0]
            for together in steps:
                calls = []
                for action, number in together:
                    if action == "call":
                        calls.append((number, found[number].call(limit)))
                    elif used[number]:
                        used[number] -= 1
                        found[number].end()
                for (number, _), taken in zip(
                    calls, await asyncio.gather(*(call for _, call in calls)), strict=True
                ):
                    used[number] += taken
                assert sum(used) <= 7
            extra = [await node.calls(7, limit) for node in found]
            assert sum(used) + sum(extra) == 7

    asyncio.run(scenario())
