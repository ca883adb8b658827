"""Tools of the repositories that projects were cloned from: `repository_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta

from oubliette.actors.messages import FetchRepository, ListBranches
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.project import BranchInfo
from oubliette.tools.clone_progress import receiving
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.actors.messages import RepositoryFetched
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

SLACK_SECONDS: Final = 120.0
"""Time beyond that of git, for what is under way before it."""


class RepositoryOne(Params, frozen=True, kw_only=True):
    """Parameters of `repository_fetch`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]


class RepositoryBranches(Params, frozen=True, kw_only=True):
    """Parameters of `repository_branches`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    name_contains: Annotated[
        Annotated[str, Meta(max_length=200)] | None,
        Meta(description="Text that the name contains."),
    ] = None
    limit: Annotated[field_types.PageSize, Meta(description="Maximum number to return.")] = 100


class RepositoryNews(Result, frozen=True, kw_only=True):
    """Result of `repository_fetch`."""

    project_id: str
    updated: Annotated[
        tuple[str, ...], Meta(description="Branches that are new or have another commit.")
    ]
    removed: Annotated[tuple[str, ...], Meta(description="Branches that are gone there.")]


class BranchPage(Result, frozen=True, kw_only=True):
    """Result of `repository_branches`."""

    project_id: str
    branches: tuple[BranchInfo, ...]
    more: Annotated[bool, Meta(description="Whether there are more than were asked for.")]


@tool(RepositoryOne, RepositoryNews, scope="write", runs_on="needed")
async def repository_fetch(
    services: ToolServices, context: CallContext, params: RepositoryOne
) -> RepositoryNews:
    """Fetch what is new where a project was cloned from. Existing workspaces stay as they are."""
    project = await visible_project(services, context, params.project_id)
    ref = await services.project_ref(project.id)
    seconds = services.config.repositories.clone_seconds + SLACK_SECONDS
    async with receiving(services, context) as progress_to:
        found: RepositoryFetched = await ref.ask(
            FetchRepository(progress_to=progress_to), timeout=seconds
        )
    return RepositoryNews(project_id=project.id, updated=found.updated, removed=found.removed)


@tool(RepositoryBranches, BranchPage, scope="read", read_only=True, runs_on="needed")
async def repository_branches(
    services: ToolServices, context: CallContext, params: RepositoryBranches
) -> BranchPage:
    """List the branches of the repository that a project was cloned from, newest commits first.

    They are as `repository_fetch` brought them last.
    """
    project = await visible_project(services, context, params.project_id)
    ref = await services.project_ref(project.id)
    seconds = services.config.repositories.clone_seconds + SLACK_SECONDS
    found: tuple[BranchInfo, ...] = await ref.ask(ListBranches(), timeout=seconds)
    part = (params.name_contains or "").casefold()
    wanted = [each for each in found if part in each.name.casefold()]
    return BranchPage(
        project_id=project.id,
        branches=tuple(wanted[: params.limit]),
        more=len(wanted) > params.limit,
    )
