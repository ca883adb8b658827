"""Tools of images: `container_refresh`, `container_snapshot`, `image_rebuild`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from oubliette.actors.container.messages import StopContainer
from oubliette.actors.messages import ResetImage, SnapshotContainer
from oubliette.contract import field_types
from oubliette.contract.field_types import Params
from oubliette.errors import InvalidParameter, NotFound, Unavailable
from oubliette.tools.handlers.containers import (
    SLACK_SECONDS,
    STOP_SECONDS,
    WorkspaceOfContainer,
    container_of,
)
from oubliette.tools.handlers.projects import check_offer, visible_project
from oubliette.tools.spec import Result, tool

if TYPE_CHECKING:
    from oubliette.records import Project
    from oubliette.runtime.containers.images import Imaging
    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext

TAIL: Final = 4000  # characters of a build's output


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


class ContainerSnapshot(Params, frozen=True, kw_only=True):
    """Parameters of `container_snapshot`."""

    project_id: Annotated[field_types.ProjectId, Meta(description="Id of the project.")]
    workspace_id: WorkspaceOfContainer = None
    name: Annotated[
        Annotated[str, Meta(max_length=64, pattern="^[a-z0-9][a-z0-9._-]*$")],
        Meta(description="Tag of the image: lower-case letters, digits, `.`, `_`, `-`."),
    ] = "latest"


class StoredImage(Result, frozen=True, kw_only=True):
    """Result of `container_snapshot`."""

    project_id: str
    image: str
    image_id: str
    size_bytes: int | None


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


def _imaging(services: ToolServices) -> Imaging:
    if services.imaging is None:
        raise Unavailable("this server has no containers")
    return services.imaging


@tool(ContainerRefresh, ImageState, scope="write", runs_on="needed")
async def container_refresh(
    services: ToolServices, context: CallContext, params: ContainerRefresh
) -> ImageState:
    """Pull the image of a project or of a container type again.

    A project's container is stopped, and recreated when it is needed; that is refused while
    sessions use it. Images that container_snapshot made for the project are removed.
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
    if project is not None:
        actor = await container_of(services, project, None)
        await actor.ask(StopContainer(), timeout=STOP_SECONDS)
        if project.image is not None:
            await (await services.project_ref(project.id)).ask(ResetImage(), timeout=STOP_SECONDS)
            project = msgspec.structs.replace(project, image=None)
    said = await imaging.refresh(kind, project, context.progress)
    image = imaging.image_of(kind, project)
    if said is None:
        return ImageState(image=image, state="local", log_tail="")
    return ImageState(image=image, state="fetched", log_tail=said[-TAIL:])


@tool(ContainerSnapshot, StoredImage, scope="write", runs_on="live")
async def container_snapshot(
    services: ToolServices, context: CallContext, params: ContainerSnapshot
) -> StoredImage:
    """Make an image of a project's running container, with which its next containers begin.

    It has what was installed, and neither workspaces nor HOME, which are kept anyway. The container
    is paused meanwhile. container_refresh returns to the image of the container type.
    """
    project = await visible_project(services, context, params.project_id)
    _imaging(services).check_commits(project)
    await container_of(services, project, params.workspace_id)
    actor = await services.project_ref(project.id)
    stored = await actor.ask(
        SnapshotContainer(name=params.name, workspace_id=params.workspace_id),
        timeout=services.config.containers.build_timeout_seconds + SLACK_SECONDS,
    )
    return StoredImage(
        project_id=project.id,
        image=stored.image,
        image_id=stored.image_id,
        size_bytes=stored.size_bytes,
    )


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
