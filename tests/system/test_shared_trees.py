"""Trees of several roots: what one principal starts with one id has its limits together."""

from __future__ import annotations

import json

import pytest

from oubliette.testing.server import ServerProcess
from tests.callers import ToolFailed
from tests.system.site import Site

pytestmark = pytest.mark.anyio


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


def below(text: str) -> str:
    return f"call session_message {json.dumps({'message': text})}"


async def test_roots_and_children_of_one_tree_id_are_counted_together(site, caller) -> None:
    tree = {"id": "night", "limits": {"max_agents": 3}}
    first = await site.spawn(caller, below("say child"), tree=tree)
    assert (await first.outcome())["structured"]["result"] == "child"
    second = await site.spawn(caller, "say second", tree={"id": "night"})
    assert await second.turn() == ["second"]
    assert (await first.get())["exploration_id"] == (await second.get())["exploration_id"]
    refusal = r"max_agents: the limit of this tree is 3 \(set by the tree\)"
    with pytest.raises(ToolFailed, match=refusal):
        await site.spawn(caller, "say no", tree=tree)
    await second.say(below("say no"))
    assert "max_agents" in (await second.outcome())["text"]
    told = await caller.call("config_limits", session_id=second.session_id)
    assert told["limits"]["max_agents"] == {"value": 3, "source": "tree", "used": 3, "left": 0}
    other = await site.spawn(caller, "say elsewhere", tree={"id": "day"})
    assert await other.turn() == ["elsewhere"]


async def test_the_same_id_of_somebody_else_or_elsewhere_is_another_tree(site, caller) -> None:
    tree = {"id": "night", "limits": {"max_agents": 1}}
    mine = await site.spawn(caller, "say mine", tree=tree)
    project = await site.new_project()
    elsewhere = await site.spawn(caller, "say there", project_id=project["id"], tree=tree)
    async with site.caller("http-auto") as other:
        theirs = await site.spawn(other, "say theirs", tree=tree)
        trees = {(await each.get())["exploration_id"] for each in (mine, elsewhere, theirs)}
    assert len(trees) == 3


async def test_roots_take_the_slots_of_their_tree_and_give_them_back(site, caller) -> None:
    tree = {"id": "slots", "limits": {"max_agents_at_once": 1}}
    first = await site.spawn(caller, "sleep 60", tree=tree)
    with pytest.raises(ToolFailed, match="max_agents_at_once") as refused:
        await site.spawn(caller, "say no", tree=tree)
    assert refused.value.structured["error"]["code"] == "limit_exceeded"
    await first.end()
    second = await site.spawn(caller, "say yes", tree=tree)
    assert await second.turn() == ["yes"]


async def test_a_tree_keeps_the_limits_that_it_began_with(site, caller) -> None:
    limits = {"max_agents": 5, "max_depth": 1}
    await site.spawn(caller, "say a", tree={"id": "fixed", "limits": limits})
    await site.spawn(caller, "say b", tree={"id": "fixed", "limits": limits})
    with pytest.raises(ToolFailed, match=r"tree: 'fixed' began with other limits.*max_agents"):
        await site.spawn(
            caller, "say c", tree={"id": "fixed", "limits": {**limits, "max_agents": 9}}
        )


async def test_limits_of_a_tree_do_not_loosen_those_of_the_project(site, caller) -> None:
    project = await site.new_project(limits={"max_agents": 1})
    tree = {"id": "wide", "limits": {"max_agents": 100, "max_depth": 0}}
    agent = await site.spawn(caller, below("say no"), project_id=project["id"], tree=tree)
    assert "max_depth" in (await agent.outcome())["text"]
    with pytest.raises(
        ToolFailed, match=r"max_agents: the limit of this tree is 1 \(set by the proj"
    ):
        await site.spawn(caller, "say no", project_id=project["id"], tree=tree)


async def test_the_time_of_a_tree_begins_with_its_first_root_and_ends_for_all(site, caller) -> None:
    tree = {"id": "brief", "limits": {"max_wall_seconds": 2.0}}
    first = await site.spawn(caller, "sleep 60", tree=tree)
    second = await site.spawn(caller, "sleep 60", tree=tree)
    for agent in (first, second):
        await agent.event("status", status="timed_out")
        told = await agent.event("error", kind="limit")
        assert told["limit"] == "max_wall_seconds"
    with pytest.raises(ToolFailed, match="max_wall_seconds"):
        await site.spawn(caller, "say late", tree=tree)
    with pytest.raises(ToolFailed, match="max_wall_seconds"):
        await first.say("say late")


async def test_all_roots_are_warned_of_a_limit_that_is_near(site, caller) -> None:
    tree = {"id": "dear", "limits": {"max_cost_usd": 1.0}}
    first = await site.spawn(caller, "usage 0.5 10", tree=tree)
    second = await site.spawn(caller, "usage 0.3 10", tree=tree)
    for agent in (first, second):
        await agent.event("system", kind="limit", limit="max_cost_usd")
    assert await second.turn() is not None
    await second.say("usage 0.3 10")
    await second.event("completion", nth=2)
    with pytest.raises(ToolFailed, match="max_cost_usd"):
        await site.spawn(caller, "say no", tree=tree)


async def test_a_message_without_a_session_goes_to_the_latest_one_of_its_tree(site, caller) -> None:
    project = await site.new_project()
    where = {"project_id": project["id"], "context": caller.context}
    inside = await caller.call("session_message", message="say a", tree={"id": "t"}, **where)
    outside = await caller.call("session_spawn", prompt="say b", new_session=True, **where)
    again = await caller.call("session_message", message="say c", tree={"id": "t"}, **where)
    assert inside["spawned"]
    assert again["session_id"] == inside["session_id"] != outside["session_id"]
    for each in (inside, outside):
        site.agent(each["session_id"], caller)
    with pytest.raises(ToolFailed, match="tree: the session has its tree already"):
        await caller.call(
            "session_message", session_id=inside["session_id"], message="x", tree={"id": "t"}
        )


async def test_the_sessions_of_a_map_share_a_tree_and_wait_for_its_slots(site, caller) -> None:
    answer = await caller.call(
        "session_map",
        project_id=site.project["id"],
        messages=[f"say {number}" for number in range(4)],
        tree={"id": "map", "limits": {"max_agents_at_once": 1, "max_agents": 3}},
    )
    assert [each["status"] for each in answer["results"]].count("completed") == 3
    (refused,) = [each for each in answer["results"] if each["status"] == "refused"]
    assert "max_agents" in refused["error"]


async def test_agents_of_one_root_do_not_read_the_log_of_another(site, caller) -> None:
    first = await site.spawn(caller, "say secret", tree={"id": "apart"})
    await first.turn()
    ask = json.dumps({"session_id": first.session_id})
    second = await site.spawn(caller, f"call session_events {ask}", tree={"id": "apart"})
    outcome = await second.outcome()
    assert outcome["is_error"]
    assert "there is no session" in outcome["text"]


async def test_a_server_that_was_killed_counts_the_tree_as_before(zygote) -> None:
    tree = {"id": "kept", "limits": {"max_agents": 4, "max_agents_at_once": 2, "max_cost_usd": 1.0}}
    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        site = Site(server)
        token = site.principal()
        async with site.eyes, site.caller("http-auto", token=token) as caller:
            await site.open()
            rested = await site.spawn(caller, f"usage 0.5 10\n{below('say child')}", tree=tree)
            assert (await rested.outcome())["structured"]["result"] == "child"
            await site.spawn(caller, "sleep 60", tree=tree)
        await server.kill()
        await server.start()
        site = Site(server)
        async with site.eyes, site.caller("http-auto", token=token) as caller:
            site.project = {"id": (await caller.call("project_list"))["projects"][0]["id"]}
            last = await site.spawn(caller, "usage 0.35 10\nsleep 60", tree={"id": "kept"})
            told = await caller.call("config_limits", session_id=last.session_id)
            assert told["limits"]["max_agents"]["used"] == 4
            await last.event("system", kind="limit", limit="max_cost_usd")
            with pytest.raises(ToolFailed, match="max_agents"):
                await site.spawn(caller, "say no", tree=tree)
            await site.tidy()
