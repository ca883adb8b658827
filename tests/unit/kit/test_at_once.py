"""Messages that an actor takes while they are sent."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from oubliette.kit import Actor, ActorDead, Deferred, Message, Ref, Reply, System, handles
from oubliette.kit.trace_context import current_scope
from tests.unit.kit.vocabulary import Boom, until_gone

pytestmark = pytest.mark.anyio


class Note(Message):
    """Note this, while it is sent."""

    text: str


class Later(Message):
    """Note this, when its turn has come."""

    text: str


class Notes(Message, Reply[tuple[str, ...]]):
    """Answered, while it is asked, with all that was noted."""


class Owe(Message, Reply[str]):
    """Answered by the next note."""


class Echo(Message):
    """Note this, and send it to itself as another note."""

    text: str


class End(Message):
    """End, while this is sent."""


class Noter(Actor):
    """Notes what it is told, most of it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []
        self.owed: list[Deferred] = []
        self.door = asyncio.Event()

    @handles(Note, at_once=True)
    def _note(self, message: Note) -> None:
        scope = current_scope.get()
        assert scope is self, "it runs as this actor, whoever sends"
        self.noted.append(message.text)
        for answer in self.owed:
            answer.set(message.text)
        self.owed.clear()

    @handles(Later)
    async def _later(self, message: Later) -> None:
        await self.door.wait()
        self.noted.append(message.text)

    @handles(Notes, at_once=True)
    def _notes(self, _: Notes) -> tuple[str, ...]:
        return tuple(self.noted)

    @handles(Owe, at_once=True)
    def _owe(self, _: Owe) -> None:
        self.owed.append(self.defer())

    @handles(Echo, at_once=True)
    def _echo(self, message: Echo) -> None:
        self.ref.tell(Note(text=f"{message.text} again"))
        self.noted.append(message.text)

    @handles(End, at_once=True)
    def _end(self, _: End) -> None:
        self.stop()

    @handles(Boom, at_once=True)
    def _boom(self, message: Boom) -> None:
        raise ValueError(message.text)


async def resting(system: System) -> tuple[Ref, Noter]:
    """A Noter that has started and waits for messages."""
    ref = system.spawn(Noter)
    await ref.ask(Notes())
    await asyncio.sleep(0)  # back at its mailbox
    actor: Any = ref.resolve()
    return ref, actor


async def test_a_resting_actor_takes_it_before_the_sender_goes_on(system: System) -> None:
    ref, actor = await resting(system)
    ref.tell(Note(text="a"))
    assert actor.noted == ["a"]
    assert await ref.ask(Notes()) == ("a",)


async def test_what_was_sent_before_comes_first(system: System) -> None:
    ref, actor = await resting(system)
    actor.door.set()
    ref.tell(Later(text="a"))
    ref.tell(Note(text="b"))
    assert actor.noted == []
    assert await ref.ask(Notes()) == ("a", "b")


async def test_a_busy_actor_takes_it_when_its_turn_has_come(system: System) -> None:
    ref, actor = await resting(system)
    ref.tell(Later(text="a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ref.tell(Note(text="b"))
    assert actor.noted == []
    actor.door.set()
    assert await ref.ask(Notes()) == ("a", "b")


async def test_what_it_sends_itself_meanwhile_waits_for_its_turn(system: System) -> None:
    ref, actor = await resting(system)
    ref.tell(Echo(text="a"))
    assert actor.noted == ["a"]
    assert await ref.ask(Notes()) == ("a", "a again")


async def test_an_answer_can_be_deferred(system: System) -> None:
    ref, _ = await resting(system)
    owed = asyncio.ensure_future(ref.ask(Owe()))
    await asyncio.sleep(0)
    ref.tell(Note(text="a"))
    assert await owed == "a"


async def test_an_error_in_a_tell_fails_the_actor_and_not_the_sender(system: System) -> None:
    ref, _ = await resting(system)
    ref.tell(Boom())
    await until_gone(ref)
    with pytest.raises(ActorDead):
        await ref.ask(Notes())


async def test_an_error_in_an_ask_is_the_askers(system: System) -> None:
    ref, _ = await resting(system)
    with pytest.raises(ValueError, match="no luck"):
        await ref.ask(Boom(text="no luck"))
    assert await ref.ask(Notes()) == ()


async def test_it_may_end_its_actor(system: System) -> None:
    ref, actor = await resting(system)
    ref.tell(End())
    ref.tell(Note(text="too late"))
    await until_gone(ref)
    assert actor.noted == []


async def test_an_ended_actor_is_not_kept_by_a_ref(system: System) -> None:
    ref, actor = await resting(system)
    gone = weakref.ref(actor)
    del actor
    await ref.stop()
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None


def test_a_handler_that_may_wait_cannot_be_run_at_once() -> None:
    with pytest.raises(TypeError, match="may wait"):

        class _Waits(Actor):  # pyright: ignore[reportUnusedClass]
            @handles(Note, at_once=True)
            async def _note(self, message: Note) -> None: ...
