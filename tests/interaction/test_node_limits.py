"""Limits of a principal hold over the servers of a cluster together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest

import oubliette
from oubliette.errors import LimitExceeded
from oubliette.node import cluster_shares
from oubliette.runtime.store.postgres.cluster import nodes as rows
from tests.callers import HttpCaller
from tests.http_client import HttpError
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres"), pytest.mark.timeout(120)]


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Nodes]:
    limits = {"callers.max_listeners": 2, "callers.max_pending_requests": 1}
    async with Nodes(postgres_url, **limits) as nodes:
        yield nodes


async def started(cluster: Nodes) -> str:
    """Start two nodes; return a key that both know."""
    await cluster.start("alpha")
    key = await cluster.key("alpha")
    await cluster.start("beta")
    return key


def place_on(url: str, name: str) -> None:
    """Let new projects go to this node alone."""
    with psycopg.connect(url, autocommit=True) as connection:
        for each in ("alpha", "beta"):
            rows.set_draining(connection, each, draining=each != name)


async def until_counted(url: str, kind: str, expected: int) -> None:
    """Until so many holders of scopes of this kind are counted in the database."""
    sql = "SELECT coalesce(sum(used), 0) FROM limit_counts WHERE scope LIKE %s"

    def counted() -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(sql, (f"{kind}:%",)).fetchone()[0]

    async with asyncio.timeout(20):
        while await asyncio.to_thread(counted) != expected:
            await asyncio.sleep(0.02)


async def test_a_principal_has_its_listeners_on_all_nodes_together(cluster, postgres_url):
    key = await started(cluster)
    alpha, beta = (cluster.servers[name].url for name in ("alpha", "beta"))
    async with oubliette.connect(alpha, key) as a, oubliette.connect(beta, key) as b:
        polls = [
            asyncio.create_task(each.call("caller_listen", caller_id=name, max_seconds=30))
            for each, name in ((a, "one"), (b, "two"))
        ]
        await until_counted(postgres_url, "listeners", 2)
        for each in (a, b):
            with pytest.raises(LimitExceeded, match=r"callers.max_listeners = 2"):
                await each.call("caller_listen", caller_id="three", max_seconds=0.1)
        polls[0].cancel()
        await until_counted(postgres_url, "listeners", 1)
        answer = await b.call("caller_listen", caller_id="three", max_seconds=0.1)
        assert answer["events"] == []
        polls[1].cancel()
    await until_counted(postgres_url, "listeners", 0)


async def test_a_principal_has_its_open_calls_on_all_nodes_together(cluster, postgres_url):
    key = await started(cluster)
    called, release = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        """Wait."""
        called.set()
        await release.wait()
        return "held"

    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        place_on(postgres_url, "alpha")
        first = await ob.project("on-alpha")
        place_on(postgres_url, "beta")
        second = await ob.project("on-beta")
        holding = asyncio.create_task(first.run("call hold {}", tools=[hold]))
        async with asyncio.timeout(60):
            await called.wait()
        refused = await second.run("call hold {}", tools=[hold])
        assert "callers.max_pending_requests: 1" in refused.text
        homes = [cluster.servers[name].context.projects_here for name in ("alpha", "beta")]
        assert [await home() for home in homes] == [{first.id}, {second.id}]
        release.set()
        assert "held" in (await holding).text
        await until_counted(postgres_url, "calls", 0)
        assert "held" in (await second.run("call hold {}", tools=[hold])).text


# ------------------------------------------------------------------ what each call counts


@pytest.fixture
def patient(monkeypatch) -> None:
    """On a busy machine the other nodes may answer late."""
    monkeypatch.setattr(cluster_shares, "HOLD_SECONDS", 20.0)


@contextlib.asynccontextmanager
async def callers(url: str, **limits: object) -> AsyncIterator[tuple[Nodes, list[HttpCaller]]]:
    """Three nodes, and a client of each, all with one key."""
    given = {f"callers.{name}": value for name, value in limits.items()}
    async with Nodes(url, **given) as nodes, contextlib.AsyncExitStack() as stack:
        await nodes.start("alpha")
        key = await nodes.key("alpha")
        await nodes.start("beta", "gamma")
        found = [
            HttpCaller(nodes.servers[name].url, key, caller_id=name)
            for name in ("alpha", "beta", "gamma")
        ]
        for each in found:
            await stack.enter_async_context(each)
        yield nodes, found


async def held(caller: HttpCaller, project_id: str) -> str:
    """A call that is in flight until the file `go` is there: its output, or its refusal."""
    try:
        answer = await caller.call(
            "container_exec",
            project_id=project_id,
            command="until [ -e go ]; do sleep 0.1; done; echo done",
        )
    except HttpError as error:
        assert error.status == 429
        assert error.headers["retry-after"] == "1"
        assert b"(callers.max_calls_in_flight = 6)" in error.body
        return "refused"
    return answer["stdout"].strip()


async def until_in_flight(url: str, expected: int) -> None:
    sql = "SELECT coalesce(sum(held), 0) FROM limit_shares WHERE scope LIKE 'in_flight:%'"

    def counted() -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(sql).fetchone()[0]

    async with asyncio.timeout(20):
        while await asyncio.to_thread(counted) != expected:
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("patient")
async def test_calls_in_flight_over_three_nodes_reach_the_limit_and_never_exceed_it(postgres_url):
    async with callers(postgres_url, max_calls_in_flight=6) as (nodes, found), asyncio.timeout(90):
        made = await found[0].call("project_create", name="p")
        project_id = made["id"]
        calls = [asyncio.create_task(held(each, project_id)) for each in found for _ in range(4)]
        refused, waiting = 0, set(calls)
        while refused < 6:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused += sum(call.result() == "refused" for call in done)
        await until_in_flight(postgres_url, 6)
        assert len(waiting) == 6
        for each in found:
            assert await held(each, project_id) == "refused"
        for server in nodes.servers.values():
            folder = server.context.folders.workspace(project_id, made["default_workspace_id"])
            if folder.exists():
                (folder / "go").touch()
        answers = await asyncio.gather(*waiting)
        assert answers == ["done"] * 6
        # Whatever the nodes have left of it, the client of one gets the whole limit.
        answers = await asyncio.gather(*(held(found[2], project_id) for _ in range(6)))
        assert answers == ["done"] * 6


@pytest.mark.usefixtures("patient")
async def test_a_burst_of_calls_over_three_nodes_is_that_of_one(postgres_url):
    limits = {"calls_per_second": 0.001, "calls_burst": 30}
    async with callers(postgres_url, **limits) as (_, found), asyncio.timeout(90):

        async def call(caller: HttpCaller) -> bool:
            try:
                await caller.call("project_list")
            except HttpError as error:
                assert error.status == 429
                assert b"0.001 a second are allowed, 30 at once" in error.body
                return False
            return True

        for each in found[:2]:
            assert await call(each)
        answers = await asyncio.gather(*(call(found[2]) for _ in range(40)))
        assert sum(answers) == 28
        assert not any([await call(each) for each in found])
