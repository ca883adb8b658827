"""A listener misses nothing when the store's actor is restarted (invariant I1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oubliette.actors.caller.messages import NextEvents, OpenListener
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.messages import EventsCommitted, OpenCaller
from oubliette.actors.store.actor import Subscribe
from oubliette.config.schema import CallersConfig
from oubliette.errors import StorageUnavailable
from oubliette.kit import Actor, ChildSpec, Message, Supervisor, System, handles
from oubliette.records import Event
from oubliette.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Fail(Message):
    """To the store: fail."""


class Log:
    """What the reader reads."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lives = 0
        self.reads = 0
        self.away = False

    def commit(self, count: int) -> tuple[Event, ...]:
        new = tuple(
            Event(
                session_id="s",
                index=seq - 1,
                ts=0.0,
                type="message",
                data={},
                seq=seq,
                principal="p",
                caller_id="c",
            )
            for seq in range(len(self.events) + 1, len(self.events) + 1 + count)
        )
        self.events += new
        return new

    async def last_seq(self) -> int:
        self.reads += 1
        if self.away:
            raise StorageUnavailable("the database cannot be read")
        return len(self.events)

    async def caller_events(self, _p: str, _c: str, after: int, limit: int, _b: int) -> list[Event]:
        return [event for event in self.events if event.seq > after][:limit]

    async def open_requests(self, **_: Any) -> list[Any]:
        return []

    async def open_permissions(self, _principal: str, _caller_id: str) -> list[Any]:
        return []


class Store(Actor):
    """Commits while nobody is subscribed, and again between a subscription and its answer."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def on_start(self) -> None:
        self._log.lives += 1
        if self._log.lives > 1:
            self._log.commit(3)

    @handles(Subscribe)
    def _subscribe(self, message: Subscribe) -> None:
        if self._log.lives > 1:
            self.system.ref(message.name).tell(EventsCommitted(events=self._log.commit(2)))

    @handles(Fail)
    def _fail(self, _: Fail) -> None:
        raise RuntimeError("told to")


async def test_events_of_the_time_without_a_subscription_come_before_those_after_it():
    log = Log()
    async with asyncio.timeout(10), System() as system:
        spec = ChildSpec(name="store", cls=Store, args=(log,))
        supervisor = system.spawn(Supervisor, [spec], name="stores")
        store = system.ref("stores/store")
        callers = system.spawn(CallersActor, store, log, CallersConfig(), name="callers")
        caller = system.ref(await callers.ask(OpenCaller(principal="p", caller_id="c")))
        await caller.ask(OpenListener(listener_id="l", mode="provide", kind="stream"))
        told: list[int] = []
        waits = asyncio.ensure_future(
            caller.ask(NextEvents(listener_id="l", after=0, wait_seconds=5.0))
        )
        store.tell(Fail())
        while len(told) < 5:
            batch = await waits
            told += [event.seq for event in batch.events]
            waits = asyncio.ensure_future(
                caller.ask(NextEvents(listener_id="l", after=batch.next, wait_seconds=5.0))
            )
        assert told == [1, 2, 3, 4, 5]
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert supervisor.is_alive()


async def test_callers_that_begin_while_the_log_cannot_be_read_are_refused_and_served_later():
    log, clock = Log(), VirtualClock()
    log.away = True
    log.commit(7)
    listen = OpenListener(listener_id="l", mode="provide", kind="stream")
    async with asyncio.timeout(10), System(clock=clock) as system:
        spec = ChildSpec(name="store", cls=Store, args=(log,))
        system.spawn(Supervisor, [spec], name="stores")
        store = system.ref("stores/store")
        callers = system.spawn(CallersActor, store, log, CallersConfig(), name="callers")
        await clock.elapse(0.0)
        names = [
            await callers.ask(OpenCaller(principal="p", caller_id=f"c{number}"))
            for number in range(12)
        ]
        first = [system.ref(name).incarnation for name in names]
        for _ in range(3):
            for name in names:
                with pytest.raises(StorageUnavailable, match="database cannot be read"):
                    await system.ref(name).ask(listen)
            await clock.elapse(1.0)
        before = log.reads
        await clock.elapse(60.0)
        assert log.reads - before <= 12 * 60, "with growing pauses"
        log.away = False
        await clock.elapse(1.0)
        for name in names:
            assert (await system.ref(name).ask(listen)).cursor == 7
        assert [system.ref(name).incarnation for name in names] == first, "none has failed"
