"""Commands at the front: a WebSocket with a key, and clients that keep to nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.clock import SystemClock
from oubliette.errors import NotFound
from oubliette.incontainer import wire
from oubliette.mcp_front.command_streams import handler
from oubliette.mcp_front.command_streams.websocket import LARGEST
from oubliette.tools.auth.rate_limits import RateLimits
from tests.interaction.frontkit import World, world
from tests.web_socket import BINARY, CLOSE, PING, PONG, TEXT, Refused, command_socket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from oubliette.actors.container.attached_command import CommandClient

pytestmark = pytest.mark.anyio


class Echo:
    """In the place of commands: what a client types comes back, until it is gone."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.gone = asyncio.Event()
        self.unsent: Callable[[], int] = int
        """Bytes that wait for the client."""
        self.most = 0

    async def serve(self, context: Any, arguments: Any, client: CommandClient) -> None:
        self.asked.append((context.principal, arguments))
        if "flood" in arguments:
            await client.begin()
            with contextlib.suppress(ConnectionError):
                while True:
                    await client.write(wire.encode_frame(wire.STDOUT, 0, bytes(wire.MAX_FRAME)))
                    self.most = max(self.most, self.unsent())
            self.gone.set()
            return
        if "command" not in arguments:
            await client.fail({"error": {"code": "not_found", "message": str(NotFound("none"))}})
            return
        await client.begin()
        decoder = wire.FrameDecoder()
        try:
            while data := await client.read():
                for frame in decoder.feed(data):
                    await client.write(wire.encode_frame(wire.STDOUT, 0, frame.payload))
        finally:
            self.gone.set()


@contextlib.asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[World, Echo]]:
    echo = Echo()
    async with asyncio.timeout(60), world(**options) as w:
        w.front.serve_commands(echo)  # type: ignore[arg-type]
        yield w, echo


@pytest.mark.parametrize("parser", ["httptools", "h11"])
async def test_a_request_is_answered_and_frames_go_both_ways(parser):
    async with served(parser=parser) as (w, echo):
        async with command_socket(w.front.url, w.key("alice")) as socket:
            assert await socket.ask(command=["sh"]) == {"ok": {}}
            large = bytes(range(256)) * 300  # a message of several frames, cut anywhere
            frame = wire.encode_frame(wire.STDIN, 1, large)
            socket.message(BINARY, frame[:7], final=False)
            socket.message(PING, b"alive?")
            socket.message(0, frame[7:])
            assert await socket.receive() == (PONG, b"alive?")
            await socket.sees(large)
        await echo.gone.wait()
        assert echo.asked == [("alice", {"command": ["sh"]})]


async def test_a_refusal_is_an_answer_and_then_the_end():
    async with served() as (w, _), command_socket(w.front.url, w.key()) as socket:
        assert (await socket.ask(nothing=1))["error"]["code"] == "not_found"
        assert (await socket.receive())[0] == CLOSE
        assert await socket.reader.read() == b""


@pytest.mark.parametrize(
    ("key", "headers", "status"),
    [
        ("wrong", {}, 401),
        (None, {"Authorization": ""}, 401),
        (None, {"Upgrade": "tea"}, 426),
        (None, {"Upgrade": "", "Connection": ""}, 426),
        (None, {"Sec-WebSocket-Version": "12"}, 426),
        (None, {"Sec-WebSocket-Key": ""}, 426),
        (None, {"Origin": "https://evil.example"}, 403),
    ],
)
async def test_without_a_key_or_a_websocket_there_is_none(key, headers, status):
    async with served() as (w, echo):
        with pytest.raises(Refused) as refused:
            async with command_socket(w.front.url, key or w.key(), **headers):
                pass
        assert refused.value.status == status
        assert echo.asked == []


async def test_commands_count_as_calls():
    rates = RateLimits(0.001, 2, SystemClock())
    async with served(rates=rates) as (w, _):
        key = w.key()
        for status in (101, 101, 429):
            with contextlib.ExitStack() as stack:
                if status == 429:
                    stack.enter_context(pytest.raises(Refused, match="429"))
                async with command_socket(w.front.url, key) as socket:
                    assert await socket.ask(command=["sh"]) == {"ok": {}}


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 20,
        b"\x82\x05hello",  # without a mask
        b"\xc2\x80mask",  # an extension
        b"\x83\x80mask",  # a kind that is none
        b"\x09\x80mask",  # a control frame that is cut
        b"\x89\xfe\x00\x7e" + b"mask" + bytes(126),  # a long one
        b"\x82\xff" + (LARGEST + 1).to_bytes(8, "big") + b"mask",
        b"\x82\xff" + b"\xff" * 8 + b"mask",
        b"",
    ],
    ids=["http", "plain", "extension", "kind", "cut", "long", "large", "huge", "gone"],
)
@pytest.mark.parametrize("begun", [True, pytest.param(False, marks=pytest.mark.whole)])
async def test_a_client_that_speaks_no_websocket_is_cut(sent, begun):
    async with served() as (w, echo), command_socket(w.front.url, w.key()) as socket:
        if begun:
            assert await socket.ask(command=["sh"]) == {"ok": {}}
        socket.writer.write(sent)
        if not sent:
            socket.writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await socket.reader.read()
        if begun:
            await echo.gone.wait()
        else:
            assert echo.asked == []


@pytest.mark.parametrize("first", [b"[]", b"no JSON", b"\xff", b"{" * 1000])
async def test_a_first_message_that_is_no_request_is_refused(first):
    async with served() as (w, echo), command_socket(w.front.url, w.key()) as socket:
        socket.message(TEXT, first)
        kind, data = await socket.receive()
        assert kind == TEXT
        assert b"invalid_parameter" in data
        assert echo.asked == []


async def test_a_request_that_does_not_come_or_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(handler, "REQUEST_SECONDS", 0.01)
    async with served() as (w, echo), command_socket(w.front.url, w.key()) as socket:
        socket.message(TEXT, b"{", final=False)
        kind, data = await socket.receive()
        assert b"deadline_exceeded" in data
        assert (await socket.receive())[0] == CLOSE
        assert echo.asked == []


async def test_a_client_that_reads_nothing_is_cut_and_what_waits_for_it_is_little():
    async with served(stall=0.2) as (w, echo), command_socket(w.front.url, w.key()) as socket:
        socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = w.front.connections
        socket.message(TEXT, b'{"flood": true}')
        echo.unsent = connection.transport.get_write_buffer_size
        await echo.gone.wait()
        assert echo.most <= 2 * wire.MAX_FRAME


async def test_the_end_of_the_server_is_the_end_of_its_commands():
    async with served() as (w, echo), command_socket(w.front.url, w.key()) as socket:
        assert await socket.ask(command=["sh"]) == {"ok": {}}
        stopping = asyncio.create_task(w.actor.stop(5))
        await echo.gone.wait()
        await socket.reader.read()
        await stopping
