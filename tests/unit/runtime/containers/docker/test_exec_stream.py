"""An engine's raw streams and the bridge on them: cuts, ends, bounds, refusals."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.bridges import exec_frames
from oubliette.runtime.containers.docker import exec_bridge
from oubliette.runtime.containers.docker.client import Engine
from oubliette.runtime.containers.docker.exec_stream import _Hijack, open_stream
from oubliette.runtime.containers.engine_errors import EngineNotFound, EngineRefused
from tests.unit.runtime.containers.docker.fake_engine import UPGRADED, FakeEngine, frame, runs

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

SECONDS = 30
ROOT = Path(__file__).resolve().parents[5]
LIMIT = 1 << 16


class Heard:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.said = {0: b"", 1: b"", 2: b""}
        self.end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def output(self, kind: int, data: bytes) -> None:
        self.said[kind] += data

    def ended(self, error: Exception | None) -> None:
        self.end.set_result(error)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


@pytest.fixture
async def fake(anyio_backend: str, no_leaked_tasks: None) -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def engine(fake: FakeEngine, short: Path) -> AsyncIterator[Engine]:
    made = Engine("docker", await fake.listen(short / "engine.sock"))
    try:
        yield made
    finally:
        await made.aclose()


def says(*parts: bytes) -> Callable[..., Any]:
    """An answer made of these parts, each written on its own; then the end."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return serve


async def stream(engine: Engine) -> Heard:
    heard = Heard()
    async with asyncio.timeout(SECONDS):
        transport = await open_stream(engine, "/exec/e/start", {}, heard)
        await heard.end
    transport.close()
    return heard


# ---------------------------------------------------------------- streams


async def test_output_that_comes_with_the_head_of_the_answer_is_not_lost(
    fake: FakeEngine, engine: Engine
) -> None:
    """docker-py's own exec loses it."""
    fake.answers["/exec/e/start"] = says(UPGRADED + frame(1, b"early ") + frame(2, b"aside"))
    heard = await stream(engine)
    assert heard.said == {0: b"", 1: b"early ", 2: b"aside"}


async def test_an_engine_that_does_not_upgrade_is_understood_too(
    fake: FakeEngine, engine: Engine
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"
    fake.answers["/exec/e/start"] = says(head, frame(1, b"out"))
    assert (await stream(engine)).said[1] == b"out"


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 21\r\n\r\n{\"message\": \"no such\"}", EngineNotFound, "no such"),
        (b"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\n\r\nplain", EngineRefused, "plain"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", EngineRefused, "500"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", EngineRefused, "200"),
        (b"what is this\r\n\r\n", EngineRefused, "what is this"),
        (b"x" * 70_000, EngineRefused, "no end"),
        (b"", EngineRefused, "closed the connection"),
    ],
)  # fmt: skip
async def test_a_refusal_is_told_with_its_reason(
    fake: FakeEngine, engine: Engine, answer: bytes, kind: type[Exception], said: str
) -> None:
    half = len(answer) // 2
    fake.answers["/exec/e/start"] = says(answer[:half], answer[half:])
    with pytest.raises(kind, match=said):
        await stream(engine)


async def test_a_stream_without_frames_is_an_error_and_not_output(
    fake: FakeEngine, engine: Engine
) -> None:
    fake.answers["/exec/e/start"] = says(UPGRADED + b"plain text, as from a terminal")
    heard = Heard()
    async with asyncio.timeout(SECONDS):
        transport = await open_stream(engine, "/exec/e/start", {}, heard)
        error = await heard.end
    transport.close()
    assert isinstance(error, EngineRefused)
    assert heard.said[1] == b""


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=30)), max_size=8),
    cuts=st.lists(st.integers(1, 25), min_size=1, max_size=40),
)
def test_frames_are_told_apart_wherever_the_stream_was_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    async def run() -> None:
        heard = Heard()
        protocol = _Hijack(heard)
        whole = UPGRADED + b"".join(frame(kind, data) for kind, data in frames)
        at = turn = 0
        while at < len(whole):
            size = cuts[turn % len(cuts)]
            protocol.data_received(whole[at : at + size])
            at += size
            turn += 1
        assert protocol.agreed.done()
        for kind in (1, 2):
            assert heard.said[kind] == b"".join(data for each, data in frames if each == kind)
        heard.end.cancel()

    asyncio.run(run())


# ---------------------------------------------------------------- the bridge on them


class Relay:
    """What the bridge connects to: we play it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.setblocking(False)

    async def accept(self) -> tuple[StreamReader, StreamWriter]:
        sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return await asyncio.open_unix_connection(sock=sock)

    def close(self) -> None:
        self._listener.close()


class Link:
    """Both ends of a bridged link."""

    def __init__(self, fake: FakeEngine, engine: Engine, relay: Relay) -> None:
        self.fake = fake
        self.engine = engine
        self.relay = relay

    async def open(
        self, limit: int = LIMIT
    ) -> tuple[StreamReader, StreamWriter, StreamReader, StreamWriter]:
        async with asyncio.timeout(SECONDS):
            (reader, writer), (inner, outer) = await asyncio.gather(
                exec_bridge.dial(self.engine, "c", "7:8", limit), self.relay.accept()
            )
        return reader, writer, inner, outer


@pytest.fixture
async def link(fake: FakeEngine, engine: Engine, short: Path) -> AsyncIterator[Link]:
    relay = Relay(short / "relay.sock")
    fake.answers["/containers/c/exec"] = {"Id": "e"}
    launch = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from oubliette.incontainer.bridges import exec_bridge"
    code = f"{launch}; sys.exit(exec_bridge.main([{str(relay.path)!r}]))"
    fake.answers["/exec/e/start"] = runs([sys.executable, "-I", "-c", code])
    try:
        yield Link(fake, engine, relay)
    finally:
        relay.close()


async def close(*writers: StreamWriter) -> None:
    for writer in writers:
        writer.close()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_a_bridged_link_is_an_ordinary_pair_of_streams(link: Link) -> None:
    reader, writer, inner, outer = await link.open()
    async with asyncio.timeout(SECONDS):
        writer.write(b"question\n")
        writer.writelines([b"and ", b"more\n"])
        assert await inner.readline() == b"question\n"
        assert await inner.readline() == b"and more\n"
        outer.write(b"answer\n")
        assert await reader.readline() == b"answer\n"
    await close(writer)
    async with asyncio.timeout(SECONDS):
        assert await inner.read() == b""
    await close(outer)


async def test_each_direction_can_be_ended_alone(link: Link) -> None:
    reader, writer, inner, outer = await link.open()
    async with asyncio.timeout(SECONDS):
        assert writer.can_write_eof()
        writer.write(b"last")
        writer.write_eof()
        assert await inner.read() == b"last"
        outer.write(b"still here")
        outer.write_eof()
        assert await reader.read() == b"still here"
        await close(writer, outer)


async def test_the_relays_end_leaves_our_direction_open(link: Link) -> None:
    reader, writer, inner, outer = await link.open()
    async with asyncio.timeout(SECONDS):
        outer.write_eof()
        assert await reader.read() == b""
        writer.write(b"more\n")
        assert await inner.readline() == b"more\n"
    await close(writer, outer)


async def test_a_relay_that_closes_closes_the_link_after_its_last_word(link: Link) -> None:
    reader, writer, _, outer = await link.open()
    async with asyncio.timeout(SECONDS):
        outer.write(b"OUBLIETTE-ERROR no\n")
        outer.close()
        assert await reader.read() == b"OUBLIETTE-ERROR no\n"
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
    await close(writer)


async def test_a_bridge_that_is_killed_is_a_broken_link_and_not_its_end(
    fake: FakeEngine, engine: Engine
) -> None:
    fake.answers["/containers/c/exec"] = {"Id": "e"}
    whole = UPGRADED + frame(1, exec_frames.HELLO + exec_frames.head(100) + b"half of it")
    fake.answers["/exec/e/start"] = says(whole)
    async with asyncio.timeout(SECONDS):
        reader, writer = await exec_bridge.dial(engine, "c", "7:8", LIMIT)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(100)
    await close(writer)


@pytest.mark.whole
async def test_what_nobody_reads_is_held_back_at_its_source(link: Link) -> None:
    reader, writer, _, outer = await link.open(limit=1 << 16)
    sent = 0
    async with asyncio.timeout(SECONDS):
        try:
            async with asyncio.timeout(1.0):
                while sent < 64 << 20:
                    outer.write(b"x" * 65536)
                    sent += 65536
                    await outer.drain()
        except TimeoutError:
            pass
        assert sent < 8 << 20
        assert len(reader._buffer) < 1 << 20  # pyright: ignore[reportAttributeAccessIssue]
        await reader.readexactly(sent)
    await close(writer, outer)


async def test_who_writes_more_than_is_taken_waits(link: Link) -> None:
    _, writer, inner, outer = await link.open()
    sent = 0
    async with asyncio.timeout(SECONDS):
        try:
            async with asyncio.timeout(1.0):
                while sent < 64 << 20:
                    writer.write(b"x" * 65536)
                    sent += 65536
                    await writer.drain()
        except TimeoutError:
            pass
        assert sent < 8 << 20
        assert len(await inner.readexactly(sent)) == sent
    await close(writer, outer)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (frame(1, b"OUBLIETTE-ERROR /mcp/relay.sock: No such file\n"), "No such file"),
        (frame(1, b"OCI runtime exec failed: python3: executable file not found\n"), "python3"),
        (frame(1, b"y" * 3000), "yyy"),
        (frame(2, b"Traceback\n"), "said nothing"),
        (b"", "said nothing"),
    ],
)
async def test_a_link_that_cannot_be_had_says_why(
    fake: FakeEngine, engine: Engine, answer: bytes, said: str
) -> None:
    fake.answers["/containers/c/exec"] = {"Id": "e"}
    fake.answers["/exec/e/start"] = says(UPGRADED + answer)
    with pytest.raises(ConnectionRefusedError, match=said):
        async with asyncio.timeout(SECONDS):
            await exec_bridge.dial(engine, "c", "7:8", LIMIT)


async def test_a_container_that_does_not_run_has_no_links(fake: FakeEngine, engine: Engine) -> None:
    with pytest.raises(ConnectionRefusedError, match="/containers/c/exec"):
        await exec_bridge.dial(engine, "c", "7:8", LIMIT)


async def test_a_link_that_is_given_up_while_it_opens_leaves_nothing(
    fake: FakeEngine, engine: Engine
) -> None:
    reached, gone = asyncio.Event(), asyncio.Event()

    async def never(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(UPGRADED)
        reached.set()
        await reader.read()
        gone.set()

    fake.answers["/containers/c/exec"] = {"Id": "e"}
    fake.answers["/exec/e/start"] = never
    dial = asyncio.create_task(exec_bridge.dial(engine, "c", "7:8", LIMIT))
    async with asyncio.timeout(SECONDS):
        await reached.wait()
        dial.cancel()
        await asyncio.gather(dial, return_exceptions=True)
        await gone.wait()
    assert dial.cancelled()
