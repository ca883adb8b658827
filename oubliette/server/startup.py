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
from typing import TYPE_CHECKING, Final

import structlog

from oubliette import ids
from oubliette.actors.callers_served import CallersServed
from oubliette.actors.container.remains import remove_orphans
from oubliette.actors.context import ActorContext
from oubliette.actors.instance_start import identify
from oubliette.actors.root import end_sessions, remove_containers, start_root
from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.actors.snapshot_requests import SNAPSHOTS, ForgetSessionFiles
from oubliette.actors.store.actor import StoreActor
from oubliette.clock import SystemClock
from oubliette.kit import ChildSpec, Supervisor, System
from oubliette.mcp_front.actor import FrontActor, GetUrl, front_of
from oubliette.node.server_node import ServerNode
from oubliette.runtime.agents import loopback_ports
from oubliette.runtime.agents.registry import installed
from oubliette.runtime.audit_log import AuditLog
from oubliette.runtime.containers import guest_bundle, options, registry
from oubliette.runtime.containers.availability import EngineAvailability
from oubliette.runtime.containers.host_paths import runtime_base
from oubliette.runtime.containers.images import Imaging
from oubliette.runtime.containers.process.unsandboxed import stranger
from oubliette.runtime.containers.server_runtime import open_runtime
from oubliette.runtime.files import project_users
from oubliette.runtime.files.home import DATABASE, close, prepare
from oubliette.runtime.files.instance import held
from oubliette.runtime.files.leftovers import Clearance
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.start_and_stop import STAGE_SECONDS, starting, stopping
from oubliette.runtime.store.opening import open_database
from oubliette.runtime.store.reader import Reader
from oubliette.runtime.zipapp import zipapp_path
from oubliette.server.control_socket import ControlSocket, listening, locked
from oubliette.tools.agent_endpoint import AgentToolEndpoint
from oubliette.tools.attached_commands import AttachedCommands
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.auth.rate_limits import RateLimits
from oubliette.tools.services import ServerCapabilities, ToolServices, commits
from oubliette.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from oubliette.actors.claims import Claims
    from oubliette.actors.shares import Shares
    from oubliette.clock import Clock
    from oubliette.config.schema import Config
    from oubliette.kit import Ref
    from oubliette.mcp_front.app import McpApp
    from oubliette.node.spec import NodeSpec
    from oubliette.runtime.agents.registry import Installed
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec
    from oubliette.runtime.store.database import Database
    from oubliette.runtime.store.operations import Commit
    from oubliette.runtime.store.postgres.database import PostgresDatabase

STORE_SECONDS: Final = 2.0  # for the pending writes
FRONT_SECONDS: Final = 5.0  # for open requests of clients to be answered at a stop
STORES: Final = "stores"

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
        node: The node of a cluster that it runs; None: it is alone.
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
        node: NodeSpec | None = None,
    ) -> None:
        self.home = home
        self.http = http
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.keep_agents = config.server.on_stop == "keep"
        """Whether agents outlive the server, as they do when it fails too."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the server cannot continue; the result is the reason."""
        self.node = None if node is None else ServerNode(node, config, self.fail)
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
        self._begun: float
        """Wall second before which no file is one that this server is making."""
        self._audit: AuditLog
        self._commands: AttachedCommands
        self._sessions = SessionTable()
        self.system: System
        self.keys: ApiKeys
        self.context: ActorContext
        self.services: ToolServices
        self.front: McpApp
        """Only with `http`."""
        self.url = ""

    def fail(self, reason: str) -> None:
        """Record that the server cannot continue; its agents live on."""
        log.critical("critical part failed", reason=reason)
        self.keep_agents = True
        if not self.failed.done():
            self.failed.set_result(reason)

    async def find_agents(self) -> None:
        """Find the agents. It is the first stage, so an error in it leaves nothing behind."""
        async with starting("agents"):
            self._installed = await installed(self.config, self._passed_agents)

    async def take_home(self) -> None:
        """Lock the home, and listen on its control socket."""
        async with starting("home"):
            prepare(self.home)
            self._stack.push(await locked(self.home))
            self._listener = self._stack.enter_context(listening(self.home))
            self._folders = Folders(self.home)
            await asyncio.to_thread(self._folders.prepare)
            await asyncio.to_thread(project_users.check, self.home, self.config.containers.uid)

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
            await asyncio.to_thread(self._stack.enter_context, guest_bundle.in_use(base))
            self._zipapp = await asyncio.to_thread(zipapp_path)
            passed = self._stack.enter_context(registry.passed(self._passed_runtime))
            self._runtime = await open_runtime(self.config, base, self._zipapp, self.home, passed)
            self._stack.push_async_callback(stopping, "runtime", self._runtime.aclose)
            if self._runtime.capabilities.isolation != "none":
                await asyncio.to_thread(close, self.home)

    async def open_store(self) -> None:
        """Open the database, start the actor in front of it, and count this start."""
        async with starting("store"):
            stack = self._stack
            database = await self._database()
            self._reader = Reader(database)
            stack.push_async_callback(stopping, "reader", self._reader.aclose)
            self._without_actors = await stack.enter_async_context(contextlib.AsyncExitStack())
            self.system = await stack.enter_async_context(System("oubliette", clock=self.clock))
            # The store ends last: it writes what the others send at their end.
            spec = ChildSpec(name="store", cls=StoreActor, args=(database,), shutdown=STORE_SECONDS)
            self.system.spawn(Supervisor, [spec], name=STORES, shutdown=STORE_SECONDS)
            self._store = self.system.ref(f"{STORES}/store")
            ids.begin_after(*await self._reader.newest_ids())
            self._instance, self._epoch = await self._identity()

    async def _database(self) -> Database | PostgresDatabase:
        if self.node is not None:
            return await self.node.join(self._stack, self._runtime)
        settings = self.config.store
        return await asyncio.to_thread(
            open_database,
            settings.database,
            self.home / DATABASE,
            durability=settings.durability,
        )

    async def _identity(self) -> tuple[str, int]:
        if self.node is None:
            return await identify(self._store, self._reader, self._folders.home, self._hold)
        instance, epoch = await self.node.identity()
        self._hold(instance)
        return instance, epoch

    def _hold(self, instance: str) -> None:
        """Take the lock of the instance, as long as an actor is left that uses what it has."""
        self._without_actors.enter_context(held(self._base, instance, self._folders.home))

    async def load_keys(self) -> None:
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
        if self.node is not None:
            self.node.share_keys(self._stack, self.keys)

    async def build_tools(self) -> None:
        """Build the services of the tools' handlers, and the agents' endpoint to the tools."""
        config, system = self.config, self.system
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
            rates=RateLimits(calls.calls_per_second, calls.calls_burst, self.clock, self._shares),
            find_actor=system.lookup,
            name_actor=system.ref,
            spawn=system.spawn,
            store=self._store,
            forget_session=self._forget_session,
            offers=self._capabilities(),
            look=self._folders.problem,
            nodes=None if self.node is None else self.node.open_homes(system, self._reader),
        )
        self._commands = AttachedCommands(self.services)

    async def _forget_session(self, project_id: str, session_id: str) -> None:
        await asyncio.to_thread(self._folders.remove_session, project_id, session_id)
        snapshots = self.system.lookup(SNAPSHOTS)
        if snapshots is not None:
            snapshots.tell(ForgetSessionFiles(project_id=project_id, session_id=session_id))

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
            store=self._store,
            reader=self._reader,
            folders=self._folders,
            runtime=self._runtime,
            runtime_base=self._base,
            loopback_ports=await asyncio.to_thread(loopback_ports.configured, self.config),
            agents=MappingProxyType(self._installed.agents),
            missing_agents=MappingProxyType(self._installed.missing),
            zipapp=self._zipapp,
            keys=self.keys,
            homes=None if self.node is None else self.node.homes,
            copies=None if self.node is None else self.node.copies(),
            claims=self._claims,
            caller_board=None if self.node is None else self.node.callers,
            agent_tools=AgentToolEndpoint(self.services),
            session_registry=SessionRegistry(self._sessions),
            callers_served=CallersServed(),
        )
        async with starting("containers"):
            self._begun = time.time()  # of the file system
            await remove_orphans(
                runtime=self._runtime,
                base=self._base,
                reader=self._reader,
                store=self._store,
                instance=self._instance,
                folders=self._folders,
                here=await self.context.projects_here(),
            )

    async def bind_front(self) -> None:
        """Bind the HTTP address; requests wait until the front is started."""
        if not self.http:
            return
        async with starting("front"):
            availability = EngineAvailability(self._runtime)
            self._stack.push_async_callback(stopping, "presence", availability.aclose)
            self.front = front_of(
                self.services,
                self._store,
                availability,
                self._claims,
                self._shares,
                commands=self._commands,
            )
            self.keys.on_revoked.append(self.front.key_ended)
            self.front.bind()

    @property
    def _claims(self) -> Claims | None:
        return None if self.node is None else self.node.claims

    @property
    def _shares(self) -> Shares | None:
        return None if self.node is None else self.node.shares

    async def start_actors(self) -> None:
        """Start the domain actors, which recover the live sessions."""
        async with starting("sessions"):
            start_root(self.system, self.context, self._sessions)
            if self.node is not None:
                self.node.connect(self.services, self.context)
        # Runs after the last actor that could start another one.
        self._without_actors.push_async_callback(self._unless_kept, remove_containers)
        self._stack.push_async_callback(self._unless_kept, end_sessions)

    async def _unless_kept(self, end: Callable[[ActorContext], Awaitable[None]]) -> None:
        if not self.keep_agents:
            await end(self.context)

    async def serve(self) -> None:
        """Serve HTTP, if it is wanted, and the control socket; then look for leftovers."""
        if self.http:
            self.services.listen = self.front.listening
            self.services.port_address = self.front.port_address
            front = self.system.spawn(FrontActor, self.front, self._callers_served, name="front")
            self.url = await front.ask(GetUrl())
            self._stack.push_async_callback(self.system.ref("front").stop, FRONT_SECONDS)
        else:
            self._callers_served()
        if self.node is not None:
            await self.node.serve(self.url)
        status = {
            "pid": os.getpid(),
            "url": self.url,
            "version": __version__,
            "since": time.time(),
            "runtime": self._runtime.name,
            "isolation": self._runtime.capabilities.isolation,
        }
        control = ControlSocket(
            self.services,
            self.home,
            status,
            self._listener,
            self._decide_for_agents,
            commands=self._commands,
        )
        await control.start()
        self._stack.push_async_callback(stopping, "control socket", control.aclose)
        clearance = Clearance(self._folders, self._reader, self._begun)
        self._stack.push_async_callback(stopping, "leftovers", clearance.aclose)

    def _decide_for_agents(self, on_stop: str) -> None:
        self.keep_agents = on_stop == "keep"

    def _callers_served(self) -> None:
        self.context.callers_served.begin(self.clock.monotonic())

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
