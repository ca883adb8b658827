"""The handshake sessions of a principal: how many there are, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from typing import Any

import pytest

from oubliette.mcp_front import sdk_sessions
from tests.interaction.frontkit import World, world
from tests.interaction.test_front_paths import Wire, answer_of

pytestmark = pytest.mark.anyio

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}
LIST = {"jsonrpc": "2.0", "id": 8, "method": "tools/list"}


async def opened(w: World, key: str) -> Wire:
    """A client that has opened a session with this key."""
    wire = Wire(w, "legacy")
    wire.key = key
    return await wire.start()


async def works(wire: Wire) -> bool:
    """Whether its session still answers."""
    status, _, _ = await wire.send(wire.call())
    assert status in {200, 404}
    return status == 200


def number(w: World) -> int:
    return len(w.front._sdk.sessions._server_instances)


async def until(w: World, count: int) -> None:
    async with asyncio.timeout(30):
        while number(w) != count:
            await asyncio.sleep(0.01)


async def test_one_session_too_many_ends_the_principals_own_that_was_unused_for_longest():
    async with world(callers={"max_mcp_sessions": 3}) as w, asyncio.timeout(60):
        alice, bob = w.key(), w.key("bob")
        other = await opened(w, bob)
        streaming = await opened(w, alice)
        async with streaming.open(b"", method="GET") as reader:
            await reader.readuntil(b"\r\n\r\n")
            early, late = await opened(w, alice), await opened(w, alice)
            assert await works(early)
            new = await opened(w, w.key())  # another key of the same principal
            assert [await works(each) for each in (streaming, early, late, new, other)] == [
                True, True, False, True, True,
            ]  # fmt: skip
        assert number(w) == 4


async def test_no_session_in_use_ends_for_a_new_one_which_is_refused_and_told_why():
    async with world(callers={"max_mcp_sessions": 2}) as w, asyncio.timeout(60):
        key = w.key()
        async with contextlib.AsyncExitStack() as streams:
            for _ in range(2):
                reader = await streams.enter_async_context(
                    (await opened(w, key)).open(b"", method="GET")
                )
                await reader.readuntil(b"\r\n\r\n")
            wire = Wire(w, "legacy")
            wire.key = key
            status, headers, said = await wire.send(wire.call(method="initialize", params=HELLO))
            assert "callers.max_mcp_sessions = 2" in said["error"]["message"]
            assert "DELETE" in said["error"]["message"]
            wire.session = headers.get("mcp-session-id", "none")
            assert not await works(wire)
            await until(w, 2)
        await until(w, 2)
        assert await works(await opened(w, key))  # the streams are closed: there is an unused one
        await until(w, 2)


async def test_a_request_that_opens_no_session_leaves_none():
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (b"", {"method": "GET"}),
        (b"", {"method": "GET", "more": {"Accept": "text/html"}}),
        (b"", {"method": "DELETE"}),
        (b"{", {}),
        ([], {}),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, {}),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {}),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, {}),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {**HELLO, "x": 1,
          "protocolVersion": 7}}, {}),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
         {"more": {"Accept": "application/json"}}),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
         {"more": {"Content-Type": "text/plain"}}),
    ]  # fmt: skip
    async with world(callers={"max_mcp_sessions": 2}) as w, asyncio.timeout(60):
        good = [await opened(w, w.key()) for _ in range(2)]
        for body, how in wrong:
            wire = Wire(w, "legacy")
            wire.key = good[0].key
            status, headers, said = await wire.send(body, **how)
            assert status >= 400 or "error" in said, (body, how)
            assert status == 200 or "mcp-session-id" not in headers, (body, how)
        # One whose client goes away before its body is complete leaves none either.
        async with wire.open(b"{", lines="Content-Length: 400\r\n"):
            pass
        await until(w, 2)
        assert all([await works(each) for each in good])  # and took the place of none


async def test_sessions_end_with_the_key_that_opened_them(monkeypatch):
    async with world() as w, asyncio.timeout(60):
        key = w.key()
        bad, good = await opened(w, key), await opened(w, w.key())
        async with bad.open(b"", method="GET") as reader:
            await reader.readuntil(b"\r\n\r\n")
            token = w.tokens[key]
            w.tokens[key] = w.key_with(token, revoked_at=time.time())
            w.front.key_ended(token.id)
            assert number(w) == 1
            await reader.readuntil(b"0\r\n\r\n")  # its stream ends
        assert await works(good)
        expires = time.time() + 3600
        monkeypatch.setattr(sdk_sessions, "time", AlmostAt(expires))
        brief = Wire(w, "legacy")
        brief.key = w.key(expires_at=expires)
        status, _, _ = await brief.send(brief.call(method="initialize", params=HELLO))
        assert status == 200
        await until(w, 1)
        assert await works(good)


class AlmostAt:
    """Stands in for `time`."""

    def __init__(self, end: float) -> None:
        self.time = lambda: end - 0.05


async def test_a_session_without_a_stream_ends_after_a_while(monkeypatch):
    monkeypatch.setattr(sdk_sessions, "SETTLING", 0.05)
    async with world(callers={"mcp_session_idle_seconds": 0.3}) as w, asyncio.timeout(60):
        streaming = await opened(w, w.key())
        async with streaming.open(b"", method="GET") as reader:
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(3):
                await opened(w, w.key())
            await until(w, 1)
            assert await works(streaming)
        await until(w, 0)
        assert not w.front._streams._sessions


async def test_sessions_share_the_list_of_tools(monkeypatch):
    names = {f"p{n}": {"type": "string"} for n in range(100)}
    schema = {"type": "object", "properties": names}
    tools = [{"name": f"t{n}", "description": "", "inputSchema": schema} for n in range(10)]
    monkeypatch.setattr(World, "list", lambda *_: tools)
    async with world() as w, asyncio.timeout(60):
        wires = [await opened(w, w.key()) for _ in range(5)]
        for wire in wires:
            _, _, said = await wire.send(LIST)
            assert [tool["inputSchema"] for tool in said["result"]["tools"]] == [schema] * 10
        del said
        assert number(w) == 5
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, dict) and each == names]
        assert len(kept) <= 1 + len(tools)  # ours, and one copy for all sessions


async def test_a_session_can_be_opened_again_after_it_has_ended():
    async with world(callers={"max_mcp_sessions": 1}) as w, asyncio.timeout(60):
        key = w.key()
        first = await opened(w, key)
        async with first.open(first.call("wait"), tool="wait") as reader:
            while ("alice", "wait") not in w.calls:
                await asyncio.sleep(0.005)
            wire = Wire(w, "legacy")
            wire.key = key
            _, _, said = await wire.send(wire.call(method="initialize", params=HELLO))
            assert "error" in said  # a call in flight is use, too
            w.gate.set()
            await answer_of(reader)
        again = await opened(w, key)
        assert [await works(each) for each in (first, again)] == [False, True]
        assert (await again.send(b"", method="DELETE"))[0] == 200
        await until(w, 0)


async def test_a_stream_ends_with_the_key_that_opened_it_and_its_session_stays():
    """The session is that of another key of the same principal."""
    async with world() as w, asyncio.timeout(60):
        first, second = w.key(), w.key()
        session = await opened(w, first)
        other = Wire(w, "legacy")
        other.key, other.session = second, session.session
        async with other.open(b"", method="GET") as reader:
            await reader.readuntil(b"\r\n\r\n")
            w.running.end(w.tokens[second].id)
            with contextlib.suppress(ConnectionError):
                await reader.read()
        async with session.open(b"", method="GET") as reader:
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        assert await works(session)
