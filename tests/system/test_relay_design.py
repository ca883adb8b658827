"""What the scenarios leave open: structures, semantics, timeouts, security, errors."""

from __future__ import annotations

import asyncio
import json
import time
import uuid

import pytest

from tests.callers import ToolFailed
from tests.own_time import OwnTime
from tests.system.wire_client import WireClient

pytestmark = pytest.mark.anyio

SETTINGS = {"sessions.caller_tool_timeout_seconds": 4.0}
SEND = {
    "name": "send_response",
    "description": "Send a message via Signal",
    "inputSchema": {
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "Message to send"},
            "recipients": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["message", "recipients"],
    },
}
MEMORY = {"name": "get_memory", "description": "Retrieve stored memories for context"}
CALL = 'call ant_send_response {"message": "Hello from Droid", "recipients": ["+1234567890"]}'


def ant(site, kind="http-auto", **more):
    """The caller of the documents' example; its answers are the test's to give."""
    caller = site.caller(kind, caller_id="ant", answers=False, **more)
    caller.specs = [SEND, MEMORY]
    return caller


async def answer(caller, event, **fields):
    return await caller.call(
        "caller_tool_response",
        session_id=event["session_id"],
        request_id=event["request_id"],
        **fields,
    )


# ---------------------------------------------------------------- data structures


@pytest.mark.parametrize("where", ["context", "top level"])
async def test_caller_tools_are_declared_in_context_or_at_top_level(site, kind, where):
    async with ant(site, kind) as caller:
        await caller.listen()
        lent = {"caller_id": "ant", "caller_tools": [SEND, MEMORY]}
        more = {"context": lent} if where == "context" else {"context": {}, **lent}
        agent = await site.spawn(caller, "tools", **more)
        names = await agent.outcome()
        assert {"ant_send_response", "ant_get_memory"} <= set(names)
        assert (await agent.get())["caller_id"] == "ant"


async def test_tools_come_in_with_session_message_as_in_the_seed(site, kind):
    """Passed in `session_message` context, here without a session before."""
    project = await site.new_project()
    async with ant(site, kind) as caller:
        spawned = await caller.call(
            "session_message", project_id=project["id"], message="tools", context=caller.context
        )
        assert spawned["spawned"]
        names = await site.agent(spawned["session_id"]).outcome()
        assert {"ant_send_response", "ant_get_memory"} <= set(names)


async def test_context_wins_over_the_top_level(site):
    async with ant(site) as caller:
        agent = await site.spawn(
            caller,
            "tools",
            context={"caller_id": "ant", "caller_tools": [MEMORY]},
            caller_id="bee",
            caller_tools=[SEND],
        )
        names = await agent.outcome()
        assert "ant_get_memory" in names
        assert not [name for name in names if name.startswith("bee_") or "send" in name]


async def test_the_configuration_is_one_object_with_every_form_of_the_seed(site):
    """It has jsonrpc, method, type and params."""
    async with ant(site) as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            config = await link.receive()
        assert (config["jsonrpc"], config["method"]) == ("2.0", "caller_tools_config")
        assert config["type"] == "caller_tools_config"
        assert "id" not in config
        assert config["params"]["caller_id"] == "ant"
        first, second = config["params"]["tools"]
        assert first == SEND
        assert second == {**MEMORY, "inputSchema": {"type": "object"}}


async def test_a_session_without_a_caller_is_configured_with_nothing(site):
    """Empty where there are none, sent all the same."""
    async with ant(site) as caller:
        agent = await site.spawn(caller, "say here", context={})
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            config = await link.receive()
        assert config["params"]["tools"] == []
        assert config["params"]["caller_id"] == ""


async def test_the_event_is_a_log_message_of_the_seeds_logger(site):
    """Level info, logger oubliette.caller_tool."""
    seen = []
    async with ant(site) as caller:
        original = caller.http.request

        def spied(*args, **kwargs):
            return Spy(original(*args, **kwargs), seen)

        caller.http.request = spied
        await caller.listen()
        agent = await site.spawn(caller, CALL)
        event = await caller.event("caller_tool_request")
        await answer(caller, event, result={})
        await agent.turn()
    by_logger = {m["params"]["data"]["type"]: m["params"] for m in seen if "params" in m}
    asked = by_logger["caller_tool_request"]
    assert (asked["level"], asked["logger"]) == ("info", "oubliette.caller_tool")
    assert by_logger["caller_tool_settled"]["logger"] == "oubliette.session"
    data = asked["data"]
    assert data["tool"] == "send_response"
    assert data["arguments"] == {"message": "Hello from Droid", "recipients": ["+1234567890"]}
    assert uuid.UUID(data["request_id"]).version == 4
    assert data["session_id"] == agent.session_id
    assert data["ancestry"] == [agent.session_id]
    assert 0 < data["deadline"] - data["ts"] <= 4.0
    assert isinstance(data["index"], int)


class Spy:
    """Writes down the messages of a response on their way."""

    def __init__(self, request, seen) -> None:
        self._request = request
        self._seen = seen

    async def __aenter__(self):
        response = await self._request.__aenter__()
        messages = response.messages

        async def noted():
            async for message in messages():
                self._seen.append(message)
                yield message

        response.messages = noted
        return response

    async def __aexit__(self, *failed):
        return await self._request.__aexit__(*failed)


# ---------------------------------------------------------------- results and errors


@pytest.mark.parametrize(
    "result",
    [
        None,
        "plain text",
        "",
        ["a", 1, None, {"b": []}],
        [],
        {},
        {"error": "none", "rows": 3},
        {"isError": True, "content": "mine"},
        {"result": {"result": 1}},
        0,
        False,
        3.25,
        2**63,
        {"nested": {"deep": [[[["\u2028 ünïcödé \U0001f600"]]]]}},
    ],
    ids=repr,
)
async def test_any_result_keeps_its_shape(site, result):
    """Whatever it looks like, a result is a result."""
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            call = asyncio.ensure_future(link.call("caller_tool", {"tool": "get_memory"}))
            event = await caller.event("caller_tool_request")
            assert event["arguments"] == {}
            await answer(caller, event, result=result)
            reply = await call
        assert reply == {"jsonrpc": "2.0", "id": 1, "result": result}


@pytest.mark.parametrize(
    ("result", "text", "structured"),
    [
        (None, "null", None),
        ("words", "words", None),
        ([1, "two"], '[1, "two"]', None),
        (
            {"error": "none", "rows": 3},
            '{"error": "none", "rows": 3}',
            {"error": "none", "rows": 3},
        ),
    ],
    ids=["null", "string", "list", "object with error"],
)
async def test_the_agent_gets_each_shape_of_result(site, kind, result, text, structured):
    """Caller result shapes are kept to the agent."""
    async with ant(site, kind) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "call ant_get_memory {}")
        await answer(caller, await caller.event("caller_tool_request"), result=result)
        outcome = await agent.outcome()
        assert not outcome["is_error"]
        assert (outcome["text"], outcome["structured"]) == (text, structured)


async def test_neither_result_nor_error_is_success_with_null(site):
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "call ant_get_memory {}")
        await answer(caller, await caller.event("caller_tool_request"))
        outcome = await agent.outcome()
        assert (outcome["is_error"], outcome["text"]) == (False, "null")


async def test_where_both_are_given_the_error_wins(site):
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "call ant_get_memory {}")
        event = await caller.event("caller_tool_request")
        await answer(caller, event, result={"rows": 3}, error="but it failed")
        outcome = await agent.outcome()
        assert (outcome["is_error"], outcome["text"]) == (True, "but it failed")


async def test_arguments_arrive_as_they_are_and_are_not_validated_by_us(site):
    """Arguments are validated by the caller."""
    given = {"message": 7, "extra": [None, 1.5, {"x": '\\ " \n é'}]}
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, f"call ant_send_response {json.dumps(given)}")
        event = await caller.event("caller_tool_request")
        assert event["arguments"] == given
        await answer(caller, event, result=1)
        await agent.turn()


async def test_a_tool_is_called_on_the_socket_with_or_without_its_prefix(site):
    """The bare name; agents' own clients may send the whole one."""
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            for name in ("get_memory", "ant_get_memory"):
                place = len(caller.events)
                call = asyncio.ensure_future(link.call("caller_tool", {"tool": name}))
                event = await caller.event("caller_tool_request", after=place)
                assert event["tool"] == "get_memory"
                await answer(caller, event, result=name)
                assert (await call)["result"] == name


async def test_an_unknown_tool_is_refused_at_once_and_the_caller_is_not_asked(site):
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here\ncall ant_nothing {}")
        outcome = await agent.outcome()
        assert outcome["is_error"]
        assert "ant_nothing" in outcome["text"]
        other = await site.spawn(caller, "say here")
        await other.turn()
        async with WireClient.connect(site, other.session_id) as link:
            await link.config()
            reply = await link.call("caller_tool", {"tool": "nothing", "arguments": {}})
        assert "nothing" in reply["error"]["message"]
        assert caller.of("caller_tool_request") == []


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({}, "tool"),
        ({"tool": 5}, "tool"),
        ({"tool": ""}, "tool"),
        ({"tool": "x" * 300}, "tool"),
        ({"tool": "get_memory", "arguments": []}, "arguments"),
        ({"tool": "get_memory", "arguments": "{}"}, "arguments"),
        ({"tool": "get_memory", "call_id": 5}, "call_id"),
        ({"tool": "get_memory", "call_id": "x" * 200}, "call_id"),
    ],
    ids=repr,
)
async def test_a_bad_request_on_the_socket_names_its_field(site, params, named):
    """-32602, and the link goes on."""
    async with ant(site) as caller:
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            reply = await link.call("caller_tool", params)
            assert reply["error"]["code"] == -32602
            assert reply["error"]["message"].startswith(f"{named}:")
            reply = await link.call("no_such_method", {})
            assert reply["error"] == {
                "code": -32601,
                "message": "Method not found: no_such_method",
            }


async def test_lines_that_are_no_requests_get_an_error_with_a_reason_and_the_link_goes_on(site):
    """Never a crash or a silent hang."""
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            for line, code in [
                (b"this is no JSON", -32700),
                (b"\xff\xfe\x00", -32700),
                (b"[1, 2]", -32600),
                (b'{"jsonrpc": "2.0", "id": 9}', -32600),
                (b'{"jsonrpc": "2.0", "id": [], "method": "caller_tool"}', -32600),
                (b'{"jsonrpc": "2.0", "id": 9, "method": "caller_tool", "params": 3}', -32602),
                (b'{"a":' * 5000 + b"1" + b"}" * 5000, -32700),
            ]:
                await link.send_raw(line)
                reply = await link.receive()
                assert reply["error"]["code"] == code, line[:60]
                assert reply["error"]["message"]
            # A notification is not answered, whatever it says.
            await link.send({"jsonrpc": "2.0", "method": "what/ever", "params": {"x": 1}})
            call = asyncio.ensure_future(link.call("caller_tool", {"tool": "get_memory"}))
            await answer(caller, await caller.event("caller_tool_request"), result="still here")
            assert (await call)["result"] == "still here"


async def test_ids_of_requests_are_strings_or_numbers_and_come_back_as_they_were(site):
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            for number in ("a string", "", 0, -5, 2**40):
                place = len(caller.events)
                params = {"tool": "get_memory"}
                await link.send(
                    {"jsonrpc": "2.0", "id": number, "method": "caller_tool", "params": params}
                )
                event = await caller.event("caller_tool_request", after=place)
                await answer(caller, event, result=1)
                assert await link.receive() == {"jsonrpc": "2.0", "id": number, "result": 1}


async def test_the_same_call_id_joins_the_call_and_later_its_outcome(site):
    """`call_id` makes a call idempotent over a reconnect."""
    params = {"tool": "get_memory", "call_id": "once"}
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            await link.send(
                {"jsonrpc": "2.0", "id": "lost", "method": "caller_tool", "params": params}
            )
            event = await caller.event("caller_tool_request")
        async with WireClient.connect(site, agent.session_id) as link:
            await link.config()
            call = asyncio.ensure_future(link.call("caller_tool", params))
            reply = asyncio.ensure_future(answer(caller, event, result="the one"))
            assert (await call)["result"] == "the one"
            await reply
            assert (await link.call("caller_tool", params))["result"] == "the one"
        assert len(caller.of("caller_tool_request")) == 1


# ---------------------------------------------------------------- timeouts and errors


@pytest.mark.whole
async def test_a_progress_free_call_times_out_after_the_configured_time(site):
    """Configurable; the error has its kind on the socket."""
    async with ant(site) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "say here")
        await agent.turn()
        async with WireClient.connect(site, agent.session_id) as link:
            config = await link.config()
            assert config["params"]["call_timeout_seconds"] == 4.0
            own, began = OwnTime(), time.monotonic()
            call = asyncio.ensure_future(link.call("caller_tool", {"tool": "get_memory"}))
            event = await caller.event("caller_tool_request")
            reply = await call
        assert reply["error"]["code"] == -32000
        assert reply["error"]["data"] == {"kind": "timeout"}
        assert "within 4 seconds" in reply["error"]["message"]
        assert time.monotonic() - began > 3.9
        assert own.seconds() < 6
        with pytest.raises(ToolFailed, match="request not found or already resolved"):
            await answer(caller, event, result="too late")


@pytest.mark.parametrize(
    "request_id", ["abc123", "00000000-0000-4000-8000-000000000000", "'; DROP TABLE events; --"]
)
async def test_an_invalid_request_id_changes_nothing_and_is_logged(site, kind, request_id):
    """Logged, pending calls untouched, isError."""
    async with ant(site, kind) as caller:
        await caller.listen()
        agent = await site.spawn(caller, "call ant_get_memory {}")
        event = await caller.event("caller_tool_request")
        with pytest.raises(ToolFailed, match="request not found or already resolved"):
            await answer(caller, {**event, "request_id": request_id}, result="wrong")
        assert '"answer": "tool response"' in site.server.log()
        assert "request not open" in site.server.log()
        await answer(caller, event, result="right")
        assert (await agent.outcome())["text"] == "right"
