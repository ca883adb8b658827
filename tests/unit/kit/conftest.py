"""A System for the tests of the kit: messages are encoded and decoded, nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from oubliette.kit import System
from oubliette.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def system(clock: VirtualClock, no_leaked_tasks: None) -> AsyncIterator[System]:
    """On a virtual clock; checked at the end: no actor, wait or timer is left."""
    async with System("test", clock, roundtrip_messages=True, watchdog=None) as system:
        async with asyncio.timeout(20):
            yield system
    assert system.actor_count == 0
    assert not len(system.waits)
    assert clock.pending == 0
