"""Actors and threads: programs without a loop, several Systems, and Pykka's own actors beside."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pykka
import pytest

from oubliette.kit import (
    Actor,
    ActorDead,
    AskTimeout,
    MailboxFull,
    System,
    WouldBlockError,
    handles,
)
from tests.unit.kit.vocabulary import (
    Add,
    Boom,
    Counter,
    Downs,
    Get,
    Hold,
    Holder,
    Watch,
    Watcher,
    inside,
    until_gone,
)


def test_a_program_without_a_loop_spawns_asks_and_stops() -> None:
    notes: list[Any] = []
    with System.in_thread("sync") as system:
        counter = system.spawn(Counter, 5, notes, name="c")
        counter.tell(Add(n=2))
        assert counter.ask_blocking(Get()) == 7
        with pytest.raises(ValueError, match="boom"):
            counter.ask_blocking(Boom())
        assert counter.stop_blocking()
        with pytest.raises(ActorDead):
            counter.ask_blocking(Get())
        system.spawn(Counter, 0, notes, name="left")
    assert [note[1] for note in notes if note[0] == "exit"] == ["c", "left"]
    assert not any(thread.name.startswith("sync") for thread in threading.enumerate())


def test_an_error_in_a_constructor_reaches_the_thread_that_spawned() -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise OSError("no")

    with System.in_thread() as system, pytest.raises(OSError, match="no"):
        system.spawn(Broken)


def test_a_blocking_ask_ends_at_its_deadline_and_the_deferred_answer_knows() -> None:
    class Later(Actor):
        @handles(Get)
        def _get(self, _: Get) -> int:
            self.kept = self.defer()
            return 0

    with System.in_thread() as system:
        ref = system.spawn(Later)
        with pytest.raises(AskTimeout):
            ref.ask_blocking(Get(), timeout=0.05)
        system.run_blocking(asyncio.sleep(0), 10)
        assert inside(ref).kept.done


def test_many_threads_ask_and_tell_at_once_and_every_ask_ends() -> None:
    with System.in_thread() as system:
        refs = [system.spawn(Counter) for _ in range(4)]

        def work(number: int) -> int:
            answered = 0
            for i in range(200):
                ref = refs[(number + i) % 4]
                ref.tell(Add())
                try:
                    ref.ask_blocking(Get(), timeout=10)
                    answered += 1
                except ActorDead:
                    pass
                if i == 150 and number == 0:
                    refs[3].stop_blocking()
            return answered

        with ThreadPoolExecutor(4) as pool:
            answered = sum(pool.map(work, range(4)))
        # Each thread has at most 50 asks left of the one that was stopped.
        assert answered >= 4 * 150
        told = sum(ref.ask_blocking(Get()) for ref in refs[:3])
        assert told == 600


def test_messages_of_one_thread_stay_in_order() -> None:
    class Order(Actor):
        mailbox_size: ClassVar[int] = 100_000

        def __init__(self) -> None:
            self.seen: list[int] = []

        @handles(Add)
        def _add(self, message: Add) -> None:
            self.seen.append(message.n)

        @handles(Get)
        def _get(self, _: Get) -> int:
            return len(self.seen)

    with System.in_thread() as system:
        ref = system.spawn(Order)

        def tell(start: int) -> None:
            for n in range(1000):
                ref.tell(Add(n=start + n))

        threads = [threading.Thread(target=tell, args=(start,)) for start in (0, 10_000, 20_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert ref.ask_blocking(Get()) == 3000
        seen = inside(ref).seen
        for start in (0, 10_000, 20_000):
            mine = [n for n in seen if start <= n < start + 10_000]
            assert mine == sorted(mine)


def test_the_bound_holds_for_threads_too() -> None:
    class Small(Holder):
        mailbox_size: ClassVar[int] = 10

    with System.in_thread() as system:
        ref = system.spawn(Small)
        actor = inside(ref)
        box = actor.actor_inbox
        with ThreadPoolExecutor(1) as pool:
            holding = pool.submit(ref.ask_blocking, Hold())
            system.run_blocking(actor.held.wait(), 10)
            refused = 0
            for _ in range(50):
                try:
                    ref.tell(Add())
                except MailboxFull:
                    refused += 1
            assert refused >= 40 - 1
            assert len(box.items) <= 10
            box.bridge.call(actor.let_go.set)
            assert holding.result(10) == "let go"
        assert ref.ask_blocking(Get()) == 50 - refused


@pytest.mark.anyio
async def test_two_systems_do_not_see_each_others_names_but_may_talk() -> None:
    async with System("one", watchdog=None) as one, System("two", watchdog=None) as two:
        a, b = one.spawn(Counter, 1, name="c"), two.spawn(Counter, 2, name="c")
        assert one.names == {"c": a}
        assert two.names == {"c": b}
        assert a != b
        assert (await a.ask(Get()), await b.ask(Get())) == (1, 2)
        await one.stop()
        assert await b.ask(Get()) == 2


@pytest.mark.anyio
async def test_systems_on_two_threads_ask_send_watch_and_stop_each_other() -> None:
    with System.in_thread("far") as far:
        async with System("near", watchdog=None) as near, asyncio.timeout(10):
            far_counter = far.run_blocking(_spawned(far), 10)
            assert await far_counter.ask(Get()) == 3
            await far_counter.send(Add(n=4))
            with pytest.raises(ValueError, match="boom"):
                await far_counter.ask(Boom())
            watcher = near.spawn(Watcher)
            # A watch is by ref: give the watcher one that leads to the other System.
            inside(watcher).watch(far_counter)
            assert await far_counter.stop()
            await inside(watcher).came.wait()
            [down] = await watcher.ask(Downs())
            assert (down.name, down.reason) == ("c", "shutdown")
            with pytest.raises(ActorDead):
                await far_counter.ask(Get())


async def _spawned(system: System) -> Any:
    return system.spawn(Counter, 3, name="c")


@pytest.mark.anyio
async def test_spawning_on_another_systems_loop_is_refused() -> None:
    with System.in_thread("far") as far, pytest.raises(WouldBlockError):
        far.spawn(Counter)


@pytest.mark.anyio
async def test_asks_racing_with_the_end_of_a_system_on_another_thread_all_end() -> None:
    outcomes: list[str] = []

    async def ask(ref: Any) -> None:
        try:
            await ref.ask(Get(), timeout=10)
            outcomes.append("answer")
        except ActorDead:
            outcomes.append("dead")

    for _ in range(20):
        with System.in_thread("far") as far:
            ref = far.run_blocking(_spawned(far), 10)
            asks = [asyncio.create_task(ask(ref)) for _ in range(20)]
            await asyncio.sleep(0)
        asks += [asyncio.create_task(ask(ref)) for _ in range(5)]
        async with asyncio.timeout(10):
            await asyncio.gather(*asks)
    assert len(outcomes) == 500


# ---------------------------------------------------------------- Pykka's own actors beside ours
class Neighbour(pykka.ThreadingActor):
    """An actor of the program that embeds us."""

    def on_receive(self, message: Any) -> Any:
        return f"still here: {message}"


@pytest.mark.anyio
async def test_pykkas_registry_and_stop_all_do_not_know_our_actors() -> None:
    async with System("ours", watchdog=None) as system:
        counter = system.spawn(Counter)
        assert await counter.ask(Get()) == 0
        assert pykka.ActorRegistry.get_all() == []
        pykka.ActorRegistry.stop_all()
        assert await counter.ask(Get()) == 0


@pytest.mark.anyio
async def test_what_breaks_one_of_our_actors_leaves_pykkas_actors_alone() -> None:
    class Exiter(Counter):
        @handles(Boom)
        def _boom(self, _: Boom) -> None:
            raise SystemExit(1)

    neighbour = Neighbour.start()
    try:
        async with System("ours", watchdog=None) as system:
            exiter, other = system.spawn(Exiter, name="x"), system.spawn(Counter)
            exiter.tell(Boom())
            await until_gone(exiter)
            assert await other.ask(Get()) == 0
        assert await asyncio.to_thread(neighbour.ask, "hello") == "still here: hello"
    finally:
        await asyncio.to_thread(neighbour.stop)


def test_a_base_exception_in_a_bare_actor_of_our_type_ends_that_actor_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from oubliette.kit.loop_bridge import LoopThread
    from oubliette.kit.pykka_actor import AsyncioActor

    class Exiter(AsyncioActor):
        def on_receive(self, message: Any) -> Any:
            raise SystemExit(message)

    thread = LoopThread("bare")
    neighbour = Neighbour.start()
    try:
        Exiter.bridge = thread.bridge
        exiter = Exiter.start()
        with caplog.at_level(logging.CRITICAL), pytest.raises(pykka.ActorDeadError):
            exiter.ask(2, timeout=10)
        assert exiter.actor_stopped.wait(10)
        assert neighbour.ask("hello", timeout=10) == "still here: hello"
        assert "which ends" in caplog.text
    finally:
        neighbour.stop()
        thread.stop()


def test_a_bare_actor_without_a_loop_says_what_to_do() -> None:
    from oubliette.kit.pykka_actor import AsyncioActor

    class Lost(AsyncioActor):
        pass

    with pytest.raises(RuntimeError, match="spawn it in a System"):
        Lost.start()
    pykka.ActorRegistry.stop_all(block=False)
    for ref in pykka.ActorRegistry.get_all():
        pykka.ActorRegistry.unregister(ref)


@pytest.mark.anyio
async def test_watching_across_threads_what_is_gone_is_answered_at_once() -> None:
    with System.in_thread("far") as far:
        async with System("near", watchdog=None) as near, asyncio.timeout(10):
            watcher = near.spawn(Watcher)
            await watcher.ask(Watch(name="nobody"))
            inside(watcher).watch(far.ref("nobody"))
            reasons = [down.reason for down in await watcher.ask(Downs())]
            assert reasons == ["noproc", "noproc"]


@pytest.mark.anyio
async def test_an_ask_of_a_thread_that_is_on_its_way_when_the_mailbox_closes_gets_actor_dead() -> (
    None
):
    async with System("ours", watchdog=None) as system, asyncio.timeout(10):
        ref = system.spawn(Counter, name="c")
        await ref.ask(Get())
        box = inside(ref).actor_inbox
        posted = threading.Event()
        call = system.bridge.call

        def call_and_say_so(*args: Any) -> None:
            call(*args)
            posted.set()

        system.bridge.call = call_and_say_so  # type: ignore[method-assign]
        asking = asyncio.create_task(asyncio.to_thread(ref.ask_blocking, Get(), 5.0))
        await asyncio.sleep(0)
        assert posted.wait(5), "on its way, and the loop, which is here, has not seen it"
        box.close()
        with pytest.raises(ActorDead):
            await asking
        await ref.kill()  # with its mailbox shut, it would not hear of an orderly end


@pytest.mark.anyio
async def test_a_closed_gate_makes_calls_at_once_so_that_nothing_waits_for_ever() -> None:
    from oubliette.kit.loop_bridge import LoopBridge

    bridge = LoopBridge()
    calls: list[int] = []
    bridge.call(calls.append, 1)
    assert calls == []
    bridge.close()
    assert calls == [1]
    bridge.call(calls.append, 2)
    assert calls == [1, 2]


@pytest.mark.anyio
async def test_a_broken_call_of_a_thread_does_not_take_those_behind_it_along() -> None:
    from oubliette.kit.loop_bridge import LoopBridge

    bridge = LoopBridge()
    calls: list[int] = []
    problems: list[Any] = []
    bridge.loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
    try:
        bridge.call(calls.append)
        bridge.call(calls.append, 2)
        await asyncio.sleep(0)
    finally:
        bridge.loop.set_exception_handler(None)
    assert calls == [2]
    assert [type(problem) for problem in problems] == [TypeError]
