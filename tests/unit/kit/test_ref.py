"""Refs: names, answers, deadlines, back-pressure."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, ClassVar

import pytest

from oubliette.kit import (
    Actor,
    ActorDead,
    AskTimeout,
    MailboxFull,
    Perishable,
    System,
    WouldBlockError,
    handles,
)
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import Add, Counter, Get, Hold, Holder, inside

pytestmark = pytest.mark.anyio


class Small(Holder):
    """Has room for three."""

    mailbox_size: ClassVar[int] = 3


async def held(system: System, kind: type[Small] = Small) -> tuple[Any, asyncio.Task[str]]:
    """A `Small` that is in its handler, with an empty mailbox."""
    ref = system.spawn(kind, name="small")
    asking = asyncio.create_task(ref.ask(Hold()))
    await inside(ref).held.wait()
    return ref, asking


async def test_a_ref_by_name_reaches_each_incarnation_in_turn(system: System) -> None:
    ref = system.ref("c")
    assert not ref.is_alive()
    assert ref.incarnation == 0
    with pytest.raises(ActorDead):
        await ref.ask(Get())
    first = system.spawn(Counter, 1, name="c")
    assert await ref.ask(Get()) == 1
    one = ref.incarnation
    await first.stop()
    assert not ref.is_alive()
    assert ref.incarnation == one
    system.spawn(Counter, 2, name="c")
    assert await ref.ask(Get()) == 2
    assert ref.incarnation > one
    assert first == ref
    assert hash(first) == hash(ref)


async def test_a_tell_to_nobody_is_a_dead_letter_and_raises_nothing(system: System) -> None:
    system.ref("nobody").tell(Add(n=1))
    counter = system.spawn(Counter, name="c")
    await counter.stop()
    counter.tell(Add(n=2))
    assert [(letter.to, letter.message) for letter in system.dead_letters] == [
        ("nobody", Add(n=1)),
        ("c", Add(n=2)),
    ]


async def test_a_perishable_message_to_an_actor_that_has_ended_is_no_dead_letter(
    system: System,
) -> None:
    class Leave(Perishable):
        pass

    system.ref("nobody").tell(Leave())
    assert system.dead_letter_count == 0


async def test_only_the_last_thousand_dead_letters_are_kept(system: System) -> None:
    nobody = system.ref("nobody")
    for n in range(1005):
        nobody.tell(Add(n=n))
    assert len(system.dead_letters) == 1000
    assert system.dead_letter_count == 1005
    assert system.dead_letters[0].message == Add(n=5)


async def test_names_shows_the_living_and_lookup_finds_them(system: System) -> None:
    a = system.spawn(Counter, name="a")
    b = system.spawn(Counter)
    assert system.names == {"a": a, b.name: b}
    assert system.actor_count == 2
    assert system.lookup("a") == a
    await a.stop()
    assert system.lookup("a") is None
    assert system.names == {b.name: b}


async def test_an_ask_ends_at_its_deadline_and_the_late_answer_is_dropped(
    system: System, clock: VirtualClock
) -> None:
    ref, first = await held(system)
    second = asyncio.create_task(ref.ask(Get(), timeout=2))
    await asyncio.sleep(0)
    clock.advance(2)
    with pytest.raises(AskTimeout, match="small did not answer Get within 2 s"):
        await second
    inside(ref).let_go.set()
    assert await first == "let go"
    assert await ref.ask(Get()) == 0


async def test_an_ask_timeout_is_a_timeout_error(system: System, clock: VirtualClock) -> None:
    ref, _ = await held(system)
    asking = asyncio.create_task(ref.ask(Get(), timeout=1))
    await asyncio.sleep(0)
    clock.advance(1)
    with pytest.raises(TimeoutError):
        await asking
    inside(ref).let_go.set()


async def test_an_ask_in_flight_when_the_actor_ends_gets_actor_dead(system: System) -> None:
    ref, in_handler = await held(system)
    queued = asyncio.create_task(ref.ask(Get()))
    await asyncio.sleep(0)
    await ref.kill()
    for asking in (in_handler, queued):
        with pytest.raises(ActorDead):
            await asking


async def test_a_full_mailbox_refuses_tells(system: System) -> None:
    ref, asking = await held(system)
    for _ in range(3):
        ref.tell(Add())
    with pytest.raises(MailboxFull, match="small: its mailbox holds 3 messages"):
        ref.tell(Add())
    inside(ref).let_go.set()
    await asking
    assert await ref.ask(Get()) == 3


async def test_send_waits_for_room_and_keeps_the_order(system: System) -> None:
    handled: list[int] = []

    class Ordered(Small):
        @handles(Add)
        async def _add(self, message: Add) -> None:
            handled.append(message.n)
            self.n += message.n

    ref, asking = await held(system, Ordered)
    for _ in range(3):
        ref.tell(Add(n=1))
    senders = [asyncio.create_task(ref.send(Add(n=n))) for n in (10, 20, 30, 40)]
    await asyncio.sleep(0)
    assert not any(sender.done() for sender in senders)
    assert len(inside(ref).actor_inbox.items) == 3
    with pytest.raises(MailboxFull):
        ref.tell(Add())
    inside(ref).let_go.set()
    await asyncio.gather(asking, *senders)
    assert await ref.ask(Get()) == 103
    assert handled == [1, 1, 1, 10, 20, 30, 40]


async def test_an_ask_to_a_full_mailbox_waits_for_room(system: System) -> None:
    ref, asking = await held(system)
    for _ in range(3):
        ref.tell(Add(n=1))
    queued = asyncio.create_task(ref.ask(Get()))
    await asyncio.sleep(0)
    assert len(inside(ref).actor_inbox.items) == 3
    inside(ref).let_go.set()
    await asking
    assert await queued == 3


async def test_a_send_that_is_given_up_was_never_sent(system: System, clock: VirtualClock) -> None:
    ref, asking = await held(system)
    for _ in range(3):
        ref.tell(Add(n=1))
    cancelled = asyncio.create_task(ref.send(Add(n=100)))
    late = asyncio.create_task(ref.send(Add(n=1000), timeout=1))
    await asyncio.sleep(0)
    cancelled.cancel()
    clock.advance(1)
    with pytest.raises(AskTimeout):
        await late
    inside(ref).let_go.set()
    await asking
    assert await ref.ask(Get()) == 3


async def test_a_send_woken_by_a_stop_gets_actor_dead(system: System) -> None:
    ref, asking = await held(system)
    for _ in range(3):
        ref.tell(Add(n=1))
    sender = asyncio.create_task(ref.send(Add(n=10)))
    await asyncio.sleep(0)
    await ref.kill()
    for waiting in (sender, asking):
        with pytest.raises(ActorDead):
            await waiting
    with pytest.raises(ActorDead):
        await ref.send(Add())


async def test_asking_from_a_loops_thread_without_await_is_refused(system: System) -> None:
    ref = system.spawn(Counter)
    with pytest.raises(WouldBlockError):
        ref.ask_blocking(Get())
    with pytest.raises(WouldBlockError):
        ref.stop_blocking()


async def test_a_ref_keeps_no_ended_actor_alive(system: System) -> None:
    ref = system.spawn(Counter)
    await ref.ask(Get())
    actor = weakref.ref(inside(ref))
    await ref.stop()
    await asyncio.sleep(0)
    gc.collect()
    assert actor() is None


async def test_an_actor_that_nobody_has_a_ref_to_lives_on(system: System) -> None:
    system.spawn(Counter, 4, name="lonely")
    gc.collect()
    await asyncio.sleep(0)
    gc.collect()
    assert await system.ref("lonely").ask(Get()) == 4


async def test_a_thousand_asks_racing_with_stops_all_end(system: System) -> None:
    outcomes: list[str] = []

    async def ask(ref: Any) -> None:
        try:
            await ref.ask(Get())
            outcomes.append("answer")
        except ActorDead:
            outcomes.append("dead")

    for _ in range(100):
        ref = system.spawn(Counter)
        asks = [asyncio.create_task(ask(ref)) for _ in range(5)]
        stop = asyncio.create_task(ref.stop())
        asks += [asyncio.create_task(ask(ref)) for _ in range(5)]
        await asyncio.gather(stop, *asks)
    assert len(outcomes) == 1000
    assert outcomes.count("answer") >= 500


async def test_the_watch_and_stop_messages_get_into_a_full_mailbox(system: System) -> None:
    ref, asking = await held(system)
    for _ in range(3):
        ref.tell(Add(n=1))
    stopping = asyncio.create_task(ref.stop())
    await asyncio.sleep(0)
    inside(ref).let_go.set()
    assert await asking == "let go"
    assert await stopping


async def test_a_system_that_has_ended_takes_no_more_actors() -> None:
    async with System("short", watchdog=None) as system:
        ref = system.spawn(Counter)
    with pytest.raises(ActorDead):
        system.spawn(Counter)
    with pytest.raises(ActorDead):
        await ref.ask(Get())


async def test_leaving_the_system_ends_the_last_started_first_even_after_an_error() -> None:
    notes: list[Any] = []
    with pytest.raises(KeyError):
        async with System("short", watchdog=None) as system:
            for name in ("a", "b", "c"):
                await system.spawn(Counter, notes=notes, name=name).ask(Get())
            raise KeyError
    assert [note[1] for note in notes if note[0] == "exit"] == ["c", "b", "a"]


async def test_a_handler_may_be_a_plain_function_that_answers_none(system: System) -> None:
    class Quiet(Actor):
        @handles(Add)
        def _add(self, _: Add) -> None:
            return

    assert await system.spawn(Quiet).ask(Add()) is None


async def test_a_wake_up_that_finds_an_empty_mailbox_does_no_harm(system: System) -> None:
    counter = system.spawn(Counter)
    assert await counter.ask(Get()) == 0
    await asyncio.sleep(0)
    inside(counter).actor_inbox.wake()
    await asyncio.sleep(0)
    assert await counter.ask(Get()) == 0


async def test_a_sent_message_that_comes_in_behind_a_stop_is_a_dead_letter(system: System) -> None:
    ref, asking = await held(system)
    for _ in range(3):
        ref.tell(Add(n=1))
    sender = asyncio.create_task(ref.send(Add(n=10)))
    stopping = asyncio.create_task(ref.stop())
    await asyncio.sleep(0)
    inside(ref).let_go.set()
    await asyncio.gather(sender, stopping, asking)
    assert [letter.message for letter in system.dead_letters] == [Add(n=10)]
