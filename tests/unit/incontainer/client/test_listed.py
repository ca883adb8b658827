"""`oubliette-client` says when the agent has fetched the tools of a configuration."""

from __future__ import annotations

import json

import pytest

from tests.unit.incontainer.fake_server import (
    ADD,
    META,
    FakeServer,
    RawAgent,
    config_line,
    config_params,
)

pytestmark = pytest.mark.anyio

LATE = {"name": "late", "description": "Lent late", "inputSchema": {"type": "object"}}
CHANGED = "notifications/tools/list_changed"


async def test_an_agent_that_has_listed_nothing_yet_has_no_older_list():
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        link.config(ADD, revision=1)
        told = (await link.request("tools_listed"))["params"]
        assert told == {"revision": 1, "fetched": False}
        await agent.tool_names()
        told = (await link.request("tools_listed"))["params"]
        assert told == {"revision": 1, "fetched": True}


async def test_an_agent_that_is_notified_has_the_tools_once_it_has_fetched_them():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        link.config(ADD, LATE, revision=2)
        await agent.note_of(CHANGED)
        agent.call("session_message", message="before the list")
        assert (await link.receive())["method"] == "session_message"  # and nothing before it
        assert "ant_late" in await agent.tool_names()
        assert (await link.receive())["params"] == {"revision": 2, "fetched": True}


async def test_a_subscriber_of_the_newer_generation_is_waited_for_too():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.ask_modern("tools/list")
        wanted = {"toolsListChanged": True}
        agent.start("subscriptions/listen", notifications=wanted, _meta=META)
        await agent.note_of("notifications/subscriptions/acknowledged")
        link = await server.link()
        link.config(ADD, LATE, revision=3)
        await agent.note_of(CHANGED)
        await agent.ask_modern("tools/list")
        assert (await link.receive())["params"] == {"revision": 3, "fetched": True}


async def test_a_configuration_that_changes_nothing_is_listed_already():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        link.config(ADD, revision=4)
        assert (await link.receive())["params"] == {"revision": 4, "fetched": True}


async def test_of_two_configurations_before_the_list_the_newer_one_is_told():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        link.config(ADD, LATE, revision=5)
        link.config(ADD, LATE, revision=6)
        call = agent.call("session_message", message="answered behind the configurations")
        link.answer(await link.request(), "done")
        await agent.reply(call)
        await agent.tool_names()
        assert (await link.receive())["params"] == {"revision": 6, "fetched": True}


async def test_a_server_that_numbers_nothing_is_told_nothing():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        link.config(ADD, LATE)
        await agent.note_of(CHANGED)
        await agent.tool_names()
        agent.call("session_message", message="the next line")
        assert (await link.receive())["method"] == "session_message"


async def test_a_call_that_waited_finds_the_newest_of_the_configurations_that_lie_there():
    """The tools changed while the agent ran no client: both lines are there when it pairs."""
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        wanted = agent.call("ant_late")
        assert (await agent.ask("ping"))["result"] == {}  # the call waits
        link = await server.link()
        lines = (config_line(config_params(*tools)) for tools in ((ADD,), (ADD, LATE)))
        link.send(b"\n".join(json.dumps(line).encode() for line in lines))  # as the relay has them
        asked = await link.request()
        assert asked["params"]["tool"] == "late"
        link.answer(asked, "there")
        assert (await agent.reply(wanted))["result"]["content"][0]["text"] == "there"


async def test_a_tool_whose_configuration_is_still_on_its_way_can_be_called():
    """The prompt that came with it has another way to the agent, and may be faster."""
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        assert "ant_add" in await agent.tool_names()
        link = await server.link()
        early = agent.call("ant_late", n=7)
        asked = await link.request()
        assert asked["method"] == "caller_tool"
        assert (asked["params"]["tool"], asked["params"]["arguments"]) == ("ant_late", {"n": 7})
        link.config(ADD, LATE)
        link.answer(asked, {"late": 7})
        assert (await agent.reply(early))["result"]["structuredContent"] == {"late": 7}


async def test_a_tool_that_the_server_does_not_know_either_is_unknown():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        assert "ant_add" in await agent.tool_names()
        link = await server.link()
        wrong = agent.call("ant_late")
        link.provides_no(await link.request())
        error = (await agent.reply(wrong))["error"]
        assert (error["code"], error["message"]) == (-32602, "Unknown tool: ant_late")
        failing = agent.call("ant_late")
        link.fail(await link.request(), -32000, "its caller is gone", "caller_gone")
        result = (await agent.reply(failing))["result"]
        assert (result["isError"], result["content"][0]["text"]) == (True, "its caller is gone")


@pytest.mark.parametrize(
    ("name", "secret"), [("x" * 257, "s3cret"), ("", "s3cret"), ("ant_late", None)]
)
async def test_a_name_that_the_server_could_not_decide_on_is_unknown_at_once(name, secret):
    more = {"OUBLIETTE_PAIRING_SECRET": secret}
    async with FakeServer(ADD) as server, RawAgent(server.path, **more) as agent:
        await agent.handshake()
        assert "ant_add" in await agent.tool_names()
        link = await server.link()
        assert (await agent.reply(agent.call(name)))["error"]["code"] == -32602
        agent.call("ant_add")
        assert (await link.receive())["params"]["tool"] == "add"  # and nothing before it
