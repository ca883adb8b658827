"""Supervisor of all trees: opens them on request, and those with a live session at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from oubliette.actors.store.outages import once_back
from oubliette.actors.tree.actor import TreeActor
from oubliette.actors.tree.branch import BranchActor, counting_node
from oubliette.actors.tree.messages import CloseTrees, OpenTree, ProjectGone, ReopenTrees
from oubliette.errors import OublietteError, ProjectMoves
from oubliette.kit import ChildSpec, Deferred, DynamicSupervisor, LocalMessage, handles

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.records import Session

log = structlog.get_logger("oubliette.node")


async def of_tree(context: ActorContext, session: Session) -> OpenTree:
    """The request for the tree of a session, with the limits of its root."""
    root = session
    if session.root_session_id not in {"", session.id}:
        root = await context.reader.session(session.root_session_id) or session
    return OpenTree(
        tree_id=session.exploration_id,
        limits=root.limits,
        project_id=session.tree_project_id or root.project_id,
    )


class _TreeHome(LocalMessage):
    """A tree that is to be opened, and who counts it."""

    message: OpenTree
    node: str | None = None
    """Node that counts it; None: this one."""
    error: OublietteError | None = None
    """Reason for which that is unknown."""
    moves: int
    """Value of `TreesActor._moves` before it was looked up."""


class _HomeFound(LocalMessage):
    """To itself: it is known who counts a tree."""

    found: _TreeHome
    answer: Deferred


class _HomeUnknown(LocalMessage):
    """To itself: the search has failed."""

    error: BaseException
    answer: Deferred


class _LiveFound(LocalMessage):
    """To itself: the trees of the sessions that live here."""

    found: list[_TreeHome]
    answer: Deferred


class _TreesCounted(LocalMessage):
    """To itself: whether a project is deleted and all trees that began in it have ended."""

    project_id: str
    over: bool
    answer: Deferred | None


class _Left(LocalMessage):
    """To itself: a project has no home any more, or that is unknown."""

    project_id: str
    error: BaseException | None = None
    answer: Deferred | None


class TreesActor(DynamicSupervisor):
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
        self._moves = 0
        """Number of projects that have begun to get another home."""

    async def on_start(self) -> None:  # type: ignore[override]
        super().on_start()
        for found in await self._live():
            await self._open_found(found)

    async def _live(self) -> list[_TreeHome]:
        """Return the trees with sessions that live here, and who counts them."""
        here = await once_back(self._context.projects_here)
        living: dict[str, Session] = {}
        for session in await once_back(self._context.reader.live_sessions):
            if here is None or session.project_id in here:
                living.setdefault(session.exploration_id, session)
        return [
            await self._find(await once_back(lambda each=session: of_tree(self._context, each)))
            for session in living.values()
            if not self.has_child(session.exploration_id)
        ]

    async def _find(self, message: OpenTree) -> _TreeHome:
        """Find out which node counts a tree; the database may be slow with its answer."""
        moves, node, error = self._moves, None, None
        try:
            node = await counting_node(self._context, message.project_id)
        except OublietteError as failed:
            error = failed
        return _TreeHome(message=message, node=node, error=error, moves=moves)

    @handles(OpenTree)
    async def _open(self, message: OpenTree) -> str | None:
        if (known := self._known(message)) is not None:
            return known
        if self._context.homes is None:
            return await self._open_found(_TreeHome(message=message, moves=self._moves))
        self._find_for(message, self.defer())
        return None

    def _known(self, message: OpenTree) -> str | None:
        name = message.tree_id
        known = self.has_child(name) and (not message.at_home or name in self._counted)
        return f"{self.name}/{name}" if known else None

    def _find_for(self, message: OpenTree, answer: Deferred) -> None:
        self.pipe_to_self(
            self._find(message),
            lambda found: _HomeFound(found=found, answer=answer),
            lambda error: _HomeUnknown(error=error, answer=answer),
        )

    @handles(_HomeFound)
    async def _home_found(self, message: _HomeFound) -> None:
        if message.found.moves != self._moves:  # it may have been read before a project moved
            self._find_for(message.found.message, message.answer)
            return
        try:
            name = self._known(message.found.message) or await self._open_found(message.found)
        except ProjectMoves as error:
            message.answer.set_error(error)
        else:
            message.answer.set(name)

    @handles(_HomeUnknown)
    def _home_unknown(self, message: _HomeUnknown) -> None:
        message.answer.set_error(message.error)

    async def _open_found(self, found: _TreeHome) -> str:
        """Start the actor of a tree, or of its branch.

        Raises:
            ProjectMoves: it is not counted here, or that is unknown, and a branch will not do.
        """
        opened, error = found.message, found.error
        name = opened.tree_id
        if error is None and found.node is None and opened.project_id not in self._leaving:
            await self.end_child(name)  # a branch of it, if there is one
            self._counted[name] = opened.project_id
            return self._ensure(name, TreeActor, (self._context, name, opened.limits))
        if opened.at_home:
            reason = f"project {opened.project_id} has its home on another node"
            raise ProjectMoves(error.message if error else reason, hint="try again in a moment")
        # What is unknown, the branch finds later.
        return self._ensure(name, BranchActor, (self._context, opened))

    def _ensure(self, name: str, cls: type[Any], args: tuple[Any, ...]) -> str:
        return self.ensure_child(ChildSpec(name=name, cls=cls, args=args, restart="transient"))

    @handles(CloseTrees)
    async def _close(self, message: CloseTrees) -> None:
        self._leaving.add(message.project_id)
        self._moves += 1
        for name in [tree for tree, of in self._counted.items() if of == message.project_id]:
            await self.end_child(name)

    @handles(ReopenTrees)
    def _open_again(self, message: ReopenTrees) -> None:
        self._leaving.discard(message.project_id or "")
        answer = self.defer()
        self.pipe_to_self(
            self._live(),
            lambda found: _LiveFound(found=found, answer=answer),
            lambda error: _HomeUnknown(error=error, answer=answer),
        )

    @handles(_LiveFound)
    async def _live_found(self, message: _LiveFound) -> None:
        for found in message.found:
            if found.moves != self._moves:
                self._find_for(found.message, message.answer)
            elif self._known(found.message) is None:
                await self._open_found(found)
        message.answer.set(None)

    def on_forgotten(self, name: str) -> None:
        project_id = self._counted.pop(name, None)
        if project_id is not None and self._context.homes is not None:
            self._look_at(project_id)

    # ------------------------------------------------------------------ deleted projects
    @handles(ProjectGone)
    def _deleted(self, message: ProjectGone) -> None:
        self._look_at(message.project_id, self.defer())

    def _look_at(self, project_id: str, answer: Deferred | None = None) -> None:
        """Take its home from a project that is deleted, if none of its trees lives any more."""
        self.pipe_to_self(
            self._is_over(project_id),
            lambda over: _TreesCounted(project_id=project_id, over=over, answer=answer),
            lambda error: _Left(project_id=project_id, error=error, answer=answer),
        )

    async def _is_over(self, project_id: str) -> bool:
        reader = self._context.reader
        project = await reader.project(project_id)
        if project is not None and project.deleted_at is None:
            return False
        return all(each.tree_project_id != project_id for each in await reader.live_sessions())

    @handles(_TreesCounted)
    def _looked(self, message: _TreesCounted) -> None:
        project_id, homes = message.project_id, self._context.homes
        busy = project_id in self._leaving or project_id in self._counted.values()
        if not message.over or busy or homes is None:
            self._left(_Left(project_id="", answer=message.answer))
            return
        self._leaving.add(project_id)  # no tree of it begins here until it has another home
        self._moves += 1
        self.pipe_to_self(
            homes.leave(project_id),
            lambda _: _Left(project_id=project_id, answer=message.answer),
            lambda error: _Left(project_id=project_id, error=error, answer=message.answer),
        )

    @handles(_Left)
    def _left(self, message: _Left) -> None:
        self._leaving.discard(message.project_id)
        if message.answer is None:
            if message.error is not None:
                log.warning("home of a deleted project left", reason=str(message.error))
        elif message.error is not None:
            message.answer.set_error(message.error)
        else:
            message.answer.set(None)
