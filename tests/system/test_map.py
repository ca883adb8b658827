"""`session_map` and whole trees."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LONG = 60.0  # seconds


def mapping(messages, **more) -> str:
    return f"call session_map {json.dumps({'messages': messages, **more})}"


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


async def test_an_agent_fans_out_and_gathers_in_order(site, caller) -> None:
    """Partial failures are reported one by one; progress comes as events."""
    messages = ["say one", "fail too bad", {"message": "say three"}, "crash 3", "say five"]
    agent = await site.spawn(caller, mapping(messages, max_parallel=3))
    outcome = await agent.outcome(LONG)
    results = outcome["structured"]["results"]
    assert [each["status"] for each in results] == [
        "completed",
        "failed",
        "completed",
        "failed",
        "completed",
    ]
    assert [each["result"] for each in results] == ["one", None, "three", None, "five"]
    assert "too bad" in results[1]["error"]
    assert results[3]["error"]
    children = (await agent.get())["child_session_ids"]
    assert sorted(children) == sorted(each["session_id"] for each in results)
    progress = [event for event in agent.log if event["type"] == "session_map"]
    assert [event["done"] for event in progress] == [0, 1, 2, 3, 4, 5]
    assert (progress[-1]["total"], progress[-1]["failed"]) == (5, 2)


async def test_children_of_a_map_rest_when_they_have_answered_and_wake_up_when_spoken_to(
    site, caller
) -> None:
    agent = await site.spawn(caller, mapping(["remember word plum"]))
    (part,) = (await agent.outcome(LONG))["structured"]["results"]
    child = site.agent(part["session_id"])
    await child.event("status", status="completed")
    assert not site.server.agents(part["session_id"])
    again = {"message": "recall word", "session_id": part["session_id"]}
    outcome = await agent.ask(f"call session_message {json.dumps(again)}", LONG)
    assert outcome["structured"]["result"] == "plum"


async def test_a_map_keeps_to_the_limit_of_agents_at_once(site, caller) -> None:
    project = await site.new_project(limits={"max_agents_at_once": 2, "max_agents": 100})
    agent = await site.spawn(
        caller,
        mapping(["say x"] * 12, max_parallel=12),
        project_id=project["id"],
    )
    results = (await agent.outcome(LONG))["structured"]["results"]
    assert [each["result"] for each in results] == ["x"] * 12


async def test_what_a_limit_forbids_is_reported_for_its_part_alone(site, caller) -> None:
    project = await site.new_project(limits={"max_agents": 4})  # the parent is one of them
    agent = await site.spawn(
        caller, mapping(["say x"] * 5, max_parallel=1), project_id=project["id"]
    )
    results = (await agent.outcome(LONG))["structured"]["results"]
    assert [each["status"] for each in results] == ["completed"] * 3 + ["refused"] * 2
    assert "max_agents: the limit of this tree is 4 (set by the project)" in results[-1]["error"]


async def test_a_part_may_have_a_workspace_of_its_own(site, caller) -> None:
    agent = await site.spawn(
        caller,
        mapping([{"message": "exec pwd", "own_workspace": True}, "exec pwd"]),
        new_session=True,
    )
    results = (await agent.outcome(LONG))["structured"]["results"]
    own, shared = [json.loads(each["result"])["stdout"].strip() for each in results]
    assert shared.endswith(site.project["default_workspace_id"])
    assert own != shared


ANY = "gogol_" + "0" * 26


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "messages: is required; give an array"),
        ({"messages": []}, "messages: must not be empty"),
        ({"messages": [7]}, "messages[0]: must be a string or an object, not an integer"),
        (
            {"messages": ["a", {"text": "b"}]},
            "'text': unknown parameter; messages[1] takes: message, session_id, own_workspace",
        ),
        ({"messages": [{"message": "a", "session_id": "../x"}]}, "messages[0].session_id: '../x'"),
        (
            {"messages": [{"message": "a", "session_id": ANY, "own_workspace": True}]},
            "messages[0]: own_workspace is for new sessions; leave it out with session_id",
        ),
        ({"messages": ["a"], "max": 2}, "'max': unknown parameter; session_map takes: messages"),
        ({"messages": ["a"], "max_parallel": 0}, "max_parallel: must be"),
    ],
)
async def test_a_map_that_makes_no_sense_is_refused_by_name(site, caller, arguments, said) -> None:
    agent = await site.spawn(caller, f"call session_map {json.dumps(arguments)}")
    outcome = await agent.outcome()
    assert outcome["is_error"]
    assert said in outcome["text"]


async def test_a_map_outlives_a_killed_server(zygote) -> None:
    from oubliette.testing.server import ServerProcess
    from tests.system.site import Site

    async with ServerProcess(zygote=zygote) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            lent = {"wait": lambda: "done"}
            token = server.token("write")
            async with site.caller("http-auto", token=token, tools=lent, answers=False) as caller:
                await caller.listen()
                name = f"{caller.caller_id}_wait"
                agent = await site.spawn(
                    caller, mapping(["say quick", f"call {name} {{}}\nsay slow"])
                )
                await caller.event("caller_tool_request")
                cursor = caller.next
            await server.kill()
            await server.start()
            async with site.caller(
                "http-auto",
                token=token,
                caller_id=caller.caller_id,
                tools=lent,
            ) as caller:
                await caller.listen(after=cursor)
                results = (await agent.outcome(LONG))["structured"]["results"]
                assert [each["result"] for each in results] == ["quick", "slow"]
                assert len((await agent.get())["child_session_ids"]) == 2


async def test_a_caller_maps_over_http(site, caller) -> None:
    answer = await caller.call(
        "session_map",
        project_id=site.project["id"],
        messages=["say one", "fail too bad", {"message": "exec pwd", "create_workspace": True}],
        max_parallel=2,
    )
    first, second, third = answer["results"]
    assert (first["status"], first["result"]) == ("completed", "one")
    assert (second["status"], second["result"]) == ("failed", None)
    assert "too bad" in second["error"]
    assert site.project["default_workspace_id"] not in third["result"]
    for each in answer["results"]:
        record = await site.eyes.call("session_get", session_id=each["session_id"])
        assert record["status"] == "completed"
        assert record["parent_session_id"] is None


async def test_the_same_map_again_joins_the_sessions_that_it_has_started(site, caller) -> None:
    asked = {
        "project_id": site.project["id"],
        "messages": ["say one", "say two"],
        "idempotency_key": "the same",
    }
    first = await caller.call("session_map", **asked)
    second = await caller.call("session_map", **asked)
    assert first == second


async def test_a_callers_map_waits_for_room_among_its_own(zygote) -> None:
    from oubliette.testing.server import ServerProcess
    from tests.system.site import Site

    settings = {"sessions.max_live_per_project": 2}
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        site = Site(server)
        async with site.eyes:
            await site.open()
            async with site.caller("http-auto") as caller:
                answer = await caller.call(
                    "session_map",
                    project_id=site.project["id"],
                    messages=["say x"] * 6,
                    max_parallel=6,
                )
        assert [each["result"] for each in answer["results"]] == ["x"] * 6


@pytest.mark.whole
async def test_a_whole_tree_of_fifty_agents_ends_in_five_seconds(site, caller) -> None:
    """`session_end(tree=true)`: agents and their processes."""
    project = await site.new_project(
        limits={"max_agents": 100, "max_agents_at_once": 100, "max_depth": 2}
    )
    inner = mapping(["sleep 1000"] * 6)
    agent = await site.spawn(caller, mapping([inner] * 7), project_id=project["id"])
    root = agent.session_id

    async def tree() -> list[dict]:
        found = await site.eyes.call(
            "session_list",
            project_id=project["id"],
            exploration_id=(await agent.get())["exploration_id"],
        )
        return found["sessions"]

    async with asyncio.timeout(LONG):
        while True:  # each look waits for the next event of the tree
            sessions = await tree()
            busy = [each for each in sessions if site.server.agents(each["session_id"])]
            if len(busy) == 50:
                break
            await site.eyes.call(
                "session_events",
                session_id=root,
                include_children=True,
                since_index=2**40,
                wait_seconds=1,
            )
    began = time.monotonic()
    await agent.end(tree=True)
    took = time.monotonic() - began
    assert {each["status"] for each in await tree()} == {"completed"}
    assert not [each for each in sessions if site.server.agents(each["session_id"])]
    assert took < 5.0
