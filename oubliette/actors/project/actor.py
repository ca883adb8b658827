"""Actor of one project: its containers, its workspaces, and the end of what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.actors.container.messages import (
    ContainerKey,
    GetUnused,
    StopContainer,
    UnitUnused,
    UseProject,
)
from oubliette.actors.container.supervisor import ContainerSupervisor, StartSession
from oubliette.actors.merge_requests import (
    DropUnused,
    FetchAgentCommits,
    FindKept,
    MergeSession,
    PushBranch,
)
from oubliette.actors.messages import (
    DeleteWorkspace,
    EndSession,
    FetchRepository,
    GetProblem,
    ListBranches,
    OpenContainer,
    ResetImage,
    ServeRepository,
    SnapshotContainer,
    SpawnResult,
    SpawnSession,
)
from oubliette.actors.project.branch_work import BranchWork
from oubliette.actors.project.container_images import ContainerImages, ContainerStored
from oubliette.actors.project.disk_quota import (
    DiskQuotaMonitor,
    Measured,
    MeasureFailed,
    MeasureNow,
)
from oubliette.actors.project.first_use import FilesBrought, FirstUse
from oubliette.actors.project.project_folders import ProjectFolders
from oubliette.actors.project.repository_work import (
    RepositoryAnswered,
    RepositoryTidied,
    RepositoryWork,
    WorkspaceCloned,
)
from oubliette.actors.project.session_spawner import SessionSpawner
from oubliette.actors.project.workspace_deletion import (
    WorkspaceDeletions,
    WorkspaceRemoved,
    WorkspaceStored,
)
from oubliette.actors.session import lifecycle
from oubliette.actors.session_registry import GetSupervised
from oubliette.actors.snapshot_requests import SNAPSHOTS, CloseSnapshots
from oubliette.actors.store.actor import Transact
from oubliette.actors.store.outages import once_back
from oubliette.errors import Conflict, NotFound, OublietteError, ProjectMoves, SessionHandover
from oubliette.kit import ActorError, ChildSpec, DynamicSupervisor, Message, Reply, handles
from oubliette.runtime.store.operations import PutSession

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import Project, Session

log = structlog.get_logger(__name__)

DEFAULT_CONTAINER_TYPE: Final = "base"
UNUSED_SECONDS: Final = 1.0
"""Seconds from the last request for a unit to its end, at least."""
ASK_SECONDS: Final = 5.0  # for the actors of a unit to answer whether they are used
CLOSE_SECONDS: Final = 15.0
"""Time for the snapshots that are under way when a project is closed."""


class CloseProject(Message, Reply[None]):
    """To a ProjectActor: stop the project's containers; refused while sessions live."""

    moves: bool = False
    """Whether it is moved to another node, and not deleted."""


class KeepProject(Message):
    """To a ProjectActor that could not be closed: sessions may begin in it as before."""


class ProjectActor(DynamicSupervisor):
    """Supervisor of a project's containers, which starts its sessions and owns its workspaces."""

    def __init__(self, context: ActorContext, project: Project) -> None:
        super().__init__()
        self._context = context
        self._project = project
        self._watch = DiskQuotaMonitor(
            context, project.id, self.after, self.pipe_to_self, self._containers
        )
        self._folders = ProjectFolders(context, project)
        self._spawner = SessionSpawner(self, context, project)
        self._first_use = FirstUse(self, context, project.id)
        self._repository = RepositoryWork(self, context, project)
        self._branches = BranchWork(self._repository)
        self._images = ContainerImages(self, context)
        self._deletions = WorkspaceDeletions(
            self, context, project, stop_unit=self._stop_unit_of, end_unit=self._end_unit_of
        )
        self._named: dict[str, float] = {}
        """Label of a unit → monotonic second of the last request for it."""
        self._closed: OublietteError | None = None
        """Error for those who start a session, once it is closed."""

    async def on_start(self) -> None:  # type: ignore[override]
        """Make the folders that a crash may have left out; recover the live sessions."""
        project, reader = self._project, self._context.reader
        await self._folders.make()
        super().on_start()
        # Its sessions may be of a node whose clock is ahead of ours: later ones are newer still.
        ids.begin_after(*await once_back(lambda: reader.newest_ids(project.id)))
        for container in await once_back(lambda: reader.containers(project.id)):
            self._unit(ContainerKey(container.container_type, container.workspace_id))
        for session in await once_back(lambda: reader.live_sessions(project.id)):
            self.unit_of(session)  # which recovers its sessions

    # ------------------------------------------------------------------ units

    @property
    def _kind(self) -> str:
        return self._project.container_type or DEFAULT_CONTAINER_TYPE

    def _key(self, session: Session) -> ContainerKey:
        return ContainerKey(
            self._kind, session.workspace_id if self._project.workspace_isolation else None
        )

    def _unit(self, key: ContainerKey) -> Ref:
        spec = ChildSpec(
            name=key.label,
            cls=ContainerSupervisor,
            args=(self._context, self._project, key),
            shutdown=15.0,
        )
        self._named[key.label] = self.clock.monotonic()
        self._watch.begin()
        return self.system.ref(self.ensure_child(spec))

    @handles(UnitUnused)
    async def _unit_unused(self, message: UnitUnused) -> None:
        """End a unit whose container has stopped, if no session lives in it."""
        label = message.label
        since = self.clock.monotonic() - self._named.get(label, 0.0)
        if not self.has_child(label):
            return
        if since < UNUSED_SECONDS:  # it is about to be used
            self.after(UNUSED_SECONDS - since, message)
            return
        unit = f"{self.name}/{label}"
        try:
            lives = await self.system.ref(f"{unit}/sessions").ask(GetSupervised(), ASK_SECONDS)
            unused = await self.system.ref(f"{unit}/container").ask(GetUnused(), ASK_SECONDS)
        except ActorError:
            return  # it is being restarted, and reports again then
        if unused and not lives:
            await self._end_unit(label)

    async def _end_unit(self, label: str) -> None:
        await self.end_child(label)
        self._named.pop(label, None)

    def _container(self, workspace_id: str) -> Ref:
        key = ContainerKey(self._kind, workspace_id if self._project.workspace_isolation else None)
        return self.system.ref(f"{self._unit(key).name}/container")

    def _containers(self) -> list[Ref]:
        return [self.system.ref(f"{self.name}/{label}/container") for label in self.children]

    def unit_of(self, session: Session) -> Ref:
        return self._unit(self._key(session))

    def run_again(self, session: Session) -> None:
        sessions = self.system.ref(f"{self.unit_of(session).name}/sessions")
        sessions.tell(StartSession(session_id=session.id))

    async def check_workspace(self, workspace_id: str) -> None:
        self._deletions.check(workspace_id)
        await self._folders.check(workspace_id)

    @handles(GetProblem)
    async def _problem(self, message: GetProblem) -> str | None:
        return await self._folders.problem(message.workspace_id)

    @handles(OpenContainer)
    async def _open_unit(self, message: OpenContainer) -> str:
        project = self._project
        workspace = message.workspace_id or project.default_workspace_id
        key = ContainerKey(self._kind, workspace if project.workspace_isolation else None)
        name = self._unit(key).name
        if message.command:
            self._watch.check_command()
        if message.for_use and self._context.homes is not None:
            answer, seen = self.defer(), [workspace]
            if not project.workspace_isolation:
                known = await self._context.reader.workspaces(project.id)
                seen = [each.id for each in known if each.deleted_at is None]
            self._first_use.answer(seen, answer, name)
        return name

    @handles(FilesBrought)
    def _files_brought(self, message: FilesBrought) -> None:
        self._first_use.brought(message)

    @handles(GetUnused)
    def _get_unused(self, _: GetUnused) -> bool:
        return self.at_rest and not self.children

    # ------------------------------------------------------------------ sessions

    @handles(SpawnSession)
    async def _spawn(self, message: SpawnSession) -> SpawnResult | None:
        if self._closed is not None:
            raise self._closed
        if message.create_workspace and await self._spawner.known(message) is None:
            cloned = await self._repository.with_workspace(message)
            if cloned is None:
                return None  # answered when the workspace has been cloned
        return await self._spawner.spawn(message)

    @handles(WorkspaceCloned)
    async def _workspace_cloned(self, message: WorkspaceCloned) -> None:
        error: BaseException | None = self._closed or message.error
        if error is None:
            try:
                message.answer.set(await self._spawner.spawn(message.spawn))
            except Exception as refused:
                error = refused
        await self._repository.drop_unused(message.spawn)
        if error is not None:
            message.answer.set_error(error)

    # ------------------------------------------------------------------ the repository

    @handles(FetchRepository)
    def _fetch(self, message: FetchRepository) -> None:
        self._repository.fetch(message, self.defer())

    @handles(ListBranches)
    def _list_branches(self, _: ListBranches) -> None:
        self._repository.list_branches(self.defer())

    @handles(MergeSession)
    def _merge(self, message: MergeSession) -> None:
        self._branches.merge(message, self.defer())

    @handles(PushBranch)
    def _push(self, message: PushBranch) -> None:
        self._branches.push(message, self.defer())

    @handles(FetchAgentCommits)
    def _fetch_commits(self, message: FetchAgentCommits) -> None:
        container = self._container(message.workspace_id)
        self._branches.fetch_commits(message, container, self.defer())

    @handles(DropUnused)
    async def _drop_unused(self, message: DropUnused) -> None:
        await self._repository.drop_workspace(message.workspace_id)

    @handles(FindKept)
    def _find_kept(self, message: FindKept) -> None:
        self._branches.find_kept(message, self.defer())

    @handles(ServeRepository)
    def _serve(self, _: ServeRepository) -> None:
        self._repository.serve(self.defer())

    @handles(RepositoryAnswered)
    def _repository_answered(self, message: RepositoryAnswered) -> None:
        message.give()
        self._repository.tidy()

    @handles(RepositoryTidied)
    def _repository_tidied(self, _: RepositoryTidied) -> None:
        self._repository.tidied()

    # ------------------------------------------------------------------ its image

    @handles(SnapshotContainer)
    def _snapshot_container(self, message: SnapshotContainer) -> None:
        workspace = message.workspace_id or self._project.default_workspace_id
        self._images.store(message, self._project, self._container(workspace), self.defer())

    @handles(ContainerStored)
    async def _container_stored(self, message: ContainerStored) -> None:
        self._use(await self._images.stored(message, self._project))

    @handles(ResetImage)
    async def _reset_image(self, message: ResetImage) -> None:
        self._use(await self._images.reset(message, self._project))

    def _use(self, project: Project) -> None:
        self._project = project
        for container in self._containers():
            container.tell(UseProject(project=project))

    @handles(EndSession)
    async def _end_finished(self, message: EndSession) -> str:
        session = await self._context.reader.session(message.session_id)
        if session is None or session.project_id != self._project.id:
            raise NotFound(f"session_id: there is no session {message.session_id}")
        if lifecycle.live(session):  # no actor runs it yet, after a restart of the server
            self.run_again(session)
            raise SessionHandover("the session is changing hands", hint="try again in a moment")
        if session.ended_by is not None:
            return session.status
        ended = msgspec.structs.replace(session, ended_by=message.reason)
        await self._context.store.ask(Transact(ops=(PutSession(ended),)))
        return ended.status

    # ------------------------------------------------------------------ its size

    @handles(MeasureNow)
    def _measure_now(self, _: MeasureNow) -> None:
        self._watch.measure()

    @handles(Measured)
    def _measured(self, message: Measured) -> None:
        self._watch.measured(message)

    @handles(MeasureFailed)
    def _measure_failed(self, message: MeasureFailed) -> None:
        self._watch.failed(message)

    # ------------------------------------------------------------------ workspaces

    @handles(DeleteWorkspace)
    async def _delete_workspace(self, message: DeleteWorkspace) -> None:
        await self._deletions.begin(message, self.defer)

    @handles(WorkspaceStored)
    async def _workspace_stored(self, message: WorkspaceStored) -> None:
        await self._deletions.stored(message)

    @handles(WorkspaceRemoved)
    def _workspace_removed(self, message: WorkspaceRemoved) -> None:
        self._deletions.removed(message)

    async def _stop_unit_of(self, workspace_id: str) -> None:
        label = ContainerKey(self._kind, workspace_id).label
        if self.has_child(label):
            container = self.system.ref(f"{self.name}/{label}/container")
            await container.ask(StopContainer(force=True))

    async def _end_unit_of(self, workspace_id: str) -> None:
        await self._end_unit(ContainerKey(self._kind, workspace_id).label)

    @handles(CloseProject)
    async def _close(self, message: CloseProject) -> None:
        live = await self._context.reader.live_sessions(self._project.id)
        if live:
            refusal = f"{lifecycle.living(len(live))} in this project"
            raise Conflict(refusal, hint="end them with session_end")
        project_id = self._project.id
        self._closed = (
            ProjectMoves(f"project {project_id} is moving to another node", hint="try again")
            if message.moves
            else NotFound(f"project_id: there is no project {project_id}")
        )
        snapshots = self.system.lookup(SNAPSHOTS)
        if snapshots is not None:
            await snapshots.ask(CloseSnapshots(project_id=project_id), timeout=CLOSE_SECONDS)
        for container in self._containers():
            await container.ask(StopContainer(force=True))
        if not message.moves:
            await self._images.drop(self._project)

    @handles(KeepProject)
    def _keep(self, _: KeepProject) -> None:
        self._closed = None
