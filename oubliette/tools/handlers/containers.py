"""Tools of containers: `container_start`, `container_stop`, `container_exec`, `container_logs`."""

from __future__ import annotations

import contextlib
import functools
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
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.contract.project import CommandResult
from oubliette.errors import Conflict, NotFound
from oubliette.kit import ActorDead
from oubliette.runtime.files.git_identity import variables
from oubliette.tools.handlers.projects import visible_project
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette.kit import Ref
    from oubliette.records import Project
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

STOP_SECONDS: Final = 30.0
FILES_QUEUED: Final = 3
"""Multiple of `snapshots.seconds` that files of another node may take."""
SLACK_SECONDS: Final = 60.0  # beyond a command's own deadline

WorkspaceOfContainer = Annotated[
    field_types.Uuid | None,
    Meta(description="UUID of a workspace, if workspaces are isolated. Unset: the default one."),
]


class ContainerStart(Params, frozen=True, kw_only=True):
    """Parameters of `container_start`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: WorkspaceOfContainer = None


class ContainerStop(Params, frozen=True, kw_only=True):
    """Parameters of `container_stop`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: WorkspaceOfContainer = None
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
    workspace_id: WorkspaceOfContainer = None
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
    workspace_id: WorkspaceOfContainer = None
    tail: Annotated[int, Meta(ge=1, le=100_000, description="Number of lines from the end.")] = 1000


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


class ContainerText(Result, frozen=True, kw_only=True):
    """Result of `container_logs`."""

    logs: str
    truncated: bool


async def container_of(
    services: ToolServices,
    project: Project,
    workspace_id: str | None,
    *,
    for_use: bool = False,
    command: bool = False,
) -> Ref:
    """Return the ContainerActor of a project, or of one of its isolated workspaces.

    With `for_use`, files of its workspaces that are on another node are brought before. For a
    `command` the project has to have room.
    """
    if workspace_id is not None:
        record = await services.reader.workspace(workspace_id)
        if record is None or record.project_id != project.id or record.deleted_at is not None:
            raise NotFound(f"workspace {workspace_id} not found", hint="workspace_list shows them")
    actor = await services.project_ref(project.id)
    message = OpenContainer(workspace_id=workspace_id, for_use=for_use, command=command)
    limit = services.config.snapshots.seconds * FILES_QUEUED + STOP_SECONDS
    return services.name_actor(f"{await actor.ask(message, timeout=limit)}/container")


def workspace_path(project: Project, workspace_id: str | None) -> str:
    """The path of a workspace in its container, as documented."""
    return f"/workspace/workspaces/{workspace_id or project.default_workspace_id}"


@contextlib.asynccontextmanager
async def container_in_use(
    services: ToolServices, project: Project, workspace_id: str | None, purpose: str
) -> AsyncGenerator[Ref]:
    """Start a container if it does not run, and keep it running until the end of the block."""
    opened = functools.partial(
        container_of, services, project, workspace_id, for_use=True, command=purpose == "exec"
    )
    actor = await opened()
    lease = f"{purpose}:{ids.new_uuid()}"
    try:
        try:
            await _up(services, actor, lease)
        except ActorDead:  # it was restarted, or ended as nothing had used it
            actor = await opened()
            await _up(services, actor, lease)
        yield actor
    finally:
        actor.tell(Release(session_id=lease))


async def _up(services: ToolServices, actor: Ref, lease: str) -> Any:
    limit = longest_start(services.config.containers) + STOP_SECONDS
    return await actor.ask(Acquire(session_id=lease), timeout=limit)


@tool(ContainerStart, ContainerState, scope="write", runs_on="needed")
async def container_start(
    services: ToolServices, context: CallContext, params: ContainerStart
) -> ContainerState:
    """Start a project's container if it is not running. Sessions start it when they need it."""
    project = await visible_project(services, context, params.project_id)
    async with container_in_use(services, project, params.workspace_id, "start") as actor:
        record = await actor.ask(GetContainer())
        stages: dict[str, float] = await actor.ask(GetStages())
    return ContainerState(
        project_id=project.id,
        container_id=record.id if record is not None else None,
        state="running" if record is not None else "stopped",
        runtime=record.runtime if record is not None else None,
        stages=tuple(Stage(name=name, seconds=took) for name, took in stages.items()),
    )


@tool(ContainerStop, ContainerState, scope="write", destructive=True, runs_on="live")
async def container_stop(
    services: ToolServices, context: CallContext, params: ContainerStop
) -> ContainerState:
    """Stop and remove a project's container. Refused while sessions use it, unless forced."""
    project = await visible_project(services, context, params.project_id)
    actor = await container_of(services, project, params.workspace_id)
    record = await actor.ask(GetContainer())
    await actor.ask(StopContainer(force=params.force), timeout=STOP_SECONDS)
    return ContainerState(
        project_id=project.id,
        container_id=record.id if record is not None else None,
        state="stopped",
        runtime=record.runtime if record is not None else None,
    )


@tool(ContainerExec, CommandResult, scope="write", runs_on="needed", enters="named")
async def container_exec(
    services: ToolServices, context: CallContext, params: ContainerExec
) -> CommandResult:
    """Run a command in a project's container, starting it if necessary, and wait for its end.

    At the deadline the command and all processes that it started are killed, and the output until
    then is returned. If the container does not respond, because it hangs or is paused, the call
    fails ten seconds later. Do not leave anything running in the background: it may be killed as
    soon as the command ends.
    """
    project = await visible_project(services, context, params.project_id)
    command = params.command
    workspace = workspace_path(project, params.workspace_id)
    async with container_in_use(services, project, params.workspace_id, "exec") as actor:
        done: CommandResult = await actor.ask(
            RunCommand(
                argv=("sh", "-c", command) if isinstance(command, str) else command,
                workspace=workspace,
                working_dir=params.working_dir or workspace,
                timeout_seconds=params.timeout_seconds,
                env=variables(services.config.agents),
            ),
            timeout=params.timeout_seconds + SLACK_SECONDS,
        )
    return done


@tool(ContainerLogs, ContainerText, scope="write", runs_on="live")
async def container_logs(
    services: ToolServices, context: CallContext, params: ContainerLogs
) -> ContainerText:
    """Read the end of the output of a project's container itself; agents' output is in events."""
    project = await visible_project(services, context, params.project_id)
    actor = await container_of(services, project, params.workspace_id)
    if await actor.ask(GetContainer()) is None:
        raise Conflict("no container of this project runs", hint="container_start starts it")
    logs = await actor.ask(ReadLogs(tail=params.tail))
    return ContainerText(logs=logs.text, truncated=logs.truncated)
