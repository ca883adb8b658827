"""Side effects happen once, whoever is killed between doing and answering.

`python -m tests.faults.shop_kills` is the same at any length; a failure names the seed.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.shop_kills import DOORS, campaign

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.whole, pytest.mark.timeout(600)]

SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"


@pytest.mark.parametrize("door", DOORS)
async def test_each_refund_is_made_once_whoever_is_killed(zygote, door):
    seed = os.environ.get("OUBLIETTE_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")  # shown if it fails
    outcome = await campaign(
        door, kills=50 if SOAK else 3, chance=random.Random(seed), zygote=zygote
    )
    assert outcome.wrong == []
    assert outcome.calls
