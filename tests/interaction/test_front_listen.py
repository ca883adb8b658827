"""`caller_listen` and the GET stream: a view of the log, without gap and without repeat."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from oubliette.clock import SystemClock
from oubliette.tools.auth.rate_limits import RateLimits
from tests.callers import Caller, ToolFailed
from tests.interaction.frontkit import World, world
from tests.interaction.test_front_paths import Wire
from tests.own_time import OwnTime

pytestmark = pytest.mark.anyio

CLIENTS = [("sdk", "auto"), ("sdk", "legacy"), ("http", "auto"), ("http", "legacy")]
clients = pytest.mark.parametrize(("kind", "mode"), CLIENTS)
modes = pytest.mark.parametrize("mode", ["auto", "legacy"])


def numbers(caller: Caller) -> list[int]:
    return [event["n"] for event in caller.events if "n" in event]


@clients
async def test_a_listener_gets_the_events_of_its_caller_in_order(kind, mode):
    async with world() as w, w.caller(kind, mode) as caller, asyncio.timeout(60):
        await caller.listen()
        for n in range(0, 30, 3):
            await w.events({"n": n}, {"n": n + 1}, {"n": n + 2})
        await caller.event(n=29)
        if kind == "http":  # the SDK's client runs a task for each, so order is the log's seq
            assert numbers(caller) == list(range(30))
    events = sorted(caller.of("message"), key=lambda event: event["seq"])
    assert [event["n"] for event in events] == list(range(30))
    assert [event["index"] for event in events] == list(range(30))
    assert events[0]["session_id"] == "gogol_1"


@clients
async def test_a_tool_request_is_answered_by_the_callers_function(kind, mode):
    async with world() as w, w.caller(kind, mode) as caller, asyncio.timeout(60):
        await caller.listen()
        request = await w.request(a=2, b=40)
        event = await caller.event("caller_tool_request")
        while request not in w.answers:
            await asyncio.sleep(0.01)
    assert w.answers[request]["result"] == 42
    assert event["tool"] == "add"
    assert event["arguments"] == {"a": 2, "b": 40}
    assert event["request_id"] == request


@modes
async def test_callers_get_their_own_events_only(mode):
    async with (
        world() as w,
        w.caller(mode=mode) as alice,
        w.caller(mode=mode, key=w.key("bob")) as bob,
        w.caller(mode=mode, caller_id="other") as other,
        asyncio.timeout(10),
    ):
        for caller in (alice, bob, other):
            await caller.listen()
        await w.events({"n": 1}, session="gogol_a")
        await w.events({"n": 2}, session="gogol_b", principal="bob")
        await w.events({"n": 3}, session="gogol_c", caller_id="other")
        for caller, n in ((alice, 1), (bob, 2), (other, 3)):
            await caller.event(n=n)
        assert [numbers(caller) for caller in (alice, bob, other)] == [[1], [2], [3]]


@modes
async def test_listening_again_with_the_cursor_leaves_no_gap_and_repeats_nothing(mode):
    async with world() as w, w.caller(mode=mode) as caller, asyncio.timeout(60):
        await caller.listen()
        sent = 0
        for round_ in range(5):
            for _ in range(7):
                await w.events({"n": sent})
                sent += 1
            await caller.event(n=sent - 1 - round_ % 3)
            await caller.stop_listening()
            await w.events({"n": sent}, {"n": sent + 1})
            sent += 2
            await caller.listen(after=caller.next)
        await caller.event(n=sent - 1)
    assert numbers(caller) == list(range(sent))


async def test_a_cursor_older_than_memory_is_served_from_the_log():
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        await w.events({"n": 0})
        await caller.listen(after=0)
        await caller.event(n=0)
        await caller.stop_listening()
        start = caller.next
        for first in range(1, 2401, 300):
            await w.events(*({"n": first + n} for n in range(300)))
        await caller.listen(after=start)
        await caller.event(n=2400)
    assert numbers(caller) == list(range(2401))


@modes
async def test_the_newest_lending_listener_wins_and_the_older_is_told(mode):
    async with world() as w, w.caller(mode=mode) as old, w.caller() as new, asyncio.timeout(60):
        await old.listen()
        waiter = await w.track()
        await new.listen()
        assert await old.listener_ended() == "superseded"
        request = await w.request(a=1, b=2)
        await new.event("caller_tool_request", request_id=request)
        assert old.of("caller_tool_request") == []
        assert not waiter.lost.done()


@modes
async def test_an_observer_sees_all_but_tool_requests_and_takes_nobodys_place(mode):
    async with world() as w, w.caller() as lender, w.caller(mode=mode) as watcher:
        async with asyncio.timeout(10):
            await lender.listen()
            await watcher.listen(observe=True)
            request = await w.request(a=1, b=2)
            await lender.event("caller_tool_request", request_id=request)
            await w.events({"n": 1})
            await watcher.event(n=1)
            await lender.event(n=1)
    assert watcher.of("caller_tool_request") == []


@modes
async def test_on_resume_settled_requests_are_skipped_and_open_ones_come_again(mode):
    async with world() as w, w.caller(mode=mode, answers=False) as caller, asyncio.timeout(60):
        await caller.listen()
        await w.events({"n": 0})
        await caller.event(n=0)
        start = caller.next
        settled, open_ = await w.request(a=1, b=1), await w.request(a=2, b=2)
        await caller.event(request_id=open_)
        await caller.call("caller_tool_response", session_id="gogol_1", request_id=settled)
        await caller.stop_listening()
        place = len(caller.events)
        await caller.listen(after=start)
        again = await caller.event("caller_tool_request", after=place)
        fresh = await w.request(a=3, b=3)
        live = await caller.event("caller_tool_request", after=place, request_id=fresh)
        requests = [e["request_id"] for e in caller.events[place:] if "request_id" in e]
    assert again["request_id"] == open_
    assert again["redelivered"] is True
    assert "redelivered" not in live
    assert requests == [open_, fresh]


@modes
async def test_a_new_listener_starts_now_but_gets_open_requests(mode):
    async with world() as w, w.caller(mode=mode, answers=False) as caller, asyncio.timeout(60):
        await w.events({"n": 0})
        first, second = await w.request(a=1, b=1), await w.request(a=2, b=2)
        await caller.listen()
        await w.events({"n": 1})
        await caller.event(n=1)
    told = [event for event in caller.events if event["type"] != "listening"]
    assert [event.get("request_id", event.get("n")) for event in told] == [first, second, 1]
    assert [event.get("redelivered", False) for event in told] == [True, True, False]


@modes
async def test_a_stream_ends_after_max_seconds_and_says_where_to_go_on(mode):
    async with world() as w, w.caller(mode=mode) as caller, asyncio.timeout(60):
        await w.events({"n": 0})
        answer = await caller.call("caller_listen", caller_id="tester", after=0, max_seconds=0.2)
        assert answer == {"events": [], "next": caller.next, "ended": "max_seconds"}
        assert numbers(caller) == [0]


async def test_a_client_without_notifications_polls():
    async with world() as w, w.caller("sdk", events=False, answers=False) as caller:
        async with asyncio.timeout(10):
            quiet = await caller.call("caller_listen", caller_id="tester", max_seconds=0.05)
            request = await w.request(a=1, b=2)
            await w.events({"n": 1})
            first = await caller.call("caller_listen", caller_id="tester", after=quiet["next"])
            waiting = asyncio.ensure_future(
                caller.call("caller_listen", caller_id="tester", after=first["next"])
            )
            await w.events({"n": 2})
            second = await waiting
    assert quiet["events"] == []
    assert [e.get("request_id", e.get("n")) for e in first["events"]] == [request, 1]
    assert "redelivered" not in first["events"][0]
    assert [event["n"] for event in second["events"]] == [2]
    assert second["next"] == second["events"][-1]["seq"]


@clients
async def test_a_large_event_comes_by_reference(kind, mode):
    async with world() as w, w.caller(kind, mode, answers=False) as caller, asyncio.timeout(60):
        await caller.listen()
        await w.events({"n": 1, "text": "x" * 2_000_000}, {"n": 2, "text": "y" * 800_000})
        second = await caller.event(n=2)
        request = await w.request(a="z" * 2_000_000)
        large = await caller.event("caller_tool_request")
    first = caller.of("message")[0]
    assert first["ref"] == {"session_id": "gogol_1", "index": 0}
    assert first["size"] > 2_000_000
    assert "text" not in first
    assert len(second["text"]) == 800_000
    assert (large["request_id"], large["tool"]) == (request, "add")


async def test_a_large_event_is_polled_by_reference():
    async with world() as w, w.caller("sdk", events=False) as caller, asyncio.timeout(60):
        await w.events({"n": 1, "text": "x" * 600_000}, {"n": 2, "text": "y" * 300_000}, {"n": 3})
        answers = [await caller.call("caller_listen", caller_id="tester", after=0)]
        while answers[-1]["events"][-1].get("n") != 3:
            answers.append(
                await caller.call("caller_listen", caller_id="tester", after=answers[-1]["next"])
            )
    events = [event for answer in answers for event in answer["events"]]
    assert [event["index"] for event in events] == [0, 1, 2]
    assert events[0]["ref"]["index"] == 0
    assert len(events[1]["text"]) == 300_000


# ---------------------------------------------------------------- presence over the wire


@modes
async def test_the_death_of_a_client_is_known_within_the_grace(mode):
    async with world(callers={"stream_grace_seconds": 0.3}) as w, w.caller(mode=mode) as caller:
        async with asyncio.timeout(10):
            await caller.listen()
            waiter = await w.track()
            own = OwnTime()
            caller.http.kill()
            reason = await waiter.lost
    assert own.seconds() < 1.0
    assert reason == "caller tester is not connected: it disconnected"


async def test_a_listener_that_is_back_within_the_grace_was_never_away():
    async with world(callers={"stream_grace_seconds": 0.5}) as w, asyncio.timeout(60):
        async with w.caller() as caller:
            await caller.listen()
            waiter = await w.track()
            await caller.stop_listening()
            await caller.listen(after=caller.next)
            await asyncio.wait({waiter.lost}, timeout=0.8)
            assert not waiter.lost.done()


# ---------------------------------------------------------------- GET stream


@pytest.mark.parametrize("kind", ["sdk", "http"])
async def test_a_handshake_client_that_never_listens_gets_events_on_its_get_stream(kind):
    async with world() as w, w.caller(kind, "legacy") as caller, asyncio.timeout(60):
        if kind == "http":
            await caller.open_get_stream()
        await caller.call("session_spawn", context=caller.context)
        await w.events({"n": 1})
        request = await w.request(a=1, b=2)
        await caller.event(n=1)
        while request not in w.answers:
            await asyncio.sleep(0.01)
    assert w.answers[request]["result"] == 3


async def test_a_get_stream_that_opens_after_the_spawn_misses_nothing():
    async with world() as w, w.caller("http", "legacy") as caller, asyncio.timeout(60):
        await caller.call("session_spawn", caller_id="tester")
        await w.events({"n": 1}, {"n": 2})
        await caller.open_get_stream()
        await caller.event(n=2)
        caller.http.kill()
        await w.events({"n": 3})
        async with asyncio.timeout(30):
            while w.front.quotas.streams:
                await asyncio.sleep(0.01)
        await caller.open_get_stream()
        await caller.event(n=3)
    assert numbers(caller) == [1, 2, 3]


async def got(reader: asyncio.StreamReader, *texts: str) -> str:
    """What comes on a stream, until all of these have come."""
    data = ""
    while not all(text in data for text in texts):
        more = await reader.read(65536)
        assert more, f"the stream ended after {data!r}"
        data += more.decode()
    return data


def ids_of(data: str) -> list[str]:
    return [line[4:] for line in data.splitlines() if line.startswith("id: ")]


async def bound(w: World) -> Wire:
    """A client with a GET stream to come, whose caller is bound to it."""
    wire = await Wire(w, "legacy").start()
    await wire.send(wire.call("session_spawn", arguments={"caller_id": "tester"}))
    return wire


async def test_a_newer_get_stream_takes_over_at_once_and_begins_where_its_client_was():
    async with world() as w, asyncio.timeout(60):
        wire = await bound(w)
        async with wire.open(b"", method="GET") as dead:
            await w.events({"n": 1}, {"n": 2})
            first, second = ids_of(await got(dead, '"n":1', '"n":2'))
            request = await w.request(a=1, b=2)
            await w.events({"n": 3})
            await got(dead, request, '"n":3')  # what the server has written; its client is away
            last = {"Last-Event-ID": first}
            async with wire.open(b"", last, method="GET") as reader:
                said = await got(reader, "200 OK", '"n":2', request, '"n":3')
                assert '"n":1' not in said
                assert second in ids_of(said)
                await w.events({"n": 4})
                assert '"n":4' in await got(reader, '"n":4')
            assert await dead.read() == b""


async def test_a_client_that_returns_no_id_gets_all_of_the_stream_that_was_taken_over():
    async with world() as w, asyncio.timeout(60):
        wire = await bound(w)
        async with wire.open(b"", method="GET") as early:
            await w.events({"n": 1})
            await got(early, '"n":1')
        while w.front.quotas.streams:
            await asyncio.sleep(0.01)
        async with wire.open(b"", method="GET") as dead:
            await w.events({"n": 2})
            request = await w.request(a=1, b=2)
            await got(dead, '"n":2', request)
            async with wire.open(b"", method="GET") as reader:
                said = await got(reader, "200 OK", '"n":2', request)
                assert '"n":1' not in said  # of that stream all is known to have been sent


@pytest.mark.parametrize("last", ["17", "tester", "tester=-1", "tester=" + "9" * 40, "x=1,", ""])
async def test_an_id_that_is_not_ours_changes_nothing(last):
    async with world() as w, asyncio.timeout(60):
        wire = await bound(w)
        await w.events({"n": 1})
        async with wire.open(b"", {"Last-Event-ID": last}, method="GET") as reader:
            await w.events({"n": 2})
            await got(reader, '"n":1', '"n":2')


async def test_the_stream_of_a_session_is_taken_over_by_its_principal_alone():
    async with world(callers={"max_calls_in_flight": 1}) as w, asyncio.timeout(60):
        wire = await bound(w)
        async with wire.open(b"", method="GET") as reader:
            await got(reader, "200 OK")
            other = Wire(w, "legacy")
            other.key, other.session = w.key("bob"), wire.session
            assert (await other.send(b"", method="GET"))[0] == 404
            refused = await wire.send(b"", {"Accept": "text/html"}, method="GET")
            assert refused[0] == 429  # and no stream is given up for what is none
            await w.events({"n": 1})
            await got(reader, '"n":1')
            # There is one stream at most, which the newer one does not need to wait for.
            async with wire.open(b"", method="GET") as newer:
                await got(newer, "200 OK", '"n":1')


async def test_of_many_get_streams_at_once_one_stays():
    async with world() as w, asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        wire = await bound(w)
        opening = [wire.open(b"", method="GET") for _ in range(5)]
        readers = [await stack.enter_async_context(each) for each in opening]
        await w.events({"n": 1})
        answers = [asyncio.ensure_future(reader.read()) for reader in readers[:-1]]
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        while sum(not each.done() for each in answers) > 1:
            await asyncio.sleep(0.01)
        assert len(w.front.quotas.streams) == 1
        for each in answers:
            each.cancel()


async def test_a_session_has_as_many_callers_on_its_stream_as_may_listen():
    """More would cost an attempt each, whenever its client opens the stream."""
    async with world(callers={"max_listeners": 3}) as w, asyncio.timeout(60):
        async with w.caller("http", "legacy") as caller:
            for number in range(10):
                await caller.call("session_spawn", caller_id=f"c{number}")
            (session,) = w.front._streams._sessions.values()
            assert list(session.cursors) == ["c0", "c1", "c2"]
            await caller.open_get_stream()
            await w.events({"n": 1}, caller_id="c2")
            await caller.event(n=1)


async def test_streams_that_are_opened_count_as_calls():
    rates = RateLimits(0.001, 12, SystemClock())
    async with world(rates=rates) as w, asyncio.timeout(60):
        wire = await Wire(w, "legacy").start()
        html = {"Accept": "text/html"}
        statuses = [(await wire.send(b"", html, method="GET"))[0] for _ in range(15)]
        assert statuses[0] == 406
        assert statuses[-3:] == [429] * 3


async def test_a_listener_takes_over_from_the_get_stream():
    async with world() as w, w.caller("http", "legacy") as caller, asyncio.timeout(60):
        await caller.open_get_stream()
        await caller.call("session_message", caller_id="tester")
        await w.events({"n": 1})
        await caller.event(n=1)
        async with w.caller(mode="auto") as other:
            await other.listen()
            await w.events({"n": 2})
            await other.event(n=2)
    assert numbers(caller) == [1]


async def test_a_get_stream_stays_silent_while_a_listener_is_open():
    async with world() as w, w.caller("http", "legacy") as caller, asyncio.timeout(60):
        await caller.open_get_stream()
        await caller.listen()
        await caller.call("session_spawn", caller_id="tester")
        await w.events({"n": 1})
        await caller.event(n=1)
        await w.events({"n": 2})
        await caller.event(n=2)
    assert numbers(caller) == [1, 2]


# ---------------------------------------------------------------- the stop


@clients
async def test_at_the_stop_listeners_are_told_and_where_to_go_on(kind, mode):
    async with world() as w, w.caller(kind, mode) as caller, asyncio.timeout(60):
        await caller.listen()
        await w.events({"n": 1})
        await caller.event(n=1)
        began = time.monotonic()
        await w.actor.stop(5)
        took = time.monotonic() - began
        assert await caller.listener_ended(2) == "server stopping"
    assert took < 2.5
    assert caller.next == caller.of("message")[0]["seq"]


async def test_the_stop_does_not_wait_for_a_call_that_hangs(no_leaked_tasks):
    async with world() as w, w.caller() as modern, w.caller(mode="legacy") as legacy:
        async with asyncio.timeout(15):
            hanging = [asyncio.ensure_future(c.call("wait")) for c in (modern, legacy)]
            await legacy.open_get_stream()
            while len(w.calls) < 2:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            await w.actor.stop(5)
            took = time.monotonic() - began
            results = await asyncio.gather(*hanging, return_exceptions=True)
    assert took < 4
    assert all("the server is stopping" in str(result) for result in results)


async def test_a_callers_actor_that_was_killed_is_listened_to_again():
    async with world() as w, w.caller() as caller, asyncio.timeout(60):
        await caller.listen()
        await w.events({"n": 1})
        await caller.event(n=1)
        waiter = await w.track()
        await w.system.ref("callers/alice/tester").kill()
        await w.events({"n": 2})
        await caller.event(n=2)
        await w.events({"n": 3})
        await caller.event(n=3)
        assert not waiter.lost.done()
    assert numbers(caller) == [1, 2, 3]


# ---------------------------------------------------------------- cancelled, dropped, resumed


async def test_a_cancelled_listener_of_a_handshake_client_ends_at_once():
    async with world(callers={"stream_grace_seconds": 0.1}) as w, w.caller(mode="legacy") as caller:
        async with asyncio.timeout(10):
            await caller.listen()
            waiter = await w.track()
            note = {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": 1, "reason": "enough"},
            }
            async with caller.http.request("POST", json_body=note) as response:
                assert response.status == 202
                await response.body()
            assert await waiter.lost == "caller tester is not connected: it disconnected"
            assert w.front.quotas.listeners == {}
            assert (await caller.call("echo"))["principal"] == "alice"


@modes
async def test_tools_that_cannot_be_lent_are_refused_by_name(mode):
    async with world() as w, w.caller(mode=mode) as caller, asyncio.timeout(60):
        for tools, reason in (
            ([{"name": "a b"}], r"caller_tools\[0\].name"),
            ([{"name": "a"}, {"name": "a"}], "there twice"),
            ([{"name": "a", "inputSchema": {"type": "array"}}], 'must be "object"'),
            ([{"name": "a", "inputSchema": {"$ref": "https://x/y"}}], "another document"),
            ([{"name": "a", "what": 1}], "unknown parameter"),
        ):
            with pytest.raises(ToolFailed, match=reason):
                await caller.call("caller_listen", caller_id="tester", caller_tools=tools)
        with pytest.raises(ToolFailed, match="begin with 'oubliette'"):
            await caller.call("caller_listen", caller_id="oubliette_x")
    assert w.front.quotas.listeners == {}
    assert w.front.quotas.calls == {}


@modes
async def test_many_listeners_of_many_callers_each_miss_nothing(mode):
    """Twelve callers, three sessions each, all at once, two of them coming and going."""
    async with world(callers={"max_listeners": 32}) as w, contextlib.AsyncExitStack() as stack:
        async with asyncio.timeout(30):
            key = w.key()
            callers = [
                await stack.enter_async_context(w.caller(mode=mode, key=key, caller_id=f"c{n}"))
                for n in range(12)
            ]
            await asyncio.gather(*(caller.listen() for caller in callers))

            async def produce(name: str, session: str) -> None:
                for n in range(20):
                    await w.events({"n": n}, session=session, caller_id=name)

            async def come_and_go(caller: Caller) -> None:
                for n in range(3, 18, 5):
                    await caller.event(n=n, session_id=f"s-{caller.caller_id}-0")
                    await caller.listen(after=caller.next)

            await asyncio.gather(
                *(produce(f"c{n}", f"s-c{n}-{k}") for n in range(12) for k in range(3)),
                *(come_and_go(caller) for caller in callers[:2]),
            )
            for caller in callers:
                for k in range(3):
                    session = f"s-{caller.caller_id}-{k}"
                    await caller.event(n=19, session_id=session)
                    seen = [e["n"] for e in caller.of("message") if e["session_id"] == session]
                    assert seen == list(range(20))
