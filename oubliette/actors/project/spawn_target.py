"""Workspace and session that a request for a session means."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from oubliette import ids
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, LimitExceeded, NotFound
from oubliette.records import Workspace
from oubliette.runtime.store.operations import PutWorkspace

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import SpawnSession
    from oubliette.clock import Clock
    from oubliette.records import Project, Session
    from oubliette.runtime.store.reader import Reader


class SpawnTarget:
    """Part of a ProjectActor that finds what a request means, or makes the workspace for it."""

    def __init__(self, context: ActorContext, project: Project, clock: Clock) -> None:
        self._context = context
        self._project = project
        self._clock = clock

    async def workspace(self, message: SpawnSession) -> tuple[Workspace | None, bool]:
        """Return the workspace that the message names, and whether it is new.

        A new one is made by `make`, once the session is known to be allowed; a copy is made
        already. None if the session that the message names determines it.

        Raises:
            NotFound: there is no such workspace, and it is not to be made; or another project has
                one of that id, of which this project learns nothing else.
            LimitExceeded: the project has as many workspaces as it may.
        """
        if message.session_id is not None:
            return None, False
        if message.fork is not None or message.branch_from is not None:
            return await self._forked(message), True
        if message.workspace_id is None and not message.create_workspace:
            wanted = await unnamed_workspace(
                self._context.reader, self._project, message.external_id, message.source
            )
        elif message.workspace_id is None:
            wanted = ids.new_uuid()
        else:
            wanted = ids.check_uuid(message.workspace_id, "workspace_id")
        workspace = await self._context.reader.workspace(wanted)
        if (
            workspace is not None
            and workspace.deleted_at is None
            and workspace.project_id == self._project.id
        ):
            return workspace, False
        if workspace is None and message.create_workspace:
            await check_workspaces(self._context, self._project)
            project_id, now = self._project.id, self._clock.time()
            new = Workspace(
                id=wanted,
                project_id=project_id,
                created_at=await self._context.reader.next_workspace_time(project_id, now),
                external_id=message.external_id,
                source=message.source,
            )
            return new, True
        raise NotFound(
            f"workspace_id: there is no workspace {wanted} in this project",
            hint="create_workspace=true without a workspace_id makes one",
        )

    async def _forked(self, message: SpawnSession) -> Workspace:
        """The workspace that was made as a copy, which is stored with its session."""
        assert message.workspace_id is not None, "it was made under this id"
        workspace = await self._context.reader.workspace(message.workspace_id)
        assert workspace is not None, "it was stored as a deleted one"
        return msgspec.structs.replace(workspace, deleted_at=None)

    async def make(self, workspace: Workspace) -> None:
        """Make the folder of a new workspace, whose record is stored with its session.

        Until then it is that of a deleted one, which a server removes if this one is killed.
        """
        gone = msgspec.structs.replace(workspace, deleted_at=workspace.created_at)
        await self._context.store.ask(Transact(ops=(PutWorkspace(gone),)))
        folders = self._context.folders
        await asyncio.to_thread(folders.create_workspace, self._project, workspace.id)

    async def take_back(self, workspace: Workspace) -> None:
        """Remove what `make` has made for a session that was refused after all."""
        stored = await self._context.reader.workspace(workspace.id)
        if stored is not None and stored.deleted_at is not None:
            remove = self._context.folders.remove_workspace
            await asyncio.to_thread(remove, self._project.id, workspace.id)

    async def session(
        self, message: SpawnSession, workspace: Workspace | None, tree: str | None = None
    ) -> Session | None:
        """Return the session that is meant; None if it is a new one.

        With the id of a `tree` it is one of that tree.

        Raises:
            NotFound: there is no such session for this principal and parent.
            Conflict: it was ended.
        """
        reader = self._context.reader
        if message.session_id is not None:
            session = await reader.session(message.session_id)
            if (
                session is None
                or session.project_id != self._project.id
                or session.principal != message.principal
                or (
                    message.parent_session_id is not None
                    and session.parent_session_id != message.parent_session_id
                )
            ):
                raise NotFound(f"session_id: there is no session {message.session_id}")
            if session.ended_by is not None:
                raise Conflict(
                    "the session was ended and takes no more messages",
                    hint="start another one: new_session=true, in Python project.spawn",
                )
            return session
        if message.new_session or workspace is None:
            return None
        return await reader.latest_session(
            workspace.id, message.principal, message.parent_session_id, tree
        )


async def unnamed_workspace(
    reader: Reader, project: Project, external_id: str | None, source: str | None
) -> str:
    """Return the workspace of a request without a `workspace_id`: its user's, or the default."""
    wanted = project.default_workspace_id
    if external_id is not None:
        for workspace in await reader.workspaces(project.id):
            if (workspace.external_id, workspace.source) == (external_id, source):
                wanted = workspace.id
    return wanted


async def check_workspaces(context: ActorContext, project: Project) -> None:
    """Refuse another workspace to a project that has as many as it may.

    Raises:
        LimitExceeded: names the limit.
    """
    limit = context.config.projects.max_workspaces
    if len(await context.reader.workspaces(project.id)) >= limit:
        raise LimitExceeded(
            f"projects.max_workspaces: this project has {limit} workspaces, as many as it may",
            hint="delete one with workspace_delete, or use one that is there",
        )
