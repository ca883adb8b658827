"""Each scenario of the caller tool relay is one test, for every kind of caller.

A real server process, a real agent in its sandbox, and the official client in both generations of
the protocol beside one on bare HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid

import pytest

from tests.callers import Caller, ToolFailed
from tests.own_time import OwnTime
from tests.system.site import Site
from tests.system.wire_client import WireClient

pytestmark = pytest.mark.anyio

# The seed's 60 s, scaled; `make soak` waits them out.
SOAK = bool(os.environ.get("OUBLIETTE_SOAK"))
TIMEOUT = 60.0 if SOAK else 1.5
SETTINGS = {"sessions.caller_tool_timeout_seconds": TIMEOUT}


def send_notification(message: str) -> dict[str, str]:
    """Send notification."""
    return {"status": "sent", "message": message}


TOOLS = {"send_notification": send_notification}
CALL = 'call myapp_send_notification {"message": "hello"}'


async def pending(site: Site, caller: Caller, prompt: str = CALL):
    """An agent whose call waits for this caller, and the event that asks for the answer."""
    await caller.listen()
    agent = await site.spawn(caller, prompt)
    return agent, await caller.event("caller_tool_request", session_id=agent.session_id)


async def test_agent_calls_caller_tool_successfully(site, kind):
    """REQ-CTR-001: the event is emitted, the caller answers, the agent has the result."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, CALL)
        outcome = await agent.outcome()
        event = await caller.event("caller_tool_request")
        assert event["session_id"] == agent.session_id
        assert not outcome["is_error"]
        assert outcome["structured"] == {"status": "sent", "message": "hello"}


async def test_caller_tool_request_times_out(site, kind):
    """REQ-CTR-001: a caller that does not respond within the timeout is an error for the agent."""
    tools = {"slow_tool": lambda: None}
    async with site.caller(kind, tools=tools, answers=False) as caller:
        own = OwnTime()
        agent, event = await pending(site, caller, "call myapp_slow_tool {}")
        outcome = await agent.outcome(timeout=TIMEOUT + 20)
        assert outcome["is_error"]
        assert "did not answer within" in outcome["text"]
        assert outcome["elapsed_ms"] >= TIMEOUT * 1000
        assert own.ms_of(outcome["elapsed_ms"]) < TIMEOUT * 1000 + 2000
        settled = await agent.event("caller_tool_settled", request_id=event["request_id"])
        assert settled["outcome"] == "timeout"


async def test_caller_disconnected_before_response(site, kind):
    """REQ-CTR-001: the caller disconnects before it responds; the agent gets an error."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        own = OwnTime()
        agent, event = await pending(site, caller)
        await caller.stop_listening()
    outcome = await agent.outcome()
    assert outcome["is_error"]
    assert "caller myapp is not connected" in outcome["text"]
    assert own.ms_of(outcome["elapsed_ms"]) < 2500
    settled = await agent.event("caller_tool_settled", request_id=event["request_id"])
    assert settled["outcome"] == "caller_gone"


async def test_caller_declares_tools_at_session_start(site, kind):
    """REQ-CTR-002: the declared tool is registered, discovered and called by the agent."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, f"tools\n{CALL}")
        listed, called = await agent.turn()
        assert "myapp_send_notification" in json.loads(listed)
        assert json.loads(called)["structured"]["status"] == "sent"


async def test_tools_include_input_schema(site, kind):
    """REQ-CTR-002: what the agent lists has the schema that the caller declared."""
    schema = {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "what to say"}},
        "required": ["message"],
    }
    async with site.caller(kind) as caller:
        caller.specs = [{"name": "send_notification", "description": "Send", "inputSchema": schema}]
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.mcp_server(site, agent.session_id) as client:
            (tool,) = [t for t in await client.list_tools() if t["name"].startswith("myapp_")]
        assert tool["name"] == "myapp_send_notification"
        assert tool["description"] == "Send"
        assert tool["inputSchema"] == schema


async def test_tool_request_event_format(site, kind):
    """REQ-CTR-003: type, a unique request_id, the tool without prefix, its arguments."""
    call = 'call myapp_send_notification {"message": "hi"}'
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, f"{call}\n{call}")
        await agent.turn()
        first, second = caller.of("caller_tool_request")
        for event in (first, second):
            assert event["type"] == "caller_tool_request"
            assert event["tool"] == "send_notification"
            assert event["arguments"] == {"message": "hi"}
            assert event["session_id"] == agent.session_id
            assert uuid.UUID(event["request_id"]).version == 4
        assert first["request_id"] != second["request_id"]


async def test_successful_tool_response(site, kind):
    """REQ-CTR-004: caller_tool_response(session_id, request_id, result, null) resolves the call."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, event = await pending(site, caller)
        answer = await caller.call(
            "caller_tool_response",
            session_id=agent.session_id,
            request_id=event["request_id"],
            result={"status": "sent"},
            error=None,
        )
        assert answer == {"accepted": True}
        outcome = await agent.outcome()
        assert (outcome["is_error"], outcome["structured"]) == (False, {"status": "sent"})
        settled = await agent.event("caller_tool_settled", request_id=event["request_id"])
        assert settled["outcome"] == "result"


async def test_progress_of_a_tool_reaches_the_agent_and_the_log(site):
    async with site.caller("http-auto", tools=TOOLS, answers=False) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.mcp_server(site, agent.session_id) as client:
            params = {
                "name": "myapp_send_notification",
                "arguments": {"message": "hello"},
                "_meta": {"progressToken": "t"},
            }
            await client.send(
                {"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": params}
            )
            asked = await caller.event("caller_tool_request", session_id=agent.session_id)
            request = {"session_id": agent.session_id, "request_id": asked["request_id"]}
            for message in ("one third", "two thirds", "nearly done"):
                report = await caller.call("caller_tool_progress", **request, message=message)
                assert report == {"accepted": True}
            heard = [await client.until(method="notifications/progress") for _ in range(2)]
            assert [each["params"]["message"] for each in heard] == ["one third", "nearly done"]
            assert heard[0]["params"]["progress"] < heard[1]["params"]["progress"]
            await caller.call("caller_tool_response", **request, result={"status": "sent"})
            await client.until(id=77)
        with pytest.raises(ToolFailed, match="request not found or already resolved"):
            await caller.call("caller_tool_progress", **request, message="too late")
    await agent.event("caller_tool_settled", request_id=asked["request_id"])
    reported = [event for event in agent.log if event["type"] == "caller_tool_progress"]
    assert [
        (event["request_id"], event["tool"], event["message"], event["caller_id"])
        for event in reported
    ] == [
        (asked["request_id"], "send_notification", "one third", "myapp"),
        (asked["request_id"], "send_notification", "nearly done", "myapp"),
    ]


async def test_tool_execution_error_response(site, kind):
    """REQ-CTR-004: caller_tool_response(session_id, request_id, null, error): so it is told."""
    async with site.caller(kind, tools=TOOLS, answers=False) as caller:
        agent, event = await pending(site, caller)
        answer = await caller.call(
            "caller_tool_response",
            session_id=agent.session_id,
            request_id=event["request_id"],
            result=None,
            error="recipient not found",
        )
        assert answer == {"accepted": True}
        outcome = await agent.outcome()
        assert (outcome["is_error"], outcome["text"]) == (True, "recipient not found")
        settled = await agent.event("caller_tool_settled", request_id=event["request_id"])
        assert settled["outcome"] == "tool_error"


async def test_socket_request_and_response(site, kind):
    """REQ-CTR-005: a caller_tool line on the socket is answered when the caller responds."""
    async with site.caller(kind, tools=TOOLS) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            request = {"tool": "send_notification", "arguments": {"message": "raw"}}
            await link.send({"jsonrpc": "2.0", "id": 1, "method": "caller_tool", "params": request})
            async with asyncio.timeout(10):
                answer = await link.receive()
        assert answer == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"status": "sent", "message": "raw"},
        }
