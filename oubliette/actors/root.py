"""Actors of one server, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.messages import EndSession
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallsActor, OpenCallTable
from oubliette.actors.ports.actor import PortsActor
from oubliette.actors.ports.messages import PORTS
from oubliette.actors.project.supervisor import ProjectsActor
from oubliette.actors.session_registry import REGISTRY, SessionRegistryActor
from oubliette.actors.snapshot_requests import SNAPSHOTS
from oubliette.actors.snapshots import SnapshotsActor
from oubliette.actors.subscriptions.stored_cursor import SubscriptionTable
from oubliette.actors.subscriptions.supervisor import SUBSCRIPTIONS, SubscriptionsActor
from oubliette.actors.tree.supervisor import TreesActor
from oubliette.errors import OublietteError
from oubliette.kit import Actor, ChildSpec, Down, Supervisor, handles
from oubliette.runtime.snapshots.git_program import GitProgram

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.context import ActorContext
    from oubliette.actors.session_registry import SessionTable
    from oubliette.kit import Ref, System

log = structlog.get_logger("oubliette.server")

ROOT: Final = "root"
END_SECONDS: Final = 5.0  # for all sessions together, at a stop
READ_SECONDS: Final = 8.0
"""Time to read which containers there are; longer than a read waits for the database."""
REMOVE_SECONDS: Final = 3.0  # for the containers, together
ROOT_SECONDS: Final = 8.0  # for all actors together, after that


def start_root(system: System, context: ActorContext, sessions: SessionTable) -> Ref:
    """Start callers, trees, subscriptions and projects; return their supervisor.

    The store must run. `sessions` is the table that `context.session_registry` reads.

    An actor that fails is restarted, and recovers its state from the store. If restarts do not
    help, the supervisor fails, and the server has to end.
    """
    limit = context.config.callers.max_pending_requests
    callers = (
        *(context.store, context.reader, context.config.callers),
        *(context.caller_board, context.claims),
    )
    children = [
        ChildSpec(name=REGISTRY, cls=SessionRegistryActor, args=(sessions,), known_as=REGISTRY),
        ChildSpec(
            name=OPEN_CALLS,
            cls=OpenCallsActor,
            args=(limit, OpenCallTable(), context.claims),
            known_as=OPEN_CALLS,
        ),
        *_snapshots(context),
        ChildSpec(name="callers", cls=CallersActor, args=callers, known_as="callers"),
        ChildSpec(name="trees", cls=TreesActor, args=(context,), known_as="trees"),
        ChildSpec(
            name=SUBSCRIPTIONS,
            cls=SubscriptionsActor,
            args=(context.store, context.reader, SubscriptionTable()),
            known_as=SUBSCRIPTIONS,
        ),
        ChildSpec(
            name="projects",
            cls=ProjectsActor,
            args=(context,),
            known_as="projects",
            shutdown=ROOT_SECONDS,
        ),
        ChildSpec(name=PORTS, cls=PortsActor, args=(context,), known_as=PORTS),
    ]
    return system.spawn(
        Supervisor, children, max_restarts=5, within=60.0, name=ROOT, shutdown=ROOT_SECONDS
    )


def _snapshots(context: ActorContext) -> list[ChildSpec]:
    """Return the owner of the snapshots of workspaces; nothing where none are taken."""
    config = context.config
    if config.snapshots.mode == "off" and not config.cluster.snapshots:
        return []
    git = GitProgram.find()
    if git is None:
        log.warning("no snapshots of workspaces without git", remedy="install git")
        return []
    args = (context, git.path)
    return [ChildSpec(name=SNAPSHOTS, cls=SnapshotsActor, args=args, known_as=SNAPSHOTS)]


class CriticalActorMonitor(Actor):
    """Reports the permanent end of an actor without which the server cannot run."""

    def __init__(self, names: tuple[str, ...], tell: Callable[[str], object]) -> None:
        super().__init__()
        self._names = names
        self._report = tell

    def on_start(self) -> None:
        for name in self._names:
            self.watch(self.system.ref(name))

    @handles(Down)
    def _down(self, message: Down) -> None:
        self._report(f"{message.name} ended: {message.error or message.reason}")


async def end_sessions(context: ActorContext) -> None:
    """End every live agent within `END_SECONDS`.

    Their sessions may be resumed later.
    """
    refs = context.session_registry.live()
    if not refs:
        return
    ended = [
        asyncio.create_task(ref.ask(EndSession(reason="the server stopped", final=False)))
        for ref in refs
    ]
    _, late = await asyncio.wait(ended, timeout=END_SECONDS)
    for task in late:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
    log.info("sessions ended", count=len(refs), late=len(late))


async def remove_containers(context: ActorContext) -> None:

    async def remove(container_id: str) -> None:
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await context.runtime.remove(container_id)
        except (OublietteError, TimeoutError) as error:
            log.warning("container not removed", container_id=container_id, reason=str(error))

    await asyncio.gather(*(remove(container_id) for container_id in await _containers(context)))


async def _containers(context: ActorContext) -> list[str]:
    """Return the ids of the server's containers; by their label while the database is away."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            here = await context.projects_here()
            records = await context.reader.containers()
    except (OublietteError, TimeoutError) as error:
        log.warning("containers are looked for by their label", reason=str(error))
        return [info.id for info in await context.runtime.adopt(context.instance)]
    return [record.id for record in records if here is None or record.project_id in here]
