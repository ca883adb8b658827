"""Agents wait until their container has memory for them."""

from __future__ import annotations

import asyncio

import pytest

from oubliette.actors.container.lease_memory import LeaseMemory
from oubliette.actors.container.memory_room import MemoryRoom
from oubliette.errors import LimitExceeded

pytestmark = pytest.mark.anyio


async def test_an_agent_waits_until_another_has_ended() -> None:
    leases = {"a", "b", "c"}
    room = MemoryRoom(leases, 1024)
    await room.take("a", 500)
    await room.take("b", 500)
    third = asyncio.create_task(room.take("c", 500))
    await asyncio.sleep(0)
    assert not third.done()
    assert room.waits_since("c") is not None
    leases.discard("a")
    room.given_back("a")
    async with asyncio.timeout(5):
        await third
    assert room.waits_since("c") is None
    assert room.fits(500) == 1


async def test_what_was_taken_is_added_up_once_and_given_back_with_the_lease() -> None:
    memory = LeaseMemory(100)
    for _ in range(2):
        assert memory.hold("a", 30, starts=True)
    assert memory.hold("b", 40, starts=True)
    assert not memory.hold("c", 40, starts=True)
    memory.keep(["a"])
    assert memory.hold("c", 40, starts=True)
    assert not memory.hold("d", 40, starts=True)


async def test_one_agent_fits_always() -> None:
    room = MemoryRoom({"a"}, 100)
    await room.take("a", 500)
    assert room.fits(500) == 1


async def test_a_wait_ends_at_its_deadline_and_says_why() -> None:
    room = MemoryRoom({"a", "b"}, 100)
    await room.take("a", 80)
    with pytest.raises(LimitExceeded, match=r"containers\.memory_mb: 80 of 100 MB .* need 60"):
        await room.take("b", 60, timeout=0.01)
    assert room.waits_since("b") is None


async def test_agents_of_an_earlier_server_are_counted_whether_they_fit_or_not() -> None:
    room = MemoryRoom({"a", "b"}, 100)
    room.count("a", 80)
    room.count("b", 80)
    assert room.fits(20) == 1


async def test_without_a_limit_nobody_waits() -> None:
    room = MemoryRoom({"a", "b"}, None)
    await room.take("a", 10**6)
    await room.take("b", 10**6)
    assert room.fits(10**6) is None
