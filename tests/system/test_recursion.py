"""Recursion that cannot run away."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LONG = 60.0  # seconds


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


def message(text: str, **more: Any) -> str:
    return f"call session_message {json.dumps({'message': text, **more})}"


def at_once(lines: list[str]) -> str:
    return "\n".join(["parallel", *lines, "end"])


async def test_of_a_hundred_attempts_at_once_exactly_the_allowed_number_start(site, caller) -> None:
    """The others get an error that names the limit, its value and who set it."""
    project = await site.new_project(limits={"max_agents": 8, "max_agents_at_once": 200})
    agent = await site.spawn(caller, at_once([message("say x")] * 100), project_id=project["id"])
    outcomes = await agent.outcome(LONG)
    good = [each for each in outcomes if not each["is_error"]]
    refused = [each["text"] for each in outcomes if each["is_error"]]
    assert len(good) == 7  # and the parent
    assert len(refused) == 93
    assert all("max_agents: the limit of this tree is 8 (set by the project)" in t for t in refused)
    told = await caller.call("config_limits", session_id=agent.session_id)
    assert told["limits"]["max_agents"] == {
        "value": 8,
        "source": "project",
        "used": 8,
        "left": 0,
    }


async def test_of_many_attempts_at_once_no_more_than_allowed_work_at_the_same_time(
    site, caller
) -> None:
    project = await site.new_project(limits={"max_agents": 300, "max_agents_at_once": 4})
    agent = await site.spawn(
        caller,
        at_once([message("sleep 1000", wait=False)] * 100),
        project_id=project["id"],
    )
    outcomes = await agent.outcome(LONG)
    # The parent works too: it does not wait for them.
    assert sum(not each["is_error"] for each in outcomes) == 3
    assert len((await agent.get())["child_session_ids"]) == 3
    await agent.end(tree=True)


async def test_sessions_that_an_agent_starts_through_its_key_count_in_its_tree(
    site, caller
) -> None:
    project = await site.new_project(limits={"max_agents": 3, "max_depth": 1})
    spawn = json.dumps({"project_id": project["id"], "prompt": "say x", "new_session": True})
    agent = await site.spawn(
        caller,
        at_once([f"call oubliette_session_spawn {spawn}"] * 50),
        project_id=project["id"],
        api_key_scope="write",
    )
    outcomes = await agent.outcome(LONG)
    assert sum(not each["is_error"] for each in outcomes) == 2
    assert len((await agent.get())["child_session_ids"]) == 2


async def elsewhere(site, agent, project, prompt: str) -> Any:
    """The answer to an agent that starts a session in another project with its key."""
    spawn = json.dumps({"project_id": project["id"], "prompt": prompt, "new_session": True})
    return await agent.ask(f"call oubliette_session_spawn {spawn}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_depth", 0),
        pytest.param("max_agents", 1, marks=pytest.mark.whole),
        pytest.param("max_cost_usd", 0.01, marks=pytest.mark.whole),
    ],
)
async def test_a_session_started_from_another_project_keeps_the_limits_of_its_own(
    site, caller, name, value
) -> None:
    strict = await site.new_project(limits={name: value})
    wide = {"api_key_scope": "write", "api_key_project": "*"}
    agent = await site.spawn(caller, "usage 0.02 10", **wide)
    await agent.turn()
    refused = await elsewhere(site, agent, strict, "say no")
    assert f"{name}: the limit of this tree is {value} (set by the project)" in refused["text"]
    listed = await site.eyes.call("session_list", project_id=strict["id"])
    assert listed["sessions"] == []


async def test_of_two_projects_the_tighter_limits_hold_for_what_is_below_both(site, caller) -> None:
    first = await site.new_project(limits={"max_agents": 4, "max_turn_seconds": 100.0})
    second = await site.new_project(
        limits={"max_agents": 20, "max_turn_seconds": 1.0, "max_cost_usd": 2.0}
    )
    wide = {"api_key_scope": "write", "api_key_project": "*"}
    agent = await site.spawn(caller, "say here", project_id=first["id"], **wide)
    await agent.turn()
    outcome = await elsewhere(site, agent, second, "sleep 60")
    child = site.agent(outcome["structured"]["session_id"])
    told = await child.event("error", kind="limit")
    assert told["limit"] == "max_turn_seconds"
    shown = (await site.eyes.call("config_limits", session_id=child.session_id))["limits"]
    wanted = {
        "max_agents": (4, "tree"),
        "max_turn_seconds": (1.0, "project"),
        "max_cost_usd": (2.0, "project"),
        "max_depth": (3, "configuration"),
    }
    assert {name: (shown[name]["value"], shown[name]["source"]) for name in wanted} == wanted
    own = (await site.eyes.call("config_limits", session_id=agent.session_id))["limits"]
    assert (own["max_turn_seconds"]["value"], own["max_cost_usd"]["value"]) == (100.0, 10.0)


async def test_a_chain_of_waiting_parents_takes_no_place_from_its_leaf(site, caller) -> None:
    project = await site.new_project(limits={"max_agents_at_once": 1, "max_depth": 4})
    prompt = "say leaf"
    for _ in range(4):
        prompt = message(prompt)
    agent = await site.spawn(caller, prompt, project_id=project["id"])
    outcome = await agent.outcome(LONG)
    assert "leaf" in outcome["text"]


async def test_limits_that_are_near_are_told_at_eighty_percent(site, caller) -> None:
    project = await site.new_project(limits={"max_agents": 5, "max_cost_usd": 1.0})
    agent = await site.spawn(caller, "usage 0.5 10", project_id=project["id"])
    await agent.turn()

    def warnings() -> list[str]:
        return [each["message"] for each in agent.log if each.get("kind") == "limit"]

    assert warnings() == []
    await agent.say("\n".join([message("say 1")] * 2))
    await agent.turn()
    assert warnings() == []
    await agent.say(message("usage 0.3 10"))
    await agent.turn()
    await agent.event("system", kind="limit", limit="max_cost_usd")
    assert warnings() == [
        "max_agents of this tree: 4 of 5 are taken",
        "max_cost_usd of this tree: 0.8 of 1 are taken",
    ]
    await agent.say("usage 0.9 10")
    await agent.turn()
    await agent.say(message("say no"))
    outcome = await agent.outcome()
    assert "max_cost_usd: the limit of this tree is 1.0 (set by the project)" in outcome["text"]


async def test_a_grandchild_calls_a_tool_of_the_roots_caller_who_sees_the_ancestry(site) -> None:
    async with site.caller("http-auto", tools={"who": lambda: "you"}) as caller:
        await caller.listen()
        agent = await site.spawn(caller, message(message("call myapp_who {}")))
        asked = await caller.event("caller_tool_request", timeout=LONG)
        (child,) = (await agent.get())["child_session_ids"]
        (grandchild,) = (await site.agent(child).get())["child_session_ids"]
        assert asked["ancestry"] == [agent.session_id, child, grandchild]
        assert asked["session_id"] == grandchild
        assert "you" in (await agent.outcome(LONG))["text"]


@pytest.mark.whole
async def test_two_trees_with_equally_named_tools_never_mix(site) -> None:
    """Over 50 random interleavings; children inherit the caller's tools."""
    chance = random.Random(7)
    heard: dict[str, list[str]] = {"a": [], "b": []}

    def tool(side: str) -> Any:
        def mark(of: str) -> str:
            heard[side].append(of)
            return f"{side}:{of}"

        return mark

    def turn(side: str, number: int) -> tuple[str, list[str]]:
        """Some calls, of the root or of its children; all that they give."""
        lines: list[str] = []
        wanted: list[str] = []
        for place in range(chance.randint(1, 3)):
            mark = f"{side}{number}.{place}"
            call = f"call same_mark {json.dumps({'of': mark})}"
            lines.append(message(call) if chance.random() < 0.3 else call)
            wanted.append(mark)
        return at_once(lines), wanted

    async with (
        site.caller("http-auto", caller_id="same", tools={"mark": tool("a")}) as first,
        site.caller("sdk-legacy", caller_id="same", tools={"mark": tool("b")}) as second,
    ):
        await first.listen()
        await second.listen()
        project = await site.new_project(limits={"max_agents": 1000})
        agents = {
            side: await site.spawn(caller, "say ready", project_id=project["id"])
            for side, caller in (("a", first), ("b", second))
        }
        for agent in agents.values():
            await agent.turn()

        async def run(side: str, number: int) -> None:
            prompt, wanted = turn(side, number)
            await agents[side].say(prompt)
            (said,) = await agents[side].turn(LONG)
            for mark in wanted:
                assert f"{side}:{mark}" in said
            assert ("b:" if side == "a" else "a:") not in said

        for number in range(50):
            sides = ["a", "b"]
            chance.shuffle(sides)
            await asyncio.gather(*(run(side, number) for side in sides))
        for side, marks in heard.items():
            assert marks
            assert all(mark.startswith(side) for mark in marks)
            assert len(set(marks)) == len(marks)


async def test_ending_a_tree_settles_what_its_children_had_pending(site) -> None:
    tools = {"wait": lambda: "never"}
    async with site.caller("http-auto", tools=tools, answers=False) as caller:
        await caller.listen()
        agent = await site.spawn(caller, message("call myapp_wait {}"))
        asked = await caller.event("caller_tool_request", timeout=LONG)
        await agent.end(tree=True)
        settled = await caller.event("caller_tool_settled", request_id=asked["request_id"])
        assert settled["outcome"] == "cancelled"
        (child,) = (await agent.get())["child_session_ids"]
        assert (await site.agent(child).get())["status"] == "completed"
        assert not site.server.agents(child)
