"""What an actor does with its messages."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import Any

import pytest
import structlog

from oubliette.errors import AlreadyExists
from oubliette.kit import (
    Actor,
    ActorDead,
    ActorError,
    AskTimeout,
    Deferred,
    Down,
    LocalMessage,
    Message,
    Reply,
    System,
    UnhandledMessage,
    handles,
    pykka_actor,
    tracing,
)
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import (
    Add,
    Boom,
    Counter,
    Get,
    Hold,
    Holder,
    Odd,
    Watch,
    Watcher,
    inside,
    until_gone,
)

pytestmark = pytest.mark.anyio


async def test_messages_of_one_sender_are_handled_in_order_and_asks_answered(
    system: System,
) -> None:
    counter = system.spawn(Counter, 5, name="c")
    for n in range(10):
        counter.tell(Add(n=n))
    assert await counter.ask(Get()) == 50


async def test_an_error_in_an_ask_goes_to_the_asker_and_the_actor_lives(system: System) -> None:
    counter = system.spawn(Counter)
    with pytest.raises(ValueError, match="no luck"):
        await counter.ask(Boom(text="no luck"))
    assert await counter.ask(Get()) == 0


async def test_an_error_in_a_tell_fails_the_actor(system: System) -> None:
    notes: list[Any] = []
    counter = system.spawn(Counter, notes=notes, name="c")
    counter.tell(Boom())
    await until_gone(counter)
    assert notes == [("start", "c"), ("exit", "c", "failed", ValueError)]
    assert not counter.is_alive()


async def test_an_error_in_on_start_fails_the_actor_and_on_exit_still_runs(system: System) -> None:
    seen: list[Any] = []

    class Stillborn(Counter):
        def on_start(self) -> Any:
            raise OSError("no disk")

        def on_exit(self, reason: str, error: BaseException | None) -> Any:
            seen.append((reason, error))

    ref = system.spawn(Stillborn)
    with pytest.raises(ActorDead):
        await ref.ask(Get())
    await until_gone(ref)
    [(reason, error)] = seen
    assert reason == "failed"
    assert isinstance(error, OSError)


async def test_an_error_in_on_exit_makes_a_normal_end_a_failure(system: System) -> None:
    class Clumsy(Counter):
        async def on_exit(self, reason: str, error: BaseException | None) -> None:
            raise OSError("cannot clean up")

    watcher = system.spawn(Watcher)
    ref = system.spawn(Clumsy, name="clumsy")
    await watcher.ask(Watch(name="clumsy"))
    await ref.stop()
    down = inside(watcher).downs[0]
    assert (down.reason, down.error) == ("failed", "OSError: cannot clean up")


async def test_what_no_handler_is_marked_for_is_an_error_for_asks_and_a_dead_letter_for_tells(
    system: System,
) -> None:
    counter = system.spawn(Counter, name="c")
    with pytest.raises(UnhandledMessage, match="does not handle Odd"):
        await counter.ask(Odd())
    counter.tell(Odd())
    assert await counter.ask(Get()) == 0
    assert [(letter.to, letter.message, letter.why) for letter in system.dead_letters] == [
        ("c", Odd(), "no handler")
    ]


async def test_a_handler_for_a_base_class_takes_its_subclasses_and_overrides_count(
    system: System,
) -> None:
    class Base(Message, Reply[str]):
        pass

    class Special(Base):
        pass

    class First(Actor):
        @handles(Base)
        def take(self, message: Base) -> str:
            return f"first {type(message).__name__}"

    class Second(First):
        def take(self, message: Base) -> str:
            return f"second {type(message).__name__}"

    assert await system.spawn(First).ask(Special()) == "first Special"
    assert await system.spawn(Second).ask(Special()) == "second Special"


async def test_an_actor_has_its_place_before_its_own_init_runs_and_needs_no_super_call(
    system: System,
) -> None:
    class Eager(Actor):
        def __init__(self) -> None:
            self.seen = (self.name, self.system, self.ref.name, self.clock, self.incarnation)

    ref = system.spawn(Eager, name="eager")
    assert inside(ref).seen == ("eager", system, "eager", system.clock, ref.incarnation)


async def test_a_failing_constructor_raises_to_the_spawner_and_leaves_no_name(
    system: System,
) -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        system.spawn(Broken, name="b")
    assert system.lookup("b") is None
    system.spawn(Counter, name="b")


async def test_two_living_actors_cannot_have_one_name(system: System) -> None:
    first = system.spawn(Counter, name="c")
    with pytest.raises(AlreadyExists):
        system.spawn(Counter, name="c")
    await first.stop()
    second = system.spawn(Counter, name="c")
    assert second.incarnation > 0
    assert first.is_alive(), "a ref is a name: it reaches the new one"


async def test_an_actor_stops_itself_after_the_current_handler(system: System) -> None:
    handled: list[int] = []

    class Quitter(Actor):
        @handles(Add)
        def _add(self, message: Add) -> None:
            self.stop()
            handled.append(message.n)

    ref = system.spawn(Quitter, name="q")
    ref.tell(Add(n=1))
    ref.tell(Add(n=2))
    await until_gone(ref)
    assert handled == [1]
    assert [letter.message for letter in system.dead_letters] == [Add(n=2)]


# ---------------------------------------------------------------- defer
class Later(Actor):
    """Defers every answer and keeps it."""

    def __init__(self) -> None:
        self.kept: list[Deferred] = []
        self.taken = asyncio.Event()

    @handles(Get)
    def _get(self, _: Get) -> int:
        self.kept.append(self.defer())
        self.taken.set()
        return -1

    @handles(Boom)
    def _boom(self, _: Boom) -> None:
        self.kept.append(self.defer())
        raise ValueError("after deferring")


async def test_an_actor_is_at_rest_when_its_answers_and_piped_tasks_have_ended(
    system: System,
) -> None:
    ref = system.spawn(Later)
    actor = inside(ref)
    assert actor.at_rest
    asking = asyncio.create_task(ref.ask(Get()))
    await actor.taken.wait()
    assert not actor.at_rest
    actor.kept[0].set(7)
    await asking
    assert actor.at_rest
    gate = asyncio.Event()
    actor.pipe_to_self(gate.wait(), lambda _: Get(), lambda _: Get())
    assert not actor.at_rest
    actor.taken.clear()
    gate.set()
    await actor.taken.wait()
    assert actor.at_rest


async def test_a_deferred_answer_replaces_what_the_handler_returns(system: System) -> None:
    ref = system.spawn(Later)
    asking = asyncio.create_task(ref.ask(Get()))
    await inside(ref).taken.wait()
    deferred = inside(ref).kept[0]
    assert not deferred.done
    assert deferred.set(7)
    assert deferred.done
    assert not deferred.set(8)
    assert await asking == 7


async def test_a_deferred_answer_may_be_an_error(system: System) -> None:
    ref = system.spawn(Later)
    asking = asyncio.create_task(ref.ask(Get()))
    await inside(ref).taken.wait()
    inside(ref).kept[0].set_error(KeyError("gone"))
    with pytest.raises(KeyError):
        await asking


async def test_an_asker_whose_answer_is_deferred_gets_actor_dead_when_the_actor_ends(
    system: System,
) -> None:
    ref = system.spawn(Later)
    asking = asyncio.create_task(ref.ask(Get()))
    await inside(ref).taken.wait()
    await ref.stop()
    with pytest.raises(ActorDead):
        await asking


async def test_a_deferred_answer_is_done_once_the_asker_was_cancelled(system: System) -> None:
    ref = system.spawn(Later)
    asking = asyncio.create_task(ref.ask(Get()))
    await inside(ref).taken.wait()
    asking.cancel()
    await asyncio.wait([asking])
    deferred = inside(ref).kept[0]
    assert deferred.done
    assert not deferred.set(1)
    assert not inside(ref)._actor_deferrals, "an answer that nobody waits for is not kept"


async def test_who_defers_is_told_of_an_asker_that_no_longer_waits_and_of_no_other(
    system: System,
) -> None:
    ref, gone = system.spawn(Later), list[str]()
    actor = inside(ref)
    cancelled, answered = (asyncio.create_task(ref.ask(Get())) for _ in range(2))
    while len(actor.kept) < 2:
        await asyncio.sleep(0)
    first, second = actor.kept
    first.when_gone(lambda: gone.append("cancelled"))
    second.when_gone(lambda: gone.append("answered"))
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert gone == ["cancelled"]
    second.set(7)
    assert await answered == 7
    first.when_gone(lambda: gone.append("at once"))
    assert gone == ["cancelled", "at once"]


async def test_a_deferred_answer_is_done_once_the_asker_has_timed_out(
    system: System, clock: VirtualClock
) -> None:
    ref = system.spawn(Later)
    asking = asyncio.create_task(ref.ask(Get(), timeout=3))
    await inside(ref).taken.wait()
    deferred = inside(ref).kept[0]
    assert deferred.deadline == clock.monotonic() + 3
    clock.advance(3)
    with pytest.raises(AskTimeout):
        await asking
    assert deferred.done
    assert not inside(ref)._actor_deferrals, "an answer that nobody waits for is not kept"


async def test_an_error_after_deferring_goes_to_the_asker(system: System) -> None:
    ref = system.spawn(Later)
    with pytest.raises(ValueError, match="after deferring"):
        await ref.ask(Boom())
    assert ref.is_alive()


async def test_an_error_in_an_ask_never_fails_the_actor_even_if_nobody_is_left_to_hear_it(
    system: System,
) -> None:
    class Settled(Later):
        @handles(Boom)
        def _boom(self, _: Boom) -> None:
            self.defer().set("settled")
            raise ValueError("after answering")

    class Slow(Holder):
        @handles(Hold)
        async def _hold(self, message: Hold) -> str:
            await super()._hold(message)
            raise ValueError("too late")

    ref = system.spawn(Settled)
    with structlog.testing.capture_logs() as logs:
        assert await ref.ask(Boom()) == "settled"
        assert ref.is_alive()
        slow = system.spawn(Slow)
        asking = asyncio.create_task(slow.ask(Hold()))
        await inside(slow).held.wait()
        asking.cancel()
        inside(slow).let_go.set()
        assert await slow.ask(Get()) == 0
    assert [log["event"] for log in logs] == ["ask failed unheard"] * 2


async def test_an_error_after_deferring_a_tell_fails_the_actor(system: System) -> None:
    ref = system.spawn(Later)
    ref.tell(Boom())
    await until_gone(ref)
    assert not ref.is_alive()


async def test_deferring_a_tell_is_done_from_the_start(system: System) -> None:
    ref = system.spawn(Later)
    ref.tell(Get())
    await inside(ref).taken.wait()
    assert inside(ref).kept[0].done


# ---------------------------------------------------------------- pipe_to_self, after
class Outcome(Message):
    """What came of a side task."""

    text: str
    """In words."""


class Piper(Actor):
    """Starts the side task it is told to, collects the outcome."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.outcomes: list[str] = []
        self.came = asyncio.Event()
        self.side: Any = None

    @handles(Get)
    def _get(self, _: Get) -> int:
        self.side = self.pipe_to_self(
            self.work(),
            lambda value: Outcome(text=f"ok {value}"),
            lambda error: Outcome(text=f"err {type(error).__name__}"),
        )
        return 1

    @handles(Outcome)
    def _outcome(self, message: Outcome) -> None:
        self.outcomes.append(message.text)
        self.came.set()


async def test_the_result_of_a_side_task_comes_as_a_message(system: System) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    ref = system.spawn(Piper, work)
    assert await ref.ask(Get()) == 1
    await inside(ref).came.wait()
    assert inside(ref).outcomes == ["ok 3"]


async def test_the_error_of_a_side_task_comes_as_a_message(system: System) -> None:
    async def work() -> int:
        raise OSError

    ref = system.spawn(Piper, work)
    await ref.ask(Get())
    await inside(ref).came.wait()
    assert inside(ref).outcomes == ["err OSError"]


async def test_a_foreign_cancellation_is_an_outcome_too(system: System) -> None:
    async def work() -> int:
        raise asyncio.CancelledError

    ref = system.spawn(Piper, work)
    await ref.ask(Get())
    await inside(ref).came.wait()
    assert inside(ref).outcomes == ["err CancelledError"]


async def test_a_cancelled_side_task_sends_nothing(system: System) -> None:
    began = asyncio.Event()

    async def work() -> int:
        began.set()
        await asyncio.Event().wait()
        return 1

    ref = system.spawn(Piper, work)
    await ref.ask(Get())
    await began.wait()
    actor = inside(ref)
    actor.side.cancel()
    await asyncio.wait(actor._actor_jobs)
    assert await ref.ask(Get()) == 1
    assert actor.outcomes == []


async def test_a_side_task_that_is_cancelled_at_once_leaves_nothing_unawaited(
    system: System,
) -> None:
    class Hasty(Piper):
        @handles(Add)
        def _add(self, _: Add) -> None:
            self.begun = self.work()
            self.pipe_to_self(
                self.begun, lambda _: Outcome(text="late"), lambda _: Outcome(text="late")
            ).cancel()
            self.stop()

    async def work() -> None:
        await asyncio.sleep(0)

    ref = system.spawn(Hasty, work)
    actor = inside(ref)
    ref.tell(Add())
    await until_gone(ref)
    assert inspect.getcoroutinestate(actor.begun) == inspect.CORO_CLOSED
    assert actor.outcomes == []


async def test_what_an_actor_sent_itself_ends_with_it_and_is_no_dead_letter(
    system: System, clock: VirtualClock
) -> None:
    class Quitter(Piper):
        @handles(Add)
        async def _add(self, _: Add) -> None:
            self.pipe_to_self(
                self.work(), lambda _: Outcome(text="late"), lambda _: Outcome(text="late")
            )
            self.after(1, Outcome(text="late"))
            self.ref.tell(Outcome(text="late"))
            await asyncio.wait(self._actor_jobs)
            clock.advance(1)
            await asyncio.sleep(0)
            self.waiting = len(self.actor_inbox.items)
            self.stop()

    async def work() -> None:
        await asyncio.sleep(0)

    ref = system.spawn(Quitter, work)
    actor = inside(ref)
    ref.tell(Add())
    await until_gone(ref)
    assert actor.waiting == 3
    assert actor.outcomes == []
    assert system.dead_letter_count == 0


async def test_side_tasks_end_before_on_exit_runs(system: System) -> None:
    order: list[str] = []
    began = asyncio.Event()

    async def work() -> int:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("side task")
        return 1

    class Tidy(Piper):
        def on_exit(self, reason: str, error: BaseException | None) -> Any:
            order.append("on_exit")

    ref = system.spawn(Tidy, work)
    await ref.ask(Get())
    await began.wait()
    await ref.stop()
    assert order == ["side task", "on_exit"]


async def test_an_error_in_the_error_function_fails_the_actor(system: System) -> None:
    class Bad(Piper):
        @handles(Get)
        def _get(self, _: Get) -> int:
            async def work() -> None:
                raise OSError

            def err(error: BaseException) -> Message:
                raise KeyError("in err")

            self.pipe_to_self(work(), lambda _: Outcome(text=""), err)
            return 1

    watcher = system.spawn(Watcher)
    ref = system.spawn(Bad, None, name="bad")
    await watcher.ask(Watch(name="bad"))
    await ref.ask(Get())
    await inside(watcher).came.wait()
    assert inside(watcher).downs[0].error == "KeyError: 'in err'"


async def test_a_timer_sends_its_message_when_its_time_has_come_and_not_before(
    system: System, clock: VirtualClock
) -> None:
    class Sleeper(Counter):
        def on_start(self) -> Any:
            self.timers = [self.after(5, Add(n=1)), self.after(5, Add(n=10))]
            self.timers[1].cancel()

    ref = system.spawn(Sleeper)
    await clock.elapse(4.9)
    assert await ref.ask(Get()) == 0
    await clock.elapse(0.2)
    assert await ref.ask(Get()) == 1
    inside(ref).timers[0].cancel()


async def test_timers_die_with_their_actor(system: System, clock: VirtualClock) -> None:
    class Sleeper(Counter):
        def on_start(self) -> Any:
            self.after(5, Add(n=1))

    ref = system.spawn(Sleeper)
    await ref.ask(Get())
    assert clock.pending == 1
    await ref.stop()
    assert clock.pending == 0


# ---------------------------------------------------------------- envelope
class WhoAmI(Message, Reply[list[Any]]):
    """Answered with what the envelope says."""


class Relay(Message, Reply[list[Any]]):
    """Ask another actor who I am."""

    to: str
    """Whom."""


class Mirror(Actor):
    """Tells what it sees on the envelope."""

    @handles(WhoAmI)
    def _who(self, _: WhoAmI) -> list[Any]:
        envelope = self.envelope
        return [envelope.sender, envelope.deadline, envelope.trace]

    @handles(Relay)
    async def _relay(self, message: Relay) -> list[Any]:
        return await self.system.ref(message.to).ask(WhoAmI(), timeout=2)


async def test_the_envelope_carries_sender_deadline_and_trace_and_the_trace_travels_on(
    system: System, clock: VirtualClock
) -> None:
    first = system.spawn(Mirror, name="first")
    system.spawn(Mirror, name="second")
    now = clock.monotonic()
    assert await first.ask(WhoAmI(), timeout=9) == [None, now + 9, None]
    with tracing({"traceparent": "00-ab"}):
        assert await first.ask(WhoAmI(), timeout=9) == [None, now + 9, {"traceparent": "00-ab"}]
        seen = await first.ask(Relay(to="second"))
    assert seen == ["first", now + 2, {"traceparent": "00-ab"}]


async def test_a_side_task_keeps_the_trace_of_the_message_that_started_it(system: System) -> None:
    seen: list[Any] = []

    class Tracer(Mirror):
        @handles(Get)
        def _get(self, _: Get) -> int:
            self.pipe_to_self(
                self.system.ref("mirror").ask(WhoAmI()),
                lambda who: Outcome(text=str(who[2])),
                lambda error: Outcome(text=str(error)),
            )
            return 0

        @handles(Outcome)
        def _outcome(self, message: Outcome) -> None:
            seen.extend([message.text, self.envelope.trace])

    system.spawn(Mirror, name="mirror")
    ref = system.spawn(Tracer)
    with tracing({"t": "1"}):
        await ref.ask(Get())
    while not seen:
        await asyncio.sleep(0)
    assert seen == ["{'t': '1'}", {"t": "1"}]


async def test_an_actor_does_not_inherit_the_context_of_whoever_spawned_it(
    system: System,
) -> None:
    class Nest(Actor):
        @handles(Get)
        async def _get(self, _: Get) -> int:
            child = self.spawn(Mirror)
            sender, _, trace = await child.ask(WhoAmI())
            assert sender == self.name
            assert trace == {"t": "1"}
            return 1

    with tracing({"t": "1"}):
        assert await system.spawn(Nest).ask(Get()) == 1

    class Contextual(Actor):
        @handles(Get)
        def _get(self, _: Get) -> int:
            return request.get()

    request: ContextVar[int] = ContextVar("request", default=0)
    request.set(7)
    assert await system.spawn(Contextual).ask(Get()) == 0


# ---------------------------------------------------------------- round trip
async def test_the_round_trip_shows_a_message_that_cannot_cross_machines(system: System) -> None:
    class Bad(Message):
        thing: Any
        """Something live."""

    counter = system.spawn(Counter)
    with pytest.raises(TypeError):
        counter.tell(Bad(thing=object()))
    with pytest.raises(TypeError):
        await counter.ask(Bad(thing=object()))


async def test_the_round_trip_shows_an_answer_of_another_type_than_declared(
    system: System,
) -> None:
    class Liar(Actor):
        @handles(Get)
        def _get(self, _: Get) -> Any:
            return "seven"

    with pytest.raises(ValueError, match="int"):
        await system.spawn(Liar).ask(Get())


async def test_a_local_message_may_carry_what_cannot_cross_machines(system: System) -> None:
    class Here(LocalMessage, Reply[object]):
        thing: Any
        """Something live."""

    class Echo(Actor):
        @handles(Here)
        def _here(self, message: Here) -> Any:
            return message.thing

    thing = object()
    assert await system.spawn(Echo).ask(Here(thing=thing)) is thing


async def test_watching_without_a_handler_for_down_is_refused(system: System) -> None:
    class Blind(Actor):
        @handles(Get)
        def _get(self, _: Get) -> int:
            self.watch(self.ref)
            return 1

    with pytest.raises(ActorError, match="handler for Down"):
        await system.spawn(Blind).ask(Get())


async def test_a_flooded_actor_lets_the_others_of_its_loop_have_their_turn(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(pykka_actor, "perf_counter", lambda: len(order) * pykka_actor.TURN / 10)

    class Noisy(Actor):
        @handles(Add)
        def _add(self, _: Add) -> None:
            order.append(self.name)

    flooded, other = system.spawn(Noisy, name="flooded"), system.spawn(Noisy, name="other")
    await asyncio.sleep(0)
    for _ in range(500):
        flooded.tell(Add())
    other.tell(Add())
    while len(order) < 501:
        await asyncio.sleep(0)
    assert order.index("other") <= 10


async def test_a_cancellation_that_is_not_the_actors_own_is_an_ordinary_failure(
    system: System,
) -> None:
    class Awaiter(Counter):
        @handles(Hold)
        async def _hold(self, _: Hold) -> str:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
            return "never"

    ref = system.spawn(Awaiter)
    with pytest.raises(ActorError, match="was cancelled"):
        await ref.ask(Hold())
    assert await ref.ask(Get()) == 0


async def test_sys_exit_in_a_handler_ends_that_actor_alone(system: System) -> None:
    class Exiter(Counter):
        @handles(Boom)
        def _boom(self, _: Boom) -> None:
            raise SystemExit(3)

    other = system.spawn(Counter)
    watcher = system.spawn(Watcher)
    ref = system.spawn(Exiter, name="x")
    await watcher.ask(Watch(name="x"))
    with pytest.raises(ActorDead):
        await ref.ask(Boom())
    await inside(watcher).came.wait()
    assert inside(watcher).downs[0].reason == "failed"
    assert await other.ask(Get()) == 0


async def test_down_is_a_message_like_any_other() -> None:
    import msgspec

    down = Down(name="a", reason="failed", error="x", incarnation=4)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(down), type=Down) == down


async def test_a_task_group_may_live_from_on_start_to_on_exit(system: System) -> None:
    import anyio

    class Grouped(Actor):
        async def on_start(self) -> None:
            self.group = anyio.create_task_group()
            await self.group.__aenter__()

        @handles(Boom)
        def _boom(self, message: Boom) -> None:
            async def fail() -> None:
                raise ConnectionError(message.text)

            self.group.start_soon(fail)

        async def on_exit(self, reason: str, error: BaseException | None) -> None:
            self.group.cancel_scope.cancel()
            await self.group.__aexit__(None, None, None)

    fine = system.spawn(Grouped)
    assert await fine.stop()
    watcher = system.spawn(Watcher)
    ref = system.spawn(Grouped, name="g")
    await watcher.ask(Watch(name="g"))
    ref.tell(Boom(text="link lost"))
    await inside(watcher).came.wait()
    down = inside(watcher).downs[0]
    assert down.reason == "failed"
    assert down.error is not None
    assert down.error.startswith("ExceptionGroup")


async def test_holding_and_letting_go_gives_the_answer(system: System) -> None:
    ref = system.spawn(Holder)
    asking = asyncio.create_task(ref.ask(Hold()))
    await inside(ref).held.wait()
    inside(ref).let_go.set()
    assert await asking == "let go"
