"""Many calls at once, whose answer counts, and how a call ends otherwise."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from tests.callers import HttpCaller, HttpError, ToolFailed
from tests.own_time import OwnTime
from tests.system.wire_client import WireClient

pytestmark = pytest.mark.anyio

REFUSED = "request not found or already resolved"


async def echo(n: int) -> dict[str, int]:
    """Give back what came."""
    return {"n": n}


async def slow_echo(n: int) -> dict[str, int]:
    """Take half a second."""
    await asyncio.sleep(0.5)
    return {"n": n}


TOOLS = {"echo": echo, "slow_echo": slow_echo}
CALL = 'call myapp_echo {"n": 7}'


def parallel(count: int, tool: str = "myapp_echo") -> str:
    calls = "\n".join(f"call {tool} {json.dumps({'n': n})}" for n in range(count))
    return f"parallel\n{calls}\nend"


async def answer(caller, event, **fields):
    return await caller.call(
        "caller_tool_response",
        **{"session_id": event["session_id"], "request_id": event["request_id"], **fields},
    )


async def pending(site, caller, prompt=CALL, count=1):
    """An agent with this many open calls, and their events."""
    await caller.listen()
    agent = await site.spawn(caller, prompt)
    await agent.event("caller_tool_request", nth=count)
    while len(caller.of("caller_tool_request")) < count:
        await caller.event(after=len(caller.events))
    return agent, caller.of("caller_tool_request")


# ---------------------------------------------------------------- at the same time


async def test_ten_calls_at_once_on_one_session_take_as_long_as_one(site, kind):
    """How long it takes in all is measured by `make bench`."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, parallel(10, "myapp_slow_echo"))
        own = OwnTime()
        outcomes = await agent.outcome()
    assert [outcome["structured"] for outcome in outcomes] == [{"n": n} for n in range(10)]
    longest = max(outcome["elapsed_ms"] for outcome in outcomes)
    assert own.ms_of(longest) < 1500  # one by one: 5000


async def test_answers_in_any_order_reach_the_right_call(site, kind):
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, events = await pending(site, caller, parallel(24), count=24)
        shuffled = random.Random(4).sample(events, len(events))
        for event in shuffled:
            await answer(caller, event, result={"for": event["arguments"]["n"]})
        outcomes = await agent.outcome()
    assert [outcome["structured"] for outcome in outcomes] == [{"for": n} for n in range(24)]


async def test_answers_at_the_same_time_reach_the_right_call(site):
    """Two sessions, all answers at once, mixed."""
    async with site.caller("http-auto", tools=TOOLS, answers=False) as caller:
        await caller.listen()
        agents = [await site.spawn(caller, parallel(16)) for _ in range(2)]
        for agent in agents:
            await agent.event("caller_tool_request", nth=16)
        async with asyncio.timeout(10):
            while len(caller.of("caller_tool_request")) < 32:
                await caller.event(after=len(caller.events))
        events = random.Random(5).sample(caller.of("caller_tool_request"), 32)
        await asyncio.gather(
            *(answer(caller, e, result=[e["session_id"], e["arguments"]["n"]]) for e in events)
        )
        for agent in agents:
            said = [json.loads(outcome["text"]) for outcome in await agent.outcome()]
            assert said == [[agent.session_id, n] for n in range(16)]


async def test_a_slow_call_holds_up_nothing_else_on_that_link(site, kind):
    """Calls, lists and children pass a call that waits."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            params = {"tool": "echo", "arguments": {"n": 0}}
            await link.send(
                {"jsonrpc": "2.0", "id": "slow", "method": "caller_tool", "params": params}
            )
            slow = await caller.event("caller_tool_request")
            for n in range(1, 4):
                place = len(caller.events)
                call = asyncio.ensure_future(
                    link.call("caller_tool", {"tool": "echo", "arguments": {"n": n}})
                )
                event = await caller.event("caller_tool_request", after=place)
                await answer(caller, event, result=n)
                assert (await call)["result"] == n
            child = await link.call("session_message", {"message": "say from below"})
            assert child["result"]["result"] == "from below"
            page = await link.call("session_events", {"session_id": child["result"]["session_id"]})
            assert page["result"]["completed"]
            await answer(caller, slow, result="at last")
            assert (await link.until(id="slow"))["result"] == "at last"


# ---------------------------------------------------------------- whose answer


@pytest.mark.parametrize("scope", ["write", "admin"])
async def test_an_answer_from_anybody_else_changes_nothing(site, kind, scope):
    """Only the owning principal, whatever else a key may do."""
    async with (
        site.caller(kind, tools=TOOLS, answers=False) as caller,
        site.caller(kind, token=site.principal(scope), tools=TOOLS, answers=False) as stranger,
    ):
        await stranger.listen()  # under the same caller_id
        agent, (event,) = await pending(site, caller)
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(stranger, event, result="mine")
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(stranger, event, error="mine")
        assert await answer(caller, event, result="the owner's") == {"accepted": True}
        assert (await agent.outcome())["text"] == "the owner's"
        assert stranger.of("caller_tool_request") == []


async def test_a_key_that_may_only_read_cannot_answer(site):
    """Even the owner's."""
    principal = "reader-and-owner"
    write = site.server.token("write", principal=principal)
    read = site.server.token("read", principal=principal)
    async with (
        site.caller("http-auto", token=write, tools=TOOLS, answers=False) as caller,
        site.caller("http-auto", token=read, answers=False) as reader,
    ):
        agent, (event,) = await pending(site, caller)
        with pytest.raises((ToolFailed, HttpError), match="not allowed"):
            await answer(reader, event, result="mine")
        await answer(caller, event, result="right")
        assert (await agent.outcome())["text"] == "right"


async def test_a_rotated_key_of_the_same_principal_may_answer(site, kind):
    """The caller is its principal, whatever the key or the connection."""
    principal = f"rotates-{kind}"
    old = site.server.token("write", principal=principal)
    async with site.caller(kind, token=old, tools=TOOLS, answers=False) as caller:
        agent, (event,) = await pending(site, caller)
        new = site.server.token("write", principal=principal)
        async with site.caller(kind, token=new) as renewed:
            await answer(renewed, event, result="with the new key")
        assert (await agent.outcome())["text"] == "with the new key"


async def test_an_answer_with_another_sessions_id_changes_nothing(site, kind):
    """Requests are scoped to their session."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        await caller.listen()
        agents = [await site.spawn(caller, CALL) for _ in range(2)]
        mine, other = [
            await caller.event("caller_tool_request", session_id=agent.session_id)
            for agent in agents
        ]
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(caller, mine, session_id=other["session_id"], result="crossed")
        gone = "gogol_" + "0" * 26
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(caller, mine, session_id=gone, result="crossed")
        await answer(caller, mine, result="mine")
        await answer(caller, other, result="other")
        assert [(await agent.outcome())["text"] for agent in agents] == ["mine", "other"]


@pytest.mark.parametrize(
    "wrong", ["", " ", "abc123", "gogol_xxx", "../../etc/passwd", "x\x00y", "é" * 300, "a" * 60_000]
)
async def test_what_is_no_id_gets_the_answer_of_what_is_not_known(site, kind, wrong):
    """Whichever of the two ids it is; what is open stays open."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, (event,) = await pending(site, caller)
        for named in ({"session_id": wrong}, {"request_id": wrong}):
            with pytest.raises(ToolFailed) as refused:
                await answer(caller, event, **named, result="wrong")
            assert str(refused.value) == REFUSED
        await answer(caller, event, result="right")
        assert (await agent.outcome())["text"] == "right"


async def test_a_second_answer_is_refused(site, kind):
    """The request id prevents replay."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, (event,) = await pending(site, caller)
        await answer(caller, event, result="first")
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(caller, event, result="second")
        assert (await agent.outcome())["text"] == "first"
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(caller, event, error="third")


async def test_of_two_answers_at_the_same_time_one_counts(site):
    async with site.caller("http-auto", tools=TOOLS, answers=False) as caller:
        agent, (event,) = await pending(site, caller)
        told = await asyncio.gather(
            *(answer(caller, event, result=f"try {n}") for n in range(8)), return_exceptions=True
        )
        won = [n for n, each in enumerate(told) if each == {"accepted": True}]
        assert len(won) == 1
        assert all(isinstance(each, ToolFailed) for n, each in enumerate(told) if n not in won)
        assert (await agent.outcome())["text"] == f"try {won[0]}"


# ---------------------------------------------------------------- ended, cancelled


async def test_ending_the_session_settles_what_is_pending(site, kind):
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, events = await pending(site, caller, parallel(3), count=3)
        ended = await caller.call("session_end", session_id=agent.session_id)
        assert ended["status"] == "completed"
        for event in events:
            settled = await caller.event("caller_tool_settled", request_id=event["request_id"])
            assert settled["outcome"] == "cancelled"
            with pytest.raises(ToolFailed, match=REFUSED):
                await answer(caller, event, result="too late")


async def test_cancelling_the_call_settles_it(site, kind):
    """The agent gives the call up, and goes on."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, (event,) = await pending(site, caller)
        await caller.call("session_interrupt", session_id=agent.session_id)
        settled = await caller.event("caller_tool_settled", request_id=event["request_id"])
        assert settled["outcome"] == "cancelled"
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(caller, event, result="too late")
        await agent.turn()
        caller.answers = True
        assert (await agent.ask(CALL))["structured"] == {"n": 7}


async def test_a_cancelled_notification_settles_that_call_alone(site):
    """`notifications/cancelled`; cancels of what is over are ignored."""
    async with site.caller("http-auto", tools=TOOLS, answers=False) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            for number in ("one", "two"):
                params = {"tool": "echo", "arguments": {"n": number}}
                await link.send(
                    {"jsonrpc": "2.0", "id": number, "method": "caller_tool", "params": params}
                )
            await agent.event("caller_tool_request", nth=2)
            one, two = caller.of("caller_tool_request")
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            for number in ("one", "one", "no such", None, 3):
                await link.send({**cancel, "params": {"requestId": number}})
            await link.send(cancel)
            settled = await caller.event("caller_tool_settled")
            assert (settled["request_id"], settled["outcome"]) == (one["request_id"], "cancelled")
            await answer(caller, two, result="two")
            reply = await link.receive()
            assert reply == {"jsonrpc": "2.0", "id": "two", "result": "two"}


async def test_a_crash_of_the_agent_settles_what_is_pending(site):
    """Nothing waits for an answer that nobody takes."""
    async with site.caller("http-auto", tools=TOOLS, answers=False) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            params = {"tool": "echo", "arguments": {"n": 1}}
            await link.send({"jsonrpc": "2.0", "id": 1, "method": "caller_tool", "params": params})
            event = await caller.event("caller_tool_request")
            await agent.say("crash 3")
            settled = await caller.event("caller_tool_settled", request_id=event["request_id"])
            assert settled["outcome"] == "cancelled"
        with pytest.raises(ToolFailed, match=REFUSED):
            await answer(caller, event, result="too late")


async def test_a_caller_answers_with_a_connection_that_never_listened(site):
    """Whatever the connection."""
    token = site.principal()
    async with (
        site.caller("sdk-auto", token=token, tools=TOOLS, answers=False) as caller,
        HttpCaller(site.server.url, token) as elsewhere,
    ):
        agent, (event,) = await pending(site, caller)
        await answer(elsewhere, event, result="from elsewhere")
        assert (await agent.outcome())["text"] == "from elsewhere"
