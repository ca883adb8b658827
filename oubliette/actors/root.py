"""Actors of one server, started in order and stopped in reverse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.exploration.supervisor import ExplorationsActor
from oubliette.actors.messages import EndSession
from oubliette.actors.open_calls import OPEN_CALLS, OpenCallsActor, OpenCallTable
from oubliette.actors.project.supervisor import ProjectsActor
from oubliette.actors.session_registry import REGISTRY, SessionRegistryActor
from oubliette.actors.subscriptions.plan import SubscriptionTable
from oubliette.actors.subscriptions.supervisor import SUBSCRIPTIONS, SubscriptionsActor
from oubliette.errors import OublietteError
from oubliette.kit import Actor, ChildSpec, Down, Supervisor, handles

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.actors.context import ActorContext
    from oubliette.actors.session_registry import SessionTable
    from oubliette.kit import Ref, System

log = structlog.get_logger("oubliette.server")

ROOT: Final = "root"
END_SECONDS: Final = 5.0  # for all sessions together, at a stop
REMOVE_SECONDS: Final = 3.0  # for the containers, together
ROOT_SECONDS: Final = 8.0  # for all actors together, after that


def start_root(system: System, context: ActorContext, sessions: SessionTable) -> Ref:
    """Start callers, explorations, subscriptions and projects; return their supervisor.

    The store must run. `sessions` is the table that `context.session_registry` reads.

    An actor that fails is restarted, and recovers its state from the store. If restarts do not
    help, the supervisor fails, and the server has to end.
    """
    limit = context.config.callers.max_pending_requests
    callers = (context.store, context.reader, context.config.callers)
    children = [
        ChildSpec(name=REGISTRY, cls=SessionRegistryActor, args=(sessions,), known_as=REGISTRY),
        ChildSpec(
            name=OPEN_CALLS, cls=OpenCallsActor, args=(limit, OpenCallTable()), known_as=OPEN_CALLS
        ),
        ChildSpec(name="callers", cls=CallersActor, args=callers, known_as="callers"),
        ChildSpec(
            name="explorations", cls=ExplorationsActor, args=(context,), known_as="explorations"
        ),
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
    ]
    return system.spawn(
        Supervisor, children, max_restarts=5, within=60.0, name=ROOT, shutdown=ROOT_SECONDS
    )


class CriticalActorMonitor(Actor):
    """Reports the permanent end of an actor without which the server cannot run."""

    def __init__(self, names: tuple[str, ...], tell: Callable[[str], object]) -> None:
        super().__init__()
        self._names = names
        self._report = tell

    def on_start(self) -> None:
        """Watch these actors."""
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
    """Remove all containers of the server."""

    async def remove(container_id: str) -> None:
        try:
            async with asyncio.timeout(REMOVE_SECONDS):
                await context.runtime.remove(container_id)
        except (OublietteError, TimeoutError) as error:
            log.warning("container not removed", container_id=container_id, reason=str(error))

    records = await context.reader.containers()
    await asyncio.gather(*(remove(record.id) for record in records))
