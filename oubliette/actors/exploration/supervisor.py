"""Supervisor of all trees: opens them on request, and those with a live session at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.actors.exploration.actor import ExplorationActor
from oubliette.actors.exploration.branch import BranchActor, counting_node
from oubliette.actors.exploration.messages import CloseTrees, OpenExploration, OpenTrees
from oubliette.actors.store.outages import once_back
from oubliette.errors import OublietteError, ProjectMoves
from oubliette.kit import ChildSpec, DynamicSupervisor, handles

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.records import Session


async def of_tree(context: ActorContext, session: Session) -> OpenExploration:
    """Return the request for the tree of a session, with the limits of its root."""
    root = session
    if session.root_session_id not in {"", session.id}:
        root = await context.reader.session(session.root_session_id) or session
    return OpenExploration(
        exploration_id=session.exploration_id,
        limits=root.limits,
        project_id=session.tree_project_id or root.project_id,
    )


class ExplorationsActor(DynamicSupervisor):
    """Supervisor that starts the actors of trees: on demand, or at once if a session is live.

    In a cluster one node counts a tree, the home of the project in which it began; others have a
    branch of it.
    """

    def __init__(self, context: ActorContext) -> None:
        super().__init__()
        self._context = context
        self._counted: dict[str, str] = {}
        """Tree that is counted here → the project in which it began; the others are branches."""
        self._leaving: set[str] = set()
        """Projects that are about to get another home."""

    async def on_start(self) -> None:  # type: ignore[override]
        """Open the live trees."""
        super().on_start()
        await self._open_live()

    async def _open_live(self) -> None:
        here = await once_back(self._context.projects_here)
        for session in await once_back(self._context.reader.live_sessions):
            known = self.has_child(session.exploration_id)
            if not known and (here is None or session.project_id in here):
                await self._open(await once_back(lambda each=session: of_tree(self._context, each)))

    @handles(OpenExploration)
    async def _open(self, message: OpenExploration) -> str:
        name = message.exploration_id
        if self.has_child(name) and (not message.at_home or name in self._counted):
            return f"{self.name}/{name}"
        args: tuple[Any, ...] = (self._context, name, message.limits)
        if await self._is_home(message):
            await self.end_child(name)  # a branch of it, if there is one
            self._counted[name] = message.project_id
            return self._ensure(name, ExplorationActor, args)
        return self._ensure(name, BranchActor, (self._context, message))

    def _ensure(self, name: str, cls: type[Any], args: tuple[Any, ...]) -> str:
        return self.ensure_child(ChildSpec(name=name, cls=cls, args=args, restart="transient"))

    async def _is_home(self, message: OpenExploration) -> bool:
        """Return whether a tree is counted on this node.

        Raises:
            ProjectMoves: it is not, or that is unknown, and a branch will not do.
        """
        project_id = message.project_id
        reason = f"project {project_id} has its home on another node"
        try:
            leaves = project_id in self._leaving
            if not leaves and await counting_node(self._context, project_id) is None:
                return True
        except OublietteError as error:  # a branch finds it later
            reason = error.message
        if message.at_home:
            raise ProjectMoves(reason, hint="try again in a moment")
        return False

    @handles(CloseTrees)
    async def _close(self, message: CloseTrees) -> None:
        self._leaving.add(message.project_id)
        for name in [tree for tree, of in self._counted.items() if of == message.project_id]:
            await self.end_child(name)

    @handles(OpenTrees)
    async def _open_again(self, message: OpenTrees) -> None:
        self._leaving.discard(message.project_id or "")
        await self._open_live()

    def on_forgotten(self, name: str) -> None:
        """Forget a tree that has ended."""
        self._counted.pop(name, None)
