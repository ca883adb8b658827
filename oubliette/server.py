"""The composition root: builds the parts of one server and hands each its ports.

It starts and stops in named stages (see `stages`); each says what went wrong and what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette import __version__, ids
from oubliette.actors.container.remains import remove_orphans
from oubliette.actors.context import ActorContext
from oubliette.actors.project.actor import IDEMPOTENCY_SECONDS
from oubliette.actors.root import HOUSE, CriticalActorMonitor, end_sessions, start_root
from oubliette.actors.store.actor import GetStoreState, StoreActor, Transact
from oubliette.clock import SystemClock
from oubliette.config.schema import Config
from oubliette.control_socket import ControlSocket, listening
from oubliette.errors import OublietteError, Unauthenticated
from oubliette.kit import ChildSpec, Supervisor, System
from oubliette.mcp_front.actor import FrontActor, GetUrl
from oubliette.mcp_front.app import McpApp
from oubliette.mcp_front.tool_adapter import ToolAdapter
from oubliette.runtime.agents.registry import installed
from oubliette.runtime.audit_log import AuditLog
from oubliette.runtime.containers import guest_bundle, options, remembered
from oubliette.runtime.containers.availability import EngineAvailability
from oubliette.runtime.containers.host_paths import runtime_base
from oubliette.runtime.containers.images import Imaging
from oubliette.runtime.containers.process.unsandboxed import stranger
from oubliette.runtime.containers.selection import choose
from oubliette.runtime.files.home import DATABASE, HomeLock, close, prepare
from oubliette.runtime.files.instance import INSTANCE, PLACE, check_place, held
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.operations import BumpMeta, ExpireIdempotency, PutMeta
from oubliette.runtime.store.reader import Reader
from oubliette.runtime.zipapp import zipapp_path
from oubliette.stages import STAGE_SECONDS, starting, stopping
from oubliette.tools.agent_endpoint import AgentToolEndpoint, context_of
from oubliette.tools.audit import note_refused_key
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.auth.rate_limits import RateLimits
from oubliette.tools.registry import prepare_schemas
from oubliette.tools.services import ServerCapabilities, ToolServices, commits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from oubliette.records import Token
    from oubliette.runtime.containers.base import ContainerRuntime

STORE_SECONDS: Final = 2.0  # for what was not written yet
FRONT_SECONDS: Final = 5.0  # for open requests of clients to be answered at a stop
REMOVE_SECONDS: Final = 3.0  # for the containers, together
STORES: Final = "stores"
_EPOCH: Final = "epoch"

log = structlog.get_logger("oubliette.server")


class Server:
    """A running server: for tests and embedding programs; `serve` is the daemon."""

    def __init__(
        self,
        *,
        system: System,
        context: ActorContext,
        services: ToolServices,
        keys: ApiKeys,
        url: str,
        loaded: Callable[[], Awaitable[None]],
    ) -> None:
        self.system = system
        self.context = context
        self.services = services
        self.keys = keys
        self.url = url
        self.loaded = loaded
        """Waits until all that is imported after the start is there."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when a part has ended for good without which there is no server: says which."""

    def fail(self, reason: str) -> None:
        """Note that this server cannot go on."""
        log.critical("the server cannot go on", reason=reason)
        self.context.keep_agents = True
        if not self.failed.done():
            self.failed.set_result(reason)


@contextlib.asynccontextmanager
async def running(home: Path, config: Config | None = None) -> AsyncGenerator[Server]:
    """Run a server on `home` for the time of the `with` block.

    Raises:
        ConfigError: the home, the configuration or the sandbox cannot be used; says what to do.
        HomeInUse: another process has this home.
        DeadlineExceeded: a stage of the start-up took too long.
    """
    config = config or Config()
    async with contextlib.AsyncExitStack() as stack:
        async with starting("agents"):  # first of all: what it refuses leaves nothing behind
            found = await installed(config)
        async with starting("home"):
            prepare(home)
            stack.enter_context(HomeLock(home))
            listener = stack.enter_context(listening(home))
            folders = Folders(home)
            await asyncio.to_thread(folders.prepare)
        fetching = config.containers.pull_timeout_seconds + config.containers.build_timeout_seconds
        async with starting("runtime", STAGE_SECONDS + fetching):
            base = runtime_base(
                config.containers.runtime_dir, stranger=stranger(config.process.sandbox)
            )
            stack.push_async_callback(
                stopping, "kit", lambda: asyncio.to_thread(guest_bundle.remove_unused, base)
            )
            zipapp = await asyncio.to_thread(zipapp_path)
            runtime = await _runtime(config, base, zipapp, home)
            container_types = options.types_of(config, images=runtime.capabilities.images)
            stack.push_async_callback(stopping, "runtime", runtime.aclose)
        async with starting("store"):
            database = await asyncio.to_thread(
                Database, home / DATABASE, durability=config.store.durability
            )
            reader = Reader(database)
            stack.push_async_callback(stopping, "reader", reader.aclose)
            without_actors = await stack.enter_async_context(contextlib.AsyncExitStack())
            system = await stack.enter_async_context(System("oubliette"))
            system.spawn(Supervisor, [_store_spec(database)], name=STORES, shutdown=STORE_SECONDS)
            store = system.ref(f"{STORES}/store")
            instance, epoch = await _identify(store, reader, folders.home)
            # Until no actor is left that uses what is the instance's.
            without_actors.enter_context(held(base, instance, folders.home))
        commit = commits(store)
        clock = SystemClock()
        audit = AuditLog(
            home, max_bytes=config.audit.max_file_mb << 20, files=config.audit.keep_files
        )
        stack.push_async_callback(stopping, "audit log", lambda: asyncio.to_thread(audit.close))
        keys = ApiKeys(commit, reader, clock)
        await keys.load()
        stack.push_async_callback(stopping, "keys", keys.aclose)
        context = ActorContext(
            config=config,
            clock=clock,
            home=home,
            instance=instance,
            epoch=epoch,
            started=clock.monotonic(),
            store=store,
            reader=reader,
            folders=folders,
            runtime=runtime,
            runtime_base=base,
            agents=found.agents,
            missing_agents=found.missing,
            zipapp=zipapp,
            keys=keys,
        )
        async with starting("containers"):
            clearance = await remove_orphans(
                runtime=runtime,
                base=base,
                reader=reader,
                store=store,
                instance=instance,
                folders=folders,
            )
            stack.push_async_callback(stopping, "leftovers", clearance.aclose)
        services = ToolServices(
            config=config,
            clock=clock,
            reader=reader,
            commit=commit,
            keys=keys,
            projects=system.ref("projects"),
            callers=system.ref("callers"),
            find_session=context.session_registry.session,
            ask_live=context.session_registry.ask,
            appears=context.session_registry.appears,
            imaging=Imaging(runtime, config),
            audit=audit,
            rates=RateLimits(config.callers.calls_per_second, config.callers.calls_burst, clock),
            find_actor=system.lookup,
            name_actor=system.ref,
            forget_session=lambda project_id, session_id: asyncio.to_thread(
                folders.remove_session, project_id, session_id
            ),
            offers=ServerCapabilities(
                agents=tuple(found.agents),
                missing_agents={
                    name: (status.reason or "", status.remedy or "")
                    for name, status in found.missing.items()
                },
                container_types=container_types,
                runtimes=(runtime.name,),
            ),
        )
        context.door = AgentToolEndpoint(services)
        async with starting("front"):
            presence = EngineAvailability(runtime)
            stack.push_async_callback(stopping, "presence", presence.aclose)
            front = _front(config, services, system, store, presence)
            front.bind()
        async with starting("sessions"):
            start_root(system, context)
        # Once no actor is left that could start another one.
        without_actors.push_async_callback(_remove_containers, context)
        stack.push_async_callback(_end_sessions, context)
        services.listen = front.listening
        url = await system.spawn(FrontActor, front, name="front").ask(GetUrl())
        stack.push_async_callback(system.ref("front").stop, FRONT_SECONDS)
        control = ControlSocket(
            services, home, {"pid": os.getpid(), "url": url, "version": __version__}, listener
        )
        await control.start()
        stack.push_async_callback(stopping, "control socket", control.aclose)
        server = Server(
            system=system,
            context=context,
            services=services,
            keys=keys,
            url=url,
            loaded=front.loaded,
        )
        system.spawn(CriticalActorMonitor, (STORES, HOUSE, "front"), server.fail, name="watchman")
        stack.push_async_callback(system.ref("watchman").stop)
        schemas = asyncio.create_task(prepare_schemas(), name="schemas of the tools")
        stack.callback(schemas.cancel)
        yield server


def _store_spec(database: Database) -> ChildSpec:
    """The store ends last: it takes what the others say at their end."""
    return ChildSpec(name="store", cls=StoreActor, args=(database,), shutdown=STORE_SECONDS)


async def _runtime(config: Config, base: Path, zipapp: Path, home: Path) -> ContainerRuntime:
    runtime, why = await choose(config, base, zipapp, home)
    try:
        remembered.check(home, runtime.name, config, why)
        await asyncio.to_thread(remembered.remember, home, runtime.name, config)
    except BaseException:
        await runtime.aclose()
        raise
    log.info("container runtime", runtime=runtime.name, why=why)
    if runtime.capabilities.isolation == "none":
        log.warning(
            "NO ISOLATION: agents run as plain child processes of this user",
            setting="process.sandbox = best-effort",
        )
    else:
        await asyncio.to_thread(close, home)
    return runtime


async def _identify(store: Any, reader: Reader, home: Path) -> tuple[str, int]:
    """The instance's id, made once, and the number of this start.

    Raises:
        HomeInUse: the home is a copy of one that is there.
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


def _keeps_agents(context: ActorContext) -> bool:
    return context.keep_agents or context.config.server.on_stop == "keep"


async def _end_sessions(context: ActorContext) -> None:
    """SIGTERM ends agents or keeps them, as `server.on_stop` says."""
    if not _keeps_agents(context):
        await end_sessions(context)


async def _remove_containers(context: ActorContext) -> None:
    if _keeps_agents(context):
        return
    records = await context.reader.containers()

    async def remove(container_id: str) -> None:
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await context.runtime.remove(container_id)
        except (OublietteError, TimeoutError) as error:
            log.warning("container not removed", container_id=container_id, reason=str(error))

    await asyncio.gather(*(remove(record.id) for record in records))


__all__ = ["Server", "context_of", "running"]
