"""`oubliette-client` towards the agent: MCP over lines, in both generations, whatever comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.client.mcp_server import StdioMcpServer
from tests.unit.incontainer.fake_server import ADD, META, FakeServer, RawAgent

pytestmark = pytest.mark.anyio

BASE = ["session_message", "session_map", "session_events"]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_each_handshake_version_is_spoken_as_asked(version):
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        hello = await agent.handshake(version)
        assert hello["protocolVersion"] == version
        assert hello["capabilities"] == {"tools": {"listChanged": True}}
        assert await agent.tool_names() == [*BASE, "ant_add"]


async def test_an_unknown_version_is_answered_with_the_newest_handshake_version():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        assert (await agent.handshake("1999-01-01"))["protocolVersion"] == "2025-11-25"


async def test_the_tool_list_waits_for_the_first_configuration_and_has_its_tools():
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        listing = agent.start("tools/list")
        assert (await agent.ask("ping"))["result"] == {}  # the answer to the list is still out
        (await server.link()).config(ADD)
        listed = await agent.reply(listing)
        assert [tool["name"] for tool in listed["result"]["tools"]] == [*BASE, "ant_add"]


async def test_a_call_waits_on_for_a_server_that_comes_back_when_a_list_waits_no_longer():
    """A server that was killed may be away for longer than an agent waits for its tools."""
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        listing, wanted = agent.start("tools/list"), agent.call("ant_add")
        listed = await agent.reply(listing)
        assert [tool["name"] for tool in listed["result"]["tools"]] == BASE
        link = await server.link()
        link.config(ADD)
        link.answer(await link.request(), "there now")
        assert (await agent.reply(wanted))["result"]["content"][0]["text"] == "there now"


async def test_a_call_of_a_tool_that_is_not_there_yet_waits_for_the_first_configuration():
    """An agent that restarts its client remembers its tools and does not list them again."""
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        wanted, unwanted, cancelled = (
            agent.call("ant_add"),
            agent.call("nope"),
            agent.call("ant_add"),
        )
        agent.note("notifications/cancelled", requestId=cancelled)
        assert (await agent.ask("ping"))["result"] == {}
        link = await server.link()
        link.config(ADD)
        answerable, refused = await link.request(), await link.request()
        link.provides_no(refused)
        assert (await agent.reply(unwanted))["error"]["code"] == -32602
        link.answer(answerable, "there now")
        assert (await agent.reply(wanted))["result"]["content"][0]["text"] == "there now"


async def test_a_call_waits_on_when_the_link_breaks_before_the_first_configuration():
    """A server that is killed between pairing and its first line is followed by another one."""
    async with FakeServer(greet=False) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        wanted = agent.call("ant_add")
        assert (await agent.ask("ping"))["result"] == {}  # the call waits
        (await server.link()).cut()
        link = await server.link()
        link.config(ADD)
        link.answer(await link.request(), "there now")
        assert (await agent.reply(wanted))["result"]["content"][0]["text"] == "there now"


async def test_without_a_relay_the_tool_list_comes_at_once():
    async with RawAgent("/tmp/there-is-no-such-relay.sock") as agent:
        await agent.handshake()
        assert await agent.tool_names() == BASE


async def test_a_request_before_initialize_is_refused_but_ping_is_answered():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        assert (await agent.ask("ping"))["result"] == {}
        assert (await agent.ask("tools/list"))["error"]["code"] == -32602


async def test_pipelined_requests_behind_initialize_are_answered():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        first = agent.start(
            "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={}
        )
        second = agent.start("tools/list")
        assert (await agent.reply(first))["result"]["protocolVersion"] == "2025-11-25"
        assert len((await agent.reply(second))["result"]["tools"]) == 4


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"garbage", -32700),
        (b'{"jsonrpc": "2.0", "id": 1', -32700),
        (b"\xff\xfe{}", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b'"text"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', -32700),
        (b'{"jsonrpc": "2.0", "id": 1e999, "method": "ping"}', -32600),
    ],
)
async def test_a_broken_line_is_answered_with_a_reason_and_serving_goes_on(line, code):
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.send(line)
        reply = await agent.receive()
        assert reply["id"] is None
        assert reply["error"]["code"] == code
        assert len(reply["error"]["message"]) > 5
        assert (await agent.ask("ping"))["result"] == {}


@pytest.mark.parametrize("number", [b"Infinity", b"-Infinity", b"NaN"])
async def test_a_request_with_a_number_that_is_no_json_is_answered_under_its_id(number):
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.send(b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"x": %b}}' % number)
        reply = await agent.receive()
        assert (reply["id"], reply["error"]["code"]) == (7, -32700)


@pytest.mark.parametrize("request_id", ["seven", "", "é\U0001f600", 0, -5, 1.5, 2**63, 10**400])
async def test_any_string_or_number_serves_as_a_request_id(request_id):
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.send({"jsonrpc": "2.0", "id": request_id, "method": "ping"})
        assert await agent.receive() == {"jsonrpc": "2.0", "id": request_id, "result": {}}


async def test_a_line_above_16_mib_is_answered_to_the_request_it_carried():
    big = "x" * (17 << 20)
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.send({"jsonrpc": "2.0", "id": "first", "method": "ping", "params": {"x": big}})
        agent.send({"method": "ping", "params": {"x": big}, "jsonrpc": "2.0", "id": 8})
        agent.send({"jsonrpc": "2.0", "method": "ping", "params": {"x": big}})
        for expected in ("first", 8, None):
            reply = await agent.receive()
            assert reply["id"] == expected
            assert reply["error"]["code"] == -32600
            assert "16777216" in reply["error"]["message"]
        assert (await agent.ask("ping"))["result"] == {}


async def test_notifications_and_answers_of_the_agent_get_no_reply():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.note("notifications/whatever", x=1)
        agent.send({"jsonrpc": "2.0", "method": "ping"})
        agent.send({"jsonrpc": "2.0", "id": 99, "result": {}})
        agent.send({"jsonrpc": "2.0", "id": 99, "error": {"code": 1, "message": "x"}})
        agent.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]})
        agent.send(b"", b"  \r")
        assert (await agent.ask("ping"))["result"] == {}


@pytest.mark.parametrize(
    "method", ["nope", "resources/list", "prompts/list", "logging/setLevel", "server/discover"]
)
async def test_a_method_that_is_not_served_is_named_in_the_error(method):
    async with FakeServer() as server, RawAgent(server.path) as agent:
        await agent.handshake()
        error = (await agent.ask(method))["error"]
        assert error["code"] == -32601
        assert method in error["message"]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": 5},
        {"name": "ant_add", "arguments": [1]},
        {"name": "ant_add", "arguments": "x"},
    ],
)
async def test_a_tool_call_that_is_no_call_is_refused(params):
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        assert (await agent.ask("tools/call", **params))["error"]["code"] == -32602


async def test_params_that_are_no_object_are_refused():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.send({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": [1]})
        assert (await agent.receive())["error"]["code"] == -32602


async def test_an_id_in_use_is_refused_and_the_first_request_goes_on():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake()
        await agent.tool_names()
        link = await server.link()
        call = {
            "jsonrpc": "2.0",
            "id": "same",
            "method": "tools/call",
            "params": {"name": "ant_add"},
        }
        agent.send(call, call)
        assert (await agent.receive())["error"]["code"] == -32600
        link.answer(await link.request("caller_tool"), "done")
        assert (await agent.receive())["result"]["content"][0]["text"] == "done"
        agent.send(call)  # the id is free again
        link.answer(await link.request("caller_tool"), "again")
        assert (await agent.receive())["result"]["content"][0]["text"] == "again"


# ---------------------------------------------------------------- arrays (2025-03-26)


async def test_an_array_of_requests_is_answered_by_one_array_when_all_have_ended():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake("2025-03-26")
        await agent.tool_names()
        link = await server.link()
        agent.send(
            [
                {
                    "jsonrpc": "2.0",
                    "id": "a",
                    "method": "tools/call",
                    "params": {"name": "ant_add"},
                },
                {"jsonrpc": "2.0", "id": "b", "method": "ping"},
                {"jsonrpc": "2.0", "method": "notifications/whatever"},
                {"jsonrpc": "2.0", "id": "c", "method": "nope"},
                5,
            ]
        )
        link.answer(await link.request("caller_tool"), {"n": 1})
        answers = {answer["id"]: answer for answer in await agent.receive()}
        assert answers.keys() == {"a", "b", "c", None}
        assert answers["a"]["result"]["structuredContent"] == {"n": 1}
        assert answers["b"]["result"] == {}
        assert answers["c"]["error"]["code"] == -32601
        assert answers[None]["error"]["code"] == -32600


async def test_an_array_of_notifications_has_no_answer_and_a_cancelled_member_none_either():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.handshake("2025-03-26")
        await agent.tool_names()
        agent.send(
            [
                {"jsonrpc": "2.0", "method": "notifications/x"},
                {"jsonrpc": "2.0", "id": 1, "result": {}},
            ]
        )
        call = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "ant_add"}}
        agent.send([call, {"jsonrpc": "2.0", "id": "b", "method": "ping"}])
        agent.note("notifications/cancelled", requestId="a")
        assert [answer["id"] for answer in await agent.receive()] == ["b"]


async def test_initialize_is_refused_inside_an_array():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        agent.send([{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}])
        assert [answer["error"]["code"] for answer in await agent.receive()] == [-32600]


# ---------------------------------------------------------------- 2026-07-28


async def test_discovery_names_the_version_and_later_results_carry_the_envelope():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        found = (await agent.ask_modern("server/discover"))["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        assert found["resultType"] == "complete"
        assert (found["ttlMs"], found["cacheScope"]) == (0, "private")
        listed = (await agent.ask_modern("tools/list"))["result"]
        assert [tool["name"] for tool in listed["tools"]] == [*BASE, "ant_add"]
        assert (listed["ttlMs"], listed["cacheScope"], listed["resultType"]) == (
            0,
            "private",
            "complete",
        )
        assert listed["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "oubliette-client"


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({**META, "io.modelcontextprotocol/protocolVersion": "2027-01-01"}, -32022),
        ({"io.modelcontextprotocol/protocolVersion": "2026-07-28"}, -32602),
        ({**META, "io.modelcontextprotocol/protocolVersion": 5}, -32602),
    ],
)
async def test_a_broken_envelope_is_refused_as_the_official_server_refuses_it(meta, code):
    async with FakeServer() as server, RawAgent(server.path) as agent:
        error = (await agent.ask("server/discover", _meta=meta))["error"]
        assert error["code"] == code
        if code == -32022:
            assert error["data"] == {"supported": ["2026-07-28"], "requested": "2027-01-01"}


async def test_a_probe_alone_does_not_bind_the_agent_to_the_newer_generation():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.ask_modern("server/discover")
        await agent.handshake()
        assert await agent.tool_names() == [*BASE, "ant_add"]


async def test_the_generations_do_not_mix_on_one_connection():
    async with FakeServer() as server:
        async with RawAgent(server.path) as agent:
            await agent.ask_modern("tools/list")
            refused = (await agent.ask("initialize", protocolVersion="2025-11-25"))["error"]
            assert refused["code"] == -32022
            assert refused["data"]["supported"] == ["2026-07-28"]
            assert (await agent.ask("tools/list"))["error"]["code"] == -32602
            assert (await agent.ask_modern("ping"))["error"]["code"] == -32601
        async with RawAgent(server.path) as agent:
            await agent.handshake()
            assert (await agent.ask_modern("tools/list"))["error"]["code"] == -32600


async def test_a_subscription_is_acknowledged_told_of_changes_and_ends_with_its_cancellation():
    async with FakeServer(ADD) as server, RawAgent(server.path) as agent:
        await agent.ask_modern("tools/list")
        link = await server.link()
        listening = agent.start(
            "subscriptions/listen",
            _meta=META,
            notifications={"toolsListChanged": True, "promptsListChanged": True},
        )
        stamp = {"io.modelcontextprotocol/subscriptionId": listening}
        acknowledged = await agent.note_of("notifications/subscriptions/acknowledged")
        assert acknowledged["params"] == {
            "_meta": stamp,
            "notifications": {"toolsListChanged": True},
        }
        link.config(ADD, {"name": "other"})
        assert (await agent.note_of("notifications/tools/list_changed"))["params"] == {
            "_meta": stamp
        }
        agent.note("notifications/cancelled", requestId=listening)
        await agent.ask_modern("server/discover")
        link.config(ADD)
        called = agent.start("tools/call", _meta=META, name="ant_add")
        link.answer(await link.request("caller_tool"), 1)
        await agent.reply(called)
        assert agent.notes == []


async def test_a_subscription_without_a_filter_is_refused():
    async with FakeServer() as server, RawAgent(server.path) as agent:
        assert (await agent.ask_modern("subscriptions/listen"))["error"]["code"] == -32602


# ---------------------------------------------------------------- anything at all


class _Echo:
    def list_tools(self, request):
        request.answer({"tools": []})

    def call_tool(self, request, name, arguments):
        request.progress("half")
        request.answer({"content": [], "name": name, "arguments": arguments})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)
METHODS = [
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "server/discover",
    "subscriptions/listen",
    "notifications/cancelled",
    "x",
]
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON,
        "arguments": JSON,
        "requestId": JSON,
        "protocolVersion": JSON,
        "notifications": JSON,
        "_meta": st.one_of(JSON, st.just(META), st.fixed_dictionaries({"progressToken": JSON})),
    },
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0"])},
    optional={
        "id": st.one_of(st.integers(0, 3), st.text(max_size=2), JSON),
        "method": st.one_of(st.sampled_from(METHODS), JSON),
        "params": st.one_of(PARAMS, JSON),
    },
)


@given(st.lists(st.one_of(MESSAGES, JSON, st.lists(MESSAGES, max_size=3)), max_size=8))
def test_whatever_the_agent_sends_each_request_is_answered_exactly_once(messages):
    written = []
    server = StdioMcpServer(_Echo(), written.append)
    for message in messages:
        before = len(written)
        server.line(json.dumps(message).encode())
        replies = [json.loads(line) for line in written[before:]]
        answers = [reply for reply in replies if "method" not in reply]
        is_request = (
            isinstance(message, dict)
            and message.get("jsonrpc") == "2.0"
            and isinstance(message.get("method"), str)
            and isinstance(message.get("id"), (str, int, float))
            and not isinstance(message.get("id"), bool)
        )
        assert len(answers) <= 1
        if is_request and message["method"] != "subscriptions/listen":
            assert answers[0]["id"] == message["id"]
            assert ("result" in answers[0]) != ("error" in answers[0])


@given(st.binary(max_size=200))
def test_no_bytes_make_the_server_raise(data):
    written = []
    server = StdioMcpServer(_Echo(), written.append)
    for line in data.split(b"\n"):
        server.line(line)
    for line in written:
        json.loads(line)
