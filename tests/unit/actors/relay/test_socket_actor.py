"""The actor that keeps one container's control link open, against a guest played by the test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.actors.container.guest_connection import GetGuestConnection, GuestConnectionState
from oubliette.actors.container.messages import (
    ContainerIsLost,
    ContainerIsUp,
    ForgetProcess,
    GuestConnected,
    GuestGone,
    SocketStarted,
)
from oubliette.actors.relay.actor import SocketActor
from oubliette.actors.relay.link_attempts import GONE_SECONDS
from oubliette.actors.relay.session_links import LinkMemory
from oubliette.actors.session.messages import ClientPaired, CloseLink, OpenLink
from oubliette.errors import ContainerLost
from oubliette.kit import Actor, handles

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.actors.fake_guest import FakeGuest
    from tests.unit.actors.fakes import World

pytestmark = pytest.mark.anyio

LINK = OpenLink(
    session_id="gogol_x", project_id="proj_x", depth=0, session="session", secret="s" * 32
)
CONNECTION = "unit/socket/gogol_x"


class Occupied(Actor):
    """A container's actor that handles a message until it may end."""

    def __init__(self, may_end: asyncio.Event) -> None:
        super().__init__()
        self._may_end = may_end

    @handles(SocketStarted)
    async def _handle(self, _: SocketStarted) -> None:
        await self._may_end.wait()


class Scene:
    """One SocketActor, which has been told of nothing yet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.to_container: list[Any] = world.record("unit/container")
        self.to_session: list[Any] = world.record("session")
        self.guest = GuestConnectionState()
        self.links = LinkMemory()
        self.played: FakeGuest = world.open_guest(self.guest)
        self.begin()

    def begin(self) -> None:
        self.ref = self.world.system.spawn(
            SocketActor,
            self.world.context,
            self.guest,
            self.world.system.ref("unit/container"),
            self.links,
            name="unit/socket",
        )

    def container_is_up(self) -> None:
        self.ref.tell(self.is_up(self.played.key))

    def is_up(self, key: bytes) -> ContainerIsUp:
        assert self.guest.info is not None
        return ContainerIsUp(container_id=self.guest.info.id, key=key, info=self.guest.info)

    async def up(self) -> None:
        self.container_is_up()
        await self.world.until(lambda: self.guest.link)

    def gone(self) -> list[GuestGone]:
        return [told for told in self.to_container if isinstance(told, GuestGone)]


@pytest.fixture
async def scene(world: World) -> Scene:
    return Scene(world)


async def test_when_it_starts_it_asks_which_container_is_up(scene: Scene) -> None:
    await scene.world.until(lambda: scene.to_container)
    assert scene.to_container == [SocketStarted()]
    assert scene.guest.link is None


async def test_it_connects_to_the_container_that_is_up_once(scene: Scene) -> None:
    await scene.up()
    scene.container_is_up()  # as both began at the same time
    await scene.world.settle()
    assert scene.played.epochs == [1]


async def test_it_connects_again_when_the_link_breaks(scene: Scene) -> None:
    await scene.up()
    first = scene.guest.link
    scene.played.cut()
    await scene.world.until(lambda: scene.guest.link not in {None, first}, seconds=1.0)
    assert scene.played.epochs == [1, 1]


async def test_a_container_that_is_lost_is_not_connected_to_again(scene: Scene) -> None:
    await scene.up()
    scene.ref.tell(ContainerIsLost(reason="container lost: it ended"))
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
    scene.ref.tell(scene.is_up(b"x" * 32))
    await scene.world.until(scene.gone)
    assert scene.gone()[0].unusable
    assert scene.guest.link is None


async def test_a_guest_whose_folder_was_removed_is_reported_unusable_at_once(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.up()
    socket = tmp_path / "removed" / "relay.sock"
    monkeypatch.setattr(scene.world.runtime, "dial", lambda _: socket)
    began = scene.world.clock.monotonic()
    scene.played.cut()
    await scene.world.until(scene.gone, seconds=0.01)
    assert scene.gone()[0].unusable
    assert "No such file or directory" in scene.gone()[0].reason
    assert scene.world.clock.monotonic() - began < GONE_SECONDS


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
    assert scene.links.specs == {}


async def test_a_session_s_link_that_fails_is_opened_again(scene: Scene) -> None:
    await scene.up()
    scene.ref.tell(LINK)
    await scene.world.until(lambda: scene.played.clients)
    await scene.world.system.ref(CONNECTION).kill()
    await scene.world.until(lambda: len(scene.played.clients) == 2)
    assert scene.played.asked("unexpect") == [], "its client is still expected"


async def test_its_successor_takes_the_sessions_links_over(scene: Scene) -> None:
    world = scene.world
    await world.session(await world.project(), id="gogol_x", prompts=())
    scene.links.specs["gogol_ended"] = msgspec.structs.replace(LINK, session_id="gogol_ended")
    await scene.up()
    scene.ref.tell(LINK)
    await scene.world.until(lambda: scene.played.clients)
    await scene.ref.kill()
    assert scene.guest.link is None, "whoever wants the link waits for the next one"
    scene.begin()
    await scene.up()
    await scene.world.until(lambda: len(scene.played.clients) == 2)
    assert list(scene.links.specs) == ["gogol_x"], "a session that ended meanwhile has none"


async def test_the_container_s_actor_is_told_when_the_guest_has_proved_itself(
    scene: Scene,
) -> None:
    await scene.up()
    assert scene.guest.info is not None
    connected = GuestConnected(container_id=scene.guest.info.id)
    await scene.world.until(lambda: connected in scene.to_container)


async def test_a_container_s_actor_that_ends_meanwhile_gets_no_dead_letter(scene: Scene) -> None:
    """At a stop of the server it ends before this one, and may not have begun to."""
    system = scene.world.system
    await scene.world.until(lambda: scene.to_container)
    await system.ref("unit/container").stop()
    may_end = asyncio.Event()
    ending = system.spawn(Occupied, may_end, name="unit/container")
    ending.tell(SocketStarted())
    ended = asyncio.ensure_future(ending.stop())
    await scene.up()
    may_end.set()
    await ended
    assert list(system.dead_letters) == []


async def test_a_process_is_ended_and_forgotten_for_a_session_that_asks(scene: Scene) -> None:
    await scene.ref.ask(ForgetProcess(process_id="proc_early"))
    await scene.up()
    await scene.ref.ask(ForgetProcess(process_id="proc_x"))
    assert [asked["proc"] for asked in scene.played.asked("forget")] == ["proc_x"]


async def test_readers_of_the_link_see_its_end_with_the_unit(scene: Scene) -> None:
    await scene.up()
    reader = await scene.ref.ask(GetGuestConnection())
    assert reader.current is scene.guest.link is not None
    await scene.ref.stop()
    with pytest.raises(ContainerLost, match="its unit ended"):
        await reader.wait(1.0)
