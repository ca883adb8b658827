"""The actor of one container over a fake engine: starts, leases, losses, adoption."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from oubliette.actors.container.actor import ContainerActor
from oubliette.actors.container.guest_connection import GuestConnection, GuestConnectionState
from oubliette.actors.container.lease_memory import LeaseMemory
from oubliette.actors.container.messages import (
    Acquire,
    ContainerIsLost,
    ContainerIsUp,
    ContainerKey,
    GetContainer,
    GetMemoryRoom,
    GuestConnected,
    GuestGone,
    Release,
    StopContainer,
    StoreImage,
    UseProject,
)
from oubliette.actors.context import ActorContext
from oubliette.actors.session.messages import OpenLink
from oubliette.actors.session.waits import GetStart
from oubliette.actors.store.actor import Transact
from oubliette.config.schema import Config
from oubliette.errors import Conflict, ContainerLost, NotFound, RuntimeFailure, StorageUnavailable
from oubliette.kit import Actor, System, handles
from oubliette.records import Container, Project, Session
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.store.operations import DeleteContainer, PutContainer
from oubliette.testing.clock import VirtualClock
from tests.unit.actors.fakes import FakeRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

PROJECT = Project(id="proj_x", name="x", created_at=0.0, default_workspace_id="ws_x", uid=200_000)
SESSION = Session(
    id="gogol_x", project_id="proj_x", workspace_id="ws_x", principal="p", agent="scripted",
    status="running", created_at=0.0, updated_at=0.0, exploration_id="gogol_x",
)  # fmt: skip


class FakeStore(Actor):
    """Keeps the containers that it is told of, unless it is away."""

    def __init__(self, rows: dict[str, Container], fails: list[str]) -> None:
        super().__init__()
        self._rows = rows
        self._fails = fails

    @handles(Transact)
    def _transact(self, message: Transact) -> Any:
        if self._fails:
            raise StorageUnavailable(self._fails.pop())
        for op in message.ops:
            if isinstance(op, PutContainer):
                self._rows[op.record.id] = op.record
            elif isinstance(op, DeleteContainer):
                self._rows.pop(op.id, None)
        return (None,) * len(message.ops)


class FakeReader:
    """What the store has at a start."""

    def __init__(self, rows: dict[str, Container]) -> None:
        self.rows = rows
        self.sessions: list[Session] = []

    async def containers(self, project: str) -> list[Container]:
        return [each for each in self.rows.values() if each.project_id == project]

    async def live_sessions(self, _project: str, *, workspace_id: str | None) -> list[Session]:
        del workspace_id
        return self.sessions


class FakeSocket(Actor):
    """Takes the place of the SocketActor: notes what it is told to connect to."""

    def __init__(self, seen: list[str], guest: GuestConnectionState) -> None:
        super().__init__()
        self._seen = seen
        self._guest = guest

    @handles(ContainerIsUp)
    def _up(self, message: ContainerIsUp) -> None:
        self._seen.append(message.container_id)
        self._guest.started(message.info)

    @handles(ContainerIsLost)
    def _lost(self, message: ContainerIsLost) -> None:
        self._guest.lost(message.reason)

    @handles(OpenLink)
    def _open(self, _: OpenLink) -> None:
        """Nothing connects here."""


class Scene:
    """One ContainerActor with all that it talks to."""

    def __init__(self, system: System, clock: VirtualClock, home: Path) -> None:
        self.system, self.clock = system, clock
        self.rows: dict[str, Container] = {}
        self.store_fails: list[str] = []
        """Errors that the store answers next."""
        self._proved = 0
        self.runtime = FakeRuntime()
        self.reader = FakeReader(self.rows)
        self.connected: list[str] = []
        zipapp = home / "oubliette.pyz"
        zipapp.write_bytes(b"zip")
        self.config = Config()
        self.context = ActorContext(
            config=self.config,
            clock=clock,
            home=home,
            instance="inst_x",
            epoch=1,
            store=system.spawn(FakeStore, self.rows, self.store_fails, name="store"),
            reader=cast("Any", self.reader),
            folders=Folders(home),
            runtime=cast("Any", self.runtime),
            agents={},
            missing_agents={},
            zipapp=zipapp,
            runtime_base=home,
        )
        self.guest = GuestConnectionState()
        self.memory = LeaseMemory()
        system.spawn(FakeSocket, self.connected, self.guest, name="unit/socket")
        self.ref = system.ref("unit/container")

    def begin(self) -> None:
        """Start the actor, over what the store and the engine have."""
        key = ContainerKey("base")
        self.system.spawn(
            ContainerActor,
            self.context,
            GuestConnection(self.guest),
            self.system.ref("unit/socket"),
            self.memory,
            project=PROJECT,
            key=key,
            name="unit/container",
        )

    async def settle(self, seconds: float = 0.0) -> None:
        """Let everything happen that can, threads included."""
        for _ in range(10):
            await asyncio.to_thread(lambda: None)
            await self.clock.elapse(0.0)
        if seconds:
            await self.clock.elapse(seconds)
            await self.settle()

    def acquire(self, session_id: str = "gogol_x") -> asyncio.Task[Any]:
        """Ask for the container on behalf of a session."""
        asked = self.ref.ask(Acquire(session_id=session_id), timeout=1e6)
        return asyncio.ensure_future(asked)

    async def prove(self) -> None:
        """The guest of a container that is new has proved itself: its control link is opened."""
        while len(self.connected) == self._proved:
            await self.settle()
        self._proved = len(self.connected)
        assert self.guest.info is not None
        self.guest.opened(cast("Any", object()), self.guest.info)
        self.ref.tell(GuestConnected(container_id=self.guest.info.id))

    async def up(self) -> str:
        """Start it for a session; its id."""
        self.begin()
        asked = self.acquire()
        await self.settle()
        await self.prove()
        return await asked


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = VirtualClock()
    # One thread, so that `settle` returns after all that was given to a thread before.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with System("test", clock, roundtrip_messages=True, watchdog=None) as system:
        async with asyncio.timeout(20):
            yield Scene(system, clock, tmp_path)


async def test_nothing_is_started_before_somebody_asks(scene: Scene) -> None:
    scene.begin()
    await scene.settle()
    assert scene.runtime.calls == []
    assert await scene.ref.ask(GetContainer()) is None


async def test_who_asks_is_answered_when_the_guest_has_proved_itself(scene: Scene) -> None:
    scene.begin()
    asked = scene.acquire()
    await scene.settle()
    assert not asked.done()
    (row,) = scene.rows.values()
    assert (row.state, row.handle) == ("running", {"pid": 7})
    assert scene.connected == [row.id]
    progress = await scene.ref.ask(GetStart())
    assert progress is not None
    await scene.prove()
    assert await asked == row.id
    assert await scene.ref.ask(GetStart()) is None
    assert await scene.acquire("gogol_y") == row.id, "another session shares it"
    assert scene.runtime.calls == ["create", "start"]


@pytest.mark.parametrize("step", ["create", "start"])
async def test_a_start_that_fails_is_told_and_leaves_nothing(scene: Scene, step: str) -> None:
    scene.runtime.failing.add(step)
    scene.begin()
    asked = scene.acquire()
    await scene.settle()
    with pytest.raises(RuntimeFailure, match=f"{step} failed"):
        await asked
    assert scene.runtime.calls[-1] == "remove"
    assert scene.rows == {}
    scene.runtime.failing.clear()
    again = scene.acquire()
    await scene.settle()
    await scene.prove()
    assert await again in scene.rows


async def test_a_start_waits_for_a_database_that_is_away(scene: Scene) -> None:
    scene.store_fails += ["nothing can be stored: it is away"] * 3
    scene.begin()
    asked = scene.acquire()
    while not scene.connected:
        await scene.settle()
    await scene.prove()
    assert await asked in scene.rows


async def test_a_container_that_nobody_holds_is_stopped_after_a_while(scene: Scene) -> None:
    await scene.up()
    idle = scene.config.containers.idle_stop_seconds
    scene.ref.tell(Release(session_id="gogol_x"))
    await scene.settle(idle - 1)
    assert "stop" not in scene.runtime.calls
    await scene.settle(2)
    assert scene.runtime.calls[-2:] == ["stop", "remove"]
    assert scene.rows == {}
    assert scene.guest.why_lost is not None


async def test_a_new_lease_in_time_keeps_it(scene: Scene) -> None:
    running = await scene.up()
    idle = scene.config.containers.idle_stop_seconds
    scene.ref.tell(Release(session_id="gogol_x"))
    await scene.settle(idle - 1)
    assert await scene.acquire("gogol_y") == running
    await scene.settle(idle)
    assert "stop" not in scene.runtime.calls


async def test_what_is_held_is_stopped_by_force_only(scene: Scene) -> None:
    await scene.up()
    with pytest.raises(Conflict, match="1 sessions"):
        await scene.ref.ask(StopContainer())
    stopping = asyncio.ensure_future(scene.ref.ask(StopContainer(force=True)))
    await scene.settle()
    await stopping
    assert scene.guest.why_lost is not None
    assert scene.rows == {}


async def test_a_stop_that_fails_leaves_it_in_use_and_is_told(scene: Scene) -> None:
    running = await scene.up()
    scene.runtime.failing.add("stop")
    stopping = asyncio.ensure_future(scene.ref.ask(StopContainer(force=True)))
    await scene.settle()
    with pytest.raises(RuntimeFailure, match="stop failed"):
        await stopping
    assert await scene.acquire("gogol_y") == running


async def test_one_that_ends_is_lost_and_the_next_session_gets_another(scene: Scene) -> None:
    first = await scene.up()
    scene.runtime.end(first, exit_code=137)
    await scene.settle()
    assert scene.guest.why_lost == "container lost: it ended (exit code 137)"
    assert first not in scene.rows
    asked = scene.acquire("gogol_y")
    await scene.settle()
    await scene.prove()
    assert await asked not in {first, None}


async def test_a_container_is_stored_while_it_is_up_and_not_otherwise(scene: Scene) -> None:
    store = StoreImage(image="localhost/shop:1", labels={"a": "b"}, timeout=5.0)
    scene.begin()
    with pytest.raises(NotFound, match="no container runs"):
        await scene.ref.ask(store)
    asked = scene.acquire()
    await scene.settle()
    await scene.prove()
    running = await asked
    assert (await scene.ref.ask(store)).id == "sha256:1"
    assert scene.runtime.calls[-1] == f"commit {running} localhost/shop:1"
    scene.runtime.failing.add("commit")
    with pytest.raises(RuntimeFailure, match="commit failed"):
        await scene.ref.ask(store)


async def test_one_whose_project_changes_is_replaced_when_nobody_holds_it(scene: Scene) -> None:
    running = await scene.up()
    scene.ref.tell(UseProject(project=msgspec.structs.replace(PROJECT, accept_bare=True)))
    await scene.settle()
    assert running in scene.rows
    scene.ref.tell(Release(session_id="gogol_x"))
    await scene.settle()
    assert running not in scene.rows


async def test_one_that_ends_before_its_guest_is_there_fails_who_waits(scene: Scene) -> None:
    scene.begin()
    asked = scene.acquire()
    await scene.settle()
    (row,) = scene.rows.values()
    scene.runtime.end(row.id)
    await scene.settle()
    with pytest.raises(RuntimeFailure, match="it ended"):
        await asked


async def test_a_guest_that_is_gone_while_the_engine_sees_it_run_is_given_up_the_third_time(
    scene: Scene,
) -> None:
    running = await scene.up()
    for _ in range(2):
        scene.ref.tell(GuestGone(container_id=running, reason="no answer"))
        await scene.settle()
        assert scene.guest.why_lost is None
    scene.ref.tell(GuestGone(container_id=running, reason="no answer"))
    await scene.settle()
    assert scene.guest.why_lost is not None
    assert scene.guest.why_lost is not None
    assert "no answer" in scene.guest.why_lost


async def store_of_an_earlier_server(scene: Scene, **changes: Any) -> str:
    """What a server leaves behind that was killed while a session ran; the container's id."""
    running = await scene.up()
    await scene.ref.kill()
    scene.rows[running] = msgspec.structs.replace(scene.rows[running], **changes)
    scene.reader.sessions = [msgspec.structs.replace(SESSION, container_id=running)]
    scene.memory.leases.clear()
    scene.guest.closed()
    scene.runtime.calls.clear()
    return running


async def test_the_container_of_an_earlier_server_is_adopted_with_its_leases(scene: Scene) -> None:
    running = await store_of_an_earlier_server(scene)
    scene.begin()
    assert await scene.acquire("gogol_y") == running
    assert scene.memory.leases == {"gogol_x", "gogol_y"}
    assert scene.runtime.calls == ["inspect"]


async def test_one_whose_start_was_cut_off_is_removed(scene: Scene) -> None:
    cut = await store_of_an_earlier_server(scene, state="creating")
    scene.begin()
    await scene.settle()
    assert scene.runtime.calls == ["inspect", "remove"]
    assert cut not in scene.rows
    assert scene.guest.why_lost is not None


async def test_one_of_other_settings_is_kept_for_those_in_it_and_then_replaced(
    scene: Scene,
) -> None:
    old = await store_of_an_earlier_server(scene, spec_hash="another")
    scene.begin()
    await scene.settle()
    assert scene.memory.leases == {"gogol_x"}
    assert old in scene.runtime.running
    scene.ref.tell(Release(session_id="gogol_x"))
    await scene.settle()
    assert scene.runtime.calls[-2:] == ["stop", "remove"], "at once: nobody waits for it to idle"


async def test_an_engine_that_tells_of_one_of_two_is_asked_again_for_both(scene: Scene) -> None:
    running = await store_of_an_earlier_server(scene)
    other = msgspec.structs.replace(scene.rows[running], id="cont_other")
    scene.rows[other.id] = other
    scene.runtime.failing.add(other.id)
    scene.begin()
    asked = scene.acquire("gogol_y")
    await scene.settle()
    assert not asked.done()
    scene.runtime.failing.clear()
    await scene.settle(1.0)
    assert await asked == running
    assert list(scene.rows) == [running]
    assert scene.runtime.calls == ["inspect"] * 4


async def test_an_engine_that_tells_nothing_is_asked_again_and_who_waits_waits(
    scene: Scene,
) -> None:
    running = await store_of_an_earlier_server(scene)
    scene.runtime.failing.add("inspect")
    scene.begin()
    asked = scene.acquire("gogol_y")
    await scene.settle(1)
    progress = await scene.ref.ask(GetStart())
    assert progress is not None
    assert "to tell which containers there are" in progress.what
    assert not asked.done()
    scene.runtime.failing.clear()
    await scene.settle(11)
    assert await asked == running


async def test_what_cannot_be_removed_is_tried_again(scene: Scene) -> None:
    first = await scene.up()
    scene.runtime.failing.add("remove")
    scene.runtime.end(first)
    await scene.settle()
    assert first in scene.rows
    scene.runtime.failing.clear()
    await scene.settle(11)
    assert first not in scene.rows


async def test_who_waits_when_the_actor_ends_is_told(scene: Scene) -> None:
    scene.begin()
    asked = scene.acquire()
    await scene.settle()
    await scene.ref.stop()
    with pytest.raises(ContainerLost, match="actor ended"):
        await asked


async def test_its_successor_keeps_the_leases_of_live_sessions_and_no_others(scene: Scene) -> None:
    running = await scene.up()
    await scene.acquire("gogol_ended")
    await scene.acquire("exec:1")
    scene.reader.sessions = [msgspec.structs.replace(SESSION, status="created")]
    await scene.ref.kill()
    scene.begin()
    assert await scene.acquire("gogol_x") == running
    assert scene.memory.leases == {"gogol_x"}
    with pytest.raises(Conflict, match="1 sessions"):
        await scene.ref.ask(StopContainer())


async def test_a_lease_of_an_agent_that_is_being_ended_does_not_hold_it(scene: Scene) -> None:
    await scene.up()
    scene.ref.tell(Release(session_id="gogol_x", ending=True))
    await scene.settle(scene.config.containers.idle_stop_seconds + 1)
    assert "stop" not in scene.runtime.calls, "its agent is still there"
    stopping = asyncio.ensure_future(scene.ref.ask(StopContainer()))
    await scene.settle()
    await stopping
    assert scene.rows == {}


async def test_an_agent_waits_until_another_has_given_its_memory_back(scene: Scene) -> None:
    scene.memory = LeaseMemory(1000)
    running = await scene.up()
    scene.ref.tell(Acquire(session_id="gogol_x", start=False, memory_mb=600))
    waits = asyncio.ensure_future(
        scene.ref.ask(Acquire(session_id="gogol_y", memory_mb=600), timeout=1e6)
    )
    await scene.settle()
    assert not waits.done()
    progress = await scene.ref.ask(GetStart(session_id="gogol_y"))
    assert progress is not None
    assert (progress.kind, progress.what.split(",")[0]) == ("place", "memory in its container")
    assert await scene.ref.ask(GetStart(session_id="gogol_x")) is None
    assert await scene.ref.ask(GetMemoryRoom(memory_mb=200)) == 2
    scene.ref.tell(Release(session_id="gogol_x"))
    assert await waits == running
    assert await scene.ref.ask(GetStart(session_id="gogol_y")) is None


async def test_an_agent_whose_session_ends_while_it_waits_for_memory_takes_none(
    scene: Scene,
) -> None:
    scene.memory = LeaseMemory(1000)
    await scene.up()
    scene.ref.tell(Acquire(session_id="gogol_x", start=False, memory_mb=600))
    waits = asyncio.ensure_future(scene.ref.ask(Acquire(session_id="gogol_y", memory_mb=600)))
    await scene.settle()
    scene.ref.tell(Release(session_id="gogol_y", ending=True))
    with pytest.raises(ContainerLost):
        await waits
    scene.ref.tell(Release(session_id="gogol_x"))
    await scene.settle()
    assert await scene.ref.ask(GetMemoryRoom(memory_mb=500)) == 2


async def test_a_link_that_is_away_is_what_a_session_that_has_not_reached_its_agent_waits_for(
    scene: Scene,
) -> None:
    await scene.up()
    scene.guest.closed()
    assert await scene.ref.ask(GetStart()) is None
    progress = await scene.ref.ask(GetStart(session_id="gogol_x"))
    assert progress is not None
    assert progress.what == "the link into its container"
