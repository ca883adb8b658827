"""Tools of workspaces: `workspace_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.actors.messages import DeleteWorkspace
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.project import WorkspaceView
from oubliette.errors import NotFound
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.schema.views import workspace_view
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

DELETE_SECONDS: Final = 120.0
"""Time for the last snapshot, and for the removal of the files."""


class WorkspaceList(Params, frozen=True, kw_only=True):
    """Parameters of `workspace_list`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 1000
    cursor: Annotated[
        field_types.Cursor | None, Meta(description="next_cursor of the previous page.")
    ] = None


class Workspaces(Result, frozen=True, kw_only=True):
    """Result of `workspace_list`."""

    workspaces: tuple[WorkspaceView, ...]
    next_cursor: str | None


class WorkspaceOne(Params, frozen=True, kw_only=True):
    """Parameters of `workspace_delete`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: Annotated[field_types.Uuid, Meta(description="UUID of the workspace.")]
    discard: field_types.Discard = None


class WorkspaceDeleted(Result, frozen=True, kw_only=True):
    """Result of `workspace_delete`."""

    workspace_id: str
    deleted: bool


@tool(WorkspaceList, Workspaces, scope="read", read_only=True)
async def workspace_list(
    services: ToolServices, context: CallContext, params: WorkspaceList
) -> Workspaces:
    """List the workspaces of a project, oldest first."""
    project = await visible_project(services, context, params.project_id)
    page = await services.reader.workspace_page(project.id, params.limit, params.cursor)
    views, _, cut = fitting(workspace_view(each) for each in page.records)
    return Workspaces(
        workspaces=tuple(views), next_cursor=views[-1].id if cut else page.next_cursor
    )


@tool(WorkspaceOne, WorkspaceDeleted, scope="write", destructive=True, runs_on="needed")
async def workspace_delete(
    services: ToolServices, context: CallContext, params: WorkspaceOne
) -> WorkspaceDeleted:
    """Delete a workspace and its files. Refused for the default one and while sessions use it.

    Where snapshots are taken, they stay; what the last one does not contain is lost only with
    discard.
    """
    project = await visible_project(services, context, params.project_id)
    record = await services.reader.workspace(params.workspace_id)
    if record is None or record.project_id != project.id or record.deleted_at is not None:
        raise NotFound(
            f"workspace {params.workspace_id} not found", hint="workspace_list shows them"
        )
    ref = await services.project_ref(project.id)
    await ref.ask(
        DeleteWorkspace(workspace_id=record.id, discard=params.discard), timeout=DELETE_SECONDS
    )
    return WorkspaceDeleted(workspace_id=record.id, deleted=True)
