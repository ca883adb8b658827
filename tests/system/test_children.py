"""Children and lent tools on a live session."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.own_time import OwnTime
from tests.system.wire_client import WireClient

pytestmark = pytest.mark.anyio


def below(prompt: str, **more: object) -> str:
    return f"call session_message {json.dumps({'message': prompt, **more})}"


def whoami(n: int = 0) -> int:
    """Give back what came."""
    return n


FAILING = "say part\nfail no such luck"
TOOLS = {"whoami": whoami}
CALL = 'call myapp_whoami {"n": 1}'


# ---------------------------------------------------------------- children


async def test_children_inherit_the_callers_tools_and_call_under_their_own_id(site, kind):
    """Calls of children carry the child's session id and the ancestry."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, below(f"{below(CALL)}\n{CALL}"))
        outcome = await agent.outcome()
        assert not outcome["is_error"], outcome
        grandchild, child = caller.of("caller_tool_request")
        root_id, child_id = agent.session_id, outcome["structured"]["session_id"]
        assert child["session_id"] == child_id
        assert child["ancestry"] == [root_id, child_id]
        assert grandchild["ancestry"] == [root_id, child_id, grandchild["session_id"]]
        assert json.loads(outcome["structured"]["result"])["text"] == "1"
        events = {event["session_id"] for event in caller.events if "index" in event}
        assert events == {root_id, child_id, grandchild["session_id"]}


async def test_the_result_of_a_child_reaches_its_parents_agent(site):
    """When the child's turn is done: session_id, result, spawned."""
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, below("say one\nsay the last word"))
        outcome = await agent.outcome()
        result = outcome["structured"]
        assert set(result) == {"session_id", "result", "spawned"}
        assert (result["result"], result["spawned"]) == ("the last word", True)
        child = site.agent(result["session_id"])
        record = await child.get()
        assert (record["parent_session_id"], record["depth"]) == (agent.session_id, 1)
        assert (await agent.get())["child_session_ids"] == [result["session_id"]]


async def test_a_child_goes_on_when_it_is_spoken_to_again(site):
    """`session_message` with {message, session_id}."""
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, below("remember it 42"))
        child = (await agent.outcome())["structured"]["session_id"]
        again = await agent.ask(below("recall it", session_id=child))
        assert again["structured"] == {"session_id": child, "result": "42", "spawned": False}


async def test_two_children_work_at_the_same_time(site):
    """Requests run side by side."""
    async with site.caller("http-auto") as caller:
        one = below("sleep 1\nsay a")
        own = OwnTime()
        agent = await site.spawn(caller, f"parallel\n{one}\n{one}\n{one}\nend")
        outcomes = await agent.outcome()
        assert [outcome["structured"]["result"] for outcome in outcomes] == ["a", "a", "a"]
        assert own.ms_of(max(outcome["elapsed_ms"] for outcome in outcomes)) < 2600


async def test_without_waiting_the_call_returns_at_once_and_the_child_is_followed(site):
    """`wait: false`; `completed` in session_events is the end of the last turn."""
    async with site.caller("http-auto") as caller:
        own = OwnTime()
        agent = await site.spawn(caller, below("sleep 1\nsay later", wait=False))
        outcome = await agent.outcome()
        assert outcome["structured"]["result"] is None
        assert outcome["structured"]["spawned"] is True
        assert own.ms_of(outcome["elapsed_ms"]) < 900
        child = outcome["structured"]["session_id"]
        last, said, page = -1, [], {}
        began = time.monotonic()
        while not page.get("completed"):
            assert time.monotonic() - began < 10
            asked = {"session_id": child, "since_index": last, "wait_seconds": 5}
            outcome = await agent.ask(f"call session_events {json.dumps(asked)}")
            page = outcome["structured"]
            last = page["last_index"]
            said += [event["text"] for event in page["events"] if event["type"] == "message"]
        assert said == ["slept", "later"]
        assert page["final_response"] == "later"
        assert not page["failed"]
        ended = await caller.call("session_end", session_id=agent.session_id)
        assert (ended["status"], ended["living_descendants"]) == ("completed", 1)
        ended = await caller.call("session_end", session_id=agent.session_id, tree=True)
        assert ended["living_descendants"] == 0


async def test_the_failure_of_a_child_is_an_error_for_its_parent(site):
    """Business failures are isError, and say why."""
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, f"{below(FAILING)}\n{below('crash 9')}")
        failed, crashed = [json.loads(text) for text in await agent.turn()]
        assert failed["is_error"]
        child = site.agent((await agent.get())["child_session_ids"][0])
        assert failed["text"] == f"the turn of child {child.session_id} failed: no such luck"
        assert crashed["is_error"]
        assert "failed" in crashed["text"]


async def test_an_agent_reaches_only_its_own_children(site):
    """Not its siblings', not itself, not another tree's sessions."""
    async with site.caller("http-auto") as caller:
        other = await site.spawn(caller, "say hi")
        await other.turn()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        for target in (other.session_id, agent.session_id, "gogol_" + "0" * 26):
            outcome = await agent.ask(below("say caught", session_id=target))
            assert outcome["is_error"], target
            assert "session" in outcome["text"]
        outcome = await agent.ask(
            f"call session_events {json.dumps({'session_id': other.session_id})}"
        )
        assert outcome["is_error"]
        assert (await other.get())["turn_count"] == 1


async def test_bad_arguments_of_an_agent_name_their_field(site):
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        for call, named in [
            ("session_message {}", "message"),
            ('session_message {"message": 5}', "message"),
            ('session_message {"message": ""}', "message"),
            ('session_message {"message": "x", "session_id": 5}', "session_id"),
            ('session_message {"message": "x", "session_id": "no"}', "session_id"),
            ('session_message {"message": "x", "wait": "yes"}', "wait"),
            ("session_events {}", "session_id"),
            ('session_events {"session_id": "no"}', "session_id"),
            ('session_events {"session_id": "gogol_%s", "since_index": "x"}' % ("0" * 26), "since"),
        ]:
            outcome = await agent.ask(f"call {call}")
            assert outcome["is_error"], call
            assert named in outcome["text"], call
        assert (await agent.get())["child_session_ids"] == []


async def test_cancelling_a_call_for_a_child_leaves_the_child_alone(site):
    """A child is a full session; its parent's turn may end without it."""
    async with site.caller("http-auto") as caller:
        agent = await site.spawn(caller, below("sleep 1.5\nsay finished"))
        async with asyncio.timeout(10):
            while not (children := (await agent.get())["child_session_ids"]):
                await agent.read(wait=0.1)
        child = site.agent(children[0])
        await child.event("status", status="running")
        await caller.call("session_interrupt", session_id=agent.session_id)
        assert (await agent.event("completion"))["status"] == "interrupted"
        assert (await child.event("completion"))["final_text"] == "finished"
        await agent.say("say unharmed")
        assert (await agent.event("completion", nth=2))["final_text"] == "unharmed"


async def test_children_see_new_tools_of_their_parents_caller(site):
    """A child started later inherits the set that its parent has then."""
    async with site.caller("http-auto", tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, below("tools"))
        names = json.loads((await agent.outcome())["structured"]["result"])
        assert "myapp_whoami" in names
        caller.specs = [{"name": "fresh"}]
        outcome = await agent.ask(below("tools"), context=caller.context)
        names = json.loads(outcome["structured"]["result"])
        assert "myapp_fresh" in names
        assert "myapp_whoami" not in names


# ---------------------------------------------------------------- tools on a live session


async def test_new_caller_tools_replace_the_set_and_the_agent_sees_the_change(site, kind):
    """Configuration again, `tools/list_changed` to the agent."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "tools")
        assert "myapp_whoami" in await agent.outcome()
        caller.specs = [{"name": "second", "description": "Another."}]
        caller.tools = {"second": lambda: "the second"}
        await agent.say(
            "await-tool myapp_second 5\ntools\ncall myapp_second {}", context=caller.context
        )
        there, names, called = [json.loads(text) for text in await agent.turn()]
        assert there is True
        assert "myapp_second" in names
        assert "myapp_whoami" not in names
        assert called["text"] == "the second"


async def test_the_change_is_announced_in_the_generation_of_the_agent(site):
    """Seen by `oubliette-client`'s own client, without asking."""
    async with site.caller("http-auto", tools=TOOLS) as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.mcp_server(site, agent.session_id) as client:
            names = [tool["name"] for tool in await client.list_tools()]
            assert "myapp_whoami" in names
            caller.specs = []
            await agent.say("say again", context=caller.context)
            note = await client.until(method="notifications/tools/list_changed")
            assert "id" not in note
            names = [tool["name"] for tool in await client.list_tools()]
            assert [name for name in names if name.startswith("myapp_")] == []


async def test_the_same_tools_again_are_no_change(site):
    """Sent whenever the set changes, and only then."""
    async with site.caller("http-auto", tools=TOOLS) as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            await agent.say("say again", context=caller.context)
            await agent.turn()
            caller.specs = [{"name": "other"}]
            await agent.say("say more", context=caller.context)
            config = await link.config()
            assert [tool["name"] for tool in config["params"]["tools"]] == ["other"]


async def test_another_caller_of_the_same_owner_brings_its_own_tools(site):
    """It never comes to lend what is somebody else's, under its own name."""
    token = site.principal()
    async with (
        site.caller("http-auto", token=token, tools=TOOLS) as first,
        site.caller("http-auto", token=token, caller_id="second") as second,
    ):
        await first.listen()
        await second.listen()
        agent = await site.spawn(first, "tools")
        assert "myapp_whoami" in await agent.outcome()
        agent.caller = second
        names = await agent.ask("tools", context={"caller_id": "second"})
        assert [name for name in names if "whoami" in name and not name.startswith("myapp_")] == []


async def test_a_later_caller_does_not_take_over_what_the_first_was_asked(site):
    """Earlier pushes stay with the caller that was asked."""
    token = site.principal()
    async with (
        site.caller("http-auto", token=token, tools=TOOLS, answers=False) as first,
        site.caller(
            "http-auto", token=token, caller_id="second", tools={"x": whoami}, answers=False
        ) as second,
    ):
        await first.listen()
        await second.listen()
        agent = await site.spawn(first, CALL)
        event = await first.event("caller_tool_request")
        agent.caller = second
        await agent.say("call second_x {}", context=second.context)
        await first.call(
            "caller_tool_response",
            session_id=agent.session_id,
            request_id=event["request_id"],
            result="from the first",
        )
        assert (await agent.outcome())["text"] == "from the first"
        settled = await first.event("caller_tool_settled")
        assert settled["request_id"] == event["request_id"]
        asked = await second.event("caller_tool_request")
        assert asked["tool"] == "x"
        await second.call(
            "caller_tool_response",
            session_id=agent.session_id,
            request_id=asked["request_id"],
            result="from the second",
        )
        assert (await agent.outcome())["text"] == "from the second"
        assert len(first.of("caller_tool_request")) == 1
        assert len(second.of("caller_tool_request")) == 1
