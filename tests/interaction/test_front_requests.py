"""HTTP itself: what either parser takes for a request, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from oubliette.mcp_front.transport.http_protocol import fastest
from tests.interaction.frontkit import World, world

pytestmark = pytest.mark.anyio
parsers = pytest.mark.parametrize("parser", ["httptools", "h11"])

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
OK, BAD = b"HTTP/1.1 200 ", b"HTTP/1.1 400 "


class Line:
    """One connection; the server's bytes as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def say(self, *segments: bytes) -> None:
        """Send each by itself: the next when the server has had time to read the one before."""
        for segment in segments:
            self.writer.write(segment)
            await self.writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return head, await self.reader.readexactly(int(length))

    async def rest(self) -> bytes:
        """All up to the end of the connection."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""


@contextlib.asynccontextmanager
async def line(w: World):
    host, port = w.front.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        async with asyncio.timeout(10):
            yield Line(reader, writer)
    finally:
        writer.transport.abort()


def post(w: World, body: bytes, *lines: str, framing: str | None = None) -> tuple[bytes, bytes]:
    """Head and body of a call of `echo` whose answer is one document."""
    length = f"Content-Length: {len(body)}" if framing is None else framing
    meta = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "echo"}
    head = "\r\n".join(
        [
            "POST /mcp HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {w.key()}",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            *(f"{name}: {value}" for name, value in meta.items()),
            *lines,
            length,
        ]
    )
    return f"{head}\r\n\r\n".encode(), body


ECHO = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {
            "name": "echo",
            "arguments": {"text": "hello"},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
).encode()


def chunked(body: bytes, trailers: bytes = b"") -> bytes:
    return b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


async def test_the_parser_in_c_is_taken_where_it_is_installed():
    assert fastest() == "httptools"


@parsers
@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.1\r\n\r\n",
        HEALTH + b"Host: evil.example\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
        HEALTH + b"X: a\r\n folded\x00\r\n\r\n",
        HEALTH + b"X\xff: a\r\n\r\n",
        HEALTH + b"X: a\x00b\r\n\r\n",
        HEALTH + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        HEALTH + b"Content-Length: +3\r\n\r\nabc",
        HEALTH + b"Content-Length: -1\r\n\r\n",
        b"GET /health HTTP/1.10\r\nHost: localhost\r\n\r\n",
        b"GET /he alth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_and_the_connection_ends(parser, request_):
    async with world(parser=parser) as w, line(w) as it:
        await it.say(request_)
        assert (await it.rest()).startswith(BAD)


@pytest.mark.parametrize(
    "request_",
    [
        HEALTH + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEALTH + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEALTH + b"Transfer-Encoding: identity\r\n\r\n",
        HEALTH + b"X: a\r\n folded\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"FOO /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_read_in_two_ways_is_refused(request_):
    async with world(parser="httptools") as w, line(w) as it:
        await it.say(request_)
        assert (await it.rest()).startswith(BAD)


@parsers
async def test_a_request_may_come_in_pieces_and_leaves_the_connection_open(parser):
    async with world(parser=parser) as w, line(w) as it:
        for framing, sent in ((None, ECHO), ("Transfer-Encoding: chunked", chunked(ECHO))):
            data = b"".join(post(w, sent, framing=framing))
            await it.say(*(data[at : at + 40] for at in range(0, len(data), 40)))
            head, body = await it.answer()
            assert head.startswith(OK)
            assert b"hello" in body


@pytest.mark.parametrize(
    "lines", [(), ("Connection: close",), ("Origin: http://localhost",), ("Expect: 100-continue",)],
    ids=["plain", "close", "page", "expects"],
)  # fmt: skip
async def test_a_document_has_the_same_head_and_end_with_either_parser(lines):
    found = []
    for parser in ("httptools", "h11"):
        async with world(parser=parser) as w, line(w) as it:
            head, body = post(w, ECHO, *lines)
            await it.say(head + body)
            if "Expect: 100-continue" in lines:
                assert await it.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            answered, document = await it.answer()
            status, *rest = answered.lower().strip().split(b"\r\n")
            kept = sorted(each for each in rest if not each.startswith(b"date: "))
            assert len(kept) == len(rest) - 1
            if "Connection: close" in lines:
                assert await it.rest() == b""
            else:
                await it.say(HEALTH + b"\r\n")
                assert (await it.answer())[0].startswith(OK)
            found.append((status, kept, document))
    assert found[0] == found[1]
    assert found[0][0] == b"http/1.1 200 ok"


@parsers
async def test_an_offer_of_http_2_is_ignored_and_the_body_is_read(parser):
    """Clients of Java make it with their first request."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    async with world(parser=parser) as w, line(w) as it:
        for together in (True, False):
            head, body = post(w, ECHO, *offer)
            await it.say(*([head + body] if together else [head[:100], head[100:], body]))
            head, body = await it.answer()
            assert head.startswith(OK)
            assert b"hello" in body
        await it.say(HEALTH + b"\r\n")
        assert (await it.answer())[0].startswith(OK)


@parsers
async def test_trailers_are_no_headers(parser):
    async with world(parser=parser) as w, line(w) as it:
        trailers = b"Authorization: Bearer nobody\r\nHost: evil.example\r\n"
        body = chunked(ECHO, trailers)
        await it.say(b"".join(post(w, body, framing="Transfer-Encoding: chunked")))
        assert (await it.answer())[0].startswith(OK)
        await it.say(HEALTH + b"\r\n")
        assert (await it.answer())[0].startswith(OK)


@parsers
async def test_a_request_that_comes_early_is_answered_after_the_one_before(parser):
    async with world(parser=parser) as w, line(w) as it:
        head, body = post(w, ECHO.replace(b'"echo"', b'"wait"'))
        await it.say(head.replace(b"mcp-name: echo", b"mcp-name: wait") + body)
        await it.say(HEALTH[:10])
        await it.say(HEALTH[10:] + b"\r\n")
        w.gate.set()
        assert b"waited" in (await it.answer())[1]
        assert b"version" in (await it.answer())[1]


async def test_what_came_in_the_same_segment_ends_with_the_connection():
    async with world(parser="httptools") as w, line(w) as it:
        head, body = post(w, ECHO)
        await it.say(head + body + b"".join(post(w, ECHO)))
        assert b"hello" in (await it.answer())[1]
        assert await it.rest() == b""
        assert len(w.calls) == 1


async def test_rubbish_behind_a_request_does_not_spoil_its_answer():
    async with world(parser="httptools") as w, line(w) as it:
        await it.say(b"".join(post(w, ECHO)) + b"\x00\x00\r\n\r\n")
        assert b"hello" in (await it.answer())[1]
        assert await it.rest() == b""


@parsers
async def test_chunks_that_are_none_are_refused_and_the_call_is_forgotten(parser):
    async with world(parser=parser, rest=0.3) as w, line(w) as it:
        head, _ = post(w, b"", framing="Transfer-Encoding: chunked")
        await it.say(head, b"5\r\nhello\r\n", b"zz\r\n")
        assert (await it.rest()).startswith(BAD)
        it.writer.transport.abort()
        async with asyncio.timeout(5):
            while w.front.quotas.calls:
                await asyncio.sleep(0.01)
        assert not w.calls


@parsers
@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        HEALTH + b"X: ",
        HEALTH + b"X",
        HEALTH + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: ",
    ],
    ids=["target", "value", "name", "trailer"],
)
async def test_a_head_without_end_is_cut_at_its_size(parser, start):
    async with world(parser=parser, rest=0.3) as w, line(w) as it:
        await it.say(start)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                await it.say(b"a" * 16_384)
        got = await it.rest()
        assert got == b"" or got.startswith((BAD, OK)), got[:100]
        async with asyncio.timeout(5):
            while w.front.connections:
                await asyncio.sleep(0.01)


async def test_a_whole_head_that_is_too_large_is_refused():
    async with world(parser="httptools") as w, line(w) as it:
        await it.say(HEALTH + b"".join(b"X%d: a\r\n" % n for n in range(8000)) + b"\r\n")
        assert (await it.rest()).startswith(BAD)


@parsers
async def test_a_client_that_asks_whether_to_send_its_body_is_told_to(parser):
    async with world(parser=parser) as w, line(w) as it:
        head, body = post(w, ECHO, "Expect: 100-continue")
        await it.say(head)
        assert (await it.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await it.say(body)
        assert b"hello" in (await it.answer())[1]


@parsers
@pytest.mark.parametrize(
    "request_",
    [
        b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n",
        HEALTH + b"Connection: close\r\n\r\n",
    ],
)
async def test_a_client_that_wants_one_answer_gets_it_and_the_end(parser, request_):
    async with world(parser=parser) as w, line(w) as it:
        await it.say(request_)
        head, body = await it.answer()
        assert head.startswith(OK)
        assert b"connection: close" in head.lower()
        assert json.loads(body)["ok"] is True
        assert await it.rest() == b""


# ---------------------------------------------------------------- cut short


CUT = {
    "a length with nothing": ("Content-Length: {size}", 0),
    "a length and a part": ("Content-Length: {size}", 20),
    "no chunk": ("Transfer-Encoding: chunked", 0),
    "half a chunk": ("Transfer-Encoding: chunked", 20),
    "a chunk and no end": ("Transfer-Encoding: chunked", None),
}
cuts = pytest.mark.parametrize("cut", CUT)


def shortened(w: World, cut: str) -> bytes:
    """A call whose body is not all there."""
    framing, most = CUT[cut]
    head, _ = post(w, ECHO, framing=framing.format(size=len(ECHO)))
    body = chunked(ECHO).removesuffix(b"0\r\n\r\n") if "chunked" in framing else ECHO
    return head + body[:most]


@parsers
@cuts
async def test_a_body_that_ends_too_early_is_answered_at_once(parser, cut):
    async with world(parser=parser) as w, line(w) as it:
        await it.say(shortened(w, cut))
        it.writer.write_eof()
        answer = await it.rest()
        assert answer.startswith(BAD)
        assert answer.endswith(b"The request ended before its body was complete.")
        async with asyncio.timeout(5):
            while w.front.quotas.calls:
                await asyncio.sleep(0)


@pytest.mark.whole
@parsers
@cuts
async def test_a_body_that_stops_is_answered_when_it_has_paused_for_too_long(parser, cut):
    async with world(parser=parser, pause=0.2) as w, line(w) as it:
        await it.say(shortened(w, cut))
        answer = await it.rest()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b"The body of the request did not come in time.")


@parsers
async def test_a_body_that_trickles_has_an_end_too(parser):
    """Each piece is in time; all of them together are not."""
    async with world(parser=parser, pause=0.5, body=0.6) as w, line(w) as it:
        head, body = post(w, ECHO + b" " * 1000)
        await it.say(head)
        ended = asyncio.ensure_future(it.rest())
        for place in range(len(body)):
            await it.say(body[place : place + 1])
            if (await asyncio.wait({ended}, timeout=0.02))[0]:
                break
        assert (await ended).startswith(b"HTTP/1.1 408 ")


@pytest.mark.whole
@parsers
async def test_a_body_that_comes_in_pieces_has_time_for_each(parser):
    async with world(parser=parser, pause=1.0) as w, line(w) as it:
        head, body = post(w, ECHO)
        await it.say(head)
        for place in range(0, len(body), 20):
            await asyncio.sleep(0.2)
            await it.say(body[place : place + 20])
        assert (await it.answer())[0].startswith(OK)


@parsers
@pytest.mark.parametrize("request_", [b"GET /hea", HEALTH])
async def test_a_head_that_ends_too_early_is_answered_at_once(parser, request_):
    async with world(parser=parser) as w, line(w) as it:
        await it.say(request_)
        it.writer.write_eof()
        assert (await it.rest()).endswith(b"The request ended before its head was complete.")


@parsers
async def test_who_hangs_up_without_a_word_is_told_nothing(parser):
    async with world(parser=parser) as w, line(w) as it:
        await it.say(HEALTH + b"\r\n")
        await it.answer()
        it.writer.write_eof()
        assert await it.rest() == b""
