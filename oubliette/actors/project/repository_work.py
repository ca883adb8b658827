"""Work of a ProjectActor on the repository that its project was cloned from.

What git does takes its time, so it is done beside the mailbox, one thing after the other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog
from msgspec.structs import replace

from oubliette import ids
from oubliette.actors.messages import CloneProgressed, RepositoryFetched
from oubliette.actors.project.cloning import as_ours, made_clone, place
from oubliette.actors.project.forks import ForkedWorkspaces
from oubliette.actors.project.spawn_target import check_workspaces
from oubliette.actors.snapshot_requests import SNAPSHOTS, ListServed
from oubliette.errors import Conflict, OublietteError, RuntimeFailure
from oubliette.kit import LocalMessage
from oubliette.runtime.files import new_workspaces
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.repositories.access import Repositories
from oubliette.runtime.repositories.base_commits import inherit_base
from oubliette.runtime.repositories.project_repository import HEAD_REF
from oubliette.runtime.repositories.served_view import ServedView, branches_of, of_sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import FetchRepository, SpawnSession
    from oubliette.contract.project import BranchInfo
    from oubliette.kit import Actor, Deferred
    from oubliette.records import Project, ProjectRepository
    from oubliette.runtime.repositories.project_repository import BareRepository
    from oubliette.runtime.repositories.served_view import ServedSnapshots

LIST_SECONDS: Final = 60.0
"""Time for the list of all snapshots of a project."""

log = structlog.get_logger(__name__)


class WorkspaceCloned(LocalMessage):
    """To a ProjectActor itself: the workspace for a session is there, or cannot be made."""

    spawn: SpawnSession
    answer: Deferred
    error: OublietteError | None = None


class RepositoryTidied(LocalMessage):
    """To a ProjectActor itself: its repository was looked after."""


class RepositoryAnswered(LocalMessage):
    """To a ProjectActor itself: the outcome of a request."""

    answer: Deferred
    value: Any = None
    error: OublietteError | None = None

    def give(self) -> None:
        if self.error is None:
            self.answer.set(self.value)
        else:
            self.answer.set_error(self.error)


class RepositoryWork:
    """Part of a ProjectActor that works on its repository; it has the same lifetime."""

    def __init__(self, actor: Actor, context: ActorContext, project: Project) -> None:
        self.actor = actor
        self.context = context
        self.project = project
        self.repositories = Repositories(context.folders.repositories, context.config.repositories)
        self.turn = asyncio.Lock()
        self._forks = ForkedWorkspaces(actor, context, project, self._clone)
        self._tidying = False
        self._cleared = False
        """Whether what an earlier server did not complete is removed."""

    # ------------------------------------------------------------------ workspaces

    async def with_workspace(self, message: SpawnSession) -> SpawnSession | None:
        """Have the new workspace of a session made; `WorkspaceCloned` comes to the actor.

        Returns:
            The request itself, if no workspace is to be cloned or forked for it; None: it is under
            way.
        """
        if message.fork is not None or message.branch_from is not None:
            await check_workspaces(self.context, self.project)
            self._copy(message)
            return None
        if self.project.repository is None or message.session_id is not None:
            return message
        wanted = message.workspace_id or ids.new_uuid()
        ids.check_uuid(wanted, "workspace_id")
        if await self.context.reader.workspace(wanted) is not None:
            return message  # the spawner uses or refuses it
        await check_workspaces(self.context, self.project)
        spawn, answer = replace(message, workspace_id=wanted), self.actor.defer()
        self.actor.pipe_to_self(
            self._place(wanted),
            lambda _: WorkspaceCloned(spawn=spawn, answer=answer),
            lambda error: WorkspaceCloned(spawn=spawn, answer=answer, error=as_ours(error)),
        )
        return None

    def _copy(self, message: SpawnSession) -> None:
        spawn, answer = replace(message, workspace_id=ids.new_uuid()), self.actor.defer()
        self.actor.pipe_to_self(
            self._forks.make(spawn),
            lambda made: WorkspaceCloned(spawn=made, answer=answer),
            lambda error: WorkspaceCloned(spawn=spawn, answer=answer, error=as_ours(error)),
        )

    async def _clone(self, source: str, workspace_id: str) -> Path:
        """Make a clone that is still to become a copy of a workspace; return its folder."""
        async with self.turn:
            bare = await self.ensure_cloned()
            await self.clear()
            made = await made_clone(self.repositories, self.project, workspace_id)
            try:
                await inherit_base(self.repositories.git(), bare.folder, source, workspace_id)
            except BaseException:
                await asyncio.to_thread(new_workspaces.discard, made)
                raise
            return made

    async def _place(self, workspace_id: str) -> None:
        async with self.turn:
            await self.ensure_cloned()
            await self.clear()
            await place(self.repositories, self.context, self.project, workspace_id)

    async def clear(self) -> None:
        """Remove what an earlier server did not complete, once."""
        if not self._cleared:
            self._cleared = True
            await asyncio.to_thread(self.repositories.clear_unfinished, self.project.id)

    async def drop_unused(self, message: SpawnSession) -> None:
        """Remove what was made for a session which was then refused."""
        assert message.workspace_id is not None, "it was made under this id"
        if await self.drop_workspace(message.workspace_id) and message.fork is not None:
            await self._forks.discard_home(message.fork)

    async def drop_workspace(self, workspace_id: str) -> bool:
        """Remove the folder of a workspace, unless there is such a workspace."""
        found = await self.context.reader.workspace(workspace_id)
        if found is not None and found.deleted_at is None:
            return False
        folders, project_id = self.context.folders, self.project.id
        try:
            await in_own_thread(folders.remove_workspace, project_id, workspace_id)
        except (OublietteError, OSError) as error:
            log.warning("workspace not removed", workspace_id=workspace_id, reason=str(error))
        return True

    # ------------------------------------------------------------------ the other repository

    def fetch(self, message: FetchRepository, answer: Deferred) -> None:
        """Fetch what is new; `RepositoryAnswered` comes to the actor."""
        self.begin(self._fetched(message.progress_to), answer)

    async def _fetched(self, progress_to: str | None) -> RepositoryFetched:
        report = self.reporter(progress_to)
        async with self.turn:
            bare = await self.ensure_cloned(report)
            source = await self.repositories.source(self.record)
            updated, removed = await bare.fetch(
                source, seconds=self.repositories.settings.clone_seconds, report=report
            )
        return RepositoryFetched(updated=updated, removed=removed)

    def list_branches(self, answer: Deferred) -> None:
        """List the branches; `RepositoryAnswered` comes to the actor."""
        self.begin(self._branches(), answer)

    async def _branches(self) -> tuple[BranchInfo, ...]:
        async with self.turn:
            bare = await self.ensure_cloned()
            return tuple(await bare.branches())

    # ------------------------------------------------------------------ with plain git

    def serve(self, answer: Deferred) -> None:
        """Make what git's clients fetch from; `RepositoryAnswered` comes to the actor."""
        self.begin(self._served(), answer)

    async def _served(self) -> str:
        record, bare, refs = self.project.repository, None, dict[str, str]()
        async with self.turn:
            if record is not None:
                bare = await self.ensure_cloned()
                refs = await asyncio.to_thread(bare.refs)
            actor = self.actor.system.lookup(SNAPSHOTS)
            snapshots: tuple[ServedSnapshots, ...] = ()
            if actor is not None:
                asked = ListServed(project_id=self.project.id)
                snapshots = await actor.ask(asked, timeout=LIST_SECONDS)
                known = await self.context.reader.session_ids(self.project.id)
                snapshots = tuple(
                    replace(each, refs=of_sessions(each.refs, known)) for each in snapshots
                )
            view = ServedView(self.context.folders.repositories / self.project.id)
            head = None if record is None else record.branch or refs.get(HEAD_REF)
            folder = None if bare is None else bare.folder
            await asyncio.to_thread(view.write, folder, branches_of(refs), head, snapshots)
        return str(view.folder)

    def tidy(self) -> None:
        """Look after the repository when nothing else is done; `RepositoryTidied` comes."""
        if self.project.repository is not None and not self._tidying:
            self._tidying = True
            self.actor.pipe_to_self(
                self._tidy(), lambda _: RepositoryTidied(), lambda _: RepositoryTidied()
            )

    def tidied(self) -> None:
        self._tidying = False

    async def _tidy(self) -> None:
        async with self.turn:  # nothing writes into it meanwhile
            bare = self.repositories.of(self.project.id, self.record)
            try:
                if await asyncio.to_thread(lambda: bare.exists) and await bare.tidy():
                    log.info("repository tidied", project_id=self.project.id)
            except OublietteError as error:
                log.warning("repository not tidied", project_id=self.project.id, reason=str(error))

    def begin(self, work: Awaitable[Any], answer: Deferred) -> None:
        """Do something beside the mailbox; `RepositoryAnswered` comes to the actor."""
        self.actor.pipe_to_self(
            work,
            lambda value: RepositoryAnswered(answer=answer, value=value),
            lambda error: RepositoryAnswered(answer=answer, error=_as_ours(error)),
        )

    @property
    def record(self) -> ProjectRepository:
        """The repository that the project was cloned from.

        Raises:
            Conflict: it was not cloned.
        """
        record = self.project.repository
        if record is None:
            raise Conflict(
                f"project {self.project.id} was not cloned from a repository",
                hint="project_create with repository clones one",
            )
        return record

    async def ensure_cloned(self, report: Callable[[str], object] | None = None) -> BareRepository:
        """Return the repository; clone it again where another node had it."""
        record = self.record
        bare = self.repositories.of(self.project.id, record)
        if not await asyncio.to_thread(lambda: bare.exists):
            log.info("the repository is cloned again", project_id=self.project.id)
            await bare.clone(
                await self.repositories.source(record),
                seconds=self.repositories.settings.clone_seconds,
                report=report or (lambda _: None),
            )
            await asyncio.to_thread(self.repositories.ended, self.project.id)
        return bare

    def reporter(self, progress_to: str | None) -> Callable[[str], object]:
        """The receiver of lines about progress, which an actor gets if one is named."""
        receiver = None if progress_to is None else self.actor.system.lookup(progress_to)
        if receiver is None:
            return lambda _: None
        return lambda text: receiver.tell(CloneProgressed(text=text))


def _as_ours(error: BaseException) -> OublietteError:
    """The error of work on the repository, as its asker gets it."""
    if isinstance(error, OublietteError):
        return error
    log.error("work on a repository failed", exc_info=error)
    return RuntimeFailure(
        "the work on the repository failed", hint="the server's log has the details"
    )
