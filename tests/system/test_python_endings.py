"""How blocks, iterators and runs of the Python API end when they are cancelled or used at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.system.python_api import DOORS, opened

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SOON = 20.0


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The embedded system is the module's, and starts threads when it needs them."""


@pytest.fixture(scope="module", params=DOORS)
async def ob(request, shared_site):
    before = set(threading.enumerate())
    async with opened(request.param, shared_site) as found:
        yield found
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith(("asyncio_", "AnyIO")):  # those of the loop's executor
            thread.join(5)
            assert not thread.is_alive(), thread.name


@pytest.fixture
async def project(ob, request):
    return await ob.create_project(f"{request.node.name}"[:80], init_git=False)


# ---------------------------------------------------------------- iterators


async def taken(events: Any, found: list[int]) -> None:
    async for event in events:
        found.append(event.index)


async def test_tasks_that_share_an_iterator_get_each_event_once(project):
    session = await project.spawn("emit 50\nsleep 0.5\nemit 50")
    events = session.events()
    found: list[int] = []
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(taken(events, found) for _ in range(3)))
    assert found == list(range(len(found)))
    assert len(found) > 100


async def test_tasks_that_share_an_iterator_of_a_turn_all_end_with_the_turn(project):
    session = await project.spawn("say hello")
    await session.turn
    turn = await session.send("emit 20\nsleep 0.5\nemit 20")
    events = turn.events()
    found: list[int] = []
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(taken(events, found) for _ in range(3)))
    assert found == sorted(set(found))
    assert len(found) > 40
