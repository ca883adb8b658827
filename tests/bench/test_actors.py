"""The benchmark of the actors runs: it builds them by hand, so it breaks where they change."""

from __future__ import annotations

import pytest

from tests.bench import actors

pytestmark = pytest.mark.anyio


@pytest.mark.whole
@pytest.mark.timeout(60)
async def test_calls_of_two_agents_are_answered_and_measured_beside_their_floor() -> None:
    figures = await actors.measure(agents=2, count=20)
    assert figures["agents"] == 2
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert 0 < figures["cpu_ratio"]
