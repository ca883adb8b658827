"""Two nodes that cannot reach each other, while both have the database: nothing hangs or is lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

import oubliette
from oubliette.errors import OublietteError, Unavailable
from oubliette.kit.remote import node_link
from oubliette.runtime.store.postgres.cluster import nodes as rows
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(180),
    pytest.mark.requires("postgres"),
]

DELIVER = 1.0
"""Seconds in which a batch must be accepted, 30 on Ray."""
SILENT = 1.0
"""Seconds of silence of a node that is asked something, 10 otherwise."""
WITHIN = 30.0
"""Seconds for anything to end; on a machine that does nothing else it is two."""


@pytest.fixture
async def cluster(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    """Projects live on alpha."""
    monkeypatch.setattr(node_link, "SILENT", SILENT)
    async with Nodes(postgres_url) as nodes:
        await nodes.start("alpha", "beta")
        nodes.drain("beta")
        yield nodes


async def test_a_call_that_is_under_way_ends_with_an_error_when_the_network_is_cut(cluster):
    key = await cluster.key("alpha")
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        await project.exec("true")
        running = asyncio.ensure_future(project.exec("touch begun; sleep 60"))
        async with asyncio.timeout(WITHIN):
            while (await project.exec("test -e begun"))["exit_code"] != 0:
                await asyncio.sleep(0.1)
            cluster.network.sever("alpha", "beta", DELIVER)
            began = time.monotonic()
            with pytest.raises(OublietteError, match="alpha"):
                await running
            print(f"it ended {time.monotonic() - began:.1f} s after the cut")
        cluster.network.heal("alpha", "beta")
        async with asyncio.timeout(WITHIN):
            assert (await project.exec("echo again"))["stdout"] == "again\n"


async def test_turns_events_and_calls_of_callers_go_on_while_nodes_cannot_reach_each_other(
    cluster, postgres_url
):
    """They go by the database; what has to be asked of the other node is refused, and works again."""
    key = await cluster.key("alpha")
    asked, may = asyncio.Event(), asyncio.Event()

    async def approve(what: str) -> str:
        """Approve, when it may."""
        asked.set()
        await may.wait()
        return f"approved {what}"

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        before = [(each.name, each.epoch, each.state) for each in rows.all_nodes(connection)]
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        session = await project.spawn("say zero", tools=[approve])
        turn = await session.send('call approve {"what": "it"}\nsay so')
        await asyncio.wait_for(asked.wait(), WITHIN)
        cluster.network.sever("alpha", "beta", DELIVER)
        async with asyncio.timeout(WITHIN):
            with pytest.raises(Unavailable, match="alpha"):
                await ob.call("session_interrupt", session_id=session.id)
            found = await cluster.control("alpha", "session_get", session_id=session.id)
            assert found["status"] == "running"
        cluster.network.heal("alpha", "beta")
        may.set()
        async with asyncio.timeout(WITHIN):
            assert (await turn).text == "so"
            assert "approved it" in str([event async for event in session.events()])
            assert (await project.run("say more")).text == "more"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert [(n.name, n.epoch, n.state) for n in rows.all_nodes(connection)] == before
    assert not any(server.failed.done() for server in cluster.servers.values())


async def test_an_answer_of_a_caller_that_cannot_reach_the_home_of_its_session_is_given_later(
    cluster,
):
    key = await cluster.key("alpha")
    asked, may = asyncio.Event(), asyncio.Event()

    async def approve(what: str) -> str:
        """Approve, when it may."""
        asked.set()
        await may.wait()
        return f"approved {what}"

    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        session = await project.spawn("say zero", tools=[approve])
        turn = await session.send('call approve {"what": "it"}\nsay so')
        await asyncio.wait_for(asked.wait(), WITHIN)
        cluster.network.sever("alpha", "beta", DELIVER)
        may.set()
        await asyncio.sleep(3 * DELIVER)  # what takes time here is the cut
        cluster.network.heal("alpha", "beta")
        async with asyncio.timeout(WITHIN):
            assert (await turn).text == "so"
            assert "approved it" in str([event async for event in session.events()])
