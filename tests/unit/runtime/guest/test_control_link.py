"""The server's end of the host protocol, against hosts that lie, break, stall or are gone.

The real host is what `tests/conformance` talks to; here a stand-in says what no real one would.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.errors import DeadlineExceeded, InvalidParameter, ProtocolViolation
from oubliette.incontainer import wire
from oubliette.runtime.guest import (
    CommandFailed,
    ControlLink,
    Exit,
    Gap,
    GuestImpostor,
    GuestRefused,
    GuestUnreachable,
    LinkClosed,
    Output,
    pieces,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
HELLO = {"event": "hello", "versions": [1, 1], "boot": "b", "pid": 1, "news": {"of": "later"}}


class StandIn:
    """Plays the host: proves itself, then answers requests with `answer`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hello: Any = HELLO
        self.key = KEY
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda request: {}
        self.data: Callable[[Any, Any], Awaitable[None]] | None = None
        self.writers: list[asyncio.StreamWriter] = []
        self.epochs: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            header = wire.parse_header(await reader.readline())
            if isinstance(header, wire.ControlHeader):
                self.writers.append(writer)
                await self.control(header, reader, writer)
            elif self.data is not None:
                await self.data(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def control(self, header: wire.ControlHeader, reader: Any, writer: Any) -> None:
        challenge = "c" * 32
        proof = wire.host_proof(self.key, header.nonce, challenge)
        writer.write(wire.encode_json({"challenge": challenge, "proof": proof, "boot": "b"}))
        line = await reader.readline()
        if not line:
            return
        said = json.loads(line)
        assert wire.same(said["proof"], wire.server_proof(KEY, challenge, header.nonce))
        self.epochs.append(said["epoch"])
        if isinstance(self.hello, bytes):
            writer.write(self.hello)
            return
        writer.write(wire.encode_json(self.hello))
        while line := await reader.readline():
            request = json.loads(line)
            self.requests.append(request)
            if request["verb"] == "ticket":
                answer: Any = {"tickets": ["t" * 32] * request["count"]}
            else:
                answer = self.answer(request)
            if answer is None:
                continue
            if isinstance(answer, bytes):
                writer.write(answer)
            elif "error" in answer:
                writer.write(wire.encode_json({"id": request["id"], **answer}))
            else:
                writer.write(wire.encode_json({"id": request["id"], "ok": answer}))


@pytest.fixture
async def host(short: Path, anyio_backend: str) -> AsyncIterator[StandIn]:
    stand_in = StandIn(short / "s")
    server = await asyncio.start_unix_server(stand_in.serve, str(stand_in.path), limit=1 << 21)
    try:
        yield stand_in
    finally:
        server.close()
        for writer in stand_in.writers:
            writer.close()
        async with asyncio.timeout(5):
            await server.wait_closed()


async def connect(host: StandIn, **options: Any) -> ControlLink:
    return await ControlLink.connect(host.path, KEY, epoch=7, timeout=5, **options)


async def test_the_proof_goes_both_ways_and_unknown_fields_are_ignored(host: StandIn) -> None:
    async with await connect(host) as link:
        assert host.epochs == [7]
        assert (link.hello.boot, link.hello.procs) == ("b", ())


async def test_nothing_is_told_to_who_does_not_hold_the_key(host: StandIn) -> None:
    host.key = b"x" * 32
    with pytest.raises(GuestImpostor):
        await connect(host)
    assert host.epochs == []


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (b"OUBLIETTE-ERROR stale epoch\n", GuestRefused),
        (b"", LinkClosed),
        (b"{}\n", ProtocolViolation),
        (b"not json\n", ProtocolViolation),
        (b"x" * (3 << 20), LinkClosed),
        ({**HELLO, "versions": [3, 4]}, GuestRefused),
        ({**HELLO, "procs": [{"id": 1}]}, ProtocolViolation),
        ({**HELLO, "pid": 2**64}, ProtocolViolation),
        (b'{"a":' * 900 + b"1" + b"}" * 900 + b"\n", ProtocolViolation),
    ],
)
async def test_a_hello_that_is_none_is_an_error_that_says_so(
    host: StandIn, hello: Any, error: type[Exception]
) -> None:
    host.hello = hello
    with pytest.raises(error):
        await connect(host)


async def test_a_host_that_says_nothing_is_given_up_in_time(short: Path) -> None:
    held: list[Any] = []

    async def silent(reader: Any, writer: Any) -> None:
        held.append(writer)

    server = await asyncio.start_unix_server(silent, str(short / "s"))
    with pytest.raises(GuestUnreachable, match=r"0\.05"):
        await ControlLink.connect(short / "s", KEY, epoch=1, timeout=0.05)
    server.close()
    for writer in held:
        writer.close()
    await server.wait_closed()


async def test_a_missing_socket_is_unreachable(short: Path) -> None:
    with pytest.raises(GuestUnreachable, match="no guest"):
        await ControlLink.connect(short / "none", KEY, epoch=1)


async def test_answers_find_their_requests_in_any_order(host: StandIn) -> None:
    held: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> Any:
        held.append(request)
        if len(held) < 3:
            return None
        lines = [
            wire.encode_json({"id": one["id"], "ok": {"echo": one["word"]}})
            for one in reversed(held)
        ]
        return b"".join(lines)

    host.answer = answer
    async with await connect(host) as link, asyncio.timeout(5):
        words = await asyncio.gather(*(link.request("echo", {"word": n}) for n in range(3)))
    assert [word["echo"] for word in words] == [0, 1, 2]


async def test_an_error_of_the_host_has_its_code_and_message(host: StandIn) -> None:
    host.answer = lambda _: {"error": {"code": "bad_cwd", "message": "/x: no such folder"}}
    async with await connect(host) as link:
        with pytest.raises(CommandFailed, match="/x: no such folder") as caught:
            await link.forget("p")
    assert caught.value.kind == "bad_cwd"


async def test_a_request_without_answer_ends_in_time_and_a_late_answer_is_dropped(
    host: StandIn,
) -> None:
    host.answer = lambda request: None if request["verb"] == "slow" else {"fine": True}
    async with await connect(host) as link:
        with pytest.raises(DeadlineExceeded, match="slow"):
            await link.request("slow", {}, timeout=0.05)
        host.writers[0].write(wire.encode_json({"id": 1, "ok": {}}))
        assert await link.request("quick", {}) == {"fine": True}


async def test_an_event_with_a_value_that_may_not_enter_ends_the_link(host: StandIn) -> None:
    heard: list[Any] = []
    async with await connect(host, on_event=heard.append) as link, asyncio.timeout(5):
        event = {"event": "exited", "proc": "p", "exit": {"code": 2**64}}
        host.writers[0].write(wire.encode_json(event))
        assert isinstance(await link.closed(), ProtocolViolation)
    assert heard == []


async def test_requests_in_flight_fail_when_the_link_ends(host: StandIn) -> None:
    host.answer = lambda _: None
    async with await connect(host) as link, asyncio.timeout(5):
        waiting = [asyncio.create_task(link.request("x", {})) for _ in range(3)]
        while len(host.requests) < 3:
            await asyncio.sleep(0)
        host.writers[0].close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, LinkClosed) for error in ended)
        assert isinstance(await link.closed(), LinkClosed)
        with pytest.raises(LinkClosed):
            await link.stats()


@pytest.mark.parametrize(
    "line",
    [b"no json\n", b"[]\n", b'{"id": "x"}\n', b'{"event": 5}\n', b"\xff\n", b'{"ok": {}}\n'],
)
async def test_a_host_that_breaks_the_protocol_loses_the_link(host: StandIn, line: bytes) -> None:
    async with await connect(host) as link:
        host.writers[0].write(line)
        async with asyncio.timeout(5):
            assert isinstance(await link.closed(), ProtocolViolation)


async def test_events_come_in_order_to_the_callback_and_to_iterators(host: StandIn) -> None:
    heard: list[str] = []
    async with await connect(host, on_event=lambda event: heard.append(event.event)) as link:
        events = link.events()
        first = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        for name in ("started", "of_a_later_host", "exited"):
            host.writers[0].write(wire.encode_json({"event": name, "proc": "p", "new": 1}))
        async with asyncio.timeout(5):
            names = [(await first).event, (await anext(events)).event, (await anext(events)).event]
            host.writers[0].close()
            assert [event async for event in events] == []
    assert names == heard == ["started", "of_a_later_host", "exited"]


async def test_events_that_nobody_reads_do_not_pile_up(host: StandIn) -> None:
    async with await connect(host) as link:
        events = link.events()
        first = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        for _ in range(1200):
            host.writers[0].write(b'{"event": "refused"}\n')
        async with asyncio.timeout(5):
            reason = await link.closed()
            await first
        assert isinstance(reason, ProtocolViolation)
        await events.aclose()


async def test_a_callback_that_fails_ends_the_link_and_says_why(host: StandIn) -> None:
    def fail(_: Any) -> None:
        raise ValueError("of the callback")

    async with await connect(host, on_event=fail) as link:
        host.writers[0].write(b'{"event": "started"}\n')
        async with asyncio.timeout(5):
            reason = await link.closed()
    assert "of the callback" in str(reason)


async def test_closing_twice_is_fine_and_has_no_reason(host: StandIn) -> None:
    link = await connect(host)
    await link.aclose()
    await link.aclose()
    assert await link.closed() is None


# ---------------------------------------------------------------- streams


async def attached(host: StandIn, link: ControlLink, said: bytes) -> Any:
    async def data(reader: Any, writer: Any) -> None:
        writer.write(said)
        await writer.drain()

    host.data = data
    return await link.attach("p")


def frame(kind: int, n: int, payload: bytes = b"") -> bytes:
    return wire.encode_frame(kind, n, payload)


async def test_every_frame_becomes_what_it_means(host: StandIn) -> None:
    said = frame(wire.STDIN_OK, 3) + frame(wire.GAP, 5, b'{"stream": 1, "next": 9, "new": 1}')
    said += frame(wire.STDOUT, 9, b"out") + frame(wire.STDERR, 0, b"err")
    said += (
        frame(wire.EOF, 1)
        + frame(wire.EOF, 2)
        + frame(wire.EXIT, 0, b'{"code": null, "signal": 9}')
    )
    async with await connect(host) as link, await attached(host, link, said) as stream:
        async with asyncio.timeout(5):
            items = [item async for item in stream]
        assert items[1] == Gap(1, 5, 9)
        assert items[2] == Output(1, 9, b"out")
        assert items[-1] == stream.exit == Exit(signal=9)
        assert await stream.read() is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"OUBLIETTE-ERROR no such process\n", GuestRefused),
        (b"", LinkClosed),
        (frame(wire.STDOUT, 0, b"cut")[:-1], LinkClosed),
        (b"\x63" + frame(wire.STDOUT, 0, b"x")[1:], ProtocolViolation),
        (wire.FRAME_HEAD.pack(wire.STDOUT, 0, wire.MAX_FRAME + 1), ProtocolViolation),
        (frame(wire.STDIN, 1, b"x"), ProtocolViolation),
        (frame(wire.EOF, 3), ProtocolViolation),
        (frame(wire.GAP, 1, b"{}"), ProtocolViolation),
        (frame(wire.GAP, 1, b'{"stream": 7, "next": 1}'), ProtocolViolation),
        (frame(wire.EXIT, 0, b"nothing"), ProtocolViolation),
        (frame(wire.EXIT, 0, b'{"code": 18446744073709551616}'), ProtocolViolation),
        (frame(wire.GAP, 1, b'{"stream": 1, "next": 18446744073709551615}'), ProtocolViolation),
        (frame(wire.STDOUT, 2**64 - 1, b"x"), ProtocolViolation),
    ],
)
async def test_streams_that_break_the_protocol_are_errors(
    host: StandIn, said: bytes, error: type[Exception]
) -> None:
    async with await connect(host) as link, await attached(host, link, said) as stream:
        async with asyncio.timeout(5):
            with pytest.raises(error):
                await stream.read()


async def test_a_read_given_up_between_head_and_payload_loses_nothing(host: StandIn) -> None:
    go = asyncio.Event()
    whole = frame(wire.STDOUT, 0, b"payload")

    async def data(reader: Any, writer: Any) -> None:
        writer.write(whole[:15])
        await go.wait()
        writer.write(whole[15:])

    host.data = data
    async with await connect(host) as link, await link.attach("p") as stream:
        reading = asyncio.create_task(stream.read())
        async with asyncio.timeout(5):
            while stream._head is None:
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            go.set()
            assert await stream.read() == Output(1, 0, b"payload")


async def test_input_longer_than_a_frame_is_refused_and_can_be_cut(host: StandIn) -> None:
    data = b"x" * (wire.MAX_FRAME * 2 + 1)
    assert [len(piece) for piece in pieces(data)] == [wire.MAX_FRAME, wire.MAX_FRAME, 1]
    assert b"".join(pieces(data)) == data
    too_long = bytes(wire.MAX_STDIN_FRAME + 1)
    async with await connect(host) as link, await attached(host, link, b"") as stream:
        with pytest.raises(InvalidParameter):
            await stream.write(1, too_long)


async def test_a_bridge_serves_where_sockets_do_not_cross(host: StandIn) -> None:
    """Engines that do not carry sockets give a way to open streams instead."""
    opened: list[int] = []

    async def bridge(limit: int) -> Any:
        opened.append(limit)
        return await asyncio.open_unix_connection(str(host.path), limit=limit)

    async with await ControlLink.connect(bridge, KEY, epoch=1) as link:
        assert await link.stats() == {}
        _, writer = await link.upstream("s", "p", 0)
        writer.close()
        await writer.wait_closed()
    assert opened == [wire.MAX_CONTROL_LINE, wire.MAX_SESSION_LINE]


async def test_a_bridge_that_cannot_be_made_is_unreachable(host: StandIn) -> None:
    async def bridge(limit: int) -> Any:
        raise FileNotFoundError(2, "the engine is gone")

    with pytest.raises(GuestUnreachable, match="the engine is gone"):
        await ControlLink.connect(bridge, KEY, epoch=1)
