"""The actors of one server, started in order and stopped in reverse (DESIGN 3.2, 3.4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.caller import CallersActor
from oubliette.actors.exploration import ExplorationsActor
from oubliette.actors.projects import ProjectsActor
from oubliette.actors.protocol import EndSession

if TYPE_CHECKING:
    from oubliette.actors.services import Services
    from oubliette.kit import Ref, System

log = structlog.get_logger("oubliette.server")

END_SECONDS: Final = 5.0  # for all sessions together, at a stop


def start_house(system: System, services: Services) -> Ref:
    """Start callers, explorations and projects; the store must run. Returns `projects`."""
    system.spawn(
        CallersActor, services.store, services.reader, services.config.callers, name="callers"
    )
    system.spawn(ExplorationsActor, services, name="explorations")
    return system.spawn(ProjectsActor, services, name="projects", shutdown=10.0)


async def end_sessions(services: Services) -> None:
    """End every live agent within `END_SECONDS`; their sessions may be resumed later."""
    refs = services.directory.live()
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
