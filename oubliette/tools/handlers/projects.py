"""Tools of projects: `project_*`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from oubliette.actors.messages import CreateProject, DeleteProject, GetCloneProgress, UpdateProject
from oubliette.config import agent_config
from oubliette.contract import field_types
from oubliette.contract.limits import Limits
from oubliette.contract.project import (
    Nothing,
    Placement,
    ProjectCreate,
    ProjectDelete,
    ProjectList,
    ProjectOne,
    ProjectUpdate,
    ProjectView,
)
from oubliette.errors import Forbidden, InvalidParameter
from oubliette.records import ProjectRepository, made_of
from oubliette.runtime.containers.options import types_of
from oubliette.runtime.repositories.addresses import check_branch, check_folder, check_url
from oubliette.runtime.repositories.workspace_clone import CHECKOUT_SECONDS
from oubliette.tools.auth import scopes
from oubliette.tools.auth.permission_answers import check_setting
from oubliette.tools.clone_progress import receiving
from oubliette.tools.lost_trees import check_discard
from oubliette.tools.schema.response_size import fitting
from oubliette.tools.schema.views import known, project_view
from oubliette.tools.services import project_not_found
from oubliette.tools.spawn_options import claim
from oubliette.tools.spec import Result, tool
from oubliette.tools.user_rights import check_project_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette import records
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

CREATE_SECONDS: Final = 60.0
DELETE_SECONDS: Final = 60.0
MAX_SERVERS_BYTES: Final = 64 * field_types.KIB


class ProjectPage(Result, frozen=True, kw_only=True):
    """Result of `project_list`."""

    projects: tuple[ProjectView, ...]
    next_cursor: str | None


class ProjectDeleted(Result, frozen=True, kw_only=True):
    """Result of `project_delete`."""

    project_id: str
    deleted: bool


class Options(Result, frozen=True, kw_only=True):
    """Result of `project_options`."""

    agents: tuple[str, ...]
    models: Annotated[
        tuple[str, ...], Meta(description="Models of the configuration; sessions may name others.")
    ]
    container_types: tuple[str, ...]
    runtimes: tuple[str, ...]
    limits: Annotated[Limits, Meta(description="The defaults of this server.")]
    scopes: tuple[str, ...]


@tool(ProjectCreate, ProjectView, scope="write", unbound=True, runs_on="new")
async def project_create(
    services: ToolServices, context: CallContext, params: ProjectCreate
) -> ProjectView:
    """Create a project with a default workspace. Sessions of agents run in projects.

    With a repository, the answer comes when that has been cloned.
    """
    check_offer(services, "agent", params.agent)
    check_offer(services, "container_type", params.container_type)
    _check_bare(services, context, params)
    check_project_name(services, context, params.name)
    check_setting(context, params.answers if params.answers != "owner" else None, context.principal)
    if len(msgspec.json.encode(params.mcp_servers)) > MAX_SERVERS_BYTES:
        raise InvalidParameter(
            f"mcp_servers: more than {MAX_SERVERS_BYTES} bytes", field="mcp_servers"
        )
    agent_config.servers(params.mcp_servers)
    placement = params.placement or Placement()
    if services.nodes is None and placement != Placement():
        which = "labels" if placement.labels else "runtime"
        raise InvalidParameter(
            f"placement.{which}: this server is alone, not a node of a cluster",
            field="placement",
            hint="leave it out",
        )
    repository = await cloned_from(services, context, params)
    seconds = CREATE_SECONDS
    if repository is not None:
        transfers = 1 + repository.submodules + repository.fetch_lfs
        seconds += transfers * services.config.repositories.clone_seconds + CHECKOUT_SECONDS
    async with receiving(services, context) as progress_to:
        project: records.Project = await services.projects.ask(
            _creation(context, params, placement, repository, progress_to), timeout=seconds
        )
    return project_view(project)


def _creation(
    context: CallContext,
    params: ProjectCreate,
    placement: Placement,
    repository: records.ProjectRepository | None,
    progress_to: str | None,
) -> CreateProject:
    return made_of(
        params,
        CreateProject,
        principal=context.principal,
        limits=made_of(params.limits, Limits),
        labels=placement.labels,
        runtime=placement.runtime,
        idempotency=claim("project_create", params),
        repository=repository,
        progress_to=progress_to,
    )


@tool(ProjectUpdate, ProjectView, scope="write", unbound=True, runs_on="needed")
async def project_update(
    services: ToolServices, context: CallContext, params: ProjectUpdate
) -> ProjectView:
    """Change a project: the consent to push to where it was cloned from, and who may answer.

    Only the principal that made it, the operator and keys of scope admin may set answers.
    """
    project = await visible_project(services, context, params.project_id)
    if params.allow_push is None and params.answers is None:
        raise InvalidParameter("project_update: give allow_push or answers", field="allow_push")
    check_setting(context, params.answers, project.owner)
    message = made_of(params, UpdateProject)
    return project_view(await services.projects.ask(message, timeout=DELETE_SECONDS))


@tool(ProjectList, ProjectPage, scope="read", read_only=True)
async def project_list(
    services: ToolServices, context: CallContext, params: ProjectList
) -> ProjectPage:
    """List projects, oldest first. A key that is bound to a project sees only that one."""
    if context.scope.project is not None:
        containers = await services.reader.containers(context.scope.project)
        project = await services.reader.project(context.scope.project)
        part = (params.name_contains or "").casefold()
        found = (
            (project,)
            if project is not None
            and project.deleted_at is None
            and part in project.name.casefold()
            and (params.cursor is None or project.id > params.cursor)
            else ()
        )
        problems = await _problems(services, found)
        return ProjectPage(
            projects=tuple(
                project_view(each, containers, problem=problems.get(each.id)) for each in found
            ),
            next_cursor=None,
        )
    page, containers = await services.reader.projects_with_containers(
        params.name_contains, params.limit, params.cursor
    )
    problems = await _problems(services, page.records)
    views, _, cut = fitting(
        project_view(each, containers, short=True, problem=problems.get(each.id))
        for each in page.records
    )
    return ProjectPage(projects=tuple(views), next_cursor=views[-1].id if cut else page.next_cursor)


async def _problems(services: ToolServices, projects: Iterable[records.Project]) -> dict[str, str]:
    return await services.problems_of([(each, [each.default_workspace_id]) for each in projects])


@tool(ProjectOne, ProjectView, scope="read", read_only=True)
async def project_get(
    services: ToolServices, context: CallContext, params: ProjectOne
) -> ProjectView:
    """Show a project with its settings and containers, and how far its clone is."""
    project = await visible_project(services, context, params.project_id)
    progress = None
    cloner = services.find_actor("projects")  # none where the command line reads a database
    if cloner is not None and project.repository is not None and not project.repository.ready:
        progress = await cloner.ask(GetCloneProgress(project_id=project.id))
    containers = await services.reader.containers(project.id)
    problem = await services.problem_of(project.id)
    return project_view(project, containers, progress=progress, problem=problem)


@tool(ProjectDelete, ProjectDeleted, scope="write", destructive=True, runs_on="needed")
async def project_delete(
    services: ToolServices, context: CallContext, params: ProjectDelete
) -> ProjectDeleted:
    """Delete a project with its workspaces and files. Refused while it has live sessions.

    Where snapshots are taken, they go too, so files of agents are lost only with discard.
    """
    project = await visible_project(services, context, params.project_id)
    await check_discard(services, project, params.discard)
    await services.projects.ask(DeleteProject(project_id=project.id), timeout=DELETE_SECONDS)
    return ProjectDeleted(project_id=project.id, deleted=True)


@tool(Nothing, Options, scope="write", read_only=True)
async def project_options(services: ToolServices, context: CallContext, params: Nothing) -> Options:
    """List the options for projects: agents, models, container types, limits, scopes."""
    del context, params
    return Options(
        agents=services.offers.agents,
        models=services.offers.models or known(services.config, services.offers.agents),
        container_types=services.offers.container_types,
        runtimes=services.offers.runtimes,
        limits=made_of(services.config.trees, Limits),
        scopes=scopes.NAMES,
    )


async def visible_project(
    services: ToolServices, context: CallContext, project_id: str
) -> records.Project:
    """The project, if it exists and the key reaches it.

    Raises:
        NotFound: one answer for both.
    """
    project = (
        await services.reader.project(project_id) if context.scope.reaches(project_id) else None
    )
    if project is None or project.deleted_at is not None:
        raise project_not_found(project_id)
    return project


async def cloned_from(
    services: ToolServices, context: CallContext, params: ProjectCreate
) -> ProjectRepository | None:
    """Return what a project is to be cloned from, as far as this caller may; None: nothing.

    Raises:
        InvalidParameter: it is not one address, or not one that this server clones.
        Forbidden: the key may not clone this folder.
    """
    source, settings = params.repository, services.config.repositories
    if source is None:
        return None
    if (source.url is None) == (source.path is None):
        raise InvalidParameter(
            "repository: needs a url or a path, not both", field="repository", hint="leave one out"
        )
    if params.remote_url is not None:
        raise InvalidParameter(
            "remote_url: a project with a repository has its URL as origin",
            field="remote_url",
            hint="leave it out",
        )
    if source.dirty and source.path is None:
        raise InvalidParameter(
            "repository.dirty: only a path has uncommitted changes",
            field="repository.dirty",
            hint="leave it out",
        )
    url = path = None
    if source.url is not None:
        url = check_url(source.url, settings.protocols)
    else:
        own = context.transport in {"control", "program"}
        path = await asyncio.to_thread(
            check_folder, source.path or "", settings.folders, any_folder=own
        )
    return ProjectRepository(
        url=url,
        path=path,
        branch=None if source.branch is None else check_branch(source.branch),
        depth=source.depth,
        submodules=source.submodules,
        fetch_lfs=source.lfs,
        dirty=source.dirty,
        push=source.push,
    )


def _check_bare(services: ToolServices, context: CallContext, params: ProjectCreate) -> None:
    """Refuse `accept_bare` of a key that is not admin if the server's configuration forbids it.

    Raises:
        Forbidden: the key's scope is not sufficient.
    """
    wider = params.accept_bare is True and not services.config.relay.accept_bare
    if wider and context.scope.level != "admin":
        raise Forbidden(
            "accept_bare: relay.accept_bare is off here, and only a key of scope admin may open a "
            "project to clients without a secret",
            hint="leave it out, or use an admin key",
        )


def check_offer(services: ToolServices, field: str, value: str | None) -> None:
    """Refuse an agent, model or container type that this server does not have.

    Raises:
        InvalidParameter: names the available ones.
    """
    if field == "agent" and value in services.offers.missing_agents:
        reason, remedy = services.offers.missing_agents[value]
        raise InvalidParameter(
            f"agent: {value} cannot be used here: {reason}", field=field, hint=remedy
        )
    offers: tuple[str, ...] = getattr(services.offers, f"{field}s")
    auto = value == "auto" and field != "container_type"
    if value is not None and not auto and offers and value not in offers:
        hint = None
        if field == "container_type" and value in types_of(services.config, images=True):
            runtime = " or ".join(services.offers.runtimes)
            hint = f"the runtime {runtime} has no images: it needs docker or podman"
        raise InvalidParameter(
            f"{field}: there is no {value!r} here; choose one of: {', '.join(offers)}",
            field=field,
            hint=hint,
        )
