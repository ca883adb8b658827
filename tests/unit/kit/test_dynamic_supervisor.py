"""Supervisors of children that are started on demand."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.kit import ActorDead, ChildSpec, DynamicSupervisor, Message, Reply, System, handles
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import Add, Boom, Counter, Get, until_gone

pytestmark = pytest.mark.anyio


class Ensure(Message, Reply[str]):
    name: str
    restart: str = "permanent"


class End(Message, Reply[bool]):
    name: str


class Names(Message, Reply[list[str]]):
    pass


class Forgotten(Message, Reply[list[str]]):
    pass


class Rooms(DynamicSupervisor):
    @handles(Ensure)
    def _ensure(self, message: Ensure) -> str:
        restart: Any = message.restart
        return self.ensure_child(ChildSpec(name=message.name, cls=Counter, restart=restart))

    @handles(End)
    async def _end(self, message: End) -> bool:
        return await self.end_child(message.name)

    def on_forgotten(self, name: str) -> None:
        self.forgotten = [*getattr(self, "forgotten", []), name]

    @handles(Forgotten)
    def _forgotten(self, _: Forgotten) -> list[str]:
        return getattr(self, "forgotten", [])

    @handles(Names)
    def _names(self, _: Names) -> list[str]:
        assert all(self.has_child(name) for name in self.children)
        return list(self.children)


async def test_a_child_is_started_once_and_found_under_its_name_from_then_on(
    system: System,
) -> None:
    rooms = system.spawn(Rooms, name="rooms")
    assert await rooms.ask(Names()) == []
    name = await rooms.ask(Ensure(name="a"))
    assert name == "rooms/a"
    await system.ref(name).ask(Add(n=2))
    assert await rooms.ask(Ensure(name="a")) == name
    assert await system.ref(name).ask(Get()) == 2, "it is the same child"
    assert await rooms.ask(Names()) == ["a"]


async def test_a_child_that_fails_is_restarted_and_keeps_its_place(
    system: System, clock: VirtualClock
) -> None:
    rooms = system.spawn(Rooms, name="rooms")
    for name in ("a", "b"):
        await rooms.ask(Ensure(name=name))
    first = system.ref("rooms/a").resolve()
    system.ref("rooms/a").tell(Boom())
    await until_gone(system.ref("rooms/a"))
    assert await rooms.ask(Names()) == ["a", "b"]
    await clock.elapse(clock.next_due() or 0.0)
    assert await system.ref("rooms/a").ask(Get()) == 0
    assert system.ref("rooms/a").resolve() is not first


async def test_a_child_that_was_ended_is_forgotten_and_its_name_is_free(system: System) -> None:
    rooms = system.spawn(Rooms, name="rooms")
    await rooms.ask(Ensure(name="a"))
    await system.ref("rooms/a").ask(Add(n=2))
    assert await rooms.ask(End(name="a"))
    assert not await rooms.ask(End(name="a"))
    with pytest.raises(ActorDead):
        await system.ref("rooms/a").ask(Get())
    await rooms.ask(Ensure(name="a"))
    assert await system.ref("rooms/a").ask(Get()) == 0


async def test_a_temporary_child_that_ended_is_forgotten(system: System) -> None:
    rooms = system.spawn(Rooms, name="rooms")
    await rooms.ask(Ensure(name="a", restart="temporary"))
    system.ref("rooms/a").tell(Boom())
    await until_gone(system.ref("rooms/a"))
    assert await rooms.ask(Names()) == []


async def test_a_supervisor_learns_which_child_is_not_restarted(system: System) -> None:
    rooms = system.spawn(Rooms, name="rooms")
    for name, restart in (("a", "transient"), ("b", "transient"), ("c", "permanent")):
        await rooms.ask(Ensure(name=name, restart=restart))
    system.ref("rooms/a").tell(Boom())
    await system.ref("rooms/b").stop()
    assert await rooms.ask(End(name="c"))
    assert await rooms.ask(End(name="c")) is False
    assert await rooms.ask(Forgotten()) == ["b", "c"]
    assert await rooms.ask(Names()) == ["a"]
