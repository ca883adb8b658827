"""Streams of bytes between two machines: `front` serves the client, `home` has the project."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.errors import InvalidParameter, LimitExceeded
from oubliette.kit import ActorDead, System
from oubliette.kit.remote import connect
from oubliette.tools.home_streams import (
    AHEAD,
    STREAMS,
    HomeStream,
    HomeStreamActor,
    HomeStreamsActor,
    StreamEnd,
    open_at_home,
)
from tests.unit.kit.remote.network import Network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

SECONDS = 10.0


class Machine:
    """One machine, as its streams see it."""

    def __init__(self, name: str, system: System) -> None:
        self.name, self.system = name, system

    def ref(self, node: str, name: str) -> Any:
        return self.system.ref(f"{node}!{name}")


class Scene:
    """Both machines, and what happened at the home."""

    def __init__(self, network: Network, front: Machine, home: Machine) -> None:
        self.network, self.front, self.home = network, front, home
        self.sent = 0
        self.ended = asyncio.Event()

    def open(self, kind: str, wanted: bytes = b"") -> contextlib.AbstractAsyncContextManager[Any]:
        return open_at_home(cast("Any", self.front), "home", kind, wanted)

    async def echo(self, wanted: bytes, end: StreamEnd) -> None:
        await end.send(wanted)
        last = False
        while not last:
            piece = await end.receive()
            await end.send(piece.data.upper())
            last = piece.last

    async def endless(self, _: bytes, end: StreamEnd) -> None:
        try:
            while True:
                await end.send(b"x" * 1000)
                self.sent += 1
        finally:
            self.ended.set()

    async def fails(self, _: bytes, end: StreamEnd) -> None:
        await end.send(b"half")
        raise LimitExceeded("there is no more")


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    network = Network()
    async with System("front") as front, System("home") as home:
        made = Scene(network, Machine("front", front), Machine("home", home))
        works = {"echo": made.echo, "endless": made.endless, "fails": made.fails}
        for machine in (made.front, made.home):
            machine.system.spawn(HomeStreamsActor, works, machine, name=STREAMS)
            connect(machine.system, network.node(machine.name), epoch=1)
        yield made


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0)


def streams(scene: Scene) -> list[str]:
    return [name for name in scene.home.system.names if name.startswith(f"{STREAMS}/")]


async def test_bytes_pass_both_ways_until_the_work_ends(scene: Scene) -> None:
    async with scene.open("echo", b"hello") as stream:
        assert await stream.read() == b"hello"
        await stream.write(b"one")
        assert await stream.read() == b"ONE"
        await stream.write(b"two", last=True)
        assert [await stream.read() for _ in range(3)] == [b"TWO", b"", b""]
    assert streams(scene) == []


async def test_what_the_client_does_not_read_is_not_sent_on(scene: Scene) -> None:
    async with scene.open("endless") as stream:
        await until(lambda: scene.sent >= AHEAD)
        for _ in range(100):
            await asyncio.sleep(0)
        assert scene.sent == AHEAD
        assert await stream.read() == b"x" * 1000 * AHEAD
    async with asyncio.timeout(SECONDS):
        await scene.ended.wait()


async def test_an_error_at_the_home_comes_after_what_it_has_sent(scene: Scene) -> None:
    async with scene.open("fails") as stream:
        assert await stream.read() == b"half"
        for _ in range(2):
            with pytest.raises(LimitExceeded, match="there is no more"):
                await stream.read()


async def test_a_stream_ends_when_the_machine_of_its_client_is_lost(scene: Scene) -> None:
    with pytest.raises(ActorDead):
        async with scene.open("endless") as stream:
            assert await stream.read()
            scene.network.cut("front")
            async with asyncio.timeout(SECONDS):
                await scene.ended.wait()
            await stream.read()
    await until(lambda: not streams(scene))


async def test_a_stream_that_is_given_up_while_it_opens_does_not_begin(scene: Scene) -> None:
    scene.network.hold("front", "home")

    async def use() -> None:
        async with scene.open("endless"):
            raise AssertionError("it is open")

    using = asyncio.ensure_future(use())
    await asyncio.sleep(0)
    using.cancel()
    await asyncio.sleep(0)
    scene.network.release("front", "home")
    with pytest.raises(asyncio.CancelledError):
        await using
    assert scene.sent == 0
    assert streams(scene) == []


async def test_a_stream_ends_with_the_machine_that_serves_the_client(scene: Scene) -> None:
    front = scene.home.ref("front", STREAMS)
    ref = scene.home.system.spawn(HomeStreamActor, scene.endless, b"", front, name="streams/one")
    assert await HomeStream(ref).read()
    await scene.front.system.ref(STREAMS).stop()
    async with asyncio.timeout(SECONDS):
        await scene.ended.wait()


async def test_a_stream_of_an_unknown_kind_is_refused(scene: Scene) -> None:
    with pytest.raises(InvalidParameter, match="no streams of the kind other"):
        async with scene.open("other"):
            pass
