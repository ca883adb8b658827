"""Three servers of one cluster: any of them serves any request, each project lives on one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

import oubliette
from oubliette.actors.messages import OpenProject
from oubliette.errors import InvalidParameter, Unavailable
from oubliette.kit import ActorDead
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requires("postgres")]


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Nodes]:
    async with Nodes(postgres_url) as nodes:
        await nodes.start("alpha")
        yield nodes


async def moved(cluster: Nodes, project_id: str) -> None:
    """Wait until a project of alpha has its home on beta."""
    async with asyncio.timeout(30):
        while project_id not in await cluster.servers["beta"].context.projects_here():
            await asyncio.sleep(0.1)


async def test_a_key_that_was_made_on_one_node_is_known_on_the_other_at_once(cluster):
    await cluster.start("beta")
    for _ in range(5):
        key = await cluster.key("alpha")
        async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
            assert await ob.call("project_list") == {"projects": [], "next_cursor": None}


async def test_a_program_on_one_node_uses_a_project_of_another(cluster):
    await cluster.start("beta")
    cluster.drain("beta")
    key = await cluster.key("alpha")

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        answer = await project.run('call add {"a": 1, "b": 2}', tools=[add])
    assert '"text": "3"' in answer.text
    assert project.id in await cluster.servers["alpha"].context.projects_here()
    assert await cluster.servers["beta"].context.projects_here() == frozenset()


async def test_a_project_goes_to_a_node_with_the_labels_that_it_asks_for(cluster):
    await cluster.start("beta", **{"cluster.labels": ["gpu=yes"]})
    made = await cluster.control(
        "alpha", "project_create", name="vision", placement={"labels": {"gpu": "yes"}}
    )
    assert made["id"] in await cluster.servers["beta"].context.projects_here()
    with pytest.raises(Unavailable, match="alpha: it has no label gpu=no"):
        await cluster.control(
            "alpha", "project_create", name="other", placement={"labels": {"gpu": "no"}}
        )
    with pytest.raises(Unavailable, match="beta: it has no container runtime docker"):
        await cluster.control(
            "alpha", "project_create", name="other", placement={"runtime": "docker"}
        )
    with pytest.raises(InvalidParameter, match="container_type"):
        await cluster.control("alpha", "project_create", name="other", container_type="rust")


async def test_projects_that_are_created_at_once_share_what_room_there_is(postgres_url):
    """Steps: three nodes with room for two sessions each; eight projects; six have a home."""
    async with Nodes(postgres_url, **{"cluster.max_live_sessions": 2}) as cluster:
        await cluster.start("alpha", "beta", "gamma")
        keys = {name: await cluster.key(name) for name in cluster.servers}

        async def create(number: int) -> str:
            name = ("alpha", "beta", "gamma")[number % 3]
            async with oubliette.connect(cluster.servers[name].url, keys[name]) as ob:
                return (await ob.project(f"shop{number}")).id

        async with asyncio.timeout(60):
            made = await asyncio.gather(*map(create, range(8)), return_exceptions=True)
        refused = [each for each in made if isinstance(each, BaseException)]
        assert len(refused) == 2, refused
        for each in refused:
            assert isinstance(each, Unavailable)
            for name in cluster.servers:
                assert f"{name}: 2 of 2 sessions live on it" in str(each)
        for server in cluster.servers.values():
            assert len(await server.context.projects_here()) == 2
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable, match="beta: 2 of 2 sessions live on it"):
                await cluster.control("alpha", "project_create", name="late")


async def test_a_drained_project_goes_where_its_labels_are(cluster):
    await cluster.start("beta", "gamma", **{"cluster.labels": ["gpu=yes"]})
    made = await cluster.control(
        "alpha", "project_create", name="vision", placement={"labels": {"gpu": "yes"}}
    )
    homes = {name: await cluster.servers[name].context.projects_here() for name in cluster.servers}
    (home,) = [name for name, here in homes.items() if made["id"] in here]
    other = {"beta": "gamma", "gamma": "beta"}[home]
    cluster.drain(home)
    async with asyncio.timeout(30):
        while made["id"] not in await cluster.servers[other].context.projects_here():
            await asyncio.sleep(0.1)


async def test_the_sessions_of_a_lost_machine_fail_and_their_project_is_used_elsewhere(cluster):
    key = await cluster.key("alpha")
    await cluster.start("beta")
    cluster.drain("beta")
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        session = await project.spawn("say zero")
        assert (await (await session.send("say one"))).text == "one"
        lost = cluster.servers["alpha"]
        cluster.drain("beta", draining=False)
        cluster.network.cut("alpha")
        cluster.give_up("alpha")
        async with asyncio.timeout(30):
            assert "lost its lease" in await asyncio.shield(lost.failed)
            seen = [event async for event in session.events(follow=True)]
        assert "its machine is gone (alpha)" in str(seen[-1])
        assert (await project.run("say two")).text == "two"
    assert project.id in await cluster.servers["beta"].context.projects_here()


async def test_a_project_of_a_lost_machine_goes_where_its_labels_are(cluster):
    """Steps: on alpha by its label; alpha is lost, with a live session; gamma has the label."""
    await cluster.start("beta")
    await cluster.start("gamma", **{"cluster.labels": ["gpu=yes"]})
    await cluster.stop("alpha")
    await cluster.start("alpha", **{"cluster.labels": ["gpu=yes"]})
    cluster.drain("gamma")
    key = await cluster.key("beta")
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        made = await ob.call("project_create", name="vision", placement={"labels": {"gpu": "yes"}})
        await ob.call("session_spawn", project_id=made["id"], prompt="say zero")
        cluster.drain("gamma", draining=False)
        cluster.network.cut("alpha")
        cluster.give_up("alpha")
        async with asyncio.timeout(60):
            while made["id"] not in await cluster.servers["gamma"].context.projects_here():
                await asyncio.sleep(0.1)


async def test_an_ask_of_a_node_that_is_given_up_ends_at_once(cluster, postgres_url):
    await cluster.start("beta")
    beta, alpha = cluster.servers["beta"], cluster.servers["alpha"]
    cluster.network.hold("beta", "alpha")  # as if alpha stood still
    asked = asyncio.ensure_future(
        beta.system.ref("alpha!projects").ask(OpenProject(project_id="x"), timeout=60)
    )
    await asyncio.sleep(0)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE nodes SET epoch = epoch + 1, state = 'gone' WHERE name = %s AND epoch = %s",
            alpha.node.membership.fence.parameters,
        )
    async with asyncio.timeout(10):
        with pytest.raises(ActorDead, match="it was given up"):
            await asked
    cluster.network.release("beta", "alpha")


async def test_a_drained_node_gives_its_projects_away_and_no_turn_is_lost(cluster):
    await cluster.start("beta")
    cluster.drain("beta")
    key = await cluster.key("alpha")
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        await project.exec("echo kept > note.txt && ln -s /etc/hostname link")
        session = await project.spawn("remember color green")
        turn = await session.send("sleep 2\nsay two")
        cluster.drain("beta", draining=False)
        cluster.drain("alpha")
        assert (await turn).text == "two"
        await moved(cluster, project.id)
        assert "green" in (await (await session.send("recall color"))).text
        done = await project.exec("cat note.txt && readlink link")
        assert done["stdout"] == "kept\n/etc/hostname\n"
    assert not (cluster.servers["alpha"].context.home / "projects" / project.id).exists()


async def test_a_message_waits_for_a_project_that_is_on_its_way(cluster):
    await cluster.start("beta")
    cluster.drain("beta")
    key = await cluster.key("alpha")
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        # By a client that repeats nothing.
        rests = await cluster.control(
            "alpha", "session_message", project_id=project.id, message="remember color green"
        )
        works = await project.spawn("say zero")
        turn = await works.send("sleep 2\nsay two")
        cluster.drain("beta", draining=False)
        cluster.drain("alpha")
        of = {"session_id": rests["session_id"]}
        async with asyncio.timeout(30):
            while (await cluster.control("alpha", "session_get", **of))["status"] != "completed":
                await asyncio.sleep(0.1)
        # The project cannot move before the turn has ended.
        told = await cluster.control("alpha", "session_message", **of, message="recall color")
        assert told["resumed"]
        assert (await turn).text == "two"
        assert project.id in await cluster.servers["beta"].context.projects_here()


async def test_every_node_lists_the_keys_of_this_moment(cluster):
    await cluster.start("beta")
    cluster.drain("beta")
    key = await cluster.key("alpha")

    async def of(session_id: str) -> list[dict]:
        listed = await cluster.control("beta", "token_list")
        return [each for each in listed["tokens"] if each["session_id"] == session_id]

    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        for _ in range(3):
            session = await project.spawn("say zero", api_key_scope="read")
            assert len(await of(session.id)) == 1
            await session.end()
            assert await of(session.id) == []


async def test_sessions_are_cleaned_up_with_the_files_that_another_node_has(cluster):
    await cluster.start("beta")
    cluster.drain("beta")
    key = await cluster.key("alpha")
    async with oubliette.connect(cluster.servers["beta"].url, key) as ob:
        project = await ob.project("shop")
        session = await project.spawn("say zero")
        assert (await (await session.send("say one"))).text == "one"
        await session.end()
        home = cluster.servers["alpha"].context.folders.session_home(project.id, session.id)
        assert home.exists()
        done = await ob.call("session_cleanup", max_age_hours=0)
        assert done == {"deleted": 1}
        assert not home.exists()
        assert (await ob.call("session_list", project_id=project.id))["sessions"] == []
