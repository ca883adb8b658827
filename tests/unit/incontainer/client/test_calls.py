"""`oubliette-client` between agent and server: what is called, and how outcomes look."""

from __future__ import annotations

import re
import time

import pytest

from tests.unit.incontainer.fake_server import ADD, META, FakeServer, RawAgent

pytestmark = pytest.mark.anyio

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
PROJECT_TOOLS = {
    "tools": [
        {"name": "project_list", "description": "Lists.", "inputSchema": {"type": "object"}},
        {
            "name": "project_create",
            "description": "Creates.",
            "inputSchema": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "idempotency_key": {"type": "string"}},
            },
        },
    ]
}


async def test_agent_calls_caller_tool_successfully():
    """REQ-CTR-001, REQ-CTR-005: by its own name towards the server, with a fresh call id."""
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        assert "ant_add" in await agent.tool_names()
        link = await server.link()
        assert link.header == "OUBLIETTE-DOWNSTREAM proj_1 gogol_1 s3cret"
        ids = set()
        for value in ({"deep": [1, None, 2**70, 1.0, "é"]}, 7):
            number = agent.call("ant_add", a=value)
            request = await link.request()
            assert request["method"] == "caller_tool"
            assert request["params"]["tool"] == "add"
            assert request["params"]["arguments"] == {"a": value}
            assert UUID4.fullmatch(request["params"]["call_id"])
            ids.add(request["params"]["call_id"])
            link.answer(request, {"status": "sent"})
            result = (await agent.reply(number))["result"]
            assert result["isError"] is False
            assert result["structuredContent"] == {"status": "sent"}
            assert result["content"] == [{"type": "text", "text": '{"status": "sent"}'}]
        assert len(ids) == 2


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("plain text", "plain text"),
        ("", ""),
        (None, "null"),
        (7, "7"),
        (True, "true"),
        ([1, {"a": "é"}], '[1, {"a": "é"}]'),
        ({"error": "none", "rows": 3}, '{"error": "none", "rows": 3}'),
        ({"isError": True, "content": "mine"}, '{"isError": true, "content": "mine"}'),
        ({}, "{}"),
        ({"lone": "\ud800"}, '{"lone": "\ud800"}'),
    ],
)
async def test_any_json_is_a_result_and_keeps_its_shape(result, text):
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        number = agent.call("ant_add")
        link = await server.link()
        link.answer(await link.request(), result)
        shown = (await agent.reply(number))["result"]
        assert shown["isError"] is False
        assert shown["content"] == [{"type": "text", "text": text}]
        assert shown.get("structuredContent") == (result if isinstance(result, dict) else None)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (-32000, "recipient not found", "tool_error"),
        (-32000, "no answer within 60 s", "timeout"),
        (-32000, "the caller is gone", "caller_gone"),
        (-32602, "session_id: unknown", None),
        (-32601, "Method not found: caller_tool", None),
    ],
)
async def test_an_error_of_the_other_side_is_a_tool_error_with_its_text(code, message, kind):
    """REQ-CTR-001 timeout and disconnect, REQ-CTR-004 tool execution error."""
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        number = agent.call("ant_add")
        link = await server.link()
        link.fail(await link.request(), code, message, kind)
        shown = (await agent.reply(number))["result"]
        assert shown["isError"] is True
        assert shown["content"] == [{"type": "text", "text": message}]
        assert shown["_meta"]["dev.oubliette/kind"] == (kind or "error")


@pytest.mark.parametrize(
    "error", ["text", 5, [], {"code": "x"}, {"message": 5}, {"code": 1, "message": ""}]
)
async def test_an_error_of_any_shape_ends_the_call(error):
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        number = agent.call("ant_add")
        link = await server.link()
        link.send({"jsonrpc": "2.0", "id": (await link.request())["id"], "error": error})
        shown = (await agent.reply(number))["result"]
        assert shown["isError"] is True
        assert shown["content"][0]["text"]


async def test_calls_run_side_by_side_and_are_answered_as_they_end():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        numbers = [agent.call("ant_add", a=a) for a in range(100)]
        requests = [await link.request("caller_tool") for _ in numbers]
        for request in reversed(requests):
            link.answer(request, request["params"]["arguments"]["a"])
        for a in reversed(range(100)):
            assert (await agent.reply(numbers[a]))["result"]["content"][0]["text"] == str(a)


async def test_a_cancelled_call_is_cancelled_at_the_server_and_not_answered():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        number = agent.call("ant_add")
        request = await link.request()
        agent.note("notifications/cancelled", requestId=number, reason="user")
        cancelled = await link.receive()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"] == {"requestId": request["id"]}
        link.answer(request, "too late")
        assert (await agent.ask("ping"))["result"] == {}


async def test_cancels_of_finished_and_unknown_calls_are_ignored():
    """OpenCode sends one after every completed call."""
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        number = agent.call("ant_add")
        link.answer(await link.request(), 1)
        await agent.reply(number)
        for request_id in (number, 999, "x", None, [1], {"a": 1}):
            agent.note("notifications/cancelled", requestId=request_id)
        agent.note("notifications/cancelled")
        other = agent.call("ant_add")
        request = await link.receive()  # and no cancellation before it
        assert request["method"] == "caller_tool"
        link.answer(request, 2)
        assert (await agent.reply(other))["result"]["content"][0]["text"] == "2"


async def test_progress_of_the_server_reaches_an_agent_that_gave_a_token():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        number = agent.start("tools/call", name="ant_add", _meta={"progressToken": "tok"})
        silent = agent.call("ant_add")
        request, other = await link.request(), await link.request()
        for text in ("queued", "running"):
            link.send(
                {
                    "jsonrpc": "2.0",
                    "method": "progress",
                    "params": {"id": request["id"], "message": text},
                }
            )
        for odd in (
            {"id": other["id"], "message": "no token"},
            {"id": 99},
            {"id": "x"},
            {},
            [1],
            None,
        ):
            link.send({"jsonrpc": "2.0", "method": "progress", "params": odd})
        link.answer(request, 1)
        link.answer(other, 2)
        await agent.reply(number)
        await agent.reply(silent)
        assert [note["params"] for note in agent.notes] == [
            {"progressToken": "tok", "progress": 1, "message": "queued"},
            {"progressToken": "tok", "progress": 2, "message": "running"},
        ]


# ---------------------------------------------------------------- base tools


async def test_session_message_is_forwarded_whole_with_a_call_id():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call(
            "session_message",
            message="do it",
            session_id="gogol_2",
            wait=True,
            call_id="forged",
            more=1,
        )
        request = await link.request()
        assert request["method"] == "session_message"
        call_id = request["params"].pop("call_id")
        assert UUID4.fullmatch(call_id)
        assert request["params"] == {
            "message": "do it",
            "session_id": "gogol_2",
            "wait": True,
            "more": 1,
        }
        result = {"session_id": "gogol_2", "result": "done", "spawned": False}
        link.answer(request, result)
        assert (await agent.reply(number))["result"]["structuredContent"] == result


SPAWNED = {"session_id": "child_1", "spawned": True}
RUNNING = {"session_id": "child_1", "events": [], "completed": False, "failed": False}


def said(text, index=1, **more):
    return {"index": index, "type": "message", "role": "assistant", "text": text, **more}


async def test_a_child_is_followed_where_the_server_answers_without_its_result():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_message", message="do it")
        link.answer(await link.request("session_message"), SPAWNED)
        asked = await link.request("session_events")
        assert asked["params"].pop("wait_seconds") > 0
        assert asked["params"] == {"session_id": "child_1", "since_index": -1}
        user = {"index": 0, "type": "message", "role": "user", "text": "do it"}
        page = {**RUNNING, "events": [user, said("first")], "last_index": 1}
        link.answer(asked, page)
        asked = await link.request("session_events")
        assert asked["params"]["since_index"] == 1
        link.answer(asked, {**RUNNING, "events": [said("the end", 2)], "completed": True})
        result = (await agent.reply(number))["result"]
        assert result["structuredContent"] == {**SPAWNED, "result": "the end"}
        assert result["isError"] is False


async def test_a_child_that_failed_is_an_error_with_its_reason():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_message", message="do it")
        link.answer(await link.request(), SPAWNED)
        event = {"index": 1, "type": "error", "text": "out of luck"}
        link.answer(await link.request(), {**RUNNING, "events": [event], "failed": True})
        result = (await agent.reply(number))["result"]
        assert result["isError"] is True
        assert "out of luck" in result["content"][0]["text"]


async def test_a_server_that_does_not_hold_answers_back_is_asked_again_after_a_pause():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_message", message="do it")
        link.answer(await link.request(), SPAWNED)
        link.fail(await link.request(), -32602, "wait_seconds: unknown parameter")
        asked = await link.request()
        assert asked["params"] == {"session_id": "child_1", "since_index": -1}
        began = time.monotonic()
        link.answer(asked, RUNNING)
        asked = await link.request()
        assert time.monotonic() - began > 0.3
        assert "wait_seconds" not in asked["params"]
        link.answer(asked, {**RUNNING, "completed": True, "final_response": "done"})
        assert (await agent.reply(number))["result"]["structuredContent"]["result"] == "done"


async def test_a_child_that_cannot_be_followed_ends_the_call():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_message", message="do it")
        link.answer(await link.request(), SPAWNED)
        link.fail(await link.request(), -32601, "Method not found: session_events")
        result = (await agent.reply(number))["result"]
        assert result["isError"] is True
        assert "Method not found" in result["content"][0]["text"]


async def test_a_cancelled_call_follows_its_child_no_more():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_message", message="do it")
        link.answer(await link.request(), SPAWNED)
        asked = await link.request("session_events")
        agent.note("notifications/cancelled", requestId=number)
        cancelled = await link.request("notifications/cancelled")
        assert cancelled["params"]["requestId"] == asked["id"]


async def test_who_does_not_wait_gets_the_servers_answer():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_message", message="do it", wait=False)
        link.answer(await link.request(), SPAWNED)
        assert (await agent.reply(number))["result"]["structuredContent"] == SPAWNED


async def test_session_events_is_forwarded_as_it_is():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        link = await server.link()
        number = agent.call("session_events", session_id="gogol_2", since_index=4, wait_seconds=10)
        request = await link.request()
        assert request["method"] == "session_events"
        assert request["params"] == {"session_id": "gogol_2", "since_index": 4, "wait_seconds": 10}
        link.answer(request, {"events": [], "last_index": 4})
        assert (await agent.reply(number))["result"]["structuredContent"]["last_index"] == 4


# ---------------------------------------------------------------- tools that come and go


async def test_caller_tools_are_replaced_while_running_and_the_agent_is_told():
    """REQ-CTR-002."""
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        assert await agent.tool_names() == [
            "session_message",
            "session_map",
            "session_events",
            "ant_add",
        ]
        link = await server.link()
        link.config({"name": "sub"}, {"name": "mul"})
        assert "params" not in await agent.note_of("notifications/tools/list_changed")
        assert await agent.tool_names() == [
            "session_message",
            "session_map",
            "session_events",
            "ant_sub",
            "ant_mul",
        ]
        gone = agent.call("ant_add")
        link.provides_no(await link.request("caller_tool"))
        assert (await agent.reply(gone))["error"]["code"] == -32602
        link.config()
        await agent.note_of("notifications/tools/list_changed")
        assert await agent.tool_names() == ["session_message", "session_map", "session_events"]


async def test_the_same_configuration_again_is_no_change():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        link.config(ADD)
        link.config(ADD, call_timeout_seconds=5)
        number = agent.call("ant_add")
        link.answer(await link.request(), 1)
        await agent.reply(number)
        assert agent.notes == []


async def test_a_tool_that_arrives_late_is_announced():
    async with (
        FakeServer(greet=False) as server,
        RawAgent(server.path, OUBLIETTE_PAIRING_SECRET=None) as agent,
    ):
        await agent.handshake()
        assert await agent.tool_names() == ["session_message", "session_map", "session_events"]
        link = await server.link()
        assert link.header == "OUBLIETTE-DOWNSTREAM proj_1"
        link.config(ADD)
        await agent.note_of("notifications/tools/list_changed")
        assert "ant_add" in await agent.tool_names()


@pytest.mark.parametrize(
    "line",
    [
        {"type": "caller_tools_config", "params": {"caller_id": "ant", "tools": [ADD]}},
        {
            "jsonrpc": "2.0",
            "method": "caller_tools_config",
            "params": {"caller_id": "ant", "tools": [ADD]},
        },
        {"type": "caller_tools_config", "caller_id": "ant", "tools": [ADD]},
        {
            "type": "caller_tools_config",
            "params": {"caller_id": "ant", "tools": [ADD], "new": 1},
            "unknown": 1,
        },
    ],
)
async def test_the_configuration_is_read_in_every_form(line):
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        (await server.link()).send(line)
        assert "ant_add" in await agent.tool_names()


# ---------------------------------------------------------------- Oubliette's own tools


async def test_missing_api_key_skips_tool_registration():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        error = (await agent.ask("tools/call", name="oubliette_project_list"))["error"]
        assert error["code"] == -32602
        link = await server.link()
        agent.call("ant_add")
        assert (await link.receive())["method"] == "caller_tool"  # and nothing was asked before


async def test_valid_api_key_discovers_tools_and_calls_carry_it():
    async with FakeServer() as server, RawAgent(server.path, OUBLIETTE_API_KEY="oub_k") as agent:
        await agent.handshake()
        listing = agent.start("tools/list")
        link = await server.link()
        asked = await link.request()
        assert (asked["method"], asked["params"]) == ("oubliette_tools", {"api_key": "oub_k"})
        link.answer(asked, PROJECT_TOOLS)
        listed = (await agent.reply(listing))["result"]["tools"]
        assert [tool["name"] for tool in listed[3:]] == [
            "oubliette_project_list",
            "oubliette_project_create",
        ]

        number = agent.call("oubliette_project_list", limit=5)
        request = await link.request()
        assert request["method"] == "oubliette_call_tool"
        assert request["params"].pop("call_id")
        assert request["params"] == {
            "api_key": "oub_k",
            "tool": "project_list",
            "arguments": {"limit": 5},
        }
        result = {
            "content": [{"type": "text", "text": "{}"}],
            "isError": False,
            "structuredContent": {"projects": []},
        }
        link.answer(request, result)
        assert (await agent.reply(number))["result"] == result


async def test_a_tool_error_of_oubliette_keeps_its_form():
    async with FakeServer() as server, RawAgent(server.path, OUBLIETTE_API_KEY="oub_k") as agent:
        await agent.handshake()
        link = await server.link()
        link.answer(await link.request(), PROJECT_TOOLS)
        await agent.tool_names()
        number = agent.call("oubliette_project_create", name="x")
        result = {"content": [{"type": "text", "text": "project already exists"}], "isError": True}
        link.answer(await link.request(), result)
        assert (await agent.reply(number))["result"] == result


async def test_invalid_api_key_fails_discovery_with_a_warning_and_start_up_goes_on():
    async with (
        FakeServer(ADD) as server,
        RawAgent(server.path, OUBLIETTE_API_KEY="oub_bad") as agent,
    ):
        await agent.handshake()
        listing = agent.start("tools/list")
        link = await server.link()
        link.fail(await link.request(), -32001, "invalid or expired API key")
        listed = (await agent.reply(listing))["result"]["tools"]
        assert [tool["name"] for tool in listed] == [
            "session_message",
            "session_map",
            "session_events",
            "ant_add",
        ]
        code, stderr = await agent.end()
        assert code == 0
        assert "WARNING" in stderr
        assert "invalid or expired API key" in stderr
        assert "oub_bad" not in stderr


@pytest.mark.parametrize(
    ("code", "message", "expected", "kind"),
    [
        (
            -32002,
            "tool not allowed for this token scope",
            "insufficient permissions",
            "insufficient_permissions",
        ),
        (-32001, "invalid or expired API key", "invalid or expired", "invalid_key"),
        (-32001, "denied", "invalid or expired", "invalid_key"),
        (-32000, "boom", "boom", "error"),
    ],
)
async def test_a_refused_call_says_why_even_for_a_tool_that_is_not_listed(
    code, message, expected, kind
):
    """oubliette-tools: insufficient scope, expired key."""
    async with FakeServer() as server, RawAgent(server.path, OUBLIETTE_API_KEY="oub_k") as agent:
        await agent.handshake()
        link = await server.link()
        link.answer(await link.request(), {"tools": []})
        await agent.tool_names()
        number = agent.call("oubliette_token_create", name="x")
        request = await link.request()
        assert request["params"]["tool"] == "token_create"
        link.fail(request, code, message)
        shown = (await agent.reply(number))["result"]
        assert shown["isError"] is True
        assert expected in shown["content"][0]["text"]
        assert message in shown["content"][0]["text"]
        assert shown["_meta"]["dev.oubliette/kind"] == kind


async def test_a_creation_carries_an_idempotency_key_unless_the_agent_gave_one():
    async with FakeServer() as server, RawAgent(server.path, OUBLIETTE_API_KEY="oub_k") as agent:
        await agent.handshake()
        link = await server.link()
        link.answer(await link.request(), PROJECT_TOOLS)
        await agent.tool_names()
        agent.call("oubliette_project_create", name="x")
        params = (await link.request())["params"]
        assert params["arguments"] == {"name": "x", "idempotency_key": params["call_id"]}
        agent.call("oubliette_project_create", name="x", idempotency_key="mine")
        assert (await link.request())["params"]["arguments"]["idempotency_key"] == "mine"


async def test_modern_results_are_stamped_whatever_their_origin():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.ask_modern("tools/list")
        link = await server.link()
        good, bad = (agent.start("tools/call", _meta=META, name="ant_add") for _ in range(2))
        link.answer(await link.request(), {"a": 1})
        link.fail(await link.request(), -32000, "no", "timeout")
        for number in (good, bad):
            result = (await agent.reply(number))["result"]
            assert result["resultType"] == "complete"
            assert "io.modelcontextprotocol/serverInfo" in result["_meta"]
