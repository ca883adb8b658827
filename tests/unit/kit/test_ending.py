"""How actors end: asked, cancelled, with their parents; and who hears of it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from oubliette.kit import Actor, ActorDead, Down, Message, Ref, Reply, System, handles
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import (
    Add,
    Boom,
    Counter,
    Downs,
    Get,
    Hold,
    Holder,
    Unwatch,
    Watch,
    Watcher,
    inside,
    until_gone,
)

pytestmark = pytest.mark.anyio


class Breed(Message, Reply[str]):
    """Spawn a child of this class; answered with its name."""

    kind: str = "Counter"
    """One of KINDS."""


class Stubborn(Holder):
    """Does not end by itself: it holds on in `on_exit`."""

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        self.notes.append(("exiting", self.name, reason))
        await self.let_go.wait()


class Immortal(Holder):
    """Swallows each cancellation while it holds."""

    @handles(Hold)
    async def _hold(self, _: Hold) -> str:
        self.held.set()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.notes.append("swallowed")
        return "let go"


class Parent(Counter):
    """Has children on demand."""

    @handles(Breed)
    def _breed(self, message: Breed) -> str:
        kinds = {"Counter": Counter, "Holder": Holder, "Parent": Parent, "Stubborn": Stubborn}
        kind = kinds[message.kind]
        number = len(self._actor_children)
        return self.spawn(kind, notes=self.notes, name=f"{self.name}/{number}").name


def exits(notes: list[Any]) -> list[str]:
    return [note[1] for note in notes if note[0] == "exit"]


async def watched(system: System, ref: Ref) -> Ref:
    watcher = system.spawn(Watcher)
    await watcher.ask(Watch(name=ref.name))
    return watcher


async def test_stop_handles_what_came_before_and_refuses_what_comes_after(
    system: System,
) -> None:
    counter = system.spawn(Counter, name="c")
    for _ in range(3):
        counter.tell(Add())
    before = asyncio.create_task(counter.ask(Get()))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(counter.stop())
    await asyncio.sleep(0)
    assert await before == 3
    assert await stopping is True
    assert await counter.stop() is True, "stopping what has ended changes nothing"


async def test_a_watcher_hears_exactly_once_why_an_actor_ended(system: System) -> None:
    endings: dict[str, str] = {}
    for way in ("stop", "kill", "boom"):
        counter = system.spawn(Counter, name=way)
        watcher = await watched(system, counter)
        await watcher.ask(Watch(name=way))
        incarnation = counter.incarnation
        if way == "boom":
            counter.tell(Boom(text="oops"))
        else:
            await getattr(counter, way)()
        await inside(watcher).came.wait()
        [down] = await watcher.ask(Downs())
        assert (down.name, down.incarnation) == (way, incarnation)
        endings[way] = f"{down.reason} {down.error}"
    assert endings == {
        "stop": "shutdown None",
        "kill": "killed None",
        "boom": "failed ValueError: oops",
    }


async def test_watching_what_is_gone_is_answered_at_once(system: System) -> None:
    watcher = system.spawn(Watcher)
    await watcher.ask(Watch(name="nobody"))
    assert await watcher.ask(Downs()) == [Down(name="nobody", reason="noproc")]


async def test_watching_what_is_ending_still_tells_the_real_reason(system: System) -> None:
    ref = system.spawn(Stubborn, name="s")
    actor = inside(ref)
    stopping = asyncio.create_task(ref.stop())
    while not actor.notes[1:]:
        await asyncio.sleep(0)
    watcher = system.spawn(Watcher)
    await watcher.ask(Watch(name="s"))
    assert await watcher.ask(Downs()) == []
    actor.let_go.set()
    await stopping
    assert [down.reason for down in await watcher.ask(Downs())] == ["shutdown"]


async def test_a_watch_taken_back_tells_nothing(system: System) -> None:
    counter = system.spawn(Counter, name="c")
    watcher = await watched(system, counter)
    await watcher.ask(Unwatch(name="c"))
    await counter.stop()
    assert await watcher.ask(Downs()) == []


async def test_killing_cancels_the_handler_and_on_exit_still_runs(system: System) -> None:
    notes: list[Any] = []
    ref = system.spawn(Holder, notes, name="h")
    asking = asyncio.create_task(ref.ask(Hold()))
    await inside(ref).held.wait()
    await ref.kill()
    with pytest.raises(ActorDead):
        await asking
    assert notes == [("start", "h"), ("exit", "h", "killed", None)]


async def test_killing_before_the_first_step_still_runs_on_exit_and_tells_the_watcher(
    system: System,
) -> None:
    notes: list[Any] = []
    watcher = system.spawn(Watcher)
    await watcher.ask(Downs())
    ref = system.spawn(Counter, notes=notes, name="c")
    inside(ref).actor_inbox.watch(inside(watcher).actor_inbox)
    await ref.kill()
    assert notes == [("exit", "c", "killed", None)]
    assert [down.reason for down in await watcher.ask(Downs())] == ["killed"]


async def test_a_task_cancelled_from_outside_before_its_first_step_is_accounted_for(
    system: System,
) -> None:
    watcher = system.spawn(Watcher)
    await watcher.ask(Downs())
    ref = system.spawn(Counter, name="c")
    actor = inside(ref)
    actor.actor_inbox.watch(inside(watcher).actor_inbox)
    actor._actor_task.cancel()
    await inside(watcher).came.wait()
    assert [down.reason for down in await watcher.ask(Downs())] == ["killed"]
    assert not ref.is_alive()


async def test_an_actor_that_does_not_end_in_time_is_cancelled(
    system: System, clock: VirtualClock
) -> None:
    ref = system.spawn(Holder, name="h")
    asking = asyncio.create_task(ref.ask(Hold()))
    await inside(ref).held.wait()
    stopping = asyncio.create_task(ref.stop(timeout=3))
    await clock.elapse(2.9)
    assert not stopping.done()
    await clock.elapse(0.2)
    assert await stopping is False
    with pytest.raises(ActorDead):
        await asking


async def test_an_on_exit_that_hangs_is_cancelled(system: System, clock: VirtualClock) -> None:
    ref = system.spawn(Stubborn, name="s")
    watcher = await watched(system, ref)
    stopping = asyncio.create_task(ref.stop(timeout=3))
    await clock.elapse(3)
    assert await stopping is False
    assert [down.reason for down in await watcher.ask(Downs())] == ["killed"]


async def test_an_actor_that_swallows_cancellations_is_given_up(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oubliette.kit.shutdown.GRACE", 0.02)
    ref = system.spawn(Immortal, name="i")
    actor = inside(ref)
    asking = asyncio.create_task(ref.ask(Hold()))
    await actor.held.wait()
    watcher = await watched(system, ref)
    await ref.kill()
    assert not ref.is_alive()
    assert [down.reason for down in await watcher.ask(Downs())] == ["killed"]
    system.spawn(Counter, name="i")
    actor.let_go.set()
    await asyncio.wait([actor._actor_task])
    asking.cancel()
    assert len(await watcher.ask(Downs())) == 1
    assert system.ref("i").is_alive(), "the name belongs to the new one"


async def test_children_end_before_their_parent_the_last_started_first(system: System) -> None:
    notes: list[Any] = []
    parent = system.spawn(Parent, notes=notes, name="p")
    await parent.ask(Breed())
    middle = await parent.ask(Breed(kind="Parent"))
    await system.ref(middle).ask(Breed())
    await parent.ask(Breed())
    for name in list(system.names):
        await system.ref(name).ask(Get())
    await parent.stop()
    assert exits(notes) == ["p/2", "p/1/0", "p/1", "p/0", "p"]
    assert system.actor_count == 0


async def test_a_child_that_ended_is_no_longer_its_parents(system: System) -> None:
    parent = system.spawn(Parent, name="p")
    child = system.ref(await parent.ask(Breed()))
    await child.stop()
    assert not inside(parent)._actor_children
    assert parent.is_alive(), "the end of a child is no failure of its parent"


async def test_a_failing_parent_takes_its_children_along(system: System) -> None:
    notes: list[Any] = []
    parent = system.spawn(Parent, notes=notes, name="p")
    await system.ref(await parent.ask(Breed())).ask(Get())
    parent.tell(Boom())
    await until_gone(parent)
    assert [note[2] for note in notes if note[0] == "exit"] == ["shutdown", "failed"]


async def test_killing_a_parent_gives_its_children_no_time(system: System) -> None:
    parent = system.spawn(Parent, name="p")
    child = system.ref(await parent.ask(Breed(kind="Holder")))
    asking = asyncio.create_task(child.ask(Hold()))
    await inside(child).held.wait()
    await parent.kill()
    with pytest.raises(ActorDead):
        await asking
    assert system.actor_count == 0


async def test_a_child_gets_its_own_limit_and_is_then_cancelled(
    system: System, clock: VirtualClock
) -> None:
    class Patient(Parent):
        shutdown = 60.0

    parent = system.spawn(Patient, name="p")
    child = system.ref(await parent.ask(Breed(kind="Holder")))
    asking = asyncio.create_task(child.ask(Hold()))
    await inside(child).held.wait()
    stopping = asyncio.create_task(parent.stop(timeout=60))
    await clock.elapse(Holder.shutdown - 0.1)
    assert not stopping.done()
    await clock.elapse(0.2)
    assert await stopping is True
    with pytest.raises(ActorDead):
        await asking


async def test_an_ended_actor_can_have_no_children_and_no_side_tasks(system: System) -> None:
    ref = system.spawn(Counter)
    actor = inside(ref)
    await ref.stop()
    with pytest.raises(ActorDead):
        actor.spawn(Counter)
    with pytest.raises(ActorDead):
        actor.pipe_to_self(asyncio.sleep(0), lambda _: Add(), lambda _: Add())


async def test_what_on_exit_sets_going_ends_with_it(system: System, clock: VirtualClock) -> None:
    refused: list[type[BaseException]] = []

    class Late(Counter):
        async def on_exit(self, reason: str, error: BaseException | None) -> None:
            self.after(50, Add())
            try:
                self.spawn(Counter)
            except ActorDead as no:
                refused.append(type(no))

    await system.spawn(Late).stop()
    assert refused == [ActorDead]
    assert clock.pending == 0


async def test_a_cancelled_actor_may_use_timeouts_and_task_groups_in_on_exit(
    system: System,
) -> None:
    done: list[str] = []

    class Careful(Holder):
        async def on_exit(self, reason: str, error: BaseException | None) -> None:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                done.append("timeout")
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._fail())
                    await asyncio.Event().wait()
            except ExceptionGroup:
                done.append("group")

        async def _fail(self) -> None:
            raise OSError

    ref = system.spawn(Careful)
    asking = asyncio.create_task(ref.ask(Hold()))
    await inside(ref).held.wait()
    await ref.kill()
    with pytest.raises(ActorDead):
        await asking
    assert done == ["timeout", "group"]


def test_a_keyboard_interrupt_ends_the_actor_and_still_reaches_the_program() -> None:
    notes: list[Any] = []

    class Interrupted(Counter):
        @handles(Boom)
        def _boom(self, _: Boom) -> None:
            raise KeyboardInterrupt

    async def begin(system: System) -> None:
        await system.__aenter__()
        system.spawn(Interrupted, notes=notes, name="i").tell(Boom())
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    try:
        system = System(watchdog=None)
        main = loop.create_task(begin(system))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main)
        assert notes[-1] == ("exit", "i", "failed", KeyboardInterrupt)
        main.cancel()
        loop.run_until_complete(asyncio.wait([main]))
        loop.run_until_complete(system.stop())
    finally:
        loop.close()


def test_an_actor_that_is_thrown_away_with_its_loop_says_nothing() -> None:
    async def begin() -> None:
        system = await System(watchdog=None).__aenter__()
        ref = system.spawn(Holder)
        task = asyncio.create_task(ref.ask(Hold()))
        await inside(ref).held.wait()
        kept.append(task)

    kept: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(begin())
    loop.close()
    kept.clear()
    gc.collect()


async def test_sys_exit_in_on_exit_is_a_failure_like_others(system: System) -> None:
    class Exiter(Counter):
        async def on_exit(self, reason: str, error: BaseException | None) -> None:
            raise SystemExit(2)

    ref = system.spawn(Exiter, name="x")
    watcher = await watched(system, ref)
    await ref.stop()
    [down] = await watcher.ask(Downs())
    assert (down.reason, down.error) == ("failed", "SystemExit: 2")


async def test_nothing_is_handled_once_on_exit_has_begun(system: System) -> None:
    ref = system.spawn(Stubborn, name="s")
    actor = inside(ref)
    stopping = asyncio.create_task(ref.stop())
    while not actor.notes[1:]:
        await asyncio.sleep(0)
    ref.tell(Add())
    with pytest.raises(ActorDead):
        await ref.ask(Get())
    actor.let_go.set()
    await stopping
    assert actor.n == 0


async def test_an_actor_may_stop_another_and_itself_not_by_waiting(system: System) -> None:
    class Stopper(Actor):
        @handles(Watch)
        async def _stop_it(self, message: Watch) -> None:
            await self.system.ref(message.name).stop()

    stopper = system.spawn(Stopper, name="stopper")
    other = system.spawn(Counter, name="other")
    await stopper.ask(Watch(name="other"))
    assert not other.is_alive()
    from oubliette.kit import DeadlockError

    with pytest.raises(DeadlockError):
        await stopper.ask(Watch(name="stopper"))


async def test_on_exit_may_still_give_a_deferred_answer(system: System) -> None:
    class Last(Actor):
        @handles(Get)
        def _get(self, _: Get) -> int:
            self.answer = self.defer()
            self.stop()
            return 0

        def on_exit(self, reason: str, error: BaseException | None) -> Any:
            self.answer.set(42)

    assert await system.spawn(Last).ask(Get()) == 42
