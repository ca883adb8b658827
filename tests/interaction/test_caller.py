"""CallerActor: who is there, who is told, and from where."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.actors.caller.actor import IDLE_SECONDS, KEEP_RECENT_SECONDS
from oubliette.actors.caller.delivery import KnownProjects
from oubliette.actors.caller.event_window import RecentEvents
from oubliette.actors.caller.messages import CloseListener, GetCaller, NextEvents, OpenListener
from oubliette.actors.caller.presence import CallerPresence
from oubliette.actors.caller.supervisor import MAX_CALLERS, CallersActor
from oubliette.actors.messages import (
    CallerDisconnected,
    CallerSeen,
    EventsCommitted,
    OpenCaller,
    TrackRequest,
    UntrackRequest,
)
from oubliette.actors.store.actor import Subscribe
from oubliette.config.schema import CallersConfig
from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, System, handles
from oubliette.records import CallerRequest, CallerTool, Event
from oubliette.testing.clock import VirtualClock
from tests import selection

pytestmark = pytest.mark.anyio


class FakeStore(Actor):
    """Subscriptions and a log in memory, with the reader's methods."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    @handles(Subscribe)
    def _subscribe(self, message: Subscribe) -> None:
        self._log.subscribers.setdefault(message.caller_key, set()).add(message.name)


class Log:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.requests: dict[str, CallerRequest] = {}
        self.subscribers: dict[str, set[str]] = {}
        self.reads = 0
        self.system: Any = None

    async def last_seq(self) -> int:
        return len(self.events)

    async def caller_events(self, principal, caller_id, after_seq, limit, max_bytes):
        self.reads += 1
        found = [
            e
            for e in self.events
            if e.seq > after_seq and (e.principal, e.caller_id) == (principal, caller_id)
        ]
        return found[:limit]

    async def open_requests(self, *, principal=None, caller_id=None):
        return [r for r in self.requests.values() if r.outcome is None]

    async def open_permissions(self, principal, caller_id):
        return []

    async def event(self, session_id, index):
        return next(e for e in self.events if e.index == index and e.session_id == session_id)

    def commit(self, count: int = 1, kind: str = "message", tell: bool = True, **data: Any):
        new = []
        for _ in range(count):
            seq = len(self.events) + 1
            event = Event(
                session_id="s",
                index=seq - 1,
                ts=0.0,
                type=kind,
                data={"n": seq, **data},
                seq=seq,
                principal="p",
                caller_id="c",
            )
            self.events.append(event)
            new.append(event)
        if tell:
            for name in self.subscribers.get("p/c", ()):
                self.system.ref(name).tell(EventsCommitted(events=tuple(new)))
        return new

    def request(self, request_id: str) -> None:
        self.requests[request_id] = CallerRequest(
            id=request_id,
            session_id="s",
            principal="p",
            caller_id="c",
            tool="t",
            arguments={},
            created_at=0.0,
            deadline=60.0,
            event_index=len(self.events),
        )
        self.commit(kind="caller_tool_request", request_id=request_id)

    def settle(self, request_id: str) -> None:
        old = self.requests[request_id]
        self.requests[request_id] = CallerRequest(
            **{f: getattr(old, f) for f in old.__struct_fields__} | {"outcome": "result"}
        )


class Waiter(Actor):
    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    @handles(CallerDisconnected)
    def _lost(self, message: CallerDisconnected) -> None:
        self._told.append(message.reason)


class Scene:
    def __init__(self, system: System, clock: VirtualClock, log: Log) -> None:
        self.system, self.clock, self.log = system, clock, log
        log.system = system
        self.lost: list[str] = []
        self.store = system.spawn(FakeStore, log, name="store")
        self.callers = system.spawn(CallersActor, self.store, log, CallersConfig(), name="callers")
        self.count = 0

    async def caller(self, principal: str = "p", caller_id: str = "c"):
        name = await self.callers.ask(OpenCaller(principal=principal, caller_id=caller_id))
        ref = self.system.ref(name)
        await ref.ask(GetCaller())
        return ref

    async def open(self, ref, listener: str = "l1", **fields):
        return await ref.ask(OpenListener(listener_id=listener, **fields))

    async def next(self, ref, listener: str = "l1", after: int = 0, **fields):
        return await ref.ask(NextEvents(listener_id=listener, after=after, **fields))

    async def wait(self, ref, listener: str = "l1", after: int = 0, **fields):
        task = asyncio.ensure_future(self.next(ref, listener, after, **fields))
        await self.clock.elapse(0)
        return task

    def track(self, ref, request_id: str = "r1", **fields) -> str:
        self.count += 1
        waiter = self.system.spawn(Waiter, self.lost, name=f"waiter-{self.count}")
        ref.tell(
            TrackRequest(request_id=request_id, session_id="s", reply_to=waiter.name, **fields)
        )
        return waiter.name


@contextlib.asynccontextmanager
async def scene():
    clock = VirtualClock()
    async with System(name="callers-test", clock=clock, roundtrip_messages=True) as system:
        yield Scene(system, clock, Log())


# ---------------------------------------------------------------- presence


async def test_who_never_connected_is_absent_and_that_is_told_at_once():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        s.track(ref)
        await s.clock.elapse(0)
        assert s.lost == ["caller c is not connected: it never connected"]
        assert (await ref.ask(GetCaller())).present is False


async def test_a_stream_is_there_until_a_second_after_it_dropped():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref)
        s.track(ref)
        await s.clock.elapse(3600)
        assert s.lost == []
        ref.tell(CloseListener(listener_id="l1"))
        await s.clock.elapse(0.9)
        assert s.lost == []
        await s.clock.elapse(0.2)
        assert s.lost == ["caller c is not connected: it disconnected"]
        s.track(ref, "r2")
        await s.clock.elapse(0)
        assert len(s.lost) == 2


async def test_a_poller_is_there_until_ten_seconds_after_its_last_poll():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        for n in range(3):
            await s.open(ref, f"l{n}", kind="poll")
            polling = await s.wait(ref, f"l{n}", wait_seconds=5.0)
            await s.clock.elapse(5)
            assert (await polling).events == ()
            ref.tell(CloseListener(listener_id=f"l{n}", orderly=True))
            s.track(ref, f"r{n}")
            await s.clock.elapse(9)
            assert s.lost == []
        await s.clock.elapse(1.1)
        assert s.lost == ["caller c is not connected: it stopped listening"] * 3


async def test_a_sign_of_life_counts_as_a_poll():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        ref.tell(CallerSeen())
        s.track(ref)
        await s.clock.elapse(9.9)
        assert s.lost == []
        await s.clock.elapse(0.2)
        assert s.lost == ["caller c is not connected: it does not listen for events"]


async def test_a_dropped_stream_outweighs_the_signs_of_life_before_it():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref)
        ref.tell(CallerSeen())
        s.track(ref)
        ref.tell(CloseListener(listener_id="l1"))
        await s.clock.elapse(1.1)
        assert len(s.lost) == 1


async def test_a_durable_request_waits_for_its_caller():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        s.track(ref, durable=True)
        await s.clock.elapse(1000)
        assert s.lost == []


async def test_an_adopted_request_gives_the_caller_time_to_come_back():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        s.track(ref, "r1", adopted=True, grace=30.0)
        s.track(ref, "r2", adopted=True, grace=10.0)
        await s.clock.elapse(9.9)
        assert s.lost == []
        await s.clock.elapse(0.2)
        assert len(s.lost) == 1
        await s.open(ref)
        await s.clock.elapse(1000)
        assert len(s.lost) == 1


async def test_what_was_settled_is_not_lost():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref)
        s.track(ref)
        ref.tell(UntrackRequest(request_id="r1"))
        ref.tell(CloseListener(listener_id="l1"))
        await s.clock.elapse(5)
        assert s.lost == []
        assert (await ref.ask(GetCaller())).tracked == 0


async def test_superseding_and_observing_are_no_sign_of_absence_or_presence():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, "l1")
        s.track(ref)
        await s.open(ref, "l2")
        ref.tell(CloseListener(listener_id="l1"))
        await s.open(ref, "watch", mode="observe")
        await s.clock.elapse(100)
        assert s.lost == []
        ref.tell(CloseListener(listener_id="l2"))
        await s.clock.elapse(1.1)
        assert len(s.lost) == 1


@given(st.data())
@settings(max_examples=selection.examples(200))
def test_presence_follows_the_last_thing_that_counts(data):
    """The rule, said once more and plainly, against the one that is used."""
    presence, now = CallerPresence(1.0, 10.0), 0.0
    open_streams: list[str] = []
    until = -1.0
    for n in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]))
        act = data.draw(st.sampled_from(["open", "drop", "end", "seen"]))
        if act == "open":
            for old in open_streams:
                presence.superseded(old)
            open_streams = [f"l{n}"]
            presence.opened(f"l{n}", stream=True)
        elif act == "seen":
            presence.seen(now)
            until = max(until, now + 10)
        elif open_streams:
            presence.closed(open_streams.pop(), now, orderly=act == "end")
            until = now + 1 if act == "drop" else max(until, now + 10)
        assert presence.present(now) is (bool(open_streams) or now < until)


# ---------------------------------------------------------------- what is told


async def test_a_listener_waits_for_the_next_event_and_no_longer_than_it_said():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        s.log.commit(3)
        opened = await s.open(ref)
        assert opened.cursor == 3
        waiting = await s.wait(ref, after=3)
        s.log.commit()
        batch = await waiting
        assert ([e.seq for e in batch.events], batch.next, batch.ended) == ([4], 4, None)
        waiting = await s.wait(ref, after=4, wait_seconds=20.0)
        await s.clock.elapse(20)
        assert (await waiting).events == ()


async def test_every_end_of_a_listener_is_told_to_who_waits():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, "l1")
        first = await s.wait(ref, "l1")
        await s.open(ref, "l2")
        assert (await first).ended == "superseded"
        second = await s.wait(ref, "l2")
        ref.tell(CloseListener(listener_id="l2", reason="server stopping", orderly=True))
        assert (await second).ended == "server stopping"
        assert (await s.next(ref, "l2")).ended == "unknown listener"


async def test_caps_cut_batches_and_nothing_is_skipped():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, after=0)
        s.log.commit(25, text="x" * 1000)
        seen: list[int] = []
        sizes: list[int] = []
        while len(seen) < 25:
            batch = await s.next(ref, after=seen[-1] if seen else 0, max_events=10, max_bytes=5_000)
            seen += [e.seq for e in batch.events]
            sizes.append(len(batch.events))
        assert seen == list(range(1, 26))
        assert max(sizes) == 4


async def test_an_event_above_the_cap_goes_alone():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, after=0)
        s.log.commit(text="x" * 100)
        s.log.commit(text="x" * 10_000)
        s.log.commit(text="x" * 100)
        sizes = []
        after = 0
        for _ in range(3):
            batch = await s.next(ref, after=after, max_bytes=1_000)
            after = batch.next
            sizes.append([e.seq for e in batch.events])
        assert sizes == [[1], [2], [3]]


@settings(max_examples=selection.examples(40))
@given(st.data())
def test_ring_and_log_together_have_no_gap_and_no_repeat(data):
    """Whatever is in memory, from whatever cursor: the reader sees each seq once, in order."""
    ring = RecentEvents(0, max_events=data.draw(st.integers(1, 20)), max_bytes=2000)
    log: list[Event] = []
    for _ in range(data.draw(st.integers(0, 30))):
        count = data.draw(st.integers(1, 5))
        new = [
            Event(
                session_id="s",
                index=n,
                ts=0.0,
                type="message",
                data={"t": "x" * data.draw(st.integers(0, 900))},
                seq=(log[-1].seq if log else 0) + data.draw(st.integers(1, 3)) + n,
            )
            for n in range(1)
            for _ in range(count)
        ]
        for event in new:
            if not log or event.seq > log[-1].seq:
                log.append(event)
                ring.extend([event, event])
    for cursor in range(log[-1].seq + 1 if log else 1):
        wanted = [event.seq for event in log if event.seq > cursor]
        if cursor >= ring.floor:
            assert [event.seq for event, _ in ring.after(cursor)] == wanted
    assert ring.head == (log[-1].seq if log else 0)


async def test_events_between_subscription_and_first_read_are_told_once():
    async with scene() as s, asyncio.timeout(60):
        s.log.commit(5, tell=False)
        ref = await s.caller()
        await s.open(ref, after=2)
        # Told late, although the actor has read up to there.
        ref.tell(EventsCommitted(events=tuple(s.log.events[3:])))
        s.log.commit(2)
        seen: list[int] = []
        while len(seen) < 5:
            batch = await s.next(ref, after=seen[-1] if seen else 2)
            seen += [e.seq for e in batch.events]
        assert seen == [3, 4, 5, 6, 7]


async def test_a_lender_resumes_without_settled_requests_and_with_open_ones_marked():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref)
        s.log.commit()
        for name in ("a", "b", "c"):
            s.log.request(name)
        s.log.settle("b")
        await s.open(ref, "l2", after=1)
        batch = await s.next(ref, "l2", after=1)
        assert [e.data["request_id"] for e in batch.events] == ["a", "c"]
        assert batch.redelivered == (2, 4)
        s.log.request("d")
        batch = await s.next(ref, "l2", after=batch.next)
        assert (batch.events[0].data["request_id"], batch.redelivered) == ("d", ())


async def test_a_poller_gets_marked_only_what_it_may_have_had_before():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, "p1", kind="poll")
        s.log.request("a")
        first = await s.next(ref, "p1")
        ref.tell(CloseListener(listener_id="p1", orderly=True))
        s.log.request("b")
        await s.open(ref, "p2", kind="poll", after=first.next)
        second = await s.next(ref, "p2", after=first.next)
        await s.open(ref, "p3", kind="poll", after=0)
        third = await s.next(ref, "p3", after=0)
        assert (first.redelivered, second.redelivered, third.redelivered) == ((), (), (1, 2))


async def test_what_a_lost_stream_may_have_swallowed_comes_again_when_asked_for():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        s.log.request("a")
        s.log.commit()
        s.log.request("b")
        opened = await s.open(ref, after=2, again=True)
        assert opened.redelivered == 1
        first = await s.next(ref, after=2)
        second = await s.next(ref, after=first.next)
        told = [e.data["request_id"] for e in (*first.events, *second.events)]
        assert told == ["a", "b"]


async def test_an_observers_cursor_passes_what_it_does_not_see():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, mode="observe", after=0)
        waiting = await s.wait(ref)
        s.log.request("a")
        await s.clock.elapse(1)
        assert not waiting.done()
        s.log.commit()
        batch = await waiting
        assert ([e.seq for e in batch.events], batch.next) == ([2], 2)


# ---------------------------------------------------------------- tools, ends, bounds


async def test_tools_lent_by_a_listener_are_remembered():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        assert (await ref.ask(GetCaller())).tools is None
        await s.open(ref, tools=(CallerTool(name="add"),))
        await s.open(ref, "l2")
        assert [tool.name for tool in (await ref.ask(GetCaller())).tools or ()] == ["add"]
        await s.open(ref, "l3", tools=())
        assert (await ref.ask(GetCaller())).tools == ()


async def test_a_restarted_actor_keeps_tools_and_those_who_wait():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref, tools=(CallerTool(name="add"),))
        s.track(ref)
        await ref.ask(GetCaller())
        await ref.kill()
        await s.clock.elapse(1)
        state = await ref.ask(GetCaller())
        assert (state.tracked, state.present, len(state.tools or ())) == (1, True, 1)
        assert s.lost == []
        await s.clock.elapse(10)
        assert len(s.lost) == 1


async def test_a_store_that_comes_back_is_subscribed_to_again_and_nothing_is_missed():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref)
        s.log.commit()
        batch = await s.next(ref)
        waiting = await s.wait(ref, after=batch.next)
        await s.store.stop()
        s.log.subscribers.clear()
        s.log.commit(2)  # told to nobody
        await s.clock.elapse(0.1)
        s.system.spawn(FakeStore, s.log, name="store")
        await s.clock.elapse(1)
        assert [e.seq for e in (await waiting).events] == [2, 3]
        waiting = await s.wait(ref, after=3)
        s.log.commit()
        assert [e.seq for e in (await waiting).events] == [4]


async def test_an_idle_caller_is_forgotten_and_a_busy_one_is_not():
    async with scene() as s, asyncio.timeout(60):
        idle, busy = await s.caller(caller_id="idle"), await s.caller()
        await s.open(busy)
        await s.clock.elapse(IDLE_SECONDS + 1)
        assert not idle.is_alive()
        assert busy.is_alive()
        assert (await s.caller(caller_id="idle")).is_alive()


async def test_events_are_kept_in_memory_for_a_minute_after_their_caller_has_gone():
    """Whoever comes back later reads them from the log; nothing is missed."""
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        await s.open(ref)
        ref.tell(CloseListener(listener_id="l1"))
        s.log.commit(3)
        await s.clock.elapse(KEEP_RECENT_SECONDS - 1)
        await s.open(ref, "l2", after=0)
        assert [e.seq for e in (await s.next(ref, "l2")).events] == [1, 2, 3]
        assert s.log.reads == 0
        await s.clock.elapse(2 * KEEP_RECENT_SECONDS)  # there is a listener: all of it stays
        await s.open(ref, "l3", after=0)
        assert [e.seq for e in (await s.next(ref, "l3")).events] == [1, 2, 3]
        assert s.log.reads == 0
        ref.tell(CloseListener(listener_id="l3"))
        await s.clock.elapse(KEEP_RECENT_SECONDS + 1)
        s.log.commit(2)
        await s.open(ref, "l4", after=0)
        first = await s.next(ref, "l4")
        assert s.log.reads == 1
        s.log.commit()
        more = await s.next(ref, "l4", after=first.next)
        assert [e.seq for e in (*first.events, *more.events)] == [1, 2, 3, 4, 5, 6]


async def test_a_poller_finds_its_events_in_memory_from_poll_to_poll():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        for n in range(30):
            await s.open(ref, f"l{n}", kind="poll", after=n)
            s.log.commit()
            assert [e.seq for e in (await s.next(ref, f"l{n}", after=n)).events] == [n + 1]
            ref.tell(CloseListener(listener_id=f"l{n}", orderly=True))
            await s.clock.elapse(9)
        assert s.log.reads == 0


@given(st.lists(st.lists(st.integers(0, 40), max_size=10), max_size=20))
async def test_projects_of_sessions_are_read_once_and_a_bounded_number_is_remembered(batches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oubliette.actors.caller.delivery.MAX_KNOWN", 12)
        known = KnownProjects()
        for batch in batches:
            sessions = {str(number) for number in batch}
            reads = Reads()
            events = [Event(session_id=each, index=0, ts=0.0, type="message") for each in sessions]
            expected = sessions - known.keys()
            known.learn(await known.read(reads, events))
            assert reads.asked == expected
            assert len(known) <= 12
            known.learn(await known.read(Reads(), events))  # as whoever needs them does
            assert {each: known[each] for each in sessions} == {
                each: f"project of {each}" for each in sessions
            }


class Reads:
    """Which sessions were read."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    async def session(self, session_id: str) -> Any:
        self.asked.add(session_id)
        return SimpleNamespace(project_id=f"project of {session_id}")


async def test_a_principal_has_a_bounded_number_of_callers(monkeypatch):
    monkeypatch.setattr("oubliette.actors.caller.supervisor.MAX_CALLERS", 3)
    async with scene() as s, asyncio.timeout(60):
        for n in range(3):
            await s.caller(caller_id=f"c{n}")
        await s.caller(caller_id="c0")
        with pytest.raises(LimitExceeded, match="p has 3 callers already"):
            await s.caller(caller_id="c3")
        await s.caller("q", "c0")
    assert MAX_CALLERS == 1000


async def test_polls_get_all_open_requests_however_many_there_are():
    async with scene() as s, asyncio.timeout(60):
        ref = await s.caller()
        for n in range(25):
            s.log.request(f"r{n}")
        seen: list[str] = []
        after = None
        for n in range(3):
            await s.open(ref, f"p{n}", kind="poll", after=after)
            batch = await s.next(ref, f"p{n}", after=after or 0, max_events=10)
            ref.tell(CloseListener(listener_id=f"p{n}", orderly=True))
            after = batch.next
            seen += [e.data["request_id"] for e in batch.events]
        assert seen == [f"r{n}" for n in range(25)]
