"""ContainerImages, the part of a ProjectActor that makes images of the project's containers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import structlog
from msgspec.structs import replace

from oubliette.actors.container.messages import StoreImage
from oubliette.actors.messages import ImageStored
from oubliette.actors.store.actor import Transact
from oubliette.errors import Conflict, OublietteError
from oubliette.kit import LocalMessage
from oubliette.runtime.containers.base import LABEL_INSTANCE, LABEL_PROJECT
from oubliette.runtime.store.operations import PutProject

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.messages import ResetImage, SnapshotContainer
    from oubliette.kit import Actor, Deferred, Ref
    from oubliette.records import Project
    from oubliette.runtime.containers.base import ImageCommits, ImageInfo

NAMESPACE: Final = "localhost/oubliette-snapshots"
"""Of the images; no registry has such names."""
LABEL_SNAPSHOT: Final = "dev.oubliette.snapshot-of"
"""The project that an image belongs to."""
SLACK_SECONDS: Final = 30.0
DROP_SECONDS: Final = 15.0

log = structlog.get_logger(__name__)


class ContainerStored(LocalMessage):
    """To a ProjectActor itself: the outcome of storing a container."""

    answer: Deferred
    image: str
    info: ImageInfo | None = None
    error: BaseException | None = None


class ContainerImages:
    """Part of a ProjectActor; has the same lifetime."""

    def __init__(self, actor: Actor, context: ActorContext) -> None:
        self._actor = actor
        self._context = context

    def store(
        self, message: SnapshotContainer, project: Project, container: Ref, answer: Deferred
    ) -> None:
        """Have a container stored; `ContainerStored` comes to the actor."""
        image = f"{NAMESPACE}/{project.id}:{message.name}".lower()
        labels = {
            LABEL_INSTANCE: self._context.instance,
            LABEL_PROJECT: project.id,
            LABEL_SNAPSHOT: project.id,
        }
        seconds = self._context.config.containers.build_timeout_seconds
        asked = StoreImage(image=image, labels=labels, timeout=seconds)
        self._actor.pipe_to_self(
            container.ask(asked, timeout=seconds + SLACK_SECONDS),
            lambda info: ContainerStored(answer=answer, image=image, info=info),
            lambda error: ContainerStored(answer=answer, image=image, error=error),
        )

    async def stored(self, message: ContainerStored, project: Project) -> Project:
        """Make a stored image that of the project; answer the request; return the project."""
        if message.info is None:
            assert message.error is not None
            message.answer.set_error(message.error)
            return project
        try:
            changed = await self._put(project, message.image)
        except OublietteError as error:
            message.answer.set_error(error)
            return project
        message.answer.set(
            ImageStored(
                image=message.image, image_id=message.info.id, size_bytes=message.info.size_bytes
            )
        )
        return changed

    async def reset(self, _: ResetImage, project: Project) -> Project:
        """A project to the image of its container type."""
        if project.image is None:
            return project
        changed = await self._put(project, None)
        await self.drop(project)
        return changed

    async def drop(self, project: Project) -> None:
        """Remove the project's images, as far as no container uses them."""
        if project.image is None:
            return
        runtime = cast("ImageCommits", self._context.runtime)
        try:
            async with asyncio.timeout(DROP_SECONDS):
                await runtime.drop_images(f"{LABEL_SNAPSHOT}={project.id}")
        except (OublietteError, TimeoutError) as error:
            log.warning(
                "images of a project are left",
                project_id=project.id,
                reason=str(error),
                label=f"{LABEL_SNAPSHOT}={project.id}",
            )

    async def _put(self, project: Project, image: str | None) -> Project:
        current = await self._context.reader.project(project.id)
        if current is None or current.deleted_at is not None:
            raise Conflict(f"project {project.id} was deleted meanwhile")
        changed = replace(current, image=image)
        await self._context.store.ask(Transact(ops=(PutProject(changed),)))
        return changed
