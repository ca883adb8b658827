"""One fault after the other, of any kind, at any moment, under one load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

from tests.faults.load import Crashed, Load

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SOAK = os.environ.get("OUBLIETTE_SOAK") == "1"
FAULTS = [
    "kill",
    "kill",
    "cut",
    "cut",
    "fail SessionConnectionActor",
    "fail SocketActor",
    "fail ContainerActor",
    "fail ContainerSupervisor",
    "fail SessionsActor",
    "fail CallerActor",
    "fail TreeActor",
    "fail ProjectActor",
    "fail ProjectsActor",
    "fail StoreActor",
    "fail SessionActor",  # three of these in a minute may fail a session for good
    "fail AgentProcessActor",
]


@pytest.mark.whole
@pytest.mark.timeout(120)
@pytest.mark.parametrize("round_", range(40 if SOAK else 2))
async def test_whatever_fails_one_after_the_other_the_work_is_done_once(server, round_):
    """All invariants of the crash test, after seven faults."""
    seed = int(os.environ.get("OUBLIETTE_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    faults = chance.sample(FAULTS, 7)
    print(f"seed {seed}: {faults}")  # shown if it fails
    await server.start()
    async with Load(server) as load:
        for fault in faults:
            working = asyncio.ensure_future(work(load))
            await asyncio.wait({working}, timeout=chance.uniform(0.05, 0.6))
            if fault == "kill":
                await server.kill()
                await server.start()
            else:
                await server.arm(fault)
            working.cancel()
            for result in await asyncio.gather(working, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
        await load.come_back()
        await load.finish()


async def work(load: Load) -> None:
    """Go on from wherever the load is."""
    with contextlib.suppress(Crashed):
        await load.come_back()
        await load.go_on(4)
