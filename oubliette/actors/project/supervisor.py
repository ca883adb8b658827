"""Supervisor of all projects: creates, opens and deletes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette import ids
from oubliette.actors.messages import CreateProject, DeleteProject, OpenProject
from oubliette.actors.project.actor import CloseProject, ProjectActor
from oubliette.actors.project.spawn_answers import IDEMPOTENCY_SECONDS
from oubliette.actors.store.actor import Transact
from oubliette.errors import (
    AlreadyExists,
    Conflict,
    NotFound,
    OublietteError,
    RuntimeFailure,
)
from oubliette.failpoints import failpoint
from oubliette.kit import ChildSpec, DynamicSupervisor, handles
from oubliette.records import IdempotencyKey, Project, Workspace
from oubliette.runtime.containers.options import uid_of
from oubliette.runtime.store.operations import Op, PutIdempotency, PutProject, PutWorkspace

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import Idempotency

log = structlog.get_logger(__name__)

FIRST_UID: Final = 200_000
UIDS: Final = 1 << 30  # user ids over which projects are distributed, if the server may choose


class ProjectsActor(DynamicSupervisor):
    """Supervisor of the projects; the only actor that creates and deletes them."""

    def __init__(self, context: ActorContext) -> None:
        super().__init__(max_restarts=50, within=10.0)
        self._context = context

    async def on_start(self) -> None:  # type: ignore[override]
        """Open every project that has a live session."""
        super().on_start()
        reader = self._context.reader
        alive = {session.project_id for session in await reader.live_sessions()}
        alive |= {container.project_id for container in await reader.containers()}
        for project_id in sorted(alive):
            project = await reader.project(project_id)
            if project is not None and project.deleted_at is None:
                self._open_one(project)

    def _open_one(self, project: Project) -> str:
        return self.ensure_child(
            ChildSpec(
                name=project.id, cls=ProjectActor, args=(self._context, project), shutdown=20.0
            )
        )

    @handles(OpenProject)
    async def _open(self, message: OpenProject) -> str:
        if self.has_child(message.project_id):
            return f"{self.name}/{message.project_id}"
        return self._open_one(await self._find(message.project_id))

    async def _find(self, project_id: str) -> Project:
        project = await self._context.reader.project(project_id)
        if project is None or project.deleted_at is not None:
            raise NotFound(f"project_id: there is no project {project_id}")
        return project

    def _uid(self, message: CreateProject) -> int:
        """Return the user id of its agents, which never changes: it owns the project's files."""
        if os.geteuid() != 0:
            return os.geteuid()
        configured = uid_of(self._context.config, message.container_type, message.name)
        return configured or FIRST_UID + secrets.randbelow(UIDS)

    @handles(CreateProject)
    async def _create(self, message: CreateProject) -> Project:
        reader, now = self._context.reader, self.clock.time()
        if (known := await self._made_before(message)) is not None:
            return known
        project = self._new(message, now)
        with contextlib.suppress(UnicodeEncodeError):  # the store refuses it, and names the field
            if await reader.project_named(project.name) is not None:
                raise AlreadyExists("project already exists")
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
        store = self._context.store
        # Until its folders exist it is stored as a deleted one: it is not visible, its name is
        # free, and if the server is killed meanwhile, its remains are removed.
        await store.ask(
            Transact(ops=(PutProject(msgspec.structs.replace(project, deleted_at=now)),))
        )
        try:
            await asyncio.to_thread(self._make_folders, project, message)
            failpoint("project.folders_made")
            await store.ask(Transact(ops=tuple(ops)))
        except BaseException:
            await self._clear_unmade(project.id)
            raise
        return project

    async def _made_before(self, message: CreateProject) -> Project | None:
        """Return the project that a request with the same idempotency key created.

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
        return Project(
            id=ids.new_id(ids.PROJECT),
            name=message.name,
            created_at=now,
            default_workspace_id=ids.new_uuid(),
            uid=self._uid(message),
            description=message.description,
            remote_url=message.remote_url,
            container_type=message.container_type,
            agent=message.agent,
            model=message.model,
            autonomy=message.autonomy,
            workspace_isolation=message.workspace_isolation,
            accept_bare=message.accept_bare,
            limits=message.limits,
            mcp_servers=message.mcp_servers,
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
                await asyncio.to_thread(self._context.folders.remove_project, project_id)
        except (OublietteError, OSError) as error:
            log.warning("left for the next start", project_id=project_id, reason=str(error))

    @handles(DeleteProject)
    async def _delete(self, message: DeleteProject) -> None:
        project = await self._find(message.project_id)
        name = self._open_one(project)
        await self.system.ref(name).ask(CloseProject(), timeout=20.0)
        await self.end_child(project.id)
        now = self.clock.time()
        await self._context.store.ask(
            Transact(ops=(PutProject(msgspec.structs.replace(project, deleted_at=now)),))
        )
        failpoint("project.deleted")
        await asyncio.to_thread(self._context.folders.remove_project, project.id)


def _claim(message: CreateProject, key: Idempotency, project: Project) -> PutIdempotency:
    """Return the record of the answer to a request under its idempotency key."""
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
