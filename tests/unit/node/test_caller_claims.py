"""A principal has its callers on all nodes together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from oubliette.actors.caller import supervisor
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.messages import OpenCaller
from oubliette.actors.store.actor import StoreActor
from oubliette.config.schema import CallersConfig
from oubliette.errors import LimitExceeded, StorageUnavailable
from oubliette.kit import System
from oubliette.node.claims import ClusterClaims
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.postgres.cluster import limit_claims, nodes
from oubliette.runtime.store.postgres.control_thread import ControlThread
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.reader import Reader
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.runtime.store.postgres.fence import NodeFence

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres")]


class Node:
    """A node with the supervisor of its callers."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.control = ControlThread(url, name)
        self.fence: NodeFence
        self.claims: ClusterClaims
        self.system: System

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        self.control.start()
        try:
            self.fence = await self.control.run(take, self.name)
            self.claims = ClusterClaims(self.control, self.fence)
            await self.claims.start()
            async with System(self.name, watchdog=None) as self.system:
                database = Database(":memory:")  # of the callers' events: there are none
                reader = Reader(database)
                store = self.system.spawn(StoreActor, database, name="store")
                callers = (store, reader, CallersConfig(), None, self.claims)
                self.system.spawn(CallersActor, *callers, name="callers")
                yield self
            await reader.aclose()
            await self.claims.aclose()
        finally:
            await asyncio.to_thread(self.control.close)

    async def open(self, caller_id: str) -> str:
        message = OpenCaller(principal="p", caller_id=caller_id)
        return await self.system.ref("callers").ask(message)

    async def until_counted(self, expected: int) -> None:
        while await self.control.run(limit_claims.used, "callers:p") != expected:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def cluster(url: str) -> AsyncIterator[list[Node]]:
    PostgresDatabase(url).close()
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(30):
        yield [await stack.enter_async_context(Node(url, name).running()) for name in "ab"]


@pytest.fixture(autouse=True)
def three(monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_CALLERS", 3)


async def test_callers_are_counted_over_all_nodes_and_one_on_several_is_one(postgres_url):
    async with cluster(postgres_url) as (a, b):
        names = await asyncio.gather(a.open("one"), b.open("one"), a.open("two"), b.open("three"))
        assert len(set(names)) == 3
        assert names[0] == await a.open("one")
        await a.until_counted(3)
        for node in (a, b):
            with pytest.raises(LimitExceeded, match="p has 3 callers already"):
                await node.open("four")
        assert await a.open("three") == names[3]
        await a.system.ref(names[0]).stop()
        await b.system.ref(names[0]).stop()
        await a.until_counted(2)
        await b.open("four")


async def test_asks_at_the_same_moment_open_one_caller(postgres_url):
    async with cluster(postgres_url) as (a, _):
        assert len(set(await asyncio.gather(*(a.open("one") for _ in range(5))))) == 1
        await a.until_counted(1)


async def test_callers_of_a_node_that_is_gone_do_not_count_but_where_they_are_open_too(
    postgres_url,
):
    async with cluster(postgres_url) as (a, b):
        await asyncio.gather(a.open("one"), b.open("one"), a.open("two"))
        await b.control.run(let_lease_end, "a")
        await b.control.run(nodes.declare_gone, "a", b.fence)
        await b.until_counted(1)
        await b.open("two")
        await b.open("three")
        with pytest.raises(LimitExceeded):
            await b.open("four")


async def test_callers_end_with_their_supervisor(postgres_url):
    async with cluster(postgres_url) as (a, b):
        await asyncio.gather(a.open("one"), b.open("one"), a.open("two"))
        await a.system.ref("callers").stop()
        await b.until_counted(1)


async def test_a_caller_is_opened_while_the_database_is_away_and_counted_later(own_postgres):
    async with cluster(own_postgres.new_database()) as (a, b):
        await a.open("one")
        await asyncio.to_thread(own_postgres.stop)
        await a.open("two")
        with pytest.raises(StorageUnavailable):
            await a.claims.claim("h", "callers:p", 3)
        await asyncio.to_thread(own_postgres.start)
        await b.open("three")
        await b.until_counted(3)
        with pytest.raises(LimitExceeded):
            await b.open("four")
