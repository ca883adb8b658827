"""Stages of a server's start, which build its parts and connect each to the earlier ones.

Every part is closed when the server's exit stack is unwound: in reverse order, each within a limit
of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette import ids
from oubliette.actors.container.remains import remove_orphans
from oubliette.actors.context import ActorContext
from oubliette.actors.project.spawn_answers import IDEMPOTENCY_SECONDS
from oubliette.actors.root import end_sessions, remove_containers, start_root
from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.actors.store.actor import GetStoreState, StoreActor, Transact
from oubliette.clock import SystemClock
from oubliette.control_socket import ControlSocket, listening
from oubliette.errors import Unauthenticated
from oubliette.kit import ChildSpec, Supervisor, System
from oubliette.mcp_front.actor import FrontActor, GetUrl
from oubliette.mcp_front.app import McpApp
from oubliette.mcp_front.tool_adapter import ToolAdapter
from oubliette.runtime.agents.registry import installed
from oubliette.runtime.audit_log import AuditLog
from oubliette.runtime.containers import guest_bundle, options, registry, remembered
from oubliette.runtime.containers.availability import EngineAvailability
from oubliette.runtime.containers.host_paths import runtime_base
from oubliette.runtime.containers.images import Imaging
from oubliette.runtime.containers.process.unsandboxed import stranger
from oubliette.runtime.containers.selection import choose
from oubliette.runtime.files.home import DATABASE, HomeLock, close, prepare
from oubliette.runtime.files.instance import INSTANCE, PLACE, check_place, held
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.store.opening import open_database
from oubliette.runtime.store.operations import BumpMeta, ExpireIdempotency, PutMeta
from oubliette.runtime.store.reader import Reader
from oubliette.runtime.zipapp import zipapp_path
from oubliette.start_and_stop import STAGE_SECONDS, starting, stopping
from oubliette.tools.agent_endpoint import AgentToolEndpoint
from oubliette.tools.audit import note_refused_key
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.auth.rate_limits import RateLimits
from oubliette.tools.services import ServerCapabilities, ToolServices, commits
from oubliette.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import Ref
    from oubliette.records import Token
    from oubliette.runtime.agents.registry import Installed
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec
    from oubliette.runtime.store.operations import Commit

STORE_SECONDS: Final = 2.0  # for the pending writes
FRONT_SECONDS: Final = 5.0  # for open requests of clients to be answered at a stop
STORES: Final = "stores"
_EPOCH: Final = "epoch"

log = structlog.get_logger("oubliette.server")


class Startup:
    """The parts of one server during its start; each method is a stage and builds its parts.

    Args:
        home: The server's home.
        config: Its configuration.
        stack: Closes the parts; owned by the caller.
        http: Whether clients are served over HTTP; without it only this process calls the tools.
        agents: Agents of the program that runs it, beside those that are installed.
        runtime: Its container runtime, or a spec that makes one; None: as configured.
        clock: Time of its deadlines and timers; None: the machine's.
    """

    def __init__(
        self,
        home: Path,
        config: Config,
        stack: contextlib.AsyncExitStack,
        *,
        http: bool = True,
        agents: Sequence[object] = (),
        runtime: ContainerRuntime | RuntimeSpec | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.home = home
        self.http = http
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.keep_agents = config.server.on_stop == "keep"
        """Whether agents outlive the server, as they do when it fails too."""
        self._stack = stack
        self._passed_agents = agents
        self._passed_runtime = runtime
        self._without_actors: contextlib.AsyncExitStack
        """Closed after the last actor has ended."""
        self._installed: Installed
        self._listener: socket.socket
        self._folders: Folders
        self._base: Path
        self._zipapp: Path
        self._runtime: ContainerRuntime
        self._reader: Reader
        self._store: Ref
        self._commit: Commit
        self._instance: str
        self._epoch: int
        self._audit: AuditLog
        self._sessions: SessionTable
        self.system: System
        self.keys: ApiKeys
        self.context: ActorContext
        self.services: ToolServices
        self.front: McpApp
        """Only with `http`."""
        self.url = ""

    async def find_agents(self) -> None:
        """Find the agents. It is the first stage, so an error in it leaves nothing behind."""
        async with starting("agents"):
            self._installed = await installed(self.config, self._passed_agents)

    async def take_home(self) -> None:
        """Lock the home, and listen on its control socket."""
        async with starting("home"):
            prepare(self.home)
            self._stack.enter_context(HomeLock(self.home))
            self._listener = self._stack.enter_context(listening(self.home))
            self._folders = Folders(self.home)
            await asyncio.to_thread(self._folders.prepare)

    async def choose_runtime(self) -> None:
        """Choose the container runtime; this may pull or build an image."""
        containers = self.config.containers
        fetching = containers.pull_timeout_seconds + containers.build_timeout_seconds
        async with starting("runtime", STAGE_SECONDS + fetching):
            base = self._base = runtime_base(
                containers.runtime_dir, stranger=stranger(self.config.process.sandbox)
            )
            self._stack.push_async_callback(
                stopping, "kit", lambda: asyncio.to_thread(guest_bundle.remove_unused, base)
            )
            self._zipapp = await asyncio.to_thread(zipapp_path)
            passed = self._stack.enter_context(registry.passed(self._passed_runtime))
            self._runtime = await _runtime(self.config, base, self._zipapp, self.home, passed)
            self._stack.push_async_callback(stopping, "runtime", self._runtime.aclose)

    async def open_store(self) -> None:
        """Open the database, start the actor in front of it, and count this start."""
        async with starting("store"):
            settings = self.config.store
            database = await asyncio.to_thread(
                open_database,
                settings.database,
                self.home / DATABASE,
                durability=settings.durability,
            )
            self._reader = Reader(database)
            stack = self._stack
            stack.push_async_callback(stopping, "reader", self._reader.aclose)
            self._without_actors = await stack.enter_async_context(contextlib.AsyncExitStack())
            self.system = await stack.enter_async_context(System("oubliette", clock=self.clock))
            # The store ends last: it writes what the others send at their end.
            spec = ChildSpec(name="store", cls=StoreActor, args=(database,), shutdown=STORE_SECONDS)
            self.system.spawn(Supervisor, [spec], name=STORES, shutdown=STORE_SECONDS)
            self._store = self.system.ref(f"{STORES}/store")
            self._instance, self._epoch = await _identify(
                self._store, self._reader, self._folders.home
            )
            # Held as long as an actor is left that uses resources of the instance.
            self._without_actors.enter_context(held(self._base, self._instance, self._folders.home))

    async def load_keys(self) -> None:
        """Open the audit log and load the keys."""
        settings = self.config.audit
        audit = self._audit = AuditLog(
            self.home, max_bytes=settings.max_file_mb << 20, files=settings.keep_files
        )
        self._stack.push_async_callback(
            stopping, "audit log", lambda: asyncio.to_thread(audit.close)
        )
        self._commit = commits(self._store)
        self.keys = ApiKeys(self._commit, self._reader, self.clock)
        await self.keys.load()
        self._stack.push_async_callback(stopping, "keys", self.keys.aclose)

    async def build_tools(self) -> None:
        """Build the services of the tools' handlers, and the agents' endpoint to the tools."""
        config, system = self.config, self.system
        self._sessions = SessionTable()
        sessions = SessionRegistry(self._sessions)
        calls = config.callers
        self.services = ToolServices(
            config=config,
            clock=self.clock,
            reader=self._reader,
            commit=self._commit,
            keys=self.keys,
            projects=system.ref("projects"),
            callers=system.ref("callers"),
            find_session=sessions.session,
            ask_live=sessions.ask,
            appears=sessions.appears,
            imaging=Imaging(self._runtime, config),
            audit=self._audit,
            rates=RateLimits(calls.calls_per_second, calls.calls_burst, self.clock),
            find_actor=system.lookup,
            name_actor=system.ref,
            forget_session=lambda project_id, session_id: asyncio.to_thread(
                self._folders.remove_session, project_id, session_id
            ),
            offers=self._capabilities(),
        )

    def _capabilities(self) -> ServerCapabilities:
        images = self._runtime.capabilities.images
        missing = self._installed.missing
        return ServerCapabilities(
            agents=tuple(self._installed.agents),
            missing_agents={
                name: (status.reason or "", status.remedy or "") for name, status in missing.items()
            },
            container_types=options.types_of(self.config, images=images),
            runtimes=(self._runtime.name,),
        )

    async def clear_leftovers(self) -> None:
        """Remove what a killed server left, before sessions are recovered."""
        self.context = ActorContext(
            config=self.config,
            clock=self.clock,
            home=self.home,
            instance=self._instance,
            epoch=self._epoch,
            started=self.clock.monotonic(),
            store=self._store,
            reader=self._reader,
            folders=self._folders,
            runtime=self._runtime,
            runtime_base=self._base,
            agents=MappingProxyType(self._installed.agents),
            missing_agents=MappingProxyType(self._installed.missing),
            zipapp=self._zipapp,
            keys=self.keys,
            agent_tools=AgentToolEndpoint(self.services),
            session_registry=SessionRegistry(self._sessions),
        )
        async with starting("containers"):
            clearance = await remove_orphans(
                runtime=self._runtime,
                base=self._base,
                reader=self._reader,
                store=self._store,
                instance=self._instance,
                folders=self._folders,
            )
            self._stack.push_async_callback(stopping, "leftovers", clearance.aclose)

    async def bind_front(self) -> None:
        """Bind the HTTP address; requests wait until the front is started."""
        if not self.http:
            return
        async with starting("front"):
            availability = EngineAvailability(self._runtime)
            self._stack.push_async_callback(stopping, "presence", availability.aclose)
            self.front = _front(self.config, self.services, self.system, self._store, availability)
            self.front.bind()

    async def start_actors(self) -> None:
        """Start the domain actors, which recover the live sessions."""
        async with starting("sessions"):
            start_root(self.system, self.context, self._sessions)
        # Runs after the last actor that could start another one.
        self._without_actors.push_async_callback(self._unless_kept, remove_containers)
        self._stack.push_async_callback(self._unless_kept, end_sessions)

    async def _unless_kept(self, end: Callable[[ActorContext], Awaitable[None]]) -> None:
        if not self.keep_agents:
            await end(self.context)

    async def serve(self) -> None:
        """Serve HTTP, if it is wanted, and the control socket."""
        if self.http:
            self.services.listen = self.front.listening
            front = self.system.spawn(FrontActor, self.front, name="front")
            self.url = await front.ask(GetUrl())
            self._stack.push_async_callback(self.system.ref("front").stop, FRONT_SECONDS)
        status = {"pid": os.getpid(), "url": self.url, "version": __version__}
        control = ControlSocket(self.services, self.home, status, self._listener)
        await control.start()
        self._stack.push_async_callback(stopping, "control socket", control.aclose)

    async def run(self) -> None:
        """Run all stages, in order."""
        for stage in (
            self.find_agents,
            self.take_home,
            self.choose_runtime,
            self.open_store,
            self.load_keys,
            self.build_tools,
            self.clear_leftovers,
            self.bind_front,
            self.start_actors,
            self.serve,
        ):
            await stage()


async def _runtime(
    config: Config, base: Path, zipapp: Path, home: Path, passed: RuntimeSpec | None
) -> ContainerRuntime:
    runtime, why = await choose(config, base, zipapp, home, passed)
    try:
        if passed is None:
            remembered.check(home, runtime.name, config, why)
        await asyncio.to_thread(remembered.remember, home, runtime.name, config)
    except BaseException:
        await runtime.aclose()
        raise
    log.info("container runtime chosen", runtime=runtime.name, why=why)
    if runtime.capabilities.isolation == "none":
        log.warning(
            "NO ISOLATION: agents run as plain child processes of this user",
            setting="process.sandbox = best-effort",
        )
    else:
        await asyncio.to_thread(close, home)
    return runtime


async def _identify(store: Any, reader: Reader, home: Path) -> tuple[str, int]:
    """Return the instance's id, which is made once, and the number of this start.

    Raises:
        HomeInUse: the home is a copy of an existing one.
    """
    instance = await reader.meta(INSTANCE)
    ops: list[Any] = [BumpMeta(_EPOCH), ExpireIdempotency(time.time() - IDEMPOTENCY_SECONDS)]
    if instance is None:
        instance = ids.new_id(ids.INSTANCE)
        ops.append(PutMeta(INSTANCE, instance))
    place = await reader.meta(PLACE)
    await asyncio.to_thread(check_place, place, instance, home)
    if place != str(home):
        ops.append(PutMeta(PLACE, str(home)))
    answers = await store.ask(Transact(ops=tuple(ops)))
    return instance, int(answers[0])


def _front(
    config: Config, services: ToolServices, system: System, store: Any, presence: EngineAvailability
) -> McpApp:
    async def verify(key: str) -> Token:
        try:
            return services.keys.verify(key, "http")
        except Unauthenticated:
            if (known := services.keys.known(key)) is not None:
                note_refused_key(services, known, "http")
            raise

    async def ready() -> list[str]:
        state = await store.ask(GetStoreState(), timeout=2.0)
        stored = None if state.state == "running" else f"the store is {state.state}: {state.reason}"
        return [each for each in (stored, await presence.problem()) if each is not None]

    return McpApp(
        config=config,
        tools=ToolAdapter(services),
        verify=verify,
        ready=ready,
        callers=system.ref("callers"),
        find=system.ref,
        rates=services.rates,
    )
