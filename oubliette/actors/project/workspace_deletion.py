"""Deletion of workspaces, beside the mailbox of a ProjectActor.

How long the last snapshot and the removal of the files take is up to the agents that worked in one;
sessions in other workspaces are started meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.actors.session import lifecycle
from oubliette.actors.snapshot_jobs import check_losses
from oubliette.actors.snapshot_requests import SNAPSHOTS, StoreLast
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, NotFound
from oubliette.failpoints import failpoint
from oubliette.kit import LocalMessage
from oubliette.runtime.long_work import in_own_thread
from oubliette.runtime.snapshots.snapshot_records import SnapshotLabel
from oubliette.runtime.store.operations import PutWorkspace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import DeleteWorkspace
    from oubliette.kit import Actor, Deferred
    from oubliette.records import Project, Workspace

DELETE_SECONDS: Final = 90.0
"""Time for the last snapshot of a workspace that is deleted."""


class WorkspaceStored(LocalMessage):
    """To a ProjectActor itself: the last snapshot of a workspace is stored, or it stays."""

    workspace: Workspace
    answer: Deferred
    error: BaseException | None = None


class WorkspaceRemoved(LocalMessage):
    """To a ProjectActor itself: the files of a deleted workspace are removed, or were refused."""

    answer: Deferred
    error: BaseException | None = None


class WorkspaceDeletions:
    """Part of a ProjectActor that handles `DeleteWorkspace`; it has the same lifetime."""

    def __init__(
        self,
        actor: Actor,
        context: ActorContext,
        project: Project,
        *,
        stop_unit: Callable[[str], Awaitable[None]],
        end_unit: Callable[[str], Awaitable[None]],
    ) -> None:
        """Stop the container of a workspace, if it has one, by `stop_unit`; then `end_unit`."""
        self._actor = actor
        self._stop_unit = stop_unit
        self._end_unit = end_unit
        self._context = context
        self._project = project
        self._begun: set[str] = set()

    def check(self, workspace_id: str) -> None:
        """Refuse what would begin in a workspace that is being deleted.

        Raises:
            Conflict: it is.
        """
        if workspace_id in self._begun:
            raise Conflict(f"workspace {workspace_id} is being deleted")

    async def begin(self, message: DeleteWorkspace, answer: Callable[[], Deferred]) -> None:
        """Store a workspace for the last time; `WorkspaceStored` comes to the actor.

        Raises:
            NotFound: there is no such workspace.
            Conflict: it is the default one, something lives in it, or it is being deleted.
        """
        workspace = await self._context.reader.workspace(message.workspace_id)
        if (
            workspace is None
            or workspace.deleted_at is not None
            or workspace.project_id != self._project.id
        ):
            raise NotFound(f"workspace_id: there is no workspace {message.workspace_id}")
        if workspace.is_default:
            raise Conflict("the default workspace of a project cannot be deleted")
        self.check(workspace.id)
        live = await self._context.reader.live_sessions(self._project.id, workspace_id=workspace.id)
        if live:
            refusal = f"{lifecycle.living(len(live))} in this workspace"
            raise Conflict(refusal, hint="end them with session_end")
        await self._stop_unit(workspace.id)
        self._begun.add(workspace.id)
        stored = WorkspaceStored(workspace=workspace, answer=answer())
        self._actor.pipe_to_self(
            self._store_last(workspace.id, message.discard),
            lambda _: stored,
            lambda error: msgspec.structs.replace(stored, error=error),
        )

    async def _store_last(self, workspace_id: str, discard: str | None) -> None:
        """Store a workspace; its snapshots stay as long as the project.

        Raises:
            Conflict: something would be lost, without consent.
        """
        snapshots = self._actor.system.lookup(SNAPSHOTS)
        if snapshots is None:
            return
        label = SnapshotLabel(
            session_id="workspace", turn=0, moment="final", when=self._context.clock.time()
        )
        store = StoreLast(project_id=self._project.id, workspace_id=workspace_id, label=label)
        losses = await snapshots.ask(store, timeout=DELETE_SECONDS)
        check_losses(losses, discard, "its last snapshot")

    async def stored(self, message: WorkspaceStored) -> None:
        """Record that a workspace is deleted, and remove its files."""
        workspace, answer = message.workspace, message.answer
        self._begun.discard(workspace.id)
        if message.error is not None:
            answer.set_error(message.error)
            return
        gone = msgspec.structs.replace(workspace, deleted_at=self._context.clock.time())
        try:
            failpoint("workspace.kept")
            await self._context.store.ask(Transact(ops=(PutWorkspace(gone),)))
            failpoint("workspace.deleted")
            await self._end_unit(workspace.id)
        except Exception as error:
            answer.set_error(error)
            return
        remove = self._context.folders.remove_workspace
        self._actor.pipe_to_self(
            in_own_thread(remove, self._project.id, workspace.id),
            lambda _: WorkspaceRemoved(answer=answer),
            lambda error: WorkspaceRemoved(answer=answer, error=error),
        )

    def removed(self, message: WorkspaceRemoved) -> None:
        """Answer who deleted a workspace."""
        if message.error is None:
            message.answer.set(None)
        else:
            message.answer.set_error(message.error)
