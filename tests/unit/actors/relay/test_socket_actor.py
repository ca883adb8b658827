"""The actor that keeps one container's control link open, against a guest played by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.actors.container.guest_connection import GuestConnection
from oubliette.actors.container.messages import ContainerIsUp, GuestGone, SocketStarted
from oubliette.actors.relay.actor import GONE_SECONDS, SocketActor
from oubliette.actors.session.messages import ClientPaired, CloseLink, OpenLink

if TYPE_CHECKING:
    from tests.unit.actors.fake_guest import FakeGuest
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

LINK = OpenLink(
    session_id="gogol_x", project_id="proj_x", depth=0, session="session", secret="s" * 32
)
CONNECTION = "unit/socket/gogol_x"


class Scene:
    """One SocketActor, which has been told of nothing yet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.to_container: list[Any] = world.record("unit/container")
        self.to_session: list[Any] = world.record("session")
        self.guest = GuestConnection(
            socket=world.system.ref("unit/socket"), container=world.system.ref("unit/container")
        )
        self.played: FakeGuest = world.open_guest(self.guest)
        self.begin()

    def begin(self) -> None:
        self.ref = self.world.system.spawn(
            SocketActor, self.world.context, self.guest, name="unit/socket"
        )

    def container_is_up(self) -> None:
        assert self.guest.info is not None
        self.ref.tell(ContainerIsUp(container_id=self.guest.info.id, key=self.played.key))

    async def up(self) -> None:
        self.container_is_up()
        await self.world.until(lambda: self.guest.current)

    def gone(self) -> list[GuestGone]:
        return [told for told in self.to_container if isinstance(told, GuestGone)]


@pytest.fixture
async def scene(world: World) -> Scene:
    return Scene(world)


async def test_when_it_starts_it_asks_which_container_is_up(scene: Scene) -> None:
    await scene.world.until(lambda: scene.to_container)
    assert scene.to_container == [SocketStarted()]
    assert scene.guest.current is None


async def test_it_connects_to_the_container_that_is_up_once(scene: Scene) -> None:
    await scene.up()
    scene.container_is_up()  # as both began at the same time
    await scene.world.settle()
    assert scene.played.epochs == [1]


async def test_it_connects_again_when_the_link_breaks(scene: Scene) -> None:
    await scene.up()
    first = scene.guest.current
    scene.played.cut()
    await scene.world.until(lambda: scene.guest.current not in {None, first}, seconds=1.0)
    assert scene.played.epochs == [1, 1]


async def test_a_container_that_is_lost_is_not_connected_to_again(scene: Scene) -> None:
    await scene.up()
    scene.guest.lost("container lost: it ended")
    scene.played.cut()
    await scene.world.settle(60.0)
    assert scene.played.epochs == [1]


async def test_a_guest_that_nobody_reaches_is_reported_gone_after_a_while(scene: Scene) -> None:
    scene.played.absent = True
    scene.container_is_up()
    await scene.world.settle()
    assert scene.gone() == []
    began = scene.world.clock.monotonic()
    await scene.world.until(scene.gone, seconds=0.1)
    assert scene.world.clock.monotonic() - began >= GONE_SECONDS
    assert scene.guest.info is not None
    assert (scene.gone()[0].container_id, scene.gone()[0].unusable) == (scene.guest.info.id, False)


async def test_a_guest_without_the_key_is_reported_unusable_at_once(scene: Scene) -> None:
    scene.ref.tell(ContainerIsUp(container_id=scene.guest.info.id, key=b"x" * 32))
    await scene.world.until(scene.gone)
    assert scene.gone()[0].unusable
    assert scene.guest.current is None


async def test_agents_that_no_live_session_names_are_ended(scene: Scene) -> None:
    world = scene.world
    project = await world.project()
    live = await world.session(project, status="running", process_id="proc_live")
    rests = await world.session(project, status="completed")
    scene.played.hello["procs"] = [
        {"id": "proc_live", "pid": 1, "session": live.id},
        {"id": "proc_old", "pid": 2, "session": live.id},
        {"id": "proc_rests", "pid": 3, "session": rests.id},
        {"id": "proc_of_command", "pid": 4},
    ]
    await scene.up()
    await world.until(lambda: len(scene.played.asked("forget")) == 2)
    await world.settle()
    signals = [(asked["proc"], asked["signal"]) for asked in scene.played.asked("signal")]
    assert signals == [("proc_old", "KILL"), ("proc_rests", "KILL")]


async def test_a_session_is_told_when_its_agent_s_client_is_there(scene: Scene) -> None:
    scene.ref.tell(LINK)
    await scene.up()
    scene.played.tell(event="paired", session="gogol_other")
    scene.played.tell(event="paired", session="gogol_x")
    await scene.world.until(
        lambda: [told for told in scene.to_session if isinstance(told, ClientPaired)]
    )
    assert scene.to_session.count(ClientPaired()) == 1


async def test_a_session_s_link_is_opened_and_closed_as_it_says(scene: Scene) -> None:
    await scene.up()
    scene.ref.tell(LINK)
    await scene.world.until(lambda: scene.played.clients)
    assert scene.played.clients[0][0].session == "gogol_x"
    scene.ref.tell(CloseLink(session_id="gogol_x"))
    await scene.world.until(lambda: scene.played.asked("unexpect"))
    assert scene.world.system.lookup(CONNECTION) is None
    assert scene.guest.links == {}


async def test_a_session_s_link_that_fails_is_opened_again(scene: Scene) -> None:
    await scene.up()
    scene.ref.tell(LINK)
    await scene.world.until(lambda: scene.played.clients)
    await scene.world.system.ref(CONNECTION).kill()
    await scene.world.until(lambda: len(scene.played.clients) == 2)
    assert scene.played.asked("unexpect") == [], "its client is still expected"


async def test_its_successor_takes_the_sessions_links_over(scene: Scene) -> None:
    await scene.up()
    scene.ref.tell(LINK)
    await scene.world.until(lambda: scene.played.clients)
    await scene.ref.kill()
    assert scene.guest.current is None, "whoever wants the link waits for the next one"
    scene.begin()
    await scene.up()
    await scene.world.until(lambda: len(scene.played.clients) == 2)
