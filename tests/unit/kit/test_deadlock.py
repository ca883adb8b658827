"""Actors that would wait for each other are told so at once."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oubliette.kit import Actor, DeadlockError, Message, Reply, System, handles
from oubliette.testing.clock import VirtualClock
from tests.unit.kit.vocabulary import Add, Get

pytestmark = pytest.mark.anyio


class Walk(Message, Reply[list[str]]):
    """Ask the first of `path` to walk the rest; answered with the names on the way."""

    path: list[str]
    """Whom to ask, in turn."""

    meet: bool = False
    """Let the other walker begin before going on."""


class SendTo(Message, Reply[None]):
    """Wait for room in that actor's mailbox."""

    name: str
    """Whose."""


class Walker(Actor):
    """Asks on."""

    mailbox_size: ClassVar[int] = 2
    meeting: ClassVar[asyncio.Barrier | None] = None

    @handles(Walk)
    async def _walk(self, message: Walk) -> list[str]:
        if message.meet and self.meeting is not None:
            await self.meeting.wait()
        if not message.path:
            return [self.name]
        on = await self.system.ref(message.path[0]).ask(Walk(path=message.path[1:]))
        return [self.name, *on]

    @handles(SendTo)
    async def _send(self, message: SendTo) -> None:
        for _ in range(self.mailbox_size):
            self.system.ref(message.name).tell(Add())
        await self.system.ref(message.name).send(Add())

    @handles(Get)
    async def _side(self, _: Get) -> int:
        self.pipe_to_self(self.ref.ask(Walk(path=[])), lambda _: Add(), lambda _: Add())
        return 1

    @handles(Add)
    def _add(self, _: Add) -> None:
        return


async def test_asking_oneself_is_a_deadlock(system: System) -> None:
    ref = system.spawn(Walker, name="a")
    with pytest.raises(DeadlockError, match="a cannot wait for itself"):
        await ref.ask(Walk(path=["a"]))
    assert await ref.ask(Walk(path=[])) == ["a"]


async def test_a_circle_of_asks_is_a_deadlock(system: System) -> None:
    for name in "abc":
        system.spawn(Walker, name=name)
    with pytest.raises(DeadlockError):
        await system.ref("a").ask(Walk(path=["b", "c", "a"]))
    assert await system.ref("a").ask(Walk(path=["b", "c"])) == ["a", "b", "c"]
    assert len(system.waits) == 0


async def test_two_actors_that_ask_each_other_at_the_same_time_get_one_answer_and_one_deadlock(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Walker, "meeting", asyncio.Barrier(2))
    a, b = system.spawn(Walker, name="a"), system.spawn(Walker, name="b")
    outcomes = await asyncio.gather(
        a.ask(Walk(path=["b"], meet=True)),
        b.ask(Walk(path=["a"], meet=True)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, DeadlockError) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, list) for outcome in outcomes) == 1
    assert len(system.waits) == 0


async def test_a_side_task_may_ask_its_own_actor(system: System) -> None:
    ref = system.spawn(Walker, name="a")
    assert await ref.ask(Get()) == 1
    assert await ref.ask(Walk(path=[])) == ["a"]


async def test_waiting_for_room_in_ones_own_full_mailbox_is_a_deadlock(system: System) -> None:
    ref = system.spawn(Walker, name="a")
    with pytest.raises(DeadlockError):
        await ref.ask(SendTo(name="a"))
    assert await ref.ask(Walk(path=[])) == ["a"]


NAMES = "abcd"


@example(walks=[("a", ["b", "c", "a"])])
@example(walks=[("a", ["b", "c", "d"]), ("c", ["d", "a", "b"]), ("d", ["a"]), ("b", ["d"])])
@given(
    walks=st.lists(
        st.tuples(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=6)),
        min_size=1,
        max_size=6,
    )
)
def test_any_tangle_of_asks_ends_in_answers_and_deadlocks_without_any_time_passing(
    walks: list[tuple[str, list[str]]],
) -> None:
    async def run() -> None:
        async with System("tangle", VirtualClock(), watchdog=None) as system:
            for name in NAMES:
                system.spawn(Walker, name=name)
            async with asyncio.timeout(10):
                outcomes = await asyncio.gather(
                    *(system.ref(first).ask(Walk(path=path)) for first, path in walks),
                    return_exceptions=True,
                )
            for (first, path), outcome in zip(walks, outcomes, strict=True):
                if len({first, *path}) == len(path) + 1 and len(walks) == 1:
                    assert outcome == [first, *path]
                elif isinstance(outcome, list):
                    assert outcome == [first, *path]
                else:
                    assert isinstance(outcome, DeadlockError)
            assert len(system.waits) == 0

    asyncio.run(run())
