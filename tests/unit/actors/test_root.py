"""What the server's start hangs on the actors: those without which there is no server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from oubliette.actors.root import CriticalActorMonitor
from oubliette.kit import Actor, Message, System, handles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


class Fail(Message):
    pass


class Part(Actor):
    @handles(Fail)
    def _fail(self, _: Fail) -> None:
        raise RuntimeError("broken")


@pytest.fixture
async def system() -> AsyncIterator[System]:
    async with System("test", watchdog=None) as system:
        async with asyncio.timeout(20):
            yield system


async def test_the_end_of_a_critical_actor_is_reported_with_its_error(system: System) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    for name in ("front", "root", "other"):
        system.spawn(Part, name=name)
    monitor = system.spawn(CriticalActorMonitor, ("front", "root"), told.put_nowait)
    await asyncio.sleep(0)  # it watches them from here on
    system.ref("other").tell(Fail())
    system.ref("front").tell(Fail())
    assert await told.get() == "front ended: RuntimeError: broken"
    await system.ref("root").stop()
    assert (await told.get()).startswith("root ended: ")
    assert told.empty()
    assert monitor.is_alive()


async def test_one_that_is_not_there_any_more_is_reported_at_once(system: System) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    system.spawn(CriticalActorMonitor, ("front",), told.put_nowait)
    assert (await told.get()).startswith("front ended: ")
