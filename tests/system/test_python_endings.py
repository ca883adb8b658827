"""How blocks, iterators and runs of the Python API end when they are cancelled or used at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import oubliette
from tests.system.python_api import DOORS, opened, settings, short_home

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(120)]

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
    assert sorted(found) == list(range(len(found)))
    assert len(found) > 100


async def test_tasks_that_share_an_iterator_of_a_turn_all_end_with_the_turn(project):
    session = await project.spawn("say hello")
    await session.turn
    turn = await session.send("emit 20\nsleep 0.5\nemit 20")
    events = turn.events()
    found: list[int] = []
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(taken(events, found) for _ in range(3)))
    assert sorted(found) == sorted(set(found))
    assert len(found) > 40


# ---------------------------------------------------------------- the end of a block


async def left(home: Any, tools: list[Any], waits: list[asyncio.Task[Any]]) -> None:
    """A block that ends while much is awaited in it."""
    async with oubliette.open(home, config=settings()) as ob:
        project = await ob.project("left", init_git=False)
        session = await project.spawn("sleep 60")
        idle = await project.spawn("say hello")
        await idle.turn
        following = idle.events(after=10_000, follow=True)
        waits += [
            asyncio.create_task(each)
            for each in (
                session.turn.result(),
                project.map(["sleep 60"] * 2),
                project.run('call resist {"number": 1}', tools=tools),
                project.exec("sleep 60"),
                anext(following),
            )
        ]
        await asyncio.sleep(1)


async def test_what_is_awaited_when_a_block_ends_ends_with_it():
    calls: list[int] = []

    async def resist(number: int) -> int:
        """Resist cancellation, as a tool with a defect does."""
        calls.append(number)
        while number:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                number -= 1
        return number

    waits: list[asyncio.Task[Any]] = []
    with short_home() as home:
        async with asyncio.timeout(SOON):
            await left(home, [resist], waits)
            ended = await asyncio.gather(*waits, return_exceptions=True)
    assert calls == [1]
    assert isinstance(ended[0], oubliette.TurnInterrupted)
    assert [type(each) for each in ended[1]] == [oubliette.TurnInterrupted] * 2
    assert isinstance(ended[3], oubliette.Closed)


async def test_a_cancelled_end_of_a_block_is_an_end_all_the_same():
    with short_home() as home:

        async def use() -> None:
            async with oubliette.open(home, config=settings()):
                pass

        await use()
        for pauses in range(6):
            ending = asyncio.Event()

            async def leave(ending: asyncio.Event = ending) -> None:
                async with oubliette.open(home, config=settings()):
                    ending.set()

            task = asyncio.create_task(leave())
            await ending.wait()
            for _ in range(pauses):
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # as a time limit and a task group do that surround it
            await asyncio.gather(task, return_exceptions=True)
            await use()  # the home is free


async def test_a_call_that_waits_for_a_server_that_fails_ends_with_an_error():
    with short_home() as home:
        async with oubliette.open(home, config=settings()) as ob:
            project = await ob.project("failing", init_git=False)
            session = await project.spawn("sleep 60")
            waiting = asyncio.create_task(session.turn.result())
            await asyncio.sleep(0.5)
            ob._shared.connection.server.fail("the disk is full")
            async with asyncio.timeout(SOON / 4):
                with pytest.raises(oubliette.Unavailable, match="the disk is full"):
                    await waiting
                with pytest.raises(oubliette.Unavailable, match="the disk is full"):
                    await ob.projects()
        async with oubliette.open(home, config=settings()) as ob:
            assert await ob.projects()
