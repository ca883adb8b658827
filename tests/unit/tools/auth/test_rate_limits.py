"""Rate limit per principal."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import RateLimited
from oubliette.testing.clock import VirtualClock
from oubliette.tools.auth import rate_limits
from oubliette.tools.auth.rate_limits import RateLimits

pytestmark = pytest.mark.anyio


async def taken(limits: RateLimits, principal: str, calls: int) -> int:
    """How many of so many calls at once are let through."""
    done = 0
    for _ in range(calls):
        try:
            await limits.take(principal)
        except RateLimited:
            continue
        done += 1
    return done


async def test_a_burst_goes_through_and_the_next_call_is_told_when_to_come_back() -> None:
    limits = RateLimits(10, 20, VirtualClock())
    assert await taken(limits, "p", 20) == 20
    with pytest.raises(RateLimited, match="10 a second are allowed, 20 at once") as refused:
        await limits.take("p")
    assert refused.value.retry_after == 1
    assert "try again in 0.100 s" in str(refused.value)


async def test_one_principal_takes_nothing_from_another() -> None:
    limits = RateLimits(10, 20, VirtualClock())
    await taken(limits, "flood", 1000)
    assert await taken(limits, "calm", 20) == 20


async def test_a_slow_rate_says_how_many_seconds_to_wait() -> None:
    limits = RateLimits(0.25, 1, VirtualClock())
    await limits.take("p")
    with pytest.raises(RateLimited) as refused:
        await limits.take("p")
    assert refused.value.retry_after == 4


async def test_principals_without_end_take_no_memory_without_end(monkeypatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_KNOWN", 10)
    limits = RateLimits(10, 20, VirtualClock())
    for number in range(1000):
        await limits.take(f"p{number}")
    assert len(limits._buckets) <= 10


@given(st.lists(st.floats(0, 3), max_size=60))
def test_no_window_ever_lets_more_than_the_burst_and_its_rate_through(gaps: list[float]) -> None:
    clock = VirtualClock()
    limits = RateLimits(5, 8, clock)
    passed: list[float] = []
    for gap in gaps:
        clock.advance(gap)
        passed += [clock.monotonic()] * asyncio.run(taken(limits, "p", 4))
    for start, first in enumerate(passed):
        for end in range(start, len(passed)):
            assert end - start + 1 <= 8 + 5 * (passed[end] - first) + 1e-6
