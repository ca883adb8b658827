"""Random kills under turns, calls, children, maps, permissions, ends and deletions: nothing is lost.

`python -m tests.faults.kills` is the same at any length; a failure names the seed.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.faults.conftest import ENGINES
from tests.faults.kills import KILLS_A_HOME, settings_of, stopped_home

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.whole, pytest.mark.timeout(400)]

RUNTIMES = [
    pytest.param("process", marks=pytest.mark.requires("bubblewrap")),
    "best-effort",
    *ENGINES,
]
SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("home", range(10 if SOAK else 1))
async def test_no_session_fails_and_nothing_is_left_over_random_kills(zygote, runtime, home):
    seed = os.environ.get("OUBLIETTE_SEED") or str(random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")  # shown if it fails
    outcome = await stopped_home(
        zygote,
        settings_of(runtime),
        kills=KILLS_A_HOME if SOAK else 3,
        chance=random.Random(f"{seed}/{home}"),
    )
    assert outcome.wrong == []
    assert outcome.sessions
