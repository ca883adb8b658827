"""What nobody should send, and what the front makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
from typing import Any

import pytest
import structlog

from oubliette.json_values import MAX_VALUES
from oubliette.kit.fair_loop import run_fairly
from oubliette.mcp_front.transport import error_responses, http_protocol, open_connections
from tests.callers import HttpCaller, ToolFailed
from tests.http_client import HttpClient, HttpError
from tests.interaction.frontkit import World, world
from tests.interaction.test_front_paths import Wire
from tests.selection import core

pytestmark = pytest.mark.anyio
modes = pytest.mark.parametrize("mode", ["auto", "legacy"])

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}


async def status(w: World, method: str = "POST", **kwargs) -> tuple[int, str, dict[str, str]]:
    headers = {"authorization": f"Bearer {kwargs.pop('key', None) or w.key()}"}
    headers.update(kwargs.pop("headers", {}))
    client = HttpClient(w.front.url)
    kwargs.setdefault("json_body", INITIALIZE)
    try:
        async with client.request(method, headers=headers, **kwargs) as response:
            return response.status, (await response.body()).decode(), response.headers
    finally:
        await client.aclose()


async def raw(w: World, data: bytes, timeout: float = 5.0) -> bytes:
    """Send bytes, and read until the server closes."""
    host, port = w.front.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(timeout):
            with contextlib.suppress(ConnectionError):
                return await reader.read()
        return b""
    finally:
        writer.close()


# ---------------------------------------------------------------- names and keys


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("localhost:80@evil", 421),
        ("", 421),
        ("named.example:99", 200),
        ("exact.example:5", 200),
        ("exact.example:6", 421),
    ],
)
async def test_only_our_own_names_are_answered(host, expected):
    hosts = ("named.example:*", "exact.example:5")
    async with world(server={"allowed_hosts": hosts}) as w, asyncio.timeout(60):
        got, _, _ = await status(w, headers={"host": host})
    assert got == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:5173", 200),
        ("https://127.0.0.1", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("https://app.example", 200),
        ("https://app.example:8443", 403),
    ],
)
async def test_pages_of_other_origins_are_refused(origin, expected):
    async with world(server={"allowed_origins": ("https://app.example",)}) as w:
        async with asyncio.timeout(10):
            got, _, _ = await status(w, headers={"origin": origin})
    assert got == expected


async def test_keys_that_are_no_good_are_refused_before_anything_is_read():
    async with world() as w, asyncio.timeout(60):
        good = w.key()
        for key in ("", "wrong", good + "x", "\xff\xfe", "a" * 5000):
            got, body, headers = await status(w, headers={"authorization": f"Bearer {key}"})
            assert got == 401, key[:20]
            challenge = headers["www-authenticate"]
            assert challenge.startswith('Bearer realm="oubliette", error="invalid_token", ')
            assert "`oubliette token create` makes one" in challenge
            error = json.loads(body)["error"]
            assert error["code"] == -32001
            assert "`oubliette token create` makes one" in error["message"]
        for header in ("", good, f"Basic {good}", "Bearer"):
            assert (await status(w, headers={"authorization": header}))[0] == 401
        client = HttpClient(w.front.url)
        async with client.request("POST", json_body=INITIALIZE) as response:
            assert response.status == 401
            assert response.headers["www-authenticate"] == 'Bearer realm="oubliette"'
        await client.aclose()
        assert (await status(w, key=w.key(expires_at=time.time() - 1)))[0] == 401
        assert (await status(w, key=w.key(revoked_at=1.0)))[0] == 401
        assert (await status(w, key=w.key(transports=("socket",))))[0] == 401
        assert (await status(w, key=good))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/.well-known/oauth-protected-resource/mcp", 404),
        ("GET", "/.well-known/oauth-authorization-server", 404),
        ("GET", "/.well-known/openid-configuration", 404),
        ("POST", "/register", 400),
    ],
)
async def test_a_client_that_looks_for_oauth_is_told_about_the_key(method, path, expected):
    async with world() as w, asyncio.timeout(60):
        got, body, _ = await status(w, method, path=path, headers={"authorization": ""})
    assert got == expected
    told = json.loads(body)
    assert told["error"] == "access_denied"
    assert "takes API keys, not OAuth" in told["error_description"]
    assert "`oubliette token create` makes one" in told["error_description"]


@modes
async def test_a_listener_ends_when_its_key_is_revoked(mode):
    async with world() as w, asyncio.timeout(60):
        key = w.key()
        async with w.caller(mode=mode, key=key) as caller:
            await caller.listen()
            w.tokens[key] = w.key_with(w.tokens[key], revoked_at=time.time())
            await w.events({"n": 1})
            assert await caller.listener_ended() == "key revoked or expired"
            assert caller.of("message") == []


async def test_the_mcp_session_of_another_principal_does_not_exist():
    async with world() as w, w.caller("http", "legacy") as alice, asyncio.timeout(60):
        await alice.call("echo")
        for method in ("POST", "GET", "DELETE"):
            got, body, _ = await status(
                w,
                method,
                key=w.key("bob"),
                json_body=alice.message("tools/call", {"name": "echo", "arguments": {}}),
                headers={
                    "mcp-session-id": alice.session_id,
                    "mcp-protocol-version": "2025-11-25",
                },
            )
            assert got == 404, (method, body)
        second_key = await status(
            w,
            key=w.key("alice"),
            json_body=alice.message("tools/call", {"name": "echo", "arguments": {}}),
            headers={"mcp-session-id": alice.session_id, "mcp-protocol-version": "2025-11-25"},
        )
        assert second_key[0] == 200
        await alice.call("echo")


async def test_a_spawn_under_anothers_caller_id_does_not_bind_its_events():
    async with world() as w, w.caller("http", "legacy", key=w.key("bob")) as bob:
        async with asyncio.timeout(10):
            await bob.open_get_stream()
            await bob.call("session_spawn", caller_id="tester")
            await w.events({"n": 1}, principal="alice")
            await w.events({"n": 2}, principal="bob", session="gogol_2")
            await bob.event(n=2)
    assert [event.get("n") for event in bob.of("message")] == [2]


# ---------------------------------------------------------------- slow and large


async def test_a_head_that_never_ends_is_cut():
    async with world(server={"header_timeout_seconds": 0.3}) as w, asyncio.timeout(60):
        began = time.monotonic()
        silent, partial = await asyncio.gather(raw(w, b""), raw(w, b"POST /mcp HTTP/1.1\r\nHo"))
        assert 0.2 < time.monotonic() - began < 9  # 10 is what a server has without the setting
    assert partial.startswith(b"HTTP/1.1 408 ")
    assert silent.startswith(b"HTTP/1.1 408 ")


async def test_a_head_that_trickles_is_cut_on_a_used_connection_too():
    async with world(server={"header_timeout_seconds": 0.3}) as w, asyncio.timeout(60):
        host, port = w.front.url.split("/")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"}")
        ended = asyncio.ensure_future(reader.read())
        for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaaaaaaaaaaaaaa":
            writer.write(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.03):
                    await asyncio.shield(ended)
            if ended.done():
                break
        assert (await ended).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_a_body_that_never_comes_is_cut():
    async with world(body=0.3) as w, asyncio.timeout(60):
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {w.key()}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        )
        answer = await raw(w, head.encode())
        assert answer.startswith(b"HTTP/1.1 408 ")
        async with asyncio.timeout(30):
            while w.front.quotas.calls:
                await asyncio.sleep(0.01)


async def test_a_head_that_is_too_large_is_refused():
    async with world() as w, asyncio.timeout(60):
        answer = await raw(w, b"GET /health HTTP/1.1\r\nX: " + b"a" * 200_000)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))


@modes
async def test_a_body_that_is_too_large_is_refused(mode):
    async with world(server={"max_body_bytes": 100_000}) as w, w.caller(mode=mode) as caller:
        async with asyncio.timeout(10):
            with pytest.raises(HttpError) as caught:
                await caller.call("echo", text="x" * 120_000)
            assert caught.value.status == 413
            assert (await caller.call("echo", text="x" * 90_000))["principal"] == "alice"


@modes
@pytest.mark.parametrize("direct", [True, False])
async def test_a_body_of_too_many_values_is_refused_before_it_is_decoded(mode, direct):
    async with world(direct=direct) as w, w.caller(mode=mode) as caller, asyncio.timeout(60):
        with pytest.raises(HttpError) as caught:
            await caller.call("echo", x=[[1]] * 500_001)
        assert caught.value.status == 413
        assert f"'arguments': more than {MAX_VALUES} values" in str(caught.value)
        text = "[,{" * MAX_VALUES
        assert (await caller.call("echo", text=text))["said"] == {"text": text}


async def test_a_chunked_body_that_is_too_large_is_refused():
    async with world(server={"max_body_bytes": 100_000}, rest=0.3) as w, asyncio.timeout(60):
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {w.key()}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        answer = await raw(w, head.encode() + chunk * 8)
        assert answer.startswith(b"HTTP/1.1 413 ")


async def test_nonsense_is_answered_and_not_believed():
    async with world() as w, asyncio.timeout(60):
        good = {"content-type": "application/json"}
        for body in ("", "[]", "1", "null", '{"jsonrpc":"2.0"}', "[" * 5000, "\x00"):
            for version in ("2025-11-25", "2026-07-28", "1999-01-01"):
                head = (
                    f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {w.key()}\r\n"
                    f"Content-Type: application/json\r\nMCP-Protocol-Version: {version}\r\n"
                    "Accept: application/json, text/event-stream\r\nConnection: close\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}"
                )
                answer = await raw(w, head.encode())
                assert answer.startswith(b"HTTP/1.1 4"), (body[:20], version, answer[:200])
                assert b"Traceback" not in answer
        assert (await status(w, headers=good))[0] == 200
        for junk in (b"\x16\x03\x01\x02\x00", b"SSH-2.0-x\r\n\r\n", b"GET\r\n\r\n"):
            assert (await raw(w, junk)).startswith(b"HTTP/1.1 400 ")


# ---------------------------------------------------------------- too many, and too lazy


@modes
async def test_one_listener_too_many_is_told_the_limit(mode):
    async with world(callers={"max_listeners": 3}) as w, contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(15):
            key = w.key()
            callers = [
                await stack.enter_async_context(w.caller(mode=mode, key=key, caller_id=f"c{n}"))
                for n in range(4)
            ]
            for caller in callers[:3]:
                await caller.listen()
            with pytest.raises(ToolFailed, match="callers.max_listeners = 3"):
                await callers[3].call("caller_listen", caller_id="c3")
            async with w.caller(mode=mode, key=w.key("bob")) as bob:
                await bob.listen()
            await callers[0].stop_listening()
            async with asyncio.timeout(30):
                while w.front.quotas.listeners["alice"] > 2:
                    await asyncio.sleep(0.01)
            await callers[3].listen()


async def test_one_call_too_many_is_refused_and_others_are_served():
    async with world(callers={"max_calls_in_flight": 5}) as w, asyncio.timeout(60):
        key = w.key()
        async with w.caller(key=key) as caller, w.caller(key=w.key("bob")) as bob:
            await caller.listen()  # a listener is no call in flight
            waiting = [asyncio.ensure_future(caller.call("wait")) for _ in range(5)]
            while len(w.calls) < 6:
                await asyncio.sleep(0.005)
            with pytest.raises(HttpError) as caught:
                await caller.call("echo")
            assert caught.value.status == 429
            assert caught.value.headers["retry-after"] == "1"
            assert "max_calls_in_flight = 5" in json.loads(caught.value.body)["error"]["message"]
            assert (await bob.call("echo"))["principal"] == "bob"
            w.gate.set()
            assert await asyncio.gather(*waiting) == [{"waited": True}] * 5
            assert (await caller.call("echo"))["principal"] == "alice"


class Frozen:
    """A client that listens and then reads nothing any more."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    async def listen(self) -> None:
        http = self._caller.http
        body = self._caller.message(
            "tools/call", {"name": "caller_listen", "arguments": {"caller_id": "frozen"}}
        )
        headers = {**http.headers, "host": "localhost", "content-type": "application/json"}
        headers["accept"] = "application/json, text/event-stream"
        if self._caller.modern:
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
            headers["mcp-name"] = "caller_listen"
        text = json.dumps(body)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.socket.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, (http.host, http.port))
        head = f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(text)}\r\n\r\n{text}"
        await loop.sock_sendall(self.socket, head.encode())
        got = b""
        while b"listening" not in got:
            got += await loop.sock_recv(self.socket, 4096)


@pytest.mark.whole
@pytest.mark.parametrize("mode", core(["auto"], ["auto", "legacy"]))
async def test_a_client_that_does_not_read_is_cut_and_holds_up_nobody(mode):
    async with world(callers={"send_timeout_seconds": 4}) as w, asyncio.timeout(60):
        key = w.key()
        async with (
            w.caller(mode=mode, key=key, caller_id="frozen") as slow,
            w.caller(key=key) as ok,
        ):
            await ok.listen()
            frozen = Frozen(slow)
            await frozen.listen()
            waiter = await w.track(caller_id="frozen")
            for n in range(20):
                await w.events(
                    {"n": n, "text": "x" * 500_000}, caller_id="frozen", session="gogol_f"
                )
            for n in range(20):
                await w.events({"n": n})
            await ok.event(n=19)
            # Not even another call of the same MCP session waits for it.
            assert (await slow.call("echo"))["principal"] == "alice"
            assert not waiter.lost.done(), "the others were served before it was cut"
            assert (await waiter.lost).startswith("caller frozen is not connected")
            assert w.front.quotas.listeners["alice"] == 1
            frozen.socket.close()


async def test_a_client_that_does_not_read_its_answer_is_cut():
    async with world(callers={"send_timeout_seconds": 0.3}) as w, asyncio.timeout(60):
        async with w.caller() as caller:
            body = json.dumps(
                caller.message("tools/call", {"name": "big", "arguments": {"size": 9_000_000}})
            )
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {w.key()}\r\n"
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: big\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            host, port = w.front.url.split("/")[2].split(":")
            await loop.sock_connect(lazy, (host, int(port)))
            await loop.sock_sendall(lazy, head.encode())
            while ("alice", "big") not in w.calls:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(30):
                while w.front.connections:
                    await asyncio.sleep(0.02)


async def test_a_slow_reader_that_does_read_is_not_cut():
    async with world(callers={"send_timeout_seconds": 0.3}) as w, w.caller() as caller:
        async with asyncio.timeout(20):
            body = caller.message("tools/call", {"name": "big", "arguments": {"size": 3_000_000}})
            headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
            headers["mcp-name"] = "big"
            async with caller.http.request("POST", json_body=body, headers=headers) as response:
                reader = response._reader
                reader._transport.pause_reading()
                got = 0
                for _ in range(8):
                    await asyncio.sleep(0.1)
                    reader._transport.resume_reading()
                    got += len(await reader.read(200_000))
                reader._transport.resume_reading()
                got += len(
                    (await reader.readexactly(int(response.headers["content-length"]) - got))
                )
    assert got > 6_000_000


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.mark.parametrize("how", core(["length"], ["length", "chunks", "silence"]))
@pytest.mark.parametrize("direct", core([True], [True, False]))
async def test_a_client_that_goes_away_in_the_middle_of_a_body_is_no_error(how, direct, caplog):
    versions = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "echo",
    }
    async with world(direct=direct, pause=0.05) as w, asyncio.timeout(60):
        key = w.key()
        with structlog.testing.capture_logs() as logged:
            async with w.caller("http", "legacy", key=key) as caller:
                in_session = dict(caller.http.headers)
                for more in ({}, versions, in_session):
                    whole = post(key, PING, 400 if how != "chunks" else None, {**more})
                    if how == "chunks":
                        whole = whole.replace(b"Content-Length: 40", b"Transfer-Encoding: chunked")
                        whole = whole.replace(PING, b"%x\r\n%b" % (len(PING) + 9, PING))
                    reader, writer = await connected(w, whole, answered=False)
                    if how == "silence":
                        await reader.read()
                    writer.transport.abort()
                await caller.call("echo")
            while w.front.connections or w.front.quotas.calls:
                await asyncio.sleep(0.01)
    assert [each for each in logged if each["log_level"] in {"warning", "error"}] == []
    assert [each for each in caplog.records if each.levelname in {"WARNING", "ERROR"}] == []


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(
    key: str, body: bytes, length: int | None = None, more: dict[str, str] | None = None
) -> bytes:
    """The bytes of a request with a key; of a part of its body, if `length` is more."""
    given = {"authorization", "accept", "content-type"}
    lines = "".join(
        f"{name}: {value}\r\n" for name, value in (more or {}).items() if name.lower() not in given
    )
    return (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\n{lines}Content-Length: {length or len(body)}\r\n\r\n"
    ).encode() + body


async def connected(w: World, data: bytes, *, answered: bool) -> tuple[Any, Any]:
    """A connection on which this was sent; if it is to be answered, after the answer."""
    host, port = w.front.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    if answered:
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")
    return reader, writer


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("without a word", 30),
        ("idle without a key", 30),
        pytest.param("half a head", 30, marks=pytest.mark.whole),
        pytest.param("refused", 30, marks=pytest.mark.whole),
        ("idle with a key", 30),
        ("half a body", 30),
        pytest.param("mixed", 60, marks=pytest.mark.whole),
    ],
)
async def test_a_flood_of_connections_keeps_nobody_out(kind, count):
    """Those that are in use stay open, and a new client is served in the middle of it."""
    async with world(max_connections=10, rest=0.2) as w, asyncio.timeout(60):
        key = w.key("mallory")
        kinds = {
            "without a word": (b"", False),
            "idle without a key": (HEALTH, True),
            "half a head": (HEALTH[:30], False),
            "refused": (post("wrong", b"{}"), True),
            "idle with a key": (post(key, b"{}"), True),
            "half a body": (post(key, b"{", 400), False),
        }
        async with w.caller() as caller, w.caller() as early, contextlib.AsyncExitStack() as flood:
            await caller.listen()
            await caller.call("echo")
            assert (await early.call("echo"))["principal"] == "alice"
            for n in range(count):
                data, answered = kinds.get(kind) or list(kinds.values())[n % len(kinds)]
                _, writer = await connected(w, data, answered=answered)
                flood.callback(writer.close)
                if n % 10 == 9:
                    _, new = await connected(w, HEALTH, answered=True)
                    new.close()
                    async with w.caller() as other:
                        await other.call("echo")
            assert len(w.front.connections) <= 11  # one more is being closed at most
            await w.request("add", a=1, b=2)
            while not w.answers:  # its stream is still open
                await asyncio.sleep(0.01)
            assert (await caller.call("echo"))["principal"] == "alice"


async def test_connections_that_come_together_are_accepted_a_few_at_a_time():
    """Not all at one turn of the loop, at which nobody else would be served."""
    async with world() as w, contextlib.AsyncExitStack() as flood, asyncio.timeout(60):
        host, port = w.front.url.split("/")[2].split(":")
        for _ in range(100):  # by the kernel, while the loop stands
            flood.callback(socket.create_connection((host, int(port))).close)
        seen = [0]
        while seen[-1] < 100:
            await asyncio.sleep(0)
            seen.append(len(w.front.connections))
        assert max(b - a for a, b in itertools.pairwise(seen)) <= 4


async def again(w, flood, who):
    """A connection on which this principal was answered, and the request to send on it again."""
    client = Wire(w, "auto")
    client.key = w.key(who)
    data = json.dumps(client.call()).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in client.head().items())
    ask = f"POST /mcp HTTP/1.1\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    _, writer = await connected(w, ask, answered=True)
    flood.callback(writer.close)
    return writer, ask


@pytest.mark.parametrize("kind", ["good key", "wrong key", "other host", "health", "unknown path"])
async def test_a_request_waits_for_few_of_a_flood_that_came_before_it(kind, monkeypatch):
    """Of another principal, or of clients without a good key."""
    served, answer = [], error_responses.answer_json

    async def noted(*args, **more):
        served.append(1)
        await answer(*args, **more)

    monkeypatch.setattr(error_responses, "answer_json", noted)
    run_fairly(asyncio.get_running_loop())
    path = {"health": "/health", "unknown path": "/other"}.get(kind, "/mcp")
    host = "elsewhere" if kind == "other host" else "localhost"
    ask = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer wrong\r\n\r\n".encode()
    async with world() as w, contextlib.AsyncExitStack() as flood, asyncio.timeout(60):
        writers: list[asyncio.StreamWriter] = []
        alice, question = await again(w, flood, "alice")
        for _ in range(60):
            if kind == "good key":
                writer, ask = await again(w, flood, "mallory")
            else:
                _, writer = await connected(w, ask, answered=True)
                flood.callback(writer.close)
            writers.append(writer)
        w.calls.clear()
        served.clear()
        for writer in writers:
            writer.write(ask)
        alice.write(question)
        while ("alice", "echo") not in w.calls:
            await asyncio.sleep(0)
        assert len(w.calls) + len(served) <= 20


@pytest.mark.parametrize("kind", ["wrong key", "no key", "health", "unknown path", "other host"])
async def test_a_connection_without_a_good_key_has_a_rate_of_its_own(kind, monkeypatch):
    """What is above it waits; other connections do not, and one with a key does not."""
    monkeypatch.setattr(http_protocol, "STRANGER_RATE", 4.0)
    monkeypatch.setattr(http_protocol, "STRANGER_BURST", 10)
    path = {"health": "/health", "unknown path": "/other"}.get(kind, "/mcp")
    host = "elsewhere" if kind == "other host" else "localhost"
    key = "Authorization: Bearer wrong\r\n" if kind == "wrong key" else ""
    ask = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{key}\r\n".encode()
    async with world() as w, contextlib.AsyncExitStack() as open_ones, asyncio.timeout(60):
        began = time.monotonic()
        (reader, flood), (_, other) = [await connected(w, ask, answered=True) for _ in range(2)]
        for writer in (flood, other):
            open_ones.callback(writer.close)

        async def asked_again(count: int) -> float:
            for _ in range(count):
                flood.write(ask)
                await reader.readuntil(b"HTTP/1.1 ")
            return time.monotonic() - began

        await asked_again(9)
        monkeypatch.setattr(http_protocol, "STRANGER_RATE", 0.001)
        known, call = await again(w, open_ones, "alice")
        for number in range(20):
            known.write(call)
            while len(w.calls) < number + 2:
                await asyncio.sleep(0)
        monkeypatch.setattr(http_protocol, "STRANGER_RATE", 4.0)
        assert await asked_again(3) >= 0.45  # the first two that are too many


async def test_connections_in_use_of_one_principal_keep_nobody_out():
    async with world(max_connections=16) as w, asyncio.timeout(60):
        async with w.caller(key=w.key("mallory")) as mallory, w.caller() as early:
            assert (await early.call("echo"))["principal"] == "alice"
            held = []
            for _ in range(24):
                before = len(w.calls)
                held.append(asyncio.ensure_future(mallory.call("wait")))
                while len(w.calls) == before and not held[-1].done():
                    await asyncio.sleep(0.005)
            for _ in range(20):
                _, new = await connected(w, HEALTH, answered=True)
                async with w.caller(key=w.key("bob")) as other:
                    assert (await other.call("echo"))["principal"] == "bob"
                new.close()
            assert (await early.call("echo"))["principal"] == "alice"
            w.gate.set()
            ended = await asyncio.gather(*held, return_exceptions=True)
            assert 0 < sum(each == {"waited": True} for each in ended) < len(held)


@pytest.mark.slow
async def test_connections_without_a_key_are_kept_for_seconds_and_others_for_longer():
    async with world() as w, asyncio.timeout(60):
        stranger, one = await connected(w, HEALTH, answered=True)
        known, two = await connected(w, post(w.key(), b"{}"), answered=True)
        await stranger.read()  # until it is closed
        two.write(HEALTH)
        assert b" 200 OK" in await known.readuntil(b"200 OK")
        one.close()
        two.close()


async def test_a_flood_of_connections_is_logged_once_a_minute_with_its_number(monkeypatch):
    async with world(max_connections=10) as w, asyncio.timeout(60):
        with structlog.testing.capture_logs() as logged:
            async with contextlib.AsyncExitStack() as flood:
                for n in range(20):
                    _, writer = await connected(w, HEALTH, answered=True)
                    flood.callback(writer.close)
                now = time.monotonic()
                monkeypatch.setattr(open_connections, "time", Later(now + 61))
                _, writer = await connected(w, HEALTH, answered=True)
                flood.callback(writer.close)
    told = [each["count"] for each in logged if each["event"] == "too many connections"]
    assert told == [1, 10]


class Later:
    """Stands in for `time`."""

    def __init__(self, now: float) -> None:
        self.monotonic = lambda: now


async def test_a_trusted_page_is_told_that_it_may_ask_and_read():
    async with world(server={"allowed_origins": ("https://app.example",)}) as w:
        async with asyncio.timeout(10):
            page = {"origin": "https://app.example"}
            asked = await status(
                w,
                "OPTIONS",
                json_body=None,
                headers={
                    **page,
                    "authorization": "",
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization,content-type",
                },
            )
            answered = await status(w, headers=page)
            stranger = await status(w, "OPTIONS", headers={"origin": "https://evil.example"})
            unasked = await status(w)
    assert asked[0] == 204
    assert "authorization" in asked[2]["access-control-allow-headers"]
    assert asked[2]["access-control-allow-origin"] == "https://app.example"
    assert answered[2]["access-control-allow-origin"] == "https://app.example"
    assert "mcp-session-id" in answered[2]["access-control-expose-headers"]
    assert stranger[0] == 403
    assert "access-control-allow-origin" not in stranger[2]
    assert "access-control-allow-origin" not in unasked[2]


async def answer_head(w: World, message: dict, headers: dict[str, str]) -> bytes:
    """Send a request on a connection of its own; what comes up to the end of the answer itself."""
    host, port = w.front.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(message)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    got = b""
    try:
        while b"jsonrpc" not in got.partition(b"\r\n\r\n")[2]:
            piece = await reader.read(65536)
            assert piece, got
            got += piece
        return got
    finally:
        writer.close()


@modes
async def test_the_place_of_a_call_is_free_when_its_answer_is_out(mode):
    async with world(callers={"max_calls_in_flight": 1}) as w, asyncio.timeout(30):
        key = w.key()
        async with w.caller(mode=mode, key=key) as caller:
            headers = {**caller.http.headers}
            if mode == "auto":
                headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
                headers["mcp-name"] = "echo"
            for _ in range(60):
                message = caller.message("tools/call", {"name": "echo", "arguments": {}})
                assert (await answer_head(w, message, headers)).startswith(b"HTTP/1.1 200")
        assert not w.front.quotas.calls


@modes
async def test_listeners_that_leave_give_back_what_they_held(mode):
    async with world() as w, asyncio.timeout(60):
        key = w.key()
        for _ in range(5):
            async with w.caller(mode=mode, key=key) as caller:
                await caller.listen()
        async with asyncio.timeout(30):
            while w.front.quotas.calls or w.front.quotas.listeners:
                await asyncio.sleep(0.01)
