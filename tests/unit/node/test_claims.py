"""Limits of a principal hold over all nodes, exactly, whatever ends or restarts meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oubliette.actors.open_calls import (
    OPEN_CALLS,
    OpenCallIds,
    OpenCallsActor,
    OpenCallTable,
    ReleaseCall,
    ReserveCall,
)
from oubliette.config.schema import CallersConfig
from oubliette.errors import LimitExceeded, StaleNode, StorageUnavailable
from oubliette.kit import Actor, ActorDead, System
from oubliette.mcp_front.quotas import Quotas
from oubliette.node.claims import ClusterClaims
from oubliette.runtime.store.postgres.cluster import limit_claims, nodes
from oubliette.runtime.store.postgres.control_thread import ControlThread
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.postgres.fence import NodeFence
from tests import selection
from tests.unit.runtime.store.postgres.cluster_rows import let_lease_end, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres")]

LIMIT = 37
SCOPE = "calls:p"
WAIT = 30.0


class SessionStub(Actor):
    """Stands for a session, which lives until it is ended."""


class Node:
    """What a node has of the limits: its claims, and the owner of the calls of its sessions."""

    def __init__(self, url: str, name: str, limit: int) -> None:
        self.name, self.limit = name, limit
        self.control = ControlThread(url, name)
        self.fence: NodeFence
        self.claims: ClusterClaims
        self.system: System
        self.table = OpenCallTable()
        self._numbers = itertools.count()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        self.control.start()
        try:
            self.fence = await self.control.run(take, self.name)
            self.claims = ClusterClaims(self.control, self.fence)
            await self.claims.start()
            async with System(self.name, roundtrip_messages=True, watchdog=None) as self.system:
                self.begin()
                self.session("s")
                yield self
            await self.claims.aclose()
        finally:
            await asyncio.to_thread(self.control.close)

    def begin(self) -> None:
        self.system.spawn(OpenCallsActor, self.limit, self.table, self.claims, name=OPEN_CALLS)

    def session(self, name: str) -> None:
        self.system.spawn(SessionStub, name=name)

    async def ask(self, request_id: str, session: str = "s") -> None:
        message = ReserveCall(
            principal="p",
            session=session,
            incarnation=self.system.ref(session).incarnation,
            request_id=request_id,
        )
        await self.system.ref(OPEN_CALLS).ask(message)

    async def call(self, session: str = "s") -> str | None:
        """A call's id; None if it is refused."""
        request_id = f"{self.name}-{next(self._numbers)}"
        try:
            await self.ask(request_id, session)
        except LimitExceeded as error:
            assert error.message.startswith("callers.max_pending_requests: ")
            return None
        return request_id

    def settle(self, request_id: str, session: str = "s") -> None:
        self.system.ref(OPEN_CALLS).tell(ReleaseCall(session=session, request_id=request_id))

    async def used(self, scope: str = SCOPE) -> int:
        return await self.control.run(limit_claims.used, scope)

    async def until_used(self, expected: int, scope: str = SCOPE) -> None:
        async with asyncio.timeout(WAIT):
            while await self.used(scope) != expected:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def cluster(url: str, names: str = "abc", limit: int = LIMIT) -> AsyncIterator[list[Node]]:
    async with contextlib.AsyncExitStack() as stack:
        running = [Node(url, name, limit).running() for name in names]
        found = [await stack.enter_async_context(each) for each in running]
        async with asyncio.timeout(WAIT):
            yield found


@pytest.fixture
def url(postgres_url: str) -> str:
    PostgresDatabase(postgres_url).close()
    return postgres_url


@contextlib.contextmanager
def held_scope(url: str):
    """Make all that claim or release in the scope wait, as a node does that is slow."""
    with psycopg.connect(url) as connection, connection.transaction():
        connection.execute(
            "INSERT INTO limit_counts VALUES (%s, 0) ON CONFLICT DO NOTHING", (SCOPE,)
        )
        connection.execute("SELECT FROM limit_counts WHERE scope = %s FOR UPDATE", (SCOPE,))
        yield


async def until_waiting(server: PostgresServer) -> None:
    """Until a statement waits for a lock."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with asyncio.timeout(WAIT):
        while not (await asyncio.to_thread(server.execute, sql))[0][0]:
            await asyncio.sleep(0.01)


# ------------------------------------------------------------------ open calls


async def test_a_hundred_calls_at_once_on_three_nodes_get_exactly_the_limit(url: str) -> None:
    async with cluster(url) as found:
        numbers = itertools.cycle(found)
        answers = await asyncio.gather(*(next(numbers).call() for _ in range(100)))
        granted = [each for each in answers if each is not None]
        assert len(granted) == LIMIT
        assert sum(node.table.total("p") for node in found) == LIMIT
        assert await found[0].used() == LIMIT


async def test_a_call_that_is_settled_on_one_node_makes_room_for_one_on_another(url: str) -> None:
    async with cluster(url, "ab", 2) as (a, b):
        first, second = await a.call(), await b.call()
        assert first is not None
        assert second is not None
        assert await a.call() is None
        assert await b.call() is None
        a.settle(first)
        a.settle(first)
        await b.until_used(1)
        assert await b.call() is not None
        assert await a.call() is None


async def test_the_calls_of_a_session_that_ends_are_given_back_on_all_nodes(url: str) -> None:
    async with cluster(url, "ab", 3) as (a, b):
        a.session("t")
        for _ in range(3):
            assert await a.call("t") is not None
        assert await b.call() is None
        await a.system.ref("t").kill()
        await b.until_used(0)
        assert await b.call() is not None


async def test_recovered_calls_count_whatever_the_limit_and_make_no_room(url: str) -> None:
    async with cluster(url, "ab", 2) as (a, b):
        assert await b.call() is not None
        recovered = OpenCallIds(
            principal="p",
            session="s",
            incarnation=a.system.ref("s").incarnation,
            request_ids=("r1", "r2", "r3"),
            reserving=("r4",),
        )
        await a.system.ref(OPEN_CALLS).ask(recovered)
        await b.until_used(4)
        a.settle("r1")
        a.settle("r2")
        await b.until_used(2)
        assert await b.call() is None


async def test_a_reservation_that_is_repeated_while_it_is_claimed_counts_once(url: str) -> None:
    async with cluster(url, "a", 2) as (a,):
        await asyncio.gather(*(a.ask("r1") for _ in range(3)))
        assert (a.table.total("p"), await a.used()) == (1, 1)


async def test_a_call_that_is_given_up_while_it_is_claimed_leaves_nothing(
    url: str, postgres_server: PostgresServer
) -> None:
    async with cluster(url, "a", 2) as (a,):
        with held_scope(url):
            asked = asyncio.create_task(a.ask("r1"))
            await until_waiting(postgres_server)
            a.settle("r1")
            await asked
        await a.until_used(0)
        assert a.table.total("p") == 0


async def test_an_owner_that_is_restarted_while_it_claims_gives_back_what_nobody_asks_for_again(
    url: str, postgres_server: PostgresServer
) -> None:
    async with cluster(url, "a", 2) as (a,):
        with held_scope(url):
            asked = [asyncio.create_task(a.ask(f"r{number}")) for number in range(2)]
            await until_waiting(postgres_server)
            await a.system.ref(OPEN_CALLS).kill()
            for each in asked:
                with pytest.raises(ActorDead):
                    await each
            a.begin()
            again = asyncio.create_task(a.ask("r1"))
        await again
        await a.until_used(1)
        assert a.table.total("p") == 1


# ------------------------------------------------------------------ nodes and the database


async def test_a_node_that_is_declared_gone_gives_back_its_calls_and_gets_no_more(url: str) -> None:
    async with cluster(url, "ab", 4) as (a, b):
        for node in (a, a, a, b):
            assert await node.call() is not None
        assert await b.call() is None
        await b.control.run(let_lease_end, "a")
        await b.control.run(nodes.declare_gone, "a", b.fence)
        assert await b.used() == 1
        answers = await asyncio.gather(*(b.call() for _ in range(5)))
        assert sum(each is not None for each in answers) == 3
        for _ in range(2):
            with pytest.raises(StaleNode):
                await a.call()
        assert await b.used() == 4


async def test_a_node_that_starts_again_has_nothing_of_what_it_had_claimed(url: str) -> None:
    async with cluster(url, "a", 4) as (a,):
        assert await a.call() is not None
        fence = await a.control.run(take, "a")
        later = ClusterClaims(a.control, fence)
        await later.start()
        assert await a.used() == 0
        assert await later.claim("h", SCOPE, 1)
        with pytest.raises(StaleNode):
            await a.claims.claim("i", SCOPE, 9)
        await later.aclose()


async def test_while_the_database_is_away_calls_are_refused_and_what_is_settled_is_remembered(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    async with cluster(url, "ab", 2) as (a, b):
        first = await a.call()
        assert first is not None
        assert await b.call() is not None
        await asyncio.to_thread(own_postgres.stop)
        a.settle(first)
        with pytest.raises(StorageUnavailable):
            await a.call()
        await asyncio.to_thread(own_postgres.start)
        await b.until_used(1)
        assert await b.call() is not None
        assert await a.call() is None


async def test_a_claim_whose_answer_is_lost_is_not_left_behind(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.new_database()
    PostgresDatabase(url).close()
    async with cluster(url, "a", 2) as (a,):
        with contextlib.suppress(psycopg.OperationalError), held_scope(url):
            asked = asyncio.create_task(a.ask("r1"))
            await until_waiting(own_postgres)
            await asyncio.to_thread(own_postgres.kill)
            with pytest.raises(StorageUnavailable):
                await asked
        await asyncio.to_thread(own_postgres.start)
        assert await a.call() is not None
        await a.until_used(1)


async def test_a_lost_connection_repeats_claims_that_count_once(
    url: str, postgres_server: PostgresServer
) -> None:
    async with cluster(url, "a", 2) as (a,):
        with held_scope(url):
            asked = asyncio.create_task(a.ask("r1"))
            await until_waiting(postgres_server)
            sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await asyncio.to_thread(postgres_server.execute, sql)
        await asked
        assert await a.used() == 1


async def test_what_is_released_last_is_settled_before_the_end(url: str) -> None:
    async with cluster(url, "ab", 2) as (a, b):
        assert await a.claims.claim("h", SCOPE, 2)
        a.claims.release("h")
        await a.claims.aclose()
        assert await b.used() == 0
        with pytest.raises(StorageUnavailable):
            await a.claims.claim("i", SCOPE, 2)


# ------------------------------------------------------------------ listeners


async def test_listeners_of_a_principal_are_counted_over_all_nodes(url: str) -> None:
    async with cluster(url, "ab") as found:
        a, b = (Quotas(CallersConfig(max_listeners=2), node.claims) for node in found)
        slots = [a.take_listener("p"), b.take_listener("p")]
        for slot in slots:
            await slot.claim()
        third = a.take_listener("p")
        with pytest.raises(LimitExceeded, match=r"callers.max_listeners = 2"):
            await third.claim()
        third.end()
        assert await found[0].used("listeners:p") == 2
        slots[1].end()
        await found[0].until_used(1, "listeners:p")
        again = a.take_listener("p")
        await again.claim()
        with pytest.raises(LimitExceeded):
            a.take_listener("p")


# ------------------------------------------------------------------ any order

STEPS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["claim", "claim", "claim", "release", "count"]),
            st.integers(0, 1),
            st.integers(0, 5),
        ),
        max_size=8,
    ),
    max_size=6,
)


@settings(
    max_examples=selection.examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(STEPS)
def test_as_many_are_counted_as_hold_and_claims_never_exceed_the_limit(
    url: str, steps: list[list[tuple[str, int, int]]]
) -> None:
    """Steps of one list happen at the same moment, on two nodes."""

    async def scenario() -> None:
        async with cluster(url, "ab", 3) as found:
            held: set[str] = set()
            for together in steps:
                claims = []
                most = max(3, len(held))  # what is counted in any case may be above the limit
                for action, number, each in together:
                    node, holder = found[number], f"{number}-{each}"
                    if action == "claim":
                        claims.append((holder, node.claims.claim(holder, SCOPE, 3)))
                    elif action == "release":
                        node.claims.release(holder)
                        held.discard(holder)
                    else:
                        node.claims.count(holder, SCOPE)
                        most += holder not in held
                        held.add(holder)
                granted = await asyncio.gather(*(claim for _, claim in claims))
                held |= {holder for (holder, _), ok in zip(claims, granted, strict=True) if ok}
                assert len(held) <= most
                await found[0].until_used(len(held))

    asyncio.run(scenario())
