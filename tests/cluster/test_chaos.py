"""Chaos on three nodes with real Ray and a real PostgreSQL: a short one, and one of each kind.

`python -m tests.chaos` is the same at any length.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("ray"),
    pytest.mark.requires("postgres"),
    pytest.mark.skipif(os.environ.get("OUBLIETTE_SOAK") != "1", reason="make soak has it"),
    pytest.mark.slow,
    pytest.mark.whole,
    # Ray, and what it was that was killed, leave sockets and processes to the collector.
    pytest.mark.filterwarnings("default"),
]


async def chaos(kinds: Sequence[str], seed: int, sessions: int) -> list[str]:
    """What was wrong."""
    from tests.chaos.__main__ import campaign
    from tests.chaos.site import Site

    print(f"seed {seed}")  # shown if it fails
    with Site() as site:
        rounds = await campaign(site, kinds, seed, sessions=sessions)
        wrong = [line for each in rounds for line in each.wrong]
        site.keep = bool(wrong)
    return wrong


@pytest.mark.timeout(600)
async def test_nothing_is_lost_with_the_process_of_a_node_and_the_database() -> None:
    assert await chaos(["kill node", "stop database"], seed=1, sessions=6) == []


@pytest.mark.timeout(1200)
async def test_nothing_is_lost_while_nodes_machines_and_the_database_fail() -> None:
    from tests.chaos.__main__ import KINDS, kinds_of

    seed = int(os.environ.get("OUBLIETTE_SEED") or random.SystemRandom().randrange(1 << 32))
    assert await chaos(kinds_of(len(KINDS), random.Random(seed)), seed, sessions=12) == []
