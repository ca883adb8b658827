"""An actor that asks another one and goes on: `Actor.ask_to_self`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.kit import Actor, Deferred, Message, Ref, Reply, System, handles
from tests.unit.kit.vocabulary import Boom, Counter, Get, Hold, Watch, Watcher, inside

if TYPE_CHECKING:
    from oubliette.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Ask(Message, Reply[None]):
    """Ask the actor of this name, and go on."""

    name: str
    """Whom."""

    what: str
    """`get`, `boom` or `hold`."""


class Came(Message):
    """What came of it."""

    text: str
    """In words."""


class Asker(Actor):
    """Asks, and collects what comes."""

    def __init__(self, ok: Any = lambda value: Came(text=f"ok {value!r}"), err: Any = None) -> None:
        self.ok = ok
        self.err = err or (lambda error: Came(text=f"err {type(error).__name__}: {error}"))
        self.texts: list[str] = []
        self.came = asyncio.Event()

    @handles(Ask)
    def _ask(self, message: Ask) -> None:
        what = {"get": Get(), "boom": Boom(text="no luck"), "hold": Hold()}[message.what]
        self.ask_to_self(self.system.ref(message.name), what, self.ok, self.err, timeout=5.0)

    @handles(Came)
    def _came(self, message: Came) -> None:
        self.texts.append(message.text)
        self.came.set()

    @handles(Get)
    def _get(self, _: Get) -> int:
        return len(self.texts)


class Late(Counter):
    """Takes its answer over, and gives it when the test says so."""

    answer: Deferred

    @handles(Hold)
    def _hold(self, _: Hold) -> None:
        self.answer = self.defer()


async def said(asker: Ref, name: str, what: str) -> list[str]:
    await asker.ask(Ask(name=name, what=what))
    await inside(asker).came.wait()
    return inside(asker).texts


async def test_the_answer_comes_as_a_message(system: System) -> None:
    system.spawn(Counter, 5, name="c")
    assert await said(system.spawn(Asker), "c", "get") == ["ok 5"]


async def test_an_error_of_the_other_comes_as_a_message(system: System) -> None:
    system.spawn(Counter, name="c")
    assert await said(system.spawn(Asker), "c", "boom") == ["err ValueError: no luck"]


async def test_that_there_is_nobody_comes_as_a_message(system: System) -> None:
    (text,) = await said(system.spawn(Asker), "nobody", "get")
    assert text.startswith("err ActorDead")


async def test_that_the_other_ends_comes_as_a_message(system: System) -> None:
    late = system.spawn(Late, name="late")
    asker = system.spawn(Asker)
    await asker.ask(Ask(name="late", what="hold"))
    await late.ask(Get())
    await late.stop()
    await inside(asker).came.wait()
    assert inside(asker).texts[0].startswith("err ActorDead")


async def test_its_mailbox_runs_on_meanwhile_and_the_answer_counts_once(system: System) -> None:
    late = system.spawn(Late, name="late")
    asker = system.spawn(Asker)
    await asker.ask(Ask(name="late", what="hold"))
    assert await asker.ask(Get()) == 0
    await late.ask(Get())
    answer = inside(late).answer
    assert answer.set("now")
    assert not answer.set("again")
    await inside(asker).came.wait()
    assert inside(asker).texts == ["ok 'now'"]


async def test_no_answer_in_time_comes_as_a_message_and_a_late_one_does_not(
    system: System, clock: VirtualClock
) -> None:
    late = system.spawn(Late, name="late")
    asker = system.spawn(Asker)
    await asker.ask(Ask(name="late", what="hold"))
    await late.ask(Get())
    clock.advance(5.1)
    await inside(asker).came.wait()
    assert inside(asker).texts == ["err AskTimeout: late did not answer Hold within 5 s"]
    assert inside(late).answer.done
    assert not inside(late).answer.set("too late")
    assert await asker.ask(Get()) == 1


async def test_nothing_comes_once_the_asking_actor_has_ended(system: System) -> None:
    late = system.spawn(Late, name="late")
    asker = system.spawn(Asker)
    await asker.ask(Ask(name="late", what="hold"))
    await late.ask(Get())
    await asker.stop()
    inside(late).answer.set("to nobody")
    assert await late.ask(Get()) == 0
    assert system.dead_letter_count == 0


async def test_an_error_in_making_the_message_is_an_outcome_too(system: System) -> None:
    def ok(value: int) -> Message:
        raise KeyError(value)

    system.spawn(Counter, 5, name="c")
    assert await said(system.spawn(Asker, ok), "c", "get") == ["err KeyError: 5"]


async def test_an_error_in_the_error_function_fails_the_actor(system: System) -> None:
    def err(error: BaseException) -> Message:
        raise KeyError("in err")

    system.spawn(Counter, name="c")
    watcher = system.spawn(Watcher)
    asker = system.spawn(Asker, err=err, name="asker")
    await watcher.ask(Watch(name="asker"))
    await asker.ask(Ask(name="c", what="boom"))
    await inside(watcher).came.wait()
    assert inside(watcher).downs[0].error == "KeyError: 'in err'"
