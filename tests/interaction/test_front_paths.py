"""Both ways that a call can take through the front say the same.

`direct` answers plain calls without the SDK; with it off, everything goes through the SDK. Each
case is sent to a front of either kind. What may differ is the form alone: the SDK answers a
handshake call as a stream of one event, the direct path as one document.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from typing import Any

import pytest

from oubliette.kit.fair_loop import working_for
from oubliette.mcp_front import sdk_sessions
from oubliette.mcp_front.direct_path import handler as direct_path
from oubliette.mcp_front.direct_path import plain_call
from tests.interaction.frontkit import World, world
from tests.selection import core

pytestmark = pytest.mark.anyio
modes = pytest.mark.parametrize("mode", ["auto", "legacy"])
paths = pytest.mark.parametrize("direct", [True, False], ids=["direct", "sdk"])

FORM = {
    "date", "content-length", "transfer-encoding", "content-type", "cache-control", "connection",
    "x-accel-buffering",
}  # fmt: skip
BOTH = "application/json, text/event-stream"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wire:
    """Requests as bytes, answers taken apart."""

    def __init__(self, w: World, mode: str) -> None:
        self.w, self.mode = w, mode
        self.key = w.key()
        self.session = ""
        host, port = w.front.url.split("/")[2].split(":")
        self.address = host, int(port)

    async def start(self) -> Wire:
        if self.mode == "legacy":
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            }
            _, headers, _ = await self.send(self.call(method="initialize", params=params))
            self.session = headers["mcp-session-id"]
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            await self.send(self.call("echo"))  # the session is begun for sure
        return self

    def call(self, tool: Any = "echo", /, **fields: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"name": tool, "arguments": fields.pop("arguments", {})}
        if self.mode == "auto":
            params["_meta"] = META
        return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **fields}

    def head(self, tool: str = "echo") -> dict[str, str]:
        head = {
            "Host": "localhost",
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Accept": BOTH,
        }
        if self.mode == "auto":
            head |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
            head["Mcp-Name"] = tool
        elif self.session:
            head |= {"MCP-Protocol-Version": "2025-11-25", "Mcp-Session-Id": self.session}
        return head

    @contextlib.asynccontextmanager
    async def open(
        self, body: Any, more: dict[str, str | None] | None = None, *, method: str = "POST",
        lines: str = "", tool: str = "echo",
    ):  # fmt: skip
        """A request that was sent; the connection is dropped at the end."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {**self.head(tool), **(more or {})}
        text = "".join(f"{name}: {value}\r\n" for name, value in head.items() if value is not None)
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(
            f"{method} /mcp HTTP/1.1\r\n{text}{lines}Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        try:
            yield reader
        finally:
            writer.transport.abort()

    async def send(self, body: Any, *args: Any, **kwargs: Any) -> tuple[int, dict[str, str], Any]:
        """Send a request; status, headers and the JSON-RPC message of the answer."""
        async with self.open(body, *args, **kwargs) as reader:
            return await answer_of(reader)


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    status = int((await reader.readline()).split()[1])
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    if headers.get("content-type", "").startswith("text/event-stream"):
        data = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
        body = data[0] if data else b""
    return status, headers, json.loads(body) if body[:1] in b"{[" and body else body.decode()


def same_form(answer: tuple[int, dict[str, str], Any], session: str) -> Any:
    """The answer without what its form and chance decide."""
    status, headers, body = answer
    kept = {name: value for name, value in headers.items() if name not in FORM}
    if "mcp-session-id" in kept:  # the SDK names a new one where it is asked to open one
        kept["mcp-session-id"] = "own" if kept["mcp-session-id"] == session else "new"
    text = json.dumps(body)
    if "under reference " in text:  # a crash: each has a reference of its own
        start = text.index("under reference ") + len("under reference ")
        text = text.replace(text[start : start + 8], "x" * 8)
    return status, kept, json.loads(text)


async def differences(mode: str, requests: dict[Any, Any], **settings: Any) -> dict[Any, Any]:
    """By case, what `request(wire)` gave on the direct path and on the SDK's, where they differ."""
    said: list[dict[Any, Any]] = []
    for direct in (True, False):
        async with world(direct=direct, **settings) as w, asyncio.timeout(60):
            wire = await Wire(w, mode).start()
            said.append(
                {
                    name: same_form(await request(wire), wire.session)
                    for name, request in requests.items()
                }
            )
    ours, theirs = said
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


# ---------------------------------------------------------------- the same answers

CALLS: dict[str, dict[str, Any]] = {
    "plain": {"arguments": {"text": "käse ☃", "deep": {"n": [1, None, 2**53, 0.1, -0.0, {}]}}},
    "a string for an id": {"id": "7"},
    "an empty string for an id": {"id": ""},
    "a large id": {"id": 2**70},
    "a negative id": {"id": -1},
    "a fraction for an id": {"id": 1.5},
    "a whole float for an id": {"id": 7.0},
    "true for an id": {"id": True},
    "null for an id": {"id": None},
    "an object for an id": {"id": {}},
    "another jsonrpc": {"jsonrpc": "1.0"},
    "a number for jsonrpc": {"jsonrpc": 2.0},
    "a member too many": {"extra": 1},
    "a result beside the method": {"result": {}},
    "no params": {"params": None},
    "params as a list": {"params": []},
    "another method": {"method": "tools/cal"},
    "a method that is no text": {"method": 7},
    "a prompt": {"method": "prompts/get"},
    "listing": {"method": "tools/list"},
}


@modes
async def test_requests_are_answered_alike(mode):
    requests = {
        name: lambda wire, fields=fields: wire.send(wire.call(**fields))
        for name, fields in CALLS.items()
    }
    assert await differences(mode, requests) == {}


PARAMS: dict[str, Any] = {
    "no name": {"name": None},
    "a number for a name": {"name": 7},
    "an unknown tool": {"name": "no_such_tool"},
    "a name of the inside": {"name": "__init__"},
    "null for arguments": {"arguments": None},
    "a list for arguments": {"arguments": [1]},
    "a text for arguments": {"arguments": "x"},
    "a task": {"task": {"ttl": 1000}},
    "a param too many": {"extra": 1},
    "answers of another round": {"inputResponses": {}},
    "a tool that refuses": {"name": "refuse"},
    "a tool that crashes": {"name": "crash"},
    "a larger answer": {"name": "big", "arguments": {"size": 300_000}},
    "numbers beyond 64 bits": {"arguments": {"n": 10**30}},
    "half a character": {"arguments": {"text": "\ud800"}},
    "a null byte": {"arguments": {"text": "\x00"}},
    "not a number": {"arguments": {"n": float("nan")}},
    "an infinite number": {"arguments": {"n": float("inf")}},
}


@modes
async def test_params_are_taken_alike(mode):
    async def request(wire: Wire, params: dict[str, Any]) -> Any:
        message = wire.call()
        message["params"] |= params
        return await wire.send(message, tool=str(message["params"]["name"]))

    requests = {
        name: lambda wire, params=params: request(wire, params) for name, params in PARAMS.items()
    }
    assert await differences(mode, requests) == {}


METAS: dict[str, Any] = {
    "null": None,
    "a list": [],
    "a progress token": {"progressToken": 1},
    "a text for a progress token": {"progressToken": "p"},
    "an object for a progress token": {"progressToken": {}},
    "true for a progress token": {"progressToken": True},
    "something of the client's own": {"claudecode/toolUseId": "toolu_1"},
    "a related task": {"io.modelcontextprotocol/related-task": {"taskId": "1"}},
    "the other generation's version": {"io.modelcontextprotocol/protocolVersion": "2025-11-25"},
    "no such version": {"io.modelcontextprotocol/protocolVersion": "2099-01-01"},
    "a number for a version": {"io.modelcontextprotocol/protocolVersion": 7},
    "a list for a version": {"io.modelcontextprotocol/protocolVersion": []},
    "null for capabilities": {"io.modelcontextprotocol/clientCapabilities": None},
    "a list for capabilities": {"io.modelcontextprotocol/clientCapabilities": []},
    "capabilities": {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}},
    "a client without a version": {"io.modelcontextprotocol/clientInfo": {"name": "x"}},
    "a client": {"io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"}},
    "a level": {"io.modelcontextprotocol/logLevel": "debug"},
    "no such level": {"io.modelcontextprotocol/logLevel": "loud"},
}


@modes
async def test_meta_is_taken_alike(mode):
    async def request(wire: Wire, meta: Any) -> Any:
        message = wire.call()
        if isinstance(meta, dict):
            meta = {**message["params"].get("_meta", {}), **meta}
        message["params"]["_meta"] = meta
        first = await wire.send(message)
        assert (await wire.send(message))[2] == first[2]  # what was remembered is no different
        return first

    requests = {name: lambda wire, meta=meta: request(wire, meta) for name, meta in METAS.items()}
    assert await differences(mode, requests) == {}


HEADS: dict[str, dict[str, str | None]] = {
    "no accept": {"Accept": None},
    "JSON alone": {"Accept": "application/json"},
    "events alone": {"Accept": "text/event-stream"},
    "anything": {"Accept": "*/*"},
    "wildcards": {"Accept": "application/*;q=0.5, TEXT/*"},
    "something else": {"Accept": "text/html"},
    "no content type": {"Content-Type": None},
    "a content type with a charset": {"Content-Type": "application/json; charset=utf-8"},
    "another content type": {"Content-Type": "text/plain"},
    "a content type in capitals": {"Content-Type": "Application/JSON"},
    "two content types": {"Content-Type": "text/plain, application/json"},
    "no version": {"MCP-Protocol-Version": None},
    "an older version": {"MCP-Protocol-Version": "2024-11-05"},
    "a version of the future": {"MCP-Protocol-Version": "2099-01-01"},
    "the other version": {"MCP-Protocol-Version": "2026-07-28"},
    "no session": {"Mcp-Session-Id": None},
    "an unknown session": {"Mcp-Session-Id": "0" * 32},
    "an empty session": {"Mcp-Session-Id": ""},
    "no method": {"Mcp-Method": None},
    "another method": {"Mcp-Method": "tools/list"},
    "no name": {"Mcp-Name": None},
    "another name": {"Mcp-Name": "wait"},
    "an encoded name": {"Mcp-Name": "=?base64?ZWNobw==?="},
    "a param": {"Mcp-Param-Text": "x"},
    "a last event": {"Last-Event-ID": "3"},
    "an encoding": {"Content-Encoding": "gzip"},
    "an unknown host": {"Host": "evil.example"},
    "an origin": {"Origin": "http://localhost:1"},
    "a strange origin": {"Origin": "http://evil.example"},
    "a wrong key": {"Authorization": "Bearer no"},
    "no key": {"Authorization": None},
}


@modes
async def test_headers_are_read_alike(mode):
    requests = {
        name: lambda wire, head=head: wire.send(wire.call(), head) for name, head in HEADS.items()
    }
    assert await differences(mode, requests) == {}


TWICE = ["Mcp-Name: echo", "MCP-Protocol-Version: 2026-07-28", "Mcp-Session-Id: x", "Accept: a/b"]


@modes
async def test_headers_that_come_twice_are_read_alike(mode):
    requests = {
        line: lambda wire, line=line: wire.send(wire.call(), lines=f"{line}\r\n") for line in TWICE
    }
    assert await differences(mode, requests) == {}


BODIES = [
    b"", b"{", b"[]", b"1", b"null", b"\x00", b"[" * 5000, b'{"jsonrpc":"2.0"}', b"\xff\xfe{",
    '\ufeff{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}'.encode(),
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}} x',
    b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}]',
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"echo"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"x","method":"tools/call","params":{"name":"echo"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"\\u006eame":"echo"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"refuse"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":1e400}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":"\xff"}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":'
    + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}}",
]  # fmt: skip


@modes
async def test_bodies_are_read_alike(mode):
    envelope = b'"params":{"_meta":' + json.dumps(META).encode() + b","
    sent = [body.replace(b'"params":{', envelope) if mode == "auto" else body for body in BODIES]
    requests = {number: lambda wire, body=body: wire.send(body) for number, body in enumerate(sent)}
    assert await differences(mode, requests) == {}


@modes
async def test_a_body_that_is_too_large_is_refused_alike(mode):
    async def request(wire: Wire) -> Any:
        answer = await wire.send(wire.call(arguments={"text": "x" * 120_000}))
        assert answer[0] == 413
        return answer

    assert await differences(mode, {"": request}, server={"max_body_bytes": 100_000}) == {}


@modes
async def test_the_session_of_another_principal_is_unknown_on_both(mode):
    async def request(wire: Wire) -> Any:
        wire.key = wire.w.key("bob")
        answer = await wire.send(wire.call())
        assert answer[0] == (404 if mode == "legacy" else 200)
        return answer

    assert await differences(mode, {"": request}) == {}


@paths
async def test_a_session_whose_handshake_was_refused_answers_no_calls(direct):
    async with world(direct=direct) as w, asyncio.timeout(60):
        wire = Wire(w, "legacy")
        params = {"protocolVersion": 1}
        _, headers, said = await wire.send(wire.call(method="initialize", params=params))
        assert "error" in said
        wire.session = headers["mcp-session-id"]
        status, _, _ = await wire.send(wire.call())
    assert status == 404
    assert w.calls == []


# ---------------------------------------------------------------- the path that is taken


@modes
@pytest.mark.parametrize(
    ("tool", "taken"), [("echo", True), ("refuse", True), ("caller_listen", False)]
)
async def test_plain_calls_go_past_the_sdk_and_streams_do_not(mode, tool, taken, monkeypatch):
    async with world() as w, asyncio.timeout(60):
        wire = await Wire(w, mode).start()
        through: list[str] = []
        serve = w.front._serve
        monkeypatch.setattr(w.front, "_serve", lambda *args: through.append(tool) or serve(*args))
        arguments = {"caller_id": "c", "max_seconds": 0} if tool == "caller_listen" else {}
        status, headers, _ = await wire.send(wire.call(tool, arguments=arguments), tool=tool)
    assert status == 200
    assert (not through) is taken
    if taken:
        assert headers["content-type"] == "application/json"


# ---------------------------------------------------------------- ends


async def waiting(w: World, count: int = 1) -> None:
    async with asyncio.timeout(30):
        while w.calls.count(("alice", "wait")) < count:
            await asyncio.sleep(0.005)


@paths
@pytest.mark.parametrize("request_id", [7, "7", "seven"])
async def test_a_call_that_its_client_cancels_is_answered_as_cancelled(direct, request_id):
    async with world(direct=direct) as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        async with wire.open(wire.call("wait", id=request_id)) as reader:
            await waiting(w)
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            other = {**note, "params": {"requestId": 8}}
            assert (await wire.send(other))[0] == 202
            right = {**note, "params": {"requestId": 7 if request_id == "7" else request_id}}
            assert (await wire.send(right))[0] == 202
            status, _, answer = await answer_of(reader)
        assert status == 200
        assert answer == {
            "jsonrpc": "2.0",
            "id": request_id,
            "error": {"code": -32800, "message": "Request cancelled"},
        }
        async with asyncio.timeout(30):
            while w.front.quotas.calls:
                await asyncio.sleep(0.01)


@paths
async def test_nobody_cancels_the_calls_of_another_session(direct):
    async with world(direct=direct) as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        other = await Wire(w, "legacy").start()
        async with wire.open(wire.call("wait")) as reader:
            await waiting(w)
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
            body = {**note, "params": {"requestId": 7}}
            assert (await other.send(body))[0] == 202
            other.session, other.key = wire.session, w.key("bob")
            assert (await other.send(body))[0] == 404
            w.gate.set()
            _, _, answer = await answer_of(reader)
        assert answer["result"]["structuredContent"] == {"waited": True}


@paths
@modes
async def test_a_client_that_drops_its_connection(direct, mode, monkeypatch):
    """It cancels the call in the newer generation, and nothing in the older one."""
    ended: list[str] = []

    async def wait(self: World, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            await self.gate.wait()
            ended.append("done")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return {}

    monkeypatch.setattr(World, "tool_wait", wait)
    async with world(direct=direct, callers={"max_calls_in_flight": 1}) as w, asyncio.timeout(60):
        wire = await Wire(w, mode).start()
        async with wire.open(wire.call("wait"), tool="wait"):
            await waiting(w)
        async with asyncio.timeout(30):
            while w.front.quotas.calls:
                await asyncio.sleep(0.01)
        assert (await wire.send(wire.call()))[0] == 200
        w.gate.set()
        async with asyncio.timeout(30):
            while not ended:
                await asyncio.sleep(0.01)
    assert ended == ["cancelled" if mode == "auto" else "done"]


@paths
async def test_a_session_that_is_deleted_takes_its_calls_with_it(direct):
    async with world(direct=direct) as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        async with wire.open(wire.call("wait"), tool="wait") as reader:
            await waiting(w)
            assert (await wire.send(b"", method="DELETE"))[0] == 200
            _, _, answer = await answer_of(reader)
        # The SDK ends the stream without an answer; its way to say so in a document is this one.
        said = "Session terminated before the request completed"
        assert answer == "" or answer["error"]["message"] == said
        assert (await wire.send(wire.call()))[0] == 404


async def test_a_stream_of_a_session_ends_whole_when_the_server_stops():
    async with world() as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        async with wire.open(b"", method="GET") as reader:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b"\r\n\r\n")
            await w.actor.stop(5)
            assert (await reader.read()).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("direct", core([True], [True, False]))
@modes
async def test_a_call_in_flight_is_told_that_the_server_stops(mode, direct):
    async with world(direct=direct) as w, asyncio.timeout(60):
        wire = await Wire(w, mode).start()
        async with wire.open(wire.call("wait"), tool="wait") as reader:
            await waiting(w)
            stopping = asyncio.ensure_future(w.actor.stop(5))
            status, _, answer = await answer_of(reader)
            await stopping
    result = answer["result"]
    assert (status, result["isError"]) == (200, True)
    assert result["_meta"]["dev.oubliette/error"]["code"] == "unavailable"
    assert "the server is stopping" in result["content"][0]["text"]
    assert "call again" in result["content"][0]["text"]


@modes
async def test_a_long_call_keeps_its_connection_awake(mode, monkeypatch):
    monkeypatch.setattr(direct_path, "SILENCE", 0.05)
    async with world() as w, asyncio.timeout(60):
        wire = await Wire(w, mode).start()
        async with wire.open(wire.call("wait"), tool="wait") as reader:
            await waiting(w)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            got = b""
            while got.count(b": ping\r\n\r\n") < 3:
                got += await reader.read(100)
            w.gate.set()
            while not got.endswith(b"0\r\n\r\n"):
                got += await reader.read(1000)
    (data,) = (line for line in got.split(b"\r\n") if line.startswith(b"data: "))
    assert json.loads(data[6:])["result"]["structuredContent"] == {"waited": True}


async def test_the_stream_of_a_call_is_work_for_its_principal(monkeypatch):
    """Not for the one whose call was the first to wait: it may be far behind."""
    monkeypatch.setattr(direct_path, "SILENCE", 0.01)
    worked_for: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    class Exchange:
        def __init__(self, principal: str) -> None:
            self.principal = principal

        async def send(self, _: Any) -> None:
            worked_for.put_nowait((self.principal, working_for.get()))

    keep_alives, streams = direct_path._KeepAlives(), []

    def call(principal: str) -> None:
        working_for.set(principal)
        exchange: Any = Exchange(principal)
        streams.append(direct_path._Stream(exchange, ()))
        keep_alives.add(streams[-1])

    for principal in ("alice", "bob"):
        contextvars.copy_context().run(call, principal)
    async with asyncio.timeout(10):
        seen = {await worked_for.get() for _ in range(4)}
    assert seen == {("alice", "alice"), ("bob", "bob")}
    for each in streams:
        each.close()
    keep_alives.stop()


async def test_a_call_in_hand_keeps_its_session_from_growing_old():
    async with world() as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        (session,) = w.front._sdk.sessions._server_instances.values()
        async with wire.open(wire.call("wait"), tool="wait") as reader:
            await waiting(w)
            assert session.idle_scope.deadline == float("inf")
            w.gate.set()
            await answer_of(reader)
        async with asyncio.timeout(30):
            while session.idle_scope.deadline == float("inf"):
                await asyncio.sleep(0.01)


async def test_a_sessions_deadline_counts_from_the_end_of_its_last_call(monkeypatch):
    monkeypatch.setattr(sdk_sessions, "SETTLING", 0.2)
    async with world() as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        (session,) = w.front._sdk.sessions._server_instances.values()
        while session.idle_scope.deadline == float("inf"):
            await asyncio.sleep(0.01)  # that of the calls with which it began
        loop = asyncio.get_running_loop()
        began = loop.time()
        await wire.send(wire.call())
        while session.idle_scope.deadline == float("inf"):
            await asyncio.sleep(0.01)
        ended = session.idle_scope.deadline - session._idle_timeout
        assert began <= ended <= loop.time() - 0.2 + 0.001


async def test_a_deadline_of_the_sdks_own_is_not_brought_forward(monkeypatch):
    monkeypatch.setattr(sdk_sessions, "SETTLING", 0.1)
    async with world() as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        (session,) = w.front._sdk.sessions._server_instances.values()
        await wire.send(wire.call())
        await wire.send({"jsonrpc": "2.0", "id": 99, "method": "ping"})
        while session.idle_scope.deadline == float("inf"):
            await asyncio.sleep(0.01)  # the SDK sets it when its own clean-up is over
        of_the_sdk = session.idle_scope.deadline
        while w.front._sdk.sessions._left:
            await asyncio.sleep(0.01)
        assert session.idle_scope.deadline == of_the_sdk


@modes
async def test_one_client_in_a_hurry_starves_no_other(mode):
    async with world() as w, asyncio.timeout(30):
        busy = [await Wire(w, mode).start() for _ in range(8)]
        quiet = await Wire(w, mode).start()
        done, counts = asyncio.Event(), [0] * len(busy)

        async def hurry(n: int) -> None:
            while not done.is_set():
                await busy[n].send(busy[n].call(arguments={"text": "x" * 50_000}))
                counts[n] += 1

        hurried = [asyncio.ensure_future(hurry(n)) for n in range(len(busy))]
        for _ in range(40):
            await quiet.send(quiet.call())
        done.set()
        await asyncio.gather(*hurried)
    # Each takes its turn: the quiet one waits for one call of each other's, not for all they have.
    assert max(counts) <= 3 * 40
    assert min(counts) >= 40 / 4


# ---------------------------------------------------------------- what is plain


def test_only_a_plain_call_is_read():
    head = {b"mcp-protocol-version": b"2025-11-25"}
    call = plain_call.read(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":1}}}',
        "handshake",
        head,
        sdk=True,
    )
    assert call is not None
    assert (call.params.name, call.arguments) == ("a", {"b": 1})
    for body in BODIES[:11]:
        assert plain_call.read(body, "handshake", head, sdk=True) is None


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"method":"notifications/cancelled","params":{"requestId":7}}', 7),
        (b'{"method":"notifications/cancelled","params":{"requestId":"x"},"jsonrpc":"2.0"}', "x"),
        (b'{"method":"notifications/cancelled","params":{"requestId":true}}', None),
        (b'{"method":"notifications/cancelled","params":{}}', None),
        (b'{"method":"notifications/cancelled"}', None),
        (b'{"method":"notifications/cancelled","params":{"requestId":7},"id":1}', None),
        (b'{"method":"notifications/progress","params":{"requestId":7}}', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_only_a_cancellation_cancels(body, found):
    assert plain_call.cancelled(body) == found
