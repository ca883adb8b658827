"""Fair turns: who has many callbacks waits for itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.kit import Actor, Message, Reply, System, fair_loop, handles
from oubliette.kit.fair_loop import CREDIT, LONGEST, TURNS, FairQueue, run_fairly, working_for

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Clock:
    """Time that passes only where somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.used: defaultdict[str, float] = defaultdict(float)
        self.order: list[str] = []

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.used[working_for.get()] += seconds
        self.order.append(working_for.get())


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fair_loop, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
async def fair(anyio_backend) -> None:
    """The test's loop, with fair turns."""
    del anyio_backend
    run_fairly(asyncio.get_running_loop())


def as_one(whose: str, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
    token = working_for.set(whose)
    try:
        return asyncio.ensure_future(coroutine)
    finally:
        working_for.reset(token)


async def steps(clock: Clock, number: int, seconds: float) -> None:
    for _ in range(number):
        clock.work(seconds)
        await asyncio.sleep(0)


pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("fair")]


async def test_each_step_of_a_call_waits_for_none_of_anothers_hundred_tasks(clock):
    many = [as_one("mallory", steps(clock, 100, 0.001)) for _ in range(100)]
    while clock.used["mallory"] < 1:
        await asyncio.sleep(0)
    before = clock.used["mallory"]
    await as_one("alice", steps(clock, 20, 0.001))
    assert clock.used["alice"] == pytest.approx(0.02)
    assert clock.used["mallory"] - before <= 0.003
    await asyncio.gather(*many)
    assert clock.used["mallory"] == pytest.approx(10)


async def test_time_counts_and_not_the_number_of_steps(clock):
    few = as_one("mallory", steps(clock, 10_000, 0.01))
    many = [as_one("bob", steps(clock, 10_000, 0.001)) for _ in range(10)]
    while clock.now < 5:
        await asyncio.sleep(0)
    assert clock.used["mallory"] == pytest.approx(clock.used["bob"], abs=0.02)
    for each in (few, *many):
        each.cancel()
    await asyncio.gather(few, *many, return_exceptions=True)


async def test_a_pause_gives_no_more_than_a_little_credit(clock):
    busy = as_one("mallory", steps(clock, 100_000, 0.01))
    while clock.now < 10:
        await asyncio.sleep(0)
    before = clock.used["mallory"]
    late = as_one("alice", steps(clock, 100_000, 0.01))
    while clock.now < 14:
        await asyncio.sleep(0)
    ahead = clock.used["alice"] - (clock.used["mallory"] - before)
    assert ahead == pytest.approx(CREDIT, abs=0.03)
    for each in (busy, late):
        each.cancel()
    await asyncio.gather(busy, late, return_exceptions=True)


async def test_a_turn_in_which_the_process_was_stopped_costs_its_principal_little(clock):
    await as_one("alice", steps(clock, 1, 60))
    busy = as_one("mallory", steps(clock, 100_000, 0.01))
    before = clock.now
    await as_one("alice", steps(clock, 1, 60))
    late = as_one("alice", steps(clock, 1, 0.001))
    await late
    assert clock.used["mallory"] <= LONGEST + CREDIT + 0.02
    assert clock.now - before < 62
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)


async def test_who_is_alone_is_not_delayed_and_keeps_its_order(clock):
    del clock
    seen: list[int] = []
    loop = asyncio.get_running_loop()

    async def ask() -> None:
        for number in range(50):
            loop.call_soon(seen.append, number)

    await as_one("alice", ask())
    while len(seen) < 50:
        await asyncio.sleep(0)
    assert seen == list(range(50))


async def test_the_servers_own_work_comes_first(clock):
    many = [as_one("mallory", steps(clock, 3, 0.001)) for _ in range(20)]
    await asyncio.sleep(0)
    own = [asyncio.ensure_future(steps(clock, 1, 0.001)) for _ in range(20)]
    await asyncio.gather(*own)
    assert clock.order.count("mallory") <= 6
    await asyncio.gather(*many)


async def test_a_round_is_no_longer_however_many_turns_are_waited_for(clock):
    before = clock.now
    many = [as_one("mallory", steps(clock, 1, 0.0)) for _ in range(20 * TURNS)]
    queue: Any = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009 - none of its API
    assert len(queue) <= 2 * TURNS
    await asyncio.gather(*many)
    assert (clock.order.count("mallory"), clock.now) == (20 * TURNS, before)


async def test_sockets_are_looked_at_after_a_turn_that_is_long(clock):
    receiving, sending = os.pipe()
    loop = asyncio.get_running_loop()
    read = asyncio.Event()
    loop.add_reader(receiving, read.set)
    many = [as_one("mallory", steps(clock, 10, 0.001)) for _ in range(50)]
    await asyncio.sleep(0)
    before = len(clock.order)
    os.write(sending, b"x")
    await read.wait()
    assert len(clock.order) - before <= 3
    loop.remove_reader(receiving)
    os.close(receiving)
    os.close(sending)
    await asyncio.gather(*many)


async def test_a_socket_that_waits_for_its_turn_is_waiting_once(clock):
    receiving, sending = os.pipe()
    os.write(sending, b"x")
    loop = asyncio.get_running_loop()
    many = [as_one("mallory", steps(clock, 20, 0.001)) for _ in range(50)]
    seen: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.callback(working_for.reset, working_for.set("mallory"))
        loop.add_reader(receiving, seen.append, 1)
    await asyncio.gather(*many)
    assert 1 <= len(seen) <= 25
    loop.remove_reader(receiving)
    os.close(receiving)
    os.close(sending)


async def test_calls_of_other_threads_arrive(clock):
    del clock
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: [loop.call_soon_threadsafe(seen.append, n) for n in range(1000)]
        )
        for _ in range(4)
    ]
    busy = [as_one("mallory", steps(Clock(), 200, 0)) for _ in range(10)]
    for each in threads:
        each.start()
    while len(seen) < 4000:
        await asyncio.sleep(0.001)
    for each in threads:
        each.join()
    await asyncio.gather(*busy)


async def test_principals_that_rest_are_forgotten_when_there_are_many(clock, monkeypatch):
    monkeypatch.setattr(fair_loop, "MANY", 10)
    for number in range(100):
        await as_one(f"p{number}", steps(clock, 1, 0.001))
    queue: Any = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009 - none of its API
    assert isinstance(queue, FairQueue)
    assert len(queue._owners) <= 10


class Whose(Message, Reply[str]):
    """For whom the actor works."""


class Child(Actor):
    @handles(Whose)
    def _whose(self, _: Whose) -> str:
        return working_for.get()


class Parent(Child):
    async def on_start(self) -> None:
        working_for.set("alice")


class Begin(Message, Reply[str]):
    """Start a child, and return what it says."""


class Spawning(Parent):
    @handles(Begin)
    async def _begin(self, _: Begin) -> str:
        return await self.spawn(Child).ask(Whose())


async def test_an_actor_works_for_whom_its_parent_works():
    async with System() as system:
        with contextlib.ExitStack() as stack:
            stack.callback(working_for.reset, working_for.set("mallory"))
            parent = system.spawn(Spawning)
        assert await parent.ask(Whose()) == "alice"
        assert await parent.ask(Begin()) == "alice"


def test_a_loop_of_another_kind_is_left_as_it_is():
    other = object()
    run_fairly(other)  # type: ignore[arg-type]
