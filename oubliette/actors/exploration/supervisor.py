"""Supervisor of all trees: opens them on request, and those with a live session at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.actors.exploration.actor import ExplorationActor
from oubliette.actors.exploration.messages import OpenExploration
from oubliette.actors.store.outages import once_back
from oubliette.kit import ChildSpec, DynamicSupervisor, handles

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.records import Session


async def of_tree(context: ActorContext, session: Session) -> OpenExploration:
    """Return the request for the tree of a session, with the limits of its root."""
    root = session
    if session.root_session_id not in {"", session.id}:
        root = await context.reader.session(session.root_session_id) or session
    return OpenExploration(exploration_id=session.exploration_id, limits=root.limits)


class ExplorationsActor(DynamicSupervisor):
    """Supervisor that starts the actors of trees: on demand, or at once if a session is live."""

    def __init__(self, context: ActorContext) -> None:
        super().__init__()
        self._context = context

    async def on_start(self) -> None:  # type: ignore[override]
        """Open the live trees."""
        super().on_start()
        here = await once_back(self._context.projects_here)
        for session in await once_back(self._context.reader.live_sessions):
            if here is None or session.project_id in here:
                self._open(await once_back(lambda each=session: of_tree(self._context, each)))

    @handles(OpenExploration)
    def _open(self, message: OpenExploration) -> str:
        return self.ensure_child(
            ChildSpec(
                name=message.exploration_id,
                cls=ExplorationActor,
                args=(self._context, message.exploration_id, message.limits),
                restart="transient",
            )
        )
