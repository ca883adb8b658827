"""The official Python SDK as the agent, in both generations, over real stdio."""

from __future__ import annotations

import asyncio
import contextlib

import anyio
import mcp_types
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.unit.incontainer.fake_server import ADD, CLIENT, FakeServer, environment

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("mode", ["legacy", "auto"])]

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


@contextlib.asynccontextmanager
async def sdk_agent(server, mode, **options):
    env = environment(server.path, **options.pop("env", {}))
    parameters = StdioServerParameters(command=CLIENT[0], args=CLIENT[1:], env=env)
    with anyio.fail_after(15):
        async with Client(parameters, mode=mode, **options) as agent:
            yield agent


async def test_the_sdk_lists_the_callers_tools_at_its_first_look(mode):
    async with FakeServer(ADD) as server, sdk_agent(server, mode) as agent:
        assert agent.protocol_version == VERSIONS[mode]
        assert agent.server_capabilities.tools.list_changed is True
        assert "session_message" in agent.instructions
        listed = await agent.list_tools()
        assert [tool.name for tool in listed.tools] == [
            "session_message",
            "session_map",
            "session_events",
            "ant_add",
        ]
        assert listed.tools[3].input_schema == ADD["inputSchema"]


async def test_the_sdk_gets_results_and_errors_with_their_shape(mode):
    async with FakeServer(ADD) as server, sdk_agent(server, mode) as agent:
        link = await server.link()
        called = asyncio.create_task(agent.call_tool("ant_add", {"a": 1}))
        link.answer(await link.request(), {"error": "none", "rows": 3})
        result = await called
        assert result.is_error is False
        assert result.structured_content == {"error": "none", "rows": 3}
        called = asyncio.create_task(agent.call_tool("ant_add", {"a": 1}))
        link.fail(await link.request(), -32000, "recipient not found", "tool_error")
        result = await called
        assert result.is_error is True
        assert result.content[0].text == "recipient not found"
        called = asyncio.create_task(agent.call_tool("nope", {}))
        link.provides_no(await link.request())
        with pytest.raises(MCPError, match="Unknown tool: nope"):
            await called


async def test_the_sdks_calls_run_side_by_side(mode):
    async with FakeServer(ADD) as server, sdk_agent(server, mode) as agent:
        link = await server.link()
        calls = [asyncio.create_task(agent.call_tool("ant_add", {"a": a})) for a in range(20)]
        requests = [await link.request() for _ in calls]
        for request in reversed(requests):
            link.answer(request, request["params"]["arguments"])
        for a, called in enumerate(calls):
            assert (await called).structured_content == {"a": a}


async def test_the_sdk_is_told_when_tools_change(mode):
    changed = asyncio.Event()

    async def on_message(message):
        if isinstance(message, mcp_types.ToolListChangedNotification):
            changed.set()

    async with (
        FakeServer(ADD) as server,
        sdk_agent(server, mode, message_handler=on_message) as agent,
    ):
        link = await server.link()
        await agent.list_tools()
        if mode == "legacy":
            link.config({"name": "late"})
            await changed.wait()
        else:
            async with agent.listen(tools_list_changed=True) as events:
                link.config({"name": "late"})
                await anext(aiter(events))
        assert "ant_late" in [tool.name for tool in (await agent.list_tools()).tools]


async def test_the_sdks_progress_callback_hears_the_server(mode):
    heard = asyncio.Queue()

    async def on_progress(progress, _total, message):
        heard.put_nowait((progress, message))

    async with FakeServer(ADD) as server, sdk_agent(server, mode) as agent:
        link = await server.link()
        called = asyncio.create_task(agent.call_tool("ant_add", {}, progress_callback=on_progress))
        request = await link.request()
        link.send(
            {
                "jsonrpc": "2.0",
                "method": "progress",
                "params": {"id": request["id"], "message": "half"},
            }
        )
        assert await heard.get() == (1, "half")
        link.answer(request, 1)
        await called


async def test_a_call_that_the_sdk_gives_up_is_cancelled_at_the_server(mode):
    async with FakeServer(ADD) as server, sdk_agent(server, mode) as agent:
        link = await server.link()
        called = asyncio.create_task(agent.call_tool("ant_add", {}))
        request = await link.request()
        called.cancel()
        with pytest.raises(asyncio.CancelledError):
            await called
        cancelled = await link.receive()
        assert (cancelled["method"], cancelled["params"]) == (
            "notifications/cancelled",
            {"requestId": request["id"]},
        )
        called = asyncio.create_task(agent.call_tool("ant_add", {}))
        link.answer(await link.request(), "works on")
        assert (await called).content[0].text == "works on"


async def test_the_sdk_uses_oubliettes_tools(mode):
    async with (
        FakeServer() as server,
        sdk_agent(server, mode, env={"OUBLIETTE_API_KEY": "oub_k"}) as agent,
    ):
        link = await server.link()
        link.answer(
            await link.request("oubliette_tools"),
            {"tools": [{"name": "project_list", "inputSchema": {}}]},
        )
        assert "oubliette_project_list" in [tool.name for tool in (await agent.list_tools()).tools]
        called = asyncio.create_task(agent.call_tool("oubliette_token_create", {"name": "x"}))
        link.fail(await link.request(), -32002, "tool not allowed for this token scope")
        result = await called
        assert result.is_error is True
        assert "insufficient permissions" in result.content[0].text


async def test_a_link_that_breaks_under_the_sdk_costs_it_nothing(mode):
    async with FakeServer(ADD) as server, sdk_agent(server, mode) as agent:
        link = await server.link()
        called = asyncio.create_task(agent.call_tool("ant_add", {}))
        first = await link.request()
        link.cut()
        link = await server.link()
        second = await link.request()
        assert second["params"]["call_id"] == first["params"]["call_id"]
        link.answer(second, "joined")
        assert (await called).content[0].text == "joined"
