"""Nodes whose database goes away for longer than their leases, fails over, or is cut off from one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

import oubliette
from oubliette.errors import OublietteError
from oubliette.runtime.containers.process.adoption import find_living
from oubliette.runtime.store.postgres.cluster import nodes as rows
from oubliette.runtime.store.postgres.cluster.nodes import LEASE_SECONDS
from tests.nodes import Nodes
from tests.way_to_postgres import WayToPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import PostgresServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.whole,
    pytest.mark.timeout(240),
    pytest.mark.requires("postgres"),
]

SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"
AWAY = LEASE_SECONDS + 3.0
"""Seconds of an outage: every lease has ended."""
LONG = 60.0


def state(url: str) -> dict[str, tuple[int, str]]:
    """Epoch and state of each node."""
    with psycopg.connect(url, autocommit=True) as connection:
        return {each.name: (each.epoch, each.state) for each in rows.all_nodes(connection)}


def drain(url: str, name: str, *, draining: bool = True) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        rows.set_draining(connection, name, draining=draining)


class AtWork:
    """A program on beta with sessions on alpha: one streams, one waits for a tool of the program."""

    def __init__(self, ob: oubliette.Client, url: str) -> None:
        self._ob = ob
        self._url = url
        self.may = asyncio.Event()
        self.asked = asyncio.Event()

    async def approve(self, what: str) -> str:
        """Approve, when it may."""
        self.asked.set()
        await self.may.wait()
        return f"approved {what}"

    async def begin(self, seconds: float) -> None:
        self.project = await self._ob.project("shop")
        self.streaming = await self.project.spawn("say zero")
        self.stream = await self.streaming.send(
            "sleep 0.2\nemit 5 50\n" * int(5 * seconds) + "say end"
        )
        self.asking = await self.project.spawn("say zero", tools=[self.approve])
        self.call = await self.asking.send('call approve {"what": "it"}\nsay so')
        await asyncio.wait_for(self.asked.wait(), 30)
        self.before = state(self._url)

    async def check(self, seconds: float = LONG) -> None:
        """Everything went on by itself: no turn, no event and no call was lost, and no node."""
        self.may.set()
        async with asyncio.timeout(seconds):
            assert (await self.stream).text == "end"
            assert (await self.call).text == "so"
            for session in (self.streaming, self.asking):
                seen = [event.index async for event in session.events()]
                assert seen == list(range(len(seen)))
            said = [event async for event in self.asking.events()]
            assert any("approved it" in str(event) for event in said)
            assert (await self.project.run("say more")).text == "more"
        assert state(self._url) == self.before


async def two(cluster: Nodes, url: str) -> str:
    """Start alpha, which takes projects, and beta, which does not; return a key."""
    await cluster.start("alpha", "beta")
    drain(url, "beta")
    return await cluster.key("alpha")


@pytest.mark.parametrize("seconds", [AWAY, *([60.0] if SOAK else [])])
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_nodes_go_on_after_their_database_was_away_for_longer_than_their_leases(
    own_postgres: PostgresServer, end: str, seconds: float
) -> None:
    url = own_postgres.new_database()
    async with Nodes(url) as cluster:
        key = await two(cluster, url)
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            work = AtWork(ob, url)
            await work.begin(seconds / 2)
            ends = time.monotonic() + seconds
            await asyncio.to_thread(own_postgres.stop, "immediate") if end == "stop" else (
                await asyncio.to_thread(own_postgres.kill)
            )
            other = asyncio.ensure_future(ob.project("other"))
            await asyncio.sleep(max(0.0, ends - time.monotonic()))
            await asyncio.to_thread(own_postgres.start)
            back = time.monotonic()
            # For as long as a node needs to be steady again, and may declare others gone.
            sleeping = await (await work.project.spawn("say zero")).send(
                f"sleep {LEASE_SECONDS + 3}\nsay awake"
            )
            print(f"a session was begun {time.monotonic() - back:.2f} s after the database")
            await work.check()
            assert (await (await other).run("say on")).text == "on"
            assert (await sleeping).text == "awake"
            assert state(url) == work.before
        assert not any(server.failed.done() for server in cluster.servers.values())


async def test_nodes_go_on_with_the_standby_that_takes_over(own_postgres: PostgresServer) -> None:
    url = own_postgres.new_database()
    with own_postgres.standby() as standby:
        url = own_postgres.url_with(standby, url)
        async with Nodes(url) as cluster:
            key = await two(cluster, url)
            async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
                work = AtWork(ob, url)
                await work.begin(3.0)
                await asyncio.to_thread(own_postgres.kill)
                await asyncio.sleep(2.0)  # what takes time here is the outage
                await asyncio.to_thread(standby.promote)
                await work.check()
            assert not any(server.failed.done() for server in cluster.servers.values())


async def test_nodes_go_on_after_their_database_has_hung(own_postgres: PostgresServer) -> None:
    """All its processes stand still, but no connection ends."""
    url = own_postgres.new_database()
    async with Nodes(url) as cluster:
        key = await two(cluster, url)
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            work = AtWork(ob, url)
            await work.begin(AWAY / 2)
            own_postgres.pause()
            await asyncio.sleep(AWAY)
            own_postgres.resume()
            await work.check()
        assert not any(server.failed.done() for server in cluster.servers.values())


@pytest.fixture
def way(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[WayToPostgres]:
    with contextlib.closing(WayToPostgres(tmp_path, postgres_server.folder)) as way:
        yield way


@pytest.mark.parametrize("who", ["home", "front"])
async def test_a_node_that_was_cut_off_from_the_database_alone_goes_on_when_it_has_it_again(
    postgres_url: str, way: WayToPostgres, who: str
) -> None:
    """It comes back before it is given up; the other one went on all the time."""
    cut, other = ("alpha", "beta") if who == "home" else ("beta", "alpha")
    async with Nodes(postgres_url, **{"cluster.machine_lost_seconds": 60}) as cluster:
        for name in ("alpha", "beta"):
            through = {"store.database": way.url(postgres_url)} if name == cut else {}
            await cluster.start(name, **through)
        drain(postgres_url, "beta")
        key = await cluster.key("alpha")
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            work = AtWork(ob, postgres_url)
            await work.begin(AWAY / 2)
            with way.cut_off():
                ends = time.monotonic() + AWAY
                drain(postgres_url, other, draining=False)
                async with oubliette.connect(cluster.servers[other].url, key) as still:
                    # Until its lease has ended the other one may be chosen, and does not answer.
                    await asyncio.sleep(LEASE_SECONDS)
                    project = await still.project("elsewhere")
                    assert (await project.run("say on")).text == "on"
                await asyncio.sleep(max(0.0, ends - time.monotonic()))
            work.before = state(postgres_url)
            await work.check()
        assert not any(server.failed.done() for server in cluster.servers.values())


async def test_a_node_that_is_given_up_while_it_is_cut_off_from_the_database_stores_nothing_more(
    postgres_url: str, way: WayToPostgres
) -> None:
    async with Nodes(postgres_url) as cluster:
        await cluster.start("alpha", **{"store.database": way.url(postgres_url)})
        await cluster.start("beta")
        drain(postgres_url, "beta")
        key = await cluster.key("alpha")
        lost = cluster.servers["alpha"]
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob, asyncio.timeout(LONG):
            project = await ob.project("shop")
            session = await project.spawn("say zero")
            turn = await session.send("emit 5 50\nsleep 0.2\n" * 500)
            drain(postgres_url, "beta", draining=False)
            with way.cut_off():
                with pytest.raises(OublietteError, match="its machine is gone"):
                    await turn
                seen = [event async for event in session.events(follow=True)]
                assert "its machine is gone (alpha)" in str(seen[-1])
            assert "lost its lease" in await asyncio.shield(lost.failed)
            assert (await project.run("say two")).text == "two"
            again = [event.index async for event in session.events()]
            assert again == list(range(len(seen)))


async def test_a_node_that_is_stopped_while_its_database_is_away_leaves_no_agent(
    own_postgres: PostgresServer,
) -> None:
    async with Nodes(own_postgres.new_database()) as cluster:
        await cluster.start("alpha")
        key = await cluster.key("alpha")
        alpha = cluster.servers["alpha"]
        async with oubliette.connect(alpha.url, key, on_exit="keep") as ob:
            session = await (await ob.project("shop")).spawn("say zero")
            await session.send("sleep 600")
        instance, sandboxed = alpha.context.instance, shutil.which("bwrap") is not None
        async with asyncio.timeout(LONG):
            while not find_living(instance, sandboxed=sandboxed):
                await asyncio.sleep(0.1)  # its container is being started
        own_postgres.stop("immediate")
        await cluster.stop("alpha")
        assert find_living(instance, sandboxed=sandboxed) == {}
