"""Tools of MCP servers are forwarded: in process, over stdio and over HTTP, with real servers."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from mcp import Client, ClientSession, StdioServerParameters, types
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from oubliette.api.tools import (
    BadTool,
    Call,
    PreparedTool,
    ToolCallRefused,
    mcp,
    opened_table,
    tool_table,
)
from tests.selection import core

pytestmark = [pytest.mark.anyio]
PROGRAM = [sys.executable, str(Path(__file__).with_name("mcp_stdio_server.py"))]


class Sum(BaseModel):
    total: int


def a_server() -> MCPServer:
    server = MCPServer("sums")

    @server.tool()
    def add(a: int, b: int = 1) -> Sum:
        """Add two numbers."""
        return Sum(total=a + b)

    @server.tool(structured_output=False)
    def greet(name: str) -> str:
        """Greet."""
        return f"Hello {name}"

    @server.tool()
    def fail() -> str:
        """Fail."""
        raise ToolError("out of order")

    @server.tool()
    async def hang(ctx: Context) -> str:
        """Work for long."""
        await ctx.report_progress(1, 2, "half way")
        await asyncio.Event().wait()
        return "never"

    return server


@asynccontextmanager
async def opened(*tools: object):
    async with AsyncExitStack() as stack:
        with anyio.fail_after(30):
            yield await opened_table(tools, stack)


async def refusal(ready: PreparedTool, arguments: dict[str, Any], call: Call | None = None) -> str:
    with anyio.fail_after(20), pytest.raises(ToolCallRefused) as refused:
        await ready.run(arguments, call or Call())
    return str(refused.value)


async def test_the_tools_of_a_server_in_the_process_are_forwarded(no_leaked_tasks):
    async with opened(mcp(a_server(), prefix="my_", durable=True)) as table:
        assert list(table) == ["my_add", "my_greet", "my_fail", "my_hang"]
        add = table["my_add"]
        assert add.description == "Add two numbers."
        assert add.durable
        assert add.input_schema["required"] == ["a"]
        assert await add.run({"a": 1}, Call()) == {"total": 2}
        assert await table["my_greet"].run({"name": "Ann"}, Call()) == "Hello Ann"
        assert "out of order" in await refusal(table["my_fail"], {})
        assert "a" in await refusal(add, {"a": "x"})


@pytest.mark.parametrize(
    "default", [2**64, [[[]]] * 2**20, "\ud800", float("inf")], ids=["int", "many", "half", "inf"]
)
async def test_a_tool_whose_schema_could_not_be_sent_is_refused_by_its_name(default: Any):
    class Odd(PreparedTool):
        name = "odd"
        description = "Odd."
        input_schema = {"type": "object", "properties": {"x": {"default": default}}}

        async def run(self, arguments: dict[str, Any], call: Call) -> Any:
            return None

    with pytest.raises(BadTool, match=r"inputSchema"):
        tool_table([Odd()])


async def test_what_a_server_answers_can_be_sent_or_is_refused(no_leaked_tasks):
    server = MCPServer("odd")

    @server.tool()
    def number() -> dict[str, Any]:
        return {"n": [2**64]}

    @server.tool()
    def fail() -> str:
        raise ToolError("no" * 100_000)

    async with opened(mcp(server)) as table:
        assert "n[0]: an integer of more than 64 bits" in await refusal(table["number"], {})
        assert len(await refusal(table["fail"], {})) <= 64 * 1024


async def test_progress_and_cancellation_are_forwarded(no_leaked_tasks):
    shown: list[str] = []
    working = asyncio.Event()
    call = Call(on_progress=lambda text: (shown.append(text), working.set()))
    async with opened(mcp(a_server())) as table:
        task = asyncio.create_task(table["hang"].run({}, call))
        await working.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert call.cancelled
        assert await table["add"].run({"a": 1}, Call()) == {"total": 2}
    assert shown == ["half way"]


async def test_a_time_limit_ends_the_wait_for_a_server(no_leaked_tasks):
    async with opened(mcp(a_server(), timeout=0.05)) as table:
        assert await refusal(table["hang"], {}) == "hang: had no result within 0.05 s"


async def test_a_program_is_started_and_ended(no_leaked_tasks):
    async with opened(mcp(PROGRAM)) as table:
        assert list(table) == ["add", "greeting", "stop", "leave"]
        assert await table["add"].run({"a": 2, "b": 3}, Call()) == {"result": 5}


@pytest.mark.whole
async def test_a_program_may_have_an_environment(no_leaked_tasks, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # as in a notebook
    command, *arguments = PROGRAM
    target = StdioServerParameters(command=command, args=arguments, env={"GREETING": "Hi"})
    async with opened(mcp(target)) as table:
        assert await table["greeting"].run({}, Call()) == {"result": "Hi"}


@pytest.mark.whole
async def test_a_program_that_ends_in_a_call_is_started_again_at_the_next_one(no_leaked_tasks):
    async with opened(mcp(PROGRAM)) as table:
        said = await refusal(table["stop"], {})
        assert said.startswith("stop: the connection to mcp(")
        assert "may have been carried out" in said
        assert await table["add"].run({"a": 1}, Call()) == {"result": 2}


@pytest.mark.whole
async def test_a_program_that_ended_between_two_calls_is_started_again(no_leaked_tasks):
    async with opened(mcp(PROGRAM)) as table:
        assert await table["leave"].run({}, Call()) == {"result": "bye"}
        with anyio.fail_after(20):
            await table["add"]._server._link.lost.wait()
        assert await table["add"].run({"a": 1}, Call()) == {"result": 2}


class Site:
    """A server of tools by HTTP that can go away and come back at its address."""

    def __init__(self, kind: str) -> None:
        self._handshake = kind != "modern"
        self._unknown = 400 if kind == "handshake, 400" else 404
        """Status for an MCP session that it does not know: 404 in the protocol, 400 in many SDKs."""
        self.calls = 0
        self._cut = False
        self.status = 0
        """Status with which calls are refused."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self._app = a_server().streamable_http_app()
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen()
        config = uvicorn.Config(
            self._front, interface="asgi3", log_level="critical", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._serving

    def cut_the_next_call(self) -> None:
        self._cut = True

    async def _front(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        message = await receive()
        if self._handshake and b"server/discover" in message["body"]:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if b"tools/call" in message["body"]:
            self.calls += 1
            if self._cut:
                self._cut = False
                raise RuntimeError("broken in the middle of a call")
            if self.status:
                await send({"type": "http.response.start", "status": self.status, "headers": []})
                await send({"type": "http.response.body", "body": b"<html>no</html>"})
                return
        pieces = [message]

        async def again() -> Any:
            return pieces.pop() if pieces else await receive()

        async def sent(answer: Any) -> None:
            if answer.get("status") == 404:
                answer["status"] = self._unknown
            await send(answer)

        await self._app(scope, again, sent)


@pytest.fixture(params=["modern", "handshake", "handshake, 400"])
async def site(request):
    site = Site(request.param)
    await site.start()
    yield site
    await site.stop()


async def test_tools_by_url_work_again_after_their_server_was_away(site):
    async with opened(mcp(site.url)) as table:
        add = table["add"]
        assert await add.run({"a": 1}, Call()) == {"total": 2}
        await site.stop()
        for _ in range(2):
            said = await refusal(add, {"a": 1})
            assert said.startswith(f"add: mcp({site.url}): cannot be opened: ")
            assert said.endswith("the next call tries again")
        await site.start()
        assert await add.run({"a": 2}, Call()) == {"total": 3}


async def test_a_server_that_has_forgotten_its_sessions_takes_calls_at_once(site):
    async with opened(mcp(site.url)) as table:
        await site.stop()
        await site.start()
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(table["add"].run({"a": n}, Call())) for n in range(3)]
        assert [call.result() for call in calls] == [{"total": n + 1} for n in range(3)]


async def test_a_call_that_may_have_been_carried_out_is_not_sent_again(site):
    async with opened(mcp(site.url)) as table:
        site.cut_the_next_call()
        await refusal(table["add"], {"a": 1})
        assert site.calls == 1
        assert await table["add"].run({"a": 1}, Call()) == {"total": 2}
        assert site.calls == 2


@pytest.mark.parametrize("status", core([503], [401, 429, 503]))
async def test_a_refusal_by_http_is_told_with_its_status_and_the_next_call_is_sent(status, site):
    async with opened(mcp(site.url)) as table:
        site.status = status
        assert (await refusal(table["add"], {"a": 1})).endswith(f"(HTTP {status})")
        site.status = 0
        assert await table["add"].run({"a": 1}, Call()) == {"total": 2}
        assert site.calls == 2


@pytest.mark.whole
async def test_the_stack_may_be_closed_in_another_task(no_leaked_tasks):
    stack = AsyncExitStack()
    table = await opened_table([mcp(PROGRAM), mcp(a_server(), prefix="my_")], stack)
    assert await table["my_add"].run({"a": 1}, Call()) == {"total": 2}
    await asyncio.create_task(stack.aclose())


async def test_cancelling_the_opening_leaves_nothing_behind(no_leaked_tasks):
    started = asyncio.Event()

    async def greeted(reader, writer):
        started.set()
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(greeted, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    silent = (
        f"import socket, sys; socket.create_connection(('127.0.0.1', {port})); sys.stdin.read()"
    )
    task = asyncio.create_task(mcp([sys.executable, "-c", silent]).open(AsyncExitStack()))
    with anyio.fail_after(20):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    listening.close()
    await listening.wait_closed()


async def test_a_program_that_cannot_be_started_is_refused_by_name(no_leaked_tasks):
    with pytest.raises(BadTool, match=r"mcp\(no-such-program …\): cannot be opened"):
        async with opened(mcp(["no-such-program", "--key=secret"])):
            pass


async def test_a_server_by_url_gets_the_headers(no_leaked_tasks):
    seen: list[str] = []
    app = a_server().streamable_http_app()

    async def front(scope, receive, send):
        if scope["type"] == "http":
            seen.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        await app(scope, receive, send)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        server = uvicorn.Server(
            uvicorn.Config(front, log_level="error", timeout_graceful_shutdown=1)
        )
        serving = asyncio.create_task(server.serve([listening]))
        try:
            async with opened(mcp(url, headers={"Authorization": "Bearer x"})) as table:
                assert await table["add"].run({"a": 1}, Call()) == {"total": 2}
                assert "out of order" in await refusal(table["fail"], {})
        finally:
            server.should_exit = True
            await serving
    assert set(seen) == {"Bearer x"}


async def test_a_url_where_nothing_listens_is_refused_without_its_secrets(no_leaked_tasks):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}/mcp?key=secret"
        with pytest.raises(BadTool) as refused:
            async with opened(mcp(target)):
                pass
    assert "secret" not in repr(mcp(target))
    assert "cannot be opened" in str(refused.value)


@pytest.mark.parametrize(
    "target", ["http://u:s3/cr@h/mcp", "htp://u:s3cr@h", "http://:s3cr", "http://[u:s3cr@h/mcp"]
)
def test_a_malformed_url_is_refused_without_parts_of_its_password(target):
    with pytest.raises(BadTool) as refused:
        mcp(target)
    assert "s3" not in str(refused.value)
    assert "cr" not in str(refused.value).replace("encrypted", "")


async def test_a_client_that_is_connected_is_used_and_stays_connected(no_leaked_tasks):
    async with Client(a_server()) as client:
        async with opened(mcp(client)) as table:
            assert await table["add"].run({"a": 1}, Call()) == {"total": 2}
        async with opened(mcp(client.session)) as table:
            assert isinstance(client.session, ClientSession)
            assert await table["add"].run({"a": 1}, Call()) == {"total": 2}
        assert len((await client.list_tools()).tools) == 4


async def test_a_client_that_is_not_connected_is_connected_for_as_long(no_leaked_tasks):
    client = Client(a_server())
    async with opened(mcp(client)) as table:
        assert await table["greet"].run({"name": "Bob"}, Call()) == "Hello Bob"
    with pytest.raises(RuntimeError):
        _ = client.session


def listing(*pages: tuple[list[str], str | None], **definition: Any) -> Server:
    """A server whose tools come in these pages, each with the cursor behind it."""
    asked: list[str | None] = []
    definition = {"input_schema": {"type": "object"}, **definition}

    async def lists(_: Any, params: Any) -> types.ListToolsResult:
        asked.append(params.cursor if params is not None else None)
        names, cursor = pages[min(len(asked), len(pages)) - 1]
        tools = [types.Tool(name=name, **definition) for name in names]
        return types.ListToolsResult(tools=tools, next_cursor=cursor)

    async def called(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])

    return Server("listing", on_list_tools=lists, on_call_tool=called)


@pytest.mark.parametrize(
    ("names", "offered"),
    [
        (["a b", "a/b"], {"a_b": "a b", "a_b_2": "a/b"}),
        (["a b", "a_b", "a.b"], {"a_b": "a_b", "a_b_2": "a b", "a.b": "a.b"}),
        (["a b", "a_b_2", "a/b"], {"a_b": "a b", "a_b_2": "a_b_2", "a_b_3": "a/b"}),
        (["検索", "削除", "Suche"], {"__": "検索", "___2": "削除", "Suche": "Suche"}),
        (["x" * 130, "x" * 131], {"x" * 128: "x" * 130, "x" * 126 + "_2": "x" * 131}),
        (["a", "a", "b"], {"a": "a", "b": "b"}),
    ],
)
async def test_tools_whose_names_become_one_get_suffixes(names, offered, caplog):
    async with opened(mcp(listing((names, None)))) as table:
        said = {name: await tool.run({}, Call()) for name, tool in table.items()}
        assert said == offered
        for name, remote in offered.items():
            assert remote == name or remote in table[name].description
    assert ("offered as" in caplog.text or "listed twice" in caplog.text) == (names[0] != "Suche")


@pytest.mark.parametrize(
    ("pages", "names", "warned"),
    [
        ([(["a"], "1"), (["b"], "")], ["a", "b"], ""),
        ([(["a"], "")], ["a"], ""),
        ([(["a"], "1"), (["b"], "1")], ["a", "b"], "goes round"),
        ([(["a"], "1")], ["a"], "goes round"),
        ([(["a"], "1"), (["b"], "2"), (["c"], "1")], ["a", "b", "c"], "goes round"),
        ([([f"t{n}"], str(n)) for n in range(102)], [f"t{n}" for n in range(100)], "100 pages"),
    ],
)
async def test_a_listing_that_never_ends_is_ended_and_its_tools_are_offered(
    pages, names, warned, caplog
):
    async with opened(mcp(listing(*pages))) as table:
        assert list(table) == names
        assert await table["a" if "a" in table else "t7"].run({}, Call()) in {"a", "t7"}
    assert warned in caplog.text
    assert bool(warned) == ("WARNING" in caplog.text)


A_REF = {"$ref": "https://example.org/order.json"}
NAMED = {"type": "object", "properties": {"a": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "offered", "reason"),
    [
        ({**NAMED, "properties": {"a": A_REF}, "required": ["a", "b"]}, NAMED, "another document"),
        ({**NAMED, "title": "x" * 70_000}, NAMED, "at most 65536"),
        ({**NAMED, "properties": {"a": {"default": 1 << 70}}}, NAMED, "64 bits"),
        ({"type": "object", "properties": {"x" * 70_000: {}}}, {"type": "object"}, "at most 65536"),
    ],
    ids=["ref", "size", "integer", "names"],
)
async def test_a_tool_whose_schema_no_server_takes_is_offered_with_less_of_it(
    schema, offered, reason, caplog
):
    async with opened(mcp(listing((["odd", "b"], None), input_schema=schema))) as table:
        assert list(table) == ["odd", "b"]
        assert table["odd"].input_schema == offered
        assert await table["odd"].run({"a": 1}, Call()) == "odd"
    assert reason in caplog.text


async def test_a_description_that_is_too_long_is_cut(caplog):
    async with opened(mcp(listing((["odd"], None), description="é" * 70_000))) as table:
        assert table["odd"].description == "é" * 65_536
    assert "description" in caplog.text


async def test_two_servers_with_tools_of_one_name_need_prefixes(no_leaked_tasks):
    with pytest.raises(BadTool, match="two tools are named add"):
        async with opened(mcp(a_server()), mcp(a_server())):
            pass


@pytest.mark.parametrize(
    ("target", "options", "named"),
    [
        ("uvx thing", {}, "a program is a list"),
        ([], {}, "list of strings"),
        (["a", 3], {}, "list of strings"),
        (PROGRAM, {"headers": {"a": "b"}}, "headers are for a URL"),
        ("http://x/", {"prefix": "a b"}, "prefix"),
        ("http://x/", {"timeout": 0}, "timeout"),
    ],
)
def test_a_bad_target_is_refused_at_once(target, options, named):
    with pytest.raises(BadTool, match=named):
        mcp(target, **options)


async def test_an_object_that_is_no_server_is_refused_when_it_is_opened(no_leaked_tasks):
    with pytest.raises(BadTool, match="cannot be opened"):
        async with opened(mcp(object())):
            pass


async def test_a_client_of_mcp_lists_tools_with_our_schemas_as_they_are(no_leaked_tasks):
    def find(number: str, sums: list[Sum] | None = None) -> None:
        """Find.

        Args:
            number: of the order.
        """

    ready = tool_table([find])["find"]
    listed = types.ListToolsResult(tools=[types.Tool.model_validate(ready.definition)])

    async def on_list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return listed

    async with Client(Server("ours", on_list_tools=on_list_tools)) as client:
        (found,) = (await client.list_tools()).tools
    assert (found.name, found.description) == ("find", "Find.")
    assert found.input_schema == ready.input_schema
