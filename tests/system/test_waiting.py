"""Who waits on what, asked of a whole server: `waiting` of session_get."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

pytestmark = pytest.mark.anyio

SETTINGS = {
    "sessions.idle_timeout_seconds": 900.0,
    "sessions.caller_tool_timeout_seconds": 40.0,
    "sessions.permission_timeout_seconds": 50.0,
    "agents.silence_timeout_seconds": 300.0,
    "callers.poll_grace_seconds": 0.5,
}
SOON = 20.0  # seconds in which a session comes to wait for what it is told to


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def never(**_: object) -> None:
    """A tool whose answer does not come while the test runs."""
    await asyncio.sleep(600)


async def waits(agent, *kinds: str) -> list[dict]:
    """What the session waits for, once that is of these kinds; looks again at each event."""
    async with asyncio.timeout(SOON):
        while True:
            found = (await agent.get())["waiting"]
            if [wait["kind"] for wait in found] == list(kinds):
                return found
            await agent.read(wait=0.5)


def child(prompt: str, **more: object) -> str:
    return f"call session_message {json.dumps({'message': prompt, **more})}"


@pytest.fixture
async def caller(site):
    async with site.caller("http-auto") as caller:
        yield caller


async def test_a_session_at_rest_waits_for_a_message_until_its_idle_timeout(site, caller):
    agent = await site.spawn(caller, "say hello")
    await agent.turn()
    (wait,) = await waits(agent, "message")
    assert wait["until"] - wait["since"] == pytest.approx(900.0)
    assert abs(wait["since"] - time.time()) < SOON


async def test_a_turn_that_runs_waits_for_its_model(site, caller):
    agent = await site.spawn(caller, "say first\nsleep 600")
    said = await agent.event("message")
    (wait,) = await waits(agent, "model")
    turn = await agent.event("status", status="running")
    assert wait["since"] == pytest.approx(turn["ts"], abs=1.0)
    assert wait["last_event_at"] >= said["ts"] - 1.0
    assert wait["until"] - wait["last_event_at"] == pytest.approx(300.0, abs=0.01)


async def test_a_tool_of_the_agents_own_is_named(site, caller):
    agent = await site.spawn(caller, "say hello")
    await agent.turn()
    mine = {"session_id": agent.session_id, "since_index": 1000, "wait_seconds": 600}
    await agent.say(f"call session_events {json.dumps(mine)}")
    (wait,) = await waits(agent, "tool")
    called = await agent.event("tool_call")
    assert wait["what"] == "its own tool session_events"
    assert wait["since"] == pytest.approx(called["ts"], abs=1.0)


async def test_the_tool_of_a_caller_that_is_there(site):
    async with site.caller("http-auto", tools={"add": never}) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "call myapp_add {}")
        (wait,) = await waits(agent, "caller_tool")
        asked = await agent.event("caller_tool_request")
    assert wait["what"] == "add, a tool of the caller myapp"
    assert (wait["caller_id"], wait["caller_present"]) == ("myapp", True)
    assert wait["until"] == asked["deadline"]
    assert wait["until"] - wait["since"] == pytest.approx(40.0)
    assert asked["request_id"] in wait["detail"]


async def test_the_tool_of_a_caller_that_is_away(site):
    """It lends a durable tool, and has never listened."""
    async with site.caller("http-auto", caller_id="absent") as caller:
        tool = {"name": "add", "description": "Add.", "inputSchema": {}, "durable": True}
        context = {"caller_id": "absent", "caller_tools": [tool]}
        agent = await site.spawn(caller, "call absent_add {}", context=context)
        (wait,) = await waits(agent, "caller_tool")
        async with asyncio.timeout(SOON):
            while wait["caller_present"]:  # the spawn was a sign of life, half a second ago
                await agent.read(wait=0.2)
                (wait,) = await waits(agent, "caller_tool")
        assert wait["caller_id"] == "absent"
        assert "caller absent is not connected: it does not listen" in wait["detail"]


async def test_a_decision_is_waited_for_until_its_deadline(site, caller):
    await caller.listen()
    agent = await site.spawn(caller, "ask may I?")
    (wait,) = await waits(agent, "permission")
    asked = await agent.event("permission_request")
    assert wait["what"] == "a decision on may I?"
    assert (wait["until"], wait["caller_id"]) == (asked["deadline"], "myapp")
    assert wait["caller_present"] is True
    assert asked["request_id"] in wait["detail"]


async def test_a_parent_waits_for_its_child_which_waits_for_somebody_else(site, caller):
    await caller.listen()
    agent = await site.spawn(caller, child("ask may I?"))
    async with asyncio.timeout(SOON):
        while True:
            (wait,) = await waits(agent, "child")
            if wait["session_id"]:
                break
            await agent.read(wait=0.5)
    assert wait["until"] is None
    assert abs(wait["since"] - time.time()) < 2 * SOON
    below = site.agent(wait["session_id"])
    (deep,) = await waits(below, "permission")
    assert deep["caller_id"] == "myapp"


async def test_parts_of_a_map_wait_for_places(site, caller):
    messages = ["sleep 600"] * 3
    call = json.dumps({"messages": messages, "max_parallel": 1})
    agent = await site.spawn(caller, f"call session_map {call}")
    _, place = await waits(agent, "child", "place")
    assert place["what"] == "places for 2 of 3 messages of a session_map, 1 at a time"
    assert place["since"] is not None


async def test_several_things_at_once_are_all_told(site):
    async with site.caller("http-auto", tools={"add": never}) as caller:
        await caller.listen()
        prompt = f"parallel\ncall myapp_add {{}}\n{child('sleep 600')}\nend"
        agent = await site.spawn(caller, prompt)
        await waits(agent, "caller_tool", "child")


async def test_an_ended_session_says_why_it_ended(site, caller):
    agent = await site.spawn(caller, "say hello")
    await agent.turn()
    await agent.end()
    (wait,) = await waits(agent, "ended")
    assert wait["what"].startswith("nothing: it has completed")
    assert wait["since"] == (await agent.get())["ended_at"]


async def test_what_a_session_waits_for_survives_the_server(site, caller):
    """The times are those of before: read from the log, not from the new server's start."""
    await caller.listen()
    asking = await site.spawn(caller, "ask may I?")
    working = await site.spawn(caller, "say first\nsleep 600")
    await working.event("message")
    before = {
        agent.session_id: (await waits(agent, kind))[0]["since"]
        for agent, kind in ((asking, "permission"), (working, "model"))
    }
    await site.server.kill()
    await site.server.start()
    for agent, kind in ((asking, "permission"), (working, "model")):
        (wait,) = await waits(agent, kind)
        assert wait["since"] == pytest.approx(before[agent.session_id], abs=0.5)
