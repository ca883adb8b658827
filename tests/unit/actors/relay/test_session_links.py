"""Session links of one container, kept by children that a recorder takes the place of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from oubliette.actors.relay.session_links import LinkMemory, SessionLinks
from oubliette.actors.session.messages import ClientPaired, OpenLink
from oubliette.errors import StorageUnavailable
from oubliette.kit import Down
from oubliette.records import Session

pytestmark = pytest.mark.anyio

LINK = OpenLink(
    session_id="gogol_x", project_id="proj_x", depth=0, session="session", secret="s" * 32
)
SESSION = Session(
    id="gogol_x", project_id="proj_x", workspace_id="ws_x", principal="p", agent="scripted",
    status="running", created_at=0.0, updated_at=0.0, exploration_id="gogol_x",
)  # fmt: skip


@dataclass
class Child:
    """Takes the place of a ref: of a link's actor, or of a session."""

    incarnation: int = 0
    stopped: bool = False
    told: list[Any] = field(default_factory=list[Any])

    async def stop(self) -> None:
        self.stopped = True

    def is_alive(self) -> bool:
        return not self.stopped

    def tell(self, message: Any) -> None:
        self.told.append(message)


class Owner:
    """Takes the place of the SocketActor, its system, the store's reader and the control link."""

    name = "unit/socket"

    def __init__(self) -> None:
        self.system = self.reader = self
        self.spawned: list[tuple[str, Child]] = []
        self.sessions: dict[str, Session] = {}
        self.client = Child()
        self.unexpected: list[str] = []
        self.away = 0
        """Reads that fail, one after the other."""

    def spawn(self, *_: Any, name: str, bare: bool) -> Child:
        assert name.endswith("+bare") == bare
        child = Child(incarnation=len(self.spawned) + 1)
        self.spawned.append((name, child))
        return child

    def watch(self, _: Child) -> None:
        pass

    def lookup(self, name: str) -> Child | None:
        return self.client if name == "session" else None

    async def session(self, session_id: str) -> Session | None:
        if self.away:
            self.away -= 1
            raise StorageUnavailable("the database is away")
        return self.sessions.get(session_id)

    async def unexpect(self, session_id: str) -> None:
        self.unexpected.append(session_id)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.spawned]


class Scene:
    """The links of one container whose control link is open."""

    def __init__(self, *specs: OpenLink, accept_bare: bool = False) -> None:
        self.owner = Owner()
        owner: Any = self.owner
        self.memory = LinkMemory({spec.session_id: spec for spec in specs})
        self.links = SessionLinks(
            owner, owner, owner, self.memory, lambda: owner, accept_bare=accept_bare
        )

    def down(self, name: str, incarnation: int) -> Down:
        return Down(name=name, reason="failed", error="broke", incarnation=incarnation)


async def test_a_session_has_one_link_and_a_second_if_bare_clients_are_accepted() -> None:
    scene = Scene()
    await scene.links.open(LINK)
    assert scene.owner.names == ["unit/socket/gogol_x"]
    assert scene.memory.specs == {"gogol_x": LINK}
    scene = Scene(accept_bare=True)
    await scene.links.open(LINK)
    assert scene.owner.names == ["unit/socket/gogol_x", "unit/socket/gogol_x+bare"]


async def test_a_link_that_is_asked_for_again_takes_the_place_of_the_first() -> None:
    scene = Scene(accept_bare=True)
    await scene.links.open(LINK)
    again = msgspec.structs.replace(LINK, secret="t" * 32)
    await scene.links.open(again)
    assert [child.stopped for _, child in scene.owner.spawned] == [True, True, False, False]
    assert scene.memory.specs == {"gogol_x": again}


async def test_after_a_restart_the_links_of_live_sessions_are_opened_and_others_forgotten() -> None:
    ended, unknown = (msgspec.structs.replace(LINK, session_id=name) for name in ("ended", "gone"))
    scene = Scene(ended, LINK, unknown)
    scene.owner.sessions = {
        "gogol_x": SESSION,
        "ended": msgspec.structs.replace(SESSION, status="completed"),
    }
    await scene.links.recover()
    assert scene.owner.names == ["unit/socket/gogol_x"]
    assert scene.memory.specs == {"gogol_x": LINK}


async def test_a_restart_while_the_database_is_away_waits_for_it() -> None:
    scene = Scene(LINK)
    scene.owner.sessions, scene.owner.away = {"gogol_x": SESSION}, 2
    await scene.links.recover()
    assert scene.owner.names == ["unit/socket/gogol_x"]


async def test_a_closed_link_is_stopped_and_its_client_not_expected_any_more() -> None:
    scene = Scene(accept_bare=True)
    await scene.links.open(LINK)
    await scene.links.close("gogol_x")
    assert all(child.stopped for _, child in scene.owner.spawned)
    assert scene.owner.unexpected == ["gogol_x"]
    assert scene.memory.specs == {}


async def test_a_client_is_expected_further_if_its_link_was_asked_for_again_meanwhile() -> None:
    scene = Scene()
    await scene.links.open(LINK)
    closing = scene.links.close("gogol_x")
    await scene.links.open(LINK)
    await closing
    assert scene.owner.unexpected == []
    assert not scene.owner.spawned[-1][1].stopped


async def test_a_link_whose_actor_failed_is_opened_again() -> None:
    scene = Scene(accept_bare=True)
    await scene.links.open(LINK)
    scene.links.restore(scene.down("unit/socket/gogol_x+bare", 2))
    assert scene.owner.names[2:] == ["unit/socket/gogol_x+bare"]


async def test_the_end_of_an_actor_that_keeps_no_link_any_more_opens_none() -> None:
    scene = Scene()
    await scene.links.open(LINK)
    scene.links.restore(scene.down("unit/socket/gogol_x", 7))
    await scene.links.close("gogol_x")
    scene.links.restore(scene.down("unit/socket/gogol_x", 1))
    assert scene.owner.names == ["unit/socket/gogol_x"]


async def test_a_session_that_asked_is_told_of_its_client_and_no_other() -> None:
    scene = Scene(LINK)
    scene.links.tell_paired("gogol_x", bare=True)
    scene.links.tell_paired("another")
    assert scene.owner.client.told == [ClientPaired(bare=True)]
    scene.owner.client.stopped = True
    scene.links.tell_paired("gogol_x")
    assert len(scene.owner.client.told) == 1
