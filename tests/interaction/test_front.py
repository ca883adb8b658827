"""The front as its clients see it: two generations of MCP, and plain HTTP."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.callers import ToolFailed
from tests.interaction.frontkit import world

pytestmark = pytest.mark.anyio

CLIENTS = [("sdk", "auto"), ("sdk", "legacy"), ("http", "auto"), ("http", "legacy")]
clients = pytest.mark.parametrize(("kind", "mode"), CLIENTS)


@clients
async def test_a_client_of_either_generation_calls_tools(kind, mode):
    async with world() as w, w.caller(kind, mode) as caller, asyncio.timeout(60):
        answer = await caller.call("echo", text="käse", deep={"n": [1, None, 2**53]})
    assert answer == {
        "principal": "alice",
        "said": {"text": "käse", "deep": {"n": [1, None, 2**53]}},
    }


@clients
async def test_a_failure_is_a_sentence_that_says_what_to_do(kind, mode):
    async with world() as w, w.caller(kind, mode) as caller, asyncio.timeout(60):
        with pytest.raises(ToolFailed, match="it is not the time for that .hint: wait.") as caught:
            await caller.call("refuse")
    assert caught.value.structured["error"]["code"] == "conflict"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_failure_has_no_structured_content_for_clients_to_hold_to_the_schema(mode):
    async with world() as w, w.caller("http", mode) as caller, asyncio.timeout(60):
        result = await caller.ask("tools/call", {"name": "refuse", "arguments": {}})
    assert result["isError"] is True
    assert "structuredContent" not in result
    assert result["_meta"]["dev.oubliette/error"]["code"] == "conflict"


@clients
async def test_a_crash_tells_nothing_of_the_inside(kind, mode):
    async with world() as w, w.caller(kind, mode) as caller, asyncio.timeout(60):
        with pytest.raises(ToolFailed, match="internal error; .* reference") as caught:
            await caller.call("crash")
    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.structured)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_unknown_tool_is_a_protocol_error(mode):
    async with world() as w, w.caller("http", mode) as caller, asyncio.timeout(60):
        try:
            await caller.call("no_such_tool")
        except Exception as error:
            text = str(error)
    assert "Unknown tool: no_such_tool" in text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_initialise_says_that_tools_change_and_that_it_logs(mode):
    async with world() as w, w.caller("sdk", mode) as caller, asyncio.timeout(60):
        capabilities = caller.client.server_capabilities
        tools = (await caller.client.list_tools()).tools
    assert capabilities.tools.list_changed is True
    assert capabilities.logging is not None
    assert "echo" in [tool.name for tool in tools]


async def test_health_and_readiness_need_no_key():
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        await caller.call("echo")  # by then everything is there
        async with caller.http.request("GET", path="/health", headers={"authorization": ""}) as r:
            health = (r.status, [m async for m in r.messages()][0]["ok"])
        async with caller.http.request("GET", path="/ready", headers={"authorization": ""}) as r:
            ready = (r.status, [m async for m in r.messages()][0])
        w.not_ready = ["the store is paused: no space left on device"]
        async with caller.http.request("GET", path="/ready", headers={"authorization": ""}) as r:
            paused = (r.status, [m async for m in r.messages()][0])
    assert health == (200, True)
    assert ready == (200, {"ready": True, "reasons": []})
    assert paused == (503, {"ready": False, "reasons": w.not_ready})


async def test_other_paths_and_methods_are_refused():
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        async with caller.http.request("GET", path="/") as r:
            await r.body()
            assert r.status == 404
        async with caller.http.request("PUT") as r:
            await r.body()
            assert r.status == 405
            assert r.headers["allow"] == "GET, POST, DELETE"


async def test_answers_do_not_wait_for_acknowledgements():
    """Nagle's algorithm with a client's delayed acknowledgement would cost 40 ms a call."""
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        await caller.call("echo")
        (connection,) = w.front.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
