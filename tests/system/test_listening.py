"""Cursors, redelivery, who listens last, and what is too large."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.callers import HttpCaller, ToolFailed
from tests.system.wire_client import WireClient

pytestmark = pytest.mark.anyio


def echo(text: str = "") -> dict[str, str]:
    """Give back what came."""
    return {"text": text}


TOOLS = {"echo": echo}


def numbered(count: int) -> str:
    return "\n".join(f"say {n}" for n in range(count))


async def answer(caller, event, **fields):
    return await caller.call(
        "caller_tool_response",
        session_id=event["session_id"],
        request_id=event["request_id"],
        **fields,
    )


async def test_resuming_leaves_no_gap_and_repeats_nothing(site, kind):
    """`caller_listen(after=…)`, with the caller cut off again and again."""
    token = site.principal()
    seen, cursor, agent = [], None, None
    while not any(event["type"] == "completion" for event in seen):
        async with site.caller(kind, token=token, tools=TOOLS) as caller:
            await caller.listen(after=cursor)
            if agent is None:
                agent = await site.spawn(caller, numbered(150))
            await caller.event(after=1)  # the first is `listening`
        # Only now: what was on its way to it has come or is lost.
        seen += [event for event in caller.events if "index" in event]
        cursor = seen[-1]["seq"]
    await agent.turn()
    assert seen == agent.log[: len(seen)]
    assert [event["index"] for event in seen] == list(range(len(seen)))


async def test_the_cursor_of_another_life_goes_on_from_the_log(site, kind):
    """A new client with the old cursor gets exactly what it has not had."""
    token = site.principal()
    async with site.caller(kind, token=token, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, numbered(3))
        await caller.event("completion")
        await caller.stop_listening()
        cursor = caller.next
        had = [event["index"] for event in caller.events if "index" in event]
        await agent.say(numbered(3))
        await agent.event("completion", nth=2)
    async with site.caller(kind, token=token, tools=TOOLS) as later:
        await later.listen(after=cursor)
        await later.event("status", status="idle")
        got = [event["index"] for event in later.events if "index" in event]
    assert had + got == list(range(len(agent.log)))


async def test_on_resume_open_requests_come_again_and_settled_ones_do_not(site, kind):
    """Settled requests are skipped, open ones carry `redelivered: true`."""
    calls = 'parallel\ncall myapp_echo {"text": "a"}\ncall myapp_echo {"text": "b"}\nend'
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        await caller.listen()
        before = caller.next
        agent = await site.spawn(caller, calls)
        await agent.event("caller_tool_request", nth=2)
        first, second = [
            await caller.event("caller_tool_request", arguments={"text": text}) for text in "ab"
        ]
        assert "redelivered" not in first
        await answer(caller, first, result=1)
        await caller.stop_listening()
        place = len(caller.events)
        await caller.listen(after=before)
        again = await caller.event("caller_tool_request", after=place)
        assert again["request_id"] == second["request_id"]
        assert again["redelivered"] is True
        await answer(caller, again, result=2)
        outcomes = await agent.outcome()
        assert [outcome["text"] for outcome in outcomes] == ["1", "2"]
        later = [e for e in caller.events[place:] if e["type"] == "caller_tool_request"]
        assert [e["request_id"] for e in later] == [second["request_id"]]


async def test_a_second_listener_supersedes_the_first(site, kind):
    """Per (principal, caller_id) one lending listener, the newest wins."""
    token = site.principal()
    async with (
        site.caller(kind, token=token, tools=TOOLS, answers=False) as first,
        site.caller(kind, token=token, tools=TOOLS) as second,
    ):
        await first.listen()
        await second.listen()
        assert await first.listener_ended() == "superseded"
        agent = await site.spawn(second, 'call myapp_echo {"text": "x"}')
        assert (await agent.outcome())["structured"] == {"text": "x"}
        assert first.of("caller_tool_request") == []
        # What the first was told goes on from its cursor, if it listens again.
        await first.listen(after=first.next)
        assert await second.listener_ended() == "superseded"


async def test_a_listener_of_another_principal_supersedes_nobody(site, kind):
    """A `caller_id` is its principal's own."""
    async with (
        site.caller(kind, tools=TOOLS) as caller,
        site.caller(kind, tools=TOOLS, answers=False) as stranger,
    ):
        await caller.listen()
        await stranger.listen()
        agent = await site.spawn(caller, 'call myapp_echo {"text": "x"}')
        assert (await agent.outcome())["structured"] == {"text": "x"}
        assert [e for e in stranger.events if "session_id" in e] == []
        with pytest.raises(TimeoutError):
            await caller.listener_ended(timeout=0.1)


async def test_an_observer_sees_all_but_tool_requests(site, kind):
    """`observe: true`."""
    token = site.principal()
    async with (
        site.caller(kind, token=token, tools=TOOLS) as caller,
        site.caller(kind, token=token) as observer,
    ):
        await caller.listen()
        await observer.listen(observe=True)
        agent = await site.spawn(caller, 'call myapp_echo {"text": "x"}')
        await observer.event("completion", session_id=agent.session_id)
        kinds = {event["type"] for event in observer.events}
        assert "caller_tool_request" not in kinds
        assert {"tool_call", "tool_result", "caller_tool_settled", "message"} <= kinds


async def test_a_listener_ends_after_the_seconds_it_asked_for(site, kind):
    """After `max_seconds` it says where to go on."""
    async with site.caller(kind, tools=TOOLS) as caller:
        async with asyncio.timeout(5):
            page = await caller.call("caller_listen", caller_id="myapp", max_seconds=0.2)
        assert page["ended"] == "max_seconds"
        assert page["next"] >= 0


async def test_a_large_event_does_not_kill_the_stream_and_is_read_whole(site, kind):
    """2 MB, of which clients of the SDK take 1 MiB at once."""
    size = 2_000_000
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, f'emit 1 {size}\ncall myapp_echo {{"text": "on"}}')
        large = await caller.event("delta")
        assert "text" not in large
        assert large["ref"] == {"session_id": agent.session_id, "index": large["index"]}
        assert large["size"] >= size
        whole = await caller.whole(large)
        assert len(whole["text"]) == size
        assert whole["text"].startswith("0 ...")
        outcome = json.loads((await agent.turn(timeout=30))[-1])
        assert outcome["structured"] == {"text": "on"}
        with pytest.raises(TimeoutError):
            await caller.listener_ended(timeout=0.05)


async def test_large_arguments_and_a_large_result_pass(site, kind):
    """A 2 MB request comes by reference, is read and answered with 2 MB."""
    text = "x" * 2_000_000
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            reply = await link.call("caller_tool", {"tool": "echo", "arguments": {"text": text}})
        assert reply["result"] == {"text": text}
        (event,) = caller.of("caller_tool_request")
        assert event["tool"] == "echo"
        assert "ref" in event


async def test_a_listener_lends_its_tools_to_sessions_that_name_only_the_caller(site, kind):
    """`caller_listen(caller_tools)`; a spawn with the caller_id alone uses them."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(
            caller, 'call myapp_echo {"text": "lent"}', context={"caller_id": "myapp"}
        )
        assert (await agent.outcome())["structured"] == {"text": "lent"}


async def test_one_listener_too_many_names_the_limit(site):
    """16 listeners for each principal; the sessions go on."""
    token = site.principal()
    callers = []
    try:
        for n in range(16):
            caller = site.caller("http-auto", token=token, caller_id=f"c{n}")
            await caller.__aenter__()
            callers.append(caller)
            await caller.listen()
        async with site.caller("http-auto", token=token, caller_id="more") as more:
            with pytest.raises(ToolFailed, match="callers.max_listeners"):
                await more.listen()
    finally:
        for caller in callers:
            await caller.__aexit__()


async def test_a_cursor_of_another_server_does_not_deafen_the_listener(site, kind):
    """A cursor beyond the end of the log is its end, not a wait for what never comes."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen(after=10**12)
        agent = await site.spawn(caller, 'call myapp_echo {"text": "heard"}')
        assert (await agent.outcome())["structured"] == {"text": "heard"}
        assert caller.of("caller_tool_request")[0]["seq"] < 10**12


async def test_a_long_history_is_read_from_the_log_in_order(site, kind):
    """More than is held in memory, from the first event on, while more comes."""
    token = site.principal()
    async with (
        site.caller("http-auto", token=token) as owner,  # whose spawn binds no GET stream
        site.caller(kind, token=token) as caller,
    ):
        agent = await site.spawn(owner, "emit 2500 200")
        await agent.turn()
        await caller.listen(after=0)
        await agent.say("say and more")
        await caller.event("message", text="and more", timeout=20)
        indexes = [event["index"] for event in caller.events if "index" in event]
        assert indexes == list(range(len(indexes)))
        assert len(indexes) > 2500


async def test_a_key_of_one_project_hears_of_no_other(site, kind):
    """A bound key of the same owner, at every way to listen; project by the record."""
    mine, other = await site.new_project(), await site.new_project()
    owner = f"bound-{kind}"
    wide = site.server.token("write", principal=owner)
    bound = site.server.token(f"project:{mine['id']}", principal=owner)
    call = 'call myapp_echo {"text": "x"}'
    async with (
        site.caller(kind, token=wide, tools=TOOLS, answers=False) as caller,
        site.caller(kind, token=bound, tools=TOOLS) as narrow,
    ):
        hidden = await site.spawn(caller, call, project_id=other["id"])
        await hidden.event("caller_tool_request")
        await narrow.listen(after=0)  # the log, and open requests
        shown = await site.spawn(caller, call, project_id=mine["id"])
        assert (await shown.outcome())["structured"] == {"text": "x"}
        await hidden.end()
        await narrow.event("completion", session_id=shown.session_id)
        told = {event["session_id"] for event in narrow.events if "session_id" in event}
        assert told == {shown.session_id}
        await narrow.stop_listening()
        await caller.listen(after=0)
        await caller.event("status", session_id=hidden.session_id, status="completed")


async def test_the_mcp_session_of_a_key_ends_with_it_and_so_does_its_stream(site):
    key = site.server.token("read")
    token_id = key.removeprefix("oub_")[:30]
    async with HttpCaller(site.server.url, key, mode="legacy") as caller, asyncio.timeout(30):
        async with caller.http.request("GET") as stream:
            assert stream.status == 200
            await site.eyes.call("token_revoke", token_id=token_id)
            await stream.body()  # until its end


async def test_a_key_of_one_project_takes_over_no_other(site):
    """The caller of a wide key goes on in all other projects, and there with its own tools."""
    mine, other = await site.new_project(), await site.new_project()
    owner = "narrow-and-wide"
    wide = site.server.token("write", principal=owner)
    bound = site.server.token(f"project:{mine['id']}", principal=owner)
    call = 'call myapp_echo {"text": "x"}'
    theirs = {"echo": lambda text="": {"text": f"narrow {text}"}}
    async with (
        site.caller("http-auto", token=wide, tools=TOOLS) as caller,
        site.caller("http-auto", token=bound, tools=theirs) as narrow,
    ):
        await caller.listen()
        await narrow.listen()
        named = {"name": "evil", "description": "of the narrow key"}
        await narrow.call("caller_listen", caller_id="spare", max_seconds=0.1, caller_tools=[named])
        for project, text in ((other, "x"), (mine, "narrow x")):
            agent = await site.spawn(caller, call, project_id=project["id"])
            assert (await agent.outcome())["structured"] == {"text": text}
        for key, project, tools in (
            (caller, other, []),
            (caller, mine, ["spare_evil"]),
            (narrow, mine, ["spare_evil"]),
        ):
            agent = await site.spawn(
                key, "tools", project_id=project["id"], context={"caller_id": "spare"}
            )
            names = json.loads((await agent.turn())[-1])
            assert [name for name in names if "evil" in name] == tools
