"""A tree of sessions that spans projects on two nodes has its limits once, not once a node."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import oubliette
from oubliette.runtime.store.postgres.cluster import placements
from tests.consent import delete_with_all
from tests.nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.requires("postgres")]


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Nodes]:
    async with Nodes(postgres_url) as nodes:
        for name in ("alpha", "beta"):
            await nodes.start(name, **{"cluster.labels": [f"name={name}"]})
        yield nodes


async def project_on(cluster: Nodes, node: str, **arguments: object) -> str:
    """A new project that stays on this node; its id."""
    placement = {"labels": {"name": node}}
    made = await cluster.control("alpha", "project_create", placement=placement, **arguments)
    assert made["id"] in await cluster.servers[node].context.projects_here()
    return str(made["id"])


KEY: dict[str, Any] = {"api_key_scope": "write", "api_key_project": "*"}
"""Of an agent that reaches all projects."""


def spawn(project_id: str, prompt: str = "say x") -> str:
    given = {"project_id": project_id, "prompt": prompt, "new_session": True, **KEY}
    return f"call oubliette_session_spawn {json.dumps(given)}"


async def started(ob: oubliette.Oubliette, project_id: str, prompt: str) -> str:
    """Start an agent whose key reaches all projects; its session's id."""
    made = await ob.call(
        "session_spawn",
        project_id=project_id,
        prompt=prompt,
        new_session=True,
        **KEY,
    )
    return str(made["session_id"])


async def outcome(ob: oubliette.Oubliette, session_id: str, after: int = -1) -> Any:
    """The last message of a session once its turn has ended, which is JSON."""
    seen: dict[str, Any] = {"last_index": after, "completed": False, "failed": False}
    while not (seen["completed"] or seen["failed"]):
        since = seen["last_index"]
        seen = await ob.call(
            "session_events", session_id=session_id, since_index=since, wait_seconds=30
        )
    return json.loads(seen["final_response"])


async def test_the_agents_of_a_tree_on_two_nodes_are_counted_together(cluster):
    first = await project_on(cluster, "alpha", name="first", limits={"max_agents": 4})
    second = await project_on(cluster, "beta", name="second")
    calls = [spawn(first), spawn(second)] * 4
    async with oubliette.connect(cluster.servers["alpha"].url, await cluster.key("alpha")) as ob:
        root = await started(ob, first, "\n".join(["parallel", *calls, "end"]))
        outcomes = await outcome(ob, root)
        assert sum(not each["is_error"] for each in outcomes) == 3, outcomes
        refused = [each["text"] for each in outcomes if each["is_error"]]
        assert all("max_agents: the limit of this tree is 4" in each for each in refused), refused
        shown = await ob.call("config_limits", session_id=root)
        assert shown["limits"]["max_agents"]["used"] == 4


async def test_a_tree_is_ended_on_both_nodes(cluster):
    first = await project_on(cluster, "alpha", name="first")
    second = await project_on(cluster, "beta", name="second")
    async with oubliette.connect(cluster.servers["beta"].url, await cluster.key("alpha")) as ob:
        root = await started(ob, first, spawn(second, "sleep 600"))
        child = (await outcome(ob, root))["structured"]["session_id"]
        ended = await ob.call("session_end", session_id=root, tree=True)
        assert ended["living_descendants"] == 0
        assert (await ob.call("session_get", session_id=child))["ended_at"] is not None


@pytest.mark.whole
async def test_sessions_that_fail_with_their_machine_leave_their_places_in_a_tree_elsewhere(
    cluster,
):
    """Steps: the root on alpha, its only child on beta; beta is lost; another child can start."""
    first = await project_on(cluster, "alpha", name="first", limits={"max_agents_at_once": 2})
    second = await project_on(cluster, "beta", name="second")
    async with oubliette.connect(cluster.servers["alpha"].url, await cluster.key("alpha")) as ob:
        root = await started(ob, first, spawn(second, "sleep 600"))
        child = (await outcome(ob, root))["structured"]["session_id"]

        async def another() -> Any:
            seen = await ob.call("session_get", session_id=root)
            await ob.call("session_message", session_id=root, message=spawn(first))
            return await outcome(ob, root, after=seen["last_index"])

        assert "max_agents_at_once: the limit of this tree is 2" in (await another())["text"]
        lost = cluster.servers["beta"]
        cluster.network.cut("beta")
        cluster.give_up("beta")
        async with asyncio.timeout(60):
            await asyncio.shield(lost.failed)
            while (await ob.call("session_get", session_id=child))["status"] != "failed":
                await asyncio.sleep(0.1)
            while (answer := await another())["is_error"]:
                assert "max_agents_at_once" in answer["text"]


async def test_a_deleted_project_keeps_its_home_until_its_tree_has_ended_elsewhere(cluster):
    """Steps: the root on alpha ends, its project is deleted; its child on beta starts others."""
    first = await project_on(cluster, "alpha", name="first", limits={"max_agents": 4})
    second = await project_on(cluster, "beta", name="second")
    async with oubliette.connect(cluster.servers["beta"].url, await cluster.key("alpha")) as ob:
        await ob.call("container_exec", project_id=second, command="mkfifo gate")
        calls = [spawn(second, "sleep 600")] * 4
        prompt = "\n".join(["exec cat gate", "parallel", *calls, "end"])
        child = await orphan(ob, first, second, prompt)
        assert await home_of(cluster, first) == "alpha"
        await ob.call("container_exec", project_id=second, command="echo > gate")
        outcomes = await outcome(ob, child)
        assert sum(not each["is_error"] for each in outcomes) == 2, outcomes
        assert "max_agents: the limit of this tree is 4" in str(outcomes)
        await ob.call("session_end", session_id=child, tree=True)
        await no_home(cluster, first)


@pytest.mark.whole
@pytest.mark.parametrize("fails", ["gone", "restarted"])
async def test_nothing_stays_of_a_deleted_project_whose_node_has_failed(cluster, fails):
    """Steps: alpha fails, the last session of the tree ends, and alpha is given up or is back."""
    first = await project_on(cluster, "alpha", name="first")
    second = await project_on(cluster, "beta", name="second")
    async with oubliette.connect(cluster.servers["beta"].url, await cluster.key("beta")) as ob:
        child = await orphan(ob, first, second)
        assert await home_of(cluster, first) == "alpha"
        cluster.network.cut("alpha")
        await cluster.stop("alpha")
        await ob.call("session_end", session_id=child)
        if fails == "restarted":
            await cluster.start("alpha", **{"cluster.labels": ["name=alpha"]})
        await no_home(cluster, first)


async def orphan(
    ob: oubliette.Oubliette, first: str, second: str, prompt: str = "say ready"
) -> str:
    """The child, in the second project, of a root that has ended with its project; its id."""
    root = await started(ob, first, spawn(second, prompt))
    child = (await outcome(ob, root))["structured"]["session_id"]
    await ob.call("session_end", session_id=root)
    await delete_with_all(ob.call, first)
    return str(child)


async def home_of(cluster: Nodes, project_id: str) -> str | None:
    """The node of a project by the database; None: it has none."""

    def read() -> str | None:
        with psycopg.connect(cluster.url, autocommit=True) as connection:
            found = placements.home_of(connection, project_id)
        return None if found is None else found.node

    return await asyncio.to_thread(read)


async def no_home(cluster: Nodes, project_id: str) -> None:
    """Wait until a project has no home any more."""
    async with asyncio.timeout(60):
        while await home_of(cluster, project_id) is not None:
            await asyncio.sleep(0.05)  # there is no notice of it
