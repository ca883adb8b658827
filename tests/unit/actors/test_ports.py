"""The owner of open ports: tokens, limits, and ends. Connections are in tests/system/test_ports.py."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import ids
from oubliette.actors.container.guest_connection import GuestConnectionState
from oubliette.actors.container.messages import Acquire, Release
from oubliette.actors.ports.actor import PortsActor
from oubliette.actors.ports.messages import (
    PORTS,
    ClosePort,
    KeyEnded,
    ListPorts,
    OpenConnection,
    OpenPort,
    PortLink,
    RedeemToken,
)
from oubliette.actors.ports.open_port import LINK_SECONDS, MOST, PortGrants
from oubliette.actors.session.messages import NoteEvent
from oubliette.config.schema import Config, PortsConfig
from oubliette.errors import Conflict, Forbidden, LimitExceeded, NotFound, Unauthenticated
from oubliette.kit import Actor, MailboxFull, Message, handles
from tests.unit.actors.fakes import FakeSocket

if TYPE_CHECKING:
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio


class StartingContainer(Actor):
    """A container whose start takes longer than anything else."""

    @handles(Acquire)
    def _acquire(self, _: Acquire) -> None:
        self.defer()

    @handles(Release)
    def _release(self, _: Release) -> None:
        pass


class Stay(Message):
    """To a stand-in: take nothing more until you may."""


class Stuck(Actor):
    """An actor that is busy, and whose mailbox is full."""

    mailbox_size = 1

    def __init__(self, may: asyncio.Event, taken: list[Message], container_id: str) -> None:
        super().__init__()
        self._may, self._taken, self._container_id = may, taken, container_id

    @handles(Acquire)
    def _acquire(self, _: Acquire) -> str:
        return self._container_id

    @handles(Stay)
    async def _stay(self, message: Stay) -> None:
        self._taken.append(message)
        await self._may.wait()

    @handles(NoteEvent, Release)
    def _take(self, message: NoteEvent | Release) -> None:
        self._taken.append(message)


class Scene:
    """A session and its container, both played, and the owner of the ports."""

    def __init__(
        self, world: World, *, starts: bool = True, stuck: asyncio.Event | None = None
    ) -> None:
        self.world = world
        self.session_id = ids.new_id(ids.SESSION)
        self.project_id = ids.new_id(ids.PROJECT)
        self.session = f"unit/sessions/{self.session_id}"
        self.container_id = ids.new_id(ids.CONTAINER)
        self.heard: list[Any] = []
        self.leases: list[Any] = []
        if stuck is None:
            self.heard = world.record(self.session)
        if stuck is not None:
            for name in (self.session, "unit/container"):
                world.system.spawn(Stuck, stuck, self.leases, self.container_id, name=name)
        elif starts:
            self.leases = world.record("unit/container", self.container_id)
        else:
            world.system.spawn(StartingContainer, name="unit/container")
        self.guest = GuestConnectionState()
        self.guest.info = world.runtime.info(self.container_id)
        world.system.spawn(FakeSocket, self.guest, [], name="unit/socket")
        world.sessions.enter(self.session_id, world.system.ref(self.session))
        self.ports = world.system.spawn(PortsActor, world.context, name=PORTS)

    async def open(
        self, port: int = 8000, principal: str = "alice", expires_at: float | None = None
    ) -> PortLink:
        message = OpenPort(
            session_id=self.session_id,
            project_id=self.project_id,
            principal=principal,
            port=port,
            token_id=f"tok_{principal}",
            expires_at=expires_at,
        )
        return await self.ports.ask(message, timeout=1e6)

    async def listed(self) -> list[int]:
        found = await self.ports.ask(ListPorts(session_id=self.session_id))
        return [each.port for each in found]

    def kinds(self) -> list[str]:
        return [each.kind for each in self.heard if isinstance(each, NoteEvent)]

    def seen(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.leases if isinstance(each, kind)]


@pytest.fixture
async def scene(world: World) -> Scene:
    return Scene(world)


async def test_a_port_holds_its_container_until_it_is_closed(scene: Scene) -> None:
    opened = await scene.open()
    assert opened.info.name.startswith("p8000-")
    (lease,) = scene.seen(Acquire)
    assert await scene.ports.ask(ClosePort(session_id=scene.session_id, port=8000))
    assert not await scene.ports.ask(ClosePort(session_id=scene.session_id, port=8000))
    await scene.world.until(lambda: scene.kinds() == ["port_opened", "port_closed"])
    (released,) = scene.seen(Release)
    assert released.session_id == lease.session_id


async def test_a_session_and_a_container_that_take_nothing_more_end_no_ports_of_others(
    world: World,
) -> None:
    may = asyncio.Event()
    scene = Scene(world, stuck=may)
    first = scene.ports.incarnation
    await scene.open()
    for number, name in enumerate((scene.session, "unit/container"), 1):
        ref = world.system.ref(name)
        ref.tell(Stay())
        await world.until(lambda number=number: len(scene.seen(Stay)) == number)
        ref.tell(Stay())
        with pytest.raises(MailboxFull):
            ref.tell(Stay())
    assert await scene.ports.ask(ClosePort(session_id=scene.session_id, port=8000))
    assert await scene.listed() == []
    assert scene.ports.incarnation == first
    may.set()
    await world.until(lambda: any(isinstance(each, Release) for each in scene.leases))


async def test_a_token_is_good_once_and_for_a_minute(scene: Scene) -> None:
    first, second = await scene.open(), await scene.open()
    name = first.info.name
    assert second.info.name == name
    redeem = RedeemToken(name=name, token=first.token)
    assert await scene.ports.ask(redeem) is not None
    assert await scene.ports.ask(redeem) is None
    await scene.world.clock.elapse(LINK_SECONDS + 1)
    assert await scene.ports.ask(RedeemToken(name=name, token=second.token)) is None
    with pytest.raises(NotFound):
        await scene.ports.ask(RedeemToken(name="p1-0000000000", token=""))


async def test_only_a_cookie_or_the_owner_gets_through(scene: Scene) -> None:
    name = (await scene.open()).info.name
    wanted = {"name": name, "connection_id": "c", "share": 16}
    with pytest.raises(Unauthenticated):
        await scene.ports.ask(OpenConnection(**wanted, cookies=("guessed",)))
    with pytest.raises(Forbidden):
        await scene.ports.ask(OpenConnection(**wanted, principal="bob"))
    with pytest.raises(Forbidden):
        await scene.ports.ask(OpenConnection(**wanted, principal="alice", project_id="proj_other"))
    with pytest.raises(Forbidden):
        await scene.open(principal="bob")


async def test_the_ports_of_a_session_are_limited(scene: Scene) -> None:
    most = scene.world.config.ports.max_per_session
    for port in range(1, most + 1):
        await scene.open(port)
    with pytest.raises(LimitExceeded, match=r"ports\.max_per_session"):
        await scene.open(most + 1)
    await scene.open(1)  # one that is open counts once


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_a_link_and_its_cookie_end_with_the_key_that_made_it(scene: Scene, end: str) -> None:
    expiry = scene.world.clock.time() + 100.0
    first = await scene.open(expires_at=expiry if end == "expired" else None)
    unused = await scene.open()
    others = await scene.open(2, "bob")
    made = await scene.ports.ask(RedeemToken(name=first.info.name, token=first.token))
    theirs = await scene.ports.ask(RedeemToken(name=others.info.name, token=others.token))
    assert made is not None and theirs is not None

    async def connect(name: str, cookie: str) -> asyncio.Future[Any]:
        wanted = OpenConnection(name=name, connection_id=cookie, share=9, cookies=(cookie,))
        asked = asyncio.ensure_future(scene.ports.ask(wanted))
        await scene.world.settle()
        return asked

    held = await connect(first.info.name, made.value)
    kept = await connect(others.info.name, theirs.value)
    if end == "revoked":
        scene.ports.tell(KeyEnded(token_id="tok_alice"))
        await scene.world.settle()
    else:
        await scene.world.settle(100.0)
    found = await scene.ports.ask(ListPorts(session_id=scene.session_id))
    assert found[0].connections == 0
    with pytest.raises(Unauthenticated):
        await scene.ports.ask(
            OpenConnection(
                name=first.info.name, connection_id="c", share=9, cookies=("another", made.value)
            )
        )
    assert await scene.ports.ask(RedeemToken(name=first.info.name, token=unused.token)) is None
    if end == "revoked":
        assert found[1].connections == 1
    for each in (held, kept):
        each.cancel()
    await asyncio.gather(held, kept, return_exceptions=True)


async def test_the_connections_of_an_owner_are_limited_over_all_ports_and_of_all_owners_too(
    scene: Scene,
) -> None:
    asks: list[asyncio.Future[Any]] = []

    async def connect(port: int, owner: str, count: int) -> None:
        name = (await scene.open(port, owner)).info.name
        for n in range(count):
            wanted = OpenConnection(
                name=name, connection_id=f"{port}-{n}", share=4, principal=owner
            )
            asks.append(asyncio.ensure_future(scene.ports.ask(wanted)))
        await scene.world.settle()
        found = await scene.ports.ask(ListPorts(session_id=scene.session_id))
        assert {each.port: each.connections for each in found}[port] == count

    await connect(1, "alice", 3)
    await connect(2, "alice", 1)
    with pytest.raises(LimitExceeded, match="of the same owner"):
        await scene.ports.ask(
            OpenConnection(
                name=(await scene.open(3)).info.name, connection_id="c", share=4, principal="alice"
            )
        )
    await connect(4, "bob", 4)
    await connect(5, "carol", 1)  # in the place of one of the owner with the most
    found = await scene.ports.ask(ListPorts(session_id=scene.session_id))
    assert [each.connections for each in found] == [2, 1, 0, 4, 1]
    for each in asks:
        each.cancel()
    await asyncio.gather(*asks, return_exceptions=True)


async def test_a_port_closes_when_its_time_is_over(scene: Scene) -> None:
    await scene.open()
    await scene.world.clock.elapse(scene.world.config.ports.open_seconds + 1)
    await scene.world.until(lambda: "port_closed" in scene.kinds())
    assert await scene.listed() == []


@pytest.mark.parametrize("over", ["link", "key", "port"])
async def test_what_ends_while_the_machine_sleeps_is_over_when_it_wakes(
    scene: Scene, over: str
) -> None:
    """Timers stand still meanwhile; the wall clock does not."""
    clock, seconds = scene.world.clock, scene.world.config.ports.open_seconds
    asleep = {"link": LINK_SECONDS + 1, "key": 100.0, "port": seconds}[over]
    opened = await scene.open(expires_at=clock.time() + 100.0 if over == "key" else None)
    unused = await scene.open()
    made = await scene.ports.ask(RedeemToken(name=opened.info.name, token=opened.token))
    assert made is not None
    clock.set_wall(clock.time() + asleep)
    redeem = RedeemToken(name=opened.info.name, token=unused.token)
    if over == "link":
        assert await scene.ports.ask(redeem) is None
        return
    with pytest.raises(Unauthenticated if over == "key" else NotFound):
        await scene.ports.ask(
            OpenConnection(
                name=opened.info.name, connection_id="c", share=9, cookies=("another", made.value)
            )
        )
    assert await scene.listed() == ([8000] if over == "key" else [])


async def test_the_time_of_a_port_includes_the_start_of_its_container(world: World) -> None:
    world.configure(Config(ports=PortsConfig(open_seconds=60.0)))
    scene = Scene(world, starts=False)
    opening = asyncio.ensure_future(scene.open())
    await world.settle(world.config.ports.open_seconds)
    with pytest.raises(Conflict, match=r"ports\.open_seconds"):
        await opening
    assert await scene.listed() == []


async def test_a_port_closes_with_its_session(scene: Scene) -> None:
    await scene.open()
    await scene.world.system.ref(scene.session).stop()
    await scene.world.until(lambda: scene.seen(Release))
    assert await scene.listed() == []
    with pytest.raises(Conflict, match="the session has ended"):
        await scene.open()


async def test_a_port_closes_with_its_container(scene: Scene) -> None:
    await scene.open()
    await scene.world.settle()
    scene.guest.lost("it was stopped")
    await scene.world.until(lambda: "port_closed" in scene.kinds())
    assert await scene.listed() == []


def test_the_oldest_cookies_make_room_for_new_ones() -> None:
    grants = PortGrants()
    cookies = [grants.redeem(grants.token(0.0, "tok_1"), 0.0) for _ in range(MOST + 1)]
    assert [grants.admits(cookie or "") for cookie in cookies] == [None] + ["tok_1"] * MOST
    assert not grants.admits("")
