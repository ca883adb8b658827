"""Two connected nodes on one loop and one virtual clock; nothing is left behind in either."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from oubliette.kit import System
from oubliette.kit.remote import Interconnect, connect
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.remote.network import Network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Pair:
    """Nodes `a` and `b`; `b` may be ended and started anew."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.network = Network()
        self.a = System("a", clock, watchdog=None)
        self.b = System("b", clock, watchdog=None)
        self.epoch = 1
        self.held = 0.0
        """Seconds for which replies are held: of the loop, whose time is no virtual one."""
        self.a_side: Interconnect
        self.b_side: Interconnect

    async def start(self) -> None:
        await self.a.__aenter__()
        await self.b.__aenter__()
        self.a_side = connect(self.a, self.network.node("a"), epoch=1, held=self.held)
        self.b_side = connect(self.b, self.network.node("b"), epoch=1, held=self.held)

    async def restart(self, *, told: bool = True) -> None:
        """End `b` as if its process was killed, and start a later life of it."""
        self.network.cut("b", told=told)
        await self.b.stop()
        self.epoch += 1
        self.b = System(f"b{self.epoch}", self.clock, watchdog=None)
        await self.b.__aenter__()
        self.b_side = connect(self.b, self.network.node("b"), epoch=self.epoch, held=self.held)

    async def settle(self) -> None:
        """Let everything run that waits for nothing but the loop, or is held in it."""
        await asyncio.sleep(2 * self.held)
        for _ in range(100):
            await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.a.stop()
        await self.b.stop()
        for system, side in ((self.a, self.a_side), (self.b, self.b_side)):
            assert system.actor_count == 0
            assert not len(system.waits)
            assert side.pending == 0
        assert self.clock.pending == 0


@asynccontextmanager
async def two_nodes(held: float = 0.0) -> AsyncIterator[Pair]:
    pair = Pair(VirtualClock())
    pair.held = held
    await pair.start()
    try:
        yield pair
    finally:
        await pair.stop()


@pytest.fixture
async def pair(no_leaked_tasks: None) -> AsyncIterator[Pair]:
    async with two_nodes() as pair, asyncio.timeout(20):
        yield pair
