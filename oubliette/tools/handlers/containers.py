"""Tools of containers and images: `container_*`, `image_rebuild`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from oubliette import ids
from oubliette.actors.container.messages import (
    Acquire,
    GetContainer,
    GetStages,
    ReadLogs,
    Release,
    RunCommand,
    StopContainer,
)
from oubliette.actors.container.start_stages import longest_start
from oubliette.actors.messages import OpenContainer
from oubliette.errors import Conflict, InvalidParameter, NotFound, Unavailable
from oubliette.runtime.files.git_identity import variables
from oubliette.tool_params import field_types
from oubliette.tool_params.base import Params
from oubliette.tools.handlers.projects import check_offer, visible_project
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.kit import Ref
    from oubliette.records import Project
    from oubliette.runtime.containers.images import Imaging
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

STOP_SECONDS: Final = 30.0
TAIL: Final = 4000  # characters of a build's output
SLACK_SECONDS: Final = 60.0  # beyond a command's own deadline

_Workspace = Annotated[
    field_types.Uuid | None,
    Meta(description="UUID of a workspace, if workspaces are isolated. Unset: the default one."),
]


class ContainerStart(Params, frozen=True, kw_only=True):
    """Parameters of `container_start`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: _Workspace = None


class ContainerStop(Params, frozen=True, kw_only=True):
    """Parameters of `container_stop`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: _Workspace = None
    force: Annotated[
        bool, Meta(description="Stop it although live sessions use it; they fail.")
    ] = False


class ContainerExec(Params, frozen=True, kw_only=True):
    """Parameters of `container_exec`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    command: Annotated[
        field_types.Prompt | tuple[str, ...],
        Meta(description="A string for `sh -c`, or an array of program and arguments."),
    ]
    workspace_id: _Workspace = None
    working_dir: Annotated[
        field_types.InsidePath | None,
        Meta(description="Absolute path in the container. Unset: the workspace."),
    ] = None
    timeout_seconds: Annotated[
        float,
        Meta(
            gt=0, le=3600, description="Time after which the command and its children are killed."
        ),
    ] = 60.0


class ContainerLogs(Params, frozen=True, kw_only=True):
    """Parameters of `container_logs`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: _Workspace = None
    tail: Annotated[int, Meta(ge=1, le=100_000, description="Number of lines from the end.")] = 1000


class ContainerRefresh(Params, frozen=True, kw_only=True):
    """Parameters of `container_refresh`."""

    project_id: Annotated[
        field_types.ProjectId | None,
        Meta(description="Project whose image is pulled and whose container is recreated."),
    ] = None
    container_type: Annotated[
        field_types.Line | None,
        Meta(description="Container type whose image is pulled, instead of a project."),
    ] = None


class ImageRebuild(Params, frozen=True, kw_only=True):
    """Parameters of `image_rebuild`."""

    container_type: Annotated[
        field_types.Line, Meta(description="One of project_options.container_types.")
    ]


class ImageState(Result, frozen=True, kw_only=True):
    """Result of `container_refresh` and `image_rebuild`."""

    image: str
    state: str
    log_tail: str


class Stage(Result, frozen=True, kw_only=True):
    """One step of a container's start."""

    name: str
    seconds: float


class ContainerState(Result, frozen=True, kw_only=True):
    """Result of `container_start` and `container_stop`."""

    project_id: str
    container_id: str | None
    state: str
    runtime: str | None
    stages: tuple[Stage, ...] = ()


class ContainerOutput(Result, frozen=True, kw_only=True):
    """Result of `container_exec`."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool


class ContainerText(Result, frozen=True, kw_only=True):
    """Result of `container_logs`."""

    logs: str
    truncated: bool


async def _container(services: ToolServices, project: Project, workspace_id: str | None) -> Ref:
    """Return the ContainerActor of a project, or of one of its isolated workspaces."""
    if workspace_id is not None:
        record = await services.reader.workspace(workspace_id)
        if record is None or record.project_id != project.id or record.deleted_at is not None:
            raise NotFound(f"workspace {workspace_id} not found", hint="workspace_list shows them")
    actor = await services.project_ref(project.id)
    return services.name_actor(
        f"{await actor.ask(OpenContainer(workspace_id=workspace_id))}/container"
    )


async def _up(services: ToolServices, actor: Ref, lease: str) -> Any:
    limit = longest_start(services.config.containers) + STOP_SECONDS
    return await actor.ask(Acquire(session_id=lease), timeout=limit)


@tool(ContainerStart, ContainerState, scope="write", home="needed")
async def container_start(
    services: ToolServices, context: CallContext, params: ContainerStart
) -> ContainerState:
    """Start a project's container if it is not running. Sessions start it when they need it."""
    project = await visible_project(services, context, params.project_id)
    actor = await _container(services, project, params.workspace_id)
    lease = f"start:{ids.new_uuid()}"
    try:
        await _up(services, actor, lease)
        record = await actor.ask(GetContainer())
        stages: dict[str, float] = await actor.ask(GetStages())
    finally:
        actor.tell(Release(session_id=lease))
    return ContainerState(
        project_id=project.id,
        container_id=record.id if record is not None else None,
        state="running" if record is not None else "stopped",
        runtime=record.runtime if record is not None else None,
        stages=tuple(Stage(name=name, seconds=took) for name, took in stages.items()),
    )


@tool(ContainerStop, ContainerState, scope="write", destructive=True, home="live")
async def container_stop(
    services: ToolServices, context: CallContext, params: ContainerStop
) -> ContainerState:
    """Stop and remove a project's container. Refused while sessions use it, unless forced."""
    project = await visible_project(services, context, params.project_id)
    actor = await _container(services, project, params.workspace_id)
    record = await actor.ask(GetContainer())
    await actor.ask(StopContainer(force=params.force), timeout=STOP_SECONDS)
    return ContainerState(
        project_id=project.id,
        container_id=record.id if record is not None else None,
        state="stopped",
        runtime=record.runtime if record is not None else None,
    )


@tool(ContainerExec, ContainerOutput, scope="write", home="needed")
async def container_exec(
    services: ToolServices, context: CallContext, params: ContainerExec
) -> ContainerOutput:
    """Run a command in a project's container, starting it if necessary, and wait for its end.

    At the deadline the command and all processes that it started are killed, and the output until
    then is returned. If the container does not respond, because it hangs or is paused, the call
    fails ten seconds later. Do not leave anything running in the background: it may be killed as
    soon as the command ends.
    """
    project = await visible_project(services, context, params.project_id)
    actor = await _container(services, project, params.workspace_id)
    command = params.command
    workspace = f"/workspace/workspaces/{params.workspace_id or project.default_workspace_id}"
    lease = f"exec:{ids.new_uuid()}"
    try:
        await _up(services, actor, lease)
        done = await actor.ask(
            RunCommand(
                argv=("sh", "-c", command) if isinstance(command, str) else command,
                workspace=workspace,
                working_dir=params.working_dir or workspace,
                timeout_seconds=params.timeout_seconds,
                env=variables(services.config.agents),
            ),
            timeout=params.timeout_seconds + SLACK_SECONDS,
        )
    finally:
        actor.tell(Release(session_id=lease))
    return ContainerOutput(
        exit_code=done.exit_code,
        stdout=done.stdout,
        stderr=done.stderr,
        truncated=done.truncated,
        timed_out=done.timed_out,
    )


@tool(ContainerLogs, ContainerText, scope="write", home="live")
async def container_logs(
    services: ToolServices, context: CallContext, params: ContainerLogs
) -> ContainerText:
    """Read the end of the output of a project's container itself; agents' output is in events."""
    project = await visible_project(services, context, params.project_id)
    actor = await _container(services, project, params.workspace_id)
    if await actor.ask(GetContainer()) is None:
        raise Conflict("no container of this project runs", hint="container_start starts it")
    logs = await actor.ask(ReadLogs(tail=params.tail))
    return ContainerText(logs=logs.text, truncated=logs.truncated)


def _imaging(services: ToolServices) -> Imaging:
    if services.imaging is None:
        raise Unavailable("this server has no containers")
    return services.imaging


@tool(ContainerRefresh, ImageState, scope="write", home="needed")
async def container_refresh(
    services: ToolServices, context: CallContext, params: ContainerRefresh
) -> ImageState:
    """Pull the image of a project or of a container type again.

    A project's container is stopped, and recreated when it is needed; that is refused while
    sessions use it.
    """
    if (params.project_id is None) == (params.container_type is None):
        raise InvalidParameter(
            "project_id: either a project or a container_type is needed", field="project_id"
        )
    kind = params.container_type
    project: Project | None = None
    if params.project_id is not None:
        project = await visible_project(services, context, params.project_id)
        kind = project.container_type
    elif context.scope.project is not None:
        raise NotFound("no such container type for this key", hint="give a project_id")
    check_offer(services, "container_type", kind)
    imaging, kind = _imaging(services), kind or "base"
    image = imaging.image_of(kind, project)
    if project is not None:
        actor = await _container(services, project, None)
        await actor.ask(StopContainer(), timeout=STOP_SECONDS)
    said = await imaging.refresh(kind, project, context.progress)
    if said is None:
        return ImageState(image=image, state="local", log_tail="")
    return ImageState(image=image, state="fetched", log_tail=said[-TAIL:])


@tool(ImageRebuild, ImageState, scope="write", unbound=True)
async def image_rebuild(
    services: ToolServices, context: CallContext, params: ImageRebuild
) -> ImageState:
    """Build the image of a container type, from its own Dockerfile or Oubliette's.

    Running containers keep the old image; container_refresh of a project recreates its container.
    """
    check_offer(services, "container_type", params.container_type)
    imaging = _imaging(services)
    said = await imaging.rebuild(params.container_type, context.progress)
    return ImageState(
        image=imaging.image_of(params.container_type), state="built", log_tail=said[-TAIL:]
    )
