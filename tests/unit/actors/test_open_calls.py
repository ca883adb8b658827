"""The limit of a principal's open caller tool calls, and its one owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from oubliette.actors.open_calls import (
    OPEN_CALLS,
    OpenCallIds,
    OpenCallsActor,
    OpenCallTable,
    ReleaseCall,
    ReportCalls,
    ReserveCall,
)
from oubliette.errors import LimitExceeded
from oubliette.kit import Actor, MailboxFull, Message, Reply, System, handles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

LIMIT = 5


class Call(Message, Reply[bool]):
    """To a Caller: make one more call; whether it is within the limit."""

    request_id: str


class Caller(Actor):
    """Stands for a session, which has the calls open that were not refused."""

    def __init__(self, principal: str) -> None:
        super().__init__()
        self._principal = principal
        self._open: list[str] = []

    @handles(Call)
    async def _call(self, message: Call) -> bool:
        try:
            await self.system.ref(OPEN_CALLS).ask(
                ReserveCall(
                    principal=self._principal,
                    session=self.name,
                    incarnation=self.incarnation,
                    request_id=message.request_id,
                )
            )
        except LimitExceeded:
            return False
        self._open.append(message.request_id)
        return True

    @handles(ReportCalls)
    def _report(self, _: ReportCalls) -> None:
        self.system.ref(OPEN_CALLS).tell(
            OpenCallIds(
                principal=self._principal,
                session=self.name,
                incarnation=self.incarnation,
                request_ids=tuple(self._open),
            )
        )

    @handles(ReleaseCall)
    def _settled(self, message: ReleaseCall) -> None:
        self._open.remove(message.request_id)
        self.system.ref(OPEN_CALLS).tell(message)


class Stay(Message):
    """To a Busy: take nothing more until you may."""


class Busy(Caller):
    """A session whose mailbox is soon full."""

    mailbox_size = 1

    def __init__(self, principal: str, may: asyncio.Event, stays: asyncio.Event) -> None:
        super().__init__(principal)
        self._may, self._stays = may, stays

    @handles(Stay)
    async def _stay(self, _: Stay) -> None:
        self._stays.set()
        await self._may.wait()


class Scene:
    def __init__(self, system: System) -> None:
        self.system = system
        self.table = OpenCallTable()
        self.begin()

    def begin(self) -> None:
        self.system.spawn(OpenCallsActor, LIMIT, self.table, name=OPEN_CALLS)

    def session(self, name: str, principal: str = "p") -> None:
        self.system.spawn(Caller, principal, name=name)

    async def call(self, name: str, request_id: str) -> bool:
        return await self.system.ref(name).ask(Call(request_id=request_id))

    def settle(self, name: str, request_id: str) -> None:
        self.system.ref(name).tell(ReleaseCall(session=name, request_id=request_id))

    async def total(self, expected: int, principal: str = "p") -> None:
        async with asyncio.timeout(5):
            while self.table.total(principal) != expected:
                await asyncio.sleep(0)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with System("test", roundtrip_messages=True, watchdog=None) as system:
        async with asyncio.timeout(20):
            yield Scene(system)


async def test_many_sessions_that_call_at_once_get_exactly_the_limit(scene: Scene) -> None:
    names = [f"session-{number}" for number in range(20)]
    for name in names:
        scene.session(name)
    tried = [scene.call(name, f"{name}-{number}") for number in range(3) for name in names]
    assert sum(await asyncio.gather(*tried)) == LIMIT
    await scene.total(LIMIT)


async def test_principals_have_a_limit_each(scene: Scene) -> None:
    scene.session("a")
    scene.session("b", "another")
    for number in range(LIMIT):
        assert await scene.call("a", str(number))
    assert not await scene.call("a", "more")
    assert await scene.call("b", "other")


async def test_a_settled_call_makes_room_and_a_reservation_counts_once(scene: Scene) -> None:
    scene.session("a")
    for number in range(LIMIT):
        assert await scene.call("a", str(number))
        assert await scene.call("a", str(number))
    scene.settle("a", "0")
    assert await scene.call("a", "more")
    assert not await scene.call("a", "too many")


async def test_the_calls_of_a_session_whose_actor_fails_are_given_back(scene: Scene) -> None:
    scene.session("a")
    scene.session("b")
    for number in range(LIMIT):
        assert await scene.call("a", str(number))
    await scene.system.ref("a").kill()
    await scene.total(0)
    assert len(scene.table) == 0, "a principal without an open call is not remembered"
    assert await scene.call("b", "more")


async def test_a_successor_counts_what_it_has_recovered_whatever_the_limit(scene: Scene) -> None:
    scene.session("a")
    await scene.system.ref("a").kill()
    scene.session("a")
    ids = tuple(map(str, range(LIMIT + 1)))
    incarnation = scene.system.ref("a").incarnation
    message = OpenCallIds(principal="p", session="a", incarnation=incarnation, request_ids=ids)
    await scene.system.ref(OPEN_CALLS).ask(message)
    await scene.total(LIMIT + 1)
    assert not await scene.call("a", "more")


async def test_what_an_incarnation_that_has_ended_asks_for_is_not_counted(scene: Scene) -> None:
    scene.session("a")
    before = scene.system.ref("a").incarnation
    await scene.system.ref("a").kill()
    scene.session("a")
    await scene.system.ref(OPEN_CALLS).ask(
        ReserveCall(principal="p", session="a", incarnation=before, request_id="late")
    )
    await scene.total(0)


async def test_a_restarted_owner_knows_the_calls_and_what_was_settled_meanwhile(
    scene: Scene,
) -> None:
    for name in ("a", "b"):
        scene.session(name)
        assert await scene.call(name, f"{name}-1")
        assert await scene.call(name, f"{name}-2")
    await scene.system.ref(OPEN_CALLS).kill()
    scene.settle("a", "a-1")
    await scene.system.ref("b").kill()
    scene.begin()
    await scene.total(1)
    await scene.system.ref("a").kill()
    await scene.total(0)


async def test_a_session_that_takes_nothing_more_keeps_no_owner_from_starting(scene: Scene) -> None:
    may, stays = asyncio.Event(), asyncio.Event()
    busy = scene.system.spawn(Busy, "p", may, stays, name="a")
    scene.session("b")
    assert await scene.call("a", "a-1")
    assert await scene.call("b", "b-1")
    busy.tell(Stay())
    await stays.wait()
    busy.tell(Stay())
    with pytest.raises(MailboxFull):
        busy.tell(Stay())
    await scene.system.ref(OPEN_CALLS).kill()
    scene.begin()
    assert await scene.call("b", "b-2")
    may.set()
    await scene.total(3)
