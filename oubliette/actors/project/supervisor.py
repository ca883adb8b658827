"""Supervisor of all projects: creates, opens and deletes them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.actors.container.messages import GetUnused
from oubliette.actors.messages import (
    CreateProject,
    DeleteProject,
    GetCloneProgress,
    OpenProject,
    UpdateProject,
)
from oubliette.actors.project.actor import CloseProject, KeepProject, ProjectActor
from oubliette.actors.project.cloning import (
    CloneEnded,
    CloneSaid,
    RepositoryClones,
    as_ours,
    check_cloned,
)
from oubliette.actors.project.removals import FilesRemoved, ProjectClosed, ProjectRemovals
from oubliette.actors.project.spawn_answers import IDEMPOTENCY_SECONDS
from oubliette.actors.snapshot_requests import SNAPSHOTS, ForgetCopies
from oubliette.actors.store.actor import Transact
from oubliette.actors.store.outages import once_back
from oubliette.actors.tree.messages import ReopenTrees
from oubliette.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    OublietteError,
    ProjectMoves,
    RuntimeFailure,
)
from oubliette.failpoints import failpoint
from oubliette.kit import ChildSpec, DynamicSupervisor, MailboxFull, Message, Reply, handles
from oubliette.records import IdempotencyKey, Project, Workspace, made_of
from oubliette.runtime.containers.options import uid_of
from oubliette.runtime.files.project_users import new_uid
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.store.operations import Op, PutIdempotency, PutProject, PutWorkspace

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import Idempotency
    from oubliette.kit import Deferred
    from oubliette.kit.timers import ActorTimer

log = structlog.get_logger(__name__)


class TakeOverProjects(Message):
    """To `projects`, on one node of a cluster: machines are gone on which sessions live."""


class _Idle(Message):
    """To `projects` itself: nothing may have any use for the actor of a project."""

    project_id: str
    unused: bool | None = None
    """Whether the actor has nothing to do; None: it was not asked yet."""


class HoldProject(Message, Reply[None]):
    """To `projects`: stop the containers of a project that is to be moved to another node.

    Refused with `Conflict` while sessions live. Nothing begins in it until `ReleaseProject`.
    """

    project_id: str


class ReleaseProject(Message, Reply[None]):
    """To `projects`: a project has been moved, or stays here."""

    project_id: str
    moved: bool


TAKE_OVER_SECONDS: Final = 2.0
"""Seconds until it is tried again, after the database did not answer."""
UNUSED_SECONDS: Final = 900.0
"""Seconds from the last request for a project to the end of its actor, at least."""


class ProjectsActor(DynamicSupervisor):
    """Supervisor of the projects; the only actor that creates and deletes them."""

    def __init__(self, context: ActorContext) -> None:
        super().__init__()
        self._context = context
        self._moving: set[str] = set()
        """Projects that nothing may begin in, as they are being moved to another node."""
        self._clones = RepositoryClones(self, context)
        self._removals = ProjectRemovals(self, context)
        self._take_over_again: ActorTimer | None = None
        self._opened: dict[str, float] = {}
        """Project → monotonic second of the last request for its actor; each has one timer."""

    async def on_start(self) -> None:  # type: ignore[override]
        """Remove what was not cloned to its end; open every project that has a live session."""
        super().on_start()
        for project_id in await asyncio.to_thread(self._clones.repositories.unfinished):
            found = await once_back(lambda each=project_id: self._context.reader.project(each))
            try:
                await self._end_unfinished(project_id, found)
            except (RuntimeFailure, OSError) as error:
                log.warning("left for the next start", project_id=project_id, reason=str(error))
        in_use = await once_back(self._context.reader.projects_in_use)
        here = await once_back(self._context.projects_here)
        for project in in_use:
            if here is None or project.id in here:
                self._open_one(project)

    def _open_one(self, project: Project) -> str:
        if project.id not in self._opened:
            self.after(UNUSED_SECONDS, _Idle(project_id=project.id))
        self._opened[project.id] = self.clock.monotonic()
        return self.ensure_child(
            ChildSpec(
                name=project.id, cls=ProjectActor, args=(self._context, project), shutdown=20.0
            )
        )

    @handles(OpenProject)
    async def _open(self, message: OpenProject) -> str:
        self._check_not_moving(message.project_id)
        if self.has_child(message.project_id):
            self._opened[message.project_id] = self.clock.monotonic()
            return f"{self.name}/{message.project_id}"
        homes = self._context.homes
        if homes is not None and await homes.elsewhere(message.project_id):
            raise ProjectMoves(  # it has moved since the request was given to this node
                f"project {message.project_id} has moved to another node", hint="try again"
            )
        return self._open_one(await self._find_cloned(message.project_id))

    @handles(_Idle)
    async def _end_unused(self, message: _Idle) -> None:
        """End the actor of a project that does nothing, a while after the last request for it.

        What is sent to it is sent soon after such a request has named it, so nothing is lost.
        """
        project_id = message.project_id
        if not self.has_child(project_id):
            self._opened.pop(project_id, None)
            return
        rest = self._opened[project_id] + UNUSED_SECONDS - self.clock.monotonic()
        if rest > 0 or message.unused is False:
            self.after(max(rest, UNUSED_SECONDS / 2), _Idle(project_id=project_id))
        elif message.unused:
            await self.end_child(project_id)
            del self._opened[project_id]
        else:
            self.ask_to_self(
                self.system.ref(f"{self.name}/{project_id}"),
                GetUnused(),
                lambda unused: _Idle(project_id=project_id, unused=unused),
                lambda _: _Idle(project_id=project_id, unused=False),
            )

    async def _find_cloned(self, project_id: str) -> Project:
        project = await self._find(project_id)
        check_cloned(project, self._clones.progress(project_id))
        return project

    async def _find(self, project_id: str) -> Project:
        project = await self._context.reader.project(project_id)
        if project is None or project.deleted_at is not None:
            raise NotFound(f"project_id: there is no project {project_id}")
        return project

    def _uid(self, message: CreateProject) -> int:
        """The user id of its agents, which never changes: it owns the project's files."""
        return new_uid(uid_of(self._context.config, message.container_type, message.name))

    @handles(CreateProject)
    async def _create(self, message: CreateProject) -> Project | None:
        now = self.clock.time()
        if self._clones.joined(message, self.defer):
            return None  # answered with the first request of its key
        if (known := await self._made_before(message)) is not None:
            return known
        if self._context.homes is not None:  # the newest may be of a node whose clock is ahead
            ids.begin_after(*await self._context.reader.newest_ids())
        project = self._new(message, now)
        with contextlib.suppress(UnicodeEncodeError):  # the store refuses it, and names the field
            await self._check_name(project.name)
        configs = self._context.folders.configs
        await asyncio.to_thread(configs.begun_with, project)  # refused before the project exists
        workspace = Workspace(
            id=project.default_workspace_id,
            project_id=project.id,
            created_at=now,
            is_default=True,
        )
        ops: list[Op] = [PutProject(project), PutWorkspace(workspace)]
        if message.idempotency is not None:
            ops.append(_claim(message, message.idempotency, project))
        store, homes = self._context.store, self._context.homes
        if homes is not None:
            await homes.place_here(project)
        if project.repository is not None:
            await self._begin_clone(project, message, PutWorkspace(workspace))
            return None  # answered when it has been cloned
        # Until its folders exist it is stored as a deleted one: it is not visible, its name is
        # free, and if the server is killed meanwhile, its remains are removed.
        await store.ask(
            Transact(ops=(PutProject(msgspec.structs.replace(project, deleted_at=now)),))
        )
        try:
            await asyncio.to_thread(self._make_folders, project, message)
            failpoint("project.folders_made")
            await store.ask(Transact(ops=tuple(ops)))
        except BaseException as error:
            await self._clear_unmade(project.id)
            if isinstance(error, AlreadyExists):  # made by another request meanwhile
                await self._check_name(project.name)
            raise
        return project

    async def _check_name(self, name: str) -> None:
        """Refuse the name of a project that exists.

        Raises:
            AlreadyExists: there is one; the error has its id.
        """
        other = await self._context.reader.project_named(name)
        if other is not None:
            raise AlreadyExists(
                f"project already exists: {other.id} has this name",
                hint="use that one, or choose another name",
                existing_id=other.id,
            )

    # ------------------------------------------------------------------ clones

    async def _begin_clone(self, project: Project, message: CreateProject, *more: Op) -> None:
        await asyncio.to_thread(self._clones.repositories.begin, project.id)
        try:
            await self._context.store.ask(Transact(ops=(PutProject(project), *more)))
        except BaseException as error:
            await self._clear_unmade(project.id)
            if isinstance(error, AlreadyExists):
                await self._check_name(project.name)
            raise
        self._clones.begin(project, message, self.defer())

    @handles(CloneSaid)
    def _clone_said(self, message: CloneSaid) -> None:
        self._clones.said(message)

    @handles(GetCloneProgress)
    def _clone_progress(self, message: GetCloneProgress) -> str | None:
        return self._clones.progress(message.project_id)

    @handles(CloneEnded)
    async def _clone_ended(self, message: CloneEnded) -> None:
        running = self._clones.ended(message.project_id)
        if running is None:
            return  # the project was deleted meanwhile
        project, error = running.project, as_ours(message.error) if message.error else None
        if message.repository is not None:
            project = msgspec.structs.replace(project, repository=message.repository)
            ops: list[Op] = [PutProject(project)]
            if running.message.idempotency is not None:
                ops.append(_claim(running.message, running.message.idempotency, project))
            try:
                await self._context.store.ask(Transact(ops=tuple(ops)))
                await asyncio.to_thread(self._clones.repositories.ended, project.id)
            except (OublietteError, OSError) as refused:
                error = as_ours(refused)
        if error is not None:
            await self._drop(project, *running.answers, refusal=error)
            return
        for answer in running.answers:
            answer.set(project)

    async def _end_unfinished(self, project_id: str, project: Project | None) -> None:
        """Remove a project whose clone an earlier server has begun and not ended."""
        repository = None if project is None else project.repository
        if project is None or project.deleted_at is not None or repository is None:
            self._removals.clear_away(project_id)
        elif repository.ready:
            await asyncio.to_thread(self._clones.repositories.ended, project_id)
        else:
            log.warning("a clone was cut off, its project is removed", project_id=project_id)
            await self._drop(project)

    async def _drop(
        self, project: Project, *answers: Deferred, refusal: BaseException | None = None
    ) -> None:
        """Remove a project that was not cloned; those who wait for it get the error then."""
        try:
            gone = msgspec.structs.replace(project, deleted_at=self.clock.time())
            await self._context.store.ask(Transact(ops=(PutProject(gone),)))
            await self._leave(project.id)
        except (OublietteError, OSError) as error:
            log.warning("left for the next start", project_id=project.id, reason=str(error))
            for answer in answers:
                answer.set_error(refusal or error)
            return
        self._removals.clear_away(project.id, *answers, refusal=refusal)

    async def _made_before(self, message: CreateProject) -> Project | None:
        """The project that a request with the same idempotency key created.

        Raises:
            Conflict: that request had other arguments.
        """
        key = message.idempotency
        if key is None:
            return None
        found = await self._context.reader.idempotency(message.principal, key.tool, key.key)
        if found is None or self.clock.time() - found.created_at >= IDEMPOTENCY_SECONDS:
            return None
        if found.digest != key.digest:
            raise Conflict(
                "idempotency_key: it was used with other arguments",
                hint="choose a new key",
            )
        return await self._find(str((found.answer or {}).get("project_id")))

    def _new(self, message: CreateProject, now: float) -> Project:
        return made_of(
            message,
            Project,
            id=ids.new_id(ids.PROJECT),
            created_at=now,
            default_workspace_id=ids.new_uuid(),
            uid=self._uid(message),
            remote_url=message.remote_url or (message.repository and message.repository.url),
            owner=message.principal,
        )

    def _make_folders(self, project: Project, message: CreateProject) -> None:
        folders, workspace_id = self._context.folders, project.default_workspace_id
        try:
            folders.create_project(project)
            folders.create_workspace(project, workspace_id)
            if message.init_git:
                folders.init_git(project, workspace_id, message.remote_url)
        except (RuntimeFailure, OSError, subprocess.SubprocessError) as error:
            why = error.message if isinstance(error, RuntimeFailure) else str(error)
            raise RuntimeFailure(
                f"the project's folder cannot be made: {why}",
                hint="nothing was created: once that is mended, create the project again",
            ) from error

    async def _clear_unmade(self, project_id: str) -> None:
        """Remove the folders of a project that was not created."""
        try:
            found = await self._context.reader.project(project_id)
            if found is None or found.deleted_at is not None:  # otherwise only the answer was lost
                await in_own_thread(self._context.folders.remove_project, project_id)
                await self._leave(project_id)
        except (OublietteError, OSError) as error:
            log.warning("left for the next start", project_id=project_id, reason=str(error))

    @handles(UpdateProject)
    async def _update(self, message: UpdateProject) -> Project:
        self._check_not_moving(message.project_id)
        project = await self._find_cloned(message.project_id)
        if message.allow_push is not None:
            if project.repository is None:
                raise Conflict(
                    f"project {project.id} was not cloned from a repository, so nothing is pushed",
                    hint="project_create with repository clones one",
                )
            repository = msgspec.structs.replace(project.repository, push=message.allow_push)
            project = msgspec.structs.replace(project, repository=repository)
        if message.answers is not None:
            project = msgspec.structs.replace(project, answers=message.answers)
        await self._context.store.ask(Transact(ops=(PutProject(project),)))
        return project

    @handles(DeleteProject)
    async def _delete(self, message: DeleteProject) -> None:
        self._check_not_moving(message.project_id)
        project = await self._find(message.project_id)

        if self._removals.closing(project.id):
            self._removals.join(project.id, self.defer())
            return
        if project.repository is not None and not project.repository.ready:
            closing = self._clones.stop(project.id)
        else:
            name = self._open_one(project)
            closing = self.system.ref(name).ask(CloseProject(), timeout=20.0)
        self._removals.begin(project.id, self.defer(), closing)

    @handles(ProjectClosed)
    async def _closed(self, message: ProjectClosed) -> None:
        project_id = message.project_id
        if message.error is not None:
            self._keep(project_id)
            self._removals.refuse(project_id, message.error)
            return
        try:
            await self.end_child(project_id)
            project = await self._find(project_id)
            gone = msgspec.structs.replace(project, deleted_at=self.clock.time())
            await self._context.store.ask(Transact(ops=(PutProject(gone),)))
            failpoint("project.deleted")
        except Exception as error:
            self._removals.refuse(project_id, error)
            return
        snapshots = self.system.lookup(SNAPSHOTS)
        if snapshots is not None:
            with contextlib.suppress(MailboxFull):  # it looks for copies of deleted ones itself
                snapshots.tell(ForgetCopies(project_id=project_id))
        self._removals.deleted(project_id)

    @handles(FilesRemoved)
    def _files_removed(self, message: FilesRemoved) -> None:
        self._removals.removed(message)

    async def _leave(self, project_id: str) -> None:
        if self._context.homes is not None:
            await self._context.homes.leave(project_id)

    def _check_not_moving(self, project_id: str) -> None:
        if project_id in self._moving:
            raise ProjectMoves(
                f"project {project_id} is moving to another node", hint="try again in a moment"
            )

    @handles(HoldProject)
    async def _hold(self, message: HoldProject) -> None:
        """Keep a project still, with nothing of it running, until `ReleaseProject`."""
        project = await self._find_cloned(message.project_id)
        if self._removals.closing(project.id):
            raise Conflict(f"project {project.id} is being deleted")
        name = self._open_one(project)
        self._moving.add(project.id)
        try:
            await self.system.ref(name).ask(CloseProject(moves=True), timeout=20.0)
        except BaseException:
            self._moving.discard(project.id)
            self._keep(project.id)
            raise
        await self.end_child(project.id)

    def _keep(self, project_id: str) -> None:
        """Have sessions begin again in a project that could not be closed, or not in time."""
        project = self.system.lookup(f"{self.name}/{project_id}")
        if project is not None:
            with contextlib.suppress(MailboxFull):  # closed until it ends unused, if it was at all
                project.tell(KeepProject())

    @handles(ReleaseProject)
    def _release(self, message: ReleaseProject) -> None:
        self._moving.discard(message.project_id)
        if message.moved:
            self._removals.clear_away(message.project_id, self.defer())

    @handles(TakeOverProjects)
    async def _take_over(self, _: TakeOverProjects) -> None:
        homes, reader = self._context.homes, self._context.reader
        assert homes is not None, "only a node of a cluster is told so"
        try:
            taken = await homes.take_over()
            found = [await reader.project(each) for each in taken if not self.has_child(each)]
            # First, so that the ends of their sessions are counted in their trees.
            await self.system.ref("trees").ask(ReopenTrees())
        except OublietteError as error:  # nothing that is asked meanwhile has to wait
            log.warning("projects of lost machines are not taken over", reason=str(error))
            if self._take_over_again is not None:
                self._take_over_again.cancel()
            self._take_over_again = self.after(TAKE_OVER_SECONDS, TakeOverProjects())
            return
        for project in found:
            if project is not None and project.deleted_at is None:
                log.warning("project of a lost machine taken over", project_id=project.id)
                self._open_one(project)


def _claim(message: CreateProject, key: Idempotency, project: Project) -> PutIdempotency:
    """The record of the answer to a request under its idempotency key."""
    return PutIdempotency(
        IdempotencyKey(
            principal=message.principal,
            tool=key.tool,
            key=key.key,
            digest=key.digest,
            created_at=project.created_at,
            answer={"project_id": project.id},
        )
    )
