"""A caller is where it listens, for the sessions of all nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import oubliette
from oubliette.runtime.store.postgres.cluster.nodes import LEASE_SECONDS
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.requires("postgres"), pytest.mark.timeout(120)]

SETTINGS = {"callers.poll_grace_seconds": 3, "callers.stream_grace_seconds": 0.3}
"""A caller that is known by its calls alone is lost in three seconds."""


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Nodes]:
    """Projects live on alpha."""
    async with Nodes(postgres_url) as nodes:
        await nodes.start("alpha", **SETTINGS)
        await nodes.start("beta", **SETTINGS)
        nodes.drain("beta")
        yield nodes


async def test_a_caller_on_another_node_has_all_the_time_that_it_needs_for_an_answer(cluster):
    key = await cluster.key("alpha")

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        await asyncio.sleep(5.0)
        return a + b

    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        answer = await project.run('call add {"a": 1, "b": 2}', tools=[add])
    assert '"text": "3"' in answer.text


async def test_a_call_of_a_caller_whose_node_has_ended_ends_after_its_grace(cluster):
    key = await cluster.key("alpha")
    began = asyncio.Event()
    sessions: list[str] = []

    async def wait() -> str:
        """Wait."""
        began.set()
        await asyncio.Event().wait()
        return ""

    async def run() -> None:
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            project = await ob.project("shop")
            session = await project.spawn("call wait {}", tools=[wait])
            sessions.append(session.id)
            await asyncio.Event().wait()

    running = asyncio.ensure_future(run())
    await asyncio.wait_for(began.wait(), 30)
    await cluster.stop("beta")
    found = await settled(cluster, sessions[0])
    assert found["outcome"] == "caller_gone"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.whole
async def test_a_caller_that_lives_is_not_lost_while_the_database_is_away(own_postgres):
    """Neither its signs of life nor the lease of its node can be written for longer than they last."""
    url = own_postgres.new_database()
    async with Nodes(url) as cluster:
        await cluster.start("alpha", "beta", **SETTINGS)
        cluster.drain("beta")
        key = await cluster.key("alpha")
        began, may = asyncio.Event(), asyncio.Event()

        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            began.set()
            await may.wait()
            return a + b

        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            project = await ob.project("shop")
            session = await project.spawn("say zero", tools=[add])
            turn = await session.send('call add {"a": 1, "b": 2}')
            await asyncio.wait_for(began.wait(), 30)
            own_postgres.stop("immediate")
            await asyncio.sleep(LEASE_SECONDS + SETTINGS["callers.poll_grace_seconds"] + 4)
            await asyncio.to_thread(own_postgres.start)
            await asyncio.sleep(1.0)  # the nodes find it at different moments
            may.set()
            async with asyncio.timeout(60):
                assert '"text": "3"' in (await turn).text


async def settled(cluster: Nodes, session_id: str) -> dict:
    """The end of the session's call."""
    async with asyncio.timeout(30):
        while True:
            page = await cluster.control("alpha", "session_events", session_id=session_id)
            for event in page["events"]:
                if event["type"] == "caller_tool_settled":
                    return event
            await asyncio.sleep(0.05)
