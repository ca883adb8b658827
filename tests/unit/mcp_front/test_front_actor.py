"""The actor that the front lives and ends with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from oubliette.kit import ActorDead, Down, System
from oubliette.mcp_front.actor import FrontActor, GetUrl
from oubliette.testing.clock import VirtualClock
from tests.unit.actors.fakes import Watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:1/mcp"


class FakeFront:
    """A front that serves until it is stopped, or until its end is set."""

    url = URL

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.load = asyncio.Event()
        self.taken = False
        """Its address is taken by somebody else."""

    async def start(self) -> None:
        self.calls.append("start")
        await asyncio.sleep(0)  # it is watched from here on
        if self.taken:
            raise OSError("address in use")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def loaded(self) -> None:
        await self.load.wait()

    async def ended(self) -> None:
        await self.end


class Scene:
    def __init__(self, system: System) -> None:
        self.system, self.front = system, FakeFront()
        self.seen: list[Any] = []

    def begin(self) -> None:
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ref = self.system.spawn(
            FrontActor, cast("Any", self.front), lambda: self.loaded.set_result(None), name="front"
        )
        self.system.spawn(Watcher, self.seen, self.ref)

    async def down(self) -> Down:
        while not self.seen:
            await asyncio.sleep(0)
        (down,) = self.seen
        return down


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with System("test", VirtualClock(), roundtrip_messages=True, watchdog=None) as system:
        async with asyncio.timeout(20):
            yield Scene(system)


async def test_it_tells_when_listeners_can_be_answered(scene: Scene) -> None:
    scene.begin()
    await scene.ref.ask(GetUrl())
    assert not scene.loaded.done()
    scene.front.load.set()
    await scene.loaded


async def test_it_serves_while_it_lives_and_tells_where(scene: Scene) -> None:
    scene.begin()
    assert await scene.ref.ask(GetUrl()) == URL
    assert scene.front.calls == ["start"]
    await scene.ref.stop()
    assert scene.front.calls == ["start", "stop"]


async def test_a_front_that_cannot_begin_is_a_failure_with_its_reason(scene: Scene) -> None:
    scene.front.taken = True
    scene.begin()
    with pytest.raises(ActorDead):
        await scene.ref.ask(GetUrl())
    down = await scene.down()
    assert (down.reason, down.error) == ("failed", "OSError: address in use")
    assert scene.front.calls == ["start", "stop"]


async def test_a_front_that_breaks_is_a_failure_with_its_reason(scene: Scene) -> None:
    scene.begin()
    await scene.ref.ask(GetUrl())
    scene.front.end.set_exception(RuntimeError("no more requests"))
    down = await scene.down()
    assert (down.reason, down.error) == ("failed", "RuntimeError: no more requests")


async def test_it_ends_when_nothing_answers_any_more(scene: Scene) -> None:
    scene.begin()
    await scene.ref.ask(GetUrl())
    scene.front.end.set_result(None)
    assert (await scene.down()).reason == "normal"
