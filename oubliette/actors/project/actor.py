"""Actor of one project: its containers, its workspaces, and the end of what is in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.container.key import ContainerKey
from oubliette.actors.container.messages import StopContainer
from oubliette.actors.container.unit import ContainerSupervisor
from oubliette.actors.messages import (
    DeleteWorkspace,
    EndSession,
    OpenContainer,
    SpawnResult,
    SpawnSession,
)
from oubliette.actors.project.disk_quota import (
    DiskQuotaMonitor,
    Measured,
    MeasureFailed,
    MeasureNow,
)
from oubliette.actors.project.session_spawner import SessionSpawner
from oubliette.actors.session import lifecycle
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, NotFound, SessionHandover
from oubliette.kit import ChildSpec, DynamicSupervisor, Message, Reply, handles
from oubliette.runtime.store.operations import PutSession, PutWorkspace

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Ref
    from oubliette.records import Project, Session

DEFAULT_CONTAINER_TYPE: Final = "base"


class CloseProject(Message, Reply[None]):
    """To a ProjectActor: stop the project's containers; refused while sessions live."""


class ProjectActor(DynamicSupervisor):
    """Supervisor of a project's containers, which starts its sessions and owns its workspaces."""

    def __init__(self, context: ActorContext, project: Project) -> None:
        super().__init__(max_restarts=20, within=10.0)
        self._context = context
        self._project = project
        self._watch = DiskQuotaMonitor(context, project.id, self.after, self.pipe_to_self)
        self._spawner = SessionSpawner(self, context, project)
        self._closed = False
        """Whether the project is being deleted."""

    async def on_start(self) -> None:  # type: ignore[override]
        """Make the folders that a crash may have left out; recover the live sessions."""
        folders, project = self._context.folders, self._project
        await asyncio.to_thread(folders.create_project, project)
        for workspace in await self._context.reader.workspaces(project.id):
            await asyncio.to_thread(folders.create_workspace, project, workspace.id)
        super().on_start()
        for container in await self._context.reader.containers(project.id):
            self._unit(ContainerKey(container.container_type, container.workspace_id))
        for session in await self._context.reader.live_sessions(project.id):
            self.unit_of(session)  # which recovers its sessions
            self._watch.begin()

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
        return self.system.ref(self.ensure_child(spec))

    def unit_of(self, session: Session) -> Ref:
        """Return the unit in which the session runs; start it if there is none."""
        return self._unit(self._key(session))

    def session_begins(self) -> None:
        """Watch the disk usage, since a session is about to run."""
        self._watch.begin()

    @handles(OpenContainer)
    def _open_unit(self, message: OpenContainer) -> str:
        project = self._project
        workspace = message.workspace_id or project.default_workspace_id
        return self._unit(
            ContainerKey(self._kind, workspace if project.workspace_isolation else None)
        ).name

    # ------------------------------------------------------------------ sessions

    @handles(SpawnSession)
    async def _spawn(self, message: SpawnSession) -> SpawnResult:
        if self._closed:
            raise NotFound(f"project_id: there is no project {self._project.id}")
        return await self._spawner.spawn(message)

    @handles(EndSession)
    async def _end_finished(self, message: EndSession) -> str:
        session = await self._context.reader.session(message.session_id)
        if session is None or session.project_id != self._project.id:
            raise NotFound(f"session_id: there is no session {message.session_id}")
        if lifecycle.live(session):  # no actor runs it yet, after a restart of the server
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
        workspace = await self._context.reader.workspace(message.workspace_id)
        if (
            workspace is None
            or workspace.deleted_at is not None
            or workspace.project_id != self._project.id
        ):
            raise NotFound(f"workspace_id: there is no workspace {message.workspace_id}")
        if workspace.is_default:
            raise Conflict("the default workspace of a project cannot be deleted")
        live = await self._context.reader.live_sessions(self._project.id, workspace_id=workspace.id)
        if live:
            refusal = f"{lifecycle.living(len(live))} in this workspace"
            raise Conflict(refusal, hint="end them with session_end")
        if self._project.workspace_isolation:
            await self._stop_unit(ContainerKey(self._kind, workspace.id))
        gone = msgspec.structs.replace(workspace, deleted_at=self.clock.time())
        await self._context.store.ask(Transact(ops=(PutWorkspace(gone),)))
        await asyncio.to_thread(
            self._context.folders.remove_workspace, self._project.id, workspace.id
        )

    async def _stop_unit(self, key: ContainerKey) -> None:
        if self.has_child(key.label):
            container = self.system.ref(f"{self.name}/{key.label}/container")
            await container.ask(StopContainer(force=True))

    @handles(CloseProject)
    async def _close(self, _: CloseProject) -> None:
        live = await self._context.reader.live_sessions(self._project.id)
        if live:
            refusal = f"{lifecycle.living(len(live))} in this project"
            raise Conflict(refusal, hint="end them with session_end")
        self._closed = True
        for label in self.children:
            await self.system.ref(f"{self.name}/{label}/container").ask(StopContainer(force=True))
