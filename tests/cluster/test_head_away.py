"""Servers as nodes while Ray's head is away: they go on with all that they have."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import oubliette
from oubliette.errors import Unavailable
from tests.cluster.servers import ClusterProcess, RayOfRun

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [
    pytest.mark.requires("ray"),
    pytest.mark.requires("postgres"),
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(300),
    # Ray leaves its sockets and log files to the collector.
    pytest.mark.filterwarnings("default"),
]

AWAY = 8.0
"""Seconds for which the head is away, at least."""
WITHIN = 60.0


@pytest.fixture(scope="module")
def ray_of_module() -> Iterator[RayOfRun]:
    with RayOfRun(("node1", "node2", "node3")) as ray:
        yield ray


@pytest.fixture
async def nodes(ray_of_module: RayOfRun) -> AsyncIterator[ClusterProcess]:
    async with ClusterProcess(ray_of_module) as served:
        await served.start()
        yield served
        print(served.log()[-20_000:])


async def test_nodes_serve_what_they_have_without_rays_head_and_all_once_it_is_back(
    nodes: ClusterProcess, ray_of_module: RayOfRun
) -> None:
    """The caller is on the node without projects, its sessions are on the others."""
    asked, may = asyncio.Event(), asyncio.Event()

    async def approve(what: str) -> str:
        """Approve, when it may."""
        asked.set()
        await may.wait()
        return f"approved {what}"

    epochs = nodes.query("SELECT name, epoch, state FROM nodes ORDER BY name")
    async with oubliette.connect(nodes.url, nodes.token("admin")) as ob:
        project = await ob.project("shop")
        session = await project.spawn("say zero", tools=[approve])
        turn = await session.send('call approve {"what": "it"}\nsay so')
        await asyncio.wait_for(asked.wait(), WITHIN)

        await asyncio.to_thread(ray_of_module.do, head="kill")
        ends = time.monotonic() + AWAY
        async with asyncio.timeout(WITHIN):
            may.set()
            assert (await turn).text == "so"
            assert "approved it" in str([event async for event in session.events()])
            assert (await (await session.send("say two"))).text == "two"
            assert (await project.run("say three")).text == "three"
            placed = []
            for name in ("other", "third"):  # on any node, also on one that was not met before
                try:
                    placed.append((await (await ob.project(name)).run("say four")).text)
                except Unavailable as refused:
                    assert "cannot be reached" in refused.message
            print(f"placed without a head: {placed}")
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
        await asyncio.to_thread(ray_of_module.do, head="start")

        async with asyncio.timeout(WITHIN):
            assert (await project.run("say five")).text == "five"
            for name in ("other", "third", "fourth"):
                assert (await (await ob.project(name)).run("say six")).text == "six"
    assert nodes.query("SELECT name, epoch, state FROM nodes ORDER BY name") == epochs
