"""What the tests of actors share: a fake engine, a recorder, and a world over a real store."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oubliette import ids
from oubliette.actors.container.guest_connection import (
    ContainerRefs,
    GetGuestConnection,
    GuestConnection,
    GuestConnectionState,
)
from oubliette.actors.container.messages import ForgetProcess
from oubliette.actors.context import ActorContext
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallsActor, OpenCallTable
from oubliette.actors.session_registry import (
    REGISTRY,
    SessionRegistry,
    SessionRegistryActor,
    SessionTable,
)
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.config.schema import Config
from oubliette.errors import NotFound, RuntimeFailure, StorageUnavailable
from oubliette.kit import Actor, Down, System, handles
from oubliette.records import Project, Session, Turn, Workspace
from oubliette.runtime.agents.scripted.adapter import ScriptedRuntime
from oubliette.runtime.containers.base import Capabilities, ContainerInfo, ImageInfo
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.store import queries
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.operations import PutProject, PutSession, PutTurn, PutWorkspace
from oubliette.runtime.store.reader import Reader
from oubliette.testing.clock import VirtualClock
from tests.unit.actors.fake_guest import FakeGuest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from oubliette.kit import Message, Ref
    from oubliette.runtime.containers.base import ContainerSpec, Dial

READERS = 2
SECONDS = 20.0
"""For one test, which takes milliseconds."""
CAPABILITIES = Capabilities(
    survives_server=True,
    sockets_cross=True,
    network_none=True,
    network_host=True,
    images=False,
    uid_per_container=False,
    isolation="container",
)


class FakeRuntime:
    """An engine whose containers run until they are stopped, removed or made to end."""

    name = "process"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Future[ContainerInfo]] = {}
        self.guests: dict[str, FakeGuest] = {}
        """Container id → who plays its guest."""
        self.calls: list[str] = []
        self.failing: set[str] = set()
        """Calls that fail, and ids of containers of which nothing is told."""

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise RuntimeFailure(f"{call} failed", hint="mend it")

    def info(self, container_id: str, **fields: Any) -> ContainerInfo:
        runtime_dir = Path("/nowhere")
        made = {"state": "running", "labels": {}, "runtime_dir": runtime_dir, **fields}
        return ContainerInfo(id=container_id, **made)

    async def create(self, spec: ContainerSpec) -> ContainerInfo:
        self._note("create")
        return self.info(spec.id, state="created")

    async def start(self, container_id: str, *, key: bytes, timeout: float) -> ContainerInfo:
        del timeout
        assert len(key) == 32
        self._note("start")
        self.running[container_id] = asyncio.get_running_loop().create_future()
        self.guests[container_id] = FakeGuest(key)
        return self.info(container_id, handle={"pid": 7})

    async def inspect(self, container_id: str) -> ContainerInfo:
        self._note("inspect")
        if container_id in self.failing:
            raise RuntimeFailure(f"inspect of {container_id} failed")
        if container_id not in self.running:
            raise NotFound(container_id)
        return self.info(container_id)

    async def commit(
        self, container_id: str, image: str, *, labels: dict[str, str], timeout: float
    ) -> ImageInfo:
        del labels, timeout
        self._note("commit")
        self.calls[-1] = f"commit {container_id} {image}"
        return ImageInfo(id="sha256:1")

    def dial(self, info: ContainerInfo) -> Dial:
        return self.guests[info.id].dial

    async def watch(self, container_id: str) -> ContainerInfo:
        return await asyncio.shield(self.running[container_id])

    def end(self, container_id: str, exit_code: int = 1) -> None:
        ended = self.running.pop(container_id, None)
        if ended is not None and not ended.done():
            ended.set_result(self.info(container_id, state="exited", exit_code=exit_code))

    async def stop(self, container_id: str, *, timeout: float) -> ContainerInfo:
        del timeout
        self._note("stop")
        self.end(container_id, 0)
        return self.info(container_id, state="exited")

    async def remove(self, container_id: str) -> None:
        self._note("remove")
        self.end(container_id, 137)

    @property
    def guest(self) -> FakeGuest:
        """The guest of the only container that runs."""
        (container_id,) = self.running
        return self.guests[container_id]

    async def aclose(self) -> None:
        for guest in self.guests.values():
            await guest.aclose()


class Recorder(Actor):
    """Stands for any actor: notes what it is told, and answers each ask with `answer`."""

    def __init__(self, seen: list[Any], answer: Any = None) -> None:
        super().__init__()
        self._seen = seen
        self._answer = answer

    def on_unhandled(self, message: Message) -> Any:
        self._seen.append(message)
        return self._answer


class FakeSocket(Actor):
    """Takes the place of a SocketActor whose link the test opens; notes what else it is told."""

    def __init__(self, guest: GuestConnectionState, seen: list[Any]) -> None:
        super().__init__()
        self._guest = guest
        self._seen = seen

    @handles(GetGuestConnection)
    def _get(self, _: GetGuestConnection) -> GuestConnection:
        return GuestConnection(self._guest)

    @handles(ForgetProcess)
    async def _forget(self, message: ForgetProcess) -> None:
        if self._guest.link is not None:
            await self._guest.link.end(message.process_id)

    def on_unhandled(self, message: Message) -> None:
        self._seen.append(message)


class Watcher(Actor):
    """Notes how another actor ends."""

    def __init__(self, seen: list[Any], other: Ref) -> None:
        super().__init__()
        self._seen = seen
        self._other = other

    def on_start(self) -> None:
        self.watch(self._other)

    @handles(Down)
    def _down(self, message: Down) -> None:
        self._seen.append(message)


class ReaderOfADatabaseThatIsAway:
    """Reads fail so many times, and then are those of a reader; `wait` is awaited before."""

    def __init__(
        self, reader: Reader, fails: int, wait: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self.reader = reader
        self.fails = fails
        self.failed = 0
        self._wait = wait

    async def run(self, query: Any, *arguments: Any, **named: Any) -> Any:
        if self.fails:
            self.fails -= 1
            if self._wait is not None:
                await self._wait()
            self.failed += 1
            raise StorageUnavailable("the database is away")
        return await self.reader.run(query, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if hasattr(queries, name):  # a method that runs a query: here, and so it may fail
            return functools.partial(getattr(type(self.reader), name), self)
        return getattr(self.reader, name)


class World:
    """All that actors need around them: a store in memory, an engine, a clock that stands still."""

    def __init__(
        self, system: System, clock: VirtualClock, store: Ref, reader: Reader, home: Path
    ) -> None:
        self.system, self.clock, self.store, self.reader = system, clock, store, reader
        self.runtime = FakeRuntime()
        self.sessions = SessionTable()
        self.config = Config()
        self.folders = Folders(home)
        self.folders.prepare()
        zipapp = home / "oubliette.pyz"
        zipapp.write_bytes(b"zip")
        self.context = ActorContext(
            config=self.config,
            clock=clock,
            home=home,
            instance="inst_x",
            epoch=1,
            store=store,
            reader=reader,
            folders=self.folders,
            runtime=cast("Any", self.runtime),
            agents={"scripted": cast("Any", ScriptedRuntime())},
            missing_agents={},
            zipapp=zipapp,
            runtime_base=home,
            session_registry=SessionRegistry(self.sessions),
        )
        system.spawn(SessionRegistryActor, self.sessions, name=REGISTRY)
        self.open_calls = OpenCallTable()
        limit = self.config.callers.max_pending_requests
        system.spawn(OpenCallsActor, limit, self.open_calls, name=OPEN_CALLS)

    def configure(self, config: Config) -> None:
        """Give the actors that are built from here on this configuration."""
        self.context = dataclasses.replace(self.context, config=config)

    def database_away(self, fails: int, seconds: float = 0.0) -> ReaderOfADatabaseThatIsAway:
        """Let so many reads of the actors that are built from here on fail, after these seconds."""

        async def wait() -> None:
            over = asyncio.Event()
            self.clock.call_later(seconds, over.set)
            await over.wait()

        away = ReaderOfADatabaseThatIsAway(self.reader, fails, wait if seconds else None)
        self.context = dataclasses.replace(self.context, reader=cast("Any", away))
        return away

    async def limit_calls(self, limit: int) -> None:
        """Give the owner of the open calls a successor with this limit."""
        await self.system.ref(OPEN_CALLS).stop()
        self.system.spawn(OpenCallsActor, limit, self.open_calls, name=OPEN_CALLS)

    # ------------------------------------------------------------ what there is
    async def put(self, *ops: Any) -> None:
        await self.store.ask(Transact(ops=ops))

    async def project(self, **fields: Any) -> Project:
        """A project in the store, with its default workspace and its folders."""
        project = Project(
            **{
                "id": ids.new_id(ids.PROJECT),
                "name": "p",
                "created_at": self.clock.time(),
                "default_workspace_id": ids.new_uuid(),
                "uid": os.geteuid() or 200_000,
                **fields,
            }
        )
        await self.put(PutProject(project))
        await self.workspace(project, id=project.default_workspace_id, is_default=True)
        return project

    async def workspace(self, project: Project, **fields: Any) -> Workspace:
        made = {"id": ids.new_uuid(), "created_at": self.clock.time(), **fields}
        workspace = Workspace(project_id=project.id, **made)
        await self.put(PutWorkspace(workspace))
        await asyncio.to_thread(self.folders.create_project, project)
        await asyncio.to_thread(self.folders.create_workspace, project, workspace.id)
        return workspace

    async def session(
        self, project: Project, *, prompts: tuple[str, ...] = ("hello",), **fields: Any
    ) -> Session:
        """A session in the store, as its project leaves it there: its turns are queued."""
        session_id, now = ids.new_id(ids.SESSION), self.clock.time()
        session = Session(
            **{
                "id": session_id,
                "project_id": project.id,
                "workspace_id": project.default_workspace_id,
                "principal": "alice",
                "agent": "scripted",
                "status": "created",
                "created_at": now,
                "updated_at": now,
                "exploration_id": ids.new_id(ids.EXPLORATION),
                "root_session_id": session_id,
                "pairing_secret": "s" * 32,
                "turn_count": len(prompts),
                **fields,
            }
        )
        turns = [
            Turn(
                session_id=session_id, number=number, prompt=prompt, state="queued", created_at=now
            )
            for number, prompt in enumerate(prompts, 1)
        ]
        await self.put(PutSession(session), *map(PutTurn, turns))
        return session

    async def stored(self, session: Session) -> Session:
        """The record as the store has it now."""
        found = await self.reader.session(session.id)
        assert found is not None
        return found

    # ------------------------------------------------------------ who there is
    def record(self, name: str, answer: Any = None) -> list[Any]:
        """Put a recorder in the place of the actor `name`; what it is told."""
        seen: list[Any] = []
        self.system.spawn(Recorder, seen, answer, name=name)
        return seen

    def unit(self, guest: GuestConnectionState, seen: list[Any] | None = None) -> ContainerRefs:
        """The refs of a container's actors, of which the one called `socket` is played.

        What it is told goes to `seen`.
        """
        self.system.spawn(FakeSocket, guest, [] if seen is None else seen, name="socket")
        return ContainerRefs(
            socket=self.system.ref("socket"), container=self.system.ref("container")
        )

    def open_guest(self, guest: GuestConnectionState) -> FakeGuest:
        """A container runs, and the SocketActor of `guest` has yet to hear of it."""
        container_id = ids.new_id(ids.CONTAINER)
        self.runtime.running[container_id] = asyncio.get_running_loop().create_future()
        self.runtime.guests[container_id] = played = FakeGuest(b"k" * 32)
        guest.info = self.runtime.info(container_id)
        return played

    # ------------------------------------------------------------ what happens
    async def until(self, condition: Callable[[], Any], seconds: float = 0.0) -> None:
        """Let everything happen, in threads and over sockets too, until `condition` holds.

        The clock moves by `seconds` in each round; the fixture's deadline ends a wait in vain.
        """
        while not condition():
            await asyncio.to_thread(lambda: None)
            await self.clock.elapse(seconds)

    async def settle(self, seconds: float = 0.0) -> None:
        """Let everything happen that can, then move the clock, then again."""
        for pause in (0.0, seconds):
            await self.clock.elapse(pause)
            for _ in range(10):
                await asyncio.to_thread(lambda: None)
                await self._read_all()
                await self.clock.elapse(0.0)

    async def _read_all(self) -> None:
        """Wait for the reads that are under way: on a busy machine they outlast many rounds."""
        met = threading.Barrier(READERS)  # a thread comes to it with what it was given before
        threads = self.reader._threads
        await asyncio.gather(*(threads.run(lambda: met.wait(SECONDS)) for _ in range(READERS)))


@contextlib.asynccontextmanager
async def world(home: Path) -> AsyncIterator[World]:
    clock, database = VirtualClock(), Database()
    reader = Reader(database, threads=READERS)
    made: World | None = None
    try:
        async with System("test", clock, roundtrip_messages=True, watchdog=None) as system:
            store = system.spawn(StoreActor, database, name="store")
            made = World(system, clock, store, reader, home)
            try:
                async with asyncio.timeout(SECONDS):
                    yield made
            finally:
                ending = asyncio.ensure_future(system.stop())
                while not ending.done():  # what does not end is cancelled when its time is over
                    await asyncio.to_thread(lambda: None)
                    await clock.elapse(1.0)
                await ending
    finally:
        try:
            if made is not None:
                await made.runtime.aclose()
        finally:
            await reader.aclose()
            database.close()
